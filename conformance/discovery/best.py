"""The fastest variant of an op that is right for a call, by what was measured on this architecture.

    softmax = best("softmax", "triton")
    y = softmax(x)

A call takes the variants that declare nothing against it: its dtype, the architecture, full precision. Of these comes
first what was the fastest at the measured point nearest to the call, in the order of their times, then the others from
the ladder's last to its first. One that declines the call is passed over. What was taken is remembered for calls of the
same shapes, strides, alignment, dtypes and parameters.

The nearest point has the call's dtype, else one of the same width, else another; then the most of its parameters and
layouts; then the smallest sum over the sizes of |log2| of their ratio.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from touchstone.backends import Unsupported, devices, gpus
from touchstone.backends.variants import Attributes, attributes
from touchstone.conformance.discovery import measured, registry
from touchstone.conformance.discovery.measured import Point, Table
from touchstone.conformance.spec.contract import DTYPES, Case, Contract, From
from touchstone.conformance.spec.layouts import PLANS
from touchstone.conformance.spec.words import not_one_of

NAME = "best"  # under which it is judged and timed like a variant
MOST = 4096  # calls that are remembered
OTHER_LAYOUT = 3.0  # of an operand, as far from a call as a size eight times as large
ALIGNMENT = 16  # bytes, of what a thread moves at once
WORDS = (str, bool, type(None))  # types of parameters by whose values calls are told apart, not by their kind alone

Form = tuple[tuple[int, ...], bool] | None  # of an operand in memory: its axes from the outermost, whether dense


def best(op: str, backend: str, *, arch: str | None = None, deterministic: bool = False) -> "Best":
    """The function of `op` ("softmax") in `backend` ("triton") that takes the fastest variant for each call.

    It has the op's signature, and runs where its tensors are. `arch` ("sm_90"): the architecture whose measurements
    decide, instead of this machine's GPU's; where there are none, as on the CPU, the ladder's order does.
    `deterministic`: without variants of which two calls may differ in the last bits. Raises ValueError for an op, a
    backend or an architecture that does not exist; the call raises what the variants do, and `Unsupported` where each
    declines.
    """
    if op not in registry.kernel_ops(backend):
        registry.contract(op), registry.backend(backend)
        raise ValueError(f"op: {op} has no kernels in {backend}; it has those of {backends_text(op)}")
    if arch is not None and arch not in gpus.GPUS:
        raise ValueError(f"arch: {not_one_of(arch, gpus.GPUS)}")
    return Best(op, backend, arch, deterministic)


def backends_text(op: str) -> str:
    return ", ".join(name for name in registry.backends() if op in registry.kernel_ops(name)) or "none"


class Call(NamedTuple):
    """What of a call decides: the common dtype, the sizes by the contract's letters, parameters, and how operands
    lie."""

    dtype: str | None
    sizes: Mapping[str, Any]
    params: Mapping[str, Any]
    forms: Mapping[str, Form]


@dataclass(frozen=True)
class Order:
    """The variants that a call can take, the first to be tried first, and the measured point that says so, if any."""

    names: Sequence[str]
    point: Point | None


class Ranking:
    """The order in which the variants of a ladder are tried for a call."""

    def __init__(self, contract: Contract, ladder: Mapping[str, Attributes], table: Table | None):
        self._contract, self._ladder, self.table = contract, ladder, table
        points = table.points if table is not None else ()
        self._points = [
            (point, _forms(contract, point)) for point in points if any(name in ladder for name in point.ms)
        ]
        known = [name for name in contract.params if any(name in point.params for point in points)]
        # the parameters by which points differ
        self.told = tuple(n for n in known if len({repr(point.params.get(n)) for point in points}) > 1)

    def order(self, call: Call) -> Order:
        """Every variant of the ladder that takes the call's dtype."""
        contract, ladder = self._contract, self._ladder
        names = [name for name, about in ladder.items() if call.dtype in (about.dtypes or contract.dtypes)]
        names = list(reversed(names or list(ladder)))
        able = [each for each in self._points if any(name in each[0].ms for name in names)]
        if not able:
            return Order(names, None)
        point, _ = min(able, key=lambda each: self._distance(call, *each))
        first = sorted((name for name in names if name in point.ms), key=lambda name: point.ms[name])
        return Order([*first, *(name for name in names if name not in first)], point)

    def _distance(self, call: Call, point: Point, forms: Mapping[str, Form]) -> tuple[int, int, float]:
        """How far a point is from a call: dtype (2: of another width), parameters, then layouts and sizes."""
        dtype = 0 if point.dtype == call.dtype else 1 if _width(point.dtype) == _width(call.dtype) else 2
        params = sum(call.params.get(name) != point.params.get(name) for name in self.told)
        layouts = sum(form != forms.get(name) for name, form in call.forms.items())
        shared = [(size, point.sizes[name]) for name, size in call.sizes.items() if name in point.sizes]
        sizes = sum(abs(math.log2(_extent(a) / _extent(b))) for a, b in shared)
        return dtype, params, OTHER_LAYOUT * layouts + sizes


