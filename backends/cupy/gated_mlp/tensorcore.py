"""tensorcore: epilogue on the tensor cores."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.gemm import by_warps, sixteen_bits
from touchstone.backends.cupy.matmul import tensorcore as matmul
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "tensorcore.cu")


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any strides. Declines float32. See [cutlass2022]."""
    M, D, H, _ = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden = x.new_empty(M, H)
    if hidden.numel():
        tiles = by_warps(M, H, together=2)
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
            shared=tiles.shared,
            **tiles.definitions,
        )
    return matmul(hidden, w_down)
