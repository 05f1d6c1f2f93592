"""delta = Σ do·o and lse in units of log 2, for every row of every head, whatever its sequence."""

import math

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends.numba.attention._launch import strided
from touchstone.backends.numba.lib.reductions import warp_sum
from touchstone.backends.numba.runtime.launching import launch

_HIGH = np.float32(math.inf)
_LOG2_E = np.float32(math.log2(math.e))


@cuda.jit
def _delta(o, lse, do, delta, lse2):
    # One warp per query and head; lse is +inf for a query that sees nothing: its p is 0.
    place = int64(cuda.blockIdx.x) * 4 + cuda.threadIdx.x // 32
    if place >= delta.size:
        return
    head, row = uint64(place // delta.shape[1]), uint64(place % delta.shape[1])
    total = float32(0)
    d = cuda.threadIdx.x & 31
    while d < o.shape[3]:
        total += float32(do[0, row, head, uint64(d)]) * float32(o[0, row, head, uint64(d)])
        d += 32
    total = warp_sum(total)
    if cuda.threadIdx.x % 32 == 0:
        value = lse[0, head, row]
        delta[head, row] = total
        lse2[head, row] = _HIGH if value == -_HIGH else value * _LOG2_E


def launch_delta(o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """delta and lse·log2 e, both (Hq, Tq) in float32; lse is +inf where it was -inf."""
    delta, lse2 = (torch.empty(lse.shape, dtype=torch.float32, device=o.device) for _ in range(2))
    if delta.numel():
        launch(_delta, -(-delta.numel() // 4), 128, *strided(o, lse, do), delta, lse2)
    return delta, lse2
