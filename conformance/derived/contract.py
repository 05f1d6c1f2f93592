"""`derive`: an ordinary contract from any function of torch, an example of its inputs, and nothing else."""

import contextlib
import hashlib
import inspect
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import torch

from touchstone.conformance.derived import axes as axes_of
from touchstone.conformance.derived import families, modules
from touchstone.conformance.derived.axes import Axis
from touchstone.conformance.derived.ops import LINEAR_ALGEBRA, bytes_of, is_float, tensors_of
from touchstone.conformance.derived.refusals import Refused, check_real
from touchstone.conformance.derived.samples import (
    AMPLIFIED,
    Sampled,
    answers,
    cast,
    exact_in,
    narrows,
    reached,
    sampled,
    uses,
)
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.budget import ROUNDED, Expected, finite
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.contract import DTYPES, Also, Case, Contract, Draw, Inputs, Operand, Output, dtype_name
from touchstone.conformance.spec.returned import is_plain_sequence
from touchstone.conformance.spec.words import expected_one_of, not_one_of

STORES = ("none", "dots", "ops")
MOST_UNSTABLE = 0.05  # of an output: beyond, a case says nothing about it
MORE_AMPLIFIED = 32  # further samples that look for rare flips before an element is reported
OTHERWISE = 1e-6  # what differs by more in float64 is no rounding
KEPT = 100  # cases
LEANING = 0.2  # limit of the mean signed error, in eps, of a kernel that stores all intermediates
DETERMINED = 0.01  # of |answer|: an element with a smaller budget is determined
LAYOUTS = {1: layouts.VECTOR, 2: layouts.MATRIX}
OTHER_LAYOUTS = ("contiguous", "transposed", "sliced", "step", "offset", "broadcast")


@dataclass(frozen=True)
class Options:
    """What of a contract is asked for, and not found by running the function."""

    dtypes: tuple[str, ...] = tuple(DTYPES)
    store: str = "dots"  # intermediates that may be kept in 16 bits without a note: "none", "dots" or "ops"
    keep: tuple[str, ...] = ()  # operands whose values stay those of the example
    domain: tuple[tuple[str, tuple[float, float]], ...] = ()  # operand -> where its values lie
    special: str = "eager"  # NaN and infinities: as the reference gives them, or "off"
    seed: int = 0
    state: tuple[str, ...] = ()  # operands that are a module's parameters and buffers: given by keyword


@dataclass(frozen=True)
class Found:
    """What running the function has shown: the shape of a contract."""

    axes: tuple[Axis, ...]
    sizes: tuple[dict[str, int], ...]
    outputs: tuple[tuple[str, ...], ...]  # of each output, the letter of each axis
    moves: dict[str, str]  # family -> "", or how its values are moved: "abs", "range"
    left_out: dict[str, str]  # family -> why there is none
    ends: dict[str, str] = field(default_factory=dict)  # size that was tried -> how the reference ends its process
    layouts: dict[str, str] = field(default_factory=dict)  # operand -> words, the layouts that the reference rejects

    def layouts_left_out(self) -> list[str]:
        """A sentence for each operand that is not tried in every layout."""
        why = "the reference raises or answers otherwise"
        return [f"layouts of {name} left out: {which}: {why}" for name, which in self.layouts.items()]


@dataclass(frozen=True)
class Strength:
    """How many of `real` wrong versions of the reference a contract rejects, and which it lets through."""

    killed: int
    real: int
    survivors: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"this contract rejects {self.killed} of {self.real} wrong versions of the reference"
        return text + (f"; not: {'; '.join(self.survivors)}" if self.survivors else "")


