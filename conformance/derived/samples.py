"""The budget of one call from samples: the function in float64, and how far runs with errors lie from it.

    allowed = 0.75 eps(out) max(|answer|, smallest normal) + K margin(n) sigma + 1e-30
    sigma^2 = mean of (sample - answer)^2

The samples are averaged around the float64 answer, not around their mean. A few more, with errors K times as large,
find elements near a discontinuity: where they leave the linear range, change between finite and not, or change at all
though sigma is 0 or the output is no float.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import NormalDist
from typing import Any

import torch
from torch.utils._pytree import tree_map

from touchstone.conformance.derived import ops, refusals, rules
from touchstone.conformance.derived.noise import Lift, Noise, Parts, Pick, Recurrences, lifted
from touchstone.conformance.derived.ops import Mode, is_float, name_of, tensors_of
from touchstone.conformance.spec.budget import EPS32

SAMPLES = 16
K = 8.0  # times the sigma of 16 samples: room for intrinsics of GPUs and for sums one term after another
RARE = 100  # outputs, of one of which the margin is exceeded by an element for which sigma is too small by chance
AMPLIFIED = 4
BENT = 10.0  # times K sigma: beyond, an amplified sample is no longer linear
LEAST = 2.0**-150  # what float32 does not tell from 0 is no discontinuity
JUMP = 1.05  # of what plain samples reach: where amplified ones reach no farther, the errors are those of a jump
SEEN = 2.0**-12  # of the answer: a smaller distance is rounding, and no jump
HULL = 1.5  # of what amplified samples reach: what an unstable element is allowed

Function = Callable[..., Any]


@cache
def margin(elements: int, samples: int = SAMPLES) -> float:
    """How much more than the largest of many errors may be in units of sigma, where sigma is one of few samples:
    quantiles of Student's t, within 1 %, by those of the normal distribution, at a level that `elements` decide."""
    z = NormalDist().inv_cdf(1 - 0.5 / (RARE * max(elements, 1)))
    return math.sqrt(samples * math.expm1(z * z * (samples - 1.5) / (samples - 1) ** 2)) / z


@dataclass
class Sampled:
    """The outputs of one call: float64 answers (integers as they are), and of each its sigma, the largest distance that
    a sample reaches, and which elements are unstable. `sigma` and `reach` are 0 where an output is no float."""

    answers: list[torch.Tensor]
    sigma: list[torch.Tensor]
    reach: list[torch.Tensor]
    unstable: list[torch.Tensor]
    picks: list[Pick | None]  # of outputs of indices, what they pick from
    picked_sigma: list[torch.Tensor]  # and its sigma
    plain: list[torch.Tensor]  # the largest distance that a sample reaches which is not amplified
    wide: list[torch.Tensor]  # and one that is
    flips: list[torch.Tensor]  # which elements a sample has changed that is no float, or makes infinite or finite
    runs: int = 0
    failed: int = 0  # of them, without a result and not amplified
    amplified: int = 0  # of them, with one
    unknown: set[str] = field(default_factory=set)  # ops without a rule of their own
    uneven: int = 0  # samples whose outputs have other shapes

    def extra(self, output: int, k: float = K) -> torch.Tensor:
        """The absolute error allowed beyond one rounding of the result."""
        usual = k * margin(self.sigma[output].numel()) * self.sigma[output]
        return torch.where(self.unstable[output], torch.maximum(usual, HULL * self.reach[output]), usual)

    def picks_as_well(self, output: int, got: torch.Tensor) -> torch.Tensor:
        """Which indices of an output pick elements that are as good as the right ones: within twice the budget of both
        where they are unstable, equal ones where any of these may be picked; and where there are several, no element
        twice."""
        pick, right = self.picks[output], self.answers[output]
        if pick is None or got.shape != right.shape or not got.numel():
            return torch.zeros(right.shape, dtype=torch.bool)
        n = pick.values.shape[-1]
        ours, theirs = pick.last(right), pick.last(got.to(right.dtype))
        inside = (theirs >= 0) & (theirs < n)
        theirs = theirs.clamp(0, n - 1)
        allowed = 2 * (
            K * margin(pick.values.numel()) * self.picked_sigma[output] + EPS32 * torch.nan_to_num(pick.values).abs()
        )
        best, found = pick.values.gather(-1, ours), pick.values.gather(-1, theirs)
        near = (best - found).abs() <= allowed.gather(-1, ours) + allowed.gather(-1, theirs)
        near &= pick.last(self.unstable[output])
        if pick.any_equal:
            near |= (best == found) | (torch.isnan(best) & torch.isnan(found))
        ordered = theirs.sort(-1).values
        twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1, keepdim=True)
        return pick.as_output(inside & near & ~twice, right)


