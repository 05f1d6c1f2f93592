"""What a contract says about an op, and the cases that follow from it.

A contract file `conformance/contracts/<op>.py` holds one `contract = Contract(...)`. It says which operands there are,
which sizes, layouts, value families and parameters span the input space, what the answer is and how far from it a
correct kernel can be. Nothing here or elsewhere in `conformance` knows an op by name.
"""

import inspect
import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.returned import is_plain_sequence, kind_of, strange

GRID_LIMIT = 65535  # blocks along the y and the z axis of a grid
STARTED = 500  # multiply-adds that a program's start stands for, where programs run one after another
UNUSED_INTEGER = 2**30  # far outside every operand, and its product with an element's size is an address
BEYOND_LARGEST = "beyond_largest"  # what the names of such single cases begin with
SAME = "same"  # the name of the case's own dtype among an operand's
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Operand:
    """One tensor argument: its axes by the letters of the contract's sizes, and the layouts it is tried in.

    `dtype` is None for the case's dtype, and so is None in `dtypes`: the dtypes it is tried in, the usual one first,
    where there are several. `derived` operands are computed from the others (`Contract.derive`). `counts=False`: the
    answer does not depend on its values (an optional statistic, or an operand tested as None). A `...` axis stands for
    the sizes in `sizes["trailing"]`, a tuple. The layout "none" stands for the argument None.

    `indexes` names the size whose indices an operand of integers holds: what lies in its gaps and around it is then the
    last of them, so that a kernel which ignores a stride reads a wrong element, and not outside its operands.

    `garbage(inputs, params)` gives, from the other operands' values in float64, which elements a call must not use, as
    booleans of the operand's shape: rows of a cache beyond a length. The kernel finds NaN there, or 2^30, the reference
    finds 0. `unused` is what they are, in words.

    `fixed`: its values follow a rule, so that none may change or change places by itself (offsets in ascending order).

    `axes` may be a function of the case, as an output's may: the gradient of a loss that is a sum, or one a row.
    """

    axes: str | Callable[["Case"], str]
    layouts: tuple[str, ...] = layouts.MATRIX
    dtype: torch.dtype | None = None
    derived: bool = False
    positional: bool = True
    counts: bool = True  # whether the answer depends on its values
    dtypes: tuple[torch.dtype | None, ...] = ()
    indexes: str | None = None
    fixed: bool = False
    garbage: Callable[[dict[str, Any], dict[str, Any]], torch.Tensor] | None = None
    unused: str = "places"

    def __post_init__(self) -> None:
        if self.dtypes and self.dtype is not None:
            raise ValueError("dtype: goes without dtypes, of which the first is the usual one")
        shared = [name for name in self.layouts if name in layouts.BROADCASTS]
        if self.garbage is not None and shared:
            raise ValueError(f"layouts: {shared[0]}: elements that are not to be used have to have memory of their own")

    @property
    def own_dtype(self) -> bool:
        """Whether its dtype is another than the case's."""
        return self.dtype is not None or bool(self.dtypes)

    @property
    def optional(self) -> bool:
        """Whether it is tried as None and as a tensor."""
        return "none" in self.layouts and len(self.layouts) > 1


@dataclass(frozen=True)
class Output:
    """One tensor that a call returns. `axes` and `dtype` may be functions of the case; dtype None is the case's."""

    axes: str | Callable[["Case"], str]
    dtype: torch.dtype | Callable[["Case"], torch.dtype] | None = None


@dataclass(frozen=True, eq=False)
class From:
    """A parameter's value that follows from the case's sizes and dtype: `params={"total": (From(tokens),)}`."""

    of: Callable[["Case"], Any]

    def __repr__(self) -> str:
        return "..."


@dataclass(frozen=True)
class Invalid:
    """A call that must raise before anything is launched: how to spoil a valid call, and what the error must say."""

    name: str
    spoil: Callable[[dict[str, Any]], dict[str, Any]]  # keyword arguments of a valid call -> of the invalid one
    error: type[Exception] | tuple[type[Exception], ...]
    match: str  # regular expression searched in the message; names the argument


@dataclass(frozen=True)
class Property:
    """A property that holds whatever the answer is. `check(call, arguments, outputs, case)` returns None or what broke.

    `call(**arguments)` runs the kernel and returns a tuple of outputs; `arguments` are those of `case`, whose value
    family is `values`. A property that calls with other parameters, layouts or sizes says with which: a kernel that is
    judged without them is not held to it.
    """

    name: str
    check: Callable[..., str | None]
    values: str = "normal"
    bitwise: bool = False  # compares all outputs of two calls bit by bit: only a deterministic kernel is held to it
    elsewhere: "Callable[[Case], Case] | None" = None  # the case on which it calls, if it calls on another one too
    anywhere: bool = False  # holds at all sizes and under all parameters: asked there where the usual ones are declined


