"""Gradients of y = act(gate)·up: dgate = dy·up·act'(gate), dup = dy·act(gate).

naive: an element to a thread, at any stride; gate is read once for both gradients [shazeer2020]
vectorised: eight neighbours of 16 bits or four of 32 to a thread, in accesses of 16 bytes where all is aligned
            [xlite2025]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.pointwise import THREADS, blocks_for, in_lines
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_vectorised = Module(__file__, "vectorised.cu")

Gradients = tuple[torch.Tensor, torch.Tensor]


@variant()
def naive(gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu") -> Gradients:
    """gate, up and dy (rows, cols) -> dgate, dup (rows, cols). Any sizes and strides. Source: [shazeer2020]."""
    rows, cols = shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    kind = number(activation)
    dgate, dup = (torch.empty((rows, cols), dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        operands = (gate, up, dy, dgate, dup, *gate.stride(), *up.stride(), *dy.stride(), rows, cols, kind)
        _naive.launch("glu_backward_naive", blocks_for(dup.numel()), THREADS, *operands, dtype=gate.dtype)
    return dgate, dup


@variant()
def vectorised(gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu") -> Gradients:
    """gate, up and dy (rows, cols) -> dgate, dup (rows, cols). Any sizes and strides. Source: [xlite2025]."""
    rows, cols = shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    kind = number(activation)
    dgate, dup = (torch.empty((rows, cols), dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        lines = in_lines(gate, up, dy, dgate, dup)
        sizes = (*lines.strides[:6], lines.rows, lines.cols, int(lines.wide), kind)
        operands = (gate, up, dy, dgate, dup, *sizes)
        _vectorised.launch("glu_backward_vectorised", lines.blocks, THREADS, *operands, dtype=gate.dtype)
    return dgate, dup
