"""Wrong kernels of masked_attention_backward: a program for the queries of a head, which holds all their scores, and
gradients of each query head's keys, which the launcher adds."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures.masked_attention import OPTIONAL, checked_mods
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.masked_attention_backward import KERNELS as SHARED


@triton.jit
def _rows_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, do_ptr, bias_ptr, slopes_ptr, seg_q_ptr, seg_k_ptr, dq_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, o_strides, lse_strides, do_strides, bias_strides, slope_stride, seg_q_strides,
    seg_k_strides, Hq, Hkv, Sq, Sk, D, scale, softcap, window, threshold, keep_scale, seed, offset,
    CAUSAL: tl.constexpr, FAULT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    b, h = pair // Hq, pair % Hq
    i, j, d = (
        tl.arange(0, ROWS).to(tl.int64),
        tl.arange(0, KEYS).to(tl.int64),
        tl.arange(0, WIDTH).to(tl.int64)[None, :],
    )
    rows, keys, inside = (i[:, None] < Sq) & (d < D), (j[:, None] < Sk) & (d < D), (i[:, None] < Sq) & (j[None, :] < Sk)
    reader = h // (Hq // Hkv)
    q_at = b * q_strides[0] + h * q_strides[1] + i[:, None] * q_strides[2] + d * q_strides[3]
    o_at = b * o_strides[0] + h * o_strides[1] + i[:, None] * o_strides[2] + d * o_strides[3]
    do_at = b * do_strides[0] + h * do_strides[1] + i[:, None] * do_strides[2] + d * do_strides[3]
    k_at = b * k_strides[0] + reader * k_strides[1] + j[:, None] * k_strides[2] + d * k_strides[3]
    v_at = b * v_strides[0] + reader * v_strides[1] + j[:, None] * v_strides[2] + d * v_strides[3]
    q = tl.load(q_ptr + q_at, mask=rows, other=0.0).to(tl.float32)
    o = tl.load(o_ptr + o_at, mask=rows, other=0.0).to(tl.float32)
    do = tl.load(do_ptr + do_at, mask=rows, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + k_at, mask=keys, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + v_at, mask=keys, other=0.0).to(tl.float32)
    lse_at = b * lse_strides[0] + h * lse_strides[1] + i * lse_strides[2]
    lse = tl.load(lse_ptr + lse_at, mask=i < Sq, other=float("-inf"))

    apart = i[:, None] + (Sk - Sq) - j[None, :]
    s, bend = tl.dot(q, k.T, input_precision="ieee") * scale, tl.full((ROWS, KEYS), 1.0, tl.float32)
    if softcap > 0:
        t = 1 - 2 / (tl.exp(2 * s / softcap) + 1)
        s = softcap * t
        if FAULT != "softcap_without_slope":
            bend = 1 - t * t
    if slopes_ptr is not None:
        slope = tl.load(slopes_ptr + h * slope_stride)
        s -= slope * tl.abs(apart).to(tl.float32)
    if bias_ptr is not None and FAULT != "bias_ignored":
        bias_at = (
            b * bias_strides[0] + h * bias_strides[1] + i[:, None] * bias_strides[2] + j[None, :] * bias_strides[3]
        )
        s += tl.load(bias_ptr + bias_at, mask=inside, other=0.0).to(tl.float32)
    seen = inside
    if FAULT != "window_ignored":
        seen &= tl.abs(apart) < window + (1 if FAULT == "window_one_more" else 0)
    if CAUSAL:
        seen &= apart >= 0
    if seg_q_ptr is not None:
        of_q = tl.load(seg_q_ptr + b * seg_q_strides[0] + i * seg_q_strides[1], mask=i < Sq, other=0)
        of_k = tl.load(seg_k_ptr + b * seg_k_strides[0] + j * seg_k_strides[1], mask=j < Sk, other=0)
        if FAULT == "segments_by_query":
            own = tl.minimum(i, Sk - 1)
            of_q = tl.load(seg_k_ptr + b * seg_k_strides[0] + own * seg_k_strides[1], mask=i < Sq, other=0)
        seen &= of_q[:, None] == of_k[None, :]
    p = tl.where(seen & (lse > float("-inf"))[:, None], tl.exp(s - lse[:, None]), 0.0)

    e = (pair * Sq + i[:, None]) * Sk + j[None, :]
    stream = tl.zeros_like(e) + offset
    r0, r1, r2, r3 = tl.philox(
        seed, (e >> 2).to(tl.uint32), (e >> 34).to(tl.uint32), (stream & 0xFFFFFFFF).to(tl.uint32),
        (stream >> 32).to(tl.uint32)
    )  # fmt: skip
    word = tl.where(e % 4 == 0, r0, tl.where(e % 4 == 1, r1, tl.where(e % 4 == 2, r2, r3)))
    weight = tl.where(word.to(tl.int64) >= threshold, keep_scale, 0.0)
    dp = tl.dot(do, v.T, input_precision="ieee")
    if FAULT != "dropout_of_p_alone":
        dp *= weight
    delta = tl.sum(do * o, 1)
    if FAULT == "delta_missing":
        delta = tl.zeros_like(delta)
    ds = p * (dp - delta[:, None]) * bend
    tl.store(dq_ptr + (pair * Sq + i[:, None]) * D + d, tl.dot(ds, k, input_precision="ieee") * scale, mask=rows)
    of_keys = (pair * Sk + j[:, None]) * D + d
    tl.store(dk_ptr + of_keys, tl.dot(ds.T, q, input_precision="ieee") * scale, mask=keys)
    tl.store(dv_ptr + of_keys, tl.dot((p * weight).T, do, input_precision="ieee"), mask=keys)


KERNELS = SHARED | {"bias_ignored": Kernel("weights", "the forward has a bias, the backward none")}


def _rows(
    q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, *, causal=False, window=None, softcap=None, scale=None, p=0.0,
    seed=0, offset=0, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    spec = f"B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B Hq Sq D, B Hq Sq:float32, B Hq Sq D, {OPTIONAL}"
    given = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do, **given)
    mods = checked_mods(q, k, *given.values(), causal, window, softcap, scale, p, seed, offset)
    dq = torch.zeros(q.shape, dtype=q.dtype)
    dk, dv = (torch.zeros((B, Hq, Sk, D)) for _ in range(2))
    if Sq and Sk and B * Hq:
        strides = [
            (0,) * axes if x is None else x.stride() for x, axes in zip(given.values(), (4, 1, 2, 2), strict=True)
        ]
        strides[1] = strides[1][0]
        numbers = (Hq, Hkv, Sq, Sk, D, mods.scale, mods.softcap, mods.window, *mods.dropout)
        width, rows, keys = (max(16, triton.next_power_of_2(n)) for n in (D, Sq, Sk))
        _rows_kernel[(B * Hq,)](
            q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, dq, dk, dv, q.stride(), k.stride(), v.stride(), o.stride(),
            lse.stride(), do.stride(), *strides, *numbers, CAUSAL=causal, FAULT=fault, ROWS=rows, KEYS=keys, WIDTH=width
        )  # fmt: skip
    return dq, *(
        t.view(B, Hkv, -1, Sk, D).sum(2).to(k.dtype) if t.numel() else t.new_zeros(k.shape, dtype=k.dtype)
        for t in (dk, dv)
    )


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "window_ignored",
    "window_one_more",
    "softcap_without_slope",
    "segments_by_query",
    "dropout_of_p_alone",
    "delta_missing",
    "bias_ignored",
)
