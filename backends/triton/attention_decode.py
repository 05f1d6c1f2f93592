"""Attention of a few queries over a cache of keys and values, lengths[b] rows of it: o = softmax(scale·q·kᵀ)·v and lse.

naive: one program a query, which walks over the keys that it sees, a tile at a time [milakov2018]
splitkv: the keys in up to 32 parts, a program each, so that few queries fill the GPU; their lse merge them
  [dao2023decoding]
packgqa: the query heads that share a head of k and v are the rows of one tile, for which keys and values are loaded
  once [yeetal2025]
balanced: the keys of all sequences in equal shares, one for each program that the GPU holds at once: none waits for a
  longer sequence's [sanovar2024]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import checked_sizes, empty_parts, splits_of
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib import packed, shares
from touchstone.backends.triton.lib.splits import merge_kernel
from touchstone.backends.variants import variant


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, lengths_ptr, q_strides, k_strides, v_strides, stride_length, row, first, keys, scale,
    Hq, Hkv, Sq, D, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """o, not normalised, the maximum and the sum of one query over the keys from `first` on, `keys` of them at most."""
    b, h, i = row // (Hq * Sq), row // Sq % Hq, row % Sq
    reader = h // (Hq // Hkv)
    seen = tl.load(lengths_ptr + b * stride_length).to(tl.int32) - Sq + i + 1
    last = tl.minimum(first + keys, seen)
    d = tl.arange(0, WIDTH).to(tl.int64)
    q_ptr += b * q_strides[0] + h * q_strides[1] + i * q_strides[2]
    k_ptr += b * k_strides[0] + reader * k_strides[1]
    v_ptr += b * v_strides[0] + reader * v_strides[1]
    q = tl.load(q_ptr + d * q_strides[3], mask=d < D, other=0.0).to(tl.float32)

    m = tl.full((), float("-inf"), tl.float32)
    l = tl.full((), 0.0, tl.float32)
    o = tl.zeros((WIDTH,), tl.float32)
    for start in range(first, last, TILE):
        j = (start + tl.arange(0, TILE)).to(tl.int64)[:, None]
        inside = (j < last) & (d[None, :] < D)  # of v too: 0 times what lies beyond may be NaN
        k = tl.load(k_ptr + j * k_strides[2] + d[None, :] * k_strides[3], mask=inside, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + j * v_strides[2] + d[None, :] * v_strides[3], mask=inside, other=0.0).to(tl.float32)
        s = tl.sum(k * q[None, :], axis=1)[:, None] * scale
        s = tl.where(j < last, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)  # so far no score above -inf
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift)
        l = l * alpha + tl.sum(p)
        o = o * alpha + tl.sum(p * v, axis=0)
        m = m_new
    return o, m, l


def _tile(width: int) -> int:
    """Keys of a tile: at 256 columns 64 of them would spill two kilobytes a thread."""
    return 64 if width <= 128 else 32


@triton.jit(do_not_specialize=["scale"])
def _naive_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, stride_length, scale, Hq, Hkv,
    Sq, Sk, D, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    o, m, l = _attend(
        q_ptr, k_ptr, v_ptr, lengths_ptr, q_strides, k_strides, v_strides, stride_length, row, 0, Sk, scale,
        Hq, Hkv, Sq, D, TILE, WIDTH
    )  # fmt: skip
    d = tl.arange(0, WIDTH)
    tl.store(o_ptr + row * D + d, o / tl.where(l == 0, 1.0, l), mask=d < D)
    tl.store(lse_ptr + row, m + tl.log(l))


@variant()
def naive(q, k, v, lengths, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lengths (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq) float32. Source:
    [milakov2018]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        strides = (q.stride(), k.stride(), v.stride(), lengths.stride(0))
        options = (scale_or_default(scale, D), Hq, Hkv, Sq, Sk, D)
        width = next_power_of_2(D)
        tile = _tile(width)
        _naive_kernel[(B * Hq * Sq,)](q, k, v, lengths, o, lse, *strides, *options, TILE=tile, WIDTH=width)
    return o, lse


@triton.jit(do_not_specialize=["scale"])
def _splitkv_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, stride_length, scale, Hq, Hkv,
    Sq, keys, D, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    o, m, l = _attend(
        q_ptr, k_ptr, v_ptr, lengths_ptr, q_strides, k_strides, v_strides, stride_length, row, split * keys, keys,
        scale, Hq, Hkv, Sq, D, TILE, WIDTH
    )  # fmt: skip
    d = tl.arange(0, WIDTH)
    place = row * splits + split
    tl.store(o_ptr + place * D + d, o / tl.where(l == 0, 1.0, l), mask=d < D)
    tl.store(lse_ptr + place, m + tl.log(l))


@variant()
def splitkv(q, k, v, lengths, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lengths (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq) float32. Source:
    [dao2023decoding]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        splits, keys = splits_of(Sk)
        parts = empty_parts(q, splits)
        strides = (q.stride(), k.stride(), v.stride(), lengths.stride(0))
        options = (scale_or_default(scale, D), Hq, Hkv, Sq, keys, D)
        width, rows = next_power_of_2(D), B * Hq * Sq
        tile = _tile(width)
        _splitkv_kernel[(rows, splits)](q, k, v, lengths, *parts, *strides, *options, TILE=tile, WIDTH=width)
        options = {"SPLITS": next_power_of_2(splits), "BLOCK_V": width}
        merge_kernel[(rows,)](*parts, o, lse, splits, D, **options)
    return o, lse


@triton.jit(do_not_specialize=["scale", "Hkv", "rows", "Sq", "keys"])
def _packgqa_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, stride_length, scale, Hkv, rows,
    Sq, keys, D, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    pair, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * keys
    b, reader = pair // Hkv, pair % Hkv
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    length = tl.load(lengths_ptr + b * stride_length)
    k_ptr += b * k_strides[0] + reader * k_strides[1]
    v_ptr += b * v_strides[0] + reader * v_strides[1]
    o, m, l = packed.attend(
        q_ptr, q_strides, k_ptr, (k_strides[2], k_strides[3]), v_ptr, (v_strides[2], v_strides[3]), None, 0, 1, b,
        reader, row, rows, Sq, first, tl.minimum(first + keys, length), length - Sq, scale, D, BLOCK_M, BLOCK_N,
        BLOCK_D
    )  # fmt: skip
    packed.store_part(o, m, l, o_ptr, lse_ptr, pair, row, rows, D, BLOCK_D)


@variant()
def packgqa(q, k, v, lengths, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lengths (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq) float32. Source:
    [yeetal2025]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        sizes, rows = packed.tiles(q.dtype, D), Hq // Hkv * Sq
        tiles = ceil_div(rows, sizes["BLOCK_M"])
        splits, keys = packed.parts(Sk, B * Hkv * tiles)
        parts = empty_parts(q, splits)
        strides = (q.stride(), k.stride(), v.stride(), lengths.stride(0))
        options = (scale_or_default(scale, D), Hkv, rows, Sq, keys, D)
        _packgqa_kernel[(B * Hkv, splits, tiles)](q, k, v, lengths, *parts, *strides, *options, **sizes)
        options = {"SPLITS": next_power_of_2(splits), "BLOCK_V": sizes["BLOCK_D"]}
        merge_kernel[(B * Hq * Sq,)](*parts, o, lse, splits, D, **options)
    return o, lse


@variant()
def balanced(q, k, v, lengths, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lengths (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq) float32. Declines over
    4096 sequences. Source: [sanovar2024]."""
    checked_sizes(q, k, v, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        shares.attend(q, k, v, lengths, o, lse, scale_or_default(scale, q.shape[3]))
    return o, lse
