"""What the contracts of activations alone share: how far off each and its derivative may be, and where it bends.

All tensors are float64; errors are in units of float32's rounding.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts._pointwise import Family
from touchstone.conformance.spec.budget import EPS32, C, Expected, finite
from touchstone.conformance.spec.contract import Also, Draw
from touchstone.reference._activations import torch_act, torch_act_grad

# the activations as torch computes them, for baselines
LIBRARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "mish": F.mish,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "identity": lambda x: x.clone(),
}
NAMES = tuple(LIBRARY)
EXACT = ("relu", "hardshrink", "identity")  # integers stay integers
STEEPEST = dict.fromkeys(NAMES, 1.0) | {  # largest |act'|, rounded up
    "gelu": 1.13,
    "gelu_tanh": 1.13,
    "silu": 1.1,
    "quick_gelu": 1.1,
    "mish": 1.1,
    "hardswish": 1.5,
    "sigmoid": 0.25,
}
CURVATURE = dict.fromkeys(NAMES, 0.0) | {  # largest |act''| where there is one, rounded up
    "gelu": 0.8,
    "gelu_tanh": 0.83,
    "silu": 0.5,
    "sigmoid": 0.1,
    "quick_gelu": 0.86,
    "mish": 0.7,
    "elu": 1.0,
    "hardswish": 0.34,
}
JUMPS = {"hardshrink": (-0.5, 0.5)}
BENDS = (0.0, 0.5, -0.5, 3.0, -3.0)  # and jumps
SLOPE_JUMPS = {"relu": (0.0,), "hardshrink": (-0.5, 0.5), "hardswish": (-3.0, 3.0)}
# where act' is 0, to one side of 0: what is left there of a slope in 16 bits is its rounding
ROOTS = {"gelu": -0.7517915, "gelu_tanh": -0.7524614, "silu": -1.2784645, "quick_gelu": -0.7511542, "mish": -1.1924312}
TANH = 2.0**-10.9  # absolute error of tanh.approx
SATURATED = 18.0  # from here on 1 + exp(-x) is 1 in float32


def error(z: torch.Tensor, name: str) -> torch.Tensor:
    """Of act(z) for an exact z. Relative to the answer where its formula is a product, but for 1 + erf and 1 + tanh,
    which lose the tail's digits."""
    y = torch_act(z, name).abs()
    match name:
        case "gelu" | "gelu_tanh":
            return z.abs()
        case "silu" | "sigmoid" | "quick_gelu" | "mish":
            return y * (3 + (_pace(name) * -z).clamp_min(0))  # an exponent is off by its own size
        case "elu":
            return torch.where(z > 0, y, torch.exp(z.clamp_max(0)) + 1)
        case "hardswish":
            return 2 * y + z.square() / 6 * (z.abs() < 3)
    return y


def slope_error(z: torch.Tensor, name: str) -> torch.Tensor:
    """Of act'(z) for an exact z."""
    size = z.abs()
    match name:
        case "gelu":
            return 2 + size * torch.exp(-z * z / 2) * (1 + z * z)
        case "gelu_tanh":
            inner = 1.6 * (z + 0.044715 * z**3)
            s, steep = torch.sigmoid(inner), 1.6 * (1 + 0.134145 * z * z)
            return 2 + size * s * steep * ((1 - s) * (3 + inner.abs()) + (inner < SATURATED))
        case "silu" | "quick_gelu":
            k = _pace(name)
            s = torch.sigmoid(k * z)
            return s * (3 + (-k * z).clamp_min(0)) * (1 + k * size * ((1 - s) + (k * z < SATURATED) / 3))
        case "sigmoid":
            s, rest = torch.sigmoid(z), torch.sigmoid(-z)
            lost = torch.where(z < SATURATED, 1.0, rest / EPS32)  # of 1 - s: its last digits, or all of it
            return s * (rest * (3 + size) + lost)
        case "mish":
            t = torch.tanh(torch.logaddexp(z, torch.zeros_like(z)))
            s = torch.sigmoid(z)
            return t * (3 + (-z).clamp_min(0)) + size * s * ((1 - t * t) * (3 + size) + 2 * (z < SATURATED))
        case "elu":
            return 2 * torch_act_grad(z, name) + (z < 0)  # from the result, as torch in place: y + 1
        case "hardswish":
            return torch.where(size < 3, size / 3 + 0.5, torch.ones_like(z))
    return torch_act_grad(z, name).abs()


def _pace(name: str) -> float:
    return 1.702 if name == "quick_gelu" else 1.0


def _between(operand: str, low: float, high: float) -> Family:
    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn: dict[str, torch.Tensor | None] = {name: draw.normal(draw.shape(name)) for name in draw.operands}
        drawn[operand] = draw.uniform(draw.shape(operand), low, high)
        return drawn | {name: torch.zeros(draw.shape(name), dtype=torch.float64) for name in drawn if name == "bias"}

    return family


