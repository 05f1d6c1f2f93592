"""Gradients of y = h·w2 + b2, h = act(z), z = x·w1 + b1: dz = (dy·w2ᵀ)·act'(z), dx = dz·w1ᵀ, dw1 = xᵀ·dz, dw2 = hᵀ·dy.

db1 and db2 are the column sums of dz and dy. A transposed operand is the same memory with its strides exchanged.

unfused: five products, each elementwise step and each column sum a launch of its own [rumelhart1986]
epilogue: act and act' act on the accumulators of the first two products [oneflow2022]
tensorcore: the same on mma.sync, for 16-bit operands [oneflow2022]
"""

import functools

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.backends.numba import matmul
from touchstone.backends.numba.lib import gemm, mma
from touchstone.backends.numba.lib.activations import activate, number, slope
from touchstone.backends.numba.lib.gemm import corner, flat, kernel, operands, store_four, tile_grid
from touchstone.backends.numba.lib.mma import sixteen_bits
from touchstone.backends.numba.lib.ptx import load1, load4, store1
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import HALF, variant


@cuda.jit
def _hidden(z, hidden, bias, stride_bias, has_bias, activation):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < z.size:
        value = load1(z, i)
        if has_bias:
            value += load1(bias, i % z.shape[1] * stride_bias)
            store1(z, i, value)
        store1(hidden, i, activate(value, activation))


@cuda.jit
def _chain(dhidden, z, activation):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < z.size:
        store1(dhidden, i, load1(dhidden, i) * slope(load1(z, i), activation))


@cuda.jit
def _column_sum(x, total, rows, stride_row, stride_col):
    # A warp's lanes take 32 columns, the block's warps every eighth row of them.
    partial = cuda.shared.array((8, 32), float32)
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.y & 7
    col = cuda.blockIdx.x * 32 + lane
    value = float32(0)
    row = warp
    while row < rows and col < total.size:
        value += load1(x, row * stride_row + col * stride_col)
        row += 8
    partial[warp, lane] = value
    cuda.syncthreads()
    if warp == 0 and col < total.size:
        for other in range(1, 8):
            value += partial[other, lane]
        store1(total, col, value)


def _summed(x: torch.Tensor) -> torch.Tensor:
    """Sum over the rows of x (rows, cols)."""
    rows, cols = x.shape
    total = x.new_empty(cols)
    if cols:
        launch(_column_sum, tile_grid(1, cols, 1, 32), (32, 8), flat(x), total, rows, *x.stride())
    return total


@variant()
def unfused(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    dy: torch.Tensor,
    *,
    activation: str = "gelu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    Any sizes and strides; db1 and db2 are None where the bias is. Source: [rumelhart1986].
    """
    shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    kind, product = number(activation), matmul.doublebuffered
    z, dz = product(x, w1), product(dy, w2.t())
    hidden = torch.empty_like(z)
    if z.numel():
        grid = tile_grid(z.numel(), 1, 256, 1)
        launch(_hidden, grid, 256, z, hidden, *gemm.bias(b1, z), kind)
        launch(_chain, grid, 256, dz, z, kind)
    dx, dw1, dw2 = product(dz, w1.t()), product(x.t(), dz), product(hidden.t(), dy)
    return dx, dw1, None if b1 is None else _summed(dz), dw2, None if b2 is None else _summed(dy)


@functools.cache
def _activated(core):
    """On the main loop of gemm.py or mma.py, the kernels z = a·b + bias with c = act(z), and c = (a·b)·act'(z)."""
    HEIGHT, WIDTH, PARTS, STAGED, PITCH, THREADS = (
        core.HEIGHT,
        core.WIDTH,
        core.PARTS,
        core.STAGED,
        core.PITCH,
        core.THREADS,
    )
    SHARED, ELEMENT, ALIGNMENT, SUMS = core.SHARED, core.ELEMENT, core.ALIGNMENT, core.SUMS
    multiply, find_way, stage, staged_row = core.multiply, core.find_way, core.stage, core.staged_row

    @kernel(THREADS, core.BLOCKS)
    def activated(
        a,
        b,
        bias,
        z,
        c,
        M,
        N,
        K,
        stride_am,
        stride_ak,
        stride_bk,
        stride_bn,
        bits,
        stride_bias,
        has_bias,
        backward,
        activation,
    ):
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
            while at < STAGED * WIDTH:
                row, col = at // WIDTH, at % WIDTH
                m, n = first_m + staged_row(part, row), first_n + col
                if m < M:
                    load4(values, 0, results, row * PITCH + col)
                    if backward:
                        for j in range(4):
                            if n + j < N:
                                values[j] *= slope(load1(z, m * N + n + j), activation)
                    else:
                        for j in range(4):
                            if has_bias and n + j < N:
                                values[j] += load1(bias, (n + j) * stride_bias)
                        store_four(z, m, n, values[0], values[1], values[2], values[3])
                        for j in range(4):
                            values[j] = activate(values[j], activation)
                    store_four(c, m, n, values[0], values[1], values[2], values[3])
                at += THREADS * 4
            cuda.syncthreads()

    return activated


def _fused(
    core,
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    dy: torch.Tensor,
    activation: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """h = act(z) and dz = (dy·w2ᵀ)·act'(z), both (M, H), with z = x·w1 + b1, by the main loop of the module `core`."""
    M, H = x.shape[0], w1.shape[1]
    z, hidden, dz = x.new_empty(M, H), x.new_empty(M, H), x.new_empty(M, H)
    if z.numel():
        for a, b, c, backward in ((x, w1, hidden, False), (dy, w2.t(), dz, True)):
            memory, *rest = gemm.bias(None if backward else b1, z)
            grid, given = tile_grid(M, H, core.HEIGHT, core.WIDTH), operands(a, b, core.LANES)
            launch(
                _activated(core),
                grid,
                core.THREADS,
                flat(a),
                flat(b),
                memory,
                z,
                c,
                *given,
                *rest,
                backward,
                activation,
                shared=core.BYTES,
            )
    return hidden, dz


@variant()
def epilogue(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    dy: torch.Tensor,
    *,
    activation: str = "gelu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    Any sizes and strides; db1 and db2 are None where the bias is. Source: [oneflow2022].
    """
    shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    product = matmul.doublebuffered
    hidden, dz = _fused(gemm, x, w1, b1, w2, dy, number(activation))
    dx, dw1, dw2 = product(dz, w1.t()), product(x.t(), dz), product(hidden.t(), dy)
    return dx, dw1, None if b1 is None else _summed(dz), dw2, None if b2 is None else _summed(dy)


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    dy: torch.Tensor,
    *,
    activation: str = "gelu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    Any strides; db1 and db2 are None where the bias is. Declines float32. Source: [oneflow2022].
    """
    shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    kind, product = number(activation), matmul.tensorcore
    sixteen_bits(x.dtype)
    hidden, dz = _fused(mma, x, w1, b1, w2, dy, kind)
    dx, dw1, dw2 = product(dz, w1.t()), product(x.t(), dz), product(hidden.t(), dy)
    return dx, dw1, None if b1 is None else _summed(dz), dw2, None if b2 is None else _summed(dy)
