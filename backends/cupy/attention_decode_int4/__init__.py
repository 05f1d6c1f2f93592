"""Attention of a few queries over a cache of four-bit codes, lengths[b] rows of it, an element being code·factor +
shift.

dequantised: one kernel writes keys and values out in the dtype, and attention over any cache follows [dao2023decoding]
splitkv: elements are made in registers, so that four bits of each are all that is read; the keys in up to 32 parts, a
  warp each, which their lse merge [pumma2024]
"""

import torch

from touchstone.backends.cupy import attention_decode
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.attention_decode_int4 import checked_sizes
from touchstone.backends.variants import variant

_module = Module(__file__, "decode.cu")


@variant()
def dequantised(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2), scales (B, Hkv, Sk, G, 2), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [dao2023decoding]."""
    B, _, _, D, Hkv, Sk, G = checked_sizes(q, k_codes, k_scales, v_codes, v_scales, lengths)
    k, v = (torch.empty((B, Hkv, Sk, D), dtype=q.dtype, device=q.device) for _ in range(2))
    if k.numel():
        for codes, scales, x in ((k_codes, k_scales, k), (v_codes, v_scales, v)):
            operands = (codes, scales, lengths, x, *codes.stride(), *scales.stride(), lengths.stride(0))
            _module.launch("dequantise", blocks(B * Hkv * Sk), 32, *operands, Hkv, Sk, D, D // G, dtype=q.dtype)
    return attention_decode.splitkv(q, k, v, lengths, scale=scale)


@variant()
def splitkv(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2), scales (B, Hkv, Sk, G, 2), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [pumma2024]."""
    B, Hq, Sq, D, Hkv, Sk, G = checked_sizes(q, k_codes, k_scales, v_codes, v_scales, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        splits, keys = splits_of(Sk)
        parts, rows = empty_parts(q, splits), blocks(B * Hq * Sq)
        caches = (k_codes, k_scales, v_codes, v_scales)
        strides = (*q.stride(), *(stride for cache in caches for stride in cache.stride()), lengths.stride(0))
        options = (scale_or_default(scale, D), Hq, Hkv, Sq, keys, D, D // G)
        operands = (q, *caches, lengths, *parts, *strides)
        _module.launch("attention_decode_int4_splitkv", (rows, splits), 32, *operands, *options, dtype=q.dtype)
        _module.launch("attention_decode_int4_merge", rows, 32, *parts, o, lse, splits, D, dtype=q.dtype)
    return o, lse
