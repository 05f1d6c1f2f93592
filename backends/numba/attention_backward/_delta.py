"""delta = Σ do·o and lse in units of log 2, for the variants that compute them first."""

import math

import numpy as np
import torch
from numba import cuda, float32, int64

from touchstone.backends.numba.attention._launch import strided
from touchstone.backends.numba.lib.reductions import warp_sum
from touchstone.backends.numba.runtime.launching import launch

_HIGH = np.float32(math.inf)
_LOG2_E = np.float32(math.log2(math.e))


@cuda.jit
def _delta(o, lse, do, delta, lse2):
    # One warp per query; lse is +inf for a query that sees nothing: its p is 0.
    index = int64(cuda.blockIdx.x) * 4 + cuda.threadIdx.x // 32
    if index >= delta.size:
        return
    heads, seq_q = delta.shape[1], delta.shape[2]
    batch, head, i = index // seq_q // heads, index // seq_q % heads, index % seq_q
    o_row, do_row = o[0, batch, head, i], do[0, batch, head, i]
    total = float32(0)
    d = cuda.threadIdx.x & 31
    while d < o_row.shape[0]:
        total += float32(do_row[d]) * float32(o_row[d])
        d += 32
    total = warp_sum(total)
    if cuda.threadIdx.x % 32 == 0:
        value = lse[0, batch, head, i]
        delta[batch, head, i] = total
        lse2[batch, head, i] = _HIGH if value == -_HIGH else value * _LOG2_E


def launch_delta(o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """delta and lse·log2 e, both (B, Hq, Sq) in float32; lse is +inf where it was -inf."""
    delta, lse2 = (torch.empty(o.shape[:3], dtype=torch.float32, device=o.device) for _ in range(2))
    if delta.numel():
        launch(_delta, -(-delta.numel() // 4), 128, *strided(o, lse, do), delta, lse2)
    return delta, lse2
