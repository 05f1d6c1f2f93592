"""Attention of a few queries over a cache of latents, lengths[b] rows of it: keys whose first dim_v columns are the
values.

flash: four warps a block, with a head's query each, for which a tile of the cache is loaded once, as keys and as values
  [deepseek2025]
splitkv: the keys in up to 32 parts, a block each, so that few queries fill the GPU; their lse merge them
  [dao2023decoding]
"""

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends.numba.lib.latent import WARPS, attend, parts_of, row_grid
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.splits import HELD, merge, write
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.mla_decode import checked_sizes, empty_outputs
from touchstone.backends.variants import variant


def _latents(cache: torch.Tensor, dim_v: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The latents as keys of one head, (B, 1, Sk, dim_v), and the rotary columns, (B, Sk, W - dim_v)."""
    latent, rotary = parts_of(cache, dim_v)
    return latent.unsqueeze(1), rotary


@cuda.jit
def _flash(q, r, cache, t, lengths, target, lse, rotary, scale):
    o = cuda.local.array(HELD, float32)
    heads, b, length = int64(q.shape[1]), uint64(cuda.blockIdx.y), int64(lengths[cuda.blockIdx.y])
    dim_v, zero = q.shape[3], int64(0)
    m, l = attend(o, q, r, cache, t, cache, dim_v, rotary, True, True, b, uint64(0), heads, zero, length, length, scale)
    rows, row = heads * q.shape[2], int64(cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32)
    if row < rows:
        write(o, m, l, target, lse, uint64(cuda.blockIdx.y * rows + row))


@variant(needs="shuffles")
def flash(q, cache, lengths, *, dim_v: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq) float32. Source:
    [deepseek2025]."""
    B, H, Sq, W, _ = checked_sizes(q, cache, lengths, dim_v)
    o, lse = empty_outputs(q, dim_v)
    if o.numel():
        operands = (*parts_of(q, dim_v), *_latents(cache, dim_v), lengths, o.view(-1, dim_v), lse.view(-1))
        launch(_flash, row_grid(H * Sq, B), 32 * WARPS, *operands, W - dim_v, np.float32(scale))
    return o, lse


@cuda.jit
def _splitkv(q, r, cache, t, lengths, parts, part_lse, keys, rotary, scale):
    o = cuda.local.array(HELD, float32)
    heads, b, length = int64(q.shape[1]), uint64(cuda.blockIdx.y), int64(lengths[cuda.blockIdx.y])
    dim_v, first = q.shape[3], int64(cuda.blockIdx.z) * keys
    m, l = attend(
        o, q, r, cache, t, cache, dim_v, rotary, True, True, b, uint64(0), heads, first, first + keys, length, scale
    )
    rows, row = heads * q.shape[2], int64(cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32)
    if row < rows:
        place = (cuda.blockIdx.y * rows + row) * cuda.gridDim.z + cuda.blockIdx.z
        write(o, m, l, parts, part_lse, uint64(place))


@variant(needs="shuffles")
def splitkv(q, cache, lengths, *, dim_v: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq) float32. Source:
    [dao2023decoding]."""
    B, H, Sq, W, Sk = checked_sizes(q, cache, lengths, dim_v)
    o, lse = empty_outputs(q, dim_v)
    if o.numel():
        splits, keys = splits_of(Sk)
        parts, part_lse = empty_parts(o, splits)
        parts, part_lse = parts.view(-1, dim_v), part_lse.view(-1)
        operands = (*parts_of(q, dim_v), *_latents(cache, dim_v), lengths, parts, part_lse)
        launch(_splitkv, (*row_grid(H * Sq, B), splits), 32 * WARPS, *operands, keys, W - dim_v, np.float32(scale))
        launch(merge, checked_grid(B * H * Sq), 32, parts, part_lse, o.view(-1, dim_v), lse.view(-1), splits)
    return o, lse