@dataclass(eq=False, kw_only=True)
class DerivedContract(Contract):
    """A contract whose answers and budgets come from runs of `function`, which takes `names` by position.

    `found` is the shape; `notes` tells what of the outputs was not judged so far, and why.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    example: tuple[Any, ...]
    options: Options
    found: Found
    rebuilt: tuple[tuple[Any, ...], ...] = ()  # examples of the same module built with other sizes
    references: tuple[Callable[..., Any], ...] = ()
    notes: Counter[str] = field(default_factory=Counter)
    determined: dict[str, list[float]] = field(default_factory=dict)  # output -> shares of determined elements
    unknown: set[str] = field(default_factory=set)
    kept: dict[Any, dict[str, Expected]] = field(default_factory=dict)  # by a digest of the values
    tested: Strength | None = None  # what became of its mutants

    @property
    def state(self) -> tuple[str, ...]:
        return self.options.state

    @property
    def examples(self) -> tuple[tuple[Any, ...], ...]:
        return (self.example, *self.rebuilt)

    @cached_property
    def whole(self) -> list[tuple[int, int] | None]:
        """Of each argument of whole numbers, the smallest, or 0, and the largest that the examples hold."""
        found: list[tuple[int, int] | None] = []
        for several in zip(*self.examples, strict=True):
            held = [x for x in several if isinstance(x, torch.Tensor) and not is_float(x) and x.dtype is not torch.bool]
            numbers = [0, *(int(n) for x in held if x.numel() for n in x.aminmax())]
            found.append((min(numbers), max(numbers)) if held else None)
        return found

    def may_be_strided(self, output: str) -> bool:
        """Where the reference gives a view of what it has computed, as `transpose` does, or lays it out otherwise, as
        `linalg.solve` does; in the example, of which a single column is contiguous, or at another size."""
        return output in self._strided

    def may_share(self, output: str, operand: str) -> bool:
        """Where the reference gives a view of an operand, in the example's layout or another, as `contiguous` does, or
        at another size."""
        return (output, operand) in self._shared

    @cached_property
    def _shared(self) -> set[tuple[str, str]]:
        found = set()
        cases = [cast(self.example, DTYPES[dtype]) for dtype in self.options.dtypes]
        others = (cast(each, torch.float32) for each in self._at_other_sizes())
        for given in (*cases, [_turned(value) for value in cases[0]], *others):
            memories = {
                _memory(x): name for name, x in zip(self.names, given, strict=True) if isinstance(x, torch.Tensor)
            }
            with torch.no_grad(), contextlib.suppress(RuntimeError):  # not every layout and dtype is taken
                results = zip(self.outputs, map(_memory, tensors_of(self.function(*given))), strict=True)
                found |= {(output, memories[memory]) for output, memory in results if memory in memories}
        return found

    @cached_property
    def _strided(self) -> set[str]:
        found = {
            name for name, t in zip(self.outputs, tensors_of(self._returned), strict=True) if not t.is_contiguous()
        }
        for given in (cast(each, torch.float32) for each in self._at_other_sizes()):
            with torch.no_grad(), contextlib.suppress(RuntimeError):
                results = zip(self.outputs, tensors_of(self.function(*given)), strict=True)
                found |= {name for name, tensor in results if not tensor.is_contiguous()}
        return found

    def _at_other_sizes(self) -> Iterator[Sequence[Any]]:
        """The example at the other sizes that were found."""
        return (axes_of.at(self.examples, self.found.axes, size) for size in self.found.sizes[1:])

    @cached_property
    def _returned(self) -> Any:
        """What the reference returns of the example."""
        with torch.no_grad():
            return self.function(*cast(self.example, torch.float32))

    def by_name(self, returned: Any, judged: Sequence[str] | None = None) -> dict[str, Any] | str:
        """Sequences and dicts may hold others, as those do that the reference returns."""
        return super().by_name(_flat(returned, self._returned), judged)

    def call(self, fn: Callable[..., Any], arguments: Mapping[str, Any], by_name: bool = False) -> Any:
        """Call `fn` as the reference is: its inputs by position, a module's state by name."""
        inputs = [arguments[name] for name in self.names if name not in self.state]
        return fn(*inputs, **{name: arguments[name] for name in self.state})

    def form(self) -> str:
        inputs = [name for name in self.names if name not in self.state]
        return f"fn({', '.join([*inputs, *(f'{name}=...' for name in self.state)])})"

    def misfit(self, fn: Callable[..., Any]) -> str | None:
        inputs = [name for name in self.names if name not in self.state]
        try:
            signature = inspect.signature(fn)
            signature.bind(*inputs, **dict.fromkeys(self.state))
        except TypeError as error:
            name = getattr(fn, "__name__", None) or type(fn).__name__
            return f"{name}: the reference is called as {self.form()}; {error}"
        except ValueError:
            return None
        return None

    def values_of(self, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> list[Any]:
        """The arguments of the reference from operands in float64: integers and booleans in their own dtype."""
        found = []
        for name, example in zip(self.names, self.example, strict=True):
            value = inputs[name] if name in self.operands else params[name]
            if isinstance(value, torch.Tensor) and not is_float(example):
                value = value.to(example.dtype)
            found.append(value)
        return found

    def _round(self, drawn, case, given, exact) -> None:
        """As any contract's; what holds of an example holds of what is mirrored or altered too."""
        examples = dict(zip(self.names, self.example, strict=True))
        if case.altered is not None and (bounds := self._bounds_of(case.altered)) is not None:
            drawn = {**drawn, case.altered: drawn[case.altered].clamp(*bounds)}
        kept = {n: v if v is None else families.structured(v, examples[n]) for n, v in drawn.items()}
        super()._round(kept, case, given, exact)

    def _bounds_of(self, name: str) -> tuple[float, float] | None:
        """Between which numbers the values of an operand have to lie, or None."""
        if name in dict(self.options.domain):
            return dict(self.options.domain)[name]
        if "range" not in self.found.moves.values():
            return None
        example = finite(self.example[self.names.index(name)])
        return float(example.min()), float(example.max())

    def expected(self, inputs: Inputs, compute: str | None = None) -> dict[str, Expected]:
        """As any contract's; and in 16 bits what torch's own kernels give is right, however far off it is."""
        case = inputs.case
        try:
            found = super().expected(inputs, compute)
        except torch.linalg.LinAlgError:
            return self._none(case)
        device = next((placed.view.device for placed in inputs.placed.values() if placed is not None), "cpu")
        for number, (name, one) in enumerate(found.items()):
            own, narrow = one.dtype or case.torch_dtype, case.torch_dtype is not torch.float32
            if narrow and one.otherwise is not None and (own is case.torch_dtype or not own.is_floating_point):
                further = partial(_and_eager, self, one, number, case, device)
                found[name] = replace(one, otherwise=further)
        return found

    def _none(self, case: Case) -> dict[str, Expected]:
        """The outputs where the reference itself raises, since a matrix is singular: nothing is judged."""
        found = {}
        for name in self.outputs:
            self.judged(name, "not judged: the reference raises, for a matrix is singular")
            zeros = torch.zeros(self.output_shape(name, case), dtype=torch.float64)
            found[name] = Expected(zeros, dtype=self.output_dtype(name, case), excused=zeros == 0)
        return found

    def raises(self, inputs: Inputs) -> bool:
        try:
            super().expected(inputs)
        except Refused:
            raise
        except Exception:  # on these values: a matrix is singular, or a number lies where there is no answer
            return True
        given = self.values_of(inputs.exact, inputs.params)
        for dtype in dict.fromkeys((torch.float32, inputs.case.torch_dtype)):
            laid = [
                _laid(value, inputs.case.layout[name]) if name in self.operands else value
                for name, value in zip(self.names, cast(given, dtype), strict=True)
            ]
            try:
                with torch.no_grad():
                    self.function(*laid)
            except Exception:  # in these layouts, as `view` does, or this dtype
                return True
        return False

    def judged(self, output: str, what: str) -> None:
        self.notes[f"{output}: {what}"] += 1


def derive(
    reference: Callable[..., Any],
    inputs: Sequence[Any] | Callable[..., Sequence[Any]],
    *,
    dtypes: Sequence[str] = tuple(DTYPES),
    references: Sequence[Callable[..., Any]] = (),
    store: str = "dots",
    sizes: Mapping[str, Sequence[int]] | None = None,
    keep: Sequence[str] = (),
    domain: Mapping[str, tuple[float, float]] | None = None,
    special: str = "eager",
    seed: int = 0,
) -> DerivedContract:
    """A contract for kernels that compute what `reference(*inputs)` does: cases, answers and budgets.

    `reference` is a function of tensors, or a torch.nn.Module, whose parameters and buffers become operands. `inputs`
    is one example of its inputs (tensors, numbers, None), or a function that gives one. `references` are further right
    answers, algebraically other functions. `store` says which intermediates may be kept in the 16-bit dtype without a
    note: "none", "dots" (what goes into dot products and comes out of them), or "ops" (the result of every op, as eager
    has them). `sizes` are those to try, by the letters that `describe` prints (None: found by running). `keep` names
    operands whose values stay those of the example, besides integers, booleans and tensors of at most two values;
    `domain` where an operand's values lie: {"x": (0, 1)}. `special`: whether NaN and infinities are judged, as
    the reference gives them ("eager"), or not ("off").

    Raises Refused, a ValueError, for what no contract can be derived from, and ValueError or TypeError naming the
    argument.
    """
    dtypes, keep = _checked(dtypes, store, keep, special, references)
    function, names, example, state = modules.function_of(reference, inputs, seed)
    operands = [name for name, value in zip(names, example, strict=True) if isinstance(value, torch.Tensor)]
    for name, value in zip(names, example, strict=True):
        check_real(value, f"the operand {name}", "take torch.view_as_real of it, and view_as_complex in the function")
    if not operands:
        raise ValueError("inputs: expected at least one tensor among them, which decides what a case is")
    for argument, given in (("keep", keep), ("domain", domain or {})):
        for name in given:
            if name not in operands:
                raise ValueError(f"{argument}: {not_one_of(name, operands)}")
    options = Options(tuple(dtypes), store, tuple(keep), tuple((domain or {}).items()), special, seed, tuple(state))
    fixed = frozenset(names.index(name) for name in state)
    function = families.square(function, example)
    others = modules.rebuilt_of(reference, state) if isinstance(reference, torch.nn.Module) else []
    known = axes_of.Known()

    def search() -> tuple[list[Any], _Sizes]:
        works = axes_of.works(function, example, known)
        smaller = axes_of.shrunk(function, example, fixed, known)
        own = [example] if works is not None and axes_of.is_small(function, example) else []
        return smaller, _sizes(function, [smaller, *others, *own], fixed, sizes, known)

    known.explored(search)
    if end := known.ends.get(axes_of.key_of(example)):
        raise ValueError(f"reference: it ends its process ({end}) on the inputs")
    _check_reference(function, names, example)
    smaller, at = search()
    found = _found(function, names, smaller, at, options, known)
    varied = [
        tuple(
            _varied(name, value) if name in state and isinstance(value, torch.Tensor) else value
            for name, value in zip(names, each, strict=True)
        )
        for each in (smaller, *at.rebuilt)
    ]
    return made_of(function, names, varied[0], options, found, tuple(references), tuple(varied[1:]))


def _checked(dtypes, store, keep, special, references) -> tuple[Sequence[str], Sequence[str]]:
    for argument, value in (("dtypes", dtypes), ("keep", keep), ("references", references)):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"{argument}: expected a sequence, got {value!r}")
    if not dtypes:
        raise ValueError(f"dtypes: expected one or more of {', '.join(DTYPES)}")
    for name in dtypes:
        if name not in DTYPES:
            raise ValueError(f"dtypes: {not_one_of(name, DTYPES)}")
    for argument, value, options in (("store", store, STORES), ("special", special, ("eager", "off"))):
        if value not in options:
            raise ValueError(f"{argument}: {expected_one_of(value, options, repr)}")
    for other in references:
        if not callable(other):
            raise TypeError(f"references: expected functions of the inputs, got {type(other).__name__}")
    return dtypes, keep


