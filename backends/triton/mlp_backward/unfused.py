"""unfused: every step of the chain rule is a launch of its own."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.activations import activate, activation_slope
from touchstone.backends.triton.matmul import tuned as matmul
from touchstone.backends.triton.mlp_backward._column_sum import column_sum
from touchstone.backends.variants import variant


@triton.jit
def _hidden_kernel(z_ptr, bias_ptr, hidden_ptr, size, cols, stride_bias, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + i, mask=i < size, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        z += tl.load(bias_ptr + i % cols * stride_bias, mask=i < size, other=0.0).to(tl.float32)
        tl.store(z_ptr + i, z.to(z_ptr.dtype.element_ty), mask=i < size)
    tl.store(hidden_ptr + i, activate(z, ACTIVATION).to(hidden_ptr.dtype.element_ty), mask=i < size)


@triton.jit
def _chain_kernel(dhidden_ptr, z_ptr, size, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dhidden = tl.load(dhidden_ptr + i, mask=i < size, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + i, mask=i < size, other=0.0).to(tl.float32)
    tl.store(
        dhidden_ptr + i, (dhidden * activation_slope(z, ACTIVATION)).to(dhidden_ptr.dtype.element_ty), mask=i < size
    )


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
    check_activation(activation)
    z = matmul(x, w1)
    hidden = torch.empty_like(z)
    dz = matmul(dy, w2.t())
    if z.numel():
        size, cols = z.numel(), z.shape[1]
        stride = 0 if b1 is None else b1.stride(0)
        grid = (ceil_div(size, 2048),)
        _hidden_kernel[grid](z, b1, hidden, size, cols, stride, ACTIVATION=activation, BLOCK=2048, num_warps=8)
        _chain_kernel[grid](dz, z, size, ACTIVATION=activation, BLOCK=2048, num_warps=8)
    dx, dw1, dw2 = matmul(dz, w1.t()), matmul(x.t(), dz), matmul(hidden.t(), dy)
    db1 = None if b1 is None else column_sum(dz)
    db2 = None if b2 is None else column_sum(dy)
    return dx, dw1, db1, dw2, db2
