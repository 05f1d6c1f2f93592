"""Attention whose keys have two parts: one that may be the value as well, and a rotary part that all heads share."""

import torch
import triton
import triton.language as tl

from touchstone.backends.sizes import next_power_of_2


@triton.jit
def load_tile(x_ptr, rows, stride_row, row_end, cols, stride_col, col_end):
    """x[rows, cols], zero from `row_end` and `col_end` on."""
    offsets = rows.to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
    return tl.load(x_ptr + offsets, mask=(rows[:, None] < row_end) & (cols[None, :] < col_end), other=0.0)


@triton.jit
def attend(
    q_ptr, q_strides, r_ptr, r_strides, k_ptr, k_strides, t_ptr, t_strides, v_ptr, v_strides, b, key_head, row, rows,
    Sq, first, last, length, scale, D, P, DV, CAUSAL: tl.constexpr, SHARED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    """o (BLOCK_M, BLOCK_V), not normalised, and the maximum and the sum of each row, over the keys first … last − 1.

    The rows `row` of a key head are its query heads' queries: head row // Sq, query row % Sq, of `rows` in all. q
    (B, H, Sq, D) meets k (B, heads, Sk, D), r (B, H, Sq, P) meets t (B, Sk, P); v (B, heads, Sk, DV) is k where it is
    SHARED, and then loaded once. `length` keys are filled: query i sees j <= i + length − Sq if CAUSAL.
    """
    head, i = key_head * (rows // Sq) + row // Sq, row % Sq
    d, p, e = tl.arange(0, BLOCK_D).to(tl.int64), tl.arange(0, BLOCK_P).to(tl.int64), tl.arange(0, BLOCK_V)
    exists = (row < rows)[:, None]
    q_at = q_ptr + b * q_strides[0] + head[:, None] * q_strides[1] + i[:, None] * q_strides[2] + d * q_strides[3]
    r_at = r_ptr + b * r_strides[0] + head[:, None] * r_strides[1] + i[:, None] * r_strides[2] + p * r_strides[3]
    q = tl.load(q_at, mask=exists & (d < D), other=0.0)
    r = tl.load(r_at, mask=exists & (p < P), other=0.0)
    k_ptr += b * k_strides[0] + key_head * k_strides[1]
    v_ptr += b * v_strides[0] + key_head * v_strides[1]
    t_ptr += b * t_strides[0]

    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    for start in range(first, tl.minimum(last, length), BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k = load_tile(k_ptr, j, k_strides[2], length, d, k_strides[3], D)
        t = load_tile(t_ptr, j, t_strides[1], length, p, t_strides[2], P)
        s = tl.dot(q, k.T, input_precision="ieee")
        s = tl.dot(r, t.T, s, input_precision="ieee") * scale
        visible = j[None, :] < tl.minimum(last, length)
        if CAUSAL:
            visible &= j[None, :] <= i[:, None] + length - Sq
        s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)  # so far no score above -inf
        w = tl.exp(s - base[:, None])
        alpha = tl.exp(m - base)
        l = l * alpha + tl.sum(w, 1)
        m = m_new
        v = k if SHARED else load_tile(v_ptr, j, v_strides[2], length, e, v_strides[3], DV)
        o = tl.dot(w.to(v.dtype), v, o * alpha[:, None], input_precision="ieee")
    return o, m, l


def blocks(dtype: torch.dtype, rows: int, D: int, P: int, DV: int, shared: bool, neighbours: bool) -> dict[str, int]:
    """Rows, keys and padded columns of a tile; 64 columns at least, as in attention. A tile of more rows than there
    are would multiply nothing; one of more than 64 with an output of 512 columns would not stay in registers, nor would
    one of 128 whose keys are the values too (`shared`). Where the columns of keys are no `neighbours`, a thread holds
    the address of each element it loads, so there are twice as many threads."""
    padded = {name: max(64, next_power_of_2(n)) for name, n in dict(BLOCK_D=D, BLOCK_P=P, BLOCK_V=DV).items()}
    if dtype is torch.float32:
        return dict(BLOCK_M=16, BLOCK_N=16, **padded)
    if rows <= 16:
        return dict(BLOCK_M=16, BLOCK_N=32, num_warps=4 if neighbours else 8, num_stages=2, **padded)
    if not shared and max(padded["BLOCK_D"], padded["BLOCK_V"]) <= 128:
        return dict(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=2, **padded)
    return dict(BLOCK_M=64, BLOCK_N=32, num_warps=8, num_stages=2, **padded)
