"""Monte-Carlo arithmetic for any function of torch: run in float64, with an error at every op as large as that of one
float32 kernel may be.

Errors propagate by themselves; correlations, cancellation, broadcasting and saturation need no rule. Only the size of
the local error needs one (conformance/derived/rules.py). It is uniform with variance 1 in units of half of 2^-24, and a
hash of the value: equal values err alike, as they do in a kernel. On top, half a unit that a whole tensor shares stands
for what is systematic, a rounded constant or reciprocal. Of a function (exp, tanh) it has one sign in all calls of a
run: a kernel has one code for it, which leans the same way in every step of a recurrence.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from touchstone.conformance.derived import ops, refusals, rules
from touchstone.conformance.derived.ops import Mode, is_float, is_number, name_of
from touchstone.conformance.spec.budget import EPS

UNIT = 2.0**-25  # half of float32's unit roundoff
SHARED = 0.5  # of the unit: the part of the error that a whole tensor has in common
KEPT = 5_000_000  # elements of what runs share
RECURRENT = 12.0  # times the error of a function in a library's recurrence: cuDNN's gates are approximations
WHOLE = 2.0**23  # sums of two whole numbers below are in float32
TINY = 2.0**-126  # below it, float32 is subnormal, and half of the kernels flush to 0
# shifts and odd multipliers of a 64-bit hash (splitmix64, Steele, Lea & Flood 2014), and what makes the variance 1, as
# arrays: NumPy takes a third of the time that torch takes for so small ones, and it need not convert these
_SHIFTS = tuple(map(np.array, (30, 27, 11)))
_MULTIPLIERS = tuple(map(np.array, (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)))
_SCALE = np.array(math.sqrt(3) / 2**52)


def hash_noise(values: torch.Tensor, key: int, mean: float = 0.0) -> torch.Tensor:
    """Float64 noise of the shape of `values`: uniform, variance 1, the same for the same bits and `key`."""
    if not values.ndim:
        return hash_noise(values.reshape(1), key, mean).reshape(())
    h = values.to(torch.float64).numpy(force=True).view(np.int64) ^ np.int64(key)
    h ^= h >> _SHIFTS[0]
    h *= _MULTIPLIERS[0]
    h ^= h >> _SHIFTS[1]
    h *= _MULTIPLIERS[1]
    h >>= _SHIFTS[2]
    found = h * _SCALE
    found += mean
    return torch.from_numpy(found)


@dataclass(frozen=True)
class Pick:
    """What the indices of an output pick from: `values`, along their last axis. `axis` is that of the output along
    which there are several indices, of different elements; None: there is one. `any_equal`: torch does not say which
    of equal elements is picked, as it does of argmax, the first, and of a stable sort."""

    values: torch.Tensor
    axis: int | None
    any_equal: bool

    def last(self, indices: torch.Tensor) -> torch.Tensor:
        """Indices with those of one row of `values` along the last axis."""
        return indices.reshape(*self.values.shape[:-1], 1) if self.axis is None else indices.movedim(self.axis, -1)

    def as_output(self, found: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return found.reshape(indices.shape) if self.axis is None else found.movedim(-1, self.axis)


class Picks:
    """The outputs of ops that pick elements by their values, to be told where an output comes from."""

    def __init__(self) -> None:
        self._picks: dict[int, tuple[torch.Tensor, Pick]] = {}  # by the memory of the indices, which is kept

    def note(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        if name not in ops.PICKING or not is_float(args[0]) or not args[0].ndim or not args[0].numel():
            return
        indices = out[1] if isinstance(out, tuple | list) else out
        if isinstance(indices, torch.Tensor) and not indices.is_floating_point() and indices.dtype != torch.bool:
            dim = ops.argument(func, "dim", args, kwargs)
            whole = dim is None and name.startswith("arg")
            values = args[0].reshape(-1) if whole else args[0].movedim(-1 if dim is None else dim, -1)
            axis = (-1 if dim is None else dim) if name in ops.PICKING_SEVERAL else None
            any_equal = name in ops.PICKING_ANY and not ops.argument(func, "stable", args, kwargs)
            self._picks[indices.untyped_storage().data_ptr()] = indices, Pick(values.detach().clone(), axis, any_equal)

    def pick_of(self, output: torch.Tensor) -> Pick | None:
        """Where an output's indices come from, if it is all that an op picked."""
        found = self._picks.get(output.untyped_storage().data_ptr()) if output.numel() else None
        if found is None or output.numel() != found[0].numel() or not output.is_contiguous():
            return None
        return found[1] if found[1].axis is None or output.shape == found[0].shape else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | float) and value == round(value) and abs(value) < WHOLE


