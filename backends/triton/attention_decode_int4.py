"""Attention of a few queries over a cache of four-bit codes, lengths[b] rows of it, an element being code·factor +
shift.

dequantised: one kernel writes keys and values out in the dtype, and attention over any cache follows [dao2023decoding]
splitkv: elements are made in registers, so that four bits of each are all that is read; the keys in up to 32 parts, a
  program each, which their lse merge [pumma2024]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.attention_decode_int4 import checked_sizes
from touchstone.backends.triton import attention_decode
from touchstone.backends.triton.lib.splits import merge_kernel


@triton.jit
def _elements(codes_ptr, codes_strides, scales_ptr, scales_strides, b, h, j, d, inside, group):
    """code·factor + shift of rows j and columns d, 0 where not `inside`; `group` columns share a factor and a shift."""
    codes_at = b * codes_strides[0] + h * codes_strides[1] + j * codes_strides[2] + d // 2 * codes_strides[3]
    scales_at = b * scales_strides[0] + h * scales_strides[1] + j * scales_strides[2] + d // group * scales_strides[3]
    byte = tl.load(codes_ptr + codes_at, mask=inside, other=0).to(tl.int32)
    code = (byte >> (d % 2 * 4).to(tl.int32)) & 15  # the even column's in the low nibble
    factor = tl.load(scales_ptr + scales_at, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(scales_ptr + scales_at + scales_strides[4], mask=inside, other=0.0).to(tl.float32)
    return code.to(tl.float32) * factor + shift


@triton.jit(do_not_specialize=["Hkv", "Sk", "D", "group"])
def _dequantise_kernel(
    codes_ptr, scales_ptr, lengths_ptr, x_ptr, codes_strides, scales_strides, stride_length, Hkv, Sk, D, group,
    TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    b, h = pair // Hkv, pair % Hkv
    j = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    d = tl.arange(0, WIDTH).to(tl.int64)[None, :]
    inside = (j < tl.load(lengths_ptr + b * stride_length)) & (d < D)  # what lies beyond is not written either
    x = _elements(codes_ptr, codes_strides, scales_ptr, scales_strides, b, h, j, d, inside, group)
    tl.store(x_ptr + (pair * Sk + j) * D + d, x, mask=inside)


def dequantised(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2), scales (B, Hkv, Sk, G, 2), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [dao2023decoding]."""
    B, _, _, D, Hkv, Sk, G = checked_sizes(q, k_codes, k_scales, v_codes, v_scales, lengths)
    k, v = (torch.empty((B, Hkv, Sk, D), dtype=q.dtype, device=q.device) for _ in range(2))
    if k.numel():
        grid, width = (B * Hkv, triton.cdiv(Sk, 32)), triton.next_power_of_2(D)
        for codes, scales, x in ((k_codes, k_scales, k), (v_codes, v_scales, v)):
            strides = (codes.stride(), scales.stride(), lengths.stride(0))
            _dequantise_kernel[grid](codes, scales, lengths, x, *strides, Hkv, Sk, D, D // G, TILE=32, WIDTH=width)
    return attention_decode.splitkv(q, k, v, lengths, scale=scale)


@triton.jit(do_not_specialize=["scale", "Hq", "Hkv", "Sq", "keys", "D", "group"])
def _splitkv_kernel(
    q_ptr, kc_ptr, ks_ptr, vc_ptr, vs_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, kc_strides, ks_strides, vc_strides,
    vs_strides, stride_length, scale, Hq, Hkv, Sq, keys, D, group, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    b, h, i = row // (Hq * Sq), row // Sq % Hq, row % Sq
    reader = h // (Hq // Hkv)
    last = tl.minimum((split + 1) * keys, tl.load(lengths_ptr + b * stride_length) - Sq + i + 1)
    d = tl.arange(0, WIDTH).to(tl.int64)[None, :]
    q_at = b * q_strides[0] + h * q_strides[1] + i * q_strides[2] + d * q_strides[3]
    q = tl.load(q_ptr + q_at, mask=d < D, other=0.0).to(tl.float32)

    m = tl.full((), float("-inf"), tl.float32)
    l = tl.full((), 0.0, tl.float32)
    o = tl.zeros((WIDTH,), tl.float32)
    for start in range(split * keys, last, TILE):
        j = (start + tl.arange(0, TILE)).to(tl.int64)[:, None]
        inside = (j < last) & (d < D)  # of v too: 0 times what lies beyond may be NaN
        k = _elements(kc_ptr, kc_strides, ks_ptr, ks_strides, b, reader, j, d, inside, group)
        v = _elements(vc_ptr, vc_strides, vs_ptr, vs_strides, b, reader, j, d, inside, group)
        s = tl.where(j < last, tl.sum(k * q, axis=1)[:, None] * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # so far no score above -inf
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift)
        l = l * alpha + tl.sum(p)
        o = o * alpha + tl.sum(p * v, axis=0)
        m = m_new
    place, e = row * splits + split, tl.arange(0, WIDTH)
    tl.store(o_ptr + place * D + e, o / tl.where(l == 0, 1.0, l), mask=e < D)
    tl.store(lse_ptr + place, m + tl.log(l))


def splitkv(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2), scales (B, Hkv, Sk, G, 2), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [pumma2024]."""
    B, Hq, Sq, D, Hkv, Sk, G = checked_sizes(q, k_codes, k_scales, v_codes, v_scales, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        splits, keys = splits_of(Sk)
        parts = empty_parts(q, splits)
        caches = (k_codes, k_scales, v_codes, v_scales)
        strides = (q.stride(), *(cache.stride() for cache in caches), lengths.stride(0))
        options = (scale_or_default(scale, D), Hq, Hkv, Sq, keys, D, D // G)
        width, rows = triton.next_power_of_2(D), B * Hq * Sq
        _splitkv_kernel[(rows, splits)](q, *caches, lengths, *parts, *strides, *options, TILE=64, WIDTH=width)
        merge_kernel[(rows,)](*parts, o, lse, splits, D, SPLITS=triton.next_power_of_2(splits), BLOCK_V=width)
    return o, lse
