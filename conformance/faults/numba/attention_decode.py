"""Wrong kernels of attention_decode: a thread for each query and part of the keys, then one that merges the parts."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.attention_decode import KERNELS
from touchstone.conformance.faults.numba._launching import launch

_LOW, _NONE, _ONE = np.float32(-3e38), np.float32(-math.inf), np.float32(1)
_PART = 16


class Fault(IntEnum):
    none = 0
    one_key_too_many = 1
    merged_unweighted = 2
    heads_modulo = 3
    first_length = 4


@cuda.jit
def _parts_kernel(q, k, v, lengths, parts, part_lse, scale, fault):
    heads, seq, dim, kv_heads = q.shape[1], q.shape[2], q.shape[3], k.shape[1]
    row, split = cuda.blockIdx.x, cuda.blockIdx.y
    b, h, i = row // (heads * seq), row // seq % heads, row % seq
    reader = h % kv_heads if fault == Fault.heads_modulo else h // (heads // kv_heads)
    last = lengths[0 if fault == Fault.first_length else b] - seq + i + 1
    if fault == Fault.one_key_too_many:
        last = min(last + 1, k.shape[2])
    m, l = _LOW, float32(0)
    for d in range(cuda.threadIdx.x, dim, 32):
        parts[row, split, d] = float32(0)
    for j in range(split * _PART, min(last, (split + 1) * _PART)):
        s = float32(0)
        for d in range(dim):
            s += float32(q[b, h, i, d]) * float32(k[b, reader, j, d])
        s *= scale
        larger = max(m, s)
        kept, p = math.exp(m - larger), math.exp(s - larger)
        l = l * kept + p
        for d in range(cuda.threadIdx.x, dim, 32):
            parts[row, split, d] = parts[row, split, d] * kept + p * float32(v[b, reader, j, d])
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


def _parts(q, k, v, lengths, *, scale=None, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Sq, D, _, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B:int32", q=q, k=k, v=v, lengths=lengths)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        rows, splits = B * Hq * Sq, max(1, -(-Sk // _PART))
        parts = torch.empty((rows, splits, D), dtype=torch.float32), torch.empty((rows, splits), dtype=torch.float32)
        factor = np.float32(1 / math.sqrt(D) if scale is None else scale)
        launch(Fault, fault, _parts_kernel, (rows, splits), 32, q, k, v, lengths, *parts, factor)
        launch(Fault, fault, _merge_kernel, rows, 32, *parts, o.view(rows, D), lse.view(rows))
    return o, lse


plant_kernels(
    globals(), _parts, KERNELS, "parts", "one_key_too_many", "merged_unweighted", "heads_modulo", "first_length"
)
