"""The main loop of `tensorcore`: tiles of 16-bit operands come by cp.async, two of them under way while a third is
multiplied.

A block of four warps has a tile of TILE by TILE of c, a warp a quarter of it, in pieces of 16 by 16 by 8 with float32
accumulators.
"""

from typing import NamedTuple

import torch
from numba import cuda, float32, uint16, uint32, uintp

from touchstone.backends import Unsupported
from touchstone.backends.numba.lib.ptx import (
    copy16,
    copy_bits,
    copy_commit,
    copy_wait,
    ldmatrix_x4,
    mma_m16n8k16,
    store2,
)

TILE, DEPTH, STAGES, THREADS, BLOCKS = 128, 32, 3, 128, 2
HEIGHT = WIDTH = TILE
WARP = TILE // 2  # four warps, each a quarter of the tile
LANES = 8  # elements of 16 bytes, what cp.async and a row of ldmatrix move
SIZE = TILE * DEPTH  # elements of a tile of a, and of one of b
SHARED, ELEMENT, ALIGNMENT = 2 * STAGES * SIZE, uint16, 16  # 48 KB, the most that a kernel has without asking
BYTES = 0  # of dynamic shared memory
PIECES = SIZE // LANES // THREADS  # of each tile, a thread
PIECE = THREADS * LANES  # elements from one piece of a thread to the next
ROWS, COLS = WARP // 16, WARP // 8  # of a warp's results, in pieces of 16 by 8
SUMS = (ROWS, COLS, 4)  # of a thread
GROUP = 8  # of two operands side by side, columns of one before those of the other
PARTS, STAGED = 2, WARP  # rows of results that shared memory holds at a time
PITCH = WIDTH + 8  # as floats; the eight groups and four members of a warp store to different banks


def sixteen_bits(dtype: torch.dtype) -> None:
    """Raise Unsupported for float32."""
    if dtype is torch.float32:
        raise Unsupported("float32; mma.sync multiplies 16-bit operands")


class Way(NamedTuple):
    """Where a thread's pieces of every tile of an operand lie: eight neighbours each."""

    to: int  # within the tile, of the first piece
    base: int  # within the operand at k = 0, of the first piece
    hop: int  # within the operand from piece to piece
    step: int  # from one of the eight to the next
    stride_k: int
    rest: int  # elements of the operand along m or n from the first piece on
    rest_k: int  # and along k
    share: int  # places of a tile along m or n for each place of the operand
    along_k: bool  # whether the eight lie along k
    wide: bool