def _check_reference(function: Callable[..., Any], names: Sequence[str], example: Sequence[Any]) -> None:
    """Raise where the reference does not run, writes its inputs, gives no tensor, or gives something else each time."""
    given = cast(example, torch.float32)
    before = [t.clone() if isinstance(t, torch.Tensor) else t for t in given]
    try:
        with torch.no_grad():
            first = [t.clone() for t in tensors_of(function(*given))]
            again = tensors_of(function(*cast(example, torch.float32)))
    except Exception as error:
        raise ValueError(
            f"reference: it does not run on the inputs: {type(error).__name__}: {str(error).strip() or 'no message'}"
        ) from error
    for name, now, was in zip(names, given, before, strict=True):
        if isinstance(now, torch.Tensor) and not torch.equal(torch.nan_to_num(now), torch.nan_to_num(was)):
            raise ValueError(f"reference: it writes its input {name}; have it work on a copy")
    if not first:
        raise ValueError("reference: it returns no tensor")
    for output in first:
        check_real(output, "an output", "return torch.view_as_real of it")
    answers(function, example)  # refuses what has no rule, by its name
    for one, other in zip(first, again, strict=True):
        if one.shape != other.shape or not torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)):
            raise ValueError("reference: it is not deterministic: two runs on the same inputs differ")


