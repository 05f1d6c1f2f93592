"""tensorcore: epilogue on the tensor cores."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.gemm import by_warps, sixteen_bits
from touchstone.backends.cupy.matmul import tensorcore as matmul
from touchstone.backends.cupy.mlp_backward.unfused import _column_sum
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "tensorcore.cu")


def _hidden(
    x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor, dy: torch.Tensor, activation: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """h = act(z) and dz = (dy·w2ᵀ)·act'(z), both (M, H), with z = x·w1 + b1."""
    (M, D), (H, N) = x.shape, w2.shape
    z, hidden, dz = x.new_empty(M, H), x.new_empty(M, H), x.new_empty(M, H)
    if z.numel():
        tiles = by_warps(M, H)
        _module.launch(
            "mlp_backward_forward",
            tiles.blocks,
            tiles.threads,
            x,
            w1,
            b1,
            z,
            hidden,
            M,
            H,
            D,
            *x.stride(),
            *w1.stride(),
            0 if b1 is None else b1.stride(0),
            activation,
            dtype=x.dtype,
            shared=tiles.shared,
            **tiles.definitions,
        )
        _module.launch(
            "mlp_backward_chained",
            tiles.blocks,
            tiles.threads,
            dy,
            w2,
            z,
            dz,
            M,
            H,
            N,
            *dy.stride(),
            *w2.t().stride(),
            activation,
            dtype=x.dtype,
            shared=tiles.shared,
            **tiles.definitions,
        )
    return hidden, dz


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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    Any strides; db1 and db2 are None where the bias is. Declines float32. Source: [oneflow2022].
    """
    shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden, dz = _hidden(x, w1, b1, w2, dy, kind)
    dx, dw1, dw2 = matmul(dz, w1.t()), matmul(x.t(), dz), matmul(hidden.t(), dy)
    db1 = None if b1 is None else _column_sum(dz)
    db2 = None if b2 is None else _column_sum(dy)
    return dx, dw1, db1, dw2, db2
