"""What a wrong kernel computes in the place of one step of the reference.

The op's reference runs in float64 with one of its operations changed: left out, with the other sign, in another base,
without its last partial tile, rounded early. A change that gives what the kernel gives, in all outputs, where it is
wrong and where it is right, with the values of this case and with others, is named by the expression of the
reference that it stands in.
"""

import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from importlib import import_module
from typing import Any, NamedTuple

import torch

from touchstone.conformance.judging import reading
from touchstone.conformance.judging.alterations import (
    Number,
    of_arguments,
    of_numbers,
    of_operations,
    of_weights,
    of_words,
)
from touchstone.conformance.judging.operations import Alteration, Run, outputs_of
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import EPS, Expected, budget, finite
from touchstone.conformance.spec.contract import Case, Contract

WORK_LIMIT = 2e7  # work of a case above which only what explains a small one is tried
PASSED_TRIED, CHEAP = 8, 1e6  # cases in which the kernel is right, of so little work each, in which a change is tried
NOT_ELSEWHERE = "though not in all cases that pass"  # of a change that is wrong there
OTHER_SIZES = 3  # on which what explains one is tried, where they are wrong too
NAMED, FOUND = 2, 8  # most changes that are named, and that are compared before
AS_NEAR = 2.0  # times the error that the best of them leaves, up to which others are as good
EXPLAINS = 0.95  # of the wrong elements
FILLED = 0.5  # of a part of an output, at least, is wrong where a change is one of that part alone
CLOSER = 0.5  # of the error, at most, is what a change leaves of it
STEPS, NUDGE = 8, 1e-4  # towards such a number, and by what share of it the slope is taken
MOST, STILL = 2.0, 1e-10  # times as large, and by what share, a step takes a factor of an argument, and is the last
SHARE = 1e-3  # of what a change moves an element by, that may be left unexplained


class Part(NamedTuple):
    """Slices of an output along an axis, from the first to the last."""

    axis: int
    first: int
    last: int

    def of(self, value: torch.Tensor) -> torch.Tensor:
        return value.narrow(self.axis, self.first, self.last + 1 - self.first)


def _stands_for_nothing(answer: torch.Tensor) -> torch.Tensor:
    """Where an answer is that of nothing: an empty sum, or the logarithm or maximum of none."""
    return (answer == 0) | (answer == -math.inf) | answer.isnan()


