"""Wrong kernels of attention_decode: parts of 16 keys in a program each, and a program that merges them."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_decode import KERNELS as SHARED


@triton.jit
def _parts_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, length_row, scale, Hq, Hkv, Sq,
    Sk, D, FAULT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h, i = row // (Hq * Sq), row // Sq % Hq, row % Sq
    reader = h // (Hq // Hkv)
    if FAULT == "heads_modulo":
        reader = h % Hkv
    own = b * length_row
    if FAULT == "first_length":
        own = 0
    last = tl.load(lengths_ptr + own) - Sq + i + 1
    if FAULT == "one_key_too_many":
        last = tl.minimum(last + 1, Sk)
    j = (split * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    d = tl.arange(0, WIDTH).to(tl.int64)[None, :]
    q_at = b * q_strides[0] + h * q_strides[1] + i * q_strides[2] + d * q_strides[3]
    k_at = b * k_strides[0] + reader * k_strides[1] + j * k_strides[2] + d * k_strides[3]
    v_at = b * v_strides[0] + reader * v_strides[1] + j * v_strides[2] + d * v_strides[3]
    inside = (j < last) & (d < D)
    of_values = inside
    if FAULT == "values_not_masked":
        of_values = (j < Sk) & (d < D)
    q = tl.load(q_ptr + q_at, mask=d < D, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + k_at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + v_at, mask=of_values, other=0.0).to(tl.float32)
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


def _parts(q, k, v, lengths, *, scale=None, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B:int32", q=q, k=k, v=v, lengths=lengths)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        splits, rows, width = max(1, triton.cdiv(Sk, 16)), B * Hq * Sq, triton.next_power_of_2(D)
        parts = torch.empty((rows, splits, D), dtype=torch.float32), torch.empty((rows, splits), dtype=torch.float32)
        strides = (q.stride(), k.stride(), v.stride(), lengths.stride(0))
        options = (1 / math.sqrt(D) if scale is None else scale, Hq, Hkv, Sq, Sk, D)
        _parts_kernel[(rows, splits)](q, k, v, lengths, *parts, *strides, *options, FAULT=fault, TILE=16, WIDTH=width)
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
    "first_length",
    "values_not_masked",
    "empty_states",
)
