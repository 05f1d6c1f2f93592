"""Attention of a few queries over a cache of latents, lengths[b] rows of it: keys whose first dim_v columns are the
values.

flash: four warps a block, with a head's query each, for which a tile of the cache is loaded once, as keys and as values
  [deepseek2025]
splitkv: the keys in up to 32 parts, a block each, so that few queries fill the GPU; their lse merge them
  [dao2023decoding]
"""

import torch

from touchstone.backends.cupy.lib.latent import row_grid
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.mla_decode import checked_sizes, empty_outputs

_module = Module(__file__, "decode.cu")


def flash(q, cache, lengths, *, dim_v: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq) float32. Source:
    [deepseek2025]."""
    B, H, Sq, W, _ = checked_sizes(q, cache, lengths, dim_v)
    o, lse = empty_outputs(q, dim_v)
    if o.numel():
        operands = (q, cache, lengths, o, lse, *q.stride(), *cache.stride(), lengths.stride(0))
        _module.launch("mla_decode_flash", row_grid(H * Sq, B), 128, *operands, scale, H, Sq, W, dim_v, dtype=q.dtype)
    return o, lse


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
