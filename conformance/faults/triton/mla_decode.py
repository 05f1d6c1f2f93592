"""Wrong kernels of mla_decode: parts of 16 keys in a program each, and a program that merges them."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.mla_decode import KERNELS as SHARED


@triton.jit
def _parts_kernel(
    q_ptr, cache_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, cache_strides, length_row, scale, H, Sq, Sk, W, DV,
    FAULT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h, i = row // (H * Sq), row // Sq % H, row % Sq
    if FAULT == "first_head":
        h = h * 0
    own = b * length_row
    if FAULT == "first_length":
        own = 0
    last = tl.load(lengths_ptr + own) - Sq + i + 1
    if FAULT == "one_key_too_many":
        last = tl.minimum(last + 1, Sk)
    j = (split * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    d = tl.arange(0, WIDTH).to(tl.int64)[None, :]
    q_at = b * q_strides[0] + h * q_strides[1] + i * q_strides[2] + d * q_strides[3]
    at = b * cache_strides[0] + j * cache_strides[1] + d * cache_strides[2]
    columns = W
    if FAULT == "no_rotary_part":
        columns = DV
    q = tl.load(q_ptr + q_at, mask=d < columns, other=0.0).to(tl.float32)
    key = tl.load(cache_ptr + at, mask=(j < last) & (d < W), other=0.0).to(tl.float32)
    value = key
    if FAULT == "values_not_masked":
        value = tl.load(cache_ptr + at, mask=(j < Sk) & (d < W), other=0.0).to(tl.float32)
    if FAULT == "values_of_the_last_columns":
        at += (W - DV) * cache_strides[2]
        value = tl.load(cache_ptr + at, mask=(j < last) & (d < DV), other=0.0).to(tl.float32)
    s = tl.where(j < last, tl.sum(key * q, axis=1)[:, None] * scale, float("-inf"))
    m = tl.max(s)
    shift = tl.where(m == float("-inf"), 0.0, m)
    p = tl.exp(s - shift)
    l = tl.sum(p)
    place = row * tl.num_programs(1) + split
    o = tl.sum(p * value, axis=0) / tl.where(l == 0, 1.0, l)
    tl.store(o_ptr + place * DV + tl.arange(0, WIDTH), o, mask=tl.arange(0, WIDTH) < DV)
    tl.store(lse_ptr + place, shift + tl.log(l))


@triton.jit
def _merge_kernel(
    part_ptr, part_lse_ptr, o_ptr, lse_ptr, splits, D, FAULT: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    of_parts = tl.load(part_lse_ptr + row * splits + s, mask=s < splits, other=float("-inf"))
    m = tl.max(of_parts, axis=0)
    shift = tl.where(m == float("-inf"), 0.0, m)
    if FAULT == "empty_states":
        shift = m
    weight = tl.exp(of_parts - shift)
    l = tl.sum(weight, axis=0)
    lse = shift + tl.log(l)
    if FAULT == "merged_unweighted":
        weight = tl.where(s < splits, 1.0 / splits, 0.0)
        l = tl.sum(weight, axis=0)
    inside = (s < splits)[:, None] & (d < D)[None, :]
    parts = tl.load(part_ptr + (row * splits + s[:, None]) * D + d[None, :], mask=inside, other=0.0)
    o = tl.sum(parts * weight[:, None], axis=0) / tl.where(l == 0, 1.0, l)
    tl.store(o_ptr + row * D + d, o, mask=d < D)
    tl.store(lse_ptr + row, lse)


KERNELS = SHARED | {
    "values_not_masked": Kernel("special", "values beyond the length are multiplied by a probability of 0: NaN stays"),
    "empty_states": Kernel("special", "merging parts that all have no key gives NaN: exp(-inf - (-inf))"),
}


def _parts(q, cache, lengths, *, dim_v, scale, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    B, H, Sq, W, Sk = shapes("B H Sq W, B Sk W, B:int32", q=q, cache=cache, lengths=lengths)
    if not 1 <= dim_v <= W:
        raise ValueError(f"dim_v: {dim_v}; expected 1 to {W}")
    o, lse = torch.empty((B, H, Sq, dim_v), dtype=q.dtype), torch.empty((B, H, Sq), dtype=torch.float32)
    if o.numel():
        splits, rows, width = max(1, triton.cdiv(Sk, 16)), B * H * Sq, triton.next_power_of_2(W)
        parts = torch.empty((rows, splits, dim_v)), torch.empty((rows, splits))
        strides = (q.stride(), cache.stride(), lengths.stride(0))
        options = (scale, H, Sq, Sk, W, dim_v)
        grid = (rows, splits)
        _parts_kernel[grid](q, cache, lengths, *parts, *strides, *options, FAULT=fault, TILE=16, WIDTH=width)
        power = triton.next_power_of_2(splits)
        _merge_kernel[(rows,)](*parts, o, lse, splits, dim_v, FAULT=fault, SPLITS=power, WIDTH=width)
    return o, lse


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "one_key_too_many",
    "merged_unweighted",
    "no_rotary_part",
    "values_of_the_last_columns",
    "first_length",
    "first_head",
    "values_not_masked",
    "empty_states",
)
