"""Wrong kernels of activation: vectors of 16 bytes where all elements lie side by side, what is left over one by
one."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy import activation as right
from touchstone.backends.cupy.lib.activations import number
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.activation import KERNELS as SHARED
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "activation.cu")

KERNELS = SHARED | {
    "vectors": Kernel(
        "known-good", "a vector of 16 bytes to a thread, and the elements left over to the threads after"
    ),
    "pointer_unaligned": Kernel(
        "alignment",
        "vectors of 16 bytes wherever x is contiguous, also where it begins between multiples of 16",
        "Misaligned",
    ),
    "tail_dropped": Kernel("tail", "elements after the last whole vector are not written"),
    "vector_past_the_end": Kernel(
        "bounds", "vectors are counted upwards: the last one reads past the end of x", "OutOfBounds"
    ),
    "bias_not_wrapped": Kernel(
        "bounds", "a vector that goes on in the next row reads past the end of bias", "OutOfBounds"
    ),
    "grid_rounded_down": Kernel("tail", "the grid counts whole blocks: the elements beyond are not written"),
    "one_bias_a_vector": Kernel("weights", "all elements of a vector have the bias of the first"),
}


def _vectors(
    x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu", fault: str = "none"
) -> torch.Tensor:
    rows, cols = shapes("rows cols, cols?", x=x, bias=bias)
    if not x.is_contiguous() or (x.data_ptr() % 16 and fault != "pointer_unaligned"):
        return right.naive(x, bias, activation=activation)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        length = 16 // x.element_size()
        threads = y.numel() // length + length
        blocks = max(threads // 128, 1) if fault == "grid_rounded_down" else -(-threads // 128)
        operands = (x, bias, y, 0 if bias is None else bias.stride(0), y.numel(), cols, number(activation))
        _module.launch("activation_vectors", blocks, 128, *operands, fault=fault, dtype=x.dtype)
    return y


plant_kernels(
    globals(),
    _vectors,
    KERNELS,
    "vectors",
    "pointer_unaligned",
    "tail_dropped",
    "vector_past_the_end",
    "bias_stride_ignored",
    "bias_not_wrapped",
    "one_bias_a_vector",
    "grid_rounded_down",
)
