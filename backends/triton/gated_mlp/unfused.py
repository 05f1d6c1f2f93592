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
def _act_mul_kernel(gate_ptr, up_ptr, size, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + i, mask=i < size, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + i, mask=i < size, other=0.0).to(tl.float32)
    tl.store(gate_ptr + i, (activate(gate, ACTIVATION) * up).to(gate_ptr.dtype.element_ty), mask=i < size)


@variant()
def unfused(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides. Source: [shazeer2020]."""
    shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    check_activation(activation)
    gate, up = matmul(x, w_gate), matmul(x, w_up)
    if gate.numel():
        grid = (ceil_div(gate.numel(), 2048),)
        _act_mul_kernel[grid](gate, up, gate.numel(), ACTIVATION=activation, BLOCK=2048, num_warps=8)
    return matmul(gate, w_down)
