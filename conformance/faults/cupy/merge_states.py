"""Wrong kernels of merge_states: a block for each row, whose threads take a part's weight each."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.merge_states import KERNELS as SHARED

_module = Faulty(__file__, "merge_states.cu")

KERNELS = SHARED | {
    "no_barrier": Kernel(
        "race", "no barrier between the parts' lse and the threads that need all of them", "UninitialisedShared|Race"
    )
}


def _running(o, lse, *, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    sizes = shapes("P rows D, P rows:float32", o=o, lse=lse)
    merged, of_all = torch.empty(sizes[1:], dtype=o.dtype), torch.empty(sizes[1], dtype=torch.float32)
    if sizes[1]:
        arguments = (o, lse, merged, of_all, *o.stride(), *lse.stride(), *sizes)
        _module.launch("merge_states_running", sizes[1], 64, *arguments, fault=fault, dtype=o.dtype)
    return merged, of_all


plant_kernels(
    globals(),
    _running,
    KERNELS,
    "running",
    "not_rescaled",
    "base_2",
    "last_part_lost",
    "row_before",
    "empty_parts",
    "offset_int32",
    "part_stride",
    "no_barrier",
)
