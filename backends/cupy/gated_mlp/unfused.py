"""unfused: every step of the definition is a launch of its own."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.gemm import ceil_div
from touchstone.backends.cupy.matmul import warptiled as matmul
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "unfused.cu")


def unfused(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides. Source: [shazeer2020]."""
    shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    kind = number(activation)
    gate, up = matmul(x, w_gate), matmul(x, w_up)
    if gate.numel():
        grid = ceil_div(gate.numel(), 256)
        _module.launch("gated_mlp_act_mul", grid, 256, gate, up, gate.numel(), kind, dtype=gate.dtype)
    return matmul(gate, w_down)
