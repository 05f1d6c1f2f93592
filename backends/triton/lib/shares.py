"""Attention of a few queries over caches of any lengths, by programs that have equal shares of all keys.

The keys of the first head of k and v, then of the second, then of those of the next sequence lie end to end, in tiles;
a program has as many tiles as any other, of one head or of several. What it has of a head begins or ends where its
share does, so that it leaves two parts at most, and writes the other heads' answers itself.
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib import packed
from touchstone.backends.triton.lib.rows import grid_programs

_BATCH = 4096  # sequences whose lengths a program counts
_AT_ONCE, _STAGES = 2, 3  # programs that a multiprocessor holds, with so many tiles on their way


@triton.jit
def _counted(lengths_ptr, stride_length, B, heads, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr):
    """Of each sequence its number, its length, the tiles of each of its heads, one at least, and where all end."""
    every = tl.arange(0, BLOCK_B)
    lengths = tl.load(lengths_ptr + every * stride_length, mask=every < B, other=0)
    tiles = tl.where(every < B, tl.maximum(tl.cdiv(lengths, BLOCK_N), 1), 0)
    return every, lengths, tiles, tl.cumsum(tiles * heads, axis=0)


@triton.jit
def _of(chosen, values):
    return tl.sum(tl.where(chosen, values, 0), axis=0)


@triton.jit(do_not_specialize=["scale", "B", "Hkv", "rows", "Sq"])
def _shares_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, o_ptr, lse_ptr, part_ptr, part_lse_ptr, q_strides, k_strides, v_strides,
    stride_length, scale, B, Hkv, rows, Sq, D, BLOCK_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr
):  # fmt: skip
    program, tops, d = tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.arange(0, BLOCK_D)
    every, lengths, tiles, ends = _counted(lengths_ptr, stride_length, B, Hkv * tops, BLOCK_N, BLOCK_B)
    total = tl.max(ends, axis=0)
    share = tl.cdiv(total, tl.num_programs(0))
    at, end = program * share, tl.minimum(program * share + share, total)
    while at < end:
        chosen = every == tl.sum((ends <= at).to(tl.int32), axis=0)
        b, length, of_head = _of(chosen, every).to(tl.int64), _of(chosen, lengths), _of(chosen, tiles)
        before = at - (_of(chosen, ends) - of_head * Hkv * tops)  # tiles of this sequence
        head, first = before // of_head, before % of_head
        last = tl.minimum(first + end - at, of_head)
        reader, top = (head // tops).to(tl.int64), head % tops * BLOCK_M
        row = top + tl.arange(0, BLOCK_M).to(tl.int64)
        o, m, l = packed.attend(
            q_ptr, q_strides, k_ptr + b * k_strides[0] + reader * k_strides[1], (k_strides[2], k_strides[3]),
            v_ptr + b * v_strides[0] + reader * v_strides[1], (v_strides[2], v_strides[3]), None, 0, 1, b, reader, row,
            rows, Sq, first * BLOCK_N, tl.minimum(last * BLOCK_N, length), length - Sq, scale, D, BLOCK_M, BLOCK_N,
            BLOCK_D
        )  # fmt: skip
        o, lse, exists = o / tl.where(l == 0, 1.0, l)[:, None], m + tl.log(l), row < rows
        if last - first == of_head:
            place = (b * Hkv + reader) * rows + row
            tl.store(o_ptr + place[:, None] * D + d, o, mask=exists[:, None] & (d < D))
            tl.store(lse_ptr + place, lse, mask=exists)
        else:  # the program's first part, in the middle of a head, or its last, at the beginning of one
            place = (2 * program + (first == 0).to(tl.int32)).to(tl.int64) * BLOCK_M + row - top
            tl.store(part_ptr + place[:, None] * D + d, o, mask=exists[:, None] & (d < D))
            tl.store(part_lse_ptr + place, lse, mask=exists)
        at += last - first


@triton.jit(do_not_specialize=["B", "Hkv", "rows", "programs"])
def _merge_kernel(
    part_ptr, part_lse_ptr, o_ptr, lse_ptr, lengths_ptr, stride_length, B, Hkv, rows, D, programs,
    BLOCK_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """A row's parts merged, where there is more than one."""
    row, pair = tl.program_id(0) % rows, tl.program_id(0) // rows
    tops = tl.cdiv(rows, BLOCK_M)
    every, _, tiles, ends = _counted(lengths_ptr, stride_length, B, Hkv * tops, BLOCK_N, BLOCK_B)
    share, chosen = tl.cdiv(tl.max(ends, axis=0), programs), every == pair // Hkv
    of_head = _of(chosen, tiles)
    begin = _of(chosen, ends) - of_head * (Hkv * tops - pair % Hkv * tops - row // BLOCK_M)
    first, last = begin // share, (begin + of_head - 1) // share  # programs
    if first == last:
        return
    d, top = tl.arange(0, BLOCK_D), float("-inf")
    o, l = tl.zeros((BLOCK_D,), tl.float32), 0.0
    for start in range(first, last + 1, PARTS):
        p = start + tl.arange(0, PARTS)
        place = (2 * p + (p == first).to(tl.int32)).to(tl.int64) * BLOCK_M + row % BLOCK_M
        lse = tl.load(part_lse_ptr + place, mask=p <= last, other=float("-inf"))
        parts = tl.load(part_ptr + place[:, None] * D + d, mask=(p <= last)[:, None] & (d < D), other=0.0)
        new = tl.maximum(top, tl.max(lse, axis=0))
        shift = tl.where(new == float("-inf"), 0.0, new)
        weight, kept = tl.exp(lse - shift), tl.exp(top - shift)
        o = o * kept + tl.sum(parts * weight[:, None], axis=0)
        l, top = l * kept + tl.sum(weight, axis=0), new
    place = tl.program_id(0).to(tl.int64)
    tl.store(o_ptr + place * D + d, o / tl.where(l == 0, 1.0, l), mask=d < D)
    tl.store(lse_ptr + place, tl.where(top == float("-inf"), 0.0, top) + tl.log(l))


def attend(q, k, v, lengths, o, lse, scale: float) -> None:
    """Fill o and lse, not empty: q (B, Hq, Sq, D) over lengths[b] keys of k and v (B, Hkv, Sk, D). Declines more
    sequences than a program counts."""
    (B, Hq, Sq, D), Hkv, Sk = q.shape, *k.shape[1:3]
    if B > _BATCH:
        raise Unsupported(f"{B} sequences; a program counts the keys of {_BATCH}")
    sizes, rows = packed.tiles(q.dtype, D), Hq // Hkv * Sq
    if q.dtype is not torch.float32:
        sizes["num_stages"] = _STAGES
    units = B * Hkv * ceil_div(rows, sizes["BLOCK_M"]) * max(1, ceil_div(Sk, sizes["BLOCK_N"]))
    programs = min(grid_programs(q, _AT_ONCE), units)
    parts = torch.empty((2 * programs * sizes["BLOCK_M"], D), dtype=torch.float32, device=q.device)
    part_lse = torch.empty(2 * programs * sizes["BLOCK_M"], dtype=torch.float32, device=q.device)
    strides = (q.stride(), k.stride(), v.stride(), lengths.stride(0))
    tensors, batch = (q, k, v, lengths, o, lse, parts, part_lse), next_power_of_2(B)
    _shares_kernel[(programs,)](*tensors, *strides, scale, B, Hkv, rows, Sq, D, BLOCK_B=batch, **sizes)
    blocks = {name: sizes[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_D")}
    operands = (parts, part_lse, o, lse, lengths, lengths.stride(0), B, Hkv, rows, D, programs)
    _merge_kernel[(B * Hkv * rows,)](*operands, BLOCK_B=batch, **blocks, PARTS=16)
