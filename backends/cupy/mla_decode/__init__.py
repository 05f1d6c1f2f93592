"""Attention of a few queries over a cache of latents, lengths[b] rows of it: keys whose first dim_v columns are the
values.

flash: four warps a block, with a head's query each, for which a tile of the cache is loaded once, as keys and as values
  [deepseek2025]
splitkv: the keys in up to 32 parts, a block each, so that few queries fill the GPU; their lse merge them
  [dao2023decoding]
tensorcore: the queries of all heads are the rows of mma.m16n8k16; eight warps share the products with a tile of the
  cache, cp.async ahead of use [deepseek2025]
"""

import math

import torch

from touchstone.backends.cupy.lib.attention import padded_dimension, whole_pieces
from touchstone.backends.cupy.lib.gemm import processors, sixteen_bits
from touchstone.backends.cupy.lib.latent import row_grid
from touchstone.backends.cupy.lib.packed_groups import parts_of
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.mla_decode import checked_sizes, empty_outputs
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "decode.cu")
_tensorcore = Module(__file__, "tensorcore.cu")


@variant()
def flash(q, cache, lengths, *, dim_v: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq) float32. Source:
    [deepseek2025]."""
    B, H, Sq, W, _ = checked_sizes(q, cache, lengths, dim_v)
    o, lse = empty_outputs(q, dim_v)
    if o.numel():
        operands = (q, cache, lengths, o, lse, *q.stride(), *cache.stride(), lengths.stride(0))
        _module.launch("mla_decode_flash", row_grid(H * Sq, B), 128, *operands, scale, H, Sq, W, dim_v, dtype=q.dtype)
    return o, lse


@variant()
def splitkv(q, cache, lengths, *, dim_v: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq) float32. Source:
    [dao2023decoding]."""
    B, H, Sq, W, Sk = checked_sizes(q, cache, lengths, dim_v)
    o, lse = empty_outputs(q, dim_v)
    if o.numel():
        splits, keys = splits_of(Sk)
        parts, grid = empty_parts(o, splits), (*row_grid(H * Sq, B), splits)
        operands = (q, cache, lengths, *parts, *q.stride(), *cache.stride(), lengths.stride(0))
        _module.launch("mla_decode_splitkv", grid, 128, *operands, scale, H, Sq, W, dim_v, keys, dtype=q.dtype)
        _module.launch("mla_decode_merge", blocks(B * H * Sq), 32, *parts, o, lse, splits, dim_v, dtype=q.dtype)
    return o, lse


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(q, cache, lengths, *, dim_v: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq) float32.

    Declines float32. Source: [deepseek2025].
    """
    B, H, Sq, W, Sk = checked_sizes(q, cache, lengths, dim_v)
    sixteen_bits(q.dtype)
    o, lse = empty_outputs(q, dim_v)
    if o.numel():
        block_v = ceil_div(dim_v, 128) * 16  # columns of each of the eight warps
        block_d = max(padded_dimension(W), 8 * block_v)
        row_tiles, stages = (1, 3) if H * Sq <= 16 else (2, 2)  # what shared memory has room for
        groups = blocks(B * ceil_div(H * Sq, 16 * row_tiles))
        splits, keys = parts_of(groups, Sk, 8 * processors(q.device))
        parts = empty_parts(o, splits)
        definitions = {"ROW_TILES": row_tiles, "STAGES": stages, "BLOCK_D": block_d, "BLOCK_V": block_v}
        about = {"dtype": q.dtype, "shared": 2 * block_d * (16 * row_tiles + 32 * stages), **definitions}
        operands = (q, cache, lengths, *parts, *q.stride(), *cache.stride(), lengths.stride(0))
        numbers = (scale * math.log2(math.e), H, Sq, W, dim_v, keys)
        aligned = whole_pieces(cache)
        grid = (groups, splits)
        _tensorcore.launch("mla_decode_tensorcore", grid, 256, *operands, *numbers, ALIGNED=aligned, **about)
        _module.launch("mla_decode_merge", blocks(B * H * Sq), 32, *parts, o, lse, splits, dim_v, dtype=q.dtype)
    return o, lse
