"""Wrong kernels of masked_attention: a thread for each query, with its scores in memory."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.philox import word_of
from touchstone.backends.signatures.masked_attention import OPTIONAL, checked_mods
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.masked_attention import KERNELS
from touchstone.conformance.faults.numba._launching import launch

_LOW, _ZERO = np.float32(-math.inf), np.float32(0)


class Fault(IntEnum):
    none = 0
    window_one_more = 1
    window_top_left = 2
    slope_of_head_0 = 3
    softcap_last = 4
    segments_by_query = 5
    dropout_by_key = 6
    dropout_in_lse = 7


@cuda.jit(device=True)
def _capped(s, softcap):
    return softcap * math.tanh(s / softcap) if softcap > _ZERO else s


@cuda.jit
def _rows_kernel(
    q, k, v, bias, slopes, seg_q, seg_k, scores, o, lse, scale, softcap, window, causal, threshold, keep_scale, seed,
    offset, fault
):  # fmt: skip
    row = cuda.grid(1)
    if row >= lse.size:
        return
    heads, seq_q, seq_k, dim = q.shape[1], q.shape[2], k.shape[2], q.shape[3]
    i, h, b = row % seq_q, row // seq_q % heads, row // seq_q // heads
    reader = h // (heads // k.shape[1])
    if fault == Fault.window_one_more:
        window += 1
    m = _LOW
    for j in range(seq_k):
        s = _ZERO
        for d in range(dim):
            s += float32(q[b, h, i, d]) * float32(k[b, reader, j, d])
        s *= scale
        if fault != Fault.softcap_last:
            s = _capped(s, softcap)
        apart = i + seq_k - seq_q - j
        s -= slopes[0 if fault == Fault.slope_of_head_0 else h] * float32(abs(apart))
        s += float32(bias[b, h, i, j])
        if fault == Fault.softcap_last:
            s = _capped(s, softcap)
        place = i - j if fault == Fault.window_top_left else apart
        own = seg_k[b, min(i, seq_k - 1)] if fault == Fault.segments_by_query else seg_q[b, i]
        if abs(place) >= window or (causal and place < 0) or own != seg_k[b, j]:
            s = _LOW
        if fault == Fault.dropout_in_lse and int64(word_of(uint64(row * seq_k + j), seed, offset)) < threshold:
            s = _LOW
        scores[row, j] = s
        m = max(m, s)
    shift = _ZERO if m == _LOW else m
    l = _ZERO
    for j in range(seq_k):
        l += math.exp(scores[row, j] - shift)
    for d in range(dim):
        total = _ZERO
        for j in range(seq_k):
            e = uint64(j if fault == Fault.dropout_by_key else row * seq_k + j)
            if int64(word_of(e, seed, offset)) >= threshold:
                total += math.exp(scores[row, j] - shift) * keep_scale * float32(v[b, reader, j, d])
        o[row, d] = total / l if l > _ZERO else _ZERO
    lse[row] = shift + math.log(l) if l > _ZERO else _LOW


def _rows(
    q, k, v, bias, slopes, seg_q, seg_k, *, causal=False, window=None, softcap=None, scale=None, p=0.0, seed=0,
    offset=0, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    spec = f"B Hq Sq D, B Hkv Sk D, B Hkv Sk D, {OPTIONAL}"
    given = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, _, Sk = shapes(spec, q=q, k=k, v=v, **given)
    mods = checked_mods(q, k, *given.values(), causal, window, softcap, scale, p, seed, offset)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        absent = (((B, Hq, Sq, Sk), q.dtype), ((Hq,), torch.float32), ((B, Sq), torch.int32), ((B, Sk), torch.int32))
        operands = [
            torch.zeros(axes, dtype=dtype) if x is None else x
            for x, (axes, dtype) in zip(given.values(), absent, strict=True)
        ]
        scores, rows = torch.empty((B * Hq * Sq, max(Sk, 1))), B * Hq * Sq
        numbers = (np.float32(mods.scale), np.float32(mods.softcap), mods.window, mods.causal)
        rule = (mods.dropout.threshold, np.float32(mods.dropout.scale), np.uint64(seed), np.uint64(offset))
        outputs = (scores, o.view(rows, D), lse.view(rows))
        launch(Fault, fault, _rows_kernel, -(-rows // 32), 32, q, k, v, *operands, *outputs, *numbers, *rule)
    return o, lse


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "window_one_more",
    "window_top_left",
    "slope_of_head_0",
    "softcap_last",
    "segments_by_query",
    "dropout_by_key",
    "dropout_in_lse",
)
