"""What the products c (M, N) = a (M, K) times b (K, N) share from the variant `tiled2d` on.

Kernels take operands as one-dimensional arrays with their strides, so that a kernel is compiled once for each dtype.
From `vectorised` on a block has a tile of TILE by TILE of c, a thread RESULTS by RESULTS of it, and tiles of a and b
are DEPTH deep.
"""

from typing import NamedTuple

import torch
from numba import cuda, float32

from touchstone.backends import Unsupported, numba
from touchstone.backends.numba.lib.ptx import load1, load4, store1, store4

TILE, DEPTH, RESULTS = (32, 8, 4) if numba.simulated() else (128, 8, 8)  # Numba's own simulator is slow
HEIGHT = WIDTH = TILE
SIDE = TILE // RESULTS
THREADS, BLOCKS = SIDE * SIDE, 2
PITCH = TILE + 4  # rows stay on 16 bytes, and transposed stores meet fewer bank conflicts
WORDS = DEPTH * PITCH  # of a tile of a, and of one of b
SHARED, ELEMENT = 4 * WORDS, float32  # two tiles of each
BYTES = 0  # of dynamic shared memory
SUMS = (RESULTS, RESULTS)  # of a thread
GROUP = TILE // 2  # of two operands side by side, columns of one before those of the other
PARTS, STAGED = 4, TILE // 4  # rows of results that shared memory holds at a time
ALIGNMENT = None if numba.simulated() else 16  # of shared arrays that are read 16 bytes at a time
LANES = TILE * DEPTH // THREADS  # four neighbours of each tile, which a thread brings
_GRID_LIMIT = 2**31 - 1


def kernel(threads: int, per_multiprocessor: int):
    """cuda.jit for blocks of `threads`; that many of them fit into a multiprocessor, which bounds the registers."""
    return cuda.jit if numba.simulated() else cuda.jit(launch_bounds=(threads, per_multiprocessor))


def flat(x: torch.Tensor) -> torch.Tensor:
    """The memory from the first to the last element of x as one axis."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.as_strided((extent,), (1,))


def is_along_k(x: torch.Tensor, k_axis: int) -> bool:
    """Whether neighbours along k are read together: k is the axis of stride 1, or there is none."""
    return x.stride(k_axis) == 1 or x.stride(1 - k_axis) != 1


def is_wide(x: torch.Tensor, k_axis: int, along_k: bool, lanes: int = LANES) -> bool:
    """Whether x can be read in whole, aligned pieces of `lanes` elements along k or along its other axis."""
    axis = k_axis if along_k else 1 - k_axis
    aligned = x.data_ptr() % (lanes * x.element_size()) == 0 and x.stride(1 - axis) % lanes == 0
    return x.stride(axis) == 1 and aligned and x.shape[axis] % lanes == 0


def operands(a: torch.Tensor, b: torch.Tensor, lanes: int = LANES) -> tuple:
    """What a kernel takes of a (M, K) and b (K, N) beside their memory: M, N, K, strides, and bits.

    Bits: a is_along_k, is_wide; b is_along_k, is_wide.
    """
    (M, K), N = a.shape, b.shape[1]
    return M, N, K, *a.stride(), *b.stride(), _bits(a, 1, lanes) + 4 * _bits(b, 0, lanes)


def pair_operands(a: torch.Tensor, even: torch.Tensor, odd: torch.Tensor, lanes: int = LANES) -> tuple:
    """The same of two operands (K, N) side by side, which are read alike; a fifth bit: odd is_wide."""
    *rest, bits = operands(a, even, lanes)
    return *rest[:-2], *even.stride(), *odd.stride(), bits + 16 * is_wide(odd, 0, is_along_k(even, 0), lanes)


def bias(bias: torch.Tensor | None, other: torch.Tensor) -> tuple[torch.Tensor, int, bool]:
    """A bias as a kernel takes it: memory, stride, and whether there is one; without one any memory will do."""
    return (flat(other), 0, False) if bias is None else (flat(bias), bias.stride(0), True)


def _bits(x: torch.Tensor, k_axis: int, lanes: int) -> int:
    along_k = is_along_k(x, k_axis)
    return along_k + 2 * is_wide(x, k_axis, along_k, lanes)


def tile_grid(M: int, N: int, height: int, width: int) -> int:
    """Tiles of height by width that cover (M, N); declines more than a grid has blocks."""
    tiles = -(-M // height) * -(-N // width)
    if tiles > _GRID_LIMIT:
        raise Unsupported(f"{M} by {N} results; a grid has {_GRID_LIMIT} blocks of {height} by {width}")
    return tiles


class Way(NamedTuple):
    """Where a thread's four neighbours of every tile of an operand lie."""

    i: int  # within the tile, along m or n
    k: int
    rest: int  # elements of the operand from there on, along m or n
    depth: int
    along_k: bool  # whether the four lie along k
    wide: bool
    base: int  # where the first lies at k = 0
    step: int  # from one to the next
    stride_k: int


