"""Wrong kernels of reduce_rows: a thread to an output, and blocks that share the reduced axis."""

import torch

from touchstone.backends.signatures.reduce_rows import checked
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.reduce_rows import KERNELS as SHARED

_module = Faulty(__file__, "reduce_rows.cu")

KERNELS = SHARED | {
    "first_thread_lost": Kernel("accumulator", "of the two threads of an output one keeps its own result")
}


def _parts(x: torch.Tensor, *, axis: int = -1, function: str = "sum", fault: str = "none") -> torch.Tensor:
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y, results = x.new_empty(outputs), x.new_empty((3, outputs), dtype=torch.float32)
    if outputs:
        grid = (-(-outputs // 32), 3)
        operands = (x, results, outputs, each, *seen.stride(), number)
        _module.launch("reduce_rows_parts", grid, (32, 2), *operands, fault=fault, dtype=x.dtype)
        operands = (results, y, outputs, 3, number)
        _module.launch("reduce_rows_finish", grid[0], 32, *operands, fault=fault, dtype=x.dtype)
    return y


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "parts",
    "no_barrier",
    "padding_is_0",
    "nan_dropped",
    "outputs_unguarded",
    "empty_parts_unwritten",
    "strides_swapped",
    "first_thread_lost",
)
