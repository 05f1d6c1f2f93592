"""What a kernel reads in the place of what it is given: another slice of an operand, nothing, another head, another
parameter.

Each is tried as a change of the operands or parameters under which the contract's answer is what the kernel gives. It
has to hold for all elements of the output, or for all of those slices along one axis that hold the wrong ones, and
where the kernel can be called again for other values of the same case too: what fits one draw by chance does not fit
two.
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Case, Contract, From

Operands = dict[str, torch.Tensor | None]
Change = Callable[[Operands, Case], tuple[Operands, Mapping[str, Any]]]
Beside = Mapping[str, tuple[torch.Tensor, torch.Tensor]]  # other outputs, and where each is wrong
Call = Callable[[Case], Mapping[str, Any] | None]  # what the kernel gives on another case; None: nothing to compare

WORK_LIMIT = 2e8  # work of a case above which nothing is tried
LEAST = 3  # wrong elements of which something can be said
APART = 0.95  # of the wrong elements at which another answer has to differ from the right one
HEADS = 32  # of keys and values, of which each is tried for every query head
LITTLE = 1e6  # work of a case of another size, on which several changes are told apart
MUCH, LEAST_WORK = 3e5, 1e4  # work of a case before which one of little is explained, and the least of that
NAMED, FOUND = 3, 8  # most changes that are named, and that are told apart before
OTHER_SIZES = 3  # in which they are
LIKE_SIZES = 4  # times the largest size, up to which an integer can stand for one
OTHER_OPTIONS = 2  # parameters of which another option is tried
SHOWN = 3  # heads that are named
POINTS, MANY = 3, 8  # numbers at which all is wrong, at most, and others, at least
BY_CHANCE = 1e-3  # that the further places of such numbers are wrong for another reason, at most
OF_SLICES = 3.0  # seconds in which slices of an operand are looked for that others are read for
SMALL = 1e-2  # an option of a parameter that keeps a divisor from 0
USUAL = (1e-5, 1e-6, 1e-8, 1e-12, 1e-7, 1e-4, 1e-3)  # numbers that stand in code in the place of a parameter


def nothing(case: Case) -> None:
    """A `Call` of a kernel that cannot be called again."""


def again(case: Case) -> Case:
    """The same case with other values."""
    return replace(case, seed=case.seed + 1)


class Given(NamedTuple):
    """An output of a kernel on a case, on the CPU, what is right, and where it is wrong."""

    got: torch.Tensor
    right: Expected
    bad: torch.Tensor


def given_on(contract: Contract, case: Case, output: str, call: Call) -> Given | None:
    """What the kernel gives on a case; None where there is nothing to compare."""
    got, right = (call(case) or {}).get(output), contract.expected(contract.build(case))[output]
    if not isinstance(got, torch.Tensor) or right is None or got.shape != right.answer.shape:
        return None
    bad = compare.compare(got, right, case.torch_dtype).bad
    return Given(got.cpu(), right, torch.zeros(got.shape, dtype=torch.bool) if bad is None else bad.cpu())


def plainly(contract: Contract, case: Case) -> list[Case]:
    """The same size and parameters with other values, of the contract's first family: those of another one can hide a
    change; and with plain layouts too: where values are equal along an axis, many changes are one."""
    values = next(iter(contract.values))
    plain = plain_case(contract, case.dtype, values, case.seed + 1, case.size)
    every = dict.fromkeys([replace(case, values=values, seed=case.seed + 1), replace(plain, params=case.params)])
    return [one for one in every if contract.valid(one)]


def of_plain_values(contract: Contract, case: Case) -> Case:
    """The case with plain values, in contiguous operands, None where it has None."""
    plain = plain_case(contract, case.dtype, next(iter(contract.values)), case.seed, case.size)
    return replace(plain.plainly_laid(case.absent), params=case.params)


def refuting(contract: Contract, case: Case) -> list[Case]:
    """Plain cases; those with another option of a parameter that is 0 or 1 here, where many changes are one: a product
    with 0 tells nothing of a mask, and a dropout of nothing keeps what any other keeps; and those without a switch that
    is on here: what is wrong without it too is not wrong for it."""
    plain = plainly(contract, case)
    if not plain:
        return []
    degenerate = [name for name, value in case.params if type(value) in (int, float) and value in (0, 1)]
    found: list[Case] = []
    for name in sorted(degenerate, key=lambda name: type(case.param[name]) is int):
        options = [o for o in contract.params.get(name, ()) if type(o) in (int, float) and o not in (0, 1)]
        options += [o for o in contract.params.get(name, ()) if o is None]
        others = (replace(plain[-1], params=_with(case, name, option)) for option in options)
        found += itertools.islice((one for one in others if contract.valid(one)), 1)
    switches = [name for name, value in case.params if value is True and False in contract.params.get(name, ())]
    off = [replace(plain[-1], params=_with(case, name, False)) for name in switches]
    return [*plain, *found[:OTHER_OPTIONS], *[one for one in off if contract.valid(one)][:OTHER_OPTIONS]]


def _with(case: Case, name: str, option: Any) -> tuple[tuple[str, Any], ...]:
    """The parameters of a case, one of them with another option."""
    return tuple((n, option if n == name else value) for n, value in case.params)


def of_little_work(contract: Contract, case: Case, least: float = LEAST_WORK) -> list[Case]:
    """Plain cases with the parameters of a case whose work is little, but not next to nothing: the least first."""
    plain = next(iter(contract.values))
    every = [plain_case(contract, case.dtype, plain, case.seed, size) for size in contract.sizes]
    fit = [one for one in (replace(one, params=case.params) for one in every) if one.filled and contract.valid(one)]
    return sorted((one for one in fit if least <= contract.work(one) <= LITTLE), key=contract.work)


def tells(got: torch.Tensor, bad: torch.Tensor, call: Call) -> bool:
    """Whether something can be said of wrong elements: enough of them, or a number that is all of an output, of which
    further calls give more."""
    if int(bad.sum()) >= LEAST:
        return True
    return bad.numel() < LEAST and call is not nothing and bool(torch.isfinite(got.cpu()[bad.cpu()]).all())


def others(contract: Contract, case: Case, bad: torch.Tensor) -> list[Case]:
    """The same case with other values; and where so few elements are wrong that one draw tells little, with plain ones
    as often as makes up for that: of small integers many sums are equal."""
    if int(bad.sum()) >= LEAST:
        return [again(case)]
    plain = replace(case, values=next(iter(contract.values)))
    return [replace(plain, seed=case.seed + more) for more in range(1, LEAST + 1)]


def misread(
    contract: Contract,
    case: Case,
    output: str,
    got: torch.Tensor,
    bad: torch.Tensor,
    seconds: float,
    call: Call = nothing,
    earlier: Sequence[Case] = (),
    beside: Beside | None = None,
    strictly: bool = True,
    only_strides: bool = False,
) -> str | None:
    """As what the kernel takes its operands or parameters, where that explains an output's wrong elements, `bad`; for
    so many seconds at most. `earlier` are cases of other calls, whose operands may have been kept; `beside` are other
    outputs, each with where it is wrong, which such a change has to explain too. Not `strictly`: it may leave another
    output as it is, and those of other axes are not looked at. `only_strides`: nothing else is tried than operands by
    other strides."""
    if contract.work(case) > WORK_LIMIT or not tells(got, bad, call):
        return None
    got, bad, end = got.cpu(), bad.cpu(), time.monotonic() + seconds
    right = contract.expected(contract.build(case))[output]
    exact = contract.build(case).exact
    if name := None if only_strides else _copied(exact, got, bad):
        return f"the elements of {name}, unchanged"
    if heads := None if only_strides else _other_heads(contract, case, output, got, bad, end):
        return heads
    further = cache(call)
    found: list[str] = []
    changes: dict[str, Change] = {}
    of_counts = {text for text, _ in _counts(contract, case, exact)}  # who reads them wrong has few elements right
    strides = list(_by_other_strides(contract, case))
    by_strides = {text for text, _ in strides}
    of_strides: list[torch.Tensor] = []  # what those give that are found
    every: Iterator[tuple[str, Change]] = iter(strides)
    if not only_strides:
        every = itertools.chain(_kept(contract, case, exact, earlier), strides, _changes(contract, case, exact))
    for text, change in () if _is_nothing(got[bad]) else every:
        if time.monotonic() > end or len(found) == FOUND:
            break
        theirs = _answer(contract, case, output, change)
        where = None if theirs is None else _explained(theirs, got, bad, case)
        if theirs is None or where is None or not _apart(theirs, right, bad, case):
            continue
        if where and text in of_counts:
            continue
        if any(torch.equal(theirs.answer, answer) for answer in of_strides):
            continue  # the same numbers in other words
        if _of_unused(contract, case, output, change, got, bad):
            continue
        if beside and strictly and not all(_explains(contract, case, n, change, *w) for n, w in beside.items()):
            continue
        if beside and not strictly and _contradicted(contract, case, output, change, beside):
            continue
        few = int(bad.sum()) < LEAST
        if all(_holds(contract, o, output, change, where, further(o), few) for o in others(contract, case, bad)):
            if any(_refuted(contract, o, output, change, further(o)) for o in refuting(contract, case)):
                continue
            found.append(text)
            changes[text] = change
            if text in by_strides:
                of_strides.append(theirs.answer)
    left = told_apart(contract, case, output, {text: changes[text] for text in found}, call)
    found = list(_beyond_one(contract, case, output, left, call))
    of_one = Counter(text.partition(" were ")[0] for text in found if text.partition(" were ")[0] in contract.params)
    found = [text for text in found if of_one[text.partition(" were ")[0]] < 2]  # any option fits: none tells
    if found:
        return f"as if {'; or as if '.join(found[:NAMED])}"
    return _other_slices(contract, case, output, got, bad, end, call) if strictly and not only_strides else None


def _is_nothing(wrong: torch.Tensor) -> bool:
    """Whether all wrong elements are one number that stands for nothing: any change that leaves them without terms
    gives that."""
    one = bool(wrong.isnan().all()) or bool((wrong == wrong[0]).all())
    return one and (float(wrong[0]) == 0 or not math.isfinite(wrong[0]))


class _Told(NamedTuple):
    """Numbers of an operand, or of a sum of two, at which all is wrong and nothing else: in words, whether a number is
    one of them, and whether one draw alone tells that."""

    operand: str
    text: str
    meets: Callable[[torch.Tensor], torch.Tensor]
    alone: bool


def beyond(contract: Contract, case: Case, output: str, bad: torch.Tensor, call: Call = nothing) -> str | None:
    """The bound of an operand beyond which all is wrong and nothing else, with these values and with others: where it
    is clamped, or what overflows. Or a few numbers of it at which all is, of which each stands at several places, or
    which are those of another draw too."""
    found = _bounds(contract, case, bad)
    other = given_on(contract, again(case), output, call) if found else None
    if other is None:
        return next((told.text for told in found.values() if told.alone), None)
    if bool(other.bad.any()):
        again_found = _bounds(contract, again(case), other.bad)
        return next((told.text for key, told in found.items() if key in again_found), None)
    sizes = dict(_sizes_of(contract, again(case), bad.shape))
    absent = [t for t in found.values() if t.operand not in sizes or not bool(t.meets(sizes[t.operand]).any())]
    return next((told.text for told in absent if told.alone), None)


def _bounds(contract: Contract, case: Case, bad: torch.Tensor) -> dict[str, _Told]:
    """Such bounds of one case, by the operand that each is of, with its sign, and such numbers. None where whole slices
    are wrong: which they are says as much."""
    bad, found = bad.cpu(), dict[str, _Told]()
    right = ~bad
    if int(bad.sum()) < LEAST or int(right.sum()) < LEAST:
        return {}
    for axis in range(bad.ndim if bad.ndim > 1 else 0):
        slices = bad.movedim(axis, 0).reshape(bad.shape[axis], -1)
        if bool((slices.all(1) | ~slices.any(1)).all()):
            return {}
    for name, value in _sizes_of(contract, case, bad.shape):
        for text, of in ((f"|{name}|", torch.abs), (name, torch.clone), (f"-{name}", torch.neg)):
            size = of(value)
            least, most = float(size[bad].min()), float(size[right].max())
            if least > most and least > 0 and most != 0:  # right at 0 alone: nothing is beyond anything
                sign, first, last = (">=", least, most) if not text.startswith("-") else ("<=", -least, -most)
                where = f"{text.removeprefix('-')} {sign} {first:.4g}"
                said = f"wrong wherever {where}, and nowhere else (right up to {last:.4g})"
                found[text] = _Told(name, said, partial(_is_from, of, least), True)
        numbers, others = value[bad].unique(), value[right].unique()
        if len(numbers) <= POINTS and len(others) >= MANY and not bool(torch.isin(numbers, others).any()):
            text = f"{name} is {' or '.join(f'{number:.6g}' for number in numbers.tolist())}"
            said = f"wrong wherever {text}, and nowhere else"
            found.setdefault(text, _Told(name, said, partial(_is_one, numbers), _repeat(value, numbers)))
    return found


def _is_from(of: Callable[[torch.Tensor], torch.Tensor], least: float, value: torch.Tensor) -> torch.Tensor:
    return of(value) >= least


def _is_one(numbers: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.isin(value, numbers)


def _repeat(value: torch.Tensor, numbers: torch.Tensor) -> bool:
    """Whether each of some numbers stands at several places, and all of them at so many that these are not wrong for
    another reason: any places have numbers. An axis along which a value is broadcast has one place."""
    for axis in range(value.ndim):
        if value.shape[axis] and bool((value == value.narrow(axis, 0, 1)).all()):
            value = value.narrow(axis, 0, 1)
    counts = [int((value == number).sum()) for number in numbers.tolist()]
    share = sum(counts) / max(value.numel(), 1)
    return min(counts) > 1 and share ** (sum(counts) - len(counts)) <= BY_CHANCE


def _sizes_of(contract: Contract, case: Case, shape: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """The finite operands of this shape, and the sums of two that have it; not indices and classes, which are no
    sizes."""
    known = {
        name: value
        for name, value in contract.build(case).exact.items()
        if value is not None and contract.operand_dtype(name, case).is_floating_point and bool(value.isfinite().all())
    }
    yield from ((name, value) for name, value in known.items() if value.shape == shape)
    for one, other in itertools.combinations(known, 2):
        if known[one].shape == shape and known[other].shape == shape[-known[other].ndim :]:
            yield f"{one} + {other}", known[one] + known[other]


def _kept(contract: Contract, case: Case, exact: Operands, earlier: Sequence[Case]) -> Iterator[tuple[str, Change]]:
    """An operand of an earlier call in the place of this one's of the same shape, the first and the latest of those."""
    shapes = {name: contract.operand_shape(name, case) for name, value in exact.items() if value is not None}
    for name, shape in shapes.items():
        alike = [o for o in earlier if o.id != case.id and contract.operand_shape(name, o) == shape]
        alike = [o for o in alike if contract.operand_dtype(name, o) is contract.operand_dtype(name, case)]
        for other in dict.fromkeys((*alike[:1], *alike[-1:])):
            kept = contract.build(other).exact[name]
            now = exact[name]
            if kept is not None and now is not None and not torch.equal(kept, now):
                yield f"{name} were that of an earlier call, on {other.id}", _constant(name, kept)