@cuda.jit(device=True)
def corner(M, N, height, width):
    """First row and column of the block's tile.

    Blocks go down groups of eight tile rows before they go right: those in flight share operands in L2.
    """
    tiles_m, tiles_n = (M + height - 1) // height, (N + width - 1) // width
    number = cuda.blockIdx.x & 0x7FFFFFFF
    group, within = number // (8 * tiles_n), number % (8 * tiles_n)
    rows = min(tiles_m - group * 8, 8)
    return (group * 8 + within % rows) * height, within // rows * width


@cuda.jit(device=True)
def is_odd(along_k):
    """Whether this thread brings the second of two operands side by side, the right half of a tile."""
    thread = cuda.threadIdx.x & (THREADS - 1)
    return (thread // (DEPTH // LANES) if along_k else thread % (TILE // LANES) * LANES) // GROUP % 2 == 1


@cuda.jit(device=True)
def find_way(length, depth, stride, stride_k, along_k, wide, first, group, extent):
    """The Way of this thread through an operand (length, depth), for the block's place `first` along m or n.

    A tile of `extent` places is `group` of this operand, `group` of another and so on; all of this one for group =
    extent.
    """
    thread = cuda.threadIdx.x & (THREADS - 1)
    if along_k:
        i, k, step = thread // (DEPTH // LANES), thread % (DEPTH // LANES) * LANES, stride_k
    else:
        i, k, step = thread % (extent // LANES) * LANES, thread // (extent // LANES), stride
    at = first + i // (2 * group) * group + i % group
    return Way(i, k, length - at, depth, along_k != 0, wide != 0, at * stride + k * stride_k, step, stride_k)


@cuda.jit(device=True)
def load_tile(held, x, way, start):
    """held = this thread's four elements of the tile that begins at k = start, zeros beyond the operand."""
    rest_k = way.depth - start - way.k
    at = way.base + start * way.stride_k
    if way.along_k:
        count = rest_k if way.rest > 0 else 0
    else:
        count = way.rest if rest_k > 0 else 0
    if way.wide and count > 0:
        load4(held, 0, x, at)
    else:
        for j in range(LANES):
            held[j] = load1(x, at + j * way.step) if j < count else float32(0)


@cuda.jit(device=True)
def store_tile(shared, tile, held, way):
    """held to its place in a tile [DEPTH][PITCH], in which the axis of m or n is the contiguous one."""
    place = tile + way.k * PITCH + way.i
    if way.along_k:
        for j in range(LANES):
            store1(shared, place + j * PITCH, held[j])
    else:
        store4(shared, place, held[0], held[1], held[2], held[3])


@cuda.jit(device=True)
def multiply_tiles(sums, shared, a_tile, b_tile):
    """sums += a tile of a times a tile of b, of the rows and columns of a thread."""
    left = cuda.local.array(RESULTS, float32)
    right = cuda.local.array(RESULTS, float32)
    y, x = place()
    for k in range(DEPTH):
        for i in range(0, RESULTS, 4):
            load4(left, i, shared, a_tile + k * PITCH + y + i * SIDE)
            load4(right, i, shared, b_tile + k * PITCH + x + i * SIDE)
        for i in range(RESULTS):
            for j in range(RESULTS):
                sums[i, j] += left[i] * right[j]


@cuda.jit(device=True)
def load_words(left, right, shared, a_tile, b_tile, k):
    """What a thread multiplies of row k of both tiles."""
    y, x = place()
    for i in range(0, RESULTS, 4):
        load4(left, i, shared, a_tile + k * PITCH + y + i * SIDE)
        load4(right, i, shared, b_tile + k * PITCH + x + i * SIDE)


@cuda.jit(device=True)
def add_products(sums, left, right):
    for i in range(RESULTS):
        for j in range(RESULTS):
            sums[i, j] += left[i] * right[j]


@cuda.jit(device=True)
def multiply_ahead(sums, shared, a_tile, b_tile):
    """The same, with the words of the next k on their way while those of this one are multiplied."""
    left = cuda.local.array(RESULTS, float32)
    right = cuda.local.array(RESULTS, float32)
    next_left = cuda.local.array(RESULTS, float32)
    next_right = cuda.local.array(RESULTS, float32)
    load_words(left, right, shared, a_tile, b_tile, 0)
    k = 0
    while k < DEPTH:
        load_words(next_left, next_right, shared, a_tile, b_tile, k + 1)
        add_products(sums, left, right)
        k += 2
        load_words(left, right, shared, a_tile, b_tile, k % DEPTH)  # at the end once more those of k = 0
        add_products(sums, next_left, next_right)


@cuda.jit(device=True)
def clear(sums):
    for i in range(RESULTS):
        for j in range(RESULTS):
            sums[i, j] = float32(0)


@cuda.jit(device=True)
def multiply(sums, shared, a, b, a_way, b_way, K):
    """sums = this block's tile of a times that of b, with two buffers for the tiles of K."""
    a_held = cuda.local.array(LANES, float32)
    b_held = cuda.local.array(LANES, float32)
    clear(sums)
    load_tile(a_held, a, a_way, 0)
    load_tile(b_held, b, b_way, 0)
    store_tile(shared, 0, a_held, a_way)
    store_tile(shared, WORDS, b_held, b_way)
    cuda.syncthreads()
    start, now = 0, 0
    while start < K:
        more = start + DEPTH < K
        if more:  # under way while this tile is multiplied
            load_tile(a_held, a, a_way, start + DEPTH)
            load_tile(b_held, b, b_way, start + DEPTH)
        multiply_ahead(sums, shared, now, now + WORDS)
        now = 2 * WORDS - now
        if more:
            store_tile(shared, now, a_held, a_way)
            store_tile(shared, now + WORDS, b_held, b_way)
        cuda.syncthreads()  # the one barrier of a step: the next tile is there, and this one has been read
        start += DEPTH


@cuda.jit(device=True)
def place():
    """A thread's first row and column of the tile: four neighbours, and four more half a tile on."""
    thread = cuda.threadIdx.x & (THREADS - 1)
    return thread // SIDE * 4, thread % SIDE * 4


@cuda.jit(device=True)
def stage(results, sums, part):
    """The sums of a quarter of the threads, STAGED rows of the tile, to shared memory [STAGED][PITCH]."""
    thread = cuda.threadIdx.x & (THREADS - 1)
    y, x = thread // SIDE, thread % SIDE * 4
    if y // (SIDE // PARTS) == part:
        for i in range(RESULTS):
            for j in range(0, RESULTS, 4):
                at = (y % (SIDE // PARTS) * RESULTS + i) * PITCH + x + far(j)
                store4(results, at, sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])


@cuda.jit(device=True)
def staged_row(part, row):
    """Which row of the tile is a row of those in shared memory."""
    return (part * (SIDE // PARTS) + row // RESULTS) * 4 + far(row % RESULTS)


@cuda.jit(device=True)
def far(i):
    """How far a thread's row or column i is from its first."""
    return i // 4 * 4 * SIDE + i % 4


@cuda.jit(device=True)
def store_four(c, row, col, first, second, third, fourth):
    """Four neighbours of a row of c, those within it, by one access where every row is aligned to it."""
    N = c.shape[1]
    at = row * N + col
    if N % 4 == 0:
        if col < N:
            store4(c, at, first, second, third, fourth)
    else:
        if col < N:
            store1(c, at, first)
        if col + 1 < N:
            store1(c, at + 1, second)
        if col + 2 < N:
            store1(c, at + 2, third)
        if col + 3 < N:
            store1(c, at + 3, fourth)
