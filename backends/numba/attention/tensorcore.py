"""tensorcore: flash on mma.m16n8k16, scores and o in registers, cp.async, exp2 with the scale folded in.

A warp owns 16 rows of queries or two times 16; scores in the layout of a product's result are the left operand of the
next. Keys and values arrive by turns: values while the scores are formed, the next keys while the values are used.
Tiles that causality hides are not visited.
"""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, uint16

from touchstone.backends import Unsupported
from touchstone.backends.numba.attention._launch import padded_width, score_factor
from touchstone.backends.numba.lib.attention_mma import (
    are_heads_aligned,
    clear,
    load_tile,
    products,
    put_row,
    store_rows,
)
from touchstone.backends.numba.lib.attention_warps import softmax_for
from touchstone.backends.numba.lib.gemm import flat
from touchstone.backends.numba.lib.ptx import copy_commit, copy_wait
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs
from touchstone.backends.variants import HALF, variant

_LOW = np.float32(-math.inf)
_LN_2 = np.float32(math.log(2))
_ALL = 0xFFFFFFFF
# For each width of a tile: 16-row tiles of queries per warp, keys per tile. Four warps; q, k and v take at most 48 KB.
_TILES = {64: (2, 64), 128: (2, 32), 256: (1, 16)}


@functools.cache
def _kernel(width):
    T, keys = _TILES[width]
    queries = 64 * T
    S, W = keys // 8, width // 8  # columns of scores and of o, eight at a time
    q_size, kv_size = queries * width, keys * width
    scores, values = products(T, S, W, width)
    softmax = softmax_for(T, S, W)

    @cuda.jit(device=True)
    def negate(q_tile, thread):
        copy_commit()
        copy_wait(0)
        cuda.syncthreads()
        e = thread
        while e < q_size:
            q_tile[e] ^= uint16(0x8000)
            e += 128

    @cuda.jit(device=True)
    def mask(s, scale, start, row, seq_k, shift, lane):
        """Scores times `scale`; -inf for the keys that their row does not see."""
        for t in range(T):
            for h in range(2):
                limit = min(seq_k, row + 16 * t + 8 * h + lane // 4 + shift + 1)
                for n in range(S):
                    for e in range(2):
                        visible = start + 8 * n + lane % 4 * 2 + e < limit
                        s[t, n, 2 * h + e] = s[t, n, 2 * h + e] * scale if visible else _LOW

    @cuda.jit(device=True)
    def epilogue(out, lse, tile, o, m, l, batch, head, top, row, lane):
        """o / l and lse of the warp's queries; o passes through the warp's own rows of `tile` for whole lines in
        memory."""
        heads, seq_q, dim = out.shape[1], out.shape[2], out.shape[3]
        for t in range(T):
            for h in range(2):
                total = l[t, h]
                total += cuda.shfl_xor_sync(_ALL, total, 1)
                total += cuda.shfl_xor_sync(_ALL, total, 2)
                if total == float32(0):  # a row that sees nothing: zeros and m = -inf
                    total = float32(1)
                r = row + 16 * t + 8 * h + lane // 4
                put_row(tile, r, width, 0, out, o, t, h, float32(1) / total, lane)
                if lane % 4 == 0 and top + r < seq_q:
                    lse[batch, head, top + r] = m[t, h] * _LN_2 + math.log(total)
        cuda.syncwarp()
        base = ((batch * heads + head) * seq_q + top) * dim
        store_rows(out, base, tile, width, row, 16 * T, seq_q - top, dim, lane, 32)

    @cuda.jit(launch_bounds=128)
    def tensorcore(
        q, q_strides, k, k_strides, v, v_strides, out, lse, heads_kv, seq_k, scale, causal, aligned
    ):  # scale carries log2 e
        q_tile = cuda.shared.array(q_size, uint16, 16)
        k_tile = cuda.shared.array(kv_size, uint16, 16)
        v_tile = cuda.shared.array(kv_size, uint16, 16)
        thread = cuda.threadIdx.x & 127  # which the compiler thus knows is not negative
        lane = thread % 32
        heads, seq_q, dim = out.shape[1], out.shape[2], out.shape[3]
        tiles = (seq_q + queries - 1) // queries
        top, pair = (tiles - 1 - cuda.blockIdx.x % tiles) * queries, cuda.blockIdx.x // tiles  # most keys first
        batch, head = pair // heads, pair % heads
        head_kv = head // (heads // heads_kv)
        k_base = batch * k_strides[0] + head_kv * k_strides[1]
        v_base = batch * v_strides[0] + head_kv * v_strides[1]
        row = thread // 32 * 16 * T  # the warp's first query in the tile
        # Keys up to `full` are visible to all queries of the tile, from `last` on to none; without causality the shift
        # is so large that only Sk hides a key.
        shift = seq_k - seq_q if causal else seq_k
        full = min(seq_k, max(0, top + shift + 1)) // keys * keys
        last = min(seq_k, max(0, top + queries + shift))
        working = top + row < seq_q

        q_base = batch * q_strides[0] + head * q_strides[1]
        load_tile(q_tile, queries, width, q, q_base, q_strides, top, seq_q, dim, aligned, thread, 128)
        if scale < float32(0):  # the maximum of s·scale is then that of -s·|scale|
            negate(q_tile, thread)
            scale = -scale
        load_tile(k_tile, keys, width, k, k_base, k_strides, 0, seq_k, dim, aligned, thread, 128)
        copy_commit()

        s, o = cuda.local.array((T, S, 4), float32), cuda.local.array((T, W, 4), float32)
        m, l = cuda.local.array((T, 2), float32), cuda.local.array((T, 2), float32)
        for t in range(T):
            for h in range(2):
                m[t, h], l[t, h] = _LOW, float32(0)
        clear(o)
        start = 0
        while start < last:
            copy_wait(0)
            cuda.syncthreads()  # the keys are there, and the values of the tile before are used
            load_tile(v_tile, keys, width, v, v_base, v_strides, start, seq_k, dim, aligned, thread, 128)
            copy_commit()
            if working:
                scores(s, q_tile, k_tile, q, row, lane)
            copy_wait(0)
            cuda.syncthreads()  # the values are there, and the keys are used
            if start + keys < last:
                load_tile(k_tile, keys, width, k, k_base, k_strides, start + keys, seq_k, dim, aligned, thread, 128)
            copy_commit()
            if working:
                factor = scale
                if start >= full:
                    mask(s, scale, start, top + row, seq_k, shift, lane)
                    factor = float32(1)
                softmax(s, o, m, l, factor)
                values(o, s, v_tile, q, 0, lane)
            start += keys
        copy_wait(0)
        cuda.syncthreads()  # nobody copies to q_tile any more
        if working:
            epilogue(out, lse, q_tile, o, m, l, batch, head, top, row, lane)

    return tensorcore


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32. Source: [dao2023flash2].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    width = padded_width(D)
    operands = (part for x in (q, k, v) for part in (flat(x), x.stride()))
    factor = score_factor(scale, D) * np.float32(math.log2(math.e))
    grid = B * Hq * -(-Sq // (64 * _TILES[width][0]))
    launch(_kernel(width), grid, 128, *operands, o, lse, Hkv, Sk, factor, causal, are_heads_aligned(q, k, v))
    return o, lse