def _constant(name: str, kept: torch.Tensor) -> Change:
    return lambda exact, case: ({**exact, name: kept}, case.param)


def _copied(exact: Operands, got: torch.Tensor, bad: torch.Tensor) -> str | None:
    """The operand whose elements stand where an output is wrong."""
    wrong = got[bad]
    if wrong.unique().numel() < LEAST:
        return None
    for name, value in exact.items():
        if value is not None and value.shape == got.shape and torch.equal(value[bad].to(got.dtype), wrong):
            return name
    return None


def _changes(contract: Contract, case: Case, exact: Operands) -> Iterator[tuple[str, Change]]:
    """What a kernel may take for what, in words, and as a change of the operands and parameters of a case."""
    for name, options in contract.params.items():
        for option in options:
            if not isinstance(option, From) and option != case.param[name]:
                yield f"{name} were {option}, not {case.param[name]}", _other_parameter(name, option)
        given = case.param[name]
        numbers = all(isinstance(option, float) for option in options)
        for usual in USUAL if numbers and any(0 < option < SMALL for option in options) else ():
            if usual not in (*options, given):
                yield f"{name} were {usual:g}, not {given:g}", _other_parameter(name, usual)
        for by in (1, -1) if type(given) is int else ():
            if given + by not in options:
                yield f"{name} were {given + by}, not {given}", _other_parameter(name, given + by)
        sizes = {letter: size for letter, size in case.size.items() if isinstance(size, int)}
        for letter, size in (
            sizes.items() if type(given) is int and 1 < given <= LIKE_SIZES * max(sizes.values()) else ()
        ):
            if size not in (*options, given - 1, given, given + 1):
                yield f"{name} were {size} ({letter}), not {given}", _as_a_size(name, letter)
    for name, operand in contract.operands.items():
        value = exact[name]
        if value is None or not contract.operand_dtype(name, case).is_floating_point:
            continue
        if operand.optional:
            yield f"{name} were not given", _other_operand(name, lambda value: None)
        elif bool(value.any()):
            yield f"{name} were 0", _other_operand(name, torch.zeros_like)
    yield from _counts(contract, case, exact)
    for axis in range(max(value.ndim for value in exact.values() if value is not None)):
        for name, value in exact.items():
            if value is None or value.ndim <= axis or value.shape[axis] < 2:
                continue
            letter = (contract.operand_axes(name, case).split()[axis : axis + 1] or [f"axis {axis}"])[0]
            yield f"{name} were everywhere as at {letter} 0", _other_operand(name, _all_of(axis, 0))
            yield f"each {letter} of {name} were the one before", _other_operand(name, _rolled(axis, 1))
            yield f"each {letter} of {name} were the one after", _other_operand(name, _rolled(axis, -1))
    yield from _together(contract, case, exact)
    yield from _other_order(contract, case, exact)
    yield from _by_another_axis(contract, case, exact)
    yield from _by_another_index(contract, case, exact)
    yield from _begun_again(contract, case, exact)
    for name, options in contract.params.items():
        if any(isinstance(option, float) and option not in (0.0, 1.0) for option in options):
            for letter, size in case.size.items():
                if isinstance(size, int) and size > 1:
                    yield f"{name} were 1/sqrt({letter})", _other_parameter(name, size**-0.5)
    for letter, size in case.size.items():
        for padded in _padded_sizes(size) if isinstance(size, int) else ():
            text = f"{letter} were {padded}, with 0 in the places that are new: padding that counts"
            yield text, _padded(contract, letter, size, padded)


