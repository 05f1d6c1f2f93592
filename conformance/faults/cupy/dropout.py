"""Wrong kernels of dropout: threads walk over groups of four elements."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures._dropout import axes, checked
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "dropout.cu")

KERNELS = {
    "walk": Kernel("known-good", "threads of two blocks walk over groups of four elements"),
    "counter_of_thread": Kernel(
        "offset", "the counter is the thread's, the same for all groups that it comes to", "as many are kept as p says"
    ),
    "step_of_a_block": Kernel(
        "race", "every block walks over all groups by itself: two threads write each element", "RaceCondition"
    ),
    "tail_unguarded": Kernel("bounds", "the last group has four elements, whatever the size", "OutOfBounds"),
    "signed_words": Kernel("overflow", "words are compared as signed integers: those from 2^31 on are dropped"),
    "stride_ignored": Kernel("strides", "x is read as if it were contiguous", "OutOfBounds"),
}


def _walk(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0, fault: str = "none") -> torch.Tensor:
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        sizes, strides = axes(x)
        operands = (x, y, y.numel(), *sizes[1:], *strides, *rule)
        _module.launch("dropout_walk", 2, 32, *operands, fault=fault, dtype=x.dtype)
    return y


plant_kernels(
    globals(),
    _walk,
    KERNELS,
    "walk",
    "counter_of_thread",
    "step_of_a_block",
    "tail_unguarded",
    "signed_words",
    "stride_ignored",
)
