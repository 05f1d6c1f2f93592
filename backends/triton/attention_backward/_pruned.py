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
    k,
    k_row,
    k_col,
    v,
    v_row,
    v_col,
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
        k_tile = load_tile(k, j, k_row, row_end, d, k_col, D)
        v_tile = load_tile(v, j, v_row, row_end, d, v_col, D)
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
    do,
    do_batch,
    do_head,
    do_row,
    do_col,
    delta,
    lse2,
    dq,
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
    """dq of BLOCK_M queries; program `origin` takes the first tile."""
    tiles = tl.cdiv(Sq, BLOCK_M)
    program = tl.program_id(0) - origin
    pair = program.to(tl.int64) // tiles
    batch, head, head_kv = pair // Hq, pair % Hq, pair % Hq // (Hq // Hkv)
    k += batch * k_batch + head_kv * k_head
    v += batch * v_batch + head_kv * v_head

    top = (tiles - 1 - program % tiles) * BLOCK_M  # causal: the queries that see most keys start first
    i = top + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    shift = Sk - Sq
    full, last = Sk // BLOCK_N * BLOCK_N, Sk  # keys up to `full` are visible to all of i, from `last` on to none
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(top + 1 + shift, 0) // BLOCK_N * BLOCK_N)
        last = tl.minimum(last, tl.maximum(top + BLOCK_M + shift, 0))

    q_tile = load_tile(q + batch * q_batch + head * q_head, i, q_row, Sq, d, q_col, D)
    do_tile = load_tile(do + batch * do_batch + head * do_head, i, do_row, Sq, d, do_col, D)
    lse_i = tl.load(lse2 + pair * Sq + i, mask=i < Sq, other=float("inf"))
    delta_i = tl.load(delta + pair * Sq + i, mask=i < Sq, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    acc = _dq_steps(
        acc,
        q_tile,
        do_tile,
        lse_i,
        delta_i,
        k,
        k_row,
        k_col,
        v,
        v_row,
        v_col,
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
        k,
        k_row,
        k_col,
        v,
        v_row,
        v_col,
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
    tl.store(dq + (pair * Sq + i[:, None]) * D + d[None, :], (acc * scale).to(dq.dtype.element_ty), mask=inside)


@triton.jit
def _dkdv_steps(
    dk_acc,
    dv_acc,
    k_tile,
    v_tile,
    q,
    q_row,
    q_col,
    do,
    do_row,
    do_col,
    lse2,
    delta,
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
        q_tile = load_tile(q, i, q_row, row_end, d, q_col, D)
        do_tile = load_tile(do, i, do_row, row_end, d, do_col, D)
        if MASKED:
            lse_i = tl.load(lse2 + i, mask=i < Sq, other=float("inf"))
            delta_i = tl.load(delta + i, mask=i < Sq, other=0.0)
        else:
            lse_i, delta_i = tl.load(lse2 + i), tl.load(delta + i)
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
    do,
    do_batch,
    do_head,
    do_row,
    do_col,
    delta,
    lse2,
    dk,
    dv,
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
    """dk and dv of BLOCK_N keys. Rows past Sk hold garbage that stays in their rows and is not stored."""
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

    k_tile = load_tile(k + batch * k_batch + head_kv * k_head, j, k_row, Sk, d, k_col, D)
    v_tile = load_tile(v + batch * v_batch + head_kv * v_head, j, v_row, Sk, d, v_col, D)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for head in range(head_kv * (Hq // Hkv), (head_kv + 1) * (Hq // Hkv)):
        q_rows = q + batch * q_batch + head * q_head
        do_rows = do + batch * do_batch + head * do_head
        lse_rows, delta_rows = lse2 + (batch * Hq + head) * Sq, delta + (batch * Hq + head) * Sq
        if CAUSAL:
            dk_acc, dv_acc = _dkdv_steps(
                dk_acc,
                dv_acc,
                k_tile,
                v_tile,
                q_rows,
                q_row,
                q_col,
                do_rows,
                do_row,
                do_col,
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
            q_row,
            q_col,
            do_rows,
            do_row,
            do_col,
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
            q_row,
            q_col,
            do_rows,
            do_row,
            do_col,
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
    tl.store(dk + offsets, (dk_acc * scale).to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + offsets, dv_acc.to(dv.dtype.element_ty), mask=inside)
