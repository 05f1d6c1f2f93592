"""Wrong kernels of elementwise: blocks that step through the elements, and vectors of 16 bytes."""

import torch

from touchstone.backends.cupy import elementwise as right
from touchstone.backends.signatures.elementwise import checked_output
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.elementwise import KERNELS as SHARED

_module = Faulty(__file__, "elementwise.cu")

KERNELS = SHARED | {
    "stepping": Kernel("known-good", "a few blocks step through the elements of two axes"),
    "vectors": Kernel(
        "known-good", "a vector of 16 bytes to a thread, and the elements left over to the threads after"
    ),
    "tail_dropped": Kernel("tail", "elements after the last whole vector are not written"),
    "vector_past_the_end": Kernel(
        "bounds", "vectors are counted upwards: the last one reads past the end", "OutOfBounds"
    ),
    "offset_of_a_ignored": Kernel("alignment", "vectors of 16 bytes where b is aligned, whatever a is", "Misaligned"),
}


def _stepping(a: torch.Tensor, b: torch.Tensor, *, function: str = "add", fault: str = "none") -> torch.Tensor:
    y = checked_output(a, b, function)
    if a.ndim != 2:
        return right.naive(a, b, function=function)
    if y.numel():
        operands = (a, b, y, *a.stride(), *b.stride(), *a.shape, int(function == "mul"))
        _module.launch("elementwise_stepping", -(-y.numel() // 512), 128, *operands, fault=fault, dtype=a.dtype)
    return y


plant_kernels(globals(), _stepping, KERNELS, "stepping", "stride_of_b_ignored", "step_too_long")


def _vectors(a: torch.Tensor, b: torch.Tensor, *, function: str = "add", fault: str = "none") -> torch.Tensor:
    y = checked_output(a, b, function)
    judged = (b,) if fault == "offset_of_a_ignored" else (a, b)
    if not (a.is_contiguous() and b.is_contiguous()) or any(t.data_ptr() % 16 for t in judged):
        return right.naive(a, b, function=function)
    if y.numel():
        length = 16 // a.element_size()
        blocks = -(-(y.numel() // length + length) // 128)
        sizes = (y.numel(), int(function == "mul"))
        _module.launch("elementwise_vectors", blocks, 128, a, b, y, *sizes, fault=fault, dtype=a.dtype)
    return y


plant_kernels(globals(), _vectors, KERNELS, "vectors", "tail_dropped", "vector_past_the_end", "offset_of_a_ignored")