def _counts(contract: Contract, case: Case, exact: Operands) -> Iterator[tuple[str, Change]]:
    """Integers of which a kernel takes no notice: as if each were a size, or they counted from 0."""
    outer = {letter for output in contract.outputs for letter in contract.output_axes(output, case).split()}
    for name, value in exact.items():
        if value is None or contract.operand_dtype(name, case).is_floating_point or not value.ndim:
            continue
        for letter, size in sorted(case.size.items(), key=lambda item: item[0] in outer):
            if isinstance(size, int) and bool((value != size).any()):
                yield f"all {name} were {size} ({letter})", _as_large_as(name, letter)
        for which, one in (("their largest", torch.max), ("the first of them", _first)):
            if bool((value != one(value)).any()):
                yield f"all {name} were {which}", _other_operand(name, partial(_all_as, one))
        yield f"{name} were 0, 1, 2, ...", _other_operand(name, _counted)
        yield f"each of {name} were one more", _other_operand(name, lambda value: value + 1)
        yield f"each of {name} were one less", _other_operand(name, lambda value: value - 1)


def _as_large_as(name: str, letter: str) -> Change:
    def filled(exact: Operands, case: Case) -> tuple[Operands, Mapping[str, Any]]:
        value = exact[name]
        return {**exact, name: None if value is None else torch.full_like(value, case.size[letter])}, case.param

    return filled