def doubled(values: Sequence[Any]) -> list[Any]:
    """Arguments of a run in float64: copies, so that a function that writes them harms nobody."""
    return cast(values, torch.float64)


def cast(values: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """Copies of arguments with the tensors of floating-point numbers in `dtype`."""
    return [t.detach().clone() if isinstance(t, torch.Tensor) and not is_float(t) else _in(t, dtype) for t in values]


def _in(value: Any, dtype: torch.dtype) -> Any:
    return value.detach().to(dtype, copy=True) if is_float(value) else value


def answers(function: Function, values: Sequence[Any]) -> list[torch.Tensor]:
    """The outputs in float64. Raises Refused."""
    return _answers(function, values)[0]


def _answers(function: Function, values: Sequence[Any]) -> tuple[list[torch.Tensor], list[Pick | None]]:
    """The outputs in float64, and of those that are indices, what they pick from."""
    with torch.no_grad(), refusals.Leaving(), Lift() as mode:
        found = [t.detach() for t in tensors_of(function(*doubled(values)))]
        return [t.clone() for t in found], [mode.picks.pick_of(t) for t in found]


def sample(function: Function, values: Sequence[Any], mode: Noise | Parts) -> list[torch.Tensor]:
    """The outputs of one run with errors, or in the ops that they are added to. Raises Refused."""
    if isinstance(mode, Noise):
        return _sample(function, values, mode)[0]
    with torch.no_grad(), refusals.Leaving(), mode:
        return [t.detach() for t in tensors_of(function(*doubled(values)))]


def _sample(function: Function, values: Sequence[Any], noise: Noise) -> tuple[list[torch.Tensor], list[Pick | None]]:
    with torch.no_grad():
        with Recurrences(noise), noise:
            found = [t.detach() for t in tensors_of(function(*doubled(values)))]
        return [noise.decided(noise.unstored(t)) for t in found], [noise.picks.pick_of(t) for t in found]


def sampled(
    function: Function,
    values: Sequence[Any],
    *,
    seed: int = 0,
    store: torch.dtype | None = None,
    stored: str = "dots",
    operands: float = 0.0,
    samples: int = SAMPLES,
    amplified: int = AMPLIFIED,
    earlier: Sampled | None = None,
) -> Sampled:
    """The answer of `function(*values)` and its samples; `store`, `stored` and `operands` as `Noise` has them.
    `earlier` has the first of these samples, by fewer `amplified`, which are not run again.

    Where a sample fails, since errors make a matrix singular or an index one that is not there, all is unstable. Raises
    Refused, also where every sample has outputs of other shapes, and what all samples raise that store nothing.
    """
    found = _begun(*_answers(function, values)) if earlier is None else _taken_up(earlier)
    right = found.answers
    sizes: dict[int, torch.Tensor] = {}
    used = 0
    for number in range(found.runs, samples + amplified):
        wide = number >= samples
        scale = K if wide else 1.0
        chance = seed * 1009 + number
        noise = Noise(chance, scale=scale, store=store, stored=stored, operands=operands, sizes=sizes)
        found.runs += 1
        try:
            got, picked = _sample(function, values, noise)
        except refusals.Refused:
            raise
        except (RuntimeError, IndexError, ValueError) as error:  # a matrix without a factor, an index out of bounds
            found.failed += not wide
            if found.failed == samples and store is None and not isinstance(error, torch.linalg.LinAlgError):
                raise
            continue
        found.unknown |= noise.unknown
        if [t.shape for t in got] != [t.shape for t in right]:
            found.uneven += 1
            continue
        used += not wide
        found.amplified += wide
        for output, (one, exact) in enumerate(zip(got, right, strict=True)):
            _count(found, output, one, exact, wide)
            if not wide:
                _count_picked(found, output, picked[output])
    if earlier is None:
        if not used and right and not found.failed:
            raise refusals.Refused(
                "the shapes of the outputs depend on computed values: no run with rounding errors has those of the "
                "exact run; return fixed shapes"
            )
        found.picked_sigma = [(total / max(used, 1)).sqrt() for total in found.picked_sigma]
        found.sigma = [(total / max(used, 1)).sqrt() for total in found.sigma]
    for output, exact in enumerate(right):
        found.unstable[output] = found.flips[output] | (found.failed > 0)
        if is_float(exact) and found.amplified:
            bent = found.wide[output] > BENT * K * found.sigma[output] + LEAST
            plain = found.plain[output]
            jumps = (found.wide[output] < JUMP * plain) & (plain > LEAST + SEEN * exact.abs())
            found.unstable[output] |= bent | jumps
        found.reach[output] = torch.maximum(found.wide[output], found.plain[output])
    return found


def _begun(right: list[torch.Tensor], picks: list[Pick | None]) -> Sampled:
    """No samples yet."""

    def zeros() -> list[torch.Tensor]:
        return [torch.zeros(t.shape, dtype=torch.float64) for t in right]

    return Sampled(
        right,
        sigma=zeros(),
        reach=zeros(),
        unstable=[z.bool() for z in zeros()],
        picks=picks,
        picked_sigma=[torch.zeros(()) if pick is None else torch.zeros_like(pick.values) for pick in picks],
        plain=zeros(),
        wide=zeros(),
        flips=[z.bool() for z in zeros()],
    )


def _taken_up(earlier: Sampled) -> Sampled:
    """The same samples, for more to be added."""
    return replace(
        earlier,
        reach=list(earlier.reach),
        unstable=list(earlier.unstable),
        wide=[t.clone() for t in earlier.wide],
        flips=[t.clone() for t in earlier.flips],
        unknown=set(earlier.unknown),
    )


def _count(found: Sampled, output: int, one: torch.Tensor, exact: torch.Tensor, wide: bool) -> None:
    """Add one sample of one output, with errors as large as a kernel's or amplified."""
    if not is_float(exact):
        found.flips[output] |= one != exact
        return
    distance = (one - exact).abs()
    if not math.isfinite(float(distance.sum())):
        distance = torch.where(torch.isfinite(one) & torch.isfinite(exact), distance, 0.0)
        found.flips[output] |= torch.isfinite(one) != torch.isfinite(exact)
    if not wide:
        found.sigma[output] += distance.square()
    reach = found.wide if wide else found.plain
    reach[output] = torch.maximum(reach[output], distance)


def _count_picked(found: Sampled, output: int, pick: Pick | None) -> None:
    """Add one sample of what an output of indices picks from."""
    right = found.picks[output]
    if right is None or pick is None or pick.values.shape != right.values.shape:
        found.picks[output] = None
        return
    distance = pick.values - right.values
    found.picked_sigma[output] += torch.where(torch.isfinite(distance), distance, 0.0).square()


class _Narrowing(Mode):
    """Sees whether a float32 intermediate is cast to 16 bits and computed with further."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype, self.found = dtype, False
        self._cast: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        used = [t for t in ops.float_leaves((args, kwargs)) if t.untyped_storage().data_ptr() in self._cast]
        self.found |= bool(used) and not func.is_view and name_of(func) != "_to_copy"
        out = func(*args, **kwargs)
        if name_of(func) == "_to_copy" and is_float(out) and out.dtype == self.dtype != args[0].dtype:
            self._cast[out.untyped_storage().data_ptr()] = out
        return out


def narrows(function: Function, values: Sequence[Any], dtype: torch.dtype) -> bool:
    """Whether the function, run in a 16-bit dtype, computes with an intermediate that it cast down to it itself.

    In float64 such a cast cannot be seen. False too where it does not run in the dtype.
    """
    mode, given = _Narrowing(dtype), cast(values, dtype)
    try:
        with torch.no_grad(), mode:
            function(*given)
    except Exception:
        return False
    return mode.found


class _Naming(Mode):
    """Keeps the names of the ops of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(name_of(func))
        return func(*args, **(kwargs or {}))


def uses(function: Function, values: Sequence[Any], names: frozenset[str]) -> bool:
    """Whether the function runs one of these ops."""
    mode = _Naming()
    with torch.no_grad(), mode:
        function(*values)
    return not mode.names.isdisjoint(names)


class _Whole(Mode):
    """Whether every intermediate is a whole number up to `largest`, and sums of absolute values one up to 2^24."""

    COMPUTED = ops.words("add sub mul relu pow addmm square rsub") | ops.SUMS - {"mean"} | ops.DOTS

    def __init__(self, largest: int):
        super().__init__()
        self.holds, self.largest = True, largest

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, name_of(func)
        size = None
        if name in ops.DOTS or name in ops.SUMS:
            positive = tree_map(lambda t: t.abs() if is_float(t) else t, tuple(args))
            size = func(*positive, **kwargs)
        out = func(*args, **kwargs)
        self.holds &= not rules.is_window(name, args)
        self.holds &= not any(t.is_complex() for t in ops.number_leaves(out))
        for t in ops.float_leaves(out):
            self.holds &= name in ops.EXACT or func.is_view or name.rstrip("_") in self.COMPUTED
            self.holds &= size is None or bool((size.abs() <= 2**24).all())
            self.holds &= bool(((t == t.round()) & (t.abs() <= self.largest)).all())
        return out


class _Spread(Mode):
    """NaN and infinities in the operands of a convolution make all that they may reach in its transforms NaN: the
    channels of one element of the batch, or, of a weight, one channel of all. Those of a matrix reach all that an
    algorithm computes with it, as its order of elimination has it. An infinity in attention is NaN where products are
    made of parts of a float32, its tf32 and the rest. They reach all of a Fourier transform, and a complex number of
    which one part is NaN has no other modulus."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        (args, kwargs), name = lifted(func, args, kwargs), name_of(func)
        out = func(*args, **kwargs)
        if name == "convolution" and rules.is_window(name, args):
            x, weight, transposed = args[0], args[1], args[6]
            out[~torch.isfinite(x).flatten(1).all(1)] = math.nan
            if not transposed:
                out[:, ~torch.isfinite(weight).flatten(1).all(1)] = math.nan
            elif not torch.isfinite(weight).all():
                out.fill_(math.nan)
        elif name in ops.FOURIER:
            out = _all_of(out, args, math.nan)
        elif name == "abs" and args[0].is_complex():
            out = torch.where(torch.isnan(args[0]), math.nan, out)
        elif name.startswith("_scaled_dot_product"):
            out = func(*(torch.where(torch.isinf(t), math.nan, t) for t in args[:3]), *args[3:], **kwargs)
        elif name in ops.LINEAR_ALGEBRA and any(not torch.isfinite(t).all() for t in ops.float_leaves(args)):
            out = tree_map(lambda t: torch.full_like(t, math.nan) if is_float(t) else t, out)
        return out


def _all_of(out: torch.Tensor, args: Sequence[Any], value: float) -> torch.Tensor:
    """What a Fourier transform gives, `value` in all of one that has NaN or infinities."""
    lost = ~torch.isfinite(args[0]).all(tuple(args[1]), keepdim=True) if args[1] else ~torch.isfinite(args[0])
    return torch.where(lost, torch.full_like(out, value), out)


class _Skipping(Mode):
    """What is multiplied by 0 counts nothing, though it is NaN or infinite: a kernel need not load what is masked,
    above a diagonal, or hidden from a query."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        (args, kwargs), name = lifted(func, args, kwargs), name_of(func)
        if name in ops.DOTS and is_float(args[0]) and not func._schema.is_mutable:
            return self._dot(func, list(args), kwargs, (1, 2) if name in ops.WITH_ADDEND else (0, 1))
        if func.is_view or name in ops.EXACT:
            return func(*args, **kwargs)
        made = ops.in_parts(self, func, args, kwargs)
        out = func(*args, **kwargs) if made is NotImplemented else made
        for mask in filter(_is_mask, args) if name == "mul" and is_float(out) else ():
            out = torch.where((mask == 0) & torch.isnan(out), 0.0, out)
        return out

    def _dot(self, func, args, kwargs, places):
        usual, operands = func(*args, **kwargs), [args[place] for place in places]
        if all(bool(torch.isfinite(t).all()) for t in operands):
            return usual

        def of(a: torch.Tensor, b: torch.Tensor, addend: bool = False) -> torch.Tensor:
            """The product of other operands, with or without what is added to it."""
            given = [t if addend or not is_float(t) else torch.zeros_like(t) for t in args]
            given[places[0]], given[places[1]] = a, b
            return func(*given, **kwargs)

        wild = [(~torch.isfinite(t)).to(t.dtype) for t in operands]
        there = [(t != 0).to(t.dtype) for t in operands]
        touched = of(wild[0], there[1]) + of(there[0], wild[1]) != 0
        tame = [torch.where(torch.isfinite(t), t, 0.0) for t in operands]
        return torch.where(touched, usual, of(tame[0], tame[1], addend=True))


def _is_mask(value: Any) -> bool:
    """Whether a tensor holds 0 and 1 alone: a 0 that was computed of an infinity, 1 / inf, hides nothing."""
    return isinstance(value, torch.Tensor) and bool(((value == 0) | (value == 1)).all())


class _Opposed(Mode):
    """Sums of infinities of both signs are infinite: a kernel that adds the columns of a weight before it multiplies by
    them, or in another order, may have one infinity where torch has several. So may a Fourier transform."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args, kwargs = lifted(func, args, kwargs)
        whole = func.is_view or name_of(func) in ops.EXACT | ops.LINEAR
        made = NotImplemented if whole else ops.in_parts(self, func, args, kwargs)
        out = func(*args, **kwargs) if made is NotImplemented else made
        if name_of(func) in ops.FOURIER:
            return _all_of(out, args, math.inf)
        if name_of(func) in ops.LINEAR and is_float(out) and bool(torch.isnan(out).any()):
            rest = func(*tree_map(lambda t: torch.where(torch.isinf(t), 0.0, t) if is_float(t) else t, args), **kwargs)
            out = torch.where(torch.isnan(out) & ~torch.isnan(rest), math.inf, out)
        return out


class _Placed(Mode):
    """NaN stands before all numbers in an order, and is found there: torch's own backends put it first or last, by its
    sign or by how they compare. What they say of it themselves, as max and median do, stays."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        (args, kwargs), name = lifted(func, args, kwargs), name_of(func)
        out = func(*args, **kwargs)
        if name in ops.RANKING and is_float(args[0]) and args[0].ndim and bool(torch.isnan(args[0]).any()):
            x, dim = args[0], ops.argument(func, "dim", args, kwargs, -1)
            indices = func(torch.where(torch.isnan(x), -math.inf, x), *args[1:], **kwargs)[1]
            whole = indices if indices.ndim == x.ndim else indices.unsqueeze(dim)
            return x.gather(dim, whole).reshape(out[0].shape), indices
        if name in ops.SEARCHES and isinstance(out, torch.Tensor):
            row, sought = args[:2] if name == "searchsorted" else reversed(args[:2])
            lost = torch.isnan(row).any(-1, keepdim=True) | torch.isnan(torch.as_tensor(sought))
            lost = lost.expand(out.shape) if out.ndim else lost.any()
            out = torch.where(lost, torch.where(out > 0, 0, row.shape[-1]), out)
        return out


def reached(function: Function, values: Sequence[Any]) -> list[list[torch.Tensor]]:
    """What NaN and infinities come to in other right kernels, a run each: in one that computes an op in parts, where
    torch's own passes over NaN, in one that computes convolutions by transforms and matrices in another order, in one
    that passes over what is multiplied by 0, in one in which infinities of both signs do not meet, and in one that puts
    NaN first in an order. Empty where all is finite."""
    if all(bool(torch.isfinite(v).all()) for v in values if is_float(v)):
        return []
    runs = [sample(function, values, Parts())]
    for mode in (_Spread(), _Skipping(), _Opposed(), _Placed()):
        with torch.no_grad(), mode:
            runs.append(tensors_of(function(*doubled(values))))
    return runs


def exact_in(function: Function, values: Sequence[Any], dtype: torch.dtype) -> bool:
    """Whether no kernel in `dtype` has anything to round, in any order of summation: bit equality can be asked for."""
    largest = {torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}[dtype]
    mode = _Whole(largest)
    with torch.no_grad(), Lift(), mode:
        found = tensors_of(function(*doubled(values)))
    return mode.holds and any(is_float(t) and bool(t.any()) for t in found)
