"""Wrong kernels of masked_attention: a program for 16 queries, which holds all their scores."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures.masked_attention import OPTIONAL, checked_mods
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.masked_attention import KERNELS as SHARED


@triton.jit
def _rows_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, slopes_ptr, seg_q_ptr, seg_k_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides,
    bias_strides, slope_stride, seg_q_strides, seg_k_strides, Hq, Hkv, Sq, Sk, D, scale, softcap, window, threshold,
    keep_scale, seed, offset, CAUSAL: tl.constexpr, FAULT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // Hq, pair % Hq
    i = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    j, d = tl.arange(0, KEYS).to(tl.int64), tl.arange(0, WIDTH).to(tl.int64)[None, :]
    rows, keys, inside = (i[:, None] < Sq) & (d < D), (j[:, None] < Sk) & (d < D), (i[:, None] < Sq) & (j[None, :] < Sk)
    reader = h // (Hq // Hkv)
    q_at = b * q_strides[0] + h * q_strides[1] + i[:, None] * q_strides[2] + d * q_strides[3]
    k_at = b * k_strides[0] + reader * k_strides[1] + j[:, None] * k_strides[2] + d * k_strides[3]
    v_at = b * v_strides[0] + reader * v_strides[1] + j[:, None] * v_strides[2] + d * v_strides[3]
    q = tl.load(q_ptr + q_at, mask=rows, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + k_at, mask=keys, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + v_at, mask=keys, other=0.0).to(tl.float32)

    apart = i[:, None] + (Sk - Sq) - j[None, :]
    s = tl.dot(q, k.T, input_precision="ieee") * scale
    if softcap > 0 and FAULT != "softcap_last":
        s = softcap * (1 - 2 / (tl.exp(2 * s / softcap) + 1))
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + (0 if FAULT == "slope_of_head_0" else h) * slope_stride)
        s -= slope * (apart if FAULT == "slopes_signed" else tl.abs(apart)).to(tl.float32)
    if bias_ptr is not None:
        bias_at = (
            b * bias_strides[0] + h * bias_strides[1] + i[:, None] * bias_strides[2] + j[None, :] * bias_strides[3]
        )
        s += tl.load(bias_ptr + bias_at, mask=inside, other=0.0).to(tl.float32)
    if softcap > 0 and FAULT == "softcap_last":
        s = softcap * (1 - 2 / (tl.exp(2 * s / softcap) + 1))
    place = i[:, None] - j[None, :] if FAULT == "window_top_left" else apart
    seen = inside & (tl.abs(place) < window + (1 if FAULT == "window_one_more" else 0))
    if CAUSAL:
        seen &= place >= 0
    if seg_q_ptr is not None:
        of_q = tl.load(seg_q_ptr + b * seg_q_strides[0] + i * seg_q_strides[1], mask=i < Sq, other=0)
        of_k = tl.load(seg_k_ptr + b * seg_k_strides[0] + j * seg_k_strides[1], mask=j < Sk, other=0)
        if FAULT == "segments_by_query":
            own = tl.minimum(i, Sk - 1)
            of_q = tl.load(seg_k_ptr + b * seg_k_strides[0] + own * seg_k_strides[1], mask=i < Sq, other=0)
        seen &= of_q[:, None] == of_k[None, :]
    s = tl.where(seen, s, float("-inf"))

    e = j[None, :] + tl.zeros_like(apart) if FAULT == "dropout_by_key" else (pair * Sq + i[:, None]) * Sk + j[None, :]
    stream = tl.zeros_like(e) + offset
    r0, r1, r2, r3 = tl.philox(
        seed, (e >> 2).to(tl.uint32), (e >> 34).to(tl.uint32), (stream & 0xFFFFFFFF).to(tl.uint32),
        (stream >> 32).to(tl.uint32)
    )  # fmt: skip
    word = tl.where(e % 4 == 0, r0, tl.where(e % 4 == 1, r1, tl.where(e % 4 == 2, r2, r3)))
    kept = word.to(tl.int64) >= threshold
    if FAULT == "dropout_in_lse":
        s = tl.where(kept, s, float("-inf"))
    m = tl.max(s, 1)
    shift = tl.where(m == float("-inf"), 0.0, m)
    p = tl.exp(s - shift[:, None])
    l = tl.sum(p, 1)
    p = tl.where(kept, p * keep_scale, 0.0) / tl.where(l == 0, 1.0, l)[:, None]
    o = tl.dot(p, v, input_precision="ieee")
    if FAULT == "blind_rows_average":
        o = tl.where((l == 0)[:, None], (tl.sum(v, 0) / Sk)[None, :], o)
    tl.store(o_ptr + (pair * Sq + i[:, None]) * D + d, o, mask=rows)
    tl.store(lse_ptr + pair * Sq + i, shift + tl.log(l), mask=i < Sq)


KERNELS = SHARED | {
    "slopes_signed": Kernel("formula", "slopes multiply the distance with its sign: later keys gain"),
    "blind_rows_average": Kernel("special", "a query that sees nothing gives the mean of v"),
}


def _rows(
    q, k, v, bias, slopes, seg_q, seg_k, *, causal=False, window=None, softcap=None, scale=None, p=0.0, seed=0,
    offset=0, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    spec = f"B Hq Sq D, B Hkv Sk D, B Hkv Sk D, {OPTIONAL}"
    given = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, **given)
    mods = checked_mods(q, k, *given.values(), causal, window, softcap, scale, p, seed, offset)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.full(q.shape[:3], -math.inf)
    if o.numel():
        strides = [
            (0,) * axes if x is None else x.stride() for x, axes in zip(given.values(), (4, 1, 2, 2), strict=True)
        ]
        strides[1] = strides[1][0]
        numbers = (Hq, Hkv, Sq, Sk, D, mods.scale, mods.softcap, mods.window, *mods.dropout)
        width, keys = max(16, triton.next_power_of_2(D)), max(16, triton.next_power_of_2(Sk))
        _rows_kernel[(triton.cdiv(Sq, 16), B * Hq)](
            q, k, v, bias, slopes, seg_q, seg_k, o, lse, q.stride(), k.stride(), v.stride(), *strides, *numbers,
            CAUSAL=causal, FAULT=fault, ROWS=16, KEYS=keys, WIDTH=width
        )  # fmt: skip
    return o, lse


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "window_one_more",
    "window_top_left",
    "slope_of_head_0",
    "softcap_last",
    "segments_by_query",
    "dropout_by_key",
    "dropout_in_lse",
    "slopes_signed",
    "blind_rows_average",
)
