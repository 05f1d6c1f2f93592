"""A block of attention on tensor cores: queries of a head sweep over its keys.

A warp owns 16 rows of queries or two times 16; scores in the layout of a product's result are the left operand of the
next. Keys and values arrive by turns: values while the scores are formed, the next keys while the values are used.
Tiles that causality hides are not visited.
"""

import functools
import math

import numpy as np
from numba import cuda, float32, uint16, uint64

from touchstone.backends.numba.lib.attention_mma import clear, load_tile, products, put_row, store_rows
from touchstone.backends.numba.lib.attention_warps import softmax_for
from touchstone.backends.numba.lib.ptx import copy_commit, copy_wait

_LOW = np.float32(-math.inf)
_LN_2 = np.float32(math.log(2))
_ALL = 0xFFFFFFFF
# For each width of a tile: 16-row tiles of queries per warp, keys per tile. Four warps; q, k and v take at most 48 KB.
TILES = {64: (2, 64), 128: (2, 32), 256: (1, 16)}


@functools.cache
def sweep_for(width):
    """The device function for heads of up to `width` columns, and blocks of 128 threads."""
    T, keys = TILES[width]
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
    def epilogue(out, o_base, o_step, lse, lse_base, tile, o, m, l, top, seq_q, dim, row, lane):
        """o / l and lse of the warp's queries; o passes through the warp's own rows of `tile` for whole lines in
        memory."""
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
                    lse[uint64(lse_base + top + r)] = m[t, h] * _LN_2 + math.log(total)
        cuda.syncwarp()
        store_rows(out, o_base + top * o_step, tile, width, row, 16 * T, seq_q - top, dim, lane, 32, o_step)

    @cuda.jit(device=True)
    def sweep(
        q, q_base, q_strides, k, k_base, k_strides, v, v_base, v_strides, out, o_base, o_step, lse, lse_base, top,
        seq_q, seq_k, dim, scale, causal, aligned,
    ):  # fmt: skip
        """The queries from `top` on, of one head, over its keys; scale carries log2 e. Bases count elements, and axes 2
        and 3 of the strides are rows and columns; `o_step` parts the rows of `out`."""
        q_tile = cuda.shared.array(q_size, uint16, 16)
        k_tile = cuda.shared.array(kv_size, uint16, 16)
        v_tile = cuda.shared.array(kv_size, uint16, 16)
        thread = cuda.threadIdx.x & 127  # which the compiler thus knows is not negative
        lane = thread % 32
        row = thread // 32 * 16 * T  # the warp's first query in the tile
        # Keys up to `full` are visible to all queries of the tile, from `last` on to none; without causality the shift
        # is so large that only Sk hides a key.
        shift = seq_k - seq_q if causal else seq_k
        full = min(seq_k, max(0, top + shift + 1)) // keys * keys
        last = min(seq_k, max(0, top + queries + shift))
        working = top + row < seq_q

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
            epilogue(out, o_base, o_step, lse, lse_base, q_tile, o, m, l, top, seq_q, dim, row, lane)

    return sweep
