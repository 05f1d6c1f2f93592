"""What the contracts of the row-wise ops share: error terms of the norms, families, properties and invalid calls.

A row is what one statistic is taken over: the last axis, or a group of channels with all their positions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from touchstone.conformance.contracts._bounds_dots import summed
from touchstone.conformance.spec import rounding
from touchstone.conformance.spec.budget import EPS32, C, Scalar, finite
from touchstone.conformance.spec.contract import DTYPES, Also, Case, Draw, Family, Invalid, Regular, each_of_one
from touchstone.conformance.spec.layouts import BROADCASTS
from touchstone.conformance.spec.values import cancelling, lift_square, lift_tail

SHORT = ("contiguous", "sliced", "none")  # layouts that an empty operand is tried in
SUBNORMAL32 = 2.0**-149  # float32's smallest number above 0
STATISTIC = ("contiguous", "none", "step", "offset")  # a broadcast would contradict the rows it is the statistic of
OPTIONAL = ("contiguous", "none", "step", "offset", "broadcast_last")  # a vector that may be None
_SHARED = [
    (3, 33),
    (1, 1),
    (0, 5),
    (5, 0),
    (24, 24),
    (1, 129),
    (7, 1),
    (17, 64),
    (7, 127),
    (4, 257),
    (5, 1025),
    (2, 10007),
]
SIZES = [{"rows": rows, "cols": cols} for rows, cols in [*_SHARED, (3, 1000), (1031, 7)]]
BACKWARD_SIZES = [{"rows": rows, "cols": cols} for rows, cols in [*_SHARED, (130, 33), (4099, 5), (33, 1032)]]
BEYOND_GRID = ({"rows": 65601, "cols": 3},)
_POWERS = [(32, 128), (16, 256), (64, 64), (8, 1024), (128, 128), (4, 512), (2, 4096), (256, 64)]
REGULAR = Regular([{"rows": rows, "cols": cols} for rows, cols in _POWERS])
OVER_TILES = {"rows": 5, "cols": 2081}
POWERS_OF_TWO = {  # lengths, each in one dtype
    128: "float16",
    256: "bfloat16",
    512: "float32",
    1024: "bfloat16",
    2048: "float32",
    4096: "float16",
    8192: "bfloat16",
}
NO_POWER = 3072  # but whole tiles
ODD = 2053  # of whose contiguous rows each starts elsewhere in 16 bytes
WARPS = 160  # lanes of five warps, of which a sum by halves loses some


def powers_of_two(size: Callable[[int], dict[str, Any]], **params: Any) -> dict[str, Also]:
    """Single cases of the size for each of the lengths for which kernels have a path without a tail, which may forget
    the tail of other axes, for one between them that is many whole tiles, for an odd one and for one of a few whole
    warps."""
    found = {f"power_of_two_{n}": Also(size(n), params=params, dtype=dtype) for n, dtype in POWERS_OF_TWO.items()}
    found["no_power_of_two"] = Also(size(NO_POWER), params=params, dtype="float16")
    found["odd_length"] = Also(size(ODD), params=params, dtype="bfloat16")
    return found | {"whole_warps": Also(size(WARPS), params=params)}


# a row longer than what one block or an index of 16 bits holds, and those without a tail
LONG_ROWS = {"long_rows": Also({"rows": 2, "cols": 66001})} | powers_of_two(lambda n: {"rows": 3, "cols": n})
ONE = each_of_one({"rows": 3, "cols": 33})
# than whole tiles of rows, of any power of two; and so narrow that a tile of few rows is a square, in which the sum of
# a row can be taken for that of a column
ONE_ROW_MORE = {"one_row_more": Also({"rows": 2049, "cols": 2})}
BEYOND_INT32 = {"rows": 2**17 + 3, "cols": 2**14 + 8}  # rows and columns of more than 2^31 elements
# where rows of NaN or infinities are tried; the regular sizes are of no plan's product, but kernels that decline the
# others may take them
SPECIAL_AT = ((3, 33), (17, 64), (5, 1025), tuple(OVER_TILES.values()), *_POWERS)
CONSTANT_AT = ((3, 33), (17, 64), (4, 257))  # where rows without variance are; not longer, for the reason in `repeats`


@dataclass(frozen=True)
class Statistics:
    """Normalised rows and the condition of computing them in float32, (rows, cols) each; rstd and kappa (rows, 1)."""

    normalised: torch.Tensor
    error: torch.Tensor
    rstd: torch.Tensor
    kappa: torch.Tensor  # rms(x)·rstd: what subtracting the mean loses


def layer_statistics(x: torch.Tensor, eps: float) -> Statistics:
    """x̂ = (x − mean)·rstd over the last axis, and rstd·(|x| + mean|x|) + |x̂|·(1 + κ)."""
    centred = x - x.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    normalised = centred * rstd
    kappa = x.square().mean(-1, keepdim=True).sqrt() * rstd
    error = rstd * (x.abs() + x.abs().mean(-1, keepdim=True)) + normalised.abs() * (1 + kappa)
    return Statistics(normalised, error, rstd, kappa)


def rms_statistics(x: torch.Tensor, eps: float) -> Statistics:
    """x̂ = x·rstd over the last axis. Nothing cancels: the condition is |x̂|."""
    rstd = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    normalised = x * rstd
    return Statistics(normalised, normalised.abs(), rstd, torch.ones_like(rstd))


def of_a_row(x: torch.Tensor) -> torch.Tensor:
    """The terms of sums over the last axis of `x` and of its squares, which is kept with length 1."""
    return summed(x, -1).unsqueeze(-1)


def stored(
    value: torch.Tensor, condition: torch.Tensor, terms: Scalar, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """`value` rounded to `dtype`, and how far off a kernel's can be that computes it in float32 before rounding it.

    Only values near a tie can be off, by a whole step: float32 noise sends them to the neighbour. A quarter of that is
    room for what comes after.
    """
    low, middle, high = stored_between(value, condition, terms, dtype)
    return middle, 1.25 * torch.maximum(high - middle, middle - low)


def stored_between(
    value: torch.Tensor, condition: torch.Tensor, terms: Scalar, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """The least that a kernel can store of `value` in `dtype` which computes it in float32, the nearest, the most."""
    noise = C * EPS32 * (terms + 8) ** 0.5 * condition
    return tuple(v.to(dtype).to(torch.float64) for v in (value - noise, value, value + noise))


def signal(draw: Draw, operand: str, scale: float = 1.0) -> torch.Tensor:
    """A weight or bias: random, and large in the last place."""
    vector = draw.normal(draw.shape(operand), scale)
    if vector.numel():
        vector[-1] += 3.0 * scale
    return vector


def lifted(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    return lift_square(draw.normal(shape))


def _large(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """Values whose squares are beyond float16, and which are so themselves in bfloat16."""
    scale = {torch.float16: 2.0**10, torch.bfloat16: 2.0**17}.get(draw.dtype, 2.0**12)
    return lift_square(draw.normal(shape, scale), scale)


def large_squares(
    family: Callable[..., Any], *others: Callable[..., torch.Tensor], size: Mapping[str, Any] | None = None
) -> dict[str, Also]:
    """Single cases, one a dtype, of x whose squares are beyond float16; `family` makes a contract's family of what
    draws x, and of `others`."""
    size = size or {"rows": 3, "cols": 33}
    return {f"large_squares_{dtype}": Also(size, family(_large, *others), dtype=dtype) for dtype in DTYPES}


def outlier(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """Of every row the last element alone is large, of one sign and the other in turn: of a row of n it is about √n
    times as large as the row's statistic."""
    x = draw.normal(shape, 0.1)
    last = x.view(shape[0], -1)[:, -1]
    last.copy_(torch.where(torch.arange(shape[0]) % 2 == 0, 8.0, -8.0))
    return x


