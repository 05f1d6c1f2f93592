"""Mutants and known-good kernels of elementwise(a, b, *, function): y = a + b or a·b, of any shape."""

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._pointwise import plant_pointwise
from touchstone.conformance.faults._rows import F16, F32, in_float32


def right(a, b, *, function="add"):
    return a + b if function == "add" else a * b


plant_pointwise(globals(), right, ("a", "b"))


@mutant("formula")
@in_float32
def add_for_mul(a, b, *, function="add"):
    """the sum, whatever the function"""
    return a + b


@mutant("formula")
@in_float32
def difference(a, b, *, function="add"):
    """b is taken off"""
    return right(a, -b if function == "add" else b, function=function)


@mutant("special")
@in_float32
def clamped(a, b, *, function="add"):
    """infinities are replaced by the largest finite values"""
    largest = torch.finfo(torch.float32).max
    return right(a.clamp(-largest, largest), b.clamp(-largest, largest), function=function)


@mutant("special")
@in_float32
def zero_times_infinity_is_0(a, b, *, function="add"):
    """a factor of 0 is taken for the product"""
    y = right(a, b, function=function)
    return torch.where((a == 0) | (b == 0), 0.0, y) if function == "mul" else y


@mutant("precision", dtypes=F32 + F16)
def in_bfloat16(a, b, *, function="add"):
    """computed in bfloat16"""
    return right(a.bfloat16(), b.bfloat16(), function=function).to(a.dtype).contiguous()


@mutant("strides")
def strides_of_a(a, b, *, function="add"):
    """b is read with the strides of a"""
    if a.numel():
        reach = sum((n - 1) * s for n, s in zip(a.shape, a.stride(), strict=True))
        if b.storage_offset() + reach < b.untyped_storage().nbytes() // b.element_size():
            b = b.as_strided(a.shape, a.stride(), b.storage_offset())
    return right(a.float(), b.float(), function=function).to(a.dtype).contiguous()


@mutant("shapes")
@in_float32
def flattened_output(a, b, *, function="add"):
    """the shape of more than two axes is lost"""
    y = right(a, b, function=function)
    return y.flatten(1) if y.ndim > 2 else y


@mutant("empty")
@in_float32
def no_axes_fail(a, b, *, function="add"):
    """a tensor of no axes is an error"""
    if not a.ndim:
        raise IndexError("tuple index out of range")
    return right(a, b, function=function)


@mutant("tail")
@in_float32
def whole_blocks_of_256(a, b, *, function="add"):
    """elements beyond a multiple of 256 are 0"""
    flat = right(a, b, function=function).reshape(-1).clone()
    flat[flat.numel() // 256 * 256 :] = 0
    return flat.reshape(a.shape)


@known_good
def in_the_dtype(a, b, *, function="add"):
    """in the operands' own dtype"""
    return right(a, b, function=function).contiguous()


@known_good
def along_the_first_axis(a, b, *, function="add"):
    """slice by slice of the first axis, from the last one"""
    y = torch.empty(a.shape, dtype=a.dtype)
    if not a.ndim:
        return right(a, b, function=function).clone()
    for i in reversed(range(len(a))):
        y[i] = right(a[i].float(), b[i].float(), function=function).to(a.dtype)
    return y


@known_good
def by_fused_operations(a, b, *, function="add"):
    """a·1 + b and a·b + 0, as a fused multiply-add gives them"""
    one = torch.ones((), dtype=torch.float64)
    wide = torch.addcmul(b.double(), a.double(), one) if function == "add" else a.double() * b.double()
    return wide.to(a.dtype).contiguous()


# what kernels in several languages have in common: what is wrong with them, and what is found
KERNELS = {
    "stride_of_b_ignored": Kernel("strides", "b is read with the strides of a", "OutOfBounds|values: "),
    "step_too_long": Kernel("tail", "each step is a block longer than the grid: what lies between is not written"),
}
