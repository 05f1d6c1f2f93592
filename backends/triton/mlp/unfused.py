"""unfused: every step of the definition is a launch of its own."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.activations import activate
from touchstone.backends.triton.matmul import tuned as matmul
from touchstone.backends.variants import variant


@triton.jit
def _bias_act_kernel(z_ptr, bias_ptr, size, cols, stride_bias, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + i, mask=i < size, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        z += tl.load(bias_ptr + i % cols * stride_bias, mask=i < size, other=0.0).to(tl.float32)
    if ACTIVATION is not None:
        z = activate(z, ACTIVATION)
    tl.store(z_ptr + i, z.to(z_ptr.dtype.element_ty), mask=i < size)


def _bias_act(z: torch.Tensor, bias: torch.Tensor | None, activation: str | None) -> None:
    """z = act(z + bias) in place, for a contiguous z (rows, cols)."""
    if z.numel() and (bias is not None or activation is not None):
        stride = 0 if bias is None else bias.stride(0)
        grid = (ceil_div(z.numel(), 2048),)
        _bias_act_kernel[grid](z, bias, z.numel(), z.shape[1], stride, ACTIVATION=activation, BLOCK=2048, num_warps=8)


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
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any sizes and strides.

    Source: [vaswani2017].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    check_activation(activation)
    hidden = matmul(x, w1)
    _bias_act(hidden, b1, activation)
    y = matmul(hidden, w2)
    _bias_act(y, b2, None)
    return y
