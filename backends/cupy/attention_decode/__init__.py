"""Attention of a few queries over a cache of keys and values, lengths[b] rows of it: o = softmax(scale·q·kᵀ)·v and lse.

naive: one warp a query, its lanes along D, which walks over the keys that it sees [milakov2018]
splitkv: the keys in up to 32 parts, a warp each, so that few queries fill the GPU; their lse merge them
  [dao2023decoding]
packgqa: the query heads of a key head are the rows of one mma.m16n8k16, so that its keys and values are read once; four
  warps with tiles of their own, cp.async ahead of use [yeetal2025]
"""

import math

import torch

from touchstone.backends.cupy.lib.packed_groups import plan
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import checked_sizes, empty_parts, splits_of
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "decode.cu")
_packgqa = Module(__file__, "packgqa.cu")


@variant()
def naive(q, k, v, lengths, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lengths (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq) float32. Source:
    [milakov2018]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        operands = (q, k, v, lengths, o, lse, *q.stride(), *k.stride(), *v.stride(), lengths.stride(0))
        options = (scale_or_default(scale, D), Hq, Hq // Hkv, Sq, Sk, D)
        _module.launch("attention_decode_naive", blocks(B * Hq * Sq), 32, *operands, *options, dtype=q.dtype)
    return o, lse


@variant()
def splitkv(q, k, v, lengths, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lengths (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq) float32. Source:
    [dao2023decoding]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        splits, keys = splits_of(Sk)
        parts, rows = empty_parts(q, splits), blocks(B * Hq * Sq)
        operands = (q, k, v, lengths, *parts, *q.stride(), *k.stride(), *v.stride(), lengths.stride(0))
        options = (scale_or_default(scale, D), Hq, Hq // Hkv, Sq, keys, D)
        _module.launch("attention_decode_splitkv", (rows, splits), 32, *operands, *options, dtype=q.dtype)
        _module.launch("attention_decode_merge", rows, 32, *parts, o, lse, splits, D, dtype=q.dtype)
    return o, lse


@variant(needs="sm_80", dtypes=HALF)
def packgqa(q, k, v, lengths, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lengths (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq) float32.

    Declines float32. Source: [yeetal2025].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        planned = plan(q, k, v, Hkv, Sk)
        parts = empty_parts(q, planned.splits)
        operands = (q, k, v, lengths, *parts, *q.stride(), *k.stride(), *v.stride(), lengths.stride(0))
        factor = scale_or_default(scale, D) * math.log2(math.e)
        sizes = (Hkv, Hq // Hkv, Sq, planned.keys, D)
        _packgqa.launch("attention_decode_packgqa", planned.grid, 128, *operands, factor, *sizes, **planned.options)
        _module.launch(
            "attention_decode_merge", blocks(B * Hq * Sq), 32, *parts, o, lse, planned.splits, D, dtype=q.dtype
        )
    return o, lse
