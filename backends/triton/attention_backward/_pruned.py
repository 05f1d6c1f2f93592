"""The gradient kernels of delta_first, which onekernel runs in one launch: delta is read, hidden tiles are skipped."""

import triton
import triton.language as tl

from touchstone.backends.triton.attention._launch import LOG2E, load_tile
from touchstone.backends.triton.attention_backward._launch import PLAIN


@triton.jit
def _dq_steps(
    acc,
    q_tile,
    do_tile,
    lse_i,
    delta_i,
    k_ptr,
    stride_ks,
    stride_kd,
    v_ptr,
    stride_vs,
    stride_vd,
    i,
    d,
    first,
    last,
    shift,
    Sk,
    D,
    scale2,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dq / scale of the queries i, from the keys from `first` to `last`."""
    for start in range(first, last, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        row_end = Sk if MASKED else None
        k_tile = load_tile(k_ptr, j, stride_ks, row_end, d, stride_kd, D)
        v_tile = load_tile(v_ptr, j, stride_vs, row_end, d, stride_vd, D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale2
        if MASKED:
            visible = j[None, :] < Sk
            if CAUSAL:
                visible &= j[None, :] <= i[:, None] + shift
            s = tl.where(visible, s, float("-inf"))
        p = tl.exp2(s - lse_i[:, None])
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta_i[:, None])
        acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=[*PLAIN, "origin"])
def dq_kernel(
    q_ptr,
    stride_qb,
    stride_qh,
    stride_qs,
    stride_qd,
    k_ptr,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_kd,
    v_ptr,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_vd,
    do_ptr,
    stride_dob,
    stride_doh,
    stride_dos,
    stride_dod,
    delta_ptr,
    lse2_ptr,
    dq_ptr,
    Hq,
    Hkv,
    Sq,
    Sk,
    D,
    scale,
    origin,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """dq of BLOCK_M queries; program `origin` takes the first tile.

    Longer than a screen: the parameters and the arguments of the two calls of `_dq_steps` stand one to a line; the rest
    is under 30 lines.
    """
    tiles = tl.cdiv(Sq, BLOCK_M)
    program = tl.program_id(0) - origin
    pair = program.to(tl.int64) // tiles
    batch, head, head_kv = pair // Hq, pair % Hq, pair % Hq // (Hq // Hkv)
    k_ptr += batch * stride_kb + head_kv * stride_kh
    v_ptr += batch * stride_vb + head_kv * stride_vh

    top = (tiles - 1 - program % tiles) * BLOCK_M  # causal: the queries that see most keys start first
    i = top + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    shift = Sk - Sq
    full, last = Sk // BLOCK_N * BLOCK_N, Sk  # keys up to `full` are visible to all of i, from `last` on to none
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(top + 1 + shift, 0) // BLOCK_N * BLOCK_N)
        last = tl.minimum(last, tl.maximum(top + BLOCK_M + shift, 0))

    q_tile = load_tile(q_ptr + batch * stride_qb + head * stride_qh, i, stride_qs, Sq, d, stride_qd, D)
    do_tile = load_tile(do_ptr + batch * stride_dob + head * stride_doh, i, stride_dos, Sq, d, stride_dod, D)
    lse_i = tl.load(lse2_ptr + pair * Sq + i, mask=i < Sq, other=float("inf"))
    delta_i = tl.load(delta_ptr + pair * Sq + i, mask=i < Sq, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    acc = _dq_steps(
        acc,
        q_tile,
        do_tile,
        lse_i,
        delta_i,
        k_ptr,
        stride_ks,
        stride_kd,
        v_ptr,
        stride_vs,
        stride_vd,
        i,
        d,
        0,
        full,
        shift,
        Sk,
        D,
        scale * LOG2E,
        MASKED=False,
        CAUSAL=CAUSAL,
        BLOCK_N=BLOCK_N,
    )
    acc = _dq_steps(
        acc,
        q_tile,
        do_tile,
        lse_i,
        delta_i,
        k_ptr,
        stride_ks,
        stride_kd,
        v_ptr,
        stride_vs,
        stride_vd,
        i,
        d,
        full,
        last,
        shift,
        Sk,
        D,
        scale * LOG2E,
        MASKED=True,
        CAUSAL=CAUSAL,
        BLOCK_N=BLOCK_N,
    )
    inside = (i[:, None] < Sq) & (d[None, :] < D)
    tl.store(dq_ptr + (pair * Sq + i[:, None]) * D + d[None, :], (acc * scale).to(dq_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _dkdv_steps(
    dk_acc,
    dv_acc,
    k_tile,
    v_tile,
    q_ptr,
    stride_qs,
    stride_qd,
    do_ptr,
    stride_dos,
    stride_dod,
    lse2_ptr,
    delta_ptr,
    j,
    d,
    first,
    last,
    shift,
    Sq,
    D,
    scale2,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """dk / scale and dv of the keys j, from the queries from `first` to `last`."""
    for start in range(first, last, BLOCK_M):
        i = start + tl.arange(0, BLOCK_M)
        row_end = Sq if MASKED else None
        q_tile = load_tile(q_ptr, i, stride_qs, row_end, d, stride_qd, D)
        do_tile = load_tile(do_ptr, i, stride_dos, row_end, d, stride_dod, D)
        if MASKED:
            lse_i = tl.load(lse2_ptr + i, mask=i < Sq, other=float("inf"))
            delta_i = tl.load(delta_ptr + i, mask=i < Sq, other=0.0)
        else:
            lse_i, delta_i = tl.load(lse2_ptr + i), tl.load(delta_ptr + i)
        s = tl.dot(k_tile, q_tile.T, input_precision="ieee") * scale2  # (BLOCK_N, BLOCK_M): already transposed
        if MASKED:
            visible = i[None, :] < Sq
            if CAUSAL:
                visible &= j[:, None] <= i[None, :] + shift
            s = tl.where(visible, s, float("-inf"))
        p = tl.exp2(s - lse_i[None, :])
        dv_acc = tl.dot(p.to(do_tile.dtype), do_tile, dv_acc, input_precision="ieee")
        dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
        ds = p * (dp - delta_i[None, :])
        dk_acc = tl.dot(ds.to(q_tile.dtype), q_tile, dk_acc, input_precision="ieee")
    return dk_acc, dv_acc


@triton.jit(do_not_specialize=PLAIN)
def dkdv_kernel(
    q_ptr,
    stride_qb,
    stride_qh,
    stride_qs,
    stride_qd,
    k_ptr,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_kd,
    v_ptr,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_vd,
    do_ptr,
    stride_dob,
    stride_doh,
    stride_dos,
    stride_dod,
    delta_ptr,
    lse2_ptr,
    dk_ptr,
    dv_ptr,
    Hq,
    Hkv,
    Sq,
    Sk,
    D,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """dk and dv of BLOCK_N keys. Rows past Sk hold garbage that stays in their rows and is not stored.

    Longer than a screen: the parameters and the arguments of the three calls of `_dkdv_steps` stand one to a line; the
    rest is under 30 lines.
    """
    tiles = tl.cdiv(Sk, BLOCK_N)
    pair = tl.program_id(0).to(tl.int64) // tiles  # (batch, key head)
    batch, head_kv = pair // Hkv, pair % Hkv

    left = tl.program_id(0) % tiles * BLOCK_N
    j = left + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    shift = Sk - Sq
    first, full, tail = 0, 0, Sq // BLOCK_M * BLOCK_M  # queries before `first` see none of j, from `full` on all
    if CAUSAL:
        first = tl.maximum(left - shift, 0) // BLOCK_M * BLOCK_M
        full = tl.minimum(tl.cdiv(tl.maximum(left + BLOCK_N - 1 - shift, 0), BLOCK_M) * BLOCK_M, Sq)

    k_tile = load_tile(k_ptr + batch * stride_kb + head_kv * stride_kh, j, stride_ks, Sk, d, stride_kd, D)
    v_tile = load_tile(v_ptr + batch * stride_vb + head_kv * stride_vh, j, stride_vs, Sk, d, stride_vd, D)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for head in range(head_kv * (Hq // Hkv), (head_kv + 1) * (Hq // Hkv)):
        q_rows = q_ptr + batch * stride_qb + head * stride_qh
        do_rows = do_ptr + batch * stride_dob + head * stride_doh
        lse_rows, delta_rows = lse2_ptr + (batch * Hq + head) * Sq, delta_ptr + (batch * Hq + head) * Sq
        if CAUSAL:
            dk_acc, dv_acc = _dkdv_steps(
                dk_acc,
                dv_acc,
                k_tile,
                v_tile,
                q_rows,
                stride_qs,
                stride_qd,
                do_rows,
                stride_dos,
                stride_dod,
                lse_rows,
                delta_rows,
                j,
                d,
                first,
                full,
                shift,
                Sq,
                D,
                scale * LOG2E,
                MASKED=True,
                CAUSAL=CAUSAL,
                BLOCK_M=BLOCK_M,
            )
        dk_acc, dv_acc = _dkdv_steps(
            dk_acc,
            dv_acc,
            k_tile,
            v_tile,
            q_rows,
            stride_qs,
            stride_qd,
            do_rows,
            stride_dos,
            stride_dod,
            lse_rows,
            delta_rows,
            j,
            d,
            full,
            tail,
            shift,
            Sq,
            D,
            scale * LOG2E,
            MASKED=False,
            CAUSAL=CAUSAL,
            BLOCK_M=BLOCK_M,
        )
        dk_acc, dv_acc = _dkdv_steps(
            dk_acc,
            dv_acc,
            k_tile,
            v_tile,
            q_rows,
            stride_qs,
            stride_qd,
            do_rows,
            stride_dos,
            stride_dod,
            lse_rows,
            delta_rows,
            j,
            d,
            tl.maximum(full, tail),
            Sq,
            shift,
            Sq,
            D,
            scale * LOG2E,
            MASKED=True,
            CAUSAL=CAUSAL,
            BLOCK_M=BLOCK_M,
        )

    inside = (j[:, None] < Sk) & (d[None, :] < D)
    offsets = (pair * Sk + j[:, None]) * D + d[None, :]
    tl.store(dk_ptr + offsets, (dk_acc * scale).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + offsets, dv_acc.to(dv_ptr.dtype.element_ty), mask=inside)