class Search:
    """A search for a change of an op's reference that explains what a kernel gives, of which one output is wrong where
    `bad` is, and refutes nothing of what it gives by `call` on other cases. There is nothing to say where there is no
    reference, or too much work, or too few elements are wrong."""

    def __init__(
        self,
        contract: Contract,
        case: Case,
        output: str,
        got: Mapping[str, torch.Tensor],
        bad: torch.Tensor,
        call: reading.Call = reading.nothing,
        passed: Sequence[Case] = (),
    ) -> None:
        self.contract, self.case, self.output, self.further = contract, case, output, cache(call)
        self.passed = passed
        run, self.work, self.possible = of_op(contract), contract.work(case), False
        if run is None or self.work > reading.WORK_LIMIT or not reading.tells(got[output], bad, call):
            return
        meant = contract.expected(contract.build(case))[output]
        if meant is not None and bool((got[output].cpu().isnan() | _stands_for_nothing(meant.answer)).all()):
            return  # what makes everything NaN is much the same
        self.run, self.others = run, reading.others(contract, case, bad)
        self.exact, self.plain = contract.build(case).exact, Run()
        self.given = _Given(contract.expected(contract.build(case)), got, case, output)
        unaltered = outputs_of(contract, run, self.exact, case, self.plain)
        self.possible = unaltered is not None and _right(unaltered, self.given.judged, case, output)

    def alteration(self, seconds: float) -> str | None:
        """The changes of operations and words, in words; for so many seconds at most."""
        start = time.monotonic()
        if not self.possible:
            return None
        likely: set[str] = set()
        if self.work > reading.MUCH:
            likely = _explain_a_small_case(
                self.contract, self.run, self.case, self.output, self.further, start + seconds / 2
            )
        alterations = itertools.chain(of_words(self.contract, self.case), of_operations(self.plain))
        if likely or self.work > WORK_LIMIT:
            every = list(alterations)
            rest = [a for a in every if a.text not in likely] if self.work <= WORK_LIMIT else []
            alterations = itertools.chain((a for a in every if a.text in likely), rest)
        part = self.given.part()
        found: dict[Part | None, dict[str, torch.Tensor]] = {None: {}, part: {}}
        spoils = set[str]()
        for alteration in alterations:
            if time.monotonic() > start + seconds or len(found[None]) > FOUND:
                break
            theirs = self.outputs(alteration)
            if theirs is None:
                continue
            where = None if part is None or self.given.explained(theirs) else part
            if not self.given.explained(theirs, where):
                continue
            if any(torch.equal(theirs[self.output], other) for other in found[where].values()):
                continue  # the same numbers in other words
            if self.untold():
                return None
            if not self.stands(alteration, where):
                continue
            text = f"{alteration.text}{self.shown(where)}"
            if self.spoils(alteration, self.passed_alike):
                if where is None and not self.is_constant(alteration):
                    continue  # what is wrong in some cases alone has to be so in all that are wrong
                spoils.add(text)
            found[where][text] = theirs[self.output]
        explains = found[None] or found[part]
        said = self.said({text: theirs for text, theirs in explains.items() if text not in spoils})
        return said or ((said := self.said(explains)) and f"{said}, {NOT_ELSEWHERE}")

    def shown(self, part: Part | None) -> str:
        """The part of the output in which a change is found, in words."""
        if part is None:
            return ""
        axes = self.contract.output_axes(self.output, self.case).split()
        axis = axes[part.axis] if len(axes) == self.given.got[self.output].ndim else f"axis {part.axis}"
        return f" in {axis} {part.first}{f'..{part.last}' if part.last > part.first else ''}"

    def number(self, seconds: float) -> str | None:
        """The number in whose place another one, which is fitted, explains it, in words; for so many seconds at
        most."""
        start = time.monotonic()
        if not self.possible or self.work > WORK_LIMIT or self.untold():
            return None
        for numbers in (itertools.chain(of_numbers(self.plain), of_weights(self.plain)), of_arguments(self.plain)):
            if found := self._with_numbers(numbers, start + seconds):
                return self.said(found)
        return None

    def _with_numbers(self, numbers: Iterator[Number], end: float) -> dict[str, torch.Tensor]:
        """The numbers in whose place another one explains it, in words, with what the output is then."""
        found: dict[str, torch.Tensor] = {}
        for number in itertools.takewhile(lambda _: time.monotonic() <= end, numbers):
            for alteration in number.alterations(self.fitted(number)):
                theirs = self.outputs(alteration)
                if theirs is not None and self.given.explained(theirs):
                    if self.stands(alteration) and self.is_constant(alteration):
                        found[alteration.text] = theirs[self.output]
                    break
        return found

    def outputs(self, alteration: Alteration) -> dict[str, torch.Tensor] | None:
        """What the changed reference gives; None where it fails."""
        return outputs_of(self.contract, self.run, self.exact, self.case, Run(alteration))

    def untold(self) -> bool:
        """Whether too few elements are wrong to tell anything by themselves, and further calls give nothing."""
        return len(self.others) > 1 and any(self.further(other) is None for other in self.others)

    def stands(self, alteration: Alteration, part: Part | None = None) -> bool:
        """Whether a change explains what the kernel gives with other values too, and on a plain case, with plain
        values and with other options where that is wrong."""
        contract, case, output = self.contract, self.case, self.output
        if not all(_holds(contract, self.run, alteration, o, output, self.further(o), part) for o in self.others):
            return False
        others = [other for other in reading.refuting(contract, case) if other not in self.others]
        if any(_refuted(contract, self.run, alteration, o, output, self.further(o), part) for o in others):
            return False
        plain = [other for other in reading.plainly(contract, case) if self.is_right(other)]
        return not self.spoils(alteration, plain)

    def is_right(self, other: Case) -> bool:
        """Whether the output is right on another case."""
        given = reading.given_on(self.contract, other, self.output, self.further)
        return given is not None and not bool(given.bad.any())

    @cached_property
    def passed_alike(self) -> list[Case]:
        """A few of the cases of this dtype in which the kernel was right."""
        alike = [one for one in self.passed if one.dtype == self.case.dtype and one.filled]
        return [one for one in alike if self.contract.work(one) <= CHEAP][-PASSED_TRIED:]

    def spoils(self, alteration: Alteration, right_in: Sequence[Case]) -> bool:
        """Whether a change makes the output wrong in one of some cases in which the kernel is right."""
        for other in right_in:
            inputs = self.contract.build(other)
            right = self.contract.expected(inputs)[self.output]
            theirs = outputs_of(self.contract, self.run, inputs.exact, other, Run(alteration))
            got = None if theirs is None else theirs.get(self.output)
            if right is None or got is None or got.shape != right.answer.shape:
                continue
            if not compare.compare(got.to(right.dtype or other.torch_dtype), right, other.torch_dtype).ok:
                return True
        return False

    def is_constant(self, alteration: Alteration) -> bool:
        """Whether a change explains other sizes too, where they are wrong: of a count, say, each has its own."""
        return all(
            _holds(self.contract, self.run, alteration, other, self.output, self.further(other), None)
            for other in self.wrong_sizes
        )

    @cached_property
    def wrong_sizes(self) -> list[Case]:
        """Plain cases of other sizes on which the kernel is wrong too."""
        found: list[Case] = []
        for other in reading.of_little_work(self.contract, self.case, least=0)[::-1]:
            if other.sizes == self.case.sizes or len(found) == OTHER_SIZES:
                continue
            values = self.further(other)
            right = self.contract.expected(self.contract.build(other))
            given = _Given(right, values, other, self.output) if values is not None else None
            if given is not None and given.bad is not None and bool(given.bad.any()):
                found.append(other)
        return found

    def fitted(self, number: Number) -> float | None:
        """The number that comes closest in the place of another, by steps of Newton's method for the sum of the squares
        of what is left, in units of the budget; None where they come to nothing."""
        right, at = self.given.right, number.value
        if right is None or self.given.bad is None:
            return None
        value, bad = self.given.got[self.output].cpu().double(), self.given.bad
        unit = budget(right, self.case.torch_dtype).expand(value.shape)[bad]

        def left(number_there: float) -> torch.Tensor | None:
            theirs = self.outputs(number.alteration(number_there))
            if theirs is None or theirs[self.output].shape != value.shape:
                return None
            off = (theirs[self.output] - value)[bad] / unit
            return torch.where(off.isfinite(), off, 0.0)

        for _ in range(STEPS):
            here, there = left(at), left(at * (1 + NUDGE))
            if here is None or there is None:
                return None
            slope = (there - here) / (at * NUDGE)
            steepness = slope.square().sum().item()
            if not steepness > 0 or not math.isfinite(steepness):
                return None
            before, at = at, at - (slope * here).sum().item() / steepness
            if not math.isfinite(at) or at == 0:
                return None
            if number.of_argument:  # powers of far less are next to nothing, and tell no way back
                at = min(max(at, before / MOST), before * MOST)
            if abs(at - before) <= STILL * abs(before):
                break
        return at

    def said(self, found: Mapping[str, torch.Tensor]) -> str | None:
        """The changes that explain it as well as the best does, in words; None where there are none, or many."""
        errors = {text: self.given.error(theirs) for text, theirs in found.items()}
        near = [text for text, error in errors.items() if error <= AS_NEAR * min(errors.values())]
        if gone := self.unwritten():
            near = [text for text in near if re.search(rf"{gone}\b", text)] or near
        return f"as if {'; or as if '.join(near)}" if 0 < len(near) <= NAMED else None

    def unwritten(self) -> str | None:
        """What is neither summed nor written, in the words of a change, where the last elements of each row are NaN:
        one cause of both."""
        got = self.given.got[self.output].cpu()
        if got.ndim < 1 or self.given.bad is None:
            return None
        there = (got.isnan() & self.given.bad).reshape(-1, got.shape[-1])
        count = int(there.all(0).sum())
        if not 0 < count < there.shape[1] or not bool(there[:, -count:].all()):
            return None
        return f"without the last {count} of {there.shape[1]}"


