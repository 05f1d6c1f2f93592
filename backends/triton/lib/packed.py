"""Attention of the query heads that share a key and value head, as the rows of one tile."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention_decode import splits_of
from touchstone.backends.sizes import ceil_div, next_power_of_2

PROGRAMS = 2048  # that parts of the keys should give together: a few waves over the largest GPUs


@triton.jit
def attend(
    q_ptr, q_strides, k_ptr, k_strides, v_ptr, v_strides, table_ptr, stride_entry, page, b, reader, row, rows, Sq,
    first, last, ahead, scale, D, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """o (BLOCK_M, BLOCK_D), not normalised, and the maximum and the sum of each row, over the keys first … last − 1.

    The rows `row` of the head `reader` are its query heads' queries: head row // Sq, query row % Sq, of `rows` in all.
    k and v are of one sequence and head, with the strides of a row and of a column; of pages with, before them, the
    stride of a page where `table_ptr` names the page of each `page` keys. Query i sees j <= i + ahead.
    """
    head, i = reader * (rows // Sq) + row // Sq, row % Sq
    d = tl.arange(0, BLOCK_D).to(tl.int64)
    q_at = q_ptr + b * q_strides[0] + head[:, None] * q_strides[1] + i[:, None] * q_strides[2] + d * q_strides[3]
    q = tl.load(q_at, mask=(row < rows)[:, None] & (d < D), other=0.0)

    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(first, last, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        if table_ptr is None:
            k_rows, v_rows = j.to(tl.int64) * k_strides[0], j.to(tl.int64) * v_strides[0]
        else:  # entries beyond the last page name no page
            held = tl.load(table_ptr + (j // page).to(tl.int64) * stride_entry, mask=j < last, other=0).to(tl.int64)
            k_rows = held * k_strides[2] + (j % page).to(tl.int64) * k_strides[0]
            v_rows = held * v_strides[2] + (j % page).to(tl.int64) * v_strides[0]
        inside = (j < last)[:, None] & (d < D)  # of v too: 0 times what lies beyond may be NaN
        k = tl.load(k_ptr + k_rows[:, None] + d * k_strides[1], mask=inside, other=0.0)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        visible = (j[None, :] < last) & (j[None, :] <= i[:, None] + ahead)
        s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)  # so far no score above -inf
        w = tl.exp(s - base[:, None])
        alpha = tl.exp(m - base)
        l = l * alpha + tl.sum(w, 1)
        m = m_new
        v = tl.load(v_ptr + v_rows[:, None] + d * v_strides[1], mask=inside, other=0.0)
        o = tl.dot(w.to(v.dtype), v, o * alpha[:, None], input_precision="ieee")
    return o, m, l


@triton.jit
def store_part(o, m, l, o_ptr, lse_ptr, pair, row, rows, D, BLOCK_D: tl.constexpr):
    """o and lse of program_id(1), a part of the keys, to (pair·rows + row, part); `pair` numbers (b, head of k)."""
    d, place = tl.arange(0, BLOCK_D), (pair * rows + row) * tl.num_programs(1) + tl.program_id(1)
    o = o / tl.where(l == 0, 1.0, l)[:, None]
    tl.store(o_ptr + place[:, None] * D + d, o, mask=(row < rows)[:, None] & (d < D))
    tl.store(lse_ptr + place, m + tl.log(l), mask=row < rows)


def tiles(dtype: torch.dtype, D: int) -> dict[str, int]:
    """A tile's 16 rows, its keys and padded columns; 64 columns at least, as in attention."""
    width = max(64, next_power_of_2(D))
    if dtype is torch.float32:
        return dict(BLOCK_M=16, BLOCK_N=16, BLOCK_D=width)
    return dict(BLOCK_M=16, BLOCK_N=8192 // width, BLOCK_D=width, num_warps=4, num_stages=4)


def tiles_alike(dtype: torch.dtype, D: int, rows: int) -> dict[str, int]:
    """The same where all sequences are equally long, so that a program has many keys, of `rows` rows."""
    config, width = tiles(dtype, D), max(64, next_power_of_2(D))
    if dtype is torch.float32 or width > 128:
        return config
    if rows <= 16:
        return {**config, "BLOCK_N": 16384 // width, "num_stages": 2}
    return {**config, "BLOCK_M": 64, "BLOCK_N": 64, "num_stages": 3}


def parts_alike(Sk: int, programs: int, processors: int) -> tuple[int, int]:
    """The same as `parts` where all are equally long: two programs to a multiprocessor, so that none waits."""
    return splits_of(Sk, most=max(1, min(64, 2 * processors // max(1, programs))))


def parts(Sk: int, programs: int) -> tuple[int, int]:
    """How many parts `programs` programs cut their keys into, and the keys of each."""
    return splits_of(Sk, most=min(64, ceil_div(PROGRAMS, programs)))
