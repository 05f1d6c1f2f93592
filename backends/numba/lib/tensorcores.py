"""Products on the tensor cores: what the variants of matmul and of the MLPs share around the main loops of mma.py and
pipeline.py."""

import functools

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends.numba.lib import mma, pipeline
from touchstone.backends.numba.lib.gemm import corner, flat, kernel, operands, store_four, tile_grid
from touchstone.backends.numba.lib.ptx import load4
from touchstone.backends.numba.runtime.launching import launch


@functools.cache
def _product(core, multiply):
    """The kernel c = a·b on the main loop `multiply` of mma.py or pipeline.py."""
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
    def product(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, bits):
        shared = cuda.shared.array(SHARED, ELEMENT, ALIGNMENT)
        results = shared.view(np.float32)
        sums = cuda.local.array(SUMS, float32)
        values = cuda.local.array(4, float32)
        first_m, first_n = corner(M, N, HEIGHT, WIDTH)
        a_way = find_way(M, K, stride_am, stride_ak, bits & 1, bits & 2, first_m, HEIGHT, HEIGHT)
        b_way = find_way(N, K, stride_bn, stride_bk, bits & 4, bits & 8, first_n, WIDTH, WIDTH)
        multiply(sums, shared, a, b, a_way, b_way, K)
        for part in range(PARTS):
            stage(results, sums, part)
            cuda.syncthreads()
            at = (cuda.threadIdx.x & (THREADS - 1)) * 4
            while at < STAGED * WIDTH:  # a warp stores whole rows
                row, col = at // WIDTH, at % WIDTH
                m, n = first_m + staged_row(part, row), first_n + col
                if m < M:
                    load4(values, 0, results, row * PITCH + col)
                    store_four(c, m, n, values[0], values[1], values[2], values[3])
                at += THREADS * 4
            cuda.syncthreads()

    return product


def multiplied(core, multiply, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a·b on one of the main loops."""
    M, N = a.shape[0], b.shape[1]
    c = a.new_empty(M, N)
    if c.numel():
        grid, given = tile_grid(M, N, core.HEIGHT, core.WIDTH), operands(a, b, core.LANES)
        launch(_product(core, multiply), grid, core.THREADS, flat(a), flat(b), c, *given, shared=core.BYTES)
    return c


def fastest(a: torch.Tensor, *others: torch.Tensor) -> tuple:
    """pipeline.py with its main loop where the operands are in whole pieces of 16 bytes, else mma.py with its own."""
    loop = pipeline.loop(a, *others)
    return (mma, mma.multiply) if loop is None else (pipeline, loop)
