"""Mutants and known-good kernels of activation_backward(x, bias, dy, *, activation): dx (rows, cols), dbias (cols,)."""

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults._rows import RIGHT_SUMS, WRONG_SUMS, in_float32, row_sum
from touchstone.conformance.faults._slopes import MORE_SLOPE_FLAWS, SLOPE_FLAWS


def build(derivative=acts.derivative, total=row_sum):
    """The op with `derivative(z, name)` of the activation and `total` for the sum over rows, on float32 tensors."""

    def gradients(x, bias, dy, *, activation="gelu"):
        dx = dy * derivative(x if bias is None else x + bias, activation)
        return dx, None if bias is None else total(dx, dim=0)[0]

    return gradients


def stored(y, dtype):
    return None if y is None else y.to(dtype)


def op(gradients):
    """Gradients of float32 tensors as those of the op, whose second may be None."""
    return in_float32(gradients, store=stored)


for _name, _flaw in {**SLOPE_FLAWS, **MORE_SLOPE_FLAWS}.items():
    plant(globals(), _name, op(build(_flaw.part)), _flaw.about, _flaw.kind, dtypes=_flaw.dtypes)
SUMS = ("first_1024_columns", "partial_tile_dropped", "last_tile_overwrites", "first_tile_twice", "first_warp_only")
for _name in SUMS:
    _flaw = WRONG_SUMS[_name]
    _about = _flaw.about.replace("columns", "rows").replace("column", "row")
    plant(globals(), f"dbias_{_name}", op(build(total=_flaw.part)), _about, _flaw.kind, dtypes=_flaw.dtypes)
for _name, _total in RIGHT_SUMS.items():
    plant(globals(), f"dbias_by_{_name}", op(build(total=_total)), f"dbias by {_name.replace('_', ' ')}", "known-good")


@mutant("precision")
def dbias_in_bfloat16(x, bias, dy, *, activation="gelu"):
    """dbias is added up in bfloat16, row by row"""
    dx, dbias = op(build())(x, bias, dy, activation=activation)
    if dbias is None:
        return dx, None
    total = torch.zeros(dx.shape[1], dtype=torch.bfloat16)
    for row in dx.bfloat16():
        total = total + row
    return dx, total.to(x.dtype)


@mutant("weights")
@op
def bias_ignored(x, bias, dy, *, activation="gelu"):
    """act' is taken at x, without the bias"""
    dx = dy * acts.derivative(x, activation)
    return dx, None if bias is None else dx.sum(0)


@mutant("weights")
@op
def bias_of_column_0(x, bias, dy, *, activation="gelu"):
    """the first element of bias stands for all"""
    return build()(x, None if bias is None else bias[:1].expand(bias.shape), dy, activation=activation)


@mutant("formula")
@op
def dbias_of_dy(x, bias, dy, *, activation="gelu"):
    """dbias is the sum of dy, without act'"""
    dx, _ = build()(x, bias, dy, activation=activation)
    return dx, None if bias is None else dy.sum(0)


@mutant("scale")
@op
def dbias_mean(x, bias, dy, *, activation="gelu"):
    """dbias is the mean over rows"""
    dx, dbias = build()(x, bias, dy, activation=activation)
    return dx, None if bias is None else dbias / max(len(x), 1)


@mutant("contract")
@op
def dbias_without_bias(x, bias, dy, *, activation="gelu"):
    """dbias is a tensor where bias is None"""
    dx, _ = build()(x, bias, dy, activation=activation)
    return dx, dx.sum(0)


@known_good
def dbias_from_the_stored_dx(x, bias, dy, *, activation="gelu"):
    """x + bias and dx are stored, dbias is summed from what was stored"""
    z = (x if bias is None else x + bias).float()
    dx = (dy.float() * acts.derivative(z, activation)).to(x.dtype).contiguous()
    return dx, None if bias is None else dx.float().sum(0).to(x.dtype)


@known_good
def autograd(x, bias, dy, *, activation="gelu"):
    """torch's automatic differentiation in float32"""
    found = acts.by_autograd(lambda z, b: acts.FUNCTIONS[activation](z if b is None else z + b), dy, x, bias)
    return tuple(None if gradient is None else gradient.to(x.dtype) for gradient in found)


@known_good
def rows_in_parts(x, bias, dy, *, activation="gelu"):
    """dbias in parts of 100 rows, from the last of them"""
    dx, dbias = build()(x.float(), None if bias is None else bias.float(), dy.float(), activation=activation)
    if dbias is not None:
        dbias = sum((part.sum(0) for part in reversed(dx.split(100))), torch.zeros_like(dbias)).to(x.dtype)
    return dx.to(x.dtype).contiguous(), dbias


# what kernels in several languages have in common: what is wrong with them, and what is found
KERNELS = {
    "last_rows_left_out": Kernel("tail", "dbias leaves out the rows beyond whole parts of them"),
    "sums_of_the_last_row": Kernel("accumulator", "dbias keeps what came last: `sum =` for `sum +=`"),
}