@dataclass(frozen=True)
class _Sizes:
    """The axes, the sizes, the letters of the outputs' axes, and the examples of rebuilt modules, or the one that was
    given, that are of use."""

    axes: list[Axis]
    sizes: list[dict[str, int]]
    outputs: tuple[tuple[str, ...], ...]
    rebuilt: list[list[Any]]


def _sizes(function, examples, fixed, sizes, known: axes_of.Known) -> _Sizes:
    example = examples[0]
    axes = axes_of.find(function, example, fixed, known)
    letters = [axis.letter for axis in axes]
    for letter, given in (sizes or {}).items():
        if letter not in letters:
            raise ValueError(f"sizes: {not_one_of(letter, letters)}")
        if not isinstance(given, Sequence) or not all(isinstance(n, int) and n >= 0 for n in given):
            raise ValueError(f"sizes: {letter}: expected whole numbers of at least 0, got {given!r}")
    chosen = axes_of.sizes_of(function, example, axes, sizes, known)
    rebuilt, usual = [], axes_of.ranks(axes_of.works(function, example, known))
    for other in examples[1:] if sizes is None else ():
        size = axes_of.size_of(axes, other)
        same = usual is not None and axes_of.ranks(axes_of.works(function, other, known)) == usual
        if size is not None and size not in chosen and same:
            rebuilt.append(other)
            chosen.append(size)
    chosen, outputs = _with_outputs(function, [example, *rebuilt], axes, chosen, known)
    return _Sizes(axes, chosen, outputs, rebuilt)


def _found(function, names, example, at: _Sizes, options: Options, known: axes_of.Known) -> Found:
    """What running the function shows."""
    moves, left_out = _moves(function, names, [example, *at.rebuilt], at.axes, at.sizes[0], options)
    without = _not_taken(function, names, axes_of.at([example, *at.rebuilt], at.axes, at.sizes[0]))
    return Found(tuple(at.axes), tuple(at.sizes), at.outputs, moves, left_out, dict(known.told), without)


def _not_taken(function, names: Sequence[str], example: Sequence[Any]) -> dict[str, str]:
    """Of each operand, the layouts in which the reference raises, with the others contiguous, as `view` does where
    strides do not allow it: a kernel may then; or answers otherwise, as `as_strided` does, or in another shape, as
    `masked_select` does of a mask of equal rows; or copies what lies between elements far apart, which a kernel may
    too. A layout that it takes for all of them at once, it takes for each."""
    given, found = cast(example, torch.float32), dict[str, list[str]]()
    with torch.no_grad():
        plain = tensors_of(function(*given))
    shapes = [t.shape for t in plain]
    asked = {
        place: [*_layouts_of(example[place])[1:], *layouts.FAR_LAYOUTS[: value.ndim]]
        for place, value in enumerate(given)
        if isinstance(value, torch.Tensor)
    }

    def takes(layout: str, places: Collection[int]) -> bool:
        try:
            with torch.no_grad():
                laid = [_laid(value, layout) if place in places else value for place, value in enumerate(given)]
                answers = tensors_of(function(*laid))
                same = plain
                if layout in layouts.BROADCASTS:  # whose values are others
                    same = tensors_of(function(*(v.contiguous() if i in places else v for i, v in enumerate(laid))))
                if layout in layouts.FAR_LAYOUTS and any(
                    _has_gaps(*both, laid) for both in zip(answers, plain, strict=True)
                ):
                    return False
                return [t.shape for t in same] == shapes and all(map(_alike, answers, same))
        except Exception:
            return False

    if not takes("contiguous", asked):
        raise Refused(
            "the reference answers otherwise where its operands lie elsewhere in memory: it reads beyond their ends, "
            "or their storage by strides of its own (as_strided)"
        )
    for layout in dict.fromkeys(layout for several in asked.values() for layout in several):
        places = [place for place, several in asked.items() if layout in several]
        for place in places if len(places) == 1 or not takes(layout, places) else ():
            if not takes(layout, [place]):
                found.setdefault(names[place], []).append(layout)
    return {name: " ".join(several) for name, several in found.items()}


def _with_outputs(function, examples, axes, sizes, known):
    """The sizes, with letters of their own for axes of the outputs that are no operand's; and the outputs' letters."""
    shapes = [axes_of.works(function, axes_of.at(examples, axes, each), known) for each in sizes]
    outputs = []
    for output, shape in enumerate(shapes[0] or ()):
        letters = []
        for place in range(len(shape)):
            lengths = [each[output][place] for each in shapes if each is not None]
            same = (a.letter for a in axes if [each[a.letter] for each in sizes] == lengths)
            letter = next(same, f"y{output}_{place}")
            letters.append(letter)
            if letter not in sizes[0]:
                sizes = [{**each, letter: n} for each, n in zip(sizes, lengths, strict=True)]
        outputs.append(tuple(letters))
    return sizes, tuple(outputs)


