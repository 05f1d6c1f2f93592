"""delta = Σ do·o and lse in units of log 2, for the variants that compute them first."""

import torch

from touchstone.backends.cupy.attention._launch import _blocks
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "delta.cu")


def _launch_delta(o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """delta and lse·log2 e, both (B, Hq, Sq) in float32; lse is +inf where it was -inf."""
    B, Hq, Sq, D = o.shape
    delta, lse2 = (torch.empty((B, Hq, Sq), dtype=torch.float32, device=o.device) for _ in range(2))
    rows = delta.numel()
    if rows:
        _module.launch(
            "attention_delta",
            _blocks(rows, 4),
            128,
            o,
            *o.stride(),
            lse,
            *lse.stride(),
            do,
            *do.stride(),
            delta,
            lse2,
            rows,
            Hq,
            Sq,
            D,
            dtype=o.dtype,
        )
    return delta, lse2
