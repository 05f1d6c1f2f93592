"""Attention of a few queries over a cache of latents, lengths[b] rows of it: keys whose first dim_v columns are the
values.

flash: 16 rows a program, out of all heads and queries of a sequence, for which a tile of the cache is loaded once, as
  keys and as values [deepseek2025]
splitkv: the keys in up to 32 parts, a program each, so that few queries fill the GPU; their lse merge them
  [dao2023decoding]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention_decode import SPLITS, empty_parts, splits_of
from touchstone.backends.signatures.mla_decode import checked_sizes, empty_outputs
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib.latent import attend, blocks
from touchstone.backends.triton.lib.splits import merge_kernel
from touchstone.backends.variants import variant

# That parts of the keys should give together, where some sequences are shorter than others: 16 rows of one, written and
# read, are the bytes of 57 keys.
PROGRAMS = 512


@triton.jit(do_not_specialize=["scale", "rows", "Sq", "W", "DV"])
def _flash_kernel(
    q_ptr, cache_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, cache_strides, stride_length, scale, rows, Sq, W, DV,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    length = tl.load(lengths_ptr + b * stride_length)
    latent = (cache_strides[0], 0, cache_strides[1], cache_strides[2])  # one head for all
    rotary_ptr = cache_ptr + DV.to(tl.int64) * cache_strides[2]
    o, m, l = attend(
        q_ptr, q_strides, q_ptr + DV.to(tl.int64) * q_strides[3], q_strides, cache_ptr, latent, rotary_ptr,
        cache_strides, cache_ptr, latent, b, 0, row, rows, Sq, 0, length, length, scale, DV, W - DV, DV, True, True,
        BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_P, BLOCK_V
    )  # fmt: skip
    e, place = tl.arange(0, BLOCK_V), b * rows + row
    o = o / tl.where(l == 0, 1.0, l)[:, None]
    tl.store(o_ptr + place[:, None] * DV + e, o, mask=(row < rows)[:, None] & (e < DV))
    tl.store(lse_ptr + place, m + tl.log(l), mask=row < rows)


@variant()
def flash(q, cache, lengths, *, dim_v: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq) float32. Source:
    [deepseek2025]."""
    B, H, Sq, W, _ = checked_sizes(q, cache, lengths, dim_v)
    o, lse = empty_outputs(q, dim_v)
    if o.numel():
        tiles = blocks(q.dtype, H * Sq, dim_v, W - dim_v, dim_v, True, cache.stride(-1) == 1)
        grid = (ceil_div(H * Sq, tiles["BLOCK_M"]), B)
        strides = (q.stride(), cache.stride(), lengths.stride(0))
        _flash_kernel[grid](q, cache, lengths, o, lse, *strides, scale, H * Sq, Sq, W, dim_v, **tiles)
    return o, lse


@triton.jit(do_not_specialize=["scale", "keys", "rows", "Sq", "W", "DV"])
def _splitkv_kernel(
    q_ptr, cache_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, cache_strides, stride_length, scale, keys, rows, Sq, W,
    DV, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_V: tl.constexpr
):  # fmt: skip
    b, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    length = tl.load(lengths_ptr + b * stride_length)
    latent = (cache_strides[0], 0, cache_strides[1], cache_strides[2])  # one head for all
    rotary_ptr = cache_ptr + DV.to(tl.int64) * cache_strides[2]
    o, m, l = attend(
        q_ptr, q_strides, q_ptr + DV.to(tl.int64) * q_strides[3], q_strides, cache_ptr, latent, rotary_ptr,
        cache_strides, cache_ptr, latent, b, 0, row, rows, Sq, split * keys, split * keys + keys, length, scale, DV,
        W - DV, DV, True, True, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_P, BLOCK_V
    )  # fmt: skip
    e, place = tl.arange(0, BLOCK_V), (b * rows + row) * tl.num_programs(2) + split
    o = o / tl.where(l == 0, 1.0, l)[:, None]
    tl.store(o_ptr + place[:, None] * DV + e, o, mask=(row < rows)[:, None] & (e < DV))
    tl.store(lse_ptr + place, m + tl.log(l), mask=row < rows)


@variant()
def splitkv(q, cache, lengths, *, dim_v: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq) float32. Source:
    [dao2023decoding]."""
    B, H, Sq, W, Sk = checked_sizes(q, cache, lengths, dim_v)
    o, lse = empty_outputs(q, dim_v)
    if o.numel():
        tiles = blocks(q.dtype, H * Sq, dim_v, W - dim_v, dim_v, True, cache.stride(-1) == 1)
        tops = ceil_div(H * Sq, tiles["BLOCK_M"])
        splits, keys = splits_of(Sk, most=min(SPLITS, ceil_div(PROGRAMS, B * tops)))
        parts, grid = empty_parts(o, splits), (tops, B, splits)
        strides = (q.stride(), cache.stride(), lengths.stride(0))
        _splitkv_kernel[grid](q, cache, lengths, *parts, *strides, scale, keys, H * Sq, Sq, W, dim_v, **tiles)
        options = {"SPLITS": next_power_of_2(splits), "BLOCK_V": tiles["BLOCK_V"]}
        merge_kernel[(B * H * Sq,)](*parts, o, lse, splits, dim_v, **options)
    return o, lse