def _first(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1)[0]


def _all_as(one: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    return one(value).expand(value.shape).contiguous()


def _counted(value: torch.Tensor) -> torch.Tensor:
    return torch.arange(value.shape[-1], dtype=value.dtype).expand(value.shape).contiguous()


def _together(contract: Contract, case: Case, exact: Operands) -> Iterator[tuple[str, Change]]:
    """All operands along an axis that no output has, each slice of them the one before or after: one index, one off."""
    axes = {name: contract.operand_axes(name, case).split() for name, value in exact.items() if value is not None}
    outer = {letter for output in contract.outputs for letter in contract.output_axes(output, case).split()}
    for letter in dict.fromkeys(letter for letters in axes.values() for letter in letters):
        along = {name: letters.index(letter) for name, letters in axes.items() if letter in letters}
        if letter in outer or letter == "..." or len(along) < 2:
            continue
        for by, which in ((1, "before"), (-1, "after")):
            yield f"each {letter} of {' and '.join(along)} were the one {which}", _all_rolled(along, by)


def _all_rolled(along: Mapping[str, int], by: int) -> Change:
    def rolled(exact: Operands, case: Case) -> tuple[Operands, Mapping[str, Any]]:
        moved = {
            name: value.roll(by, along[name]) for name, value in exact.items() if name in along and value is not None
        }
        return {**exact, **moved}, case.param

    return rolled


def _other_order(contract: Contract, case: Case, exact: Operands) -> Iterator[tuple[str, Change]]:
    """Two operands in each other's place, one in that of another, and an operand in whose memory two axes are taken the
    other way round."""
    given = {name: value for name, value in exact.items() if value is not None}
    for one, other in itertools.combinations(given, 2):
        if given[one].shape == given[other].shape and contract.operand_dtype(one, case).is_floating_point:
            yield f"{one} and {other} were each other", _exchanged(one, other)
    for one, other in itertools.permutations(given, 2):
        dtypes = {contract.operand_dtype(name, case) for name in (one, other)}
        if given[one].shape == given[other].shape and len(dtypes) == 1 and not torch.equal(given[one], given[other]):
            yield f"{one} were {other}", _in_place_of(one, other)
    for name, value in given.items():
        letters = contract.operand_axes(name, case).split()
        for axis in range(value.ndim - 1) if value.ndim == len(letters) and "..." not in letters else ():
            if min(value.shape[axis : axis + 2]) > 1:
                text = f"{letters[axis]} and {letters[axis + 1]} of {name} were the other way round in memory"
                yield text, _other_operand(name, _restored(axis))


def _by_other_strides(contract: Contract, case: Case) -> Iterator[tuple[str, Change]]:
    """Operands read from their memory by the strides of another one, or as if they were packed: each, and all of
    them."""
    placed = {name: one.view for name, one in contract.build(case).placed.items() if one is not None and one.view.ndim}
    strided = [name for name, view in placed.items() if not view.is_contiguous()]
    for name in strided:
        yield f"{name} were packed, whatever its strides", _restrided(contract, {name: None})
    if len(strided) > 1:
        yield (
            f"{' and '.join(strided)} were packed, whatever their strides",
            _restrided(contract, dict.fromkeys(strided)),
        )
    for one, other in itertools.permutations(placed, 2):
        own, theirs = placed[one], placed[other]
        if own.ndim != theirs.ndim:
            continue
        if any(n > 1 and a != b for n, a, b in zip(own.shape, own.stride(), theirs.stride(), strict=True)):
            yield f"{one} had the strides of {other}", _restrided(contract, {one: other})


def _restrided(contract: Contract, strides_of: Mapping[str, str | None]) -> Change:
    """Operands by the strides of others, or of packed ones, as far as these stay in what they lie in."""

    def change(exact: Operands, case: Case) -> tuple[Operands, Mapping[str, Any]]:
        placed = contract.build(case).placed
        read: Operands = {}
        for name, of in strides_of.items():
            own, other = placed[name], placed[name if of is None else of]
            if own is None or other is None:
                raise LookupError("not given")
            view = own.view
            strides = torch.empty(view.shape, device="meta").stride() if of is None else other.view.stride()
            last = view.storage_offset() + sum((n - 1) * s for n, s in zip(view.shape, strides, strict=True) if n)
            if last >= own.buffer.numel() // view.element_size():
                raise LookupError("beyond its memory")
            read[name] = view.as_strided(view.shape, strides).double()
        return {**exact, **read}, case.param

    return change


def _by_another_axis(contract: Contract, case: Case, exact: Operands) -> Iterator[tuple[str, Change]]:
    """A vector along the last axis of an output that is indexed along the axis before it."""
    for axes in {contract.output_axes(output, case) for output in contract.outputs}:
        letters = axes.split()
        rows = case.size.get(letters[-2]) if len(letters) > 1 else None
        if not isinstance(rows, int) or rows < 2:
            continue
        for name, value in exact.items():
            if value is not None and contract.operand_axes(name, case) == letters[-1]:
                text = f"{name} were indexed by {letters[-2]}, not by {letters[-1]}"
                yield text, _other_operand(name, _indexed_by(rows))


def _by_another_index(contract: Contract, case: Case, exact: Operands) -> Iterator[tuple[str, Change]]:
    """All vectors along an axis indexed by a quotient or remainder of their index."""
    vectors: dict[str, list[str]] = {}
    for name, value in exact.items():
        letter = contract.operand_axes(name, case)
        if value is not None and value.ndim == 1 and contract.operand_dtype(name, case).is_floating_point:
            vectors.setdefault(letter, []).append(name)
    counts = {name: value for name, value in case.param.items() if type(value) is int}
    for letter, names in vectors.items():
        size = case.size.get(letter)
        by: dict[str, Callable[[Case], int]] = {str(tile): partial(_tile, tile) for tile in (32, 64, 128, 256)}
        for name, count in counts.items():
            by |= {name: partial(_parameter, name)}
            if isinstance(size, int) and count > 0:
                by |= {f"({letter}/{name})": partial(_share, letter, name)}
        for text, number in by.items():
            if not isinstance(size, int) or not 0 < number(case) < size:
                continue
            shown = " and ".join(names)
            if number(case) > 1:
                yield f"{shown} were indexed by {letter} // {text}", _gathered(names, number, torch.floor_divide)
            yield f"{shown} were indexed by {letter} % {text}", _gathered(names, number, torch.remainder)


def _tile(tile: int, case: Case) -> int:
    return tile


def _parameter(name: str, case: Case) -> int:
    return int(case.param[name])


def _share(letter: str, name: str, case: Case) -> int:
    return int(case.size[letter]) // int(case.param[name])


def _begun_again(contract: Contract, case: Case, exact: Operands) -> Iterator[tuple[str, Change]]:
    """An operand whose slices along an axis that no output has are those of the first tile again and again: a pointer
    that is not moved on."""
    outer = {letter for output in contract.outputs for letter in contract.output_axes(output, case).split()}
    for name, value in exact.items():
        letters = contract.operand_axes(name, case).split()
        if value is None or value.ndim != len(letters) or not contract.operand_dtype(name, case).is_floating_point:
            continue
        for axis, letter in enumerate(letters):
            for tile in (8, 16, 32, 64, 128, 256) if letter not in outer and letter != "..." else ():
                if tile < value.shape[axis]:
                    text = f"{letter} of {name} began again with each tile of {tile}"
                    yield text, _other_operand(name, _tiled(axis, tile))


def _tiled(axis: int, tile: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: value.index_select(axis, torch.arange(value.shape[axis]) % tile)


def _gathered(
    names: Sequence[str], number: Callable[[Case], int], index: Callable[[torch.Tensor, int], torch.Tensor]
) -> Change:
    """Vectors at other indices, which follow from their own and from a number of the case."""

    def gathered(exact: Operands, case: Case) -> tuple[Operands, Mapping[str, Any]]:
        by = number(case)
        moved = {n: v[index(torch.arange(len(v)), by)] for n, v in exact.items() if n in names and v is not None}
        return {**exact, **moved}, case.param

    return gathered


def _indexed_by(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: value[torch.arange(size) % len(value), None]


def _in_place_of(one: str, other: str) -> Change:
    return lambda exact, case: ({**exact, one: exact[other]}, case.param)


def _exchanged(one: str, other: str) -> Change:
    return lambda exact, case: ({**exact, one: exact[other], other: exact[one]}, case.param)


def _restored(axis: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What is read where a contiguous tensor's axes `axis` and `axis` + 1 are taken to be swapped in memory."""

    def change(value: torch.Tensor) -> torch.Tensor:
        shape = list(value.shape)
        shape[axis], shape[axis + 1] = shape[axis + 1], shape[axis]
        return value.reshape(shape).transpose(axis, axis + 1).contiguous()

    return change


def _padded_sizes(size: int) -> list[int]:
    """Whole tiles, and the power of two, that hold so many elements and more."""
    sizes = {-(-size // tile) * tile for tile in (8, 16, 32, 64, 128)} | {1 << (size - 1).bit_length()}
    return sorted(sizes - {size}) if size > 1 else []


def _padded(contract: Contract, letter: str, size: int, padded: int) -> Change:
    """All operands of floating point with 0 beyond their `size` along an axis."""

    def longer(name: str, value: torch.Tensor | None, case: Case) -> torch.Tensor | None:
        letters = contract.operand_axes(name, case).split()
        if value is None or letter not in letters or not contract.operand_dtype(name, case).is_floating_point:
            return value
        at = letters.index(letter)
        zeros = value.new_zeros([padded - size if axis == at else n for axis, n in enumerate(value.shape)])
        return torch.cat([value, zeros], at)

    return lambda exact, case: ({name: longer(name, value, case) for name, value in exact.items()}, case.param)


def _other_parameter(name: str, option: Any) -> Change:
    return lambda exact, case: (exact, {**case.param, name: option})


def _as_a_size(name: str, letter: str) -> Change:
    return lambda exact, case: (exact, {**case.param, name: case.size[letter]})


def _other_operand(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Change:
    return lambda exact, case: ({**exact, name: change(exact[name])}, case.param)  # type: ignore[arg-type]


def _rolled(axis: int, by: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: value.roll(by, axis)


def _answer(
    contract: Contract, case: Case, output: str, change: Change, given: Operands | None = None
) -> Expected | None:
    """An output's answer after a change, of the case's operands or of others, `given`; None where it gives none."""
    try:
        exact, params = change(contract.build(case).exact if given is None else given, case)
        theirs = contract.expect(exact, params, dtype=case.torch_dtype, compute=None)[output]
    except Exception:  # a contract's mathematics need not take every operand and parameter
        return None
    shape = contract.output_shape(output, case)
    if theirs is None or theirs.answer.ndim != len(shape) or tuple(theirs.answer.shape) == tuple(shape):
        return theirs
    parts = [(_cut(terms, shape), _cut(condition, shape)) for terms, condition in theirs.parts]
    rest = {"rounding": _cut(theirs.rounding, shape), "extra": _cut(theirs.extra, shape)}
    return replace(
        theirs, answer=_cut(theirs.answer, shape), parts=parts, alternatives=[], excused=None, otherwise=None, **rest
    )


def _cut(value: Any, shape: Sequence[int]) -> Any:
    """A tensor without what lies beyond a shape."""
    if not isinstance(value, torch.Tensor) or value.ndim != len(shape):
        return value
    for axis, size in enumerate(shape):
        value = value.narrow(axis, 0, min(size, value.shape[axis]))
    return value


def _off(answer: Expected, got: torch.Tensor, case: Case) -> torch.Tensor | None:
    """Where an output is not an answer: all False where it is, None where their shapes differ."""
    if answer.answer.shape != got.shape:
        return None
    verdict = compare.compare(got, replace(answer, drift=float("inf")), case.torch_dtype)
    return torch.zeros(got.shape, dtype=torch.bool) if verdict.bad is None else verdict.bad.cpu()


Where = tuple[int, torch.Tensor] | tuple[()]  # an axis and which of its slices; () for all of an output


def _explained(answer: Expected, got: torch.Tensor, bad: torch.Tensor, case: Case) -> Where | None:
    """Where an output is this answer: everywhere, or in all slices along an axis that hold wrong elements. Slices of
    next to nothing are the wrong elements over again."""
    off = _off(answer, got, case)
    if off is None or bool((off & bad).any()):
        return None
    if not bool(off.any()):
        return ()
    for axis in range(got.ndim):
        if got.numel() < LEAST * got.shape[axis]:
            continue
        wrong = bad.movedim(axis, 0).reshape(got.shape[axis], -1).any(1)
        if not bool(wrong.all()) and not bool(off.movedim(axis, 0)[wrong].any()):
            return axis, wrong
    return None


def _explains(
    contract: Contract, case: Case, output: str, change: Change, got: torch.Tensor, bad: torch.Tensor
) -> bool:
    """Whether a change explains where another output is wrong."""
    theirs = _answer(contract, case, output, change)
    return theirs is not None and _explained(theirs, got.cpu(), bad.cpu(), case) is not None


def _of_unused(
    contract: Contract, case: Case, output: str, change: Change, got: torch.Tensor, bad: torch.Tensor
) -> bool:
    """Whether a change explains numbers by elements that nobody may use: the kernel would have met NaN there."""
    if not bool(got[bad].isfinite().all()):
        return False
    inputs = contract.build(case)
    unused = {
        name: placed.view.isnan() & (value == 0)
        for name, value in inputs.exact.items()
        if value is not None and (placed := inputs.placed[name]) is not None
    }

    def given_by(number: float, change: Change) -> torch.Tensor | None:
        filled = {name: inputs.exact[name].masked_fill(at, number) for name, at in unused.items()}  # type: ignore[union-attr]
        answer = _answer(contract, case, output, change, {**inputs.exact, **filled})
        return None if answer is None or answer.answer.shape != got.shape else answer.answer[bad]

    if not any(bool(at.any()) for at in unused.values()):
        return False
    zeros, ones, nan = (given_by(number, change) for number in (0.0, 1.0, math.nan))
    unread = given_by(math.nan, _as_it_is)
    if zeros is None or ones is None or nan is None or unread is None:
        return False
    return not torch.equal(zeros, ones) or bool((nan.isnan() & ~unread.isnan()).any())


def _as_it_is(exact: Operands, case: Case) -> tuple[Operands, Mapping[str, Any]]:
    return exact, case.param


def alike(contract: Contract, case: Case, one: str, other: str) -> bool:
    """Whether two outputs are of the same rows: the axes of one begin with those of the other."""
    axes = sorted((contract.output_axes(output, case).split() for output in (one, other)), key=len)
    return axes[1][: len(axes[0])] == axes[0]


def _contradicted(contract: Contract, case: Case, output: str, change: Change, beside: Beside) -> bool:
    """Whether a change gives another output of the same rows, which is wrong too, neither as it is nor as it has to
    be."""
    right = contract.expected(contract.build(case))
    for name, (got, bad) in beside.items():
        if not alike(contract, case, output, name) or _explains(contract, case, name, change, got, bad):
            continue
        theirs, answer = _answer(contract, case, name, change), right[name]
        if theirs is None or answer is None or answer.answer.shape != got.shape:
            return True
        off = _off(theirs, answer.answer, case)
        if off is None or bool(off[bad.cpu()].any()):
            return True
    return False


def _apart(theirs: Expected, right: Expected | None, bad: torch.Tensor, case: Case) -> bool:
    """Whether an answer is so far from the right one where an output is wrong that its budget tells them apart."""
    if right is None or right.answer.shape != bad.shape:
        return False
    off = _off(theirs, right.answer.cpu(), case)
    return off is not None and off[bad].double().mean().item() >= APART


def _holds(
    contract: Contract,
    case: Case,
    output: str,
    change: Change,
    where: Where,
    values: Mapping[str, Any] | None,
    few: bool,
) -> bool:
    """Whether a change explains what the kernel gives on another case too, and would show there. Where there is nothing
    to compare, what explains all of an output is not refuted, unless that is but a `few` elements."""
    got = None if values is None else values.get(output)
    if not isinstance(got, torch.Tensor):
        return not where and not few
    got = got.cpu()
    theirs = _answer(contract, case, output, change)
    right = contract.expected(contract.build(case))[output]
    off, shows = (None if answer is None else _off(answer, got, case) for answer in (theirs, right))
    if off is None or shows is None:
        return False
    if where:
        off, shows = (mask.movedim(where[0], 0)[where[1]] for mask in (off, shows))
    return not bool(off.any()) and bool(shows.any())


def _refuted(contract: Contract, case: Case, output: str, change: Change, values: Mapping[str, Any] | None) -> bool:
    """Whether the kernel is wrong on another case too, and not as a change has it."""
    given = given_on(contract, case, output, lambda same: values)
    if given is None or not bool(given.bad.any()):
        return False
    theirs = _answer(contract, case, output, change)
    return theirs is None or _explained(theirs, given.got, given.bad, case) is None


def told_apart(
    contract: Contract, case: Case, output: str, changes: Mapping[str, Change], call: Call
) -> Mapping[str, Change]:
    """Of several changes, those that explain what the kernel gives in other sizes too, where it is wrong there."""
    tried = 0
    for size in contract.sizes:
        other = replace(
            plain_case(contract, case.dtype, next(iter(contract.values)), case.seed, size), params=case.params
        )
        if len(changes) < 2 or tried == OTHER_SIZES:
            break
        if other.sizes == case.sizes or not other.filled or not contract.valid(other) or contract.work(other) > LITTLE:
            continue
        got = (call(other) or {}).get(output)
        right = contract.expected(contract.build(other))[output]
        if not isinstance(got, torch.Tensor) or right is None or got.shape != right.answer.shape:
            continue
        bad = compare.compare(got, right, case.torch_dtype).bad
        if bad is None:
            continue
        tried += 1
        answers = {text: _answer(contract, other, output, change) for text, change in changes.items()}
        changes = {
            text: change
            for text, change in changes.items()
            if (answer := answers[text]) is not None and _explained(answer, got.cpu(), bad.cpu(), other) is not None
        }
    return changes


def _beyond_one(
    contract: Contract, case: Case, output: str, changes: Mapping[str, Change], call: Call
) -> Mapping[str, Change]:
    """Of some changes those that explain what the kernel gives where an axis of one element has two, as far as it is
    wrong there: along such an axis many changes are one."""
    for letter, size in case.size.items():
        if size != 1 or not changes:
            continue
        other = replace(case, sizes=tuple((name, 2 if name == letter else n) for name, n in case.sizes))
        try:
            given = given_on(contract, other, output, call) if contract.valid(other) else None
        except Exception:  # sizes that do not go together
            continue
        if given is not None and bool(given.bad.any()):
            answers = {text: _answer(contract, other, output, change) for text, change in changes.items()}
            changes = {
                text: changes[text]
                for text, answer in answers.items()
                if answer is not None and _explained(answer, given.got, given.bad, other) is not None
            }
    return changes


def _other_slices(
    contract: Contract, case: Case, output: str, got: torch.Tensor, bad: torch.Tensor, end: float, call: Call
) -> str | None:
    """Which slices of an operand the slices of an output along the same axis read, where those of the wrong ones are
    others than their own, with these values and with others."""
    axes = contract.output_axes(output, case).split()
    for name, value in contract.build(case).exact.items():
        letters = contract.operand_axes(name, case).split()
        for letter in letters:
            if value is None or letter == "..." or letter not in axes or value.ndim != len(letters):
                continue
            until = end
            if _from_power_of_two(bad, axes.index(letter)):
                until = max(end, time.monotonic() + OF_SLICES)
            read = _slices_read(contract, case, output, got, bad, until, name, letter)
            if read is None:
                continue
            other = given_on(contract, again(case), output, call)
            until = max(until, time.monotonic() + OF_SLICES)
            if other is not None:
                read_again = _slices_read(contract, again(case), output, other.got, other.bad, until, name, letter)
                if read_again != read:
                    continue
            shown = [f"{place} that of {there}" for place, there in read.items()]
            of_these = f"{', '.join(shown[:SHOWN])}{', ...' if len(shown) > SHOWN else ''}"
            return f"{letter} read {name} of others: {of_these}"
    return None


def _from_power_of_two(bad: torch.Tensor, axis: int) -> bool:
    """Whether the slices of an axis are wrong from a power of two on: those of a block are read for the ones behind
    it."""
    wrong = bad.movedim(axis, 0).reshape(bad.shape[axis], -1).any(1)
    first = int(wrong.int().argmax())
    return first > 1 and first & (first - 1) == 0 and bool(wrong[first:].all())


def _slices_read(
    contract: Contract,
    case: Case,
    output: str,
    got: torch.Tensor,
    bad: torch.Tensor,
    end: float,
    name: str,
    letter: str,
) -> dict[int, int] | None:
    """Of each slice of an output along an axis that is wrong, the slice of an operand along it that would give it; None
    where one has none or several, or a right one not its own."""
    axis = contract.output_axes(output, case).split().index(letter)
    at, size = contract.operand_axes(name, case).split().index(letter), got.shape[axis]
    wrong = bad.movedim(axis, 0).reshape(size, -1).any(1)
    told = (bad & got.isfinite()).movedim(axis, 0).reshape(size, -1).any(1)  # one infinity is as good as another
    if not 2 < size <= HEADS or int(wrong.sum()) < 2 or not bool(told[wrong].all()):
        return None
    matches = torch.zeros(size, size, dtype=torch.bool)
    for one in range(size):
        answer = _answer(contract, case, output, _other_operand(name, _all_of(at, one)))
        off = None if answer is None else _off(answer, got, case)
        if off is None or time.monotonic() > end:
            return None
        matches[:, one] = ~off.movedim(axis, 0).reshape(size, -1).any(1)
    if not bool((matches[wrong].sum(1) == 1).all()) or not bool(matches.diagonal()[~wrong].all()):
        return None
    return {place: int(matches[place].int().argmax()) for place in wrong.nonzero().flatten().tolist()}


def _all_of(axis: int, one: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda value: value.narrow(axis, one, 1).expand(value.shape).contiguous()


def _other_heads(
    contract: Contract, case: Case, output: str, got: torch.Tensor, bad: torch.Tensor, end: float
) -> str | None:
    """Which heads of keys and values, or of one of them alone, the query heads read, where those of the wrong ones are
    others than their own."""
    axes, size = contract.output_axes(output, case).split(), case.size
    count, heads = size.get("Hkv", 0), size.get("Hq", 0)
    if "Hq" not in axes or not 1 < count <= HEADS or heads % count:
        return None
    of_keys = {
        name: contract.operand_axes(name, case).split().index("Hkv")
        for name in contract.operands
        if "Hkv" in contract.operand_axes(name, case).split()
    }
    wrong = bad.movedim(axes.index("Hq"), 0).reshape(heads, -1).any(1).nonzero().flatten().tolist()
    for names in dict.fromkeys([tuple(of_keys), *((name,) for name in of_keys)]):
        matches = _heads_read(contract, case, output, got, {name: of_keys[name] for name in names}, end)
        if matches is None:
            return None
        if len(wrong) == 1 or not bool((matches[wrong].sum(1) == 1).all()):
            continue
        read = {head: int(matches[head].int().argmax()) for head in wrong}
        shown = [f"{head} reads {there}, not {head // (heads // count)}" for head, there in read.items()]
        of = "heads of keys" if len(names) == len(of_keys) else f"heads of {names[0]} alone"
        return f"query heads read other {of}: {', '.join(shown[:SHOWN])}{', ...' if len(shown) > SHOWN else ''}"
    return None


def _heads_read(
    contract: Contract, case: Case, output: str, got: torch.Tensor, of_keys: Mapping[str, int], end: float
) -> torch.Tensor | None:
    """(Hq, Hkv), booleans: whether a query head is as if it read a head of some operands, `of_keys` with the axis of
    their heads. None where that cannot be told."""
    axis = contract.output_axes(output, case).split().index("Hq")
    heads, count = case.size["Hq"], case.size["Hkv"]
    matches = torch.zeros(heads, count, dtype=torch.bool)
    for head in range(count):

        def one(exact: Operands, case: Case, head: int = head) -> tuple[Operands, Mapping[str, Any]]:
            every = {n: exact[n].narrow(at, head, 1).expand(exact[n].shape).contiguous() for n, at in of_keys.items()}  # type: ignore[union-attr]
            return {**exact, **every}, case.param

        answer = _answer(contract, case, output, one)
        off = None if answer is None else _off(answer, got, case)
        if off is None or time.monotonic() > end:
            return None
        matches[:, head] = ~off.movedim(axis, 0).reshape(heads, -1).any(1)
    return matches
