"""tma: the three products one after another, as in mlp's variant of that name; up's epilogue multiplies by gate's
tiles.

Accumulating gate and up side by side, as `epilogue` does, halves the width of the tensor cores' instructions, which
then read x twice as often from shared memory: 0.80 of torch on an H200, where this is 1.03.
"""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.triton.lib.gemm import default_tma_factor_tile, default_tma_tile, options
from touchstone.backends.triton.lib.tma_linear import tma_linear
from touchstone.backends.triton.mlp.tma import tma as _mlp
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import attributes, variant

_SPACE = [config for config in attributes(_mlp).space if config["num_stages"] < 4 or config["BLOCK_N"] < 256] + [
    options(128, 256, 64, 8, 3, 16),
    options(256, 128, 64, 8, 3),
]


@variant(needs="sm_90", space=_SPACE)
def tma(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N).

    Declines what a descriptor cannot describe (no axis of stride 1, rows not a multiple of 16 bytes apart, a start
    that is not 16-byte aligned) and D or H of 0. Source: [hoque2024tma].
    """
    M, D, H, N = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    check_activation(activation)
    y = x.new_empty(M, N)
    if y.numel() == 0:
        return y
    if D == 0 or H == 0:
        raise Unsupported(f"D = {D}, H = {H}; a tensor descriptor describes no empty matrix")
    hidden = x.new_empty(M, H)
    up = pinned("gated_mlp.tma", x.dtype, (M, H, D), default_tma_factor_tile(x.dtype, M, H))
    gate, down = default_tma_tile(x.dtype, M, H), default_tma_tile(x.dtype, M, N)
    launches = [
        tma_linear(x, w_gate, None, hidden, activation, ("x", "w_gate", "the hidden tensor"), gate),
        tma_linear(x, w_up, None, hidden, None, ("x", "w_up", "the hidden tensor"), up, factor=hidden),
        tma_linear(hidden, w_down, None, y, None, ("the hidden tensor", "w_down", "the result"), down),
    ]
    for launch in launches:
        launch()
    return y
