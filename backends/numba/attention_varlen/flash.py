"""flash: a block for each tile of the longest sequence, of each sequence and head."""

import functools

import torch
from numba import cuda

from touchstone.backends.numba.attention._launch import padded_width, score_factor, strided
from touchstone.backends.numba.attention_varlen._tile import TILES, attend_for, sequence_at
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_varlen import checked_sizes, empty_outputs, tiles_of
from touchstone.backends.variants import variant


@functools.cache
def _kernel(width):
    queries, attend = TILES[width][0], attend_for(width)

    @cuda.jit
    def flash(q, k, v, cu_q, cu_k, o, lse, tiles, scale, causal):
        tile, pair = cuda.blockIdx.x % tiles, cuda.blockIdx.x // tiles
        b, head = pair // o.shape[1], pair % o.shape[1]
        first_q, seq_q, first_k, seq_k = sequence_at(cu_q[0], cu_k[0], b, o.shape[0])
        # Only the rows of no sequence may be more than there are tiles for: one round is all that a sequence has.
        top = tile * queries
        while top < seq_q:
            cuda.syncthreads()  # the queries of the round before are used
            attend(q[0], k[0], v[0], o, lse, first_q, seq_q, first_k, seq_k, top, head, scale, causal)
            top += tiles * queries

    return flash


@variant(needs="shuffles")
def flash(
    q, k, v, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_q, cu_k (B + 1,) -> o (Tq, Hq, D), lse (Hq, Tq) float32. Source:
    [dao2023flash2]."""
    _, Hq, D, _, _, B = checked_sizes(q, k, v, cu_q, cu_k, max_q, max_k)
    o, lse = empty_outputs(q)
    if o.numel():
        width = padded_width(D)
        tiles = tiles_of(max_q, TILES[width][0])
        operands = strided(q, k, v, cu_q, cu_k)
        grid = checked_grid(tiles * Hq * (B + 1))
        launch(_kernel(width), grid, 128, *operands, o, lse, tiles, score_factor(scale, D), causal)
    return o, lse
