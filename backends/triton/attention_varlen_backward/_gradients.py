"""The gradient kernels: a program owns a tile of one sequence's rows, of dq or of dk and dv, and walks over the rows of
the same sequence on the other side. Rows that belong to no sequence have nobody on the other side: zeros."""

import triton
import triton.language as tl

from touchstone.backends.triton.attention._launch import LOG2E, load_tile
from touchstone.backends.triton.attention_varlen._tile import PLAIN, sequence_at


@triton.jit
def _dq_tile(
    q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, dq_ptr, q_strides, k_strides, v_strides, do_strides, first_q,
    seq_q, seq_k, top, h, scale, Tq, Hq, D, CAUSAL: tl.constexpr, OWN: tl.constexpr, STEP: tl.constexpr,
    BLOCK_D: tl.constexpr
):  # fmt: skip
    """dq of OWN queries from `top` on; the pointers are those of the sequence and its heads."""
    i, d = top + tl.arange(0, OWN), tl.arange(0, BLOCK_D)
    row = first_q + i
    last = seq_k
    if CAUSAL:
        last = tl.minimum(seq_k, tl.maximum(top + OWN + seq_k - seq_q, 0))
    q_tile = load_tile(q_ptr, i, q_strides[0], seq_q, d, q_strides[2], D)
    do_tile = load_tile(do_ptr, i, do_strides[0], seq_q, d, do_strides[2], D)
    lse_i = tl.load(lse2_ptr + h * Tq + row, mask=i < seq_q, other=float("inf"))
    delta_i = tl.load(delta_ptr + h * Tq + row, mask=i < seq_q, other=0.0)
    acc = tl.zeros((OWN, BLOCK_D), tl.float32)
    for start in range(0, last, STEP):
        j = start + tl.arange(0, STEP)
        k_tile = load_tile(k_ptr, j, k_strides[0], seq_k, d, k_strides[2], D)
        v_tile = load_tile(v_ptr, j, v_strides[0], seq_k, d, v_strides[2], D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * (scale * LOG2E)
        visible = j[None, :] < seq_k
        if CAUSAL:
            visible &= j[None, :] <= i[:, None] + seq_k - seq_q
        p = tl.exp2(tl.where(visible, s, float("-inf")) - lse_i[:, None])
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta_i[:, None])
        acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")
    inside = (i[:, None] < seq_q) & (d[None, :] < D)
    tl.store(dq_ptr + (row[:, None] * Hq + h) * D + d[None, :], (acc * scale).to(dq_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["scale", *PLAIN])
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, cu_q_ptr, cu_k_ptr, dq_ptr, q_strides, k_strides, v_strides,
    do_strides, cu_strides, scale, B, Tq, Tk, Hq, Hkv, D, tiles, CAUSAL: tl.constexpr, OWN: tl.constexpr,
    STEP: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64) // tiles  # (sequence, query head)
    b, h = pair // Hq, pair % Hq
    first_q, seq_q, first_k, seq_k = sequence_at(cu_q_ptr, cu_k_ptr, cu_strides, b, B, Tq)
    q_ptr += first_q * q_strides[0] + h * q_strides[1]
    do_ptr += first_q * do_strides[0] + h * do_strides[1]
    k_ptr += first_k * k_strides[0] + h // (Hq // Hkv) * k_strides[1]
    v_ptr += first_k * v_strides[0] + h // (Hq // Hkv) * v_strides[1]
    # Only the rows of no sequence may be more than there are tiles for: one round is all that a sequence has.
    for top in range(tl.program_id(0) % tiles * OWN, seq_q, tiles * OWN):
        _dq_tile(
            q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, dq_ptr, q_strides, k_strides, v_strides, do_strides,
            first_q, seq_q, seq_k, top, h, scale, Tq, Hq, D, CAUSAL, OWN, STEP, BLOCK_D
        )  # fmt: skip


