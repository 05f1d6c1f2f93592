"""tensorcore, pipelined: 16-bit operands on the tensor cores; then larger tiles, and fragments ahead of their
products."""

import functools

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import Unsupported, shapes
from touchstone.backends.numba.lib import mma, pipeline
from touchstone.backends.numba.lib.gemm import blocks, corner, flat, kernel, operands, store_four
from touchstone.backends.numba.lib.mma import sixteen_bits
from touchstone.backends.numba.lib.ptx import load4
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import HALF, variant


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
        grid, given = blocks(M, N, core.HEIGHT, core.WIDTH), operands(a, b, core.LANES)
        launch(_product(core, multiply), grid, core.THREADS, flat(a), flat(b), c, *given, shared=core.BYTES)
    return c


def fastest(a: torch.Tensor, *others: torch.Tensor) -> tuple:
    """pipeline.py with its main loop where the operands are in whole pieces of 16 bytes, else mma.py with its own."""
    loop = pipeline.loop(a, *others)
    return (mma, mma.multiply) if loop is None else (pipeline, loop)


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides, an axis of stride 1 on 16 bytes fastest.

    Declines float32, which these instructions do not take. Source: [kerr2020].
    """
    shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    return multiplied(mma, mma.multiply, a, b)


@variant(needs="sm_80", dtypes=HALF)
def pipelined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), either axis of an operand contiguous.

    Declines float32, and operands that are not in whole pieces of 16 bytes. Source: [kerr2020].
    """
    shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    loop = pipeline.loop(a, b)
    if loop is None:
        raise Unsupported("rows or columns that are not whole pieces of 16 bytes")
    return multiplied(pipeline, loop, a, b)