def _kept(name: str, value: torch.Tensor, options: Options) -> bool:
    """Whether an operand keeps the example's values."""
    return not is_float(value) or name in options.keep or value.unique().numel() <= 2


def _varied(name: str, value: torch.Tensor) -> torch.Tensor:
    """The example of a parameter that is a constant (weight 1, bias 0), with noise in which a mistake shows."""
    if not is_float(value) or value.unique().numel() > 1:
        return value
    return value + torch.rand(value.shape, generator=torch.Generator().manual_seed(len(name))).to(value.dtype) - 0.5


def _moves(function, names, examples, axes, size, options: Options) -> tuple[dict[str, str], dict[str, str]]:
    """Of each family: how its values have to be moved for the function to be finite on most of the answer."""
    moves, left_out, shapes = {"given": ""}, {}, set[tuple[torch.Size, ...]]()
    example = examples[0]
    drawn = [n for n, v in zip(names, example, strict=True) if isinstance(v, torch.Tensor) and not _kept(n, v, options)]
    inputs = {n: v.shape for n, v in zip(names, example, strict=True) if n in drawn and n not in options.state}
    if not drawn:
        return moves, {"all others": "every operand keeps the example's values"}
    for family in families.names(inputs, len(drawn) > len(inputs), options.special == "eager"):
        if family == families.SPARSE and uses(function, cast(example, torch.float32), LINEAR_ALGEBRA | {"linalg_pinv"}):
            left_out[family] = "matrices that are mostly 0 are singular"
            continue
        for move in ("", "abs", "range"):
            if (families.is_special(family) or family == families.WHOLE) and move == "range":
                continue
            given = _trial(names, examples, axes, size, family, move, options)
            try:
                with torch.no_grad():
                    every = tensors_of(function(*given))
            except Exception as error:
                left_out[family] = f"the reference raises {type(error).__name__}"
                continue
            shapes.add(tuple(t.shape for t in every))
            if len(shapes) > 1:
                one, other = ([tuple(shape) for shape in each] for each in shapes)
                raise Refused(
                    f"the shape of an output depends on the values: {one} and {other} at one size; return fixed shapes"
                )
            out = [t for t in every if is_float(t) and t.numel()]
            if families.is_special(family) or all(float(torch.isfinite(t).double().mean()) > 0.5 for t in out):
                moves[family] = move
                left_out.pop(family, None)
                break
            left_out[family] = "more than half of the answer would be NaN or infinite"
    return moves, left_out


class _Drawing(Draw):
    """A `Draw` for a family before there is a contract."""

    def __init__(self, generator: torch.Generator):
        self.dtype, self._generator = torch.float32, generator


def _trial(names, examples, axes, size, family, move, options) -> list[Any]:
    """float32 arguments of a family."""
    given, equal = axes_of.at(examples, axes, size), dict[torch.Size, torch.Tensor]()
    for position, (name, value) in enumerate(zip(names, given, strict=True)):
        if isinstance(value, torch.Tensor):
            example = examples[0][position]
            if not _kept(name, example, options):
                draw = _Drawing(torch.Generator().manual_seed(position))
                value = _drawn(draw, name, family, move, value, example, options)
                value = _or_equal(value, family, name, options, equal)
            given[position] = families.structured(value, example)
    return cast(given, torch.float32)


def _drawn(
    draw: Draw, name: str, family: str, move: str, value: torch.Tensor, example: torch.Tensor, options: Options
) -> torch.Tensor:
    """The values of a family for one operand; `value` is the example at the size, `example` as it was given."""
    if name in options.state:
        make = families.parameter_for(family, name, options.state)
        return value.to(torch.float64) if make is None else make(draw, value.to(torch.float64))
    drawn = families.make_for(family, name)(draw, value.shape)
    if name in dict(options.domain) and family != families.WHOLE:
        return families.within(*dict(options.domain)[name])(drawn)
    if move == "abs":
        return drawn.abs()
    if move == "range":
        return families.within(float(example.min()), float(example.max()))(drawn)
    return drawn


def _or_equal(
    value: torch.Tensor, family: str, name: str, options: Options, equal: dict[torch.Size, torch.Tensor]
) -> torch.Tensor:
    """The values of an operand, or those of the first of its shape, which `equal` keeps."""
    return equal.setdefault(value.shape, value) if family == families.EQUAL and name not in options.state else value


def made_of(
    function: Callable[..., Any],
    names: Sequence[str],
    example: tuple[Any, ...],
    options: Options,
    found: Found,
    references: tuple[Callable[..., Any], ...] = (),
    rebuilt: tuple[tuple[Any, ...], ...] = (),
) -> DerivedContract:
    """The contract of what is known about `function`, which is not run; each argument is the field of its name."""
    function = families.square(function, example)
    letter = {place: axis.letter for axis in found.axes for place in axis.places}
    operands, params = {}, {}
    for position, (name, value) in enumerate(zip(names, example, strict=True)):
        if not isinstance(value, torch.Tensor):
            params[name] = (value,)
            continue
        operands[name] = Operand(
            " ".join(letter[position, axis] for axis in range(value.ndim)),
            layouts=tuple(each for each in _layouts_of(value) if _taken(found, name, each)),
            dtype=None if is_float(value) else value.dtype,
            positional=name not in options.state,
            fixed=_kept(name, value, options),
        )
    made = DerivedContract(
        operands=operands,
        outputs={},
        sizes=found.sizes,
        values={},
        expect=lambda inputs, given, *, dtype, compute=None: expect(made, inputs, given, dtype, compute),
        params=params,
        dtypes=options.dtypes,
        valid=lambda case: _fits(made, case.sizes) and all(_taken(found, *laid) for laid in case.layouts),
        mirrors=True,
        drawn_for="function",  # not the name, which says where the reference lies: the same draws in every folder
        function=function,
        names=tuple(names),
        example=example,
        options=options,
        found=found,
        references=references,
        rebuilt=rebuilt,
    )
    made.values = {family: _family(made, family, move) for family, move in found.moves.items()}
    made.also = _long(found, options) | _cancelling(found, options)
    several = len(found.outputs) > 1
    made.outputs = {
        f"y{number}" if several else "y": Output(" ".join(axes), _dtype_of(made, number))
        for number, axes in enumerate(found.outputs)
    }
    return made


