"""scheduled: a list of the tiles that there are, and a block for each of them and each head."""

import functools

import torch
from numba import cuda, int64, uint64

from touchstone.backends.numba.attention._launch import padded_width, score_factor, strided
from touchstone.backends.numba.attention_varlen._tile import TILES, attend_for, sequence_at
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_varlen import checked_sizes, empty_outputs, most_items
from touchstone.backends.variants import variant


@cuda.jit
def schedule(cu_q, items, total, rows):
    # A warp for each sequence, whose place in the list is behind the tiles of those before it: its number and the first
    # query of each tile, the last first: with causality it sees most keys.
    b, lane, number = int64(cuda.blockIdx.x), int64(cuda.threadIdx.x), int64(cu_q.shape[1] - 1)
    place = int64(0)
    other = lane
    while other < b:
        length = int64(cu_q[0, uint64(other + 1)]) - int64(cu_q[0, uint64(other)])
        place += (length + rows - 1) // rows
        other += 32
    for step in (16, 8, 4, 2, 1):
        place += cuda.shfl_xor_sync(0xFFFFFFFF, place, step)
    end = int64(cu_q[0, uint64(b + 1)]) if b < number else total
    tiles = (end - int64(cu_q[0, uint64(b)]) + rows - 1) // rows
    tile = lane
    while tile < tiles:
        items[uint64(place + tile), 0] = b
        items[uint64(place + tile), 1] = (tiles - 1 - tile) * rows
        tile += 32
    left = place + tiles + lane
    while b == number and left < items.shape[0]:  # the list has room for more
        items[uint64(left), 0] = -1
        left += 32


@functools.cache
def _kernel(width):
    attend = attend_for(width)

    @cuda.jit
    def scheduled(q, k, v, cu_q, cu_k, items, o, lse, scale, causal):
        item, head = cuda.blockIdx.x // o.shape[1], cuda.blockIdx.x % o.shape[1]
        b, top = int64(items[uint64(item), 0]), int64(items[uint64(item), 1])
        if b >= 0:
            first_q, seq_q, first_k, seq_k = sequence_at(cu_q[0], cu_k[0], b, o.shape[0])
            attend(q[0], k[0], v[0], o, lse, first_q, seq_q, first_k, seq_k, top, head, scale, causal)

    return scheduled


@variant(needs="shuffles")
def scheduled(
    q, k, v, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_q, cu_k (B + 1,) -> o (Tq, Hq, D), lse (Hq, Tq) float32. Source:
    [shah2024]."""
    Tq, Hq, D, _, _, B = checked_sizes(q, k, v, cu_q, cu_k, max_q, max_k)
    o, lse = empty_outputs(q)
    if o.numel():
        width = padded_width(D)
        rows = TILES[width][0]
        most = most_items(Tq, B, rows)
        items = torch.empty((most, 2), dtype=torch.int32, device=q.device)
        operands = strided(q, k, v, cu_q, cu_k)
        launch(schedule, checked_grid(B + 1), 32, operands[3], items, Tq, rows)
        grid = checked_grid(most * Hq)
        launch(_kernel(width), grid, 128, *operands, items, o, lse, score_factor(scale, D), causal)
    return o, lse