def first_far_off(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """The first element of every row, or group, is far from the others: moments about it in place of the mean lose
    digits in proportion to the row's length, and not to its root."""
    x = draw.normal(shape)
    x.view(shape[0], draw.param.get("groups", 1), -1)[..., 0] = 1e4
    return x


def with_largest_weight(family: Family) -> Family:
    """A family of `outlier`s, whose weight there is near the largest number."""

    def drawn(draw: Draw) -> dict[str, torch.Tensor | None]:
        found = family(draw)
        weight = found["weight"]
        assert weight is not None
        weight[-1] = 0.75 * torch.finfo(draw.dtype).max
        return found

    return drawn


def beyond_largest_sums(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Gradients of the last column alone, of one sign as x̂ is there: sums over rows are beyond the largest number. In
    float16 rows of small x, whose dx is so there too; in bfloat16 a factor of dx on the way would be beyond float32,
    and a small weight keeps the row's length times dy·weight, with which torch's own kernel begins, within it."""
    narrow = draw.dtype is torch.float16
    scale, of_last = (2.0**-6, 1.0) if narrow else (1.0, 2.0**-10)
    x = draw.normal(draw.shape("x"), scale)
    x[:, -1] = scale * draw.uniform((len(x),), 1.0, 1.5)
    weight, dy = signal(draw, "weight"), draw.of_largest("dy", 0.0625, 0.125)
    weight[-1], dy[:, :-1] = of_last, 0.0
    return {"x": x, "weight": weight, "dy": dy}


def opposite(draw: Draw, x: torch.Tensor) -> torch.Tensor:
    """A residual of about -x: what is left of the sum is small, and exact."""
    return -x * (1 + 2**-6 * draw.uniform(x.shape))


def offset_gradient(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """dy = 30 + noise: the means over the row that dx subtracts are large, and so are the sums over rows."""
    return draw.normal(shape, 1.0, 30.0)


def cancelling_rows(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Rows half of all rows apart have equal x and opposite dy: a lost tile of dweight, a short accumulator."""
    x, dy = draw.normal(draw.shape("x")), cancelling(draw, draw.shape("dy"), axis=0)
    half = x.shape[0] // 2
    x[x.shape[0] - half :] = x[:half]
    return {"x": x, "weight": signal(draw, "weight"), "dy": dy}


def constant_rows(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """No variance at all: eps left out divides 0 by 0, a one-pass variance is below zero."""
    return draw.normal((shape[0], *[1] * (len(shape) - 1)), 50.0).expand(tuple(shape)).clone()


def falling(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """By 400 along the row: exp of the first columns overflows where the maximum of a later tile is subtracted."""
    return draw.normal(shape) + torch.linspace(200.0, -200.0, shape[1], dtype=torch.float64)


def partial_neg_inf(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """-inf in the leading third, in scattered places, and everywhere but the last column in the last row."""
    x = lift_tail(draw.normal(shape))
    x[:, : shape[1] // 3] = -math.inf
    x[draw.uniform(shape) < 0.1] = -math.inf
    x[-1:, :-1] = -math.inf
    x[:, -1] = finite(x[:, -1])
    return x


def one_nan(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """One NaN in the last row: a statistic that swallows it, or that lets it into other rows. In the first of several
    an infinity stands beside one: what a test for infinities finds first."""
    x = draw.normal(shape)
    if len(x) > 1 and x[0].numel() > 1:
        x[0].view(-1)[:2] = torch.tensor([-math.inf, math.nan], dtype=x.dtype)
    if x.numel():
        x[-1].view(-1)[int(draw.integers((1,), 0, x[-1].numel()))] = math.nan
    return x


def special_one_column(family: Family) -> dict[str, Also]:
    """A single case of rows of one element, of which the last is NaN: what is the bias alone for a number is not for
    it. `family` draws x by `one_nan`."""
    return {"special_one_column": Also({"rows": 3, "cols": 1}, family)}


def first_element_far_off(family: Family) -> dict[str, Also]:
    """Two cases of long rows that `family` draws by `first_far_off`."""
    longer = Also({"rows": 3, "cols": 8197}, family)
    return {"first_far_off": Also({"rows": 2, "cols": 4099}, family), "first_far_off_longer": longer}


def informative(case: Case, special: Sequence[str] = (), at: Sequence[tuple] = SPECIAL_AT) -> bool:
    """Rule out what repeats other cases: values of empty operands, `special` families at sizes not in `at` or
    broadcast."""
    if 0 in _flat(case.size.values()):
        return case.values == "normal" and all(layout in SHORT for _, layout in case.layouts)
    if case.values not in special:
        return True
    return tuple(case.size.values()) in at and not any(layout in BROADCASTS for _, layout in case.layouts[:1])


def repeats(case: Case, *operands: str, axis: str = "cols") -> bool:
    """Whether a long sum along `axis` adds one number over and over because each of `operands` is broadcast there.

    Adding up in sequence then errs by up to terms/8 eps, always the same way: more than the root of the terms allows.
    """
    layout = "broadcast_last" if axis == "cols" else "broadcast"
    return case.size[axis] > 512 and all(case.layout[name] == layout for name in operands)


def hides_cancellation(case: Case, terms: int) -> bool:
    """Whether a one-pass variance over `terms` values goes unseen in a mean_offset case.

    Its error is less than bfloat16 resolves, and a row of one value has no variance. In float32 it is 8 times what is
    allowed or more in rows of up to 8,197, in float16 3 times and more up to 1,026 and about that beyond.
    """
    unseen = case.dtype == "bfloat16" or case.layout["x"] == "broadcast_last" or terms == 1
    return case.values == "mean_offset" and unseen


def _flat(sizes) -> list[int]:
    return [n for size in sizes for n in (size if isinstance(size, tuple) else (size,))]


def rows_are_independent(*operands: str, outputs: Sequence[int] = (0,)) -> Callable[..., str | None]:
    """Property: the last row of `outputs` keeps its bits when every other row of `operands` changes."""

    def check(call, arguments, results, case):
        changed = dict(arguments)
        for name in operands:
            changed[name] = arguments[name].clone()
            changed[name][:-1] *= -2
        again = call(**changed)
        for index in outputs:
            if not torch.equal(again[index][-1], results[index][-1]):
                return f"the last row of output {index} changed when only other rows of {', '.join(operands)} did"
        return None

    return check


def zero_weight_leaves_bias(call, arguments, results, case):
    """Property: with weight 0 the first output is the bias, or 0 where there is none, exactly."""
    got = call(**{**arguments, "weight": torch.zeros_like(arguments["weight"])})[0]
    bias = arguments.get("bias")
    if bias is None:
        return None if not got.any() else f"weight 0 gives {got.abs().max().item():.3g}; 0 is exact"
    wanted = bias.reshape(-1, *[1] * (got.ndim - 2))
    return None if bool((got == wanted).all()) else "weight 0 does not give the bias exactly"


def unit_weight_normalises(*operands: str, centred: bool) -> Callable[..., str | None]:
    """Property: with weight 1 and bias 0 a row has mean square s/(s + eps), s that of its input, and mean 0 if
    `centred`.

    The input is the sum of `operands`.
    """

    def check(call, arguments, results, case):
        plain = {**arguments, "weight": torch.ones_like(arguments["weight"])}
        if plain.get("bias") is not None:
            plain["bias"] = torch.zeros_like(plain["bias"])
        groups = arguments.get("groups", 1)
        x = sum(arguments[name].double() for name in operands)
        x, y = (t.double().reshape(t.shape[0], groups, -1) for t in (x, call(**plain)[0]))
        centre = x.mean(-1, keepdim=True) if centred else torch.zeros_like(x)
        square = (x - centre).square().mean(-1)
        limit = 4 * torch.finfo(case.torch_dtype).eps
        mean = y.mean(-1).abs().max().item()
        if centred and not mean <= limit:
            return f"with weight 1 and bias 0 a row has mean {mean:.3g}, not 0"
        off = (y.square().mean(-1) - square / (square + arguments["eps"])).abs().max().item()
        return None if off <= limit else f"with weight 1 and bias 0 the mean square of a row is off by {off:.3g}"

    return check


def gradient_is_orthogonal(centred: bool) -> Callable[..., str | None]:
    """Property: sum dx·x̂ = eps·rstd³·sum g·x̂ in every row (y does not change with the scale of x but for eps), and,
    if `centred`, sum dx = 0 (nor with its mean)."""

    def check(call, arguments, results, case):
        x, dx = arguments["x"].double(), results[0].double()
        s = (layer_statistics if centred else rms_statistics)(x, arguments["eps"])
        g = arguments["weight"].double() * arguments["dy"].double()
        left = arguments["eps"] * s.rstd[:, 0] ** 3 * (g * s.normalised).sum(-1)
        size = 4 * torch.finfo(case.torch_dtype).eps * (dx.abs() + s.rstd * g.abs())
        off = ((dx * s.normalised).sum(-1) - left).abs() / (size * (1 + s.normalised.abs())).sum(-1)
        if not bool((off <= 1).all()):
            return f"sum dx·x̂ of a row is {off.max().item():.3g} times the rounding away from eps·rstd³·sum g·x̂"
        mean = dx.sum(-1).abs() / size.sum(-1)
        if centred and not bool((mean <= 1).all()):
            return f"a row of dx sums to {mean.max().item():.3g} times what rounding explains, not to 0"
        return None

    return check


def sum_is_rounded_once(call, arguments, results, case):
    """Property: h has the bits of x + residual in the dtype's own arithmetic."""
    told = rounding.told(results[1], arguments["x"].double() + arguments["residual"].double(), "x + residual")
    return told and f"h: {told}"


def summands_commute(call, arguments, results, case):
    """Property: x and residual can change places."""
    swapped = call(**{**arguments, "x": arguments["residual"], "residual": arguments["x"]})
    same = all(torch.equal(a, b) for a, b in zip(results, swapped, strict=True))
    return None if same else "the answer changed when x and residual changed places"


def scales_with(operand: str, last: str | None = None) -> Callable[..., str | None]:
    """Property: twice `operand` gives twice each output, to the rounding of subnormals: of outputs, and of a product
    in float32 that is multiplied by `last`."""

    def check(call, arguments, results, case):
        doubled = call(**{**arguments, operand: 2 * arguments[operand]})
        product = 0.0 if last is None else 2 * SUBNORMAL32 * arguments[last].double().abs()
        for index, (once, twice) in enumerate(zip(results, doubled, strict=True)):
            limit = torch.finfo(once.dtype).eps * 2 * once.abs().double().clamp_min(torch.finfo(once.dtype).tiny)
            if bool(((twice.double() - 2 * once.double()).abs() > limit + product).any()):
                return f"twice {operand} does not give twice output {index}"
        return None

    return check


scaled_gradient = scales_with("dy")


def invalid_calls(
    first: str, matrices: Sequence[str] = (), vectors: Sequence[str] = (), optional: Sequence[str] = ()
) -> list[Invalid]:
    """Calls with `first` or one operand that must agree with it spoilt. `vectors` has `optional` among them."""
    calls = [
        _spoilt(first, "is 1-D", lambda x: x.flatten(), ValueError),
        _spoilt(first, "is float64", lambda x: x.double(), TypeError),
        _spoilt(first, "is int32", lambda x: x.int(), TypeError),
        _spoilt(first, "is no tensor", lambda x: x.tolist(), TypeError),
    ]
    for name in matrices:
        calls += [
            _spoilt(name, "has one row more", lambda t: torch.cat([t, t[:1]]), ValueError),
            _spoilt(name, "has one column less", lambda t: t[:, 1:], ValueError),
        ]
    for name in vectors:
        calls += [
            _spoilt(name, "is one too long", lambda t: torch.cat([t, t[:1]]), ValueError),
            _spoilt(name, "is 2-D", lambda t: t[None], ValueError),
        ]
    for name in (*matrices, *vectors):
        calls += [
            _spoilt(name, "has another dtype", lambda t: t.bfloat16(), TypeError),
            _spoilt(name, "is on another device", lambda t: t.to("meta"), ValueError),
        ]
        if name not in optional:
            calls.append(_spoilt(name, "is None", lambda t: None, TypeError))
    return calls


def _spoilt(name: str, how: str, change: Callable[[torch.Tensor], Any], error: type[Exception]) -> Invalid:
    return Invalid(f"{name} {how}", lambda a: {**a, name: change(a[name])}, error, rf"\b{name}\b")


def softmax_sample(x: torch.Tensor, args, kwargs) -> dict[str, torch.Tensor] | None:
    """The call's arguments from an OpInfo sample over the last axis."""
    if x.ndim < 2 or args[0] not in (-1, x.ndim - 1) or kwargs.get("dtype"):
        return None
    return {"x": x.reshape(-1, x.shape[-1]) if x.numel() else x.new_empty(0, x.shape[-1])}


def norm_sample(x: torch.Tensor, args, kwargs, names: tuple[str, ...] = ("weight", "bias")):
    """The call's arguments from an OpInfo sample of a norm over its trailing axes."""
    given = {**dict(zip(names, args[1:], strict=False)), **{n: kwargs[n] for n in names if n in kwargs}}
    if given.get("weight") is None or kwargs.get("eps", 1e-5) is None or kwargs.get("eps", 1e-5) <= 0:
        return None
    width = given["weight"].numel()
    found = {name: None if value is None else value.reshape(-1) for name, value in given.items()}
    return {"x": x.reshape(-1, width), **found, **({"eps": kwargs["eps"]} if "eps" in kwargs else {})}
