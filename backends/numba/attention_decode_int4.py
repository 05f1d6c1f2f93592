"""Attention of a few queries over a cache of four-bit codes, lengths[b] rows of it, an element being code·factor +
shift.

dequantised: one kernel writes keys and values out in the dtype, and attention over any cache follows [dao2023decoding]
splitkv: elements are made in registers, so that four bits of each are all that is read; the keys in up to 32 parts, a
  warp each, which their lse merge [pumma2024]
"""

import math

import numpy as np
import torch
from numba import cuda, float32, int64, uint32, uint64

from touchstone.backends.numba import attention_decode
from touchstone.backends.numba.lib.online import fold, shift
from touchstone.backends.numba.lib.reductions import checked_grid, warp_sum
from touchstone.backends.numba.lib.splits import HELD, merge, write
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention import empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.attention_decode_int4 import checked_sizes
from touchstone.backends.variants import variant

_LANES = 8  # columns in each lane: 256 in all
_LOW = np.float32(-math.inf)


@cuda.jit(device=True)
def _element(codes, scales, b, h, j, d, group):
    """Column d of a row; the even column's code is the low nibble, and `group` columns share a factor and a shift."""
    code = (uint32(codes[b, h, j, d // uint64(2)]) >> uint32(4) * uint32(d % uint64(2))) & uint32(15)
    g = d // group
    return float32(code) * float32(scales[b, h, j, g, 0]) + float32(scales[b, h, j, g, 1])


@cuda.jit
def _dequantise(codes, scales, lengths, x, group):
    # A block for each row of the cache; those beyond a length are not written either.
    row, heads, seq = uint64(cuda.blockIdx.x), uint64(x.shape[1]), uint64(x.shape[2])
    b, h, j = row // (heads * seq), row // seq % heads, row % seq
    if j < uint64(lengths[b]):
        for d in range(uint64(cuda.threadIdx.x), uint64(x.shape[3]), uint64(32)):
            x[b, h, j, d] = _element(codes, scales, b, h, j, d, uint64(group))


@variant(needs="shuffles")
def dequantised(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2), scales (B, Hkv, Sk, G, 2), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [dao2023decoding]."""
    B, _, _, D, Hkv, Sk, G = checked_sizes(q, k_codes, k_scales, v_codes, v_scales, lengths)
    k, v = (torch.empty((B, Hkv, Sk, D), dtype=q.dtype, device=q.device) for _ in range(2))
    if k.numel():
        for codes, scales, x in ((k_codes, k_scales, k), (v_codes, v_scales, v)):
            launch(_dequantise, checked_grid(B * Hkv * Sk), 32, codes, scales, lengths, x, D // G)
    return attention_decode.splitkv(q, k, v, lengths, scale=scale)


@cuda.jit
def _splitkv(q, k_codes, k_scales, v_codes, v_scales, lengths, parts, part_lse, keys, group, scale):
    o, held = cuda.local.array(HELD, float32), cuda.local.array(_LANES, float32)
    row, split = int64(cuda.blockIdx.x), int64(cuda.blockIdx.y)
    heads, seq, dim = q.shape[1], q.shape[2], uint64(q.shape[3])
    first, seen = split * keys, int64(lengths[row // (heads * seq)]) - seq + row % seq + 1
    last = max(first, min(first + keys, seen))
    b, h, i = uint64(row // (heads * seq)), uint64(row // seq % heads), uint64(row % seq)
    reader, lane = uint64(row // seq % heads // (heads // k_codes.shape[1])), uint64(cuda.threadIdx.x)
    m, l = _LOW, float32(0)
    for r in range(uint64(HELD)):
        o[r] = float32(0)
    for r in range(uint64(_LANES)):
        d = r * uint64(32) + lane
        held[r] = float32(q[b, h, i, d]) if d < dim else float32(0)
    for j in range(uint64(first), uint64(last)):
        dot = float32(0)
        for r in range(uint64(_LANES)):
            d = r * uint64(32) + lane
            if d < dim:
                dot += held[r] * _element(k_codes, k_scales, b, reader, j, d, uint64(group))
        s, before = warp_sum(dot) * scale, m
        m, l = fold(m, l, s)
        kept, p = math.exp(before - shift(m)), math.exp(s - shift(m))
        for r in range(uint64(_LANES)):
            d = r * uint64(32) + lane
            if d < dim:
                o[r] = o[r] * kept + p * _element(v_codes, v_scales, b, reader, j, d, uint64(group))
    write(o, m, l, parts, part_lse, uint64(row * cuda.gridDim.y + split))


@variant(needs="shuffles")
def splitkv(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2), scales (B, Hkv, Sk, G, 2), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [pumma2024]."""
    B, Hq, Sq, D, _, Sk, G = checked_sizes(q, k_codes, k_scales, v_codes, v_scales, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        splits, keys = splits_of(Sk)
        parts, part_lse = empty_parts(q, splits)
        parts, part_lse = parts.view(-1, D), part_lse.view(-1)
        rows, factor = checked_grid(B * Hq * Sq), np.float32(scale_or_default(scale, D))
        operands = (q, k_codes, k_scales, v_codes, v_scales, lengths, parts, part_lse)
        launch(_splitkv, (rows, splits), 32, *operands, keys, D // G, factor)
        launch(merge, rows, 32, parts, part_lse, o.view(-1, D), lse.view(-1), splits)
    return o, lse