def _explain_a_small_case(
    contract: Contract, run: Callable[..., Any], case: Case, output: str, call: reading.Call, end: float
) -> set[str]:
    """The changes that explain a plain case of little work, with the parameters of a case of much work: these are
    tried first there."""
    for small in reading.of_little_work(contract, case):
        if (values := call(small)) is None:
            break
        inputs = contract.build(small)
        given, seen = _Given(contract.expected(inputs), values, small, output), Run()
        if given.bad is None or int(given.bad.sum()) < reading.LEAST:
            continue
        if outputs_of(contract, run, inputs.exact, small, seen) is None:
            break
        found = set()
        for alteration in itertools.takewhile(lambda _: time.monotonic() < end, of_operations(seen)):
            theirs = outputs_of(contract, run, inputs.exact, small, Run(alteration))
            if theirs is not None and given.explained(theirs):
                found.add(alteration.text)
        return found
    return set()


def _holds(
    contract: Contract,
    run: Callable[..., Any],
    alteration: Alteration,
    case: Case,
    output: str,
    values: Mapping[str, Any] | None,
    part: Part | None,
) -> bool:
    """Whether a change explains what the kernel gives on another case too, `values`; None: it cannot be called."""
    if values is None:
        return True
    inputs = contract.build(case)
    theirs = outputs_of(contract, run, inputs.exact, case, Run(alteration))
    return theirs is not None and _Given(contract.expected(inputs), values, case, output).explained(theirs, part)


