"""Attention of a few queries over a cache in pages, which a table gives to sequences: o = softmax(scale·q·kᵀ)·v and
lse.

naive: one warp a query, its lanes along D, which walks over the keys that it sees, each through the table [kwon2023]
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
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.attention_paged import Sizes, checked_sizes
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "paged.cu")
_packgqa = Module(__file__, "packgqa.cu")


@variant()
def naive(
    q, k_cache, v_cache, block_table, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k_cache, v_cache (P, page, Hkv, D), block_table (B, n), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [kwon2023]."""
    sizes = checked_sizes(q, k_cache, v_cache, block_table, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        operands, options = _arguments(sizes, scale, q, k_cache, v_cache, block_table, lengths)
        arguments = (*operands, o, lse, *options, sizes.n * sizes.page)
        _module.launch("attention_paged_naive", blocks(lse.numel()), 32, *arguments, dtype=q.dtype)
    return o, lse


@variant()
def splitkv(
    q, k_cache, v_cache, block_table, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k_cache, v_cache (P, page, Hkv, D), block_table (B, n), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [dao2023decoding]."""
    sizes = checked_sizes(q, k_cache, v_cache, block_table, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        splits, keys = splits_of(sizes.n * sizes.page)
        parts, rows = empty_parts(q, splits), blocks(lse.numel())
        operands, options = _arguments(sizes, scale, q, k_cache, v_cache, block_table, lengths)
        arguments = (*operands, *parts, *options, keys)
        _module.launch("attention_paged_splitkv", (rows, splits), 32, *arguments, dtype=q.dtype)
        _module.launch("attention_paged_merge", rows, 32, *parts, o, lse, splits, sizes.D, dtype=q.dtype)
    return o, lse


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
        parts = empty_parts(q, planned.splits)
        operands = (q, k_cache, v_cache, block_table, lengths)
        strides = [step for x in operands for step in x.stride()]
        factor = scale_or_default(scale, sizes.D) * math.log2(math.e)
        numbers = (factor, sizes.Hkv, sizes.Hq // sizes.Hkv, sizes.Sq, planned.keys, sizes.page, sizes.D)
        arguments = (*operands, *parts, *strides, *numbers)
        _packgqa.launch("attention_paged_packgqa", planned.grid, 128, *arguments, **planned.options)
        merged = (*parts, o, lse, planned.splits, sizes.D)
        _module.launch("attention_paged_merge", blocks(lse.numel()), 32, *merged, dtype=q.dtype)
    return o, lse


def _arguments(sizes: Sizes, scale: float | None, *operands: torch.Tensor) -> tuple[tuple, tuple]:
    """The operands, and what follows the outputs up to the size of a page."""
    strides = [step for x in operands for step in x.stride()]
    options = (scale_or_default(scale, sizes.D), sizes.Hq, sizes.Hq // sizes.Hkv, sizes.Sq, sizes.D, sizes.page)
    return operands, (*strides, *options)