@dataclass(frozen=True)
class Int64Index:
    """A size with an output beyond 2^31 elements, for a GPU: too large for a float64 answer, so some rows are compared.

    `rows` names the axis of each operand along which the first axis of the outputs runs; other operands count whole.
    """

    size: Mapping[str, Any]
    rows: Mapping[str, int]
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Regular:
    """Sizes that kernels with the usual restrictions take, and the values of parameters that those kernels know.

    The restrictions are multiples of a block, powers of two, rows on 16 bytes, one length and one number of heads for
    all operands. The cases there are contiguous, in the 16-bit dtypes, of finite values. A parameter that is not named
    has its first value.
    """

    sizes: Sequence[Mapping[str, Any]]
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnStatistics:
    """An output that is (x - mean) / deviation * scale + shift in parts, each with its own mean, where one is taken
    away, and deviation.

    `of(exact, params)` gives scale and shift, which broadcast against the output, and how many parts that has, one
    behind another, `x(exact)` x, in the output's shape; `part` is what one is called.
    """

    output: str
    part: str
    mean: bool
    of: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[torch.Tensor, torch.Tensor, int]]
    x: Callable[[Mapping[str, Any]], torch.Tensor]


@dataclass(frozen=True)
class Also:
    """One case besides those that the axes make: what shows a fault that no size and no family among them does.

    Contiguous, with each parameter at its first value, unless `layouts` and `params` name others. `values` is one of
    the contract's families (None: the first) or a family of its own, which goes by the name that the case has among
    `Contract.also`; all of them finite, unless it is there for special values.
    """

    size: Mapping[str, Any]
    values: "str | Family | None" = None
    params: Mapping[str, Any] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"


def each_of_one(size: Mapping[str, Any], *axes: str) -> dict[str, Also]:
    """Single cases of `size` with one axis after the other (of `axes`, or all) of length 1: where a product is one with
    a vector, a launcher often has a branch of its own, which may forget an optional operand."""
    return {f"one_{axis}": Also({**size, axis: 1}) for axis in axes or size}


def beyond_largest(
    size: Mapping[str, Any], family: "Family", params: Mapping[str, Any] | None = None
) -> dict[str, Also]:
    """Single cases, one in each 16-bit dtype, of finite operands and results of at least about 1.2 times the largest
    number of the dtype, which are infinite: a clamp, or a conversion that saturates, makes them that number.

    In `family` no intermediate result of a right kernel may be infinite on the way to a finite one, nor one infinity
    meet another of the other sign: sums beyond the largest number have terms of one sign.
    """
    return {f"{BEYOND_LARGEST}_{d}": Also(size, family, params or {}, dtype=d) for d in ("float16", "bfloat16")}


@dataclass(frozen=True)
class Case:
    """One point of an op's input space."""

    op: str
    dtype: str
    sizes: tuple[tuple[str, Any], ...]
    values: str
    layouts: tuple[tuple[str, str], ...]
    params: tuple[tuple[str, Any], ...]
    seed: int = 0
    mirrored: str | None = None  # the operand whose elements change places, apart from those at its border
    altered: str | None = None  # the operand of which one element, drawn by chance, is another number
    drawn_as: str | None = None  # the id of the case whose values these are; None: its own
    dtypes: tuple[tuple[str, str], ...] = ()  # of operands that are tried in several; "same" is the case's

    @property
    def size(self) -> dict[str, Any]:
        return dict(self.sizes)

    @property
    def layout(self) -> dict[str, str]:
        return dict(self.layouts)

    @property
    def param(self) -> dict[str, Any]:
        return {name: value.of(self) if isinstance(value, From) else value for name, value in self.params}

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def contiguous(self) -> bool:
        """Whether every operand that is given is contiguous."""
        return all(layout in ("contiguous", "none") for _, layout in self.layouts)

    @property
    def absent(self) -> frozenset[str]:
        """The operands that are None."""
        return frozenset(name for name, layout in self.layouts if layout == "none")

    def plainly_laid(self, absent: Collection[str]) -> "Case":
        """The case with None for the operands `absent`, and every other one contiguous."""
        return replace(self, layouts=tuple((n, "none" if n in absent else "contiguous") for n, _ in self.layouts))

    @property
    def filled(self) -> bool:
        """Whether no size is 0."""
        return all(n for _, size in self.sizes for n in (size if isinstance(size, tuple) else (size,)))

    @cached_property
    def id(self) -> str:
        parts = [self.dtype, size_text(self.sizes), self.values]
        parts += [f"{name}:{layout}" for name, layout in self.layouts if layout != "contiguous"]
        parts += [f"{name}:{dtype}" for name, dtype in self.dtypes]
        parts += [f"{name}={value}" for name, value in self.params if not isinstance(value, From)]
        return "-".join(parts)

    def rng(self, what: str = "", drawn_for: str = "") -> torch.Generator:
        return torch.Generator().manual_seed(
            zlib.crc32(f"{drawn_for or self.op} {self.drawn_as or self.id} {self.seed} {what}".encode())
        )

    def __str__(self) -> str:
        return self.id


