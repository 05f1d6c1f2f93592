"""Wrong kernels of masked_attention_backward: a thread for each pair of a query and a key forms what its gradients are
made of, then one for each query or key sums over the others."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.philox import word_of
from touchstone.backends.numba.runtime import launching
from touchstone.backends.signatures.masked_attention import OPTIONAL, checked_mods
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.masked_attention_backward import KERNELS
from touchstone.conformance.faults.numba._launching import launch

_LOW, _ZERO, _ONE = np.float32(-math.inf), np.float32(0), np.float32(1)


class Fault(IntEnum):
    none = 0
    window_ignored = 1
    window_one_more = 2
    softcap_without_slope = 3
    slope_of_head_0 = 4
    segments_by_query = 5
    dropout_of_p_alone = 6
    delta_missing = 7


@cuda.jit
def _pairs_kernel(
    q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, weights, ds, scale, softcap, window, causal, threshold, keep_scale,
    seed, offset, fault
):  # fmt: skip
    index = cuda.grid(1)
    if index >= ds.size:
        return
    heads, seq_q, seq_k, dim = ds.shape[1], ds.shape[2], ds.shape[3], q.shape[3]
    j, i, h, b = (
        index % seq_k,
        index // seq_k % seq_q,
        index // seq_k // seq_q % heads,
        index // seq_k // seq_q // heads,
    )
    reader = h // (heads // k.shape[1])
    s, dp, delta, bend = _ZERO, _ZERO, _ZERO, _ONE
    for d in range(dim):
        s += float32(q[b, h, i, d]) * float32(k[b, reader, j, d])
        dp += float32(do[b, h, i, d]) * float32(v[b, reader, j, d])
        delta += float32(do[b, h, i, d]) * float32(o[b, h, i, d])
    s *= scale
    if softcap > _ZERO:
        bent = math.tanh(s / softcap)
        s = softcap * bent
        if fault != Fault.softcap_without_slope:
            bend = _ONE - bent * bent
    apart = i + seq_k - seq_q - j
    s -= slopes[0 if fault == Fault.slope_of_head_0 else h] * float32(abs(apart))
    s += float32(bias[b, h, i, j])
    reach = window + 1 if fault == Fault.window_one_more else window
    hidden = (abs(apart) >= reach and fault != Fault.window_ignored) or (causal and apart < 0)
    own = seg_k[b, min(i, seq_k - 1)] if fault == Fault.segments_by_query else seg_q[b, i]
    if hidden or own != seg_k[b, j] or lse[b, h, i] == _LOW:
        s = _LOW
    p = _ZERO if s == _LOW else math.exp(s - lse[b, h, i])
    kept = keep_scale if int64(word_of(uint64(index), seed, offset)) >= threshold else _ZERO
    if fault != Fault.dropout_of_p_alone:
        dp *= kept
    if fault == Fault.delta_missing:
        delta = _ZERO
    weights[b, h, i, j] = p * kept
    ds[b, h, i, j] = p * bend * (dp - delta) * scale


@cuda.jit
def _queries_kernel(ds, k, dq):
    index = cuda.grid(1)
    if index >= dq.size:
        return
    heads, seq_q, dim = dq.shape[1], dq.shape[2], dq.shape[3]
    d, i, h, b = index % dim, index // dim % seq_q, index // dim // seq_q % heads, index // dim // seq_q // heads
    total = _ZERO
    for j in range(k.shape[2]):
        total += ds[b, h, i, j] * float32(k[b, h // (heads // k.shape[1]), j, d])
    dq[b, h, i, d] = total


@cuda.jit
def _keys_kernel(weights, rows, out):
    index = cuda.grid(1)
    if index >= out.size:
        return
    heads, seq_k, dim = out.shape[1], out.shape[2], out.shape[3]
    d, j, h, b = index % dim, index // dim % seq_k, index // dim // seq_k % heads, index // dim // seq_k // heads
    group, total = weights.shape[1] // heads, _ZERO
    for head in range(h * group, (h + 1) * group):
        for i in range(weights.shape[2]):
            total += weights[b, head, i, j] * float32(rows[b, head, i, d])
    out[b, h, j, d] = total


def _rows(
    q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, *, causal=False, window=None, softcap=None, scale=None, p=0.0,
    seed=0, offset=0, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    spec = f"B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B Hq Sq D, B Hq Sq:float32, B Hq Sq D, {OPTIONAL}"
    given = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, _, Sk = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do, **given)
    mods = checked_mods(q, k, *given.values(), causal, window, softcap, scale, p, seed, offset)
    dq, dk, dv = (torch.zeros(x.shape, dtype=q.dtype) for x in (q, k, k))
    weights, ds = (torch.empty((B, Hq, Sq, Sk)) for _ in range(2))
    if ds.numel() and D:
        absent = (((B, Hq, Sq, Sk), q.dtype), ((Hq,), torch.float32), ((B, Sq), torch.int32), ((B, Sk), torch.int32))
        operands = [
            torch.zeros(axes, dtype=dtype) if x is None else x
            for x, (axes, dtype) in zip(given.values(), absent, strict=True)
        ]
        numbers = (np.float32(mods.scale), np.float32(mods.softcap), mods.window, mods.causal)
        rule = (mods.dropout.threshold, np.float32(mods.dropout.scale), np.uint64(seed), np.uint64(offset))
        pairs = (q, k, v, o, lse, do, *operands, weights, ds, *numbers, *rule)
        launch(Fault, fault, _pairs_kernel, -(-ds.numel() // 32), 32, *pairs)
        launching.launch(_queries_kernel, -(-dq.numel() // 32), 32, ds, k, dq)
        launching.launch(_keys_kernel, -(-dk.numel() // 32), 32, ds, q, dk)
        launching.launch(_keys_kernel, -(-dv.numel() // 32), 32, weights, do, dv)
    return dq, dk, dv


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "window_ignored",
    "window_one_more",
    "softcap_without_slope",
    "slope_of_head_0",
    "segments_by_query",
    "dropout_of_p_alone",
    "delta_missing",
)