def _refuted(
    contract: Contract,
    run: Callable[..., Any],
    alteration: Alteration,
    case: Case,
    output: str,
    values: Mapping[str, Any] | None,
    part: Part | None,
) -> bool:
    """Whether a kernel is wrong on a plain case as well, and not as a change has it: where values are equal along an
    axis, many changes are one."""
    inputs = contract.build(case)
    expected = contract.expected(inputs)
    if values is None or expected[output] is None or _Given(expected, values, case, output).bad is None:
        return False
    return not _holds(contract, run, alteration, case, output, values, part)


def of_op(contract: Contract) -> Callable[..., Any] | None:
    """The reference of an op in torch; None where it has none."""
    try:
        return getattr(import_module(f"touchstone.reference.{contract.name}"), f"torch_{contract.name}")
    except (ImportError, AttributeError):
        return None


def _right(outputs: Mapping[str, torch.Tensor], judged: Mapping[str, Expected | None], case: Case, name: str) -> bool:
    """Whether the reference by itself gives the judge's answer."""
    right = judged[name]
    if right is None or name not in outputs or outputs[name].shape != right.answer.shape:
        return False
    return compare.compare(
        outputs[name].to(right.dtype or case.torch_dtype), replace(right, drift=1e9), case.torch_dtype
    ).ok