class Best:
    """What `best` returns."""

    __name__ = NAME

    def __init__(self, op: str, backend: str, arch: str | None = None, deterministic: bool = False):
        self.op, self.backend, self.arch, self.deterministic = op, backend, arch, deterministic
        self._contract = registry.contract(op)
        self._positional = [name for name, operand in self._contract.operands.items() if operand.positional]
        self._usual = {name: options[0] for name, options in self._contract.params.items()}
        self._ladder: dict[str, Callable[..., Any]] = {}
        self._lacking: list[str] = []
        self._ranking: Ranking | None = None
        self._taken: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._told: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = self._key(args, kwargs)
        taken = self._taken.get(key)
        if taken is not None:
            try:
                return taken(*args, **kwargs)
            except Unsupported:  # for a reason that the key does not hold
                return self._choose(args, kwargs)
        return self._choose(args, kwargs)

    def taken(self, *args: Any, **kwargs: Any) -> str | None:
        """The name of the variant that such a call took before; None where there was none."""
        found = self._taken.get(self._key(args, kwargs))
        return None if found is None else found.__name__

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Equal for calls that the same variant takes."""
        key: list[Any] = []
        for value in args:
            if isinstance(value, torch.Tensor):
                key += value.shape, value.stride(), value.dtype, value.data_ptr() % ALIGNMENT
            else:
                key.append(type(value))
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor):
                key += name, value.shape, value.stride(), value.dtype, value.data_ptr() % ALIGNMENT
            elif name in self._usual and value == self._usual[name]:
                continue
            elif isinstance(value, WORDS) or (name in self._told and isinstance(value, int | float)):
                key += name, value
            else:  # a seed is another in each call
                key += name, type(value)
        return tuple(key)

    def _choose(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the first variant that does not decline, and remember it."""
        ranking = self._ranking or self._prepare([*args, *kwargs.values()])
        given = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        declined = list(self._lacking)
        for name in ranking.order(call_of(self._contract, given)).names:
            try:
                returned = self._ladder[name](*args, **kwargs)
            except Unsupported as reason:
                declined.append(f"{name}: {reason}")
                continue
            if len(self._taken) >= MOST:
                self._taken.clear()
            self._taken.setdefault(self._key(args, kwargs), self._ladder[name])
            return returned
        raise Unsupported(f"no variant of {self.op} in {self.backend} takes this call: {'; '.join(declined)}") from None

    def _prepare(self, values: Iterable[Any]) -> Ranking:
        """Set this process up for the device of the first tensor, and import the ladder. RuntimeError says why it
        cannot."""
        usual = usual_device()
        device = next((value.device.type for value in values if isinstance(value, torch.Tensor)), usual)
        if device not in ("cpu", "cuda"):
            device = usual  # the launcher will say what it thinks of it
        module = registry.backend(self.backend)
        module.prepare(device)
        own, lacking = self._own(), dict[str, str]()
        for name, fn in own.items():
            if reason := _lacks(module, fn, device, None):
                lacking[name] = f"{name}: {reason}"
        self._ladder = {name: fn for name, fn in own.items() if name not in lacking}
        self._lacking = list(lacking.values())
        table = table_of(self.op, self.backend, self.arch or (this_arch() if device == "cuda" else None))
        self._ranking = Ranking(self._contract, {name: attributes(fn) for name, fn in self._ladder.items()}, table)
        self._told = self._ranking.told
        return self._ranking

    def _own(self) -> dict[str, Callable[..., Any]]:
        found = registry.variants(self.backend, self.op)
        return {name: fn for name, fn in found.items() if eligible(attributes(fn), self.deterministic)}

    @property
    def variant_attributes(self) -> Attributes:
        """What holds whichever variant is taken. Imports the ladder: `prepare(device)` of the backend comes first."""
        every = [attributes(fn) for fn in self._own().values()]
        return Attributes(
            deterministic=all(each.deterministic for each in every), captures=all(each.captures for each in every)
        )

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The ladder's last variant, which has the signature and the source. Where nobody has imported it yet, this
        process is set up for the device that it has."""
        module = registry.backend(self.backend)
        if f"{module.__name__}.{self.op}" not in sys.modules:
            with contextlib.suppress(RuntimeError):  # it is set up for the other one
                module.prepare(usual_device())
        return list(registry.variants(self.backend, self.op).values())[-1]

    def __reduce__(self) -> tuple[Any, ...]:
        return Best, (self.op, self.backend, self.arch, self.deterministic)

    def __repr__(self) -> str:
        return f"<the best {self.op} in {self.backend}>"


def eligible(about: Attributes, deterministic: bool = False) -> bool:
    """Whether a variant keeps what every caller of the op may count on: its precision; where asked for, its bits."""
    return about.compute is None and (about.deterministic or not deterministic)


def usual_device() -> str:
    """Where kernels run unless their tensors say otherwise."""
    return "cpu" if devices.cuda_unavailable() else "cuda"


def this_arch() -> str | None:
    """The architecture of this machine's GPU."""
    found = devices.capability()
    return None if found is None else f"sm_{found[0]}{found[1]}"


