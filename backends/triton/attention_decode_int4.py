"""Attention of a few queries over a cache of four-bit codes, lengths[b] rows of it, an element being code·factor +
shift.

dequantised: one kernel writes keys and values out in the dtype, and attention over any cache follows [dao2023decoding]
splitkv: elements are made in registers, so that four bits of each are all that is read; the keys in up to 32 parts, a
  program each, which their lse merge [pumma2024]
packgqa: the query heads that share a head of the cache are the rows of one tile, for which codes become elements once;
  the nibbles of a byte stay apart, even columns in one product and odd ones in another [yeetal2025]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.signatures.attention import empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.attention_decode_int4 import checked_sizes
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton import attention_decode
from touchstone.backends.triton.lib import packed
from touchstone.backends.triton.lib.splits import merge_kernel
from touchstone.backends.variants import variant


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


@variant()
def dequantised(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2), scales (B, Hkv, Sk, G, 2), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [dao2023decoding]."""
    B, _, _, D, Hkv, Sk, G = checked_sizes(q, k_codes, k_scales, v_codes, v_scales, lengths)
    k, v = (torch.empty((B, Hkv, Sk, D), dtype=q.dtype, device=q.device) for _ in range(2))
    if k.numel():
        grid, width = (B * Hkv, ceil_div(Sk, 32)), next_power_of_2(D)
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
        parts = empty_parts(q, splits)
        caches = (k_codes, k_scales, v_codes, v_scales)
        strides = (q.stride(), *(cache.stride() for cache in caches), lengths.stride(0))
        options = (scale_or_default(scale, D), Hq, Hkv, Sq, keys, D, D // G)
        width, rows = next_power_of_2(D), B * Hq * Sq
        # a thread holds the address of each code and scale that it loads: more keys would spill in Triton 3.6
        tile = min(64, 4096 // width) if width <= 128 else 8
        _splitkv_kernel[(rows, splits)](q, *caches, lengths, *parts, *strides, *options, TILE=tile, WIDTH=width)
        merge_kernel[(rows,)](*parts, o, lse, splits, D, SPLITS=next_power_of_2(splits), BLOCK_V=width)
    return o, lse


@triton.jit
def _halves(codes_ptr, codes_strides, scales_ptr, scales_strides, j, last, g, c, G, bytes_a_group, dtype: tl.constexpr):
    """Of rows j, the elements of even and those of odd columns, 0 from `last` on: columns are (group g, byte c of it),
    one after the other."""
    inside = (j < last)[:, None] & (g < G)[None, :]
    at = j.to(tl.int64)[:, None] * scales_strides[2] + g.to(tl.int64)[None, :] * scales_strides[3]
    factor = tl.load(scales_ptr + at, mask=inside, other=0.0).to(tl.float32)[:, :, None]
    shift = tl.load(scales_ptr + at + scales_strides[4], mask=inside, other=0.0).to(tl.float32)[:, :, None]
    column = (g[:, None] * bytes_a_group + c[None, :]).to(tl.int64)[None, :, :]
    at = j.to(tl.int64)[:, None, None] * codes_strides[2] + column * codes_strides[3]
    inside = inside[:, :, None] & (c < bytes_a_group)[None, None, :]
    byte = tl.load(codes_ptr + at, mask=inside, other=0).to(tl.int32)
    low, high = (byte & 15).to(tl.float32) * factor + shift, (byte >> 4).to(tl.float32) * factor + shift
    shape: tl.constexpr = (j.shape[0], g.shape[0] * c.shape[0])
    return tl.reshape(low.to(dtype), shape), tl.reshape(high.to(dtype), shape)


@triton.jit(do_not_specialize=["scale", "Hkv", "rows", "Sq", "keys"])
def _packgqa_kernel(
    q_ptr, kc_ptr, ks_ptr, vc_ptr, vs_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, kc_strides, ks_strides, vc_strides,
    vs_strides, stride_length, scale, Hkv, rows, Sq, keys, D, G, bytes_a_group, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    pair, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, reader = pair // Hkv, pair % Hkv
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    head, i = reader * (rows // Sq) + row // Sq, row % Sq
    length = tl.load(lengths_ptr + b * stride_length)
    g, c = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_C)
    even = tl.reshape(2 * (g[:, None] * bytes_a_group + c[None, :]), (BLOCK_G * BLOCK_C,)).to(tl.int64)
    held = tl.reshape((g < G)[:, None] & (c < bytes_a_group)[None, :], (BLOCK_G * BLOCK_C,))
    inside = (row < rows)[:, None] & held[None, :]
    q_at = b * q_strides[0] + (head * q_strides[1] + i * q_strides[2])[:, None] + even[None, :] * q_strides[3]
    q_even = tl.load(q_ptr + q_at, mask=inside, other=0.0)
    q_odd = tl.load(q_ptr + q_at + q_strides[3], mask=inside, other=0.0)
    kc_ptr += b * kc_strides[0] + reader * kc_strides[1]
    ks_ptr += b * ks_strides[0] + reader * ks_strides[1]
    vc_ptr += b * vc_strides[0] + reader * vc_strides[1]
    vs_ptr += b * vs_strides[0] + reader * vs_strides[1]

    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o_even = tl.zeros((BLOCK_M, BLOCK_G * BLOCK_C), tl.float32)
    o_odd = tl.zeros((BLOCK_M, BLOCK_G * BLOCK_C), tl.float32)
    last = tl.minimum(split * keys + keys, length)
    for start in range(split * keys, last, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k_even, k_odd = _halves(kc_ptr, kc_strides, ks_ptr, ks_strides, j, last, g, c, G, bytes_a_group, q_even.dtype)
        v_even, v_odd = _halves(vc_ptr, vc_strides, vs_ptr, vs_strides, j, last, g, c, G, bytes_a_group, q_even.dtype)
        s = tl.dot(q_even, k_even.T, input_precision="ieee")
        s = tl.dot(q_odd, k_odd.T, s, input_precision="ieee") * scale
        visible = (j[None, :] < last) & (j[None, :] <= i[:, None] + length - Sq)
        s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(m_new == float("-inf"), 0.0, m_new)  # so far no score above -inf
        w = tl.exp(s - base[:, None])
        alpha = tl.exp(m - base)
        l = l * alpha + tl.sum(w, 1)
        m = m_new
        w = w.to(q_even.dtype)
        o_even = tl.dot(w, v_even, o_even * alpha[:, None], input_precision="ieee")
        o_odd = tl.dot(w, v_odd, o_odd * alpha[:, None], input_precision="ieee")
    place = (pair * rows + row) * tl.num_programs(1) + split
    inverse, at = 1 / tl.where(l == 0, 1.0, l)[:, None], place[:, None] * D + even[None, :]
    tl.store(o_ptr + at, o_even * inverse, mask=inside)
    tl.store(o_ptr + at + 1, o_odd * inverse, mask=inside)
    tl.store(lse_ptr + place, m + tl.log(l), mask=row < rows)


@variant()
def packgqa(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2), scales (B, Hkv, Sk, G, 2), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [yeetal2025]."""
    B, Hq, Sq, D, Hkv, Sk, G = checked_sizes(q, k_codes, k_scales, v_codes, v_scales, lengths)
    if D // G % 2:
        raise Unsupported(f"groups of {D // G} columns; an even number is needed, as a byte holds two columns")
    o, lse = empty_outputs(q)
    if o.numel():
        sizes, rows = _tiles(q.dtype, D, G), Hq // Hkv * Sq
        tops = ceil_div(rows, sizes["BLOCK_M"])
        # parts of 512 keys at least: fewer, and their sums would be as many bytes as the codes
        splits, keys = splits_of(Sk, 512, most=min(64, ceil_div(packed.PROGRAMS, B * Hkv * tops)))
        parts, caches = empty_parts(q, splits), (k_codes, k_scales, v_codes, v_scales)
        strides = (q.stride(), *(cache.stride() for cache in caches), lengths.stride(0))
        options = (scale_or_default(scale, D), Hkv, rows, Sq, keys, D, G, D // G // 2)
        _packgqa_kernel[(B * Hkv, splits, tops)](q, *caches, lengths, *parts, *strides, *options, **sizes)
        width = next_power_of_2(D)
        merge_kernel[(B * Hq * Sq,)](*parts, o, lse, splits, D, SPLITS=next_power_of_2(splits), BLOCK_V=width)
    return o, lse


def _tiles(dtype: torch.dtype, D: int, G: int) -> dict[str, int]:
    """Rows, keys, groups and bytes of a group in a tile; 16 bytes of a row at least, which is what a product takes."""
    groups, width = next_power_of_2(G), next_power_of_2(D // G // 2)
    about = dict(BLOCK_M=16, BLOCK_G=groups, BLOCK_C=max(width, 16 // groups))
    return {**about, "BLOCK_N": 16} if dtype is torch.float32 else {**about, "BLOCK_N": 128, "num_stages": 2}
