"""Wrong kernels of attention_varlen: a warp for each query and head, its lanes along D, one key after another."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_varlen import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import launch

_LOW, _NONE = np.float32(-3e38), np.float32(-math.inf)


class Fault(IntEnum):
    none = 0
    next_sequence_seen = 1
    causal_by_row = 2
    offsets_of_q_for_k = 3
    no_key_gives_nan = 4
    rows_behind_left = 5
    lse_by_rows = 6
    heads_modulo = 7


@cuda.jit
def _rows_kernel(q, k, v, cu_q, cu_k, parts, o, lse, scale, causal, fault):
    total, heads, dim, kv_heads = q.shape[0], q.shape[1], q.shape[2], k.shape[1]
    row, h = cuda.blockIdx.x // heads, cuda.blockIdx.x % heads
    reader = h % kv_heads if fault == Fault.heads_modulo else h // (heads // kv_heads)
    sequences, b = cu_q.shape[0] - 1, 0
    while b < sequences and cu_q[b + 1] <= row:
        b += 1
    if fault == Fault.rows_behind_left and b == sequences:
        return
    first, end, last = 0, 0, 0
    if b < sequences:
        first, end = cu_k[b], cu_k[b + 1]
        if fault == Fault.offsets_of_q_for_k:
            first, end = min(cu_q[b], k.shape[0]), min(cu_q[b + 1], k.shape[0])
        last = end
        if fault == Fault.next_sequence_seen:
            last = min(first + (end - first + 15) // 16 * 16, k.shape[0])
        if causal:
            last = min(last, row + 1 if fault == Fault.causal_by_row else end - (cu_q[b + 1] - 1 - row))
    m, l = _LOW, float32(0)
    for d in range(cuda.threadIdx.x, dim, 32):
        parts[row, h, d] = float32(0)
    for j in range(first, last):
        s = float32(0)
        for d in range(dim):
            s += float32(q[row, h, d]) * float32(k[j, reader, d])
        s *= scale
        larger = max(m, s)
        kept, p = math.exp(m - larger), math.exp(s - larger)
        l = l * kept + p
        for d in range(cuda.threadIdx.x, dim, 32):
            parts[row, h, d] = parts[row, h, d] * kept + p * float32(v[j, reader, d])
        m = larger
    under = float32(1) if l == float32(0) and fault != Fault.no_key_gives_nan else l
    for d in range(cuda.threadIdx.x, dim, 32):
        o[row, h, d] = parts[row, h, d] / under
    if cuda.threadIdx.x == 0:
        lse[row * heads + h if fault == Fault.lse_by_rows else h * total + row] = (
            m + math.log(l) if l > float32(0) else _NONE
        )


KERNELS = SHARED | {"tiles": Kernel("known-good", "a warp for each query and head, one key after another")}


def _rows(q, k, v, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None, fault: str = "none"):
    spec = "Tq Hq D, Tk Hkv D, Tk Hkv D, N:int32, N:int32"
    Tq, Hq, D, _, _, _ = shapes(spec, q=q, k=k, v=v, cu_q=cu_q, cu_k=cu_k)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty((Hq, Tq), dtype=torch.float32)
    if o.numel():
        parts = torch.empty(q.shape, dtype=torch.float32)
        factor = np.float32(1 / math.sqrt(D) if scale is None else scale)
        operands = (q, k, v, cu_q, cu_k, parts, o, lse.view(-1), factor, causal)
        launch(Fault, fault, _rows_kernel, Tq * Hq, 32, *operands)
    return o, lse


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "tiles",
    "next_sequence_seen",
    "causal_by_row",
    "offsets_of_q_for_k",
    "no_key_gives_nan",
    "rows_behind_left",
    "lse_by_rows",
    "heads_modulo",
)
