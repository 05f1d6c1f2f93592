"""The error budget: how far from the float64 answer a correct kernel can be, element by element.

    error <= T·eps(out)·max(|answer|, smallest normal of out)       one rounding of the result
           + C·eps(float32)·sqrt(terms + 8)·condition               float32 accumulation of `terms` terms
           + T·eps(in)·rounding                                     intermediates stored in the input dtype
           + extra                                                  a declared lower precision (compute="tf32")
           + 1e-30

`condition` is the sum of the absolute values of the terms, so a case with cancellation is allowed what its inputs
make unavoidable and no more. There is no absolute tolerance, no table per dtype and none per backend.
The comparison with it is in conformance/spec/compare.py. Constants and their measurement: docs/verification.md.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

T = 0.75  # one rounding to nearest is 0.5 of eps times the value
C = 2.0
FLOOR = 1e-30
EPS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
EPS32 = EPS[torch.float32]
# rounding of an operand that a variant declares: `compute = "tf32"`; tf32x3 keeps two tf32 pieces of each operand
ROUNDED = {"tf32": 2.0**-10, "tf32x3": 2.0**-21, "bf16": 2.0**-7}
# and what else it may declare. What that costs, the contract of an op that knows it computes from a case's own values;
# to the others it makes no difference. Partial sums in float16; the fp8 tensor cores' 13 bits, from the beginning or
# anew every 128 terms; functions of the GPU's approximate units
COMPUTE = ROUNDED | {"half_sum": 2.0**-11, "fp22": 2.0**-13, "fp22_promoted": 2.0**-13, "approximate": 2.0**-11}

Scalar = float | torch.Tensor


@dataclass
class Expected:
    """What one output must be. Tensors are float64, of the output's shape (or broadcastable to it)."""

    answer: torch.Tensor
    parts: Sequence[tuple[Scalar, Scalar]] = ()  # (terms, condition) pairs
    rounding: Scalar = 0.0  # in units of the value; multiplied by T·eps(input dtype)
    extra: Scalar = 0.0  # absolute, for a declared precision
    dtype: torch.dtype | None = None  # None: the dtype of the inputs
    bitwise: bool = False  # moved, not computed: the answer's bits, the sign of 0 too; any NaN is as good as another
    drift: float = 0.06  # limit of the mean signed error, in eps; inf where an output has none
    alternatives: list["Expected"] = field(default_factory=list)  # other answers the literature accepts, whole tensors
    note: str = ""  # of an alternative: what the reader of a report should know of a kernel that gives it
    exact: bool = False  # every intermediate is exact: the answer's bits, of zeros any sign
    # elements that are not judged, as booleans of the answer's shape; of the output, where that depends on it
    excused: torch.Tensor | Callable[[torch.Tensor], torch.Tensor] | None = None
    # more alternatives, for an output that is none of the others: computed only then, and none after one that it is
    otherwise: Callable[[], Iterable["Expected"]] | None = None
    # what compare.py has computed of it, by the dtype of the inputs and the shape of the output
    compared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


def simple(
    answer: torch.Tensor, terms: float = 1, condition: Scalar | None = None, dtype: torch.dtype | None = None
) -> Expected:
    """The budget of an output that a kernel computes in float32, as a sum of `terms` terms, and rounds once.

    `condition` is the sum of the absolute values of the terms, of the answer's shape; None stands for |answer|, which
    is right where nothing cancels: terms of one sign, products, quotients. `dtype` is the output's where it has its
    own.
    """
    size = answer.abs() if condition is None else torch.as_tensor(condition).abs()
    return Expected(answer, parts=[(terms, finite(size))], dtype=dtype)


def dot_extra(compute: str | None, answer: torch.Tensor, squares: torch.Tensor) -> Scalar:
    """Extra budget of one dot product whose operands are rounded as `compute` says; `squares` is sum(a²·b²)."""
    if compute not in ROUNDED:
        return 0.0
    unit = ROUNDED[compute]
    return 2 * unit * answer.abs() + 4 * unit * squares.sqrt()


def budget(expected: Expected, in_dtype: torch.dtype) -> torch.Tensor:
    """The absolute error allowed for each element of `expected.answer`; an integer is not rounded."""
    out = expected.dtype or in_dtype
    total = torch.full_like(expected.answer, FLOOR)
    if out.is_floating_point:
        total += T * EPS[out] * finite(expected.answer).abs().clamp_min(torch.finfo(out).tiny)
    for terms, condition in expected.parts:
        root = (terms + 8.0) ** 0.5
        total = total + C * EPS32 * root * condition
    return total + T * EPS[in_dtype] * expected.rounding + expected.extra


def finite(x: torch.Tensor) -> torch.Tensor:
    """`x` with 0 in place of NaN and infinities: what budgets are computed from."""
    return torch.where(torch.isfinite(x), x, torch.zeros((), dtype=x.dtype, device=x.device))


def overflow_threshold(dtype: torch.dtype) -> float:
    """The smallest magnitude that rounds to infinity in `dtype`."""
    largest = torch.finfo(dtype).max
    return (
        largest * (1 + EPS[dtype] / 4)
        if dtype is torch.float64
        else largest + 2.0 ** (math.floor(math.log2(largest))) * EPS[dtype] / 2
    )
