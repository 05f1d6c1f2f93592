"""Attention over parts of the keys merged into attention over all of them: o = Σ exp(lse_p − lse)·o_p and lse.

naive: a part after the other, with a running maximum and sum of their weights [milakov2018]
onerow: the weights of all parts of a row at once, then their sum a tile of parts at a time [dao2023decoding]
rows: naive with a tile of rows to a program, of which each thread has vectors of its own, and no warp too little to do
  [tillet2019]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.merge_states import checked
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.variants import variant


@triton.jit
def _naive_kernel(o_ptr, lse_ptr, merged_ptr, of_all_ptr, o_strides, lse_strides, parts, D, WIDTH: tl.constexpr):
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH
    d = (first + tl.arange(0, WIDTH)).to(tl.int64)
    o_ptr += row * o_strides[1] + d * o_strides[2]
    lse_ptr += row * lse_strides[1]
    m = tl.full((), float("-inf"), tl.float32)
    l = tl.full((), 0.0, tl.float32)
    merged = tl.zeros((WIDTH,), tl.float32)
    for part in range(0, parts):
        p = tl.cast(part, tl.int64)
        of_part = tl.load(lse_ptr + p * lse_strides[0])
        o = tl.load(o_ptr + p * o_strides[0], mask=d < D, other=0.0).to(tl.float32)
        m_new = tl.maximum(m, of_part)
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # so far no part has a key
        kept, weight = tl.exp(m - shift), tl.exp(of_part - shift)
        l = l * kept + weight
        merged = merged * kept + o * weight
        m = m_new
    tl.store(merged_ptr + row * D + d, merged / tl.where(l == 0, 1.0, l), mask=d < D)
    if first == 0:
        tl.store(of_all_ptr + row, tl.where(l == 0, m, m + tl.log(l)))


@variant()
def naive(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32. Source: [milakov2018]."""
    (parts, rows, D), (merged, of_all) = checked(o, lse)
    if rows:
        width = min(128, next_power_of_2(max(D, 1)))
        grid = (rows, max(1, ceil_div(D, width)))
        _naive_kernel[grid](o, lse, merged, of_all, o.stride(), lse.stride(), parts, D, WIDTH=width)
    return merged, of_all


@triton.jit
def _onerow_kernel(
    o_ptr, lse_ptr, merged_ptr, of_all_ptr, o_strides, lse_strides, parts, D, PARTS: tl.constexpr, TILE: tl.constexpr,
    WIDTH: tl.constexpr
):  # fmt: skip
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH
    every = tl.arange(0, PARTS).to(tl.int64)
    lse_ptr += row * lse_strides[1]
    of_parts = tl.load(lse_ptr + every * lse_strides[0], mask=every < parts, other=float("-inf"))
    m = tl.max(of_parts, axis=0)
    shift = tl.where(m == float("-inf"), 0.0, m)  # no part has a key
    l = tl.sum(tl.exp(of_parts - shift), axis=0)

    d = (first + tl.arange(0, WIDTH)).to(tl.int64)
    o_ptr += row * o_strides[1] + d[None, :] * o_strides[2]
    merged = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, parts, TILE):
        p = (start + tl.arange(0, TILE)).to(tl.int64)
        weights = tl.exp(tl.load(lse_ptr + p * lse_strides[0], mask=p < parts, other=float("-inf")) - shift)
        inside = (p < parts)[:, None] & (d < D)[None, :]
        o = tl.load(o_ptr + p[:, None] * o_strides[0], mask=inside, other=0.0).to(tl.float32)
        merged += tl.sum(o * weights[:, None], axis=0)
    tl.store(merged_ptr + row * D + d, merged / tl.where(l == 0, 1.0, l), mask=d < D)
    if first == 0:
        tl.store(of_all_ptr + row, shift + tl.log(l))


@variant()
def onerow(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32. Source: [dao2023decoding]."""
    (parts, rows, D), (merged, of_all) = checked(o, lse)
    if rows:
        width, every = min(256, next_power_of_2(max(D, 1))), next_power_of_2(max(parts, 1))
        grid, strides = (rows, max(1, ceil_div(D, width))), (o.stride(), lse.stride())
        tile = min(8, every)
        _onerow_kernel[grid](o, lse, merged, of_all, *strides, parts, D, PARTS=every, TILE=tile, WIDTH=width)
    return merged, of_all


@triton.jit
def _rows_kernel(
    o_ptr, lse_ptr, merged_ptr, of_all_ptr, o_strides, lse_strides, parts, rows, D, ROWS: tl.constexpr,
    WIDTH: tl.constexpr
):  # fmt: skip
    row, first = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * WIDTH
    d = (first + tl.arange(0, WIDTH)).to(tl.int64)
    exists, inside = row < rows, (row < rows)[:, None] & (d < D)[None, :]
    o_ptr += row[:, None] * o_strides[1] + d[None, :] * o_strides[2]
    lse_ptr += row * lse_strides[1]
    m = tl.full((ROWS,), float("-inf"), tl.float32)
    l = tl.zeros((ROWS,), tl.float32)
    merged = tl.zeros((ROWS, WIDTH), tl.float32)
    for part in range(0, parts):
        p = tl.cast(part, tl.int64)
        of_part = tl.load(lse_ptr + p * lse_strides[0], mask=exists, other=float("-inf"))
        o = tl.load(o_ptr + p * o_strides[0], mask=inside, other=0.0).to(tl.float32)
        m_new = tl.maximum(m, of_part)
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # so far no part has a key
        kept, weight = tl.exp(m - shift), tl.exp(of_part - shift)
        l = l * kept + weight
        merged = merged * kept[:, None] + o * weight[:, None]
        m = m_new
    at = row[:, None] * D + d[None, :]
    tl.store(merged_ptr + at, merged / tl.where(l == 0, 1.0, l)[:, None], mask=inside)
    if first == 0:
        tl.store(of_all_ptr + row, tl.where(l == 0, m, m + tl.log(l)), mask=exists)


@variant()
def rows(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32. Source: [tillet2019]."""
    (parts, count, D), (merged, of_all) = checked(o, lse)
    if count:
        width = min(128, next_power_of_2(max(D, 1)))
        tile = 2048 // width  # two vectors of 16 bits a thread
        grid, strides = (ceil_div(count, tile), max(1, ceil_div(D, width))), (o.stride(), lse.stride())
        _rows_kernel[grid](o, lse, merged, of_all, *strides, parts, count, D, ROWS=tile, WIDTH=width)
    return merged, of_all
