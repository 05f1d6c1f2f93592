"""Wrong kernels of glu_backward: a few blocks step through the elements."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.glu_backward import KERNELS as SHARED

_module = Faulty(__file__, "glu_backward.cu")

KERNELS = SHARED | {
    "stepping": Kernel("known-good", "a few blocks step through the elements"),
    "dgate_overwrites_up": Kernel("mutation", "dgate is also stored over up", "inputs: up was written"),
}


def _stepping(
    gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu", fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    dgate, dup = (torch.empty((rows, cols), dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        sizes = (*gate.stride(), *up.stride(), *dy.stride(), rows, cols, number(activation))
        operands = (gate, up, dy, dgate, dup, *sizes)
        blocks = -(-dup.numel() // 512)
        _module.launch("glu_backward_stepping", blocks, 128, *operands, fault=fault, dtype=gate.dtype)
    return dgate, dup


plant_kernels(globals(), _stepping, KERNELS, "stepping", "dup_from_dgate", "dgate_overwrites_up")
