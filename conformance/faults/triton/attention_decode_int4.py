"""Wrong kernels of attention_decode_int4: parts of 16 keys in a program each, and a program that merges them."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_decode_int4 import KERNELS as SHARED


@triton.jit
def _elements(codes_ptr, c_strides, scales_ptr, s_strides, b, h, j, d, inside, group, groups, FAULT: tl.constexpr):
    at = b * c_strides[0] + h * c_strides[1] + j * c_strides[2] + d // 2 * c_strides[3]
    byte = tl.load(codes_ptr + at, mask=inside, other=0).to(tl.int32)
    high = (d % 2).to(tl.int32)
    if FAULT == "nibbles_swapped":
        high = 1 - high
    code = (byte >> (high * 4)) & 15
    if FAULT == "shifted_with_its_sign":
        code = (byte.to(tl.int8) >> (high * 4).to(tl.int8)).to(tl.int32)
        code = tl.where(high == 0, code & 15, code)
    g = d // group
    if FAULT == "next_group":
        g = (g + 1) % groups
    at = scales_ptr + b * s_strides[0] + h * s_strides[1] + j * s_strides[2] + g * s_strides[3]
    factor = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(at + s_strides[4], mask=inside, other=0.0).to(tl.float32)
    if FAULT == "no_shift":
        shift = tl.zeros_like(shift)
    return code.to(tl.float32) * factor + shift


@triton.jit
def _parts_kernel(
    q_ptr, kc_ptr, ks_ptr, vc_ptr, vs_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, kc_strides, ks_strides, vc_strides,
    vs_strides, length_row, scale, Hq, Hkv, Sq, Sk, D, G, FAULT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h, i = row // (Hq * Sq), row // Sq % Hq, row % Sq
    reader = h // (Hq // Hkv)
    if FAULT == "heads_modulo":
        reader = h % Hkv
    last = tl.load(lengths_ptr + b * length_row) - Sq + i + 1
    if FAULT == "one_key_too_many":
        last = tl.minimum(last + 1, Sk)
    j = (split * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    d = tl.arange(0, WIDTH).to(tl.int64)[None, :]
    q_at = b * q_strides[0] + h * q_strides[1] + i * q_strides[2] + d * q_strides[3]
    inside = (j < last) & (d < D)
    of_values = inside
    if FAULT == "values_not_masked":
        of_values = (j < Sk) & (d < D)
    q = tl.load(q_ptr + q_at, mask=d < D, other=0.0).to(tl.float32)
    k = _elements(kc_ptr, kc_strides, ks_ptr, ks_strides, b, reader, j, d, inside, D // G, G, FAULT)
    if FAULT == "values_with_scales_of_keys":
        v = _elements(vc_ptr, vc_strides, ks_ptr, ks_strides, b, reader, j, d, of_values, D // G, G, FAULT)
    else:
        v = _elements(vc_ptr, vc_strides, vs_ptr, vs_strides, b, reader, j, d, of_values, D // G, G, FAULT)
    s = tl.where(j < last, tl.sum(k * q, axis=1)[:, None] * scale, float("-inf"))
    m = tl.max(s)
    shift = tl.where(m == float("-inf"), 0.0, m)
    p = tl.exp(s - shift)
    l = tl.sum(p)
    place = row * tl.num_programs(1) + split
    o = tl.sum(p * v, axis=0) / tl.where(l == 0, 1.0, l)
    tl.store(o_ptr + place * D + tl.arange(0, WIDTH), o, mask=tl.arange(0, WIDTH) < D)
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
    "shifted_with_its_sign": Kernel("formula", "a byte of 128 and more is shifted with its sign"),
}


def _parts(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    caches = {"k_codes": k_codes, "k_scales": k_scales, "v_codes": v_codes, "v_scales": v_scales}
    cache = "B Hkv Sk D/2:uint8, B Hkv Sk G 2"
    B, Hq, Sq, D, Hkv, Sk, G = shapes(f"B Hq Sq D, {cache}, {cache}, B:int32", q=q, **caches, lengths=lengths)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        splits, rows, width = max(1, triton.cdiv(Sk, 16)), B * Hq * Sq, triton.next_power_of_2(D)
        parts = torch.empty((rows, splits, D)), torch.empty((rows, splits))
        strides = (q.stride(), *(cache.stride() for cache in caches.values()), lengths.stride(0))
        options = (1 / math.sqrt(D) if scale is None else scale, Hq, Hkv, Sq, Sk, D, G)
        operands = (q, *caches.values(), lengths, *parts)
        _parts_kernel[(rows, splits)](*operands, *strides, *options, FAULT=fault, TILE=16, WIDTH=width)
        power = triton.next_power_of_2(splits)
        _merge_kernel[(rows,)](*parts, o, lse, splits, D, FAULT=fault, SPLITS=power, WIDTH=width)
    return o, lse


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "one_key_too_many",
    "merged_unweighted",
    "heads_modulo",
    "nibbles_swapped",
    "no_shift",
    "next_group",
    "values_with_scales_of_keys",
    "values_not_masked",
    "shifted_with_its_sign",
)
