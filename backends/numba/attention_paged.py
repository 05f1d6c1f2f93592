"""Attention of a few queries over a cache in pages, which a table gives to sequences: o = softmax(scale·q·kᵀ)·v and
lse.

naive: one warp a query, its lanes along D, which walks over the keys that it sees, each through the table [kwon2023]
splitkv: the keys in up to 32 parts, a warp each, so that few queries fill the GPU; their lse merge them
  [dao2023decoding]
packgqa: the query heads of a key head are the rows of one mma.m16n8k16, so that its keys and values are read once;
  warps with tiles of their own, cp.async ahead of use [yeetal2025]
"""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends.numba.attention._launch import padded_width
from touchstone.backends.numba.lib.online import fold, log_sum, shift
from touchstone.backends.numba.lib.packed_groups import attend_for, plan, threads_of, with_strides
from touchstone.backends.numba.lib.reductions import checked_grid, warp_sum
from touchstone.backends.numba.lib.splits import merge
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention import empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.attention_paged import checked_sizes
from touchstone.backends.variants import HALF, variant

_HELD = 8  # of D in each lane: 256 in all
_LOW = np.float32(-math.inf)


@cuda.jit(device=True)
def _attend(o, q, k, v, table, lengths, row, first, keys, scale):
    """The running maximum and sum of a query over `keys` keys from `first` on; o, not normalised, of which lane i holds
    i, i + 32, ..."""
    heads, seq, dim, page = q.shape[1], q.shape[2], uint64(q.shape[3]), uint64(k.shape[1])
    last = min(first + keys, int64(lengths[row // (heads * seq)]) - seq + row % seq + 1)
    b, h, i = uint64(row // (heads * seq)), uint64(row // seq % heads), uint64(row % seq)
    reader, lane = uint64(row // seq % heads // (heads // k.shape[2])), uint64(cuda.threadIdx.x)
    m, l = _LOW, float32(0)
    for r in range(_HELD):
        o[r] = float32(0)
    for j in range(uint64(first), uint64(max(first, last))):
        held, within = uint64(table[b, j // page]), j % page
        dot = float32(0)
        for d in range(lane, dim, uint64(32)):
            dot += float32(q[b, h, i, d]) * float32(k[held, within, reader, d])
        s, before = warp_sum(dot) * scale, m
        m, l = fold(m, l, s)
        kept, p = math.exp(before - shift(m)), math.exp(s - shift(m))
        for r in range(_HELD):
            d = uint64(r * 32) + lane
            if d < dim:
                o[r] = o[r] * kept + p * float32(v[held, within, reader, d])
    return m, l


@cuda.jit(device=True)
def _write(o, m, l, target, lse, row, dim):
    inverse = float32(0) if l == float32(0) else float32(1) / l
    for r in range(_HELD):
        d = uint64(r * 32) + uint64(cuda.threadIdx.x)
        if d < dim:
            target[row, d] = o[r] * inverse
    if cuda.threadIdx.x == 0:
        lse[row] = log_sum(m, l)


@cuda.jit
def _naive(q, k, v, table, lengths, target, lse, keys, scale):
    o = cuda.local.array(_HELD, float32)
    row = int64(cuda.blockIdx.x)
    m, l = _attend(o, q, k, v, table, lengths, row, int64(0), keys, scale)
    _write(o, m, l, target, lse, uint64(row), uint64(q.shape[3]))


@variant(needs="shuffles")
def naive(
    q, k_cache, v_cache, block_table, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k_cache, v_cache (P, page, Hkv, D), block_table (B, n), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [kwon2023]."""
    sizes = checked_sizes(q, k_cache, v_cache, block_table, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        rows, factor = checked_grid(lse.numel()), np.float32(scale_or_default(scale, sizes.D))
        operands = (q, k_cache, v_cache, block_table, lengths)
        launch(_naive, rows, 32, *operands, o.view(rows, -1), lse.view(rows), sizes.n * sizes.page, factor)
    return o, lse


@cuda.jit
def _splitkv(q, k, v, table, lengths, parts, part_lse, keys, scale):
    o = cuda.local.array(_HELD, float32)
    row, split = int64(cuda.blockIdx.x), int64(cuda.blockIdx.y)
    m, l = _attend(o, q, k, v, table, lengths, row, split * keys, keys, scale)
    _write(o, m, l, parts, part_lse, uint64(row * cuda.gridDim.y + split), uint64(q.shape[3]))


@variant(needs="shuffles")
def splitkv(
    q, k_cache, v_cache, block_table, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k_cache, v_cache (P, page, Hkv, D), block_table (B, n), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [dao2023decoding]."""
    sizes = checked_sizes(q, k_cache, v_cache, block_table, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        splits, keys = splits_of(sizes.n * sizes.page)
        parts, part_lse = empty_parts(q, splits)
        parts, part_lse = parts.view(-1, sizes.D), part_lse.view(-1)
        rows, factor = checked_grid(lse.numel()), np.float32(scale_or_default(scale, sizes.D))
        operands = (q, k_cache, v_cache, block_table, lengths)
        launch(_splitkv, (rows, splits), 32, *operands, parts, part_lse, keys, factor)
        launch(merge, rows, 32, parts, part_lse, o.view(rows, -1), lse.view(rows), splits)
    return o, lse


@cuda.jit(device=True)
def _row(strides, table, page, b, head, j):
    return int64(table[uint64(b), uint64(j // page)]) * strides[0] + j % page * strides[1] + head * strides[2]


@functools.cache
def _packed(width):
    attend = attend_for(width, _row)

    @cuda.jit(launch_bounds=threads_of(width))
    def packgqa(
        q, q_strides, k, k_strides, v, v_strides, table, page, lengths, parts, part_lse, heads, kv_heads, seq, keys,
        scale, aligned,
    ):  # scale carries log2 e  # fmt: skip
        attend(
            q, q_strides, k, k_strides, v, v_strides, table, page, lengths, parts, part_lse, heads, kv_heads, seq, keys,
            scale, aligned,
        )  # fmt: skip

    return packgqa


@variant(needs="sm_80", dtypes=HALF)
def packgqa(
    q, k_cache, v_cache, block_table, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k_cache, v_cache (P, page, Hkv, D), block_table (B, n), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32.

    Declines float32. Source: [yeetal2025].
    """
    sizes = checked_sizes(q, k_cache, v_cache, block_table, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        planned = plan(q, k_cache, v_cache, sizes.Hkv, sizes.n * sizes.page)
        parts, part_lse = empty_parts(q, planned.splits)
        parts, part_lse = parts.view(-1, sizes.D), part_lse.view(-1)
        factor = np.float32(scale_or_default(scale, sizes.D) * math.log2(math.e))
        options = (sizes.Hq, sizes.Hkv, sizes.Sq, planned.keys, factor, planned.aligned)
        operands = (*with_strides(q, k_cache, v_cache), block_table, sizes.page, lengths, parts, part_lse)
        launch(_packed(padded_width(sizes.D)), planned.grid, planned.threads, *operands, *options)
        rows = checked_grid(lse.numel())
        launch(merge, rows, 32, parts, part_lse, o.view(rows, -1), lse.view(rows), planned.splits)
    return o, lse
