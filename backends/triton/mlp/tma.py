"""tma: epilogue, with tiles moved by the copy engine and programs that stay for several tiles."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.triton.lib.gemm import default_tma_tile, options
from touchstone.backends.triton.lib.tma_linear import tma_linear
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant

_SPACE = [
    options(*each)
    for each in [
        (64, 64, 128, 4, 4),
        (64, 128, 128, 4, 3),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
        (128, 256, 64, 8, 4),
        (128, 256, 64, 8, 4, 16),
        (256, 128, 64, 8, 4),
        (128, 64, 16, 8, 3),
        (64, 64, 16, 4, 4),
    ]
]


@variant(needs="sm_90", space=_SPACE)
def tma(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N).

    Declines what a descriptor cannot describe (no axis of stride 1, rows not a multiple of 16 bytes apart, a start
    that is not 16-byte aligned) and D or H of 0. Source: [hoque2024tma].
    """
    M, D, H, N = shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    check_activation(activation)
    y = x.new_empty(M, N)
    if y.numel() == 0:
        return y
    if D == 0 or H == 0:
        raise Unsupported(f"D = {D}, H = {H}; a tensor descriptor describes no empty matrix")
    hidden = x.new_empty(M, H)
    first = pinned("mlp.tma", x.dtype, (M, H, D), default_tma_tile(x.dtype, M, H))
    second = pinned("mlp.tma", x.dtype, (M, N, H), default_tma_tile(x.dtype, M, N))
    launches = [
        tma_linear(x, w1, b1, hidden, activation, ("x", "w1", "the hidden tensor"), first),
        tma_linear(hidden, w2, b2, y, None, ("the hidden tensor", "w2", "the result"), second),
    ]
    for launch in launches:
        launch()
    return y
