"""splitk: several blocks share a tile of c, each with its own part of K; a second kernel adds their sums."""

import functools

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends import shapes
from touchstone.backends.devices import multiprocessors
from touchstone.backends.numba.lib import mma
from touchstone.backends.numba.lib.gemm import corner, flat, kernel, operands, tile_grid
from touchstone.backends.numba.lib.mma import sixteen_bits
from touchstone.backends.numba.lib.ptx import store1
from touchstone.backends.numba.lib.tensorcores import fastest
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import HALF, variant

_CPU_PROCESSORS = 4  # of the GPU that the emulator pretends: few, so that a split of K is seen and costs little
_LEAST = 256  # of K: less would not pay for storing and adding sums
_THREADS = 256


@functools.cache
def _partial_product(core, multiply):
    """The kernel that adds up `chunk` of K for a tile; blockIdx.y counts the parts."""
    HEIGHT, WIDTH, PARTS, STAGED, PITCH, THREADS = (
        core.HEIGHT,
        core.WIDTH,
        core.PARTS,
        core.STAGED,
        core.PITCH,
        core.THREADS,
    )
    SHARED, ELEMENT, ALIGNMENT, SUMS = core.SHARED, core.ELEMENT, core.ALIGNMENT, core.SUMS
    find_way, stage, staged_row = core.find_way, core.stage, core.staged_row

    @kernel(THREADS, core.BLOCKS)
    def product(a, b, partial, chunk, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, bits):
        shared = cuda.shared.array(SHARED, ELEMENT, ALIGNMENT)
        results = shared.view(np.float32)
        sums = cuda.local.array(SUMS, float32)
        first_m, first_n = corner(M, N, HEIGHT, WIDTH)
        start = int64(cuda.blockIdx.y) * chunk
        depth = min(chunk, K - start)
        a_way = find_way(M, depth, stride_am, stride_ak, bits & 1, bits & 2, first_m, HEIGHT, HEIGHT)
        b_way = find_way(N, depth, stride_bn, stride_bk, bits & 4, bits & 8, first_n, WIDTH, WIDTH)
        multiply(sums, shared, a[start * stride_ak :], b[start * stride_bk :], a_way, b_way, depth)
        for part in range(PARTS):
            stage(results, sums, part)
            cuda.syncthreads()
            at = cuda.threadIdx.x & (THREADS - 1)
            while at < STAGED * WIDTH:
                row, col = at // WIDTH, at % WIDTH
                m, n = first_m + staged_row(part, row), first_n + col
                if m < M and n < N:
                    partial[uint64(cuda.blockIdx.y), uint64(m), uint64(n)] = results[row * PITCH + col]
                at += THREADS
            cuda.syncthreads()

    return product


@cuda.jit
def _add(partial, c, size):
    i = int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
    if i < size:
        total = float32(0)
        for part in range(uint64(partial.shape[0])):  # one order: one answer
            total += partial[part, uint64(i)]
        store1(c, i, total)


@variant(needs="sm_80", dtypes=HALF)
def splitk(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides, whole pieces of 16 bytes fastest.

    Declines float32. As [hoque2024], with partials for atomics.
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    c = a.new_empty(M, N)
    if c.numel() == 0:
        return c
    core, loop = fastest(a, b) if M > mma.HEIGHT else (mma, mma.multiply)
    tiles = tile_grid(M, N, core.HEIGHT, core.WIDTH)
    processors = multiprocessors(a.device) if a.is_cuda else _CPU_PROCESSORS
    parts = max(1, min(core.BLOCKS * processors // tiles, K // _LEAST))
    chunk = max(-(-K // (parts * mma.DEPTH)), 1) * mma.DEPTH
    parts = max(1, -(-K // chunk))
    partial = a.new_empty(parts, M, N, dtype=torch.float32)
    given = operands(a, b, core.LANES)
    product = _partial_product(core, loop)
    launch(product, (tiles, parts), core.THREADS, flat(a), flat(b), partial, chunk, *given, shared=core.BYTES)
    launch(_add, -(-M * N // _THREADS), _THREADS, partial.view(parts, M * N), c.view(-1), M * N)
    return c
