"""Wrong kernels of mla_decode: a warp for each query and part of the keys, then one that merges the parts."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.mla_decode import KERNELS
from touchstone.conformance.faults.numba._launching import launch

_LOW, _NONE, _ONE = np.float32(-3e38), np.float32(-math.inf), np.float32(1)
_PART = 16


class Fault(IntEnum):
    none = 0
    one_key_too_many = 1
    merged_unweighted = 2
    no_rotary_part = 3
    values_of_the_last_columns = 4
    first_length = 5
    first_head = 6


@cuda.jit
def _parts_kernel(q, cache, lengths, parts, part_lse, scale, fault):
    heads, seq, width, dim_v = q.shape[1], q.shape[2], q.shape[3], parts.shape[2]
    row, split = cuda.blockIdx.x, cuda.blockIdx.y
    b, h, i = row // (heads * seq), row // seq % heads, row % seq
    if fault == Fault.first_head:
        h = 0
    last = lengths[0 if fault == Fault.first_length else b] - seq + i + 1
    if fault == Fault.one_key_too_many:
        last = min(last + 1, cache.shape[1])
    columns = dim_v if fault == Fault.no_rotary_part else width
    first = width - dim_v if fault == Fault.values_of_the_last_columns else 0
    m, l = _LOW, float32(0)
    for d in range(cuda.threadIdx.x, dim_v, 32):
        parts[row, split, d] = float32(0)
    for j in range(split * _PART, min(last, (split + 1) * _PART)):
        s = float32(0)
        for d in range(columns):
            s += float32(q[b, h, i, d]) * float32(cache[b, j, d])
        s *= scale
        larger = max(m, s)
        kept, p = math.exp(m - larger), math.exp(s - larger)
        l = l * kept + p
        for d in range(cuda.threadIdx.x, dim_v, 32):
            parts[row, split, d] = parts[row, split, d] * kept + p * float32(cache[b, j, first + d])
        m = larger
    for d in range(cuda.threadIdx.x, dim_v, 32):
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


def _parts(q, cache, lengths, *, dim_v, scale, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    B, H, Sq, W, Sk = shapes("B H Sq W, B Sk W, B:int32", q=q, cache=cache, lengths=lengths)
    if not 1 <= dim_v <= W:
        raise ValueError(f"dim_v: {dim_v}; expected 1 to {W}")
    o, lse = torch.empty((B, H, Sq, dim_v), dtype=q.dtype), torch.empty((B, H, Sq), dtype=torch.float32)
    if o.numel():
        rows, splits = B * H * Sq, max(1, -(-Sk // _PART))
        parts = torch.empty((rows, splits, dim_v)), torch.empty((rows, splits))
        launch(Fault, fault, _parts_kernel, (rows, splits), 32, q, cache, lengths, *parts, np.float32(scale))
        launch(Fault, fault, _merge_kernel, rows, 32, *parts, o.view(rows, dim_v), lse.view(rows))
    return o, lse


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "parts",
    "one_key_too_many",
    "merged_unweighted",
    "no_rotary_part",
    "values_of_the_last_columns",
    "first_length",
    "first_head",
)