def table_of(op: str, backend: str, arch: str | None) -> Table | None:
    """The table that decides on an architecture; None on the CPU, and where nothing was measured."""
    return None if arch is None else measured.table(op, backend, arch)


def call_of(contract: Contract, given: Mapping[str, Any]) -> Call:
    """A call with these arguments. What is no valid argument is left to the variant that is called."""
    dtype, sizes, forms = None, dict[str, Any](), dict[str, Form]()
    for name, operand in contract.operands.items():
        value = given.get(name)
        forms[name] = None
        if not isinstance(value, torch.Tensor):
            continue
        if dtype is None and not operand.own_dtype:
            dtype = str(value.dtype).removeprefix("torch.")
        forms[name] = _form(tuple(value.shape), value.stride())
        if isinstance(operand.axes, str):
            letters = operand.axes.split()
            if letters[-1:] == ["..."]:
                letters.pop()
                sizes.setdefault("trailing", tuple(value.shape[len(letters) :]))
            for letter, size in zip(letters, value.shape, strict=False):
                sizes.setdefault(letter, size)
    usual = {name: options[0] for name, options in contract.params.items() if not isinstance(options[0], From)}
    return Call(dtype, sizes, {name: given.get(name, usual.get(name)) for name in contract.params}, forms)


def _forms(contract: Contract, point: Point) -> dict[str, Form]:
    """How the operands of a point lie."""
    found: dict[str, Form] = {}
    for name, operand in contract.operands.items():
        layout = point.layouts.get(name, operand.layouts[0])
        found[name] = None
        if layout != "none" and isinstance(operand.axes, str):
            with contextlib.suppress(KeyError, ValueError, IndexError):  # an axis or a layout of another contract
                shape = contract.shape(operand.axes, point.sizes)
                found[name] = _form(shape, PLANS[layout](shape)[1])
    return found


def _form(shape: Sequence[int], strides: Sequence[int]) -> Form:
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    order = tuple(sorted(axes, key=lambda axis: -strides[axis]))
    return order, not order or strides[order[-1]] == 1


