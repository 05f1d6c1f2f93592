"""Wrong kernels of rms_norm: a row in dynamic shared memory, and one warp per row in accesses of 16 bytes."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.runtime.module import shared_limit
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.cupy._module import Faulty

_SIXTEEN = ("float16", "bfloat16")

_module = Faulty(__file__, "rms_norm.cu")


def _shared(x: torch.Tensor, weight: torch.Tensor, eps: float, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    held = cols * (x.element_size() if fault == "shared" else 4)
    if held + 32 > shared_limit(x.device):
        raise Unsupported(f"{cols} columns; one block's shared memory holds {shared_limit(x.device) // 4 - 8}")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        threads = min(32 * -(-cols // 32), 256 if fault == "warps" else 128)
        operands = (x, weight, y, rows, cols, *x.stride(), weight.stride(0), eps)
        _module.launch("rms_norm_shared", min(rows, 3), threads, *operands, fault=fault, dtype=x.dtype, shared=held)
    return y


@known_good
def shared(x, weight, *, eps=1e-6):
    """a few blocks walk over the rows and keep one in shared memory"""
    return _shared(x, weight, eps)


@mutant("race")
def no_barrier_before_rstd(x, weight, *, eps=1e-6):
    """no barrier between the thread that writes the factor of a row to shared memory and those that read it"""
    return _shared(x, weight, eps, "no_barrier_before_rstd")


@mutant("race")
def no_barrier_before_partials(x, weight, *, eps=1e-6):
    """no barrier between the warps' partial sums and the thread that adds them"""
    return _shared(x, weight, eps, "no_barrier_before_partials")


@mutant("cache")
def factor_of_an_earlier_row(x, weight, *, eps=1e-6):
    """a block keeps in shared memory the factor of its first row for the rows after it"""
    return _shared(x, weight, eps, "first_row_only")


@mutant("tail")
def whole_steps(x, weight, *, eps=1e-6):
    """the sum of squares leaves out columns beyond a multiple of the block"""
    return _shared(x, weight, eps, "whole_steps")


@mutant("precision", dtypes=_SIXTEEN)
def narrow_sum(x, weight, *, eps=1e-6):
    """a thread adds its squares in the 16-bit type of x"""
    return _shared(x, weight, eps, "narrow_sum")


@mutant("strides")
def weight_stride_ignored(x, weight, *, eps=1e-6):
    """the stride of weight is taken to be 1"""
    return _shared(x, weight, eps, "weight_stride")


@mutant("bounds", dtypes=_SIXTEEN)
def shared_memory_of_elements(x, weight, *, eps=1e-6):
    """the launch asks for shared memory for a row of 16-bit elements, but the kernel keeps floats"""
    return _shared(x, weight, eps, "shared")


@mutant("bounds")
def partials_overrun(x, weight, *, eps=1e-6):
    """eight warps write their partial sums to a shared array of four"""
    return _shared(x, weight, eps, "warps")


def _vectorised(x: torch.Tensor, weight: torch.Tensor, eps: float, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    length = 16 // x.element_size()
    aligned = x.stride(1) == 1
    if fault != "pointer":
        aligned = aligned and x.data_ptr() % 16 == 0
    if fault != "row_stride":
        aligned = aligned and (rows == 1 or x.stride(0) % length == 0)
    if not aligned and cols >= length:
        return _shared(x, weight, eps)
    if y.numel():
        blocks = max(rows // 4, 1) if fault == "grid" else -(-rows // 4)
        operands = (x, weight, y, rows, cols, *x.stride(), weight.stride(0), eps)
        _module.launch("rms_norm_vectorised", blocks, (32, 4), *operands, fault=fault, dtype=x.dtype)
    return y


@known_good
def vectorised(x, weight, *, eps=1e-6):
    """one warp per row in loads of 16 bytes where rows are aligned, else one block per row"""
    return _vectorised(x, weight, eps)


@mutant("alignment")
def pointer_unaligned(x, weight, *, eps=1e-6):
    """loads of 16 bytes wherever rows are contiguous, also where x begins between multiples of 16"""
    return _vectorised(x, weight, eps, "pointer")


@mutant("alignment")
def row_stride_unaligned(x, weight, *, eps=1e-6):
    """loads of 16 bytes where the first row is aligned, though the row stride takes the next one off it"""
    return _vectorised(x, weight, eps, "row_stride")


@mutant("bounds")
def run_too_many(x, weight, *, eps=1e-6):
    """the runs of 16 bytes are counted upwards: the last one reads past the row"""
    return _vectorised(x, weight, eps, "run_too_many")


@mutant("tail")
def tail_dropped(x, weight, *, eps=1e-6):
    """columns after the last whole run of 16 bytes are not written"""
    return _vectorised(x, weight, eps, "tail_dropped")


@mutant("tail")
def grid_rounded_down(x, weight, *, eps=1e-6):
    """the grid counts whole blocks of four rows: the rows beyond are not written"""
    return _vectorised(x, weight, eps, "grid")
