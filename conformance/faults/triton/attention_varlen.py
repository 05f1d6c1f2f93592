"""Wrong kernels of attention_varlen: a program for each tile of 16 queries, sequence and head, online over the keys."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_varlen import KERNELS as SHARED


@triton.jit
def _tiles_kernel(
    q_ptr, k_ptr, v_ptr, cu_q_ptr, cu_k_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, cu_q_row, cu_k_row, scale,
    B, Tq, Tk, Hq, Hkv, D, CAUSAL: tl.constexpr, FAULT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    tiles = tl.cdiv(Tq, TILE)
    tile, pair = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h = pair // Hq, pair % Hq
    reader = h // (Hq // Hkv)
    if FAULT == "heads_modulo":
        reader = h % Hkv
    first_q, first_k, seq_q, seq_k = Tq, 0, 0, 0
    if b < B:
        first_q, first_k = tl.load(cu_q_ptr + b * cu_q_row), tl.load(cu_k_ptr + b * cu_k_row)
        seq_q = tl.load(cu_q_ptr + (b + 1) * cu_q_row) - first_q
        seq_k = tl.load(cu_k_ptr + (b + 1) * cu_k_row) - first_k
        if FAULT == "offsets_of_q_for_k":
            first_k, seq_k = tl.minimum(first_q, Tk), tl.minimum(first_q + seq_q, Tk) - tl.minimum(first_q, Tk)
    elif FAULT != "rows_behind_left":  # they belong to no sequence, and have no keys
        first_q = tl.load(cu_q_ptr + B * cu_q_row)
        seq_q = Tq - first_q
    i, d = tile * TILE + tl.arange(0, TILE)[:, None], tl.arange(0, WIDTH).to(tl.int64)[None, :]
    row = (first_q + i).to(tl.int64)
    if FAULT == "offsets_in_32_bits":
        q_at = (first_q + i) * q_strides[0].to(tl.int32) + h * q_strides[1] + d * q_strides[2]
    else:
        q_at = row * q_strides[0] + h * q_strides[1] + d * q_strides[2]
    q = tl.load(q_ptr + q_at, mask=(i < seq_q) & (d < D), other=0.0).to(tl.float32)
    m = tl.full((TILE, 1), float("-inf"), tl.float32)
    l = tl.zeros((TILE, 1), tl.float32)
    o = tl.zeros((TILE, WIDTH), tl.float32)
    for start in range(0, seq_k, TILE):
        j = start + tl.arange(0, TILE)[:, None]
        at = (first_k + j).to(tl.int64)
        seen = j < seq_k
        if FAULT == "next_sequence_seen":
            seen = first_k + j < Tk
        k_at = at * k_strides[0] + reader * k_strides[1] + d * k_strides[2]
        v_at = at * v_strides[0] + reader * v_strides[1] + d * v_strides[2]
        of_values = seen
        if FAULT == "values_not_masked":
            of_values = first_k + j < Tk
        k = tl.load(k_ptr + k_at, mask=seen & (d < D), other=0.0).to(tl.float32)
        v = tl.load(v_ptr + v_at, mask=of_values & (d < D), other=0.0).to(tl.float32)
        visible = tl.trans(seen)
        if CAUSAL:
            if FAULT == "causal_by_row":
                visible = visible & (first_k + tl.trans(j) <= first_q + i)
            elif FAULT == "causal_top_left":
                visible = visible & (tl.trans(j) <= i)
            else:
                visible = visible & (tl.trans(j) <= i + seq_k - seq_q)
        s = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        above = tl.maximum(m, tl.max(s, axis=1)[:, None])
        base = tl.where(above == float("-inf"), 0.0, above)
        p, kept = tl.exp(s - base), tl.exp(m - base)
        l = l * kept + tl.sum(p, axis=1)[:, None]
        if FAULT == "output_not_rescaled":
            kept = tl.full((TILE, 1), 1.0, tl.float32)
        o = o * kept + tl.dot(p, v, input_precision="ieee")
        m = above
    total = l
    if FAULT != "no_key_gives_nan":
        total = tl.where(l == 0, 1.0, l)
    tl.store(o_ptr + (row * Hq + h) * D + d, o / total, mask=(i < seq_q) & (d < D))
    place = h * Tq + row
    if FAULT == "lse_by_rows":
        place = row * Hq + h
    tl.store(lse_ptr + place, m + tl.log(l), mask=i < seq_q)


KERNELS = SHARED | {
    "values_not_masked": Kernel("special", "values behind a sequence are multiplied by a probability of 0: NaN stays"),
    "causal_top_left": Kernel("causal", "the causal mask is aligned top left"),
    "output_not_rescaled": Kernel("rescale", "o is not rescaled when the maximum grows"),
    "offsets_in_32_bits": Kernel("overflow", "a row of q times its stride is formed in 32 bits", "."),
}


def _tiles(q, k, v, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None, fault: str = "none"):
    spec = "Tq Hq D, Tk Hkv D, Tk Hkv D, N:int32, N:int32"
    Tq, Hq, D, Tk, Hkv, N = shapes(spec, q=q, k=k, v=v, cu_q=cu_q, cu_k=cu_k)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty((Hq, Tq), dtype=torch.float32)
    if o.numel():
        strides = (q.stride(), k.stride(), v.stride(), cu_q.stride(0), cu_k.stride(0))
        options = (1 / math.sqrt(D) if scale is None else scale, N - 1, Tq, Tk, Hq, Hkv, D)
        width = max(16, triton.next_power_of_2(D))
        _tiles_kernel[(triton.cdiv(Tq, 16) * N * Hq,)](
            q, k, v, cu_q, cu_k, o, lse, *strides, *options, CAUSAL=causal, FAULT=fault, TILE=16, WIDTH=width
        )
    return o, lse


plant_kernels(
    globals(),
    _tiles,
    KERNELS,
    "next_sequence_seen",
    "causal_by_row",
    "offsets_of_q_for_k",
    "no_key_gives_nan",
    "rows_behind_left",
    "lse_by_rows",
    "heads_modulo",
    "values_not_masked",
    "causal_top_left",
    "output_not_rescaled",
    "offsets_in_32_bits",
)
