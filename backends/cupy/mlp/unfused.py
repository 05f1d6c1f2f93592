"""unfused: every step of the definition is a launch of its own."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import NONE, number
from touchstone.backends.cupy.lib.gemm import ceil_div
from touchstone.backends.cupy.matmul import warptiled as matmul
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "unfused.cu")


def _bias_act(z: torch.Tensor, bias: torch.Tensor | None, activation: int) -> None:
    """z = act(z + bias) in place, for a contiguous z (rows, cols)."""
    if z.numel() and (bias is not None or activation != NONE):
        stride = 0 if bias is None else bias.stride(0)
        grid = ceil_div(z.numel(), 256)
        _module.launch("mlp_bias_act", grid, 256, z, bias, z.numel(), z.shape[1], stride, activation, dtype=z.dtype)


def unfused(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any sizes and strides.

    Source: [vaswani2017].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    hidden = matmul(x, w1)
    _bias_act(hidden, b1, kind)
    y = matmul(hidden, w2)
    _bias_act(y, b2, NONE)
    return y
