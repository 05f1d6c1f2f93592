"""Mutants and known-good kernels of reduce_rows(x, *, axis, function): (rows, cols) -> (rows,) or (cols,)."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._multilinear import plant_multilinear
from touchstone.conformance.faults._rows import F16, F32, in_float32, in_sequence, row_sum

EQUIVALENT = dict.fromkeys(("column_major", "rows_beyond_a_grid", "rows_of_16_bits"), "a vector has one axis")


def checked(fn):
    """`fn` of x with the reduced axis last, and with the errors of a call that has no answer."""

    def call(x, *, axis=-1, function="sum"):
        if axis not in (-1, 0) or function not in ("sum", "max", "min"):
            raise ValueError(f"axis, function: got {axis}, {function!r}")
        if not x.shape[axis] and function != "sum":
            raise ValueError(f"x: is empty along axis {axis}, and nothing has no {function}")
        return fn(x if axis == -1 else x.t(), function)

    call.__name__, call.__doc__ = fn.__name__, fn.__doc__
    return call


def wide(fn):
    """The same in float32, rounded once."""
    return in_float32(checked(fn))


def folded(t: torch.Tensor, function: str, total=row_sum) -> torch.Tensor:
    """(outputs, each) -> (outputs,)."""
    return total(t)[:, 0] if function == "sum" else t.amax(1) if function == "max" else t.amin(1)


def _reduce(total):
    return checked(lambda t, function: folded(t, function, total))


plant_multilinear(globals(), _reduce)


@mutant("mask")
@wide
def maximum_from_zero(t, function):
    """a maximum starts at 0 instead of -inf"""
    return folded(F.pad(t, (0, 1)) if function == "max" else t, function)


@mutant("mask")
@wide
def padding_loads_0(t, function):
    """lanes past the last element, up to a whole tile (of 32, say), hold 0 whatever the function"""
    return folded(F.pad(t, (0, -t.shape[1] % 32)), function)


@mutant("special", dtypes=("float32",))
@wide
def extremes_end_finite(t, function):
    """an infinite extreme is the largest finite number"""
    end, y = torch.finfo(torch.float32).max, folded(t, function)
    return y.clamp(max=end) if function == "max" else y.clamp(min=-end) if function == "min" else y


@mutant("special")
@wide
def extremes_from_finite(t, function):
    """extremes start at the largest finite number of the other sign"""
    end = torch.finfo(torch.float32).max
    return folded(F.pad(t, (0, 1), value={"max": -end, "min": end}.get(function, 0.0)), function)


@mutant("special")
@wide
def extremes_skip_nan(t, function):
    """a NaN loses against a number, as in fmaxf and fminf"""
    if function == "sum":
        return folded(t, function)
    return folded(torch.where(t.isnan(), -math.inf if function == "max" else math.inf, t), function)


@mutant("formula")
@wide
def absolute_maximum(t, function):
    """a maximum is that of the absolute values"""
    return folded(t.abs() if function == "max" else t, function)


@mutant("formula")
@wide
def minimum_for_maximum(t, function):
    """max and min are confused"""
    return folded(t, {"max": "min", "min": "max"}.get(function, function))


@mutant("formula")
@wide
def mean(t, function):
    """a sum is divided by the number of terms"""
    return folded(t, function) / (max(t.shape[1], 1) if function == "sum" else 1)


@mutant("axis")
@wide
def elements_of_the_transposed(t, function):
    """the elements are taken in the order of the other axis"""
    return folded(t.t().reshape(t.shape), function)


@mutant("axis")
@wide
def row_before(t, function):
    """every second output is that of the one before"""
    return folded(t[torch.arange(len(t)) // 2 * 2], function)


@mutant("tail")
@wide
def outputs_of_whole_blocks(t, function):
    """the grid has outputs // 32 blocks of 32 outputs: what is left stays 0"""
    y = folded(t, function)
    y[max(len(y) // 32, 1) * 32 :] = 0
    return y


@mutant("tail")
@wide
def part_of_the_axis_lost(t, function):
    """with the reduced axis in four parts of each // 4, what is left over is lost"""
    return folded(t[:, : t.shape[1] // 4 * 4] if t.shape[1] > 4 else t, function)


@mutant("accumulator")
@wide
def partials_of_parts_added(t, function):
    """what four parts of the reduced axis have found is added whatever the function"""
    parts = [part for part in t.split(max(-(-t.shape[1] // 4), 1), 1) if part.shape[1]]
    return sum((folded(part, function) for part in parts), torch.zeros(len(t)))


@mutant("unwritten")
@wide
def absent_parts_count(t, function):
    """of four parts of 16 elements those that are absent are combined as 0"""
    return folded(F.pad(t, (0, max(48 - t.shape[1], 0))), function)


@mutant("empty")
@wide
def empty_sum_unwritten(t, function):
    """a sum of nothing keeps what was in memory"""
    return folded(t, function) if t.shape[1] else torch.full((len(t),), 0.125)


@mutant("precision", dtypes=F32 + F16)
@wide
def partials_in_bf16(t, function):
    """what eight threads of an output have found is rounded to bfloat16 before it is combined"""
    if function != "sum":
        return folded(t, function)
    return F.pad(t, (0, -t.shape[1] % 8)).unflatten(1, (-1, 8)).sum(1).bfloat16().float().sum(1)


@known_good
@wide
def library(t, function):
    """torch.sum, torch.amax, torch.amin in float32, rounded once"""
    return folded(t, function)


@known_good
@wide
def column_by_column(t, function):
    """one element of every output after another"""
    if not t.shape[1]:
        return folded(t, function)
    return in_sequence(t, by={"sum": np.add, "max": np.maximum, "min": np.minimum}[function])


@known_good
@wide
def in_parts(t, function):
    """seven parts of the reduced axis, and then what they found"""
    parts = [part for part in t.split(max(-(-t.shape[1] // 7), 1), 1) if part.shape[1]]
    return folded(torch.stack([folded(part, function) for part in parts], 1) if parts else t, function)


@known_good
@checked
def in_float64(t, function):
    """sums in float64, rounded once"""
    return folded(t.double(), function).to(t.dtype)


# what kernels in several languages have in common: what is wrong with them, and what is found
KERNELS = {
    "parts": Kernel("known-good", "a thread to an output; blocks share the reduced axis, and then what they found"),
    "no_barrier": Kernel("race", "no barrier before the results of other threads are read", "UninitialisedShared"),
    "padding_is_0": Kernel("mask", "what begins a maximum or a minimum is 0"),
    "nan_dropped": Kernel("special", "the larger of two is found by a comparison that a NaN loses"),
    "outputs_unguarded": Kernel("bounds", "outputs past the last are read and written", "OutOfBounds"),
    "empty_parts_unwritten": Kernel(
        "unwritten", "a part without elements returns before it writes its result, which is combined all the same"
    ),
    "strides_swapped": Kernel(
        "strides", "the strides of outputs and of elements change places", "OutOfBounds|values: "
    ),
}