def _all_finite(values: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite; False too where their sum is not finite."""
    return math.isfinite(float(values.sum()))


class Lift(Mode):
    """Casts to float32 and to 16 bits become casts to float64: they are there to raise precision, or to lower it at the
    end."""

    def __init__(self) -> None:
        super().__init__()
        self.picks = Picks()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        (args, kwargs), name = lifted(func, args, kwargs), name_of(func)
        refusals.check_op(func, name, args, kwargs)
        out = func(*args, **kwargs)
        refusals.check_kind(out, func, name)
        self.picks.note(func, name, args, kwargs, out)
        return out


class Parts(Mode):
    """Runs a function in the smaller ops that errors are added to, without errors, and counts them. OverflowError where
    there are more than `most`."""

    def __init__(self, most: float = math.inf) -> None:
        super().__init__()
        self.count, self.most = 0, most

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        (args, kwargs), name = lifted(func, args, kwargs), name_of(func)
        refusals.check_op(func, name, args, kwargs)
        made = NotImplemented if func.is_view or name in ops.EXACT else ops.in_parts(self, func, args, kwargs)
        if made is not NotImplemented:
            return made
        self.count += 1
        if self.count > self.most:
            raise OverflowError(f"it runs more than {self.most} ops")
        return func(*args, **kwargs)


LIFTED = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64)
LIFTED |= dict.fromkeys((torch.complex64, torch.complex32), torch.complex128)


def lifted(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an op, with float64 in place of a lower dtype; and the tolerance by which it finds a rank, where
    none is given, as in float32."""
    named = {key: _lifted(value) if key == "dtype" else value for key, value in (kwargs or {}).items()}
    if name_of(func) == "linalg_lstsq" and ops.argument(func, "rcond", args, named) is None:
        args = (*args[:2], torch.finfo(torch.float32).eps * max(args[0].shape[-2:]))
    return tuple(map(_lifted, args)), named


def _lifted(value: Any) -> Any:
    return LIFTED.get(value, value) if isinstance(value, torch.dtype) else value


class Recurrences(TorchFunctionMode):
    """Tells a run when it is in one of torch's recurrences, whose ops are all that it sees of them."""

    def __init__(self, noise: "Noise") -> None:
        super().__init__()
        self.noise = noise

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", None) not in ops.RECURRENCES:
            return func(*args, **(kwargs or {}))
        self.noise.functions = RECURRENT
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.noise.functions = 1.0


class Noise(Mode):
    """Runs a function of float64 tensors with an error at every op.

    `seed` decides all errors, and `scale` multiplies them. Intermediates are stored in the 16-bit dtype `store` (None:
    in none): those that go into dot products and come out of them (`stored` "dots"), or the results of every op
    ("every").
    `operands` is the relative error of each operand of a dot product, a declared lower precision. `sizes` are those of
    errors that runs of the same function on the same arguments share.

    After the run, `unknown` holds the ops that no rule is known of, and `unstored(t)` the value of an output before it
    was stored.
    """

    def __init__(
        self,
        seed: int,
        *,
        scale: float = 1.0,
        store: torch.dtype | None = None,
        stored: str = "dots",
        operands: float = 0.0,
        sizes: dict[int, torch.Tensor] | None = None,
    ):
        super().__init__()
        self.scale, self.store, self.stored, self.operands = scale, store, stored, operands
        self.unit = UNIT * scale
        self.sizes = {} if sizes is None else sizes
        self._room = KEPT - sum(t.numel() for t in self.sizes.values())
        self._sized = 0
        self.functions = 1.0  # times the usual error of a function
        self.unknown: set[str] = set()
        self.picks = Picks()
        self._chance = random.Random(seed)
        self._signs = random.Random(f"{seed} signs")
        self._leans: dict[str, bool] = {}  # function -> whether its errors are more often above 0 in this run
        self._depth = 0
        self._kept: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}  # storage -> stored, its version, unstored
        self._left: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # storage -> a result, what of it is left open

    def draw(self) -> int:
        """A number that is another one at each place of each run."""
        return self._chance.getrandbits(62)

    # errors
    def error(self, values: torch.Tensor, function: str | None = None) -> torch.Tensor:
        """An error in units for each element; `function` names the one whose result they are."""
        key, above = self.draw(), self._chance.random() < 0.5
        if function is not None:
            if function not in self._leans:
                self._leans[function] = self._signs.random() < 0.5
            above = self._leans[function]
        found = hash_noise(values, key, SHARED if above else -SHARED)
        return found if found.dtype is values.dtype else found.to(values.dtype)

    def spoil(
        self, values: Any, weight: float = 1.0, size: torch.Tensor | None = None, function: str | None = None
    ) -> Any:
        """`values` with a relative error of `weight` units each, or an absolute one of `size` units. Either part of a
        complex number is off by as many units of its modulus."""
        if not is_number(values) or values.numel() == 0:
            return values
        if values.is_complex():
            parts = torch.view_as_real(values.resolve_conj())
            size = values.abs() * weight if size is None else size
            spoilt = self.spoil(parts, size=size.unsqueeze(-1).expand(parts.shape), function=function)
            return torch.complex(spoilt[..., 0], spoilt[..., 1])
        if size is None:
            out = torch.addcmul(values, values, self.error(values, function), value=self.unit * weight)
        else:
            size = size if _all_finite(size) else torch.where(torch.isfinite(size), size, 0.0)
            out = torch.addcmul(values, size, self.error(values, function), value=self.unit)
        if self._chance.random() < 0.5 and not float(values.abs().min()) >= TINY:
            small = (values.abs() < TINY) & (values != 0)
            out = torch.where(small, 0.0, out) if bool(small.any()) else out
        return out if _all_finite(values) else torch.where(torch.isfinite(values), out, values)

    def size(self, like: torch.Tensor, measured: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The size of the errors of a result, for which another call is needed: taken from an earlier run, where it
        came to the same place with a result of the same shape."""
        self._sized += 1
        found = self.sizes.get(self._sized)
        if found is None or found.shape != like.shape or found.dtype != like.dtype.to_real():
            found = measured()
            if found.numel() <= self._room:
                self._room -= found.numel()
                self.sizes[self._sized] = found
        return found

    def round(self, values: Any) -> Any:
        """`values` as the 16-bit dtype holds them, after a common random scaling of about one unit of it.

        What the dtype holds already stays: copies of operands, zeros, whole numbers.
        """
        if self.store is None or not is_float(values) or values.numel() == 0:
            return values
        turn = 1 + (self._chance.random() - 0.5) * 4 * EPS[self.store]
        held = values.to(self.store).to(values.dtype)
        if torch.equal(held, values):
            return values
        there = (values * turn).to(self.store).to(values.dtype) / turn
        stays = held == values
        if not _all_finite(there):
            stays |= ~(torch.isfinite(there) & torch.isfinite(values))
        return torch.where(stays, values, torch.lerp(values, there, self.scale))

    def keep(self, before: Any, stored: Any) -> Any:
        """`stored`, of which the value `before` is to be had where it turns out to be an output itself."""
        if is_float(stored) and stored is not before:
            self._kept[stored.untyped_storage().data_ptr()] = (stored, stored._version, before)
        return stored

    def _is_kept(self, stored: torch.Tensor) -> bool:
        """Whether a result has been rounded already."""
        found = self._kept.get(stored.untyped_storage().data_ptr())
        return found is not None and found[0] is stored

    def unstored(self, output: torch.Tensor) -> torch.Tensor:
        """The value of an output before it was stored: rounding to the output's dtype is no error of the function."""
        found = self._kept.get(output.untyped_storage().data_ptr()) if is_float(output) and output.numel() else None
        if found is None:
            return output
        stored, version, before = found
        if stored._version != version or output.dtype != stored.dtype:
            return output
        whole = torch.empty_strided(stored.shape, stored.stride(), dtype=before.dtype).copy_(before)
        return whole.as_strided(output.shape, output.stride(), output.storage_offset() - stored.storage_offset())

    def leave(self, result: torch.Tensor, chosen: torch.Tensor) -> None:
        """Leave open which numbers are right where `chosen`, where the result turns out to be an output itself."""
        if result.numel():
            self._left[result.untyped_storage().data_ptr()] = result, chosen.expand(result.shape)

    def decided(self, output: torch.Tensor) -> torch.Tensor:
        """An output, with no number, or -1, where it is left open."""
        found = self._left.get(output.untyped_storage().data_ptr()) if output.numel() else None
        if found is None or (found[0].shape, found[0].stride()) != (output.shape, output.stride()):
            return output
        return torch.where(found[1], math.nan if is_float(output) else -1, output)

    # ops
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        (args, kwargs), name = lifted(func, args, kwargs), name_of(func)
        refusals.check_op(func, name, args, kwargs)
        self._depth += 1
        try:
            out = self._run(func, name, args, kwargs)
        finally:
            self._depth -= 1
        whole = self.stored == "every" and self._depth == 0
        if self.store is None or not whole or name in ops.EXACT or func.is_view:
            return out
        if func._schema.is_mutable:
            for target in _targets(func, args, kwargs):
                target.copy_(self.round(target))
            return out
        return ops.mapped(lambda t: t if self._is_kept(t) else self.keep(t, self.round(t)), out)

    def _run(self, func, name, args, kwargs):
        if func.is_view:
            return func(*args, **kwargs)
        if name in ops.EXACT and name not in rules.RULES:
            return self.exact(func, args, kwargs)
        made = rules.RULES[name](self, func, args, kwargs) if name in rules.RULES else NotImplemented
        if made is NotImplemented:
            made = ops.in_parts(self, func, args, kwargs)
        if made is not NotImplemented:
            return made
        anew = ops.out_of_place(func)
        if anew is not None and (ops.name_of(anew) in rules.RULES or anew in ops.decompositions()):
            return args[0].copy_(self._run(anew, ops.name_of(anew), args, kwargs))
        made = self._generic(func, name, args, kwargs)
        known = torch.Tag.pointwise in func.tags or name in ops.KNOWN or name in ops.SPECIAL
        if not known and (ops.number_leaves(made) or func._schema.is_mutable):
            self.unknown.add(str(func))
        return made

    def exact(self, func, args, kwargs):
        """Nothing is rounded; what is made of a stored intermediate alone is the same of the value before."""
        out = func(*args, **kwargs)
        self.picks.note(func, name_of(func), args, kwargs, out)
        if not self._kept or not is_float(out) or func._schema.is_mutable:
            return out
        before = [self.unstored(t) if is_float(t) else t for t in args]
        if all(one is other for one, other in zip(before, args, strict=True)):
            return out
        return self.keep(func(*before, **kwargs), out)

    def _generic(self, func, name, args, kwargs):
        """Backward stable: each operand is off by a unit, and so is the result."""
        weight = 4.0 if name in ops.SPECIAL else 1.0
        if func._schema.is_mutable:
            out = func(*args, **kwargs)
            for target in _targets(func, args, kwargs):
                target.copy_(self._after(target, name, weight))
            return out
        if name in ("add", "sub") and is_float(args[0]) and _is_whole(args[1]) and not kwargs:
            whole = (args[0] == args[0].round()) & (args[0].abs() < WHOLE)
            if bool(whole.any()):  # counted: nothing is rounded, and a cast to integers must not be one less
                return torch.where(whole, func(*args), self._after(func(self.spoil(args[0]), args[1]), name, weight))
        args, kwargs = ops.mapped(self.spoil, (tuple(args), kwargs))
        return ops.mapped(lambda t: self._after(t, name, weight), func(*args, **kwargs))

    def _after(self, result: torch.Tensor, name: str, weight: float) -> torch.Tensor:
        if name in ops.SPECIAL:
            weight *= self.functions
        size = weight * result.abs() + 2 * self.functions if name in ops.UNIT else None
        return self.spoil(result, weight, size, name.removesuffix("_") if name in ops.SPECIAL else None)


def _targets(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors of floating-point or complex numbers that an op writes."""
    found = []
    for position, name in _written(func):
        found += ops.number_leaves(args[position] if position < len(args) else kwargs.get(name))
    return found


@cache
def _written(func: Any) -> list[tuple[int, str]]:
    """Position and name of each argument that an op writes."""
    declared = enumerate(func._schema.arguments)
    return [(at, one.name) for at, one in declared if one.alias_info is not None and one.alias_info.is_write]
