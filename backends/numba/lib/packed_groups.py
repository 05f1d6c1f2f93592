"""Attention of a few queries over a cache. The query heads of a key head, and their queries, are the rows of one
product, so that a key is read once for all of them: row r is query r % seq of head r // seq.

Each warp of a block has tiles of 16 keys of its own, two of them in shared memory, and waits for no other until their
parts of o are merged.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from numba import cuda, float32, int64, uint16, uint64

from touchstone.backends import Unsupported
from touchstone.backends.numba.attention._launch import padded_width
from touchstone.backends.numba.lib.attention_mma import are_heads_aligned, clear, products
from touchstone.backends.numba.lib.attention_warps import softmax_for
from touchstone.backends.numba.lib.gemm import flat
from touchstone.backends.numba.lib.norms_backward import processors
from touchstone.backends.numba.lib.online import log_sum, shift
from touchstone.backends.numba.lib.ptx import copy16, copy_bits, copy_commit, copy_wait, exp2
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.signatures.attention_decode import SPLITS

_KEYS, _STAGES = 16, 2
_LOW, _LN_2 = np.float32(-math.inf), np.float32(math.log(2))
_ALL = 0xFFFFFFFF
_LEAST = 128  # keys of a part
_BLOCKS = 24  # to each multiprocessor, which holds six of them at a time: sequences are of various lengths


class Plan(NamedTuple):
    """A grid of `splits` parts of `keys` keys each, and the threads of a block."""

    grid: tuple[int, int]
    threads: int
    splits: int
    keys: int
    aligned: bool


def plan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, longest: int) -> Plan:
    """For q (B, Hq, Sq, D) over up to `longest` keys of `heads` key heads in k and v, 4-D both. Declines float32."""
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    B, Hq, Sq, D = q.shape
    groups = checked_grid(B * heads * -(-Hq // heads * Sq // 16))
    splits = max(1, min(SPLITS, longest // _LEAST, -(-_BLOCKS * processors(q) // groups)))
    keys = 64 * max(1, -(-longest // (64 * splits)))
    splits = max(1, -(-longest // keys))
    return Plan((groups, splits), threads_of(padded_width(D)), splits, keys, are_heads_aligned(k, v))


def with_strides(*operands: torch.Tensor) -> tuple[torch.Tensor | tuple[int, ...], ...]:
    """The memory of each operand, followed by its strides."""
    return tuple(part for x in operands for part in (flat(x), x.stride()))


def threads_of(width: int) -> int:
    """Threads of a block for heads of up to `width` columns: as many warps as have tiles of 32 KB."""
    return 32 * (256 // width)


@functools.cache
def attend_for(width, place):
    """The device function for heads of up to `width` columns. place(strides, table, page, b, head, j) says where key or
    value j of a sequence and key head begins."""
    threads = threads_of(width)
    warps, tile, pitch, hop = threads // 32, _KEYS * width, width + 8, _KEYS * (threads // 32)
    W, q_size, kv_size = width // 8, 16 * width, warps * _STAGES * 2 * tile
    scores, values = products(1, 2, W, width)
    softmax = softmax_for(1, 2, W)

    @cuda.jit(device=True)
    def fetch(stages, to, k, k_strides, v, v_strides, table, page, b, head, first, end, dim, aligned, lane):
        """A warp's keys from `first` on, then their values, zero from key `end` and column `dim` on. Where
        `aligned` the copies are only started."""
        if aligned:  # eight lanes per row: their pieces make a line of 128 bytes
            for i in range(4):
                r = i * 4 + lane // 8
                key, value, inside = int64(0), int64(0), first + r < end
                if inside:
                    key = place(k_strides, table, page, b, head, first + r)
                    value = place(v_strides, table, page, b, head, first + r)
                for n in range(0, width, 64):
                    d = n + lane % 8 * 8
                    at, size = to + r * width + (d ^ r % 8 * 8), 16 if inside and d < dim else 0
                    copy16(stages, at, k, key + d, size)
                    copy16(stages, at + tile, v, value + d, size)
        else:
            e = lane
            while e < tile:
                r, d = e // width, e % width
                at = to + r * width + (d ^ r % 8 * 8)
                if first + r < end and d < dim:
                    key = place(k_strides, table, page, b, head, first + r)
                    value = place(v_strides, table, page, b, head, first + r)
                    copy_bits(stages, at, k, key + d * k_strides[3])
                    copy_bits(stages, at + tile, v, value + d * v_strides[3])
                else:
                    stages[uint64(at)], stages[uint64(at + tile)] = uint16(0), uint16(0)
                e += 32

    @cuda.jit(device=True)
    def load_queries(q_tile, q, base, strides, top, rows, seq, dim, negative, thread):
        for i in range(16 * 8 // threads):
            r = i * (threads // 8) + thread // 8
            row = top + r
            for n in range(W):
                d = n * 8 + thread % 8
                to = r * width + (d ^ r % 8 * 8)
                if row < rows and d < dim:
                    at = base + row // seq * strides[1] + row % seq * strides[2] + d * strides[3]
                    copy_bits(q_tile, to, q, at)
                    if negative:
                        q_tile[uint64(to)] ^= uint16(0x8000)
                else:
                    q_tile[uint64(to)] = uint16(0)

    @cuda.jit(device=True)
    def mask(s, scale, start, top, seq, last, length, lane):
        for h in range(2):
            limit = min(last, (top + 8 * h + lane // 4) % seq + length - seq + 1)
            for n in range(2):
                for e in range(2):
                    visible = start + 8 * n + lane % 4 * 2 + e < limit
                    s[0, n, 2 * h + e] = s[0, n, 2 * h + e] * scale if visible else _LOW

    @cuda.jit(device=True)
    def merge_warps(parts, part_lse, o, m, l, maxima, sums, shared, place_of_first, step, rows, dim, thread):
        """The warps' parts of o, merged, to row place_of_first + r·step for row r of the `rows` that exist."""
        warp, lane = thread // 32, thread % 32
        for h in range(2):
            r, total = 8 * h + lane // 4, l[0, h]
            total += cuda.shfl_xor_sync(_ALL, total, 1)
            total += cuda.shfl_xor_sync(_ALL, total, 2)
            if lane % 4 == 0:
                maxima[uint64(warp), uint64(r)], sums[uint64(warp), uint64(r)] = m[0, h], total
            for n in range(W):
                at = uint64((warp * 16 + r) * pitch + 8 * n + lane % 4 * 2)
                shared[at], shared[at + uint64(1)] = o[0, n, 2 * h], o[0, n, 2 * h + 1]
        cuda.syncthreads()
        for i in range(16 * 8 // threads):
            r = uint64(i * (threads // 8) + thread // 8)
            if r < uint64(rows):
                most, total = _LOW, float32(0)
                for w in range(warps):
                    most = max(most, maxima[w, r])
                for w in range(warps):
                    total += exp2(maxima[w, r] - shift(most)) * sums[w, r]
                inverse = float32(0) if total == float32(0) else float32(1) / total
                row = uint64(place_of_first) + r * uint64(step)
                for d in range(uint64(thread % 8), uint64(dim), uint64(8)):
                    merged = float32(0)
                    for w in range(warps):
                        merged += exp2(maxima[w, r] - shift(most)) * shared[(uint64(w * 16) + r) * uint64(pitch) + d]
                    parts[row, d] = merged * inverse
                if thread % 8 == 0:
                    part_lse[row] = log_sum(shift(most) * _LN_2, total)

    @cuda.jit(device=True)
    def attend(
        q, q_strides, k, k_strides, v, v_strides, table, page, lengths, parts, part_lse, heads, kv_heads, seq, keys,
        scale, aligned,
    ):  # fmt: skip
        q_tile = cuda.shared.array(q_size, uint16, 16)
        stages = cuda.shared.array(kv_size, uint16, 16)
        maxima = cuda.shared.array((warps, 16), float32)
        sums = cuda.shared.array((warps, 16), float32)
        thread = cuda.threadIdx.x & (threads - 1)  # which the compiler thus knows is not negative
        warp, lane, splits = thread // 32, thread % 32, int64(cuda.gridDim.y)
        rows, dim = heads // kv_heads * seq, parts.shape[1]
        tiles = (rows + 15) // 16
        top, pair = cuda.blockIdx.x % tiles * 16, cuda.blockIdx.x // tiles
        b, head = pair // kv_heads, pair % kv_heads
        length, first = int64(lengths[uint64(b)]), cuda.blockIdx.y * keys
        last = min(first + keys, length)
        place_of_first = (int64(pair) * rows + top) * splits + cuda.blockIdx.y
        if first >= last:  # a part without keys
            if thread < min(16, rows - top):
                part_lse[uint64(place_of_first + thread * splits)] = _LOW
            return
        mine, start = warp * _STAGES * 2 * tile, first + warp * _KEYS
        fetch(stages, mine, k, k_strides, v, v_strides, table, page, b, head, start, last, dim, aligned, lane)
        copy_commit()
        base = b * q_strides[0] + head * (heads // kv_heads) * q_strides[1]
        load_queries(q_tile, q, base, q_strides, top, rows, seq, dim, scale < float32(0), thread)
        scale = abs(scale)  # the maximum of s·scale is that of -s·|scale|
        cuda.syncthreads()

        s, o = cuda.local.array((1, 2, 4), float32), cuda.local.array((1, W, 4), float32)
        m, l = cuda.local.array((1, 2), float32), cuda.local.array((1, 2), float32)
        for h in range(2):
            m[0, h], l[0, h] = _LOW, float32(0)
        clear(o)
        turn = 0
        while start < last:
            copy_wait(0)
            cuda.syncwarp()  # the tile is there for all lanes, and they have used the one before
            now, turn = mine + turn * 2 * tile, 1 - turn
            to, next_start = mine + turn * 2 * tile, start + hop
            fetch(stages, to, k, k_strides, v, v_strides, table, page, b, head, next_start, last, dim, aligned, lane)
            copy_commit()
            scores(s, q_tile, stages, q, 0, lane, now)
            factor = scale
            if start + _KEYS > min(last, length - seq + 1):
                mask(s, scale, start, top, seq, last, length, lane)
                factor = float32(1)
            softmax(s, o, m, l, factor)
            values(o, s, stages, q, 0, lane, now + tile)
            start += hop
        copy_wait(0)
        cuda.syncthreads()  # nobody uses tiles any more
        shared = stages.view(np.float32)
        merge_warps(parts, part_lse, o, m, l, maxima, sums, shared, place_of_first, splits, rows - top, dim, thread)

    return attend
