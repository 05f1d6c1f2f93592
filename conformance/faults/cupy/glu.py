"""Wrong kernels of glu: vectors of 16 bytes along rows that begin at multiples of them."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.glu import KERNELS as SHARED

_module = Faulty(__file__, "glu.cu")

KERNELS = SHARED | {
    "rows": Kernel("known-good", "vectors of 16 bytes along aligned rows, else an element at a time"),
    "last_lane_lost": Kernel("tail", "where rows are not aligned the last element of a whole vector is not written"),
    "up_unaligned": Kernel("alignment", "vectors of 16 bytes where gate is aligned, whatever up is", "Misaligned"),
}


def _rows(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu", fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, rows cols", gate=gate, up=up)
    y = torch.empty((rows, cols), dtype=gate.dtype, device=gate.device)
    if y.numel():
        length = 16 // gate.element_size()
        judged = (gate, y) if fault == "up_unaligned" else (gate, up, y)
        aligned = all(
            t.stride(1) == 1 and t.data_ptr() % 16 == 0 and (rows == 1 or t.stride(0) % length == 0) for t in judged
        )
        if fault == "up_unaligned":
            aligned = aligned and up.stride(1) == 1
        sizes = (rows, cols, int(aligned), number(activation))
        blocks = -(-rows * -(-cols // length) // 128)
        _module.launch(
            "glu_rows", blocks, 128, gate, up, y, *gate.stride(), *up.stride(), *sizes, fault=fault, dtype=gate.dtype
        )
    return y


plant_kernels(globals(), _rows, KERNELS, "rows", "act_of_up", "row_of_up_ignored", "last_lane_lost", "up_unaligned")
