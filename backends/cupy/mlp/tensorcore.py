"""tensorcore: epilogue on the tensor cores."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import NONE, number
from touchstone.backends.cupy.lib.gemm import by_warps, sixteen_bits
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "tensorcore.cu")


def _linear(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: int) -> torch.Tensor:
    """act(a·b + bias): (M, K), (K, N) and (N,) or None give (M, N)."""
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_warps(M, N)
        _module.launch(
            "mlp_linear",
            tiles.blocks,
            tiles.threads,
            a,
            b,
            bias,
            c,
            M,
            N,
            K,
            *a.stride(),
            *b.stride(),
            0 if bias is None else bias.stride(0),
            activation,
            dtype=a.dtype,
            shared=tiles.shared,
            **tiles.definitions,
        )
    return c


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any strides. Declines float32.

    Source: [cublas2019].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden = _linear(x, w1, b1, kind)
    return _linear(hidden, w2, b2, NONE)
