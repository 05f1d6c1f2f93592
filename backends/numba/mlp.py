"""mlp(x, w1, b1, w2, b2): act(x·w1 + b1)·w2 + b2 for x (M, D), w1 (D, H), w2 (H, N).

unfused: two products and an elementwise kernel after each, so the hidden tensor travels four times (S0-20)
epilogue: bias and activation act on the accumulators before they are stored; the elementwise passes are gone (S2-92)
tensorcore: the same epilogue on mma.sync, for 16-bit operands (S2-92)
"""

import numpy as np
import torch
from numba import cuda, float32

from backends import shapes
from backends.numba import gemm, matmul, mma
from backends.numba.activations import NONE, activate, number
from backends.numba.gemm import blocks, corner, flat, kernel, operands, store_four
from backends.numba.launching import launch
from backends.numba.mma import sixteen_bits
from backends.numba.ptx import load1, load4, store1


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
        launch(_bias_act, blocks(z.numel(), 1, 256, 1), 256, z, *gemm.bias(bias, z), activation)


def unfused(
    x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor, b2: torch.Tensor | None,
    *, activation: str = "gelu",
) -> torch.Tensor:  # fmt: skip
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any sizes and strides. Source: S0-20."""
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    hidden = matmul.doublebuffered(x, w1)
    _apply(hidden, b1, kind)
    y = matmul.doublebuffered(hidden, w2)
    _apply(y, b2, NONE)
    return y


def _linear(core):
    """The kernel c = act(a·b + bias) on the product of gemm.py or mma.py."""
    TILE, PARTS, STAGED, PITCH, THREADS = core.TILE, core.PARTS, core.STAGED, core.PITCH, core.THREADS
    SHARED, ELEMENT, ALIGNMENT, SUMS = core.SHARED, core.ELEMENT, core.ALIGNMENT, core.SUMS
    find_way, multiply, stage, staged_row = core.find_way, core.multiply, core.stage, core.staged_row

    @kernel(THREADS, 2)
    def linear(
        a, b, bias, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, bits, stride_bias, has_bias, activation
    ):  # fmt: skip
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
            while at < STAGED * TILE:
                row, col = at // TILE, at % TILE
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


_kernels = {core: _linear(core) for core in (gemm, mma)}


def _fused(core, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: int) -> torch.Tensor:
    """act(a·b + bias): (M, K), (K, N) and (N,) or None give (M, N)."""
    c = a.new_empty(a.shape[0], b.shape[1])
    if c.numel():
        memory, *rest = gemm.bias(bias, a)
        grid, given = blocks(*c.shape, core.TILE, core.TILE), operands(a, b, core.LANES)
        launch(_kernels[core], grid, core.THREADS, flat(a), flat(b), memory, c, *given, *rest, activation)
    return c


def epilogue(
    x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor, b2: torch.Tensor | None,
    *, activation: str = "gelu",
) -> torch.Tensor:  # fmt: skip
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any sizes and strides. Source: S2-92."""
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    hidden = _fused(gemm, x, w1, b1, number(activation))
    return _fused(gemm, hidden, w2, b2, NONE)


def tensorcore(
    x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor, b2: torch.Tensor | None,
    *, activation: str = "gelu",
) -> torch.Tensor:  # fmt: skip
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any strides. Declines float32.

    Source: S2-92.
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden = _fused(mma, x, w1, b1, kind)
    return _fused(mma, hidden, w2, b2, NONE)


tensorcore.needs = "sm_80"
tensorcore.dtypes = ("float16", "bfloat16")
