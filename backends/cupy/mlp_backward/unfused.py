"""unfused: every step of the chain rule is a launch of its own."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.gemm import ceil_div
from touchstone.backends.cupy.matmul import warptiled as matmul
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "unfused.cu")


def _column_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the rows of x (rows, cols)."""
    rows, cols = x.shape
    total = x.new_empty(cols)
    if cols:
        grid = ceil_div(cols, 32)
        _module.launch("mlp_backward_column_sum", grid, (32, 8), x, total, rows, cols, *x.stride(), dtype=x.dtype)
    return total


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
    kind = number(activation)
    z = matmul(x, w1)
    hidden = torch.empty_like(z)
    dz = matmul(dy, w2.t())
    if z.numel():
        size, cols = z.numel(), z.shape[1]
        grid, stride = ceil_div(size, 256), 0 if b1 is None else b1.stride(0)
        _module.launch("mlp_backward_hidden", grid, 256, z, b1, hidden, size, cols, stride, kind, dtype=z.dtype)
        _module.launch("mlp_backward_chain", grid, 256, dz, z, size, kind, dtype=z.dtype)
    dx, dw1, dw2 = matmul(dz, w1.t()), matmul(x.t(), dz), matmul(hidden.t(), dy)
    db1 = None if b1 is None else _column_sum(dz)
    db2 = None if b2 is None else _column_sum(dy)
    return dx, dw1, db1, dw2, db2