def slopes_in_16_bits(operand: str, names: Sequence[str]) -> dict[str, Also]:
    """`operand` where what is computed in 16 bits on the way to act' shows: about its root, within some units of
    bfloat16, and where the cube in gelu_tanh's exponent is large."""
    size, unit = {"rows": 3, "cols": 33}, 2.0**-7
    ranges = {f"flat_{name}": (name, ROOTS[name] - unit, ROOTS[name] + unit) for name in names if name in ROOTS}
    ranges["large_cubes"] = ("gelu_tanh", -4.0, -3.2)
    return {
        case: Also(size, _between(operand, low, high), {"activation": name}, dtype="bfloat16")
        for case, (name, low, high) in ranges.items()
    }


def nan_in(operand: str, names: Sequence[str]) -> dict[str, Also]:
    """Each function with NaN in every seventh element of `operand`, among the last that fill no vector too; but those
    whose gradient is another one in torch's vectors on a CPU than beside them."""

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn: dict[str, torch.Tensor | None] = {name: draw.normal(draw.shape(name)) for name in draw.operands}
        x = drawn[operand]
        assert x is not None
        x.view(-1)[::7] = math.nan
        return drawn

    return {
        f"special_nan_{name}": Also({"rows": 3, "cols": 33}, family, {"activation": name})
        for name in names
        if name not in ("elu", "hardswish", "hardshrink")
    }


def with_slopes_of_nan(found: Expected, z: torch.Tensor, name: str) -> Expected:
    """What is proportional to act'(z), with what it may be besides where z is NaN, in all of these elements alike:
    relu's slope is that of either of its pieces, or NaN."""
    if name != "relu" or not bool(z.isnan().any()):
        return found
    others = [
        replace(one, answer=one.answer.masked_fill(z.isnan(), slope), alternatives=[])
        for slope in (0.0, math.nan)
        for one in (found, *found.alternatives)
    ]
    return replace(found, alternatives=[*found.alternatives, *others])


def tails_in_16_bits(operand: str, names: Sequence[str]) -> dict[str, Also]:
    """Each function in float16, as far out as it has values there: an exponential that overflows or loses digits on the
    way to an answer that float16 holds. In the last row six times the argument is beyond the largest float16, in most
    places twice is too, and the argument is not; with other operands that vary along it, each third product of them is.
    """
    size = {"rows": 7, "cols": 127}

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn = _between(operand, -18.0, 18.0)(draw)
        x = drawn[operand]
        assert x is not None
        x[-1] = x[-1].sign() * draw.uniform(x[-1].shape, 11000.0, 60000.0)
        for name, other in drawn.items():
            if name != operand and other is not None and other.shape == x.shape:
                other[-1, ::3] = 8.0
        return drawn

    return {f"tails_{name}": Also(size, family, {"activation": name}, dtype="float16") for name in names}


def moved(
    fn: Callable[[torch.Tensor, str], torch.Tensor], z: torch.Tensor, name: str, condition: torch.Tensor, most: float
) -> torch.Tensor:
    """How far fn(z) moves, a step beside, where z is a sum in float32 of this condition; `most`: per unit of it.

    The slope is that at z: in a tail, where it is 0, an error of z is worth nothing.
    """
    step = C * 3 * EPS32 * finite(condition)  # what the budget of one term allows in z
    at = fn(z, name)
    apart = torch.maximum((fn(z + step, name) - at).abs(), (fn(z - step, name) - at).abs()) / (C * 3 * EPS32)
    return torch.minimum(finite(apart), most * finite(condition))  # a jump is `beside_a_jump`'s


def beside_a_jump(z: torch.Tensor, condition: torch.Tensor, jumps: tuple[float, ...]) -> torch.Tensor:
    """Where a sum in float32 of this condition may lie on the other side of a jump."""
    near = torch.zeros(z.shape, dtype=torch.bool)
    for at in jumps:
        near |= (z - at).abs() <= EPS32 * finite(condition)
    return near


def approximate(z: torch.Tensor, name: str) -> torch.Tensor:
    """The absolute error of act(z) where a sigmoid or a tanh is half of 1 + tanh.approx."""
    match name:
        case "gelu_tanh" | "silu" | "quick_gelu":
            return finite(z).abs() * TANH / 2
        case "sigmoid":
            return torch.full_like(z, TANH / 2)
    return torch.zeros_like(z)


def quarters(*operands: str) -> Family:
    """Multiples of 1/4 up to ±4, and sums of them: the very points at which activations bend or jump."""

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        return {
            name: draw.integers(draw.shape(name), -16, 17) / 4 if name in operands else draw.normal(draw.shape(name))
            for name in draw.operands
        }

    return family
