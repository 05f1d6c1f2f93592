"""mlp(x, w1, b1, w2, b2): act(x·w1 + b1)·w2 + b2 for x (M, D), w1 (D, H), w2 (H, N).

unfused: two products and an elementwise kernel after each, so the hidden tensor travels four times [vaswani2017]
epilogue: bias and activation act on the accumulators before they are stored; elementwise passes are gone [cublas2019]
tensorcore: the same epilogue on mma.sync, for 16-bit operands: matmul's pipelined, else tensorcore
  [cublas2019]
"""

import functools

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.backends.numba import matmul
from touchstone.backends.numba.lib import gemm
from touchstone.backends.numba.lib.activations import NONE, activate, number
from touchstone.backends.numba.lib.gemm import corner, flat, kernel, operands, store_four, tile_grid
from touchstone.backends.numba.lib.mma import sixteen_bits
from touchstone.backends.numba.lib.ptx import load1, load4, store1
from touchstone.backends.numba.lib.tensorcores import fastest
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import HALF, variant


@cuda.jit
def _bias_act(z, bias, stride_bias, has_bias, activation):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < z.size:
        value = load1(z, i)
        if has_bias:
            value += load1(bias, i % z.shape[1] * stride_bias)
        store1(z, i, activate(value, activation))


def _apply(z: torch.Tensor, bias: torch.Tensor | None, activation: int) -> None:
    """z = act(z + bias) in place, for a contiguous z (rows, cols)."""
    if z.numel() and (bias is not None or activation != NONE):
        launch(_bias_act, tile_grid(z.numel(), 1, 256, 1), 256, z, *gemm.bias(bias, z), activation)


@variant()
def unfused(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N).

    Any sizes and strides.
    Source: [vaswani2017].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    hidden = matmul.doublebuffered(x, w1)
    _apply(hidden, b1, kind)
    y = matmul.doublebuffered(hidden, w2)
    _apply(y, b2, NONE)
    return y


@functools.cache
def _linear(core, multiply):
    """The kernel c = act(a·b + bias) on the main loop `multiply` of gemm.py, mma.py or pipeline.py."""
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
    def linear(
        a, b, bias, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, bits, stride_bias, has_bias, activation
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
                    for j in range(4):
                        shift = load1(bias, (n + j) * stride_bias) if has_bias and n + j < N else float32(0)
                        values[j] = activate(values[j] + shift, activation)
                    store_four(c, m, n, values[0], values[1], values[2], values[3])
                at += THREADS * 4
            cuda.syncthreads()

    return linear


def _fused(
    core, multiply, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: int
) -> torch.Tensor:
    """act(a·b + bias): (M, K), (K, N) and (N,) or None give (M, N)."""
    c = a.new_empty(a.shape[0], b.shape[1])
    if c.numel():
        memory, *rest = gemm.bias(bias, a)
        grid, given = tile_grid(*c.shape, core.HEIGHT, core.WIDTH), operands(a, b, core.LANES)
        launch(
            _linear(core, multiply),
            grid,
            core.THREADS,
            flat(a),
            flat(b),
            memory,
            c,
            *given,
            *rest,
            activation,
            shared=core.BYTES,
        )
    return c


@variant()
def epilogue(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N).

    Any sizes and strides.
    Source: [cublas2019].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    hidden = _fused(gemm, gemm.multiply, x, w1, b1, number(activation))
    return _fused(gemm, gemm.multiply, hidden, w2, b2, NONE)


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any strides. Declines float32.

    Source: [cublas2019].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden = _fused(*fastest(x, w1), x, w1, b1, kind)
    return _fused(*fastest(hidden, w2), hidden, w2, b2, NONE)
