"""delta_first: delta (and lse in units of log 2) from a kernel of its own; hidden tiles skipped; exp2."""

import math

import numpy as np
import torch

from touchstone.backends.numba.attention._launch import padded_width, score_factor, strided
from touchstone.backends.numba.attention_backward._launch import TILES
from touchstone.backends.numba.attention_varlen_backward._delta import launch_delta
from touchstone.backends.numba.attention_varlen_backward._gradients import dkdv_for, dq_for
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_backward import empty_outputs
from touchstone.backends.signatures.attention_varlen import tiles_of
from touchstone.backends.signatures.attention_varlen_backward import checked_sizes
from touchstone.backends.variants import variant


@variant(needs="shuffles")
def delta_first(
    q, k, v, o, lse, do, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (Tq, Hq, D), k, v (Tk, Hkv, D), lse (Hq, Tq), cu_q, cu_k (B + 1,) -> dq, dk, dv. Source:
    [triton2022]."""
    _, Hq, D, _, Hkv, B = checked_sizes(q, k, v, o, lse, do, cu_q, cu_k, max_q, max_k)
    dq, dk, dv = empty_outputs(q, k)
    width, factor = padded_width(D), score_factor(scale, D)
    own, _, threads = TILES[width]
    delta, lse2 = launch_delta(o, lse, do)
    operands = (*strided(q, k, v), delta, lse2, *strided(do, cu_q, cu_k))
    factors = (factor, factor * np.float32(math.log2(math.e)), causal)
    if dq.numel():
        tiles = tiles_of(max_q, own)
        launch(dq_for(width), checked_grid(tiles * Hq * (B + 1)), threads, *operands, dq, tiles, *factors)
    if dk.numel():
        tiles = tiles_of(max_k, own)
        launch(dkdv_for(width), checked_grid(tiles * Hkv * (B + 1)), threads, *operands, dk, dv, tiles, *factors)
    return dq, dk, dv
