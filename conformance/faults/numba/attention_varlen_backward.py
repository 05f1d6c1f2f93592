"""Wrong kernels of attention_varlen_backward: a thread for each row and head of dq, and for each of dk and dv."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.attention_varlen_backward import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import launch


class Fault(IntEnum):
    none = 0
    next_sequence_seen = 1
    causal_by_row = 2
    delta_left_out = 3
    dk_not_scaled = 4
    group_not_summed = 5
    unseen_keys_left = 6
    rows_behind_left = 7
    lse_by_rows = 8


# a query that saw no key is nobody's: no program of this form reads its lse
KERNELS = {name: kernel for name, kernel in SHARED.items() if name != "empty_row_nan"}


@cuda.jit(device=True)
def _sequence_of(row, cu):
    """The sequence of a row; the one after the last for a row that belongs to none."""
    b = 0
    while b < cu.shape[0] - 1 and cu[b + 1] <= row:
        b += 1
    return b


@cuda.jit(device=True)
def _weights(q, k, v, o, lse, do, i, j, h, reader, scale, fault):
    """p and ds of a query and a key, which it sees."""
    s, dp, delta = float32(0), float32(0), float32(0)
    for d in range(q.shape[2]):
        s += float32(q[i, h, d]) * float32(k[j, reader, d])
        dp += float32(do[i, h, d]) * float32(v[j, reader, d])
        delta += float32(do[i, h, d]) * float32(o[i, h, d])
    if fault == Fault.delta_left_out:
        delta = float32(0)
    of_row = lse[h, i]
    if fault == Fault.lse_by_rows:
        place = i * lse.shape[0] + h
        of_row = lse[place // lse.shape[1], place % lse.shape[1]]
    p = math.exp(s * scale - of_row) if of_row != -math.inf else float32(0)
    return p, p * (dp - delta)


@cuda.jit
def _dq_kernel(q, k, v, o, lse, do, cu_q, cu_k, acc, dq, scale, causal, fault):
    i, h = cuda.blockIdx.x, cuda.threadIdx.x
    b, reader = _sequence_of(i, cu_q), h // (q.shape[1] // k.shape[1])
    if fault == Fault.rows_behind_left and b == cu_q.shape[0] - 1:
        return
    for d in range(q.shape[2]):
        acc[i, h, d] = float32(0)
    if b < cu_q.shape[0] - 1:
        first, end, last = cu_k[b], cu_k[b + 1], cu_k[b + 1]
        if fault == Fault.next_sequence_seen:
            last = min(first + (end - first + 15) // 16 * 16, k.shape[0])
        if causal:
            last = min(last, i + 1 if fault == Fault.causal_by_row else end - (cu_q[b + 1] - 1 - i))
        for j in range(first, last):
            _, ds = _weights(q, k, v, o, lse, do, i, j, h, reader, scale, fault)
            for d in range(q.shape[2]):
                acc[i, h, d] += ds * float32(k[j, reader, d])
    for d in range(q.shape[2]):
        dq[i, h, d] = acc[i, h, d] * scale


@cuda.jit
def _dkdv_kernel(q, k, v, o, lse, do, cu_q, cu_k, acc, acc_v, dk, dv, scale, causal, fault):
    j, reader = cuda.blockIdx.x, cuda.threadIdx.x
    b, group = _sequence_of(j, cu_k), q.shape[1] // k.shape[1]
    if fault == Fault.rows_behind_left and b == cu_k.shape[0] - 1:
        return
    first, end = 0, 0
    if b < cu_k.shape[0] - 1:
        first, end = cu_q[b], cu_q[b + 1]
    if fault == Fault.unseen_keys_left and first == end:
        return
    for d in range(q.shape[2]):
        acc[j, reader, d] = acc_v[j, reader, d] = float32(0)
    for h in range(reader * group, (reader + 1) * group):
        if fault == Fault.group_not_summed:
            for d in range(q.shape[2]):
                acc[j, reader, d] = acc_v[j, reader, d] = float32(0)
        for i in range(first, end):
            seen = cu_k[b + 1] - j >= end - i
            if fault == Fault.causal_by_row:
                seen = j <= i
            if seen or not causal:
                p, ds = _weights(q, k, v, o, lse, do, i, j, h, reader, scale, fault)
                for d in range(q.shape[2]):
                    acc[j, reader, d] += ds * float32(q[i, h, d])
                    acc_v[j, reader, d] += p * float32(do[i, h, d])
    factor = float32(1) if fault == Fault.dk_not_scaled else scale
    for d in range(q.shape[2]):
        dk[j, reader, d] = acc[j, reader, d] * factor
        dv[j, reader, d] = acc_v[j, reader, d]


def _rows(q, k, v, o, lse, do, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None, fault: str = "none"):
    spec = "Tq Hq D, Tk Hkv D, Tk Hkv D, Tq Hq D, Hq Tq:float32, Tq Hq D, N:int32, N:int32"
    Tq, Hq, D, Tk, Hkv, _ = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do, cu_q=cu_q, cu_k=cu_k)
    if max(Hq, Hkv) > 1024:
        raise Unsupported(f"{max(Hq, Hkv)} heads; a block has a thread for each")
    dq, dk, dv = (torch.empty(x.shape, dtype=q.dtype) for x in (q, k, v))
    wide_q, wide_k, wide_v = (torch.empty(x.shape, dtype=torch.float32) for x in (q, k, v))
    operands = (q, k, v, o, lse, do, cu_q, cu_k)
    factor = np.float32(1 / math.sqrt(D) if scale is None else scale)
    if Tq:
        launch(Fault, fault, _dq_kernel, Tq, Hq, *operands, wide_q, dq, factor, causal)
    if Tk:
        launch(Fault, fault, _dkdv_kernel, Tk, Hkv, *operands, wide_k, wide_v, dk, dv, factor, causal)
    return dq, dk, dv


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "next_sequence_seen",
    "causal_by_row",
    "delta_left_out",
    "dk_not_scaled",
    "group_not_summed",
    "unseen_keys_left",
    "rows_behind_left",
    "lse_by_rows",
)
