"""Wrong kernels of attention_varlen_backward: a program for 16 rows of dq, or of dk and dv, of a sequence and head."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.attention_varlen_backward import KERNELS as SHARED


@triton.jit
def _load(x, rows, strides, row_end, head, cols, width):
    at = rows.to(tl.int64)[:, None] * strides[0] + head * strides[1] + cols.to(tl.int64)[None, :] * strides[2]
    return tl.load(x + at, mask=(rows[:, None] < row_end) & (cols[None, :] < width), other=0.0).to(tl.float32)


@triton.jit
def _weights(q, k, v, o, lse, do, i, j, d, end_q, end_k, shift, strides, h, reader, scale, Tq, Hq, D, CAUSAL, FAULT):
    """p and ds of the queries i and the keys j, rows in memory; the tiles of q, k and do."""
    q_tile, k_tile = _load(q, i, strides[0], end_q, h, d, D), _load(k, j, strides[1], end_k, reader, d, D)
    v_tile, do_tile = _load(v, j, strides[2], end_k, reader, d, D), _load(do, i, strides[5], end_q, h, d, D)
    at = h * strides[4][0] + i.to(tl.int64) * strides[4][1]
    if FAULT == "lse_by_rows":
        at = i * Hq + h
    lse_i = tl.load(lse + at, mask=i < end_q, other=float("inf"))
    if FAULT != "empty_row_nan":
        lse_i = tl.where(lse_i == float("-inf"), float("inf"), lse_i)
    delta = tl.sum(do_tile * _load(o, i, strides[3], end_q, h, d, D), 1)
    if FAULT == "delta_left_out":
        delta = tl.zeros_like(delta)
    visible = (i[:, None] < end_q) & (j[None, :] < end_k)
    if CAUSAL:
        if FAULT == "causal_by_row":
            visible = visible & (j[None, :] <= i[:, None])
        else:
            visible = visible & (j[None, :] <= i[:, None] + shift)
    s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
    p = tl.exp(tl.where(visible, s, float("-inf")) - lse_i[:, None])
    dp = tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee")
    return p, p * (dp - delta[:, None]), q_tile, k_tile, do_tile


@triton.jit
def _rows_kernel(
    q, k, v, o, lse, do, cu_q, cu_k, dq, dk, dv, strides, cu_strides, scale, B, Tq, Tk, Hq, Hkv, D,
    KEYS: tl.constexpr, CAUSAL: tl.constexpr, FAULT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    b, tile = tl.program_id(0), tl.program_id(2)
    first_q, first_k = tl.load(cu_q + b * cu_strides[0]), tl.load(cu_k + b * cu_strides[1])
    end_q, end_k = Tq, Tk
    if b < B:
        end_q, end_k = tl.load(cu_q + (b + 1) * cu_strides[0]), tl.load(cu_k + (b + 1) * cu_strides[1])
    shift = end_k - end_q  # between rows in memory
    d, group = tl.arange(0, WIDTH), Hq // Hkv
    last_k, last_q = end_k, end_q  # of the other side
    if b == B:
        last_k, last_q = first_k, first_q
    if FAULT == "next_sequence_seen":
        last_k = tl.minimum(first_k + tl.cdiv(last_k - first_k, TILE) * TILE, Tk)
    written = True
    if FAULT == "rows_behind_left":
        written = b < B
    if KEYS:
        reader = tl.program_id(1)
        j = first_k + tile * TILE + tl.arange(0, TILE)
        dk_acc, dv_acc = tl.zeros((TILE, WIDTH), tl.float32), tl.zeros((TILE, WIDTH), tl.float32)
        for h in range(reader * group, (reader + 1) * group):
            if FAULT == "group_not_summed":
                dk_acc, dv_acc = tl.zeros((TILE, WIDTH), tl.float32), tl.zeros((TILE, WIDTH), tl.float32)
            for start in range(first_q, last_q, TILE):
                i = start + tl.arange(0, TILE)
                p, ds, q_tile, k_tile, do_tile = _weights(
                    q, k, v, o, lse, do, i, j, d, last_q, end_k, shift, strides, h, reader, scale, Tq, Hq, D, CAUSAL,
                    FAULT
                )  # fmt: skip
                dv_acc += tl.dot(tl.trans(p), do_tile, input_precision="ieee")
                dk_acc += tl.dot(tl.trans(ds), q_tile, input_precision="ieee")
        if FAULT != "dk_not_scaled":
            dk_acc *= scale
        if FAULT == "unseen_keys_left":
            written = last_q > first_q
        inside = (j[:, None] < end_k) & (d[None, :] < D) & written
        at = (j.to(tl.int64)[:, None] * Hkv + reader) * D + d[None, :]
        tl.store(dk + at, dk_acc, mask=inside)
        tl.store(dv + at, dv_acc, mask=inside)
    else:
        h = tl.program_id(1)
        i = first_q + tile * TILE + tl.arange(0, TILE)
        acc = tl.zeros((TILE, WIDTH), tl.float32)
        for start in range(first_k, last_k, TILE):
            j = start + tl.arange(0, TILE)
            p, ds, q_tile, k_tile, do_tile = _weights(
                q, k, v, o, lse, do, i, j, d, end_q, last_k, shift, strides, h, h // group, scale, Tq, Hq, D, CAUSAL,
                FAULT
            )  # fmt: skip
            acc += tl.dot(ds, k_tile, input_precision="ieee")
        inside = (i[:, None] < end_q) & (d[None, :] < D) & written
        tl.store(dq + (i.to(tl.int64)[:, None] * Hq + h) * D + d[None, :], acc * scale, mask=inside)


KERNELS = SHARED


def _rows(
    q, k, v, o, lse, do, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    spec = "Tq Hq D, Tk Hkv D, Tk Hkv D, Tq Hq D, Hq Tq:float32, Tq Hq D, N:int32, N:int32"
    Tq, Hq, D, Tk, Hkv, N = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do, cu_q=cu_q, cu_k=cu_k)
    dq, dk, dv = (torch.empty(x.shape, dtype=q.dtype) for x in (q, k, v))
    strides = tuple(x.stride() for x in (q, k, v, o, lse, do))
    options = (1 / math.sqrt(D) if scale is None else scale, N - 1, Tq, Tk, Hq, Hkv, D)
    for of_keys, rows, heads in ((False, Tq, Hq), (True, Tk, Hkv)):
        if rows:
            _rows_kernel[(N, heads, triton.cdiv(rows, 16))](
                q, k, v, o, lse, do, cu_q, cu_k, dq, dk, dv, strides, (cu_q.stride(0), cu_k.stride(0)), *options,
                KEYS=of_keys, CAUSAL=causal, FAULT=fault, TILE=16, WIDTH=max(16, triton.next_power_of_2(D))
            )  # fmt: skip
    return dq, dk, dv


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "next_sequence_seen",
    "causal_by_row",
    "delta_left_out",
    "dk_not_scaled",
    "group_not_summed",
    "empty_row_nan",
    "unseen_keys_left",
    "rows_behind_left",
    "lse_by_rows",
)
