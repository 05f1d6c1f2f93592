"""tensorcore: delta_first on mma.m16n8k16, a kernel for dq and one for dk and dv; gradients in registers, cp.async.

A warp owns 16 rows of a gradient, or half the columns of them where a row is too long for its registers. In both
kernels the scores come as rows owned by columns of the other sequence, so that p and ds, in the layout of a product's
result, are the left operands of the next; nothing is added up in memory.
"""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, uint16, uint64

from touchstone.backends import Unsupported
from touchstone.backends.numba.attention._launch import padded_width, score_factor
from touchstone.backends.numba.attention_backward._delta import launch_delta
from touchstone.backends.numba.lib.attention_mma import (
    are_heads_aligned,
    clear,
    load_tile,
    products,
    put_row,
    store_rows,
)
from touchstone.backends.numba.lib.gemm import flat
from touchstone.backends.numba.lib.ptx import copy_commit, copy_wait, exp2
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import HALF, variant

_HIGH = np.float32(math.inf)
# For each width of a tile: rows that a block of four warps owns, rows of the other sequence a step. Two tiles of each
# take at most 48 KB.
_TILES = {64: (64, 64), 128: (64, 32), 256: (32, 16)}


@functools.cache
def _dq_kernel(width):
    own, step = _TILES[width]
    S, W = step // 8, width * own // 64 // 8  # columns of scores and of the gradient, eight at a time
    own_size, step_size = own * width, step * width
    scores, values = products(1, S, W, width)

    @cuda.jit(device=True)
    def score_gradients(ds, s, delta_i, lse_i, scale2, start, full, first, seq_k, shift, lane):
        """ds (do·vᵀ) becomes p·(ds - delta), of the warp's queries from `first` on and the keys from `start` on; p is 0
        for the keys that a query does not see, which there are from `full` on."""
        for h in range(2):
            limit = min(seq_k, first + 8 * h + lane // 4 + shift + 1)
            for n in range(S):
                for e in range(2):
                    p = exp2(cuda.fma(s[0, n, 2 * h + e], scale2, -lse_i[h]))
                    if start >= full and start + 8 * n + lane % 4 * 2 + e >= limit:
                        p = float32(0)
                    ds[0, n, 2 * h + e] = p * (ds[0, n, 2 * h + e] - delta_i[h])

    @cuda.jit(launch_bounds=128)
    def tensorcore_dq(
        q,
        q_strides,
        k,
        k_strides,
        v,
        v_strides,
        do,
        do_strides,
        delta,
        lse2,
        dq,
        heads_kv,
        seq_k,
        scale,
        scale2,
        causal,
        aligned,
    ):
        """Longer than a screen: products and exponentials are functions already, and what is left is the order of
        copies, barriers and products; a function for a step of the loop would take more than 25 values.
        """
        q_tile = cuda.shared.array(own_size, uint16, 16)
        do_tile = cuda.shared.array(own_size, uint16, 16)
        k_tile = cuda.shared.array(step_size, uint16, 16)
        v_tile = cuda.shared.array(step_size, uint16, 16)
        thread = cuda.threadIdx.x & 127  # which the compiler thus knows is not negative
        lane, row = thread % 32, thread // 32 * 16 % own  # the warp's first query in the tile
        col = thread // 32 * 16 // own * W * 8
        heads, seq_q, dim = dq.shape[1], dq.shape[2], dq.shape[3]
        tiles = (seq_q + own - 1) // own
        top, pair = (tiles - 1 - cuda.blockIdx.x % tiles) * own, cuda.blockIdx.x // tiles  # most keys first
        batch, head = pair // heads, pair % heads
        head_kv = head // (heads // heads_kv)
        q_base = batch * q_strides[0] + head * q_strides[1]
        do_base = batch * do_strides[0] + head * do_strides[1]
        k_base = batch * k_strides[0] + head_kv * k_strides[1]
        v_base = batch * v_strides[0] + head_kv * v_strides[1]
        # Keys up to `full` are visible to all queries of the tile, from `last` on to none; without causality the shift
        # is so large that only Sk hides a key.
        shift = seq_k - seq_q if causal else seq_k
        full = min(seq_k, max(0, top + shift + 1)) // step * step
        last = min(seq_k, max(0, top + own + shift))

        load_tile(q_tile, own, width, q, q_base, q_strides, top, seq_q, dim, aligned, thread, 128)
        load_tile(do_tile, own, width, do, do_base, do_strides, top, seq_q, dim, aligned, thread, 128)
        s, ds = cuda.local.array((1, S, 4), float32), cuda.local.array((1, S, 4), float32)
        acc = cuda.local.array((1, W, 4), float32)
        delta_i, lse_i = cuda.local.array(2, float32), cuda.local.array(2, float32)
        for h in range(2):
            i = top + row + 8 * h + lane // 4
            delta_i[h] = delta[batch, head, i] if i < seq_q else float32(0)
            lse_i[h] = lse2[batch, head, i] if i < seq_q else _HIGH
        clear(acc)
        start = 0
        while start < last:
            cuda.syncthreads()  # the tiles before are used
            load_tile(k_tile, step, width, k, k_base, k_strides, start, seq_k, dim, aligned, thread, 128)
            copy_commit()
            load_tile(v_tile, step, width, v, v_base, v_strides, start, seq_k, dim, aligned, thread, 128)
            copy_commit()
            copy_wait(1)
            cuda.syncthreads()  # the keys are there
            if top + row < seq_q:
                scores(s, q_tile, k_tile, q, row, lane)
            copy_wait(0)
            cuda.syncthreads()  # the values are there
            if top + row < seq_q:
                scores(ds, do_tile, v_tile, q, row, lane)
                score_gradients(ds, s, delta_i, lse_i, scale2, start, full, top + row, seq_k, shift, lane)
                values(acc, ds, k_tile, q, col, lane)
            start += step

        copy_wait(0)
        cuda.syncthreads()  # q_tile is used
        for h in range(2):
            put_row(q_tile, row + 8 * h + lane // 4, width, col, q, acc, 0, h, scale, lane)
        cuda.syncthreads()
        base = ((batch * heads + head) * seq_q + top) * dim
        store_rows(dq, base, q_tile, width, 0, own, seq_q - top, dim, thread, 128)

    return tensorcore_dq


@functools.cache
def _dkdv_kernel(width):
    own, step = _TILES[width]
    S, W = step // 8, width * own // 64 // 8
    own_size, step_size = own * width, step * width
    scores, values = products(1, S, W, width)

    @cuda.jit(device=True)
    def probabilities(p, lse_heads, head, scale2, start, full, first, seq_q, shift, lane):
        """p (k·qᵀ) becomes exp2(scale2·p - lse), of the warp's keys from `first` on and the queries from `start` on; 0
        where a query, all of which are before `full`, does not see the key, and where there is none."""
        for n in range(S):
            for e in range(2):
                i = start + 8 * n + lane % 4 * 2 + e
                lse_i = lse_heads[uint64(head), uint64(i)] if i < seq_q else _HIGH
                for h in range(2):
                    p[0, n, 2 * h + e] = exp2(cuda.fma(p[0, n, 2 * h + e], scale2, -lse_i))
                    if i >= seq_q or (start < full and first + 8 * h + lane // 4 > i + shift):
                        p[0, n, 2 * h + e] = float32(0)

    @cuda.jit(device=True)
    def score_gradients(ds, p, delta_heads, head, start, seq_q, lane):
        """ds (v·doᵀ) becomes p·(ds - delta)."""
        for n in range(S):
            for e in range(2):
                i = start + 8 * n + lane % 4 * 2 + e
                delta_i = delta_heads[uint64(head), uint64(i)] if i < seq_q else float32(0)
                for h in range(2):
                    ds[0, n, 2 * h + e] = p[0, n, 2 * h + e] * (ds[0, n, 2 * h + e] - delta_i)

    @cuda.jit(launch_bounds=128)
    def tensorcore_dkdv(
        q,
        q_strides,
        k,
        k_strides,
        v,
        v_strides,
        do,
        do_strides,
        delta,
        lse2,
        dk,
        dv,
        heads,
        seq_q,
        scale,
        scale2,
        causal,
        aligned,
    ):
        """Longer than a screen: products and exponentials are functions already, and what is left is the order of
        copies, barriers and products; a function for a step of the loop would take more than 25 values.
        """
        k_tile = cuda.shared.array(own_size, uint16, 16)
        v_tile = cuda.shared.array(own_size, uint16, 16)
        q_tile = cuda.shared.array(step_size, uint16, 16)
        do_tile = cuda.shared.array(step_size, uint16, 16)
        thread = cuda.threadIdx.x & 127
        lane, row = thread % 32, thread // 32 * 16 % own  # the warp's first key in the tile
        col = thread // 32 * 16 // own * W * 8
        heads_kv, seq_k, dim = dk.shape[1], dk.shape[2], dk.shape[3]
        tiles, group = (seq_k + own - 1) // own, heads // heads_kv
        left, pair = cuda.blockIdx.x % tiles * own, cuda.blockIdx.x // tiles
        batch, head_kv = pair // heads_kv, pair % heads_kv
        k_base = batch * k_strides[0] + head_kv * k_strides[1]
        v_base = batch * v_strides[0] + head_kv * v_strides[1]
        # Queries before `first` see no key of the tile, from `full` on all of them.
        shift = seq_k - seq_q if causal else seq_k
        first, full = max(0, left - shift) // step * step, max(0, left + own - 1 - shift)

        load_tile(k_tile, own, width, k, k_base, k_strides, left, seq_k, dim, aligned, thread, 128)
        load_tile(v_tile, own, width, v, v_base, v_strides, left, seq_k, dim, aligned, thread, 128)
        p, ds = cuda.local.array((1, S, 4), float32), cuda.local.array((1, S, 4), float32)
        dk_acc, dv_acc = cuda.local.array((1, W, 4), float32), cuda.local.array((1, W, 4), float32)
        clear(dk_acc)
        clear(dv_acc)
        delta_heads, lse_heads = delta[uint64(batch)], lse2[uint64(batch)]
        head = head_kv * group
        while head < (head_kv + 1) * group:
            q_base = batch * q_strides[0] + head * q_strides[1]
            do_base = batch * do_strides[0] + head * do_strides[1]
            start = first
            while start < seq_q:
                cuda.syncthreads()  # the tiles before are used
                load_tile(q_tile, step, width, q, q_base, q_strides, start, seq_q, dim, aligned, thread, 128)
                copy_commit()
                load_tile(do_tile, step, width, do, do_base, do_strides, start, seq_q, dim, aligned, thread, 128)
                copy_commit()
                copy_wait(1)
                cuda.syncthreads()  # the queries are there
                if left + row < seq_k:
                    scores(p, k_tile, q_tile, q, row, lane)  # transposed: a row is a key
                    probabilities(p, lse_heads, head, scale2, start, full, left + row, seq_q, shift, lane)
                copy_wait(0)
                cuda.syncthreads()  # their do is there
                if left + row < seq_k:
                    values(dv_acc, p, do_tile, q, col, lane)
                    scores(ds, v_tile, do_tile, q, row, lane)
                    score_gradients(ds, p, delta_heads, head, start, seq_q, lane)
                    values(dk_acc, ds, q_tile, q, col, lane)
                start += step
            head += 1

        copy_wait(0)
        cuda.syncthreads()  # k_tile and v_tile are used
        for h in range(2):
            put_row(k_tile, row + 8 * h + lane // 4, width, col, q, dk_acc, 0, h, scale, lane)
            put_row(v_tile, row + 8 * h + lane // 4, width, col, q, dv_acc, 0, h, float32(1), lane)
        cuda.syncthreads()
        base = ((batch * heads_kv + head_kv) * seq_k + left) * dim
        store_rows(dk, base, k_tile, width, 0, own, seq_k - left, dim, thread, 128)
        store_rows(dv, base, v_tile, width, 0, own, seq_k - left, dim, thread, 128)

    return tensorcore_dkdv


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv.

    Declines float32. Source: [dao2023flash2].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    dq, dk, dv = empty_outputs(q, k)
    width, factor = padded_width(D), score_factor(scale, D)
    own = _TILES[width][0]
    delta, lse2 = launch_delta(o, lse, do)
    operands = [part for x in (q, k, v, do) for part in (flat(x), x.stride())]
    factors = (factor, factor * np.float32(math.log2(math.e)), causal, are_heads_aligned(q, k, v, do))
    if dq.numel():
        launch(_dq_kernel(width), B * Hq * -(-Sq // own), 128, *operands, delta, lse2, dq, Hkv, Sk, *factors)
    if dk.numel():
        launch(_dkdv_kernel(width), B * Hkv * -(-Sk // own), 128, *operands, delta, lse2, dk, dv, Hq, Sq, *factors)
    return dq, dk, dv
