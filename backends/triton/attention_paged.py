"""Attention of a few queries over a cache in pages, which a table gives to sequences: o = softmax(scale·q·kᵀ)·v and
lse.

naive: one program a query, which walks over the keys that it sees, a tile at a time, each key through the table
  [kwon2023]
splitkv: the keys in up to 32 parts, a program each, so that few queries fill the GPU; their lse merge them
  [dao2023decoding]
packgqa: the query heads that share a head of the cache are the rows of one tile, for which keys and values are loaded
  once [yeetal2025]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import empty_parts, splits_of
from touchstone.backends.signatures.attention_paged import Sizes, checked_sizes
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib import packed
from touchstone.backends.triton.lib.splits import merge_kernel
from touchstone.backends.variants import variant


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, q_strides, k_strides, v_strides, table_strides, stride_length, row,
    first, keys, scale, Hq, Hkv, Sq, D, page, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """o, not normalised, the maximum and the sum of one query over the keys from `first` on, `keys` of them at most."""
    b, h, i = row // (Hq * Sq), row // Sq % Hq, row % Sq
    reader = h // (Hq // Hkv)
    seen = tl.load(lengths_ptr + b * stride_length).to(tl.int32) - Sq + i + 1
    last = tl.minimum(first + keys, seen)
    d = tl.arange(0, WIDTH).to(tl.int64)
    q_ptr += b * q_strides[0] + h * q_strides[1] + i * q_strides[2]
    k_ptr += reader * k_strides[2]
    v_ptr += reader * v_strides[2]
    table_ptr += b * table_strides[0]
    q = tl.load(q_ptr + d * q_strides[3], mask=d < D, other=0.0).to(tl.float32)

    m = tl.full((), float("-inf"), tl.float32)
    l = tl.full((), 0.0, tl.float32)
    o = tl.zeros((WIDTH,), tl.float32)
    for start in range(first, last, TILE):
        j = (start + tl.arange(0, TILE)).to(tl.int64)
        # entries beyond the last page name no page
        held = tl.load(table_ptr + j // page * table_strides[1], mask=j < last, other=0).to(tl.int64)[:, None]
        r, j = (j % page)[:, None], j[:, None]
        inside = (j < last) & (d[None, :] < D)  # of v too: 0 times what lies beyond may be NaN
        k_at = held * k_strides[0] + r * k_strides[1] + d[None, :] * k_strides[3]
        v_at = held * v_strides[0] + r * v_strides[1] + d[None, :] * v_strides[3]
        k = tl.load(k_ptr + k_at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + v_at, mask=inside, other=0.0).to(tl.float32)
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


@triton.jit(do_not_specialize=["scale"])
def _naive_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, table_strides,
    stride_length, scale, Hq, Hkv, Sq, D, page, keys, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    o, m, l = _attend(
        q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, q_strides, k_strides, v_strides, table_strides, stride_length,
        row, 0, keys, scale, Hq, Hkv, Sq, D, page, TILE, WIDTH
    )  # fmt: skip
    d = tl.arange(0, WIDTH)
    tl.store(o_ptr + row * D + d, o / tl.where(l == 0, 1.0, l), mask=d < D)
    tl.store(lse_ptr + row, m + tl.log(l))


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
        keys, width = sizes.n * sizes.page, next_power_of_2(sizes.D)
        _naive_kernel[(lse.numel(),)](*operands, o, lse, *options, keys, TILE=_keys_a_tile(width), WIDTH=width)
    return o, lse


@triton.jit(do_not_specialize=["scale"])
def _splitkv_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, table_strides,
    stride_length, scale, Hq, Hkv, Sq, D, page, keys, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    o, m, l = _attend(
        q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, q_strides, k_strides, v_strides, table_strides, stride_length,
        row, split * keys, keys, scale, Hq, Hkv, Sq, D, page, TILE, WIDTH
    )  # fmt: skip
    d = tl.arange(0, WIDTH)
    place = row * splits + split
    tl.store(o_ptr + place * D + d, o / tl.where(l == 0, 1.0, l), mask=d < D)
    tl.store(lse_ptr + place, m + tl.log(l))


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
        parts = empty_parts(q, splits)
        operands, options = _arguments(sizes, scale, q, k_cache, v_cache, block_table, lengths)
        rows, width = lse.numel(), next_power_of_2(sizes.D)
        _splitkv_kernel[(rows, splits)](*operands, *parts, *options, keys, TILE=_keys_a_tile(width), WIDTH=width)
        options = {"SPLITS": next_power_of_2(splits), "BLOCK_V": width}
        merge_kernel[(rows,)](*parts, o, lse, splits, sizes.D, **options)
    return o, lse


@triton.jit(do_not_specialize=["scale", "Hkv", "rows", "Sq", "keys"])
def _packgqa_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, table_strides,
    stride_length, scale, Hkv, rows, Sq, D, page: tl.constexpr, keys, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr
):  # fmt: skip
    # a kernel for each size of page: with division by numbers that the compiler does not know it takes 7 % longer
    pair, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * keys
    b, reader = pair // Hkv, pair % Hkv
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    length = tl.load(lengths_ptr + b * stride_length)
    of_k, of_v = (k_strides[1], k_strides[3], k_strides[0]), (v_strides[1], v_strides[3], v_strides[0])
    o, m, l = packed.attend(
        q_ptr, q_strides, k_ptr + reader * k_strides[2], of_k, v_ptr + reader * v_strides[2], of_v,
        table_ptr + b * table_strides[0], table_strides[1], page, b, reader, row, rows, Sq, first,
        tl.minimum(first + keys, length), length - Sq, scale, D, BLOCK_M, BLOCK_N, BLOCK_D
    )  # fmt: skip
    packed.store_part(o, m, l, o_ptr, lse_ptr, pair, row, rows, D, BLOCK_D)


@variant()
def packgqa(
    q, k_cache, v_cache, block_table, lengths, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k_cache, v_cache (P, page, Hkv, D), block_table (B, n), lengths (B,) -> o (B, Hq, Sq, D), lse
    (B, Hq, Sq) float32. Source: [yeetal2025]."""
    sizes = checked_sizes(q, k_cache, v_cache, block_table, lengths)
    o, lse = empty_outputs(q)
    if o.numel():
        about, rows, pairs = packed.tiles(q.dtype, sizes.D), sizes.Hq // sizes.Hkv * sizes.Sq, sizes.B * sizes.Hkv
        tiles = ceil_div(rows, about["BLOCK_M"])
        splits, keys = packed.parts(sizes.n * sizes.page, pairs * tiles)
        parts = empty_parts(q, splits)
        operands, options = _arguments(sizes, scale, q, k_cache, v_cache, block_table, lengths)
        strides, (factor, _, Hkv, Sq, D, page) = options[:5], options[5:]
        grid, options = (pairs, splits, tiles), (factor, Hkv, rows, Sq, D, page, keys)
        _packgqa_kernel[grid](*operands, *parts, *strides, *options, **about)
        options = {"SPLITS": next_power_of_2(splits), "BLOCK_V": about["BLOCK_D"]}
        merge_kernel[(lse.numel(),)](*parts, o, lse, splits, sizes.D, **options)
    return o, lse


def _keys_a_tile(width: int) -> int:
    """So many that the tiles of k and v stay in registers: 64 keys of 128 columns spill a kilobyte a thread on
    sm_80."""
    return max(16, min(64, 4096 // width))


def _arguments(sizes: Sizes, scale: float | None, *operands: torch.Tensor) -> tuple[tuple, tuple]:
    """The operands, and what follows the outputs up to the size of a page."""
    *strided, lengths = operands
    strides = (*(x.stride() for x in strided), lengths.stride(0))
    options = (scale_or_default(scale, sizes.D), sizes.Hq, sizes.Hkv, sizes.Sq, sizes.D, sizes.page)
    return operands, (*strides, *options)