@cuda.jit(device=True)
def turned(along_k, row, chunk):
    """Chunks of a row of a tile change places, so that the same chunk of eight rows, a matrix of ldmatrix, has all
    banks."""
    return chunk ^ (row // 2 % 4 if along_k else row % 8)


@cuda.jit(device=True)
def is_odd(along_k):
    """Whether this thread brings the second of two operands side by side, GROUP places of each in turn."""
    thread = cuda.threadIdx.x & (THREADS - 1)
    return (thread // (DEPTH // LANES) if along_k else thread % (TILE // LANES) * LANES) // GROUP % 2 == 1


@cuda.jit(device=True)
def find_way(length, depth, stride, stride_k, along_k, wide, first, group, extent):
    """The Way of this thread through an operand (length, depth), for the block's place `first` along m or n.

    A tile of `extent` places is `group` of this operand, `group` of another and so on; all of this one for group =
    extent.
    """
    thread = cuda.threadIdx.x & 1023
    piece = cuda.blockDim.x * LANES  # elements of a tile from one piece of a thread to the next
    share = 2 if group < extent else 1
    if along_k:
        i, k = thread // (DEPTH // LANES), thread % (DEPTH // LANES) * LANES
        to = (i * (DEPTH // LANES) + turned(True, i, k // LANES)) * LANES
        hop, step = piece // DEPTH // share * stride, stride_k
    else:
        i, k = thread % (extent // LANES) * LANES, thread // (extent // LANES)
        to = (k * (extent // LANES) + turned(False, k, i // LANES)) * LANES
        hop, step = piece // extent * stride_k, stride
    at = first + i // (2 * group) * group + i % group
    base = at * stride + k * stride_k
    return Way(to, base, hop, step, stride_k, length - at, depth - k, share, along_k != 0, wide != 0)


@cuda.jit(device=True)
def fetch(shared, tile, x, way, start):
    """Start copying this thread's pieces of the tile that begins at k = start, zeros beyond the operand."""
    rest_k = way.rest_k - start
    source = way.base + start * way.stride_k
    target = tile + way.to
    for piece in range(PIECES):
        if way.along_k:
            count = rest_k if way.rest > piece * (PIECE // DEPTH) // way.share else 0
        else:
            count = way.rest if rest_k > piece * (PIECE // TILE) else 0
        to, at = target + piece * PIECE, source + piece * way.hop
        if way.wide:
            copy16(shared, to, x, at, LANES * 2 if count > 0 else 0)
        else:
            j = 0
            while j < LANES:
                if j < count:
                    copy_bits(shared, to + j, x, at + j * way.step)
                else:
                    shared[uintp(to + j)] = uint16(0)
                j += 1


@cuda.jit(device=True)
def matrices(shared, tile, along_k, left, place, k, extent):
    """Four 8 x 8 matrices: of a 16 rows by 16 of k in the order of mma's registers; of b 16 columns, two for each
    eight."""
    lane = cuda.threadIdx.x & 31
    if along_k == left:
        down, right = lane % 16, lane // 16
    else:
        down, right = lane // 16 * 8 + lane % 8, lane // 8 % 2
    if along_k:
        at = (place + down) * DEPTH + ((k // LANES) ^ turned(True, down, right)) * LANES
    else:
        at = (k + down) * extent + ((place // LANES) ^ turned(False, down, right)) * LANES
    return ldmatrix_x4(shared, tile + at, 0 if along_k else 1)


@cuda.jit(device=True)
def multiply_add(sums, like, left, right):
    """sums += left times right, the fragments of a warp."""
    for i in range(ROWS):
        for j in range(COLS):
            sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = mma_m16n8k16(
                like,
                left[i, 0],
                left[i, 1],
                left[i, 2],
                left[i, 3],
                right[j // 2, j % 2 * 2],
                right[j // 2, j % 2 * 2 + 1],
                sums[i, j, 0],
                sums[i, j, 1],
                sums[i, j, 2],
                sums[i, j, 3],
            )


@cuda.jit(device=True)
def multiply_stage(sums, shared, stage, a, a_along_k, b_along_k):
    """sums += the stage's tile of a times its tile of b, of the warp's rows and columns."""
    left = cuda.local.array((ROWS, 4), uint32)
    right = cuda.local.array((ROWS, 4), uint32)
    warp = (cuda.threadIdx.x & (THREADS - 1)) // 32
    y, x = warp // 2 * WARP, warp % 2 * WARP
    for k in range(0, DEPTH, 16):
        for i in range(ROWS):
            found = matrices(shared, stage, a_along_k, True, y + i * 16, k, HEIGHT)
            left[i, 0], left[i, 1], left[i, 2], left[i, 3] = found
            found = matrices(shared, stage + SIZE, b_along_k, False, x + i * 16, k, WIDTH)
            right[i, 0], right[i, 1], right[i, 2], right[i, 3] = found
        multiply_add(sums, a, left, right)


@cuda.jit(device=True)
def multiply(sums, shared, a, b, a_way, b_way, K):
    """sums = this block's tile of a times that of b."""
    for i in range(ROWS):
        for j in range(COLS):
            for r in range(4):
                sums[i, j, r] = float32(0)
    for stage in range(STAGES - 1):
        if stage * DEPTH < K:
            fetch(shared, stage * 2 * SIZE, a, a_way, stage * DEPTH)
            fetch(shared, stage * 2 * SIZE + SIZE, b, b_way, stage * DEPTH)
        copy_commit()
    start, now, next = 0, 0, (STAGES - 1) * 2 * SIZE
    while start < K:
        copy_wait(1)  # STAGES - 2
        cuda.syncthreads()  # this stage has come for all, and all have read the stage that is replaced next
        if start + (STAGES - 1) * DEPTH < K:
            fetch(shared, next, a, a_way, start + (STAGES - 1) * DEPTH)
            fetch(shared, next + SIZE, b, b_way, start + (STAGES - 1) * DEPTH)
        copy_commit()  # an empty group too: the wait counts groups
        multiply_stage(sums, shared, now, a, a_way.along_k, b_way.along_k)
        start += DEPTH
        next, now = now, now + 2 * SIZE if now < (STAGES - 1) * 2 * SIZE else 0
    cuda.syncthreads()  # before results overwrite the last stage


@cuda.jit(device=True)
def stage(results, sums, part):
    """The sums of two warps, STAGED rows of the tile, to shared memory [STAGED][PITCH] as float32."""
    thread = cuda.threadIdx.x & 1023
    warp, lane = thread // 32, thread % 32
    if warp // 2 == part:
        for i in range(ROWS):
            for half in range(2):
                for j in range(COLS):
                    at = (i * 16 + half * 8 + lane // 4) * PITCH + warp % 2 * WARP + j * 8 + lane % 4 * 2
                    store2(results, at, sums[i, j, half * 2], sums[i, j, half * 2 + 1])


@cuda.jit(device=True)
def staged_row(part, row):
    """Which row of the tile is a row of those in shared memory."""
    return part * STAGED + row
