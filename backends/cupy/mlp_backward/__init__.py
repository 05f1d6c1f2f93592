"""Gradients of y = h·w2 + b2, h = act(z), z = x·w1 + b1: dz = (dy·w2ᵀ)·act'(z), dx = dz·w1ᵀ, dw1 = xᵀ·dz, dw2 = hᵀ·dy.

db1 and db2 are the column sums of dz and dy. A transposed operand is the same memory with its strides exchanged.

unfused: five products, each elementwise step and each column sum a launch of its own [rumelhart1986]
epilogue: act and act' act on the accumulators of the first two products [oneflow2022]
tensorcore: the same on mma.sync, for 16-bit operands [oneflow2022]
wgmma: the same on warpgroups, which multiply tiles that the copy engine brings [colfax2024]
"""

from collections.abc import Callable
from functools import partial

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy import matmul, reduce_rows
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.gemm import (
    STRIP,
    Tiling,
    by_lanes,
    by_warpgroups,
    by_warps,
    mapped,
    processors,
    sixteen_bits,
)
from touchstone.backends.cupy.runtime.hopper import TensorMap
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_unfused = Module(__file__, "unfused.cu")
_epilogue = Module(__file__, "epilogue.cu")
_tensorcore = Module(__file__, "tensorcore.cu")
_wgmma = Module(__file__, "wgmma.cu")

# dx, dw1, db1, dw2, db2; db1 and db2 are None where the bias is
_Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]


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
) -> _Gradients:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    Any sizes and strides; db1 and db2 are None where the bias is. Source: [rumelhart1986].
    """
    shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    kind = number(activation)
    z = matmul.warptiled(x, w1)
    hidden = torch.empty_like(z)
    dz = matmul.warptiled(dy, w2.t())
    if z.numel():
        size, cols = z.numel(), z.shape[1]
        grid, stride = ceil_div(size, 256), 0 if b1 is None else b1.stride(0)
        _unfused.launch("mlp_backward_hidden", grid, 256, z, b1, hidden, size, cols, stride, kind, dtype=z.dtype)
        _unfused.launch("mlp_backward_chain", grid, 256, dz, z, size, kind, dtype=z.dtype)
    return _gradients(matmul.warptiled, x, w1, b1, b2, dy, hidden, dz)


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
) -> _Gradients:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    Any sizes and strides; db1 and db2 are None where the bias is. Source: [oneflow2022].
    """
    shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    hidden, dz = _hidden(_epilogue, by_lanes, x, w1, b1, w2, dy, number(activation))
    return _gradients(matmul.warptiled, x, w1, b1, b2, dy, hidden, dz)


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
) -> _Gradients:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    Any strides; db1 and db2 are None where the bias is. Declines float32. Source: [oneflow2022].
    """
    shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden, dz = _hidden(_tensorcore, by_warps, x, w1, b1, w2, dy, kind)
    return _gradients(matmul.tensorcore, x, w1, b1, b2, dy, hidden, dz)


@variant(needs="sm_90a", dtypes=HALF)
def wgmma(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    dy: torch.Tensor,
    *,
    activation: str = "gelu",
) -> _Gradients:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    db1 and db2 are None where the bias is. Of x, w1, w2 and dy either axis may be the contiguous one. Declines float32,
    and of these four what the copy engine does not take (no axis of stride 1, the other's not a multiple of 16 bytes, a
    start that is not 16-byte aligned). Source: [colfax2024].
    """
    M, _, H, _ = shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    kind = number(activation)
    if x.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    z, hidden, dz = (x.new_empty(M, ceil_div(H, 8) * 8)[:, :H] for _ in range(3))  # rows on 16 bytes
    if z.numel():
        others = (z, hidden, z.stride(0), b1, 0 if b1 is None else b1.stride(0))
        _by_warpgroups("mlp_backward_wgmma_forward", kind, x, w1, (z, hidden), others, names=("x", "w1"))
        of_z = (z, z.stride(0))
        _by_warpgroups("mlp_backward_wgmma_chained", kind, dy, w2.t(), (dz,), of_z, names=("dy", "w2"))
    return _gradients(matmul.wgmma, x, w1, b1, b2, dy, hidden, dz, column_sum=partial(reduce_rows.vectorised, axis=0))


def _by_warpgroups(
    kernel: str,
    activation: int,
    a: torch.Tensor,
    b: torch.Tensor,
    outputs: tuple[torch.Tensor, ...],
    others: tuple[object, ...],
    names: tuple[str, str],
) -> None:
    """A kernel on the product of a (M, K) and b (K, N), which fills `outputs` (M, N); `names` of a, b."""
    (M, K), N = a.shape, b.shape[1]
    maps, layouts = mapped(a, b, names)
    tiles = by_warpgroups(M, N, processors(a.device))
    config = {"dtype": a.dtype, "shared": tiles.shared, "arch": "sm_90a", **layouts, **tiles.definitions}
    operands = (*maps, *(TensorMap(output, STRIP) for output in outputs), *others, M, N, K)
    _wgmma.launch(kernel, tiles.blocks, tiles.threads, *operands, ACTIVATION=activation, **config)


def _hidden(
    module: Module,
    tiles_of: Callable[[int, int], Tiling],
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    dy: torch.Tensor,
    activation: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """h = act(z) and dz = (dy·w2ᵀ)·act'(z), both (M, H), with z = x·w1 + b1."""
    (M, D), (H, N) = x.shape, w2.shape
    z, hidden, dz = x.new_empty(M, H), x.new_empty(M, H), x.new_empty(M, H)
    if z.numel():
        tiles = tiles_of(M, H)
        config = {"dtype": x.dtype, "shared": tiles.shared, **tiles.definitions}
        strides = (*x.stride(), *w1.stride(), 0 if b1 is None else b1.stride(0))
        operands = (x, w1, b1, z, hidden, M, H, D, *strides, activation)
        module.launch("mlp_backward_forward", tiles.blocks, tiles.threads, *operands, **config)
        operands = (dy, w2, z, dz, M, H, N, *dy.stride(), *w2.t().stride(), activation)
        module.launch("mlp_backward_chained", tiles.blocks, tiles.threads, *operands, **config)
    return hidden, dz


def _column_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the rows of x (rows, cols)."""
    rows, cols = x.shape
    total = x.new_empty(cols)
    if cols:
        grid = ceil_div(cols, 32)
        _unfused.launch("mlp_backward_column_sum", grid, (32, 8), x, total, rows, cols, *x.stride(), dtype=x.dtype)
    return total


def _gradients(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    b2: torch.Tensor | None,
    dy: torch.Tensor,
    hidden: torch.Tensor,
    dz: torch.Tensor,
    column_sum: Callable[[torch.Tensor], torch.Tensor] = _column_sum,
) -> _Gradients:
    """dx, dw1, db1, dw2, db2 from h = act(z) and dz, both (M, H)."""
    dx, dw1, dw2 = product(dz, w1.t()), product(x.t(), dz), product(hidden.t(), dy)
    db1 = None if b1 is None else column_sum(dz)
    db2 = None if b2 is None else column_sum(dy)
    return dx, dw1, db1, dw2, db2
