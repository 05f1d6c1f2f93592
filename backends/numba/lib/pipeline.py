"""The main loop of `pipelined`: mma.py's with twice the rows, four stages, and fragments that come while others are
multiplied.

For operands in whole pieces of 16 bytes. Which axis of an operand is the contiguous one is a constant of the kernel: a
fragment is then one instruction. A block of eight warps has a tile of HEIGHT by WIDTH of c, a warp 64 by 64 of it; the
stages take 96 KB of shared memory.
"""

import functools
from typing import Any

import torch
from numba import cuda, float32, uint32

from touchstone.backends.numba.lib import gemm
from touchstone.backends.numba.lib.mma import (
    ALIGNMENT,
    COLS,
    DEPTH,
    ELEMENT,
    GROUP,
    LANES,
    PITCH,
    ROWS,
    STAGED,
    SUMS,
    WARP,
    WIDTH,
    find_way,
    is_odd,
    matrices,
    multiply_add,
    stage,
    staged_row,
)
from touchstone.backends.numba.lib.ptx import copy16, copy_commit, copy_wait

__all__ = ["ALIGNMENT", "ELEMENT", "GROUP", "PITCH", "STAGED", "SUMS", "find_way", "is_odd", "stage", "staged_row"]

HEIGHT, STAGES, THREADS, BLOCKS = 256, 4, 256, 1
A, B = HEIGHT * DEPTH, WIDTH * DEPTH  # elements of the tiles of a stage
STAGE = A + B
SHARED, BYTES = 0, 2 * STAGES * STAGE  # none of it static
PARTS = HEIGHT // STAGED


def loop(a: torch.Tensor, *others: torch.Tensor) -> Any:
    """The main loop for a (M, K) and b (K, N), which may be two operands side by side; None unless in whole pieces."""
    a_along_k, b_along_k = gemm.is_along_k(a, 1), gemm.is_along_k(others[0], 0)
    if gemm.is_wide(a, 1, a_along_k, LANES) and all(gemm.is_wide(b, 0, b_along_k, LANES) for b in others):
        return _multiply(a_along_k, b_along_k)
    return None


@cuda.jit(device=True)
def fetch(shared, tile, x, way, start, along_k, extent):
    """Start copying this thread's pieces of the tile that begins at k = start, zeros beyond the operand."""
    rest_k = way.rest_k - start
    for piece in range(extent * DEPTH // LANES // THREADS):
        if along_k:
            inside = rest_k > 0 and way.rest > piece * (THREADS * LANES // DEPTH) // way.share
        else:
            inside = way.rest > 0 and rest_k > piece * (THREADS * LANES // extent)
        at = way.base + start * way.stride_k + piece * way.hop
        copy16(shared, tile + way.to + piece * THREADS * LANES, x, at, LANES * 2 if inside else 0)


@functools.cache
def _multiply(a_along_k, b_along_k):
    @cuda.jit(device=True)
    def fetch_stage(shared, to, a, b, a_way, b_way, start):
        fetch(shared, to, a, a_way, start, a_along_k, HEIGHT)
        fetch(shared, to + A, b, b_way, start, b_along_k, WIDTH)
        copy_commit()

    @cuda.jit(device=True)
    def load(left, right, shared, tiles, k):
        """A warp's fragments of 16 of a stage's k."""
        warp = (cuda.threadIdx.x & (THREADS - 1)) // 32
        y, x = warp // 2 * WARP, warp % 2 * WARP
        for i in range(ROWS):
            found = matrices(shared, tiles, a_along_k, True, y + i * 16, k, HEIGHT)
            left[i, 0], left[i, 1], left[i, 2], left[i, 3] = found
        for i in range(ROWS):
            found = matrices(shared, tiles + A, b_along_k, False, x + i * 16, k, WIDTH)
            right[i, 0], right[i, 1], right[i, 2], right[i, 3] = found

    @cuda.jit(device=True)
    def multiply(sums, shared, a, b, a_way, b_way, K):
        left, right = cuda.local.array((ROWS, 4), uint32), cuda.local.array((ROWS, 4), uint32)
        next_left, next_right = cuda.local.array((ROWS, 4), uint32), cuda.local.array((ROWS, 4), uint32)
        for i in range(ROWS):
            for j in range(COLS):
                for r in range(4):
                    sums[i, j, r] = float32(0)
        for i in range(STAGES):
            fetch_stage(shared, i * STAGE, a, b, a_way, b_way, i * DEPTH)
        copy_wait(3)  # STAGES - 1
        cuda.syncthreads()
        load(left, right, shared, 0, 0)
        start, now = 0, 0
        while start < K:
            load(next_left, next_right, shared, now, 16)
            multiply_add(sums, a, left, right)
            copy_wait(2)
            cuda.syncthreads()  # the next stage has come for all, and all have read this one
            read, now = now, now + STAGE if now < (STAGES - 1) * STAGE else 0
            load(left, right, shared, now, 0)  # zeros at the end
            fetch_stage(shared, read, a, b, a_way, b_way, start + STAGES * DEPTH)
            multiply_add(sums, a, next_left, next_right)
            start += DEPTH
        copy_wait(0)
        cuda.syncthreads()  # before results overwrite the stages

    return multiply