def _extent(size: Any) -> int:
    return max(1, math.prod(size) if isinstance(size, tuple) else size)


def _width(dtype: str | None) -> int | None:
    return DTYPES[dtype].itemsize if dtype in DTYPES else None


def _lacks(module: Any, fn: Callable[..., Any], device: str, arch: str | None) -> str | None:
    """Why a variant cannot run on a device, or on a GPU of `arch`; None where it can."""
    needs = attributes(fn).needs
    if needs is None:
        return None
    if arch is not None and needs.startswith("sm_"):
        return devices.capability_lacks(needs, gpus.GPUS[arch].capability)
    return module.lacks(needs, device)


@dataclass
class Choice:
    """What `best` takes for a call, and why."""

    backend: str
    variant: str | None
    why: str
    declined: dict[str, str] = field(default_factory=dict)  # what was passed over, with the reason


def explain(case: Case, backend: str, arch: str | None) -> Choice:
    """What `best` takes for a call as `case` describes it, on a GPU of `arch` or, with None, on the CPU; nothing runs.

    Launchers are called on tensors of that form, and what they launch is recorded instead of run, so that those that
    decline are known. Where the backend cannot do that here, the reason is told. In a process that interprets nothing.
    """
    contract, module = registry.contract(case.op), registry.backend(backend)
    try:
        recording = registry.backend_part(backend, "compiling").recording
        with recording(arch or gpus.DEFAULT):  # not in a process that interprets
            found = registry.variants(backend, case.op)
    except (ImportError, RuntimeError) as error:
        return Choice(backend, None, f"cannot be told here: {module.why_not('cpu') or error}")
    device = "cpu" if arch is None else "cuda"
    ladder = {n: f for n, f in found.items() if eligible(attributes(f)) and not _lacks(module, f, device, arch)}
    table = table_of(case.op, backend, arch)
    given = arguments_of(contract, case)
    order = Ranking(contract, {n: attributes(f) for n, f in ladder.items()}, table).order(call_of(contract, given))
    declined: dict[str, str] = {}
    for name in order.names:
        with recording(arch or gpus.DEFAULT):
            try:
                ladder[name](**given)
            except Unsupported as reason:
                declined[name] = str(reason)
                continue
            except Exception:  # it would have launched something: nobody has written what it reads on the device
                pass
        return Choice(backend, name, _why(name, order, table, arch, declined), declined)
    return Choice(backend, None, "each variant declines", declined)


def _why(name: str, order: Order, table: Table | None, arch: str | None, declined: Mapping[str, str]) -> str:
    if table is None or order.point is None:
        where = "the CPU" if arch is None else arch
        lacking = f"no table for {where}" if table is None else f"nothing that takes the dtype was measured on {where}"
        return f"{lacking}; the ladder's last that takes it"
    point = order.point
    about = table.records[point.record]
    at = f"nearest measured: {point} ({about['gpu']}, {about['date'][:10]})"
    if name not in point.ms:
        return f"{at}, where nothing that takes this call was; the ladder's last that does"
    others = [each for each in order.names if each in point.ms and each != name and each not in declined]
    ratio = f", {point.ms[others[0]] / point.ms[name]:.2f} times as fast as {others[0]}" if others else ""
    unknown = [each for each in order.names if each not in point.ms and each not in declined]
    rest = f"; not measured there: {', '.join(unknown)}" if unknown else ""
    return f"{point.ms[name]:.4g} ms{ratio}; {at}{rest}"


def arguments_of(contract: Contract, case: Case) -> dict[str, Any]:
    """The arguments of a call as `case` describes it, of values that nobody has written."""
    tensors: dict[str, Any] = {}
    for name in contract.operands:
        layout = case.layout[name]
        if layout == "none":
            tensors[name] = None
            continue
        shape = contract.operand_shape(name, case)
        _, strides, offset = PLANS[layout](shape)
        extent = offset + 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if n)
        room = torch.empty(extent, dtype=contract.operand_dtype(name, case))
        tensors[name] = room.as_strided(shape, strides, offset)
    return {**tensors, **case.param}