def _long(found: Found, options: Options) -> dict[str, Also]:
    """Where each axis is longest, if that is not the first size, values that are largest at its end."""
    first, family = found.sizes[0], families.ENDS if families.ENDS in found.moves else None
    longest = {axis.letter: max(found.sizes, key=lambda size: size[axis.letter]) for axis in found.axes if axis.step}
    long = {letter: size for letter, size in longest.items() if size[letter] > first[letter]}
    return {f"end_of_{letter}": Also(size, family, dtype=options.dtypes[0]) for letter, size in long.items()}


def _cancelling(found: Found, options: Options) -> dict[str, Also]:
    """Values and parameters far above their spread, in float32: a variance in one pass shows in no other dtype."""
    dtype = "float32" if "float32" in options.dtypes else options.dtypes[0]
    far = [name for name in ("offset", "offset_parameters") if name in found.moves]
    return {f"only_{name}": Also(found.sizes[0], name, dtype=dtype) for name in far}


def _alike(answer: torch.Tensor, plain: torch.Tensor) -> bool:
    """Whether two runs in float32 gave the same but for rounding, which may move a tenth of it across a
    discontinuity; what is not finite or no float is not compared."""
    if answer.shape != plain.shape or not is_float(plain):
        return answer.shape == plain.shape
    finite = torch.isfinite(plain)
    if not finite.any():
        return True
    near = (answer - plain).abs()[finite] <= 0.05 * plain[finite].abs().amax()
    return float(near.double().mean()) >= 0.9


def _laid(value: torch.Tensor, layout: str) -> torch.Tensor:
    """`value` in a layout; for one with far offsets, with a gap at the same place."""
    axis = layouts.far_axis(layout)
    if axis is None:
        return layouts.place(value, layout, "cpu").view
    first = value.movedim(axis, 0)
    wide = value.new_zeros((len(first), math.prod(first.shape[1:]) + 64))
    laid = wide[:, : wide.shape[1] - 64].view(first.shape)
    return laid.copy_(first).movedim(0, axis)


def _has_gaps(answer: torch.Tensor, plain: torch.Tensor, given: Sequence[Any]) -> bool:
    """Whether an answer lies in memory of its own, and in more of it than of plain operands."""
    own = all(_memory(answer) != _memory(x) for x in given if isinstance(x, torch.Tensor))
    return own and answer.untyped_storage().nbytes() > plain.untyped_storage().nbytes()


def _memory(tensor: torch.Tensor) -> int:
    """Where its storage lies."""
    return tensor.untyped_storage().data_ptr()


def _turned(value: Any) -> Any:
    """A tensor's elements with its first and its last axis exchanged in memory; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    return value.transpose(0, -1).contiguous().transpose(0, -1)


def _flat(returned: Any, model: Any) -> Any:
    """The leaves of sequences and dicts, in a dict in the order of the reference's; anything else as it is."""
    if type(returned) is dict and all(type(key) is str for key in returned):
        alike = type(model) is dict and model.keys() == returned.keys()
        parts = [(returned[key], model[key] if alike else None) for key in (model if alike else returned)]
    elif is_plain_sequence(type(returned)):
        models = (
            list(model) if is_plain_sequence(type(model)) and len(model) == len(returned) else [None] * len(returned)
        )
        parts = list(zip(returned, models, strict=True))
    else:
        return returned
    leaves: list[Any] = []
    for part, its in parts:
        flat = _flat(part, its)
        leaves += flat if flat is not part else [part]
    return leaves


def _taken(found: Found, name: str, layout: str) -> bool:
    """Whether the reference takes an operand in a layout."""
    return layout not in found.layouts.get(name, "").split()


def _layouts_of(example: torch.Tensor) -> tuple[str, ...]:
    """The layouts of an operand, without broadcasts in which what holds of the example does not: one row for all is
    neither triangular nor symmetric, and one element for a row is no distribution."""
    found = LAYOUTS.get(example.ndim, OTHER_LAYOUTS) if example.ndim else ("contiguous", "offset")
    return tuple(each for each in found if not each.startswith("broadcast") or _holds_in(each, example))


def _holds_in(layout: str, example: torch.Tensor) -> bool:
    laid = layouts.values_of(example, layout)
    return torch.equal(torch.nan_to_num(families.structured(laid, example)), torch.nan_to_num(laid))