def with_params(**params: Any) -> Callable[[Case], Case]:
    """case -> the same case with these parameters."""
    return lambda case: replace(case, params=tuple((name, params.get(name, value)) for name, value in case.params))


def size_text(sizes: Sequence[tuple[str, Any]]) -> str:
    """Sizes as the id of a case has them: "3x33"."""
    parts = ["x".join(map(str, size)) or "scalar" if isinstance(size, tuple) else str(size) for _, size in sizes]
    return "x".join(parts)


class Draw:
    """What a value family draws from: sizes, dtype, parameters and a seeded generator. All draws are float64."""

    def __init__(self, case: Case, contract: "Contract"):
        self.case, self.size, self.param = case, case.size, case.param
        self.dtype, self._contract = case.torch_dtype, contract
        self._generator = contract.rng(case)

    @property
    def operands(self) -> list[str]:
        """The operands that a family draws: those that are not derived."""
        return [name for name, operand in self._contract.operands.items() if not operand.derived]

    def shape(self, operand: str) -> tuple[int, ...]:
        return self._contract.operand_shape(operand, self.case)

    def normal(self, shape: Sequence[int], scale: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        return torch.randn(tuple(shape), generator=self._generator, dtype=torch.float64) * scale + mean

    def uniform(self, shape: Sequence[int], low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        return torch.rand(tuple(shape), generator=self._generator, dtype=torch.float64) * (high - low) + low

    def of_largest(self, operand: str, low: float, high: float) -> torch.Tensor:
        """An operand of `low` to `high` times the largest number of the case's dtype."""
        return self.uniform(self.shape(operand), low, high) * torch.finfo(self.dtype).max

    def integers(self, shape: Sequence[int], low: int, high: int) -> torch.Tensor:
        """Integers of [low, high)."""
        return torch.randint(low, high, tuple(shape), generator=self._generator).to(torch.float64)


Family = Callable[[Draw], dict[str, torch.Tensor | None]]


@dataclass
class Inputs:
    """A case made concrete: placed operands, the keyword arguments of the call, and the same values in float64."""

    case: Case
    placed: dict[str, layouts.BufferView | None]
    exact: dict[str, torch.Tensor | None]  # the values the kernel gets, in float64 on the CPU
    params: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        tensors = {name: None if p is None else p.view for name, p in self.placed.items()}
        return {**tensors, **self.params}


@dataclass(eq=False, kw_only=True)
class Contract:
    """The contract of one op. See docs/design.md for a walk through one."""

    operands: Mapping[str, Operand]
    outputs: Mapping[str, Output]
    sizes: Sequence[Mapping[str, Any]]  # the first is the smallest that still shows every axis
    values: Mapping[str, Callable[[Draw], dict[str, torch.Tensor | None]]]
    expect: Callable[..., dict[str, Expected]]
    # of (sizes, params): floating-point operations of the call. Left out: one for each element read or written
    flops: Callable[..., float] = None  # type: ignore[assignment]
    # of (sizes, params): transcendental functions and random numbers of the call, each of which counts as 8
    # multiply-adds where the work of a case is limited. Left out: none
    calls: Callable[..., float] = lambda size, params: 0.0
    # of (sizes, params, element size): least bytes moved through memory. Left out: each operand and output once
    bytes: Callable[..., float] = None  # type: ignore[assignment]
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    derive: Callable[..., dict[str, torch.Tensor | None]] | None = None
    valid: Callable[[Case], bool] = lambda case: True
    exact: Mapping[str, Sequence[str]] = field(default_factory=dict)  # family -> outputs that must be bit-equal
    invalid: Sequence[Invalid] = ()
    properties: Sequence[Property] = ()
    dtypes: Sequence[str] = tuple(DTYPES)
    aligned: Sequence[Mapping[str, Any]] = ()  # contiguous in every dtype besides: what descriptor kernels take
    regular: Regular | None = None  # what published kernels with the usual restrictions take
    # more rows, or batches times heads, than GRID_LIMIT: contiguous, the first family. A CPU that starts a program for
    # each takes long, which the work of these cases counts
    beyond_grid: Sequence[Mapping[str, Any]] = ()
    # a size of several tiles along each axis, in which options are tried together as in the smallest one, and each
    # family of values: of loops that go round once most is right
    over_tiles: Mapping[str, Any] | None = None
    int64_index: Int64Index | None = None
    # single cases by the name of what they show: for users' kernels, and for our own above level quick
    also: Mapping[str, Also] = field(default_factory=dict)
    # the name of PyTorch's OpInfo, and from (input, args, kwargs) of one of its samples to the call's arguments, or
    # None
    opinfo: tuple[str, Callable[..., dict[str, Any] | None]] | None = None
    large: Sequence[Mapping[str, Any]] = ()  # sizes at which speed matters: what `tune` times
    mirrors: bool = True  # whether an operand's values may be mirrored along the last axis; not where they are sorted
    own_statistics: OwnStatistics | None = None  # what hints try
    # from the operands' values: integers that follow from them and stand along axes of outputs, as (what they are
    # called, axes, values, NaN where there is none). Hints say which of them stand where an output is wrong
    numbers: Callable[..., Sequence[tuple[str, str, torch.Tensor]]] = lambda inputs: ()
    moves: bool = False  # whether a call only moves elements: then the library's copies may not be what does it
    gradient_of: str = ""  # the op whose gradient this one is: what the bench times together
    name: str = ""  # set by the registry from the file's name
    drawn_for: str = ""  # what cases and their values are drawn for; "": the op

    def __post_init__(self) -> None:
        if self.flops is None:
            self.flops = lambda size, params: self._elements(size)
        if self.bytes is None:
            self.bytes = lambda size, params, item: self._elements(size) * item

    def _elements(self, size: Mapping[str, Any]) -> int:
        every = [operand.axes for operand in self.operands.values()]
        every += [output.axes for output in self.outputs.values()]
        return sum(math.prod(self.shape(axes, size)) for axes in every if isinstance(axes, str))

    def shape(self, axes: str, size: Mapping[str, Any]) -> tuple[int, ...]:
        shape: list[int] = []
        for axis in axes.split():
            shape += size["trailing"] if axis == "..." else [size[axis]]
        return tuple(shape)

    def rng(self, case: Case, what: str = "") -> torch.Generator:
        return case.rng(what, self.drawn_for)

    def may_be_strided(self, output: str) -> bool:
        """Whether an output of contiguous operands need not be contiguous itself."""
        return False

    def may_share(self, output: str, operand: str) -> bool:
        """Whether an output may lie in the memory of an operand."""
        return False

    def operand_axes(self, name: str, case: Case) -> str:
        """The axes that an operand has in a case."""
        axes = self.operands[name].axes
        return axes if isinstance(axes, str) else axes(case)

    def operand_shape(self, name: str, case: Case) -> tuple[int, ...]:
        """The shape that an operand has in a case."""
        return self.shape(self.operand_axes(name, case), case.size)

    def operand_dtype(self, name: str, case: Case) -> torch.dtype:
        """The dtype in which an operand is given in a case."""
        operand = self.operands[name]
        if not operand.dtypes:
            return operand.dtype or case.torch_dtype
        chosen = dict(case.dtypes).get(name)
        usual = {dtype_name(dtype): dtype for dtype in operand.dtypes}
        return (operand.dtypes[0] if chosen is None else usual[chosen]) or case.torch_dtype

    def output_axes(self, name: str, case: Case) -> str:
        """The axes that an output has in a case."""
        axes = self.outputs[name].axes
        return axes if isinstance(axes, str) else axes(case)

    def output_shape(self, name: str, case: Case) -> tuple[int, ...]:
        """The shape that an output has in a case."""
        return self.shape(self.output_axes(name, case), case.size)

    def output_dtype(self, name: str, case: Case) -> torch.dtype:
        """The dtype that an output has in a case."""
        dtype = self.outputs[name].dtype
        return (dtype if dtype is None or isinstance(dtype, torch.dtype) else dtype(case)) or case.torch_dtype

    def work(self, case: Case) -> float:
        """Multiply-adds of a call, or elements moved where there are hardly any: what a target's ceiling counts."""
        products = self.flops(case.size, case.param) / 2 + 8 * self.calls(case.size, case.param)
        started = STARTED * GRID_LIMIT if self.is_beyond_grid(case) else 0
        return max(products, self.bytes(case.size, case.param, 1), started)

    def is_beyond_grid(self, case: Case) -> bool:
        """Whether the case is there for its many rows."""
        return case.size in self.beyond_grid

    @property
    def reaches_beyond_largest(self) -> bool:
        """Whether there are single cases of results beyond the largest number of their dtype."""
        return any(name.startswith(BEYOND_LARGEST) for name in self.also)

    def family(self, name: str) -> Family:
        """The family of values of that name: one of `values`, or that of one of the cases `also`."""
        if name in self.values:
            return self.values[name]
        own = self.also[name].values
        if own is None or isinstance(own, str):
            raise KeyError(f"{name}: no family of values")
        return own

    def build(self, case: Case, device: str | torch.device = "cpu") -> Inputs:
        """Draw the case's values, round them, and place each operand in its layout on `device`."""
        drawn = self.family(case.values)(Draw(case, self))
        if case.mirrored is not None:
            drawn = {name: _mirrored(value) if name == case.mirrored else value for name, value in drawn.items()}
        if case.altered is not None:
            indexes = self.operands[case.altered].indexes
            number, rng = None if indexes is None else case.size[indexes], self.rng(case, "altered")
            drawn = {n: _altered(value, rng, number) if n == case.altered else value for n, value in drawn.items()}
        given: dict[str, torch.Tensor | None] = {}
        exact: dict[str, torch.Tensor | None] = {}
        independent = {name: drawn[name] for name, operand in self.operands.items() if not operand.derived}
        self._round(independent, case, given, exact)
        if self.derive is not None:
            self._round(self.derive(dict(exact), case.param), case, given, exact)
        self._spoil(case, given, exact)
        placed = {name: self._place(name, given[name], case, device) for name in self.operands}
        return Inputs(case, placed, {name: exact[name] for name in self.operands}, case.param)

    def _round(self, drawn, case, given, exact) -> None:
        """What the kernel gets of the values `drawn`, and the same in float64, where a broadcast repeats the first."""
        for name, values in drawn.items():
            layout = case.layout.get(name, "contiguous")
            if values is None or layout == "none":
                given[name] = exact[name] = None
                continue
            given[name] = values.to(self.operand_dtype(name, case))
            exact[name] = layouts.values_of(given[name], layout).to(torch.float64)

    def _spoil(self, case, given, exact) -> None:
        """Put what nobody may use into the elements that the call must leave alone, and 0 into their exact values."""
        for name, operand in self.operands.items():
            if operand.garbage is not None and given[name] is not None:
                unused = operand.garbage(dict(exact), case.param).expand(given[name].shape)
                given[name] = given[name].masked_fill(unused, _poison(given[name].dtype))
                exact[name] = exact[name].masked_fill(unused, 0.0)

    def _place(self, name, values, case, device) -> layouts.BufferView | None:
        if values is None:
            return None
        indexes = self.operands[name].indexes
        last = None if indexes is None else max(0, case.size[indexes] - 1)
        return layouts.place(values, case.layout.get(name, "contiguous"), device, last)

    def expected(self, inputs: Inputs, compute: str | None = None) -> dict[str, Expected]:
        """The answer in float64 from the rounded inputs, with the budget of each output (None: output is None)."""
        return self.expect(inputs.exact, inputs.params, dtype=inputs.case.torch_dtype, compute=compute)

    def raises(self, inputs: Inputs) -> bool:
        """Whether there is no answer on these inputs, so that a kernel may raise."""
        return False

    def call(self, fn: Callable[..., Any], arguments: Mapping[str, Any], by_name: bool = False) -> Any:
        """Call `fn` as the op's signature is written, or with every argument `by_name`; what it returns.

        A parameter at the contract's default is left to the default of a function that has one.
        """
        defaults = _defaults(fn)
        given = {n: v for n, v in arguments.items() if not (n in defaults and self._is_default(n, v))}
        names = [] if by_name else [name for name, operand in self.operands.items() if operand.positional]
        return fn(*[given.pop(name) for name in names], **given)

    def form(self) -> str:
        """How a function of the op is called: "fn(x, weight, eps=1e-06)"."""
        by_position = [name for name, operand in self.operands.items() if operand.positional]
        by_name = {name: None for name, operand in self.operands.items() if not operand.positional}
        by_name |= {name: options[0] for name, options in self.params.items()}
        return f"fn({', '.join([*by_position, *(f'{name}={value!r}' for name, value in by_name.items())])})"

    def misfit(self, fn: Callable[..., Any]) -> str | None:
        """Why `fn` cannot be called as the op is; None where it can, or where it has no signature to be seen."""
        try:
            signature = inspect.signature(fn)
        except (TypeError, ValueError):
            return None
        positional = [name for name, operand in self.operands.items() if operand.positional]
        rest = [name for name, operand in self.operands.items() if not operand.positional]
        try:
            signature.bind(*positional, **dict.fromkeys([*rest, *self.params]))
        except TypeError as error:
            name = getattr(fn, "__name__", None) or type(fn).__name__
            return f"{name}{signature}: {self.name} is called as {self.form()}; {error}"
        return None

    def _is_default(self, name: str, value: Any) -> bool:
        if name not in self.params or isinstance(self.params[name][0], From):
            return False
        default = self.params[name][0]
        return (type(value), value) == (type(default), default)

    def by_name(self, returned: Any, judged: Sequence[str] | None = None) -> dict[str, Any] | str:
        """What a call returned, by output; a sentence where it returned too much or too little, or what calls itself a
        tensor and is not a plain one.

        A function judged on some outputs may return only those, in the contract's order.
        """
        several = issubclass(type(returned), (tuple, list))
        if several and not is_plain_sequence(type(returned)):
            return f"returned {kind_of(returned)}; expected a tuple or a list itself"
        names = list(self.outputs)
        some = [name for name in names if judged is None or name in judged]
        values = returned if several else (returned,)
        for taken in (names, some):
            if len(values) == len(taken):
                named = dict(zip(taken, values, strict=True))
                wrong = ((name, found) for name, value in named.items() if (found := strange(value)) is not None)
                return next((f"{name}: expected a torch.Tensor, got {found}" for name, found in wrong), named)
        if values is not returned:
            return f"returned {type(returned).__name__}; expected a tuple of {len(names)}"
        return f"returned {len(values)} values; expected {len(names)}"


def _defaults(fn: Callable[..., Any]) -> frozenset[str]:
    """The parameters to which a function gives a default."""
    try:
        return _defaults_of(fn)
    except TypeError:  # it has no hash
        return _defaults_of.__wrapped__(fn)


@lru_cache(maxsize=64)  # 40 us, for each of many calls
def _defaults_of(fn: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(p.name for p in parameters if p.default is not p.empty)


def _poison(dtype: torch.dtype) -> float:
    """What nobody may use: NaN, or an integer far outside every operand."""
    return math.nan if dtype.is_floating_point else min(UNUSED_INTEGER, torch.iinfo(dtype).max)


def dtype_name(dtype: torch.dtype | None) -> str:
    """A dtype as a case spells it."""
    return SAME if dtype is None else str(dtype).removeprefix("torch.")


def _mirrored(values: torch.Tensor | None) -> torch.Tensor | None:
    """`values` with what lies inside the border mirrored along the last axis.

    First and last elements, rows and columns stay, and so do the sums of rows: what a cache may be keyed by.
    """
    if values is None or not values.ndim or not values.numel():
        return values
    turned = values.contiguous().clone()
    rows = turned.view(-1, values.shape[-1])
    inner = rows[1:-1] if len(rows) > 2 else rows
    inner[:, 1:-1] = inner[:, 1:-1].flip(-1)
    return turned


def _altered(values: torch.Tensor | None, rng: torch.Generator, number: int | None) -> torch.Tensor | None:
    """`values` with one element, wherever it may be, twice the largest finite one: what a sample or a sum may miss.

    Of indices of so large a `number` of elements it is the next one."""
    if values is None or not values.numel():
        return values
    changed = values.contiguous().clone()
    place = int(torch.randint(values.numel(), (), generator=rng))
    if number is not None:
        changed.view(-1)[place] = (changed.view(-1)[place] + 1) % max(1, number)
        return changed
    finite = values[torch.isfinite(values)].abs()
    changed.view(-1)[place] = 2 * float(finite.max()) if finite.numel() and finite.max() else 1.0
    return changed