@triton.jit
def _dkdv_tile(
    q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, dk_ptr, dv_ptr, q_strides, k_strides, v_strides, do_strides,
    first_q, seq_q, first_k, seq_k, left, reader, scale, Tq, Hq, Hkv, D, CAUSAL: tl.constexpr, OWN: tl.constexpr,
    STEP: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """dk and dv of OWN keys from `left` on, over the queries of all heads that read them."""
    j, d = left + tl.arange(0, OWN), tl.arange(0, BLOCK_D)
    first = 0
    if CAUSAL:  # queries before `first` see none of the keys
        first = tl.maximum(left - (seq_k - seq_q), 0) // STEP * STEP
    k_tile = load_tile(k_ptr, j, k_strides[0], seq_k, d, k_strides[2], D)
    v_tile = load_tile(v_ptr, j, v_strides[0], seq_k, d, v_strides[2], D)
    dk_acc = tl.zeros((OWN, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((OWN, BLOCK_D), tl.float32)
    for h in range(reader * (Hq // Hkv), (reader + 1) * (Hq // Hkv)):
        q_rows, do_rows = q_ptr + h * q_strides[1], do_ptr + h * do_strides[1]
        lse_rows, delta_rows = lse2_ptr + h * Tq + first_q, delta_ptr + h * Tq + first_q
        for start in range(first, seq_q, STEP):
            i = start + tl.arange(0, STEP)
            q_tile = load_tile(q_rows, i, q_strides[0], seq_q, d, q_strides[2], D)
            do_tile = load_tile(do_rows, i, do_strides[0], seq_q, d, do_strides[2], D)
            lse_i = tl.load(lse_rows + i, mask=i < seq_q, other=float("inf"))
            delta_i = tl.load(delta_rows + i, mask=i < seq_q, other=0.0)
            s = tl.dot(k_tile, q_tile.T, input_precision="ieee") * (scale * LOG2E)  # (OWN, STEP): already transposed
            visible = i[None, :] < seq_q
            if CAUSAL:
                visible &= j[:, None] <= i[None, :] + seq_k - seq_q
            p = tl.exp2(tl.where(visible, s, float("-inf")) - lse_i[None, :])
            dv_acc = tl.dot(p.to(do_tile.dtype), do_tile, dv_acc, input_precision="ieee")
            dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
            ds = p * (dp - delta_i[None, :])
            dk_acc = tl.dot(ds.to(q_tile.dtype), q_tile, dk_acc, input_precision="ieee")
    inside = (j[:, None] < seq_k) & (d[None, :] < D)
    offsets = ((first_k + j[:, None]) * Hkv + reader) * D + d[None, :]
    tl.store(dk_ptr + offsets, (dk_acc * scale).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + offsets, dv_acc.to(dv_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["scale", *PLAIN])
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, cu_q_ptr, cu_k_ptr, dk_ptr, dv_ptr, q_strides, k_strides,
    v_strides, do_strides, cu_strides, scale, B, Tq, Tk, Hq, Hkv, D, tiles, CAUSAL: tl.constexpr, OWN: tl.constexpr,
    STEP: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64) // tiles  # (sequence, key head)
    b, reader = pair // Hkv, pair % Hkv
    first_k, seq_k, first_q, seq_q = sequence_at(cu_k_ptr, cu_q_ptr, (cu_strides[1], cu_strides[0]), b, B, Tk)
    q_ptr += first_q * q_strides[0]
    do_ptr += first_q * do_strides[0]
    k_ptr += first_k * k_strides[0] + reader * k_strides[1]
    v_ptr += first_k * v_strides[0] + reader * v_strides[1]
    for left in range(tl.program_id(0) % tiles * OWN, seq_k, tiles * OWN):
        _dkdv_tile(
            q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, dk_ptr, dv_ptr, q_strides, k_strides, v_strides,
            do_strides, first_q, seq_q, first_k, seq_k, left, reader, scale, Tq, Hq, Hkv, D, CAUSAL, OWN, STEP, BLOCK_D
        )  # fmt: skip
