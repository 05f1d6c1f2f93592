"""What a wrong kernel computes in the place of one step of the reference.

The op's reference runs in float64 with one of its operations changed: left out, with the other sign, in another base,
without its last partial tile, rounded early. A change that gives what the kernel gives, in all outputs, where it is
wrong and where it is right, with the values of this case and with others, is named by the expression of the
reference that it stands in.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import torch

from touchstone.conformance.judging import reading
from touchstone.conformance.judging.alterations import of_operations, of_words
from touchstone.conformance.judging.operations import Alteration, Run, outputs_of
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import EPS, Expected, finite
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Case, Contract

WORK_LIMIT = 2e7  # work of a case above which only what explains a small one is tried
NAMED, FOUND = 2, 8  # most changes that are named, and that are compared before
MUCH = 3e5  # work of a case before which a small one is explained
AS_NEAR = 2.0  # times the error that the best of them leaves, up to which others are as good
EXPLAINS = 0.95  # of the wrong elements
CLOSER = 0.5  # of the error, at most, is what a change leaves of it
SHARE = 1e-3  # of what a change moves an element by, that may be left unexplained


def altered(
    contract: Contract,
    case: Case,
    output: str,
    got: Mapping[str, torch.Tensor],
    bad: torch.Tensor,
    seconds: float,
    call: reading.Call = reading.nothing,
) -> str | None:
    """The changes of the reference that explain an output's wrong elements, `bad`, and refute nothing of what the
    kernel gives; for so many seconds at most."""
    run = of_op(contract)
    others = reading.others(contract, case, bad)
    work = contract.work(case)
    if run is None or work > reading.WORK_LIMIT or not reading.tells(got[output], bad, call):
        return None
    start = time.monotonic()
    judged = contract.expected(contract.build(case))
    given = _Given(judged, got, case, output)
    exact = contract.build(case).exact
    plain = Run()
    unaltered = outputs_of(contract, run, exact, case, plain)
    if unaltered is None or not _right(unaltered, judged, case, output):
        return None
    further = cache(call)
    plainest = replace(
        plain_case(contract, case.dtype, next(iter(contract.values)), case.seed + 1, case.size), params=case.params
    )
    likely = _explain_a_small_case(contract, run, case, output, call, start + seconds / 2) if work > MUCH else set()
    alterations = itertools.chain(of_words(contract, case), of_operations(plain))
    if likely or work > WORK_LIMIT:
        every = list(alterations)
        rest = [a for a in every if a.text not in likely] if work <= WORK_LIMIT else []
        alterations = itertools.chain((a for a in every if a.text in likely), rest)
    found: dict[str, torch.Tensor] = {}
    for alteration in alterations:
        if time.monotonic() > start + seconds or len(found) > FOUND:
            break
        theirs = outputs_of(contract, run, exact, case, Run(alteration))
        if theirs is None or not given.explained(theirs):
            continue
        if any(torch.equal(theirs[output], other) for other in found.values()):
            continue  # the same numbers in other words
        values = [further(other) for other in others]
        if len(others) > 1 and None in values:
            return None  # too few elements by themselves
        if not all(_holds(contract, run, alteration, o, output, v) for o, v in zip(others, values, strict=True)):
            continue
        if not _refuted(contract, run, alteration, plainest, output, further(plainest)):
            found[alteration.text] = theirs[output]
    errors = {text: given.error(theirs) for text, theirs in found.items()}
    found = {text: theirs for text, theirs in found.items() if errors[text] <= AS_NEAR * min(errors.values())}
    return f"as if {'; or as if '.join(found)}" if 0 < len(found) <= NAMED else None


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
) -> bool:
    """Whether a change explains what the kernel gives on another case too, `values`; None: it cannot be called."""
    if values is None:
        return True
    inputs = contract.build(case)
    theirs = outputs_of(contract, run, inputs.exact, case, Run(alteration))
    return theirs is not None and _Given(contract.expected(inputs), values, case, output).explained(theirs)


def _refuted(
    contract: Contract,
    run: Callable[..., Any],
    alteration: Alteration,
    case: Case,
    output: str,
    values: Mapping[str, Any] | None,
) -> bool:
    """Whether a kernel is wrong on a plain case as well, and not as a change has it: where values are equal along an
    axis, many changes are one."""
    inputs = contract.build(case)
    expected = contract.expected(inputs)
    if values is None or expected[output] is None or _Given(expected, values, case, output).bad is None:
        return False
    return not _holds(contract, run, alteration, case, output, values)


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

    def explained(self, theirs: Mapping[str, torch.Tensor]) -> bool:
        """Whether a changed reference gives what the kernel does: this output where it is wrong and where it is right,
        closer by far than the right answer, and the other outputs."""
        if self.right is None or self.bad is None or not self._closer(theirs, self.right, self.bad):
            return False
        for name, right in self.judged.items():
            if right is None or name not in self.got or name not in theirs:
                continue
            off = _off(theirs[name], right, self.got[name], self.case)
            if off is None:
                return False
            bad = self.bad if name == self.output else torch.ones_like(off)
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
