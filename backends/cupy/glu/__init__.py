"""y = act(gate)·up, element by element.

naive: an element to a thread, at any stride [shazeer2020]
vectorised: eight neighbours of 16 bits or four of 32 to a thread, in accesses of 16 bytes where all is aligned, also in
            the halves of a joined projection [xlite2025]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.pointwise import THREADS, blocks_for, in_lines
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def naive(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu") -> torch.Tensor:
    """gate and up (rows, cols) -> y (rows, cols). Any sizes and strides. Source: [shazeer2020]."""
    rows, cols = shapes("rows cols, rows cols", gate=gate, up=up)
    kind = number(activation)
    y = torch.empty((rows, cols), dtype=gate.dtype, device=gate.device)
    if y.numel():
        operands = (gate, up, y, *gate.stride(), *up.stride(), rows, cols, kind)
        _naive.launch("glu_naive", blocks_for(y.numel()), THREADS, *operands, dtype=gate.dtype)
    return y


@variant()
def vectorised(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu") -> torch.Tensor:
    """gate and up (rows, cols) -> y (rows, cols). Any sizes and strides. Source: [xlite2025]."""
    rows, cols = shapes("rows cols, rows cols", gate=gate, up=up)
    kind = number(activation)
    y = torch.empty((rows, cols), dtype=gate.dtype, device=gate.device)
    if y.numel():
        lines = in_lines(gate, up, y)
        operands = (gate, up, y, *lines.strides[:4], lines.rows, lines.cols, int(lines.wide), kind)
        _vectorised.launch("glu_vectorised", lines.blocks, THREADS, *operands, dtype=gate.dtype)
    return y
