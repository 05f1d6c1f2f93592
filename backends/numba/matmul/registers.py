"""tiled2d, vectorised, doublebuffered: a thread keeps a square of c in registers; then how operands reach it."""

import torch
from numba import cuda, float32, uintp

from touchstone.backends import shapes
from touchstone.backends.numba.lib.gemm import (
    ALIGNMENT,
    DEPTH,
    LANES,
    RESULTS,
    SHARED,
    SUMS,
    THREADS,
    TILE,
    WORDS,
    clear,
    corner,
    far,
    find_way,
    flat,
    kernel,
    load_tile,
    multiply,
    multiply_tiles,
    operands,
    place,
    store_four,
    store_tile,
    tile_grid,
)
from touchstone.backends.numba.lib.ptx import load1, store1
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant

_TILE, _DEPTH, _RESULTS = 64, 8, 8  # of tiled2d
_SIDE = _TILE // _RESULTS
_THREADS = _SIDE * _SIDE
_PITCH = _TILE + 1
_HALF = SHARED // 2  # of `vectorised`: one tile of each


@cuda.jit
def _tiled2d(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn):
    a_tile = cuda.shared.array((_DEPTH, _PITCH), float32)  # a is stored transposed; + 1 spreads that over the banks
    b_tile = cuda.shared.array((_DEPTH, _TILE), float32)
    sums = cuda.local.array((_RESULTS, _RESULTS), float32)
    left = cuda.local.array(_RESULTS, float32)
    right = cuda.local.array(_RESULTS, float32)
    first_m, first_n = corner(M, N, _TILE, _TILE)
    thread = cuda.threadIdx.x & (_THREADS - 1)
    y, x = thread // _SIDE, thread % _SIDE  # a thread's rows and columns are _SIDE apart
    for i in range(_RESULTS):
        for j in range(_RESULTS):
            sums[i, j] = float32(0)
    start = 0
    while start < K:
        for piece in range(_TILE * _DEPTH // _THREADS):
            at = piece * _THREADS + thread
            i, k = at // _DEPTH, at % _DEPTH
            m, inside = first_m + i, first_m + i < M and start + k < K
            a_tile[k, i] = load1(a, m * stride_am + (start + k) * stride_ak) if inside else float32(0)
            k, j = at // _TILE, at % _TILE
            n, inside = first_n + j, start + k < K and first_n + j < N
            b_tile[k, j] = load1(b, (start + k) * stride_bk + n * stride_bn) if inside else float32(0)
        cuda.syncthreads()
        for k in range(_DEPTH):
            for i in range(_RESULTS):  # 2 RESULTS loads serve RESULTS * RESULTS products
                left[i] = a_tile[uintp(k), y + i * _SIDE]
                right[i] = b_tile[uintp(k), x + i * _SIDE]
            for i in range(_RESULTS):
                for j in range(_RESULTS):
                    sums[i, j] += left[i] * right[j]
        cuda.syncthreads()
        start += _DEPTH
    for i in range(_RESULTS):
        m = first_m + y + i * _SIDE
        for j in range(_RESULTS):
            n = first_n + x + j * _SIDE
            if m < M and n < N:
                store1(c, m * N + n, sums[i, j])


@variant()
def tiled2d(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides. Source: [volkov2010]."""
    M, _, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        *given, _ = operands(a, b)
        launch(_tiled2d, tile_grid(M, N, _TILE, _TILE), _THREADS, flat(a), flat(b), c, *given)
    return c


@kernel(THREADS, 2)
def _vectorised(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, bits):
    shared = cuda.shared.array(_HALF, float32, ALIGNMENT)
    sums = cuda.local.array(SUMS, float32)
    held = cuda.local.array(LANES, float32)
    first_m, first_n = corner(M, N, TILE, TILE)
    a_way = find_way(M, K, stride_am, stride_ak, bits & 1, bits & 2, first_m, TILE, TILE)
    b_way = find_way(N, K, stride_bn, stride_bk, bits & 4, bits & 8, first_n, TILE, TILE)
    clear(sums)
    start = 0
    while start < K:
        load_tile(held, a, a_way, start)
        store_tile(shared, 0, held, a_way)
        load_tile(held, b, b_way, start)
        store_tile(shared, WORDS, held, b_way)
        cuda.syncthreads()
        multiply_tiles(sums, shared, 0, WORDS)
        cuda.syncthreads()
        start += DEPTH
    y, x = place()
    for i in range(RESULTS):
        m = first_m + y + far(i)
        for j in range(0, RESULTS, 4):
            if m < M:
                store_four(c, m, first_n + x + far(j), sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])


@variant()
def vectorised(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides, an axis of stride 1 on 16 bytes fastest [boehm2022]."""
    M, _, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        launch(_vectorised, tile_grid(M, N, TILE, TILE), THREADS, flat(a), flat(b), c, *operands(a, b))
    return c


@kernel(THREADS, 2)
def _doublebuffered(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, bits):
    shared = cuda.shared.array(SHARED, float32, ALIGNMENT)
    sums = cuda.local.array(SUMS, float32)
    first_m, first_n = corner(M, N, TILE, TILE)
    a_way = find_way(M, K, stride_am, stride_ak, bits & 1, bits & 2, first_m, TILE, TILE)
    b_way = find_way(N, K, stride_bn, stride_bk, bits & 4, bits & 8, first_n, TILE, TILE)
    multiply(sums, shared, a, b, a_way, b_way, K)
    y, x = place()
    for i in range(RESULTS):
        m = first_m + y + far(i)
        for j in range(0, RESULTS, 4):
            if m < M:
                store_four(c, m, first_n + x + far(j), sums[i, j], sums[i, j + 1], sums[i, j + 2], sums[i, j + 3])


@variant()
def doublebuffered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides, an axis of stride 1 on 16 bytes fastest [boehm2022]."""
    M, _, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        launch(_doublebuffered, tile_grid(M, N, TILE, TILE), THREADS, flat(a), flat(b), c, *operands(a, b))
    return c
