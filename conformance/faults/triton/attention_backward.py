"""Wrong kernels of attention_backward: a program owns a tile of keys, stores dk and dv and adds to dq atomically."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels


@triton.jit
def _load_tile(x, rows, row_stride, row_end, cols, col_stride, col_end):
    offsets = rows.to(tl.int64)[:, None] * row_stride + cols.to(tl.int64)[None, :] * col_stride
    return tl.load(x + offsets, mask=(rows[:, None] < row_end) & (cols[None, :] < col_end), other=0.0)


@triton.jit
def _keys_kernel(
    q,
    q_batch,
    q_head,
    q_row,
    q_col,
    k,
    k_batch,
    k_head,
    k_row,
    k_col,
    v,
    v_batch,
    v_head,
    v_row,
    v_col,
    o,
    o_batch,
    o_head,
    o_row,
    o_col,
    lse,
    lse_batch,
    lse_head,
    lse_row,
    do,
    do_batch,
    do_head,
    do_row,
    do_col,
    dq,
    dk,
    dv,
    Hq,
    Hkv,
    Sq,
    Sk,
    D,
    scale,
    CAUSAL: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles = tl.cdiv(Sk, BLOCK_N)
    pair = tl.program_id(0).to(tl.int64) // tiles
    batch, head_kv = pair // Hkv, pair % Hkv
    j = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    k_tile = _load_tile(k + batch * k_batch + head_kv * k_head, j, k_row, Sk, d, k_col, D)
    v_tile = _load_tile(v + batch * v_batch + head_kv * v_head, j, v_row, Sk, d, v_col, D)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for head in range(head_kv * (Hq // Hkv), (head_kv + 1) * (Hq // Hkv)):
        if FAULT == "group_not_summed":
            dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
            dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        for start in range(0, Sq, BLOCK_M):
            i = start + tl.arange(0, BLOCK_M)
            q_tile = _load_tile(q + batch * q_batch + head * q_head, i, q_row, Sq, d, q_col, D)
            o_tile = _load_tile(o + batch * o_batch + head * o_head, i, o_row, Sq, d, o_col, D)
            if FAULT == "strides_of_o_for_do":
                do_tile = _load_tile(do + batch * o_batch + head * o_head, i, o_row, Sq, d, o_col, D)
            else:
                do_tile = _load_tile(do + batch * do_batch + head * do_head, i, do_row, Sq, d, do_col, D)
            lse_ptr = lse + batch * lse_batch + head * lse_head + i.to(tl.int64) * lse_row
            lse_i = tl.load(lse_ptr, mask=i < Sq, other=float("inf"))
            if FAULT != "empty_row_nan":
                lse_i = tl.where(lse_i == float("-inf"), float("inf"), lse_i)
            delta = tl.sum(do_tile.to(tl.float32) * o_tile.to(tl.float32), 1)
            if FAULT == "delta_left_out":
                delta = tl.zeros((BLOCK_M,), tl.float32)
            s = tl.dot(k_tile, q_tile.T, input_precision="ieee") * scale  # (BLOCK_N, BLOCK_M)
            visible = (j[:, None] < Sk) & (i[None, :] < Sq)
            if CAUSAL:
                if FAULT == "causal_top_left":
                    visible &= j[:, None] <= i[None, :]
                else:
                    visible &= j[:, None] <= i[None, :] + Sk - Sq
            p = tl.exp(tl.where(visible, s, float("-inf")) - lse_i[None, :])
            dv_acc = tl.dot(p.to(do_tile.dtype), do_tile, dv_acc, input_precision="ieee")
            ds = p * (tl.dot(v_tile, do_tile.T, input_precision="ieee") - delta[None, :])
            dk_acc = tl.dot(ds.to(q_tile.dtype), q_tile, dk_acc, input_precision="ieee")

            dq_tile = tl.dot(tl.trans(ds.to(k_tile.dtype)), k_tile, input_precision="ieee") * scale
            dq_ptr = dq + ((batch * Hq + head) * Sq + i[:, None]) * D + d[None, :]
            inside = (i[:, None] < Sq) & (d[None, :] < D)
            if FAULT == "dq_load_and_store":
                tl.store(dq_ptr, tl.load(dq_ptr, mask=inside, other=0.0) + dq_tile, mask=inside)
            elif FAULT == "dq_overwritten":
                tl.store(dq_ptr, dq_tile, mask=inside)
            else:
                tl.atomic_add(dq_ptr, dq_tile.to(dq.dtype.element_ty), mask=inside, sem="relaxed")

    if FAULT != "dk_not_scaled":
        dk_acc *= scale
    inside = (j[:, None] < Sk) & (d[None, :] < D)
    offsets = (pair * Sk + j[:, None]) * D + d[None, :]
    tl.store(dk + offsets, dk_acc.to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + offsets, dv_acc.to(dv.dtype.element_ty), mask=inside)


KERNELS = {
    "group_not_summed": Kernel("accumulator", "dk and dv are those of the last query head of the group"),
    "dq_on_empty": Kernel("accumulator", "dq is added to memory that nothing has set to zero"),
    "dq_load_and_store": Kernel(
        "race", "key tiles add to dq by load and store without an atomic: updates get lost", "RaceCondition"
    ),
    "dq_overwritten": Kernel("race", "key tiles store dq over one another: one of them remains"),
    "delta_left_out": Kernel("formula", "delta = Σ do·o is not subtracted"),
    "dk_not_scaled": Kernel("scale", "dk lacks the factor `scale`"),
    "causal_top_left": Kernel("causal", "the causal mask is aligned top left"),
    "empty_row_nan": Kernel("special", "a query that saw no key gives exp(-inf - (-inf))"),
    "strides_of_o_for_do": Kernel("strides", "do is read by the strides of o"),
}


def _by_keys(q, k, v, o, lse, do, *, causal: bool = False, scale: float | None = None, fault: str = "none"):
    spec = "B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B Hq Sq D, B Hq Sq:float32, B Hq Sq D"
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do)
    allocate = torch.empty if fault == "dq_on_empty" else torch.zeros
    dq = allocate(q.shape, dtype=torch.float32, device=q.device)
    dk, dv = (torch.empty(x.shape, dtype=q.dtype, device=q.device) for x in (k, v))
    if dk.numel():
        operands = (q, k, v, o, lse, do)
        _keys_kernel[(B * Hkv * triton.cdiv(Sk, 32),)](
            *(argument for x in operands for argument in (x, *x.stride())),
            dq,
            dk,
            dv,
            Hq,
            Hkv,
            Sq,
            Sk,
            D,
            1 / math.sqrt(D) if scale is None else scale,
            CAUSAL=causal,
            FAULT=fault,
            BLOCK_M=32,
            BLOCK_N=32,
            BLOCK_D=max(triton.next_power_of_2(D), 16),
        )
    return dq.to(q.dtype), dk, dv


plant_kernels(
    globals(),
    _by_keys,
    KERNELS,
    "group_not_summed",
    "dq_on_empty",
    "dq_load_and_store",
    "dq_overwritten",
    "delta_left_out",
    "dk_not_scaled",
    "causal_top_left",
    "empty_row_nan",
    "strides_of_o_for_do",
    deterministic=False,
)
