"""wgmma: epilogue on the warpgroups of Hopper."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.lib.activations import NONE, number
from touchstone.backends.cupy.lib.gemm import SQUARE, STRIP, by_warpgroups, ceil_div, processors
from touchstone.backends.cupy.runtime.hopper import TensorMap, along_last
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "wgmma.cu")


def _linear(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: int,
    c: torch.Tensor,
    names: tuple[str, str],
) -> torch.Tensor:
    """c = act(a·b + bias): (M, K), (K, N) and (N,) or None give (M, N), rows of c one pitch apart. `names` of a, b."""
    (M, K), N = a.shape, b.shape[1]
    if c.numel():
        left, a_along_k = right, b_along_k = None, True
        if K:
            left, a_along_k = along_last(names[0], a)
            right, b_along_k = along_last(names[1], b.t())
        tiles = by_warpgroups(M, N, processors(a.device))
        _module.launch(
            "mlp_wgmma",
            tiles.blocks,
            tiles.threads,
            None if left is None else TensorMap(left, SQUARE),
            None if right is None else TensorMap(right, SQUARE),
            TensorMap(c, STRIP) if c.stride(0) % 8 == 0 else None,
            bias,
            c,
            M,
            N,
            K,
            c.stride(0),
            0 if bias is None else bias.stride(0),
            dtype=a.dtype,
            shared=tiles.shared,
            arch="sm_90a",
            A_ALONG_K=a_along_k,
            B_ALONG_K=b_along_k,
            ACTIVATION=activation,
            **tiles.definitions,
        )
    return c


@variant(needs="sm_90a", dtypes=HALF)
def wgmma(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Of x, w1, w2 either axis contiguous.

    Declines float32, and of x, w1 and w2 what the copy engine does not take (no axis of stride 1, the other's not a
    multiple of 16 bytes, a start that is not 16-byte aligned). Source: [colfax2024].
    """
    M, _, H, N = shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    if x.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    hidden = x.new_empty(M, ceil_div(H, 8) * 8)[:, :H]  # rows on 16 bytes
    _linear(x, w1, b1, kind, hidden, names=("x", "w1"))
    return _linear(hidden, w2, b2, NONE, x.new_empty(M, N), names=("hidden", "w2"))
