"""Sequences of various lengths that lie one after another: where each begins."""

import numpy as np
import torch

Offsets = np.ndarray | torch.Tensor | list[int]


def sequences(cu_q: Offsets, cu_k: Offsets) -> list[tuple[slice, slice]]:
    """The rows of each sequence in q, and those in k and v."""
    q, k = ([int(offset) for offset in cu] for cu in (cu_q, cu_k))
    return [(slice(q[b], q[b + 1]), slice(k[b], k[b + 1])) for b in range(len(q) - 1)]
