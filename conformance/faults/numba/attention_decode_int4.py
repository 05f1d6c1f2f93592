"""Wrong kernels of attention_decode_int4: a warp a query and part of the keys, then one that merges the parts."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int32

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.attention_decode_int4 import KERNELS
from touchstone.conformance.faults.numba._launching import launch

_LOW, _NONE, _ONE = np.float32(-3e38), np.float32(-math.inf), np.float32(1)
_PART = 16


class Fault(IntEnum):
    none = 0
    one_key_too_many = 1
    merged_unweighted = 2
    heads_modulo = 3
    nibbles_swapped = 4
    no_shift = 5
    next_group = 6
    values_with_scales_of_keys = 7


@cuda.jit(device=True)
def _element(codes, scales, b, h, j, d, group, fault):
    high = d % 2
    if fault == Fault.nibbles_swapped:
        high = 1 - high
    code = (int32(codes[b, h, j, d // 2]) >> int32(4 * high)) & int32(15)
    g = d // group
    if fault == Fault.next_group:
        g = (g + 1) % scales.shape[3]
    shift = float32(0) if fault == Fault.no_shift else float32(scales[b, h, j, g, 1])
    return float32(code) * float32(scales[b, h, j, g, 0]) + shift


@cuda.jit
def _parts_kernel(q, k_codes, k_scales, v_codes, v_scales, lengths, parts, part_lse, scale, fault):
    heads, seq, dim, kv_heads = q.shape[1], q.shape[2], q.shape[3], k_codes.shape[1]
    row, split, group = cuda.blockIdx.x, cuda.blockIdx.y, dim // k_scales.shape[3]
    b, h, i = row // (heads * seq), row // seq % heads, row % seq
    reader = h % kv_heads if fault == Fault.heads_modulo else h // (heads // kv_heads)
    last = lengths[b] - seq + i + 1
    if fault == Fault.one_key_too_many:
        last = min(last + 1, k_codes.shape[2])
    m, l = _LOW, float32(0)
    for d in range(cuda.threadIdx.x, dim, 32):
        parts[row, split, d] = float32(0)
    for j in range(split * _PART, min(last, (split + 1) * _PART)):
        s = float32(0)
        for d in range(dim):
            s += float32(q[b, h, i, d]) * _element(k_codes, k_scales, b, reader, j, d, group, fault)
        s *= scale
        larger = max(m, s)
        kept, p = math.exp(m - larger), math.exp(s - larger)
        l = l * kept + p
        for d in range(cuda.threadIdx.x, dim, 32):
            if fault == Fault.values_with_scales_of_keys:
                x = _element(v_codes, k_scales, b, reader, j, d, group, fault)
            else:
                x = _element(v_codes, v_scales, b, reader, j, d, group, fault)
            parts[row, split, d] = parts[row, split, d] * kept + p * x
        m = larger
    for d in range(cuda.threadIdx.x, dim, 32):
        if l > float32(0):
            parts[row, split, d] /= l
    if cuda.threadIdx.x == 0:
        part_lse[row, split] = m + math.log(l) if l > float32(0) else _NONE


@cuda.jit
def _merge_kernel(parts, part_lse, o, lse, fault):
    row, splits = cuda.blockIdx.x, parts.shape[1]
    most, total = _NONE, float32(0)
    for split in range(splits):
        most = max(most, part_lse[row, split])
    if most == _NONE:
        most = float32(0)
    for split in range(splits):
        total += math.exp(part_lse[row, split] - most)
    for d in range(cuda.threadIdx.x, parts.shape[2], 32):
        sum = float32(0)
        for split in range(splits):
            weight = math.exp(part_lse[row, split] - most) / total if total > float32(0) else float32(0)
            if fault == Fault.merged_unweighted:
                weight = _ONE / float32(splits)
            sum += parts[row, split, d] * weight
        o[row, d] = sum
    if cuda.threadIdx.x == 0:
        lse[row] = most + math.log(total) if total > float32(0) else _NONE


def _parts(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    caches = {"k_codes": k_codes, "k_scales": k_scales, "v_codes": v_codes, "v_scales": v_scales}
    cache = "B Hkv Sk D/2:uint8, B Hkv Sk G 2"
    B, Hq, Sq, D, _, Sk, _ = shapes(f"B Hq Sq D, {cache}, {cache}, B:int32", q=q, **caches, lengths=lengths)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        rows, splits = B * Hq * Sq, max(1, -(-Sk // _PART))
        parts = torch.empty((rows, splits, D)), torch.empty((rows, splits))
        factor = np.float32(1 / math.sqrt(D) if scale is None else scale)
        launch(Fault, fault, _parts_kernel, (rows, splits), 32, q, *caches.values(), lengths, *parts, factor)
        launch(Fault, fault, _merge_kernel, rows, 32, *parts, o.view(rows, D), lse.view(rows))
    return o, lse


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "parts",
    "one_key_too_many",
    "merged_unweighted",
    "heads_modulo",
    "nibbles_swapped",
    "no_shift",
    "next_group",
    "values_with_scales_of_keys",
)