def _off(answer: torch.Tensor, right: Expected, got: Any, case: Case) -> torch.Tensor | None:
    """Where a value is not an answer that takes the place of the right one, whose budget it has."""
    if not isinstance(got, torch.Tensor) or got.shape != answer.shape:
        return None
    moved = finite(answer - right.answer.expand(answer.shape)).abs()
    share = max(SHARE, 2 * EPS[case.torch_dtype]) if answer.numel() >= reading.LEAST else 0.0
    plain = replace(right, alternatives=[], otherwise=None, bitwise=False, exact=False, drift=math.inf)
    other = replace(plain, answer=answer, extra=right.extra + share * moved)
    verdict = compare.compare(got, other, case.torch_dtype)
    return torch.zeros(got.shape, dtype=torch.bool) if verdict.bad is None else verdict.bad.cpu()


class _Given:
    """What a kernel gives on a case, of which one output is wrong, beside what it has to give."""

    def __init__(self, judged: Mapping[str, Expected | None], got: Mapping[str, Any], case: Case, output: str) -> None:
        self.judged, self.got, self.case, self.output = judged, got, case, output
        self.right = judged[output]
        self.bad: torch.Tensor | None = None
        if self.right is not None and isinstance(got.get(output), torch.Tensor):
            bad = compare.compare(got[output], replace(self.right, drift=math.inf), case.torch_dtype).bad
            self.bad = None if bad is None else bad.cpu()

    def part(self) -> Part | None:
        """The part of the output that is wrong, most of it with numbers that say something; None where that is all of
        the output, or several parts."""
        if self.bad is None or not bool(self.bad.any()):
            return None
        wrong = self.got[self.output].cpu()[self.bad]
        if not bool(wrong.isfinite().all()) or bool((wrong == wrong[0]).all()):
            return None
        for axis in range(self.bad.ndim):
            by_slice = self.bad.movedim(axis, 0).flatten(1) if self.bad.ndim > 1 else self.bad[:, None]
            at = by_slice.any(1).nonzero().flatten().tolist()
            if len(at) < len(by_slice) and at[-1] - at[0] + 1 == len(at) and by_slice[at].double().mean() >= FILLED:
                return Part(axis, at[0], at[-1])
        return None

    def explained(self, theirs: Mapping[str, torch.Tensor], part: Part | None = None) -> bool:
        """Whether a changed reference gives what the kernel does: this output where it is wrong and where it is right,
        closer by far than the right answer, and the other outputs. With `part`, this output is right elsewhere."""
        if self.right is None or self.bad is None or not self._closer(theirs, self.right, self.bad):
            return False
        for name, right in self.judged.items():
            if right is None or name not in self.got or name not in theirs:
                continue
            off = _off(theirs[name], right, self.got[name], self.case)
            if off is None:
                return False
            bad = self.bad if name == self.output else torch.ones_like(off)
            if name == self.output and part is not None:
                if int(bad.sum()) > int(part.of(bad).sum()):
                    return False
                off, bad = part.of(off), part.of(bad)
            if off[bad].double().mean().item() > 1 - EXPLAINS or bool(off[~bad].any()):
                return False
        return True

    def error(self, theirs: torch.Tensor) -> float:
        """How far the wrong numbers are from a changed answer, in the mean."""
        if self.bad is None:
            return math.inf
        return finite(self.got[self.output].cpu()[self.bad].double() - theirs[self.bad]).abs().mean().item()

    def _closer(self, theirs: Mapping[str, torch.Tensor], right: Expected, bad: torch.Tensor) -> bool:
        """Whether wrong numbers are closer to the changed answer than to the right one, which is soon seen."""
        if self.output not in theirs or theirs[self.output].shape != bad.shape:
            return False
        value, other = self.got[self.output].cpu()[bad].double(), theirs[self.output][bad]
        answer = right.answer.expand(bad.shape)[bad]
        both = torch.isfinite(value) & torch.isfinite(answer) & torch.isfinite(other)
        closer = ((value - other).abs() <= CLOSER * (value - answer).abs())[both]
        return not bool(both.any()) or closer.double().mean().item() >= EXPLAINS
