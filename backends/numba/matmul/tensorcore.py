"""tensorcore: 16-bit operands on the tensor cores, through a pipeline of asynchronous copies."""

import numpy as np
import torch
from numba import cuda, float32

from backends import shapes
from backends.numba.gemm import blocks, corner, flat, kernel, operands, store_four
from backends.numba.launching import launch
from backends.numba.mma import (
    ALIGNMENT,
    ELEMENT,
    LANES,
    PARTS,
    PITCH,
    SHARED,
    STAGED,
    SUMS,
    THREADS,
    TILE,
    find_way,
    multiply,
    sixteen_bits,
    stage,
    staged_row,
)  # fmt: skip
from backends.numba.ptx import load4


@kernel(THREADS, 2)
def _tensorcore(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, bits):
    shared = cuda.shared.array(SHARED, ELEMENT, ALIGNMENT)
    results = shared.view(np.float32)
    sums = cuda.local.array(SUMS, float32)
    values = cuda.local.array(4, float32)
    first_m, first_n = corner(M, N, TILE, TILE)
    a_way = find_way(M, K, stride_am, stride_ak, bits & 1, bits & 2, first_m, TILE)
    b_way = find_way(N, K, stride_bn, stride_bk, bits & 4, bits & 8, first_n, TILE)
    multiply(sums, shared, a, b, a_way, b_way, K)
    for part in range(PARTS):
        stage(results, sums, part)
        cuda.syncthreads()
        at = (cuda.threadIdx.x & (THREADS - 1)) * 4
        while at < STAGED * TILE:  # a warp stores whole rows
            row, col = at // TILE, at % TILE
            m, n = first_m + staged_row(part, row), first_n + col
            if m < M:
                load4(values, 0, results, row * PITCH + col)
                store_four(c, m, n, values[0], values[1], values[2], values[3])
            at += THREADS * 4
        cuda.syncthreads()


def tensorcore(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides, an axis of stride 1 on 16 bytes fastest.

    Declines float32, which these instructions do not take. Source: B-12.
    """
    M, _, N = shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    c = a.new_empty(M, N)
    if c.numel():
        launch(_tensorcore, blocks(M, N, TILE, TILE), THREADS, flat(a), flat(b), c, *operands(a, b, LANES))
    return c


tensorcore.needs = "sm_80"
tensorcore.dtypes = ("float16", "bfloat16")