def _family(contract: DerivedContract, family: str, move: str) -> Callable[[Draw], dict[str, torch.Tensor | None]]:
    def draw_all(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn: dict[str, torch.Tensor | None] = {}
        equal: dict[torch.Size, torch.Tensor] = {}
        given = axes_of.at(contract.examples, contract.found.axes, draw.size)
        for name, value, example in zip(contract.names, given, contract.example, strict=True):
            if name not in contract.operands:
                continue
            if family != "given" and not _kept(name, example, contract.options):
                value = _drawn(draw, name, family, move, value, example, contract.options)
                value = _or_equal(value, family, name, contract.options, equal)
            drawn[name] = value.to(torch.float64)
        return drawn

    return draw_all


def _dtype_of(contract: DerivedContract, number: int) -> Callable[[Case], torch.dtype]:
    """The dtype of an output, as eager has it in the case's dtype."""

    @lru_cache
    def dtype_in(name: str) -> torch.dtype:
        size = contract.found.sizes[0]
        given = axes_of.at(contract.examples, contract.found.axes, size)
        for dtype in (DTYPES[name], torch.float32):
            try:
                with torch.no_grad():
                    found = tensors_of(contract.function(*cast(given, dtype)))[number].dtype
            except Exception:
                continue  # eager does not compute this in 16 bits
            return DTYPES[name] if found is dtype else found
        return DTYPES[name]

    return lambda case: dtype_in(case.dtype)


@lru_cache(maxsize=4096)
def _fits(contract: DerivedContract, sizes: tuple[tuple[str, int], ...]) -> bool:
    """Whether the function works at these sizes and its outputs have the shapes that the letters say."""
    size = dict(sizes)
    if size in contract.found.sizes:
        return True
    if not axes_of.have_room(contract.example, axes_of.change_of(contract.found.axes, size)):
        return False
    shapes = axes_of.works(contract.function, axes_of.at(contract.examples, contract.found.axes, size))
    return shapes == [tuple(size[letter] for letter in axes) for axes in contract.found.outputs]


def expect(contract: DerivedContract, inputs, params, dtype: torch.dtype, compute: str | None) -> dict[str, Expected]:
    """Answers and budgets of one case, from samples; those of the latest cases are kept. Raises for whole numbers that
    no case holds, as one has that reads an operand wrong: what torch does with an index beyond an axis is undefined,
    and may end the process."""
    values = contract.values_of(inputs, params)
    for name, value, bounds in zip(contract.names, values, contract.whole, strict=True):
        if bounds and value.numel() and not (bounds[0] <= int(value.min()) and int(value.max()) <= bounds[1]):
            raise ValueError(f"{name}: expected whole numbers from {bounds[0]} to {bounds[1]}")
    key = (_digest(values), dtype, compute)
    if key not in contract.kept:
        contract.kept[key] = _measured(contract, values, dtype, compute)
    while len(contract.kept) > KEPT:
        del contract.kept[next(iter(contract.kept))]
    return dict(contract.kept[key])


def _digest(values: Sequence[Any]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for value in values:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(bytes_of(value))
        else:
            found.update(repr(value).encode())
    return found.digest()


def _measured(contract: DerivedContract, values: list[Any], dtype, compute: str | None) -> dict[str, Expected]:
    narrow = None if dtype is torch.float32 else dtype
    operands = ROUNDED.get(compute or "", 0.0)
    tier = contract.options.store
    if narrow is not None and tier == "dots" and narrows(contract.function, values, dtype):
        tier = "ops"  # the reference itself stores intermediates, which float64 hides

    @cache  # every judgement of an output that is rejected, and those that look for the cause, ask for the same ones
    def samples(stored: str, amplified: int = AMPLIFIED) -> Sampled:
        return sampled(
            contract.function,
            values,
            seed=contract.options.seed,
            store=None if stored == "none" else narrow,
            stored="every" if stored == "ops" else "dots",
            operands=operands,
            amplified=amplified,
            earlier=samples(stored) if amplified > AMPLIFIED else None,
        )

    first = samples(tier)
    contract.unknown |= first.unknown
    whole = all(bool((v == v.round()).all()) for v in values if is_float(v)) and exact_in(
        contract.function, values, dtype
    )
    unlike = _unlike(contract, values, first, dtype)
    case = Case("", dtype_name(dtype), (), "", (), ())
    found = {}
    for number, (name, output) in enumerate(contract.outputs.items()):
        own = output.dtype(case) if callable(output.dtype) else dtype
        made = _expected(contract, name, number, first, own, unlike[number])
        steady = made.excused is None and not bool(first.unstable[number].any())
        if whole and steady and own.is_floating_point:
            made = Expected(made.answer, dtype=own, exact=True)
        else:
            _tell(contract, name, made, first, number, unlike[number], dtype)
            made.alternatives = [
                _alternative(made, other, values, number) for other in contract.references if own.is_floating_point
            ]
            made.otherwise = lambda name=name, number=number, own=own: _otherwise(
                contract, name, number, own, unlike[number], samples, tier, narrow
            )
        found[name] = made
    return found


def _unlike(contract: DerivedContract, values: Sequence[Any], first: Sampled, dtype: torch.dtype) -> list[torch.Tensor]:
    """Of each output: where the reference in float32, in the case's dtype or in a sample is NaN or infinite otherwise
    than in float64, or would be in a kernel that computes an op in parts, or a convolution by transforms: it may be
    either."""
    found = [
        flips.clone() if is_float(t) else torch.zeros_like(flips)
        for t, flips in zip(first.answers, first.flips, strict=True)
    ]
    for own in dict.fromkeys((torch.float32, dtype)):
        try:
            with torch.no_grad():
                eager = tensors_of(contract.function(*cast(values, own)))
        except torch.linalg.LinAlgError:
            return [~t for t in found]  # a matrix that is singular once it is rounded
        except Exception:
            continue  # eager does not compute this in 16 bits
        if [t.shape for t in eager] != [t.shape for t in first.answers]:
            continue
        for number, (got, right) in enumerate(zip(eager, first.answers, strict=True)):
            if is_float(right):
                right = right.to(got.dtype)  # where that overflows, so must a kernel's
                both = torch.isfinite(got) & torch.isfinite(right)
                same = both | (torch.isnan(got) & torch.isnan(right)) | (torch.isinf(right) & (got == right))
                found[number] |= ~same
    for run in reached(contract.function, values):
        for number, (got, right) in enumerate(zip(run, first.answers, strict=True)):
            if got.shape == right.shape:
                close = partial(torch.isclose, rtol=OTHERWISE, atol=OTHERWISE, equal_nan=True)
                found[number] |= ~close(got, right) if is_float(right) else got != right
    return found


def _expected(
    contract, name, number, found: Sampled, own: torch.dtype, unlike: torch.Tensor, most: float = MOST_UNSTABLE
) -> Expected:
    """What an output must be, from samples. Where a larger share of its elements than `most`, and more than one, are
    near a discontinuity, they say nothing; indices are then judged by what they pick."""
    answer, unstable = found.answers[number].to(torch.float64), found.unstable[number]
    if own.is_floating_point:
        excused = torch.ones_like(unstable) if _too_many(unstable, most) else unlike
        made = Expected(answer, dtype=own, extra=finite(found.extra(number)))
        made.excused = excused if bool(excused.any()) else None
        return made
    made = Expected(answer, dtype=own)
    if found.picks[number] is not None:
        made.excused = lambda got: found.picks_as_well(number, got) | unlike
    elif bool((unstable | unlike).any()):
        made.excused = torch.ones_like(unstable) if _too_many(unstable, most) else unstable | unlike
    return made


def _too_many(unstable: torch.Tensor, most: float = MOST_UNSTABLE) -> bool:
    return int(unstable.sum()) > max(1.0, most * unstable.numel())


def _tell(contract, name, made: Expected, found: Sampled, number: int, unlike: torch.Tensor, dtype) -> None:
    """Note what of an output is not judged, or judged otherwise, and how much of it is determined in float32."""
    some = bool(found.unstable[number].any())
    if found.picks[number] is not None:
        if some:
            contract.judged(name, "some indices pick among elements that are nearly equal: judged by what they pick")
    elif _too_many(found.unstable[number]):
        contract.judged(name, "not judged: more than 5 % of its elements are near a discontinuity")
    elif some:
        contract.judged(name, "some elements near a discontinuity are judged loosely, or not if they are integers")
    if bool(unlike.any()):
        contract.judged(
            name, "not judged where float32 overflows or is NaN and float64 is not, or NaN may reach or stand otherwise"
        )
    if dtype is torch.float32 and made.answer.numel() and (made.dtype or dtype).is_floating_point:
        decided = made.extra <= DETERMINED * finite(made.answer).abs() + torch.finfo(torch.float32).tiny
        contract.determined.setdefault(name, []).append(float(decided.double().mean()))


def _alternative(made: Expected, other: Callable[..., Any], values: Sequence[Any], number: int) -> Expected:
    """What another right function gives, with the budget of its own samples."""
    theirs = sampled(other, values)
    return Expected(theirs.answers[number].to(torch.float64), dtype=made.dtype, extra=finite(theirs.extra(number)))


def _otherwise(contract, name, number, own, unlike, samples, tier, narrow) -> Iterator[Expected]:
    """What else is right: in 16 bits, as the first, intermediates that are stored as eager does, which takes fewer
    samples than to find elements that flip seldom. The case has been judged: what more or larger errors make unstable
    is excused, and nothing else."""
    if narrow is not None and tier != "ops":
        made = _expected(contract, name, number, samples("ops"), own, unlike, most=1.0)
        made.note = f"stores intermediates in {dtype_name(narrow)} as eager does; a kernel that keeps float32 is closer"
        made.drift = LEANING
        yield made
    yield _expected(contract, name, number, samples(tier, MORE_AMPLIFIED), own, unlike, most=1.0)


def _one_of(stored: Expected, eager: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Which elements of an output of integers are eager's, or need not be judged."""
    excused = stored.excused(got) if callable(stored.excused) else stored.excused
    return got == eager if excused is None else (got == eager) | excused


def _and_eager(contract: DerivedContract, one: Expected, number: int, case: Case, device: Any) -> Iterator[Expected]:
    """What else is right of a 16-bit output, and what eager gives on a device, in the case's layouts or contiguous,
    where that is farther off than storing intermediates explains."""
    assert one.otherwise is not None
    further, given = iter(one.otherwise()), contract.build(case, device).arguments
    stored = next(further)
    yield stored
    placed = [given[name] for name in contract.names]
    for values in (placed, [t.contiguous() if isinstance(t, torch.Tensor) else t for t in placed]):
        try:
            with torch.no_grad():
                eager = tensors_of(contract.function(*values))[number].cpu()
        except Exception:
            continue  # eager does not compute this in 16 bits
        if not compare(eager, stored, case.torch_dtype).ok:
            note = (
                f"is as far off as torch's own {case.dtype} kernels are on this device, which are not right; "
                "a kernel that adds in float32 is closer"
            )
            made = replace(stored, drift=LEANING, note=note)
            if is_float(eager):
                made.answer = torch.where(torch.isfinite(eager), eager.to(torch.float64), stored.answer)
            else:
                made.excused = partial(_one_of, stored, eager)
            yield made
    yield from further
