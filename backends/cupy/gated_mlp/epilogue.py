"""epilogue: a block accumulates the same tile of gate and of up, and stores their gated product."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.gemm import by_lane_pairs
from touchstone.backends.cupy.matmul import warptiled as matmul
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "epilogue.cu")


def epilogue(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides. Source: [cutlass2022]."""
    M, D, H, _ = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    kind = number(activation)
    hidden = x.new_empty(M, H)
    if hidden.numel():
        tiles = by_lane_pairs(M, H)
        _module.launch(
            "gated_mlp_gate_up",
            tiles.blocks,
            tiles.threads,
            x,
            w_gate,
            w_up,
            hidden,
            M,
            H,
            D,
            *x.stride(),
            *w_gate.stride(),
            *w_up.stride(),
            kind,
            dtype=x.dtype,
            **tiles.definitions,
        )
    return matmul(hidden, w_down)
