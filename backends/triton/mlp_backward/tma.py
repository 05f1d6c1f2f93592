"""tma: epilogue, with tiles moved by the copy engine: mlp's variant of that name, five times.

z is not stored: the first product's epilogue leaves act'(z) beside act(z), and the second's multiplies by it, as up's
by gate's in gated_mlp.
"""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.triton.gated_mlp.tma import tma as _gated_mlp
from touchstone.backends.triton.lib.gemm import default_tma_factor_tile, default_tma_tile
from touchstone.backends.triton.lib.tma_linear import tma_linear
from touchstone.backends.triton.mlp_backward._column_sum import column_sum
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import attributes, variant


@variant(needs="sm_90", space=attributes(_gated_mlp).space)
def tma(
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

    db1 and db2 are None where the bias is. Declines what a descriptor cannot describe (no axis of stride 1, rows not a
    multiple of 16 bytes apart, a start that is not 16-byte aligned) and sizes of 0. Source: [hoque2024tma].
    """
    M, D, H, N = shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    check_activation(activation)
    if 0 in (M, D, H, N):
        raise Unsupported(f"M = {M}, D = {D}, H = {H}, N = {N}; a tensor descriptor describes no empty matrix")
    hidden, slope = x.new_empty(M, H), x.new_empty(M, H)
    dz = slope  # of which each tile is read before dz's takes its place
    dx, dw1, dw2 = x.new_empty(M, D), x.new_empty(D, H), x.new_empty(H, N)
    back = pinned("mlp_backward.tma", x.dtype, (M, H, N), default_tma_factor_tile(x.dtype, M, H))
    there, to_dx, to_dw1, to_dw2 = (default_tma_tile(x.dtype, *t.shape) for t in (hidden, dx, dw1, dw2))
    launches = [
        tma_linear(x, w1, b1, hidden, activation, ("x", "w1", "the hidden tensor"), there, slope=slope),
        tma_linear(dy, w2.t(), None, dz, None, ("dy", "w2", "the hidden tensor"), back, factor=slope),
        tma_linear(dz, w1.t(), None, dx, None, ("the hidden tensor", "w1", "dx"), to_dx),
        tma_linear(x.t(), dz, None, dw1, None, ("x", "the hidden tensor", "dw1"), to_dw1),
        tma_linear(hidden.t(), dy, None, dw2, None, ("the hidden tensor", "dy", "dw2"), to_dw2),
    ]
    for launch in launches:
        launch()
    return dx, dw1, None if b1 is None else column_sum(dz), dw2, None if b2 is None else column_sum(dy)
