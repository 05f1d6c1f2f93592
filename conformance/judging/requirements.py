"""Which requirements a trial is about, and which one a failure is held against.

A check that looks at one thing decides by itself: a wrong dtype is the contract's. Wrong values on a strided operand
can be wrong strides or wrong values: the same case with contiguous operands tells.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from touchstone.conformance.judging.call import trouble_on
from touchstone.conformance.judging.judgement import PASSED, Finding, Judgement
from touchstone.conformance.judging.trials import (
    AsGraph,
    CaseTrial,
    Int64Index,
    InvalidCall,
    ManyCalls,
    OnStream,
    Trial,
)
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check, Requirement
from touchstone.conformance.spec.contract import Case, Contract

PLAIN = ("contiguous", "none")  # "none": the operand is None
OF_CONTRACT = (
    Check.DTYPE,
    Check.DEVICE,
    Check.STRIDES,
    Check.ALIAS,
    Check.INPUTS,
    Check.STATE,
    Check.LIBRARY,
    Check.INVALID,
    Check.HELD,
    Check.GRAPH,
)
BLANK = "no element of its outputs can be judged: near a discontinuity, or NaN and infinities may stand otherwise"
WHATEVER_IS_REQUIRED = (Check.CONTEXT, Check.CANARY, Check.HONESTY)


def asked(contract: Contract, trial: Trial) -> list[Requirement]:
    """What a trial is to show, the plainest first."""
    match trial:
        case InvalidCall() | OnStream() | AsGraph():
            return [Requirement.CONTRACT]
        case ManyCalls():
            return [Requirement.DETERMINISM]
        case Int64Index():
            return [Requirement.OFFSETS]
        case _:
            return of_case(contract, trial.case)


def of_case(contract: Contract, case: Case) -> list[Requirement]:
    """What a call on a case shows, the plainest first."""
    if not case.filled:
        return [Requirement.EMPTY]
    first = Requirement.SPECIAL if _special(contract, case.dtype, case.values) else Requirement.VALUES
    others = {layout for _, layout in case.layouts if layout not in PLAIN}
    if any(layout in layouts.FAR_LAYOUTS for layout in others):
        return [Requirement.OFFSETS]
    return [first, Requirement.LAYOUTS] if others else [first]


@lru_cache(maxsize=1024)
def _special(contract: Contract, dtype: str, values: str) -> bool:
    """Whether a family of values has NaN or infinities in this dtype; those of single cases have none."""
    if values not in contract.values:
        return False
    sizes = sorted(contract.sizes, key=lambda size: contract.work(plain_case(contract, dtype, values, size=size)))
    plain = (plain_case(contract, dtype, values, size=size) for size in [contract.sizes[0], *sizes])
    case = next((case for case in plain if case.filled and contract.valid(case)), None)
    if case is None:
        return False
    drawn = contract.build(case).exact.values()
    return not all(bool(torch.isfinite(tensor).all()) for tensor in drawn if tensor is not None)


def settle(j: Judgement, alone: bool = True) -> None:
    """Write into the outcome what the trial was about, what of that held, and what each failure is held against.

    With `alone` the kernel may be called again on a plainer case; a kernel that ends its process may not. A trial in
    which the contract judges no element counts as declined.
    """
    outcome, about = j.outcome, asked(j.contract, j.trial)
    if outcome.status == PASSED and outcome.blank:
        j.decline(BLANK)
    outcome.requirements = [str(each) for each in about]
    if not outcome.judged:
        return
    blamed: dict[Case, Requirement] = {}

    def blame(case: Case) -> Requirement:
        if case not in blamed:
            blamed[case] = _blamed(j, case) if alone and j.subject.diagnosed else of_case(j.contract, case)[-1]
        return blamed[case]

    for finding in outcome.findings:
        if finding.requirement is None:
            finding.requirement = _requirement(j, finding, about, blame)
    failed = {finding.requirement for finding in outcome.findings if finding.severity == "failure"}
    held = [*about, *_besides(j)] if outcome.status == PASSED else _held_all_the_same(j, about, failed)
    outcome.held = [str(each) for each in dict.fromkeys(held) if each not in failed]


def _requirement(
    j: Judgement, finding: Finding, about: list[Requirement], blame: Callable[[Case], Requirement]
) -> Requirement | None:
    check = finding.check
    if check in WHATEVER_IS_REQUIRED:
        return None
    if check in OF_CONTRACT or isinstance(j.trial, InvalidCall):
        return Requirement.CONTRACT
    if check.startswith(Check.UNDER) or (check == Check.REPEAT and finding.error is None):
        return Requirement.DETERMINISM
    if isinstance(j.trial, ManyCalls | Int64Index) or finding.severity == "note":
        return about[0]
    if isinstance(j.trial, OnStream | AsGraph) and _right(j, j.case):
        return Requirement.CONTRACT
    return blame(j.case)


def of_call(j: Judgement, findings: Sequence[Finding], case: Case, first: Case) -> None:
    """Write what the findings of one of many calls are held against, of which the `first` was right; its case alone
    tells whether earlier calls matter."""
    for finding in findings:
        if finding.check in WHATEVER_IS_REQUIRED:
            continue
        if finding.check in OF_CONTRACT:
            finding.requirement = Requirement.CONTRACT
        elif not j.subject.diagnosed or (case != first and _right(j, case)):
            finding.requirement = Requirement.DETERMINISM
        else:
            finding.requirement = _blamed(j, case)
            if finding.requirement is Requirement.VALUES and case != first and case.params == first.params:
                finding.requirement = Requirement.DETERMINISM  # it keeps what an earlier call left


def _blamed(j: Judgement, case: Case) -> Requirement:
    """What a failure on a case is held against: the plainest requirement that a plainer case fails too."""
    about = of_case(j.contract, case)
    if about[-1] in (Requirement.LAYOUTS, Requirement.OFFSETS):
        contiguous = tuple((name, kind if kind in PLAIN else PLAIN[0]) for name, kind in case.layouts)
        plain = replace(case, layouts=contiguous, drawn_as=case.drawn_as or case.id)  # the same values
        if _right(j, plain):
            return about[-1]
        case, about = plain, of_case(j.contract, plain)
    given = replace(case, layouts=tuple((name, PLAIN[0] if kind == "none" else kind) for name, kind in case.layouts))
    given = replace(given, drawn_as=case.drawn_as or case.id)
    if given.layouts != case.layouts and _right(j, given) and not _declines(j, given):
        return Requirement.CONTRACT  # None is not taken for an operand that may be None
    if about[0] is Requirement.SPECIAL and not _right(j, replace(case, values=next(iter(j.contract.values)))):
        return Requirement.VALUES
    return about[0]


def _right(j: Judgement, case: Case) -> bool:
    """Whether a call on a case gives the right answer, or none because the kernel declines."""
    _, found = trouble_on(j, j.contract.build(case, j.executor.device), conspicuous=j.conspicuous)
    return found is None


def _declines(j: Judgement, case: Case) -> bool:
    """Whether a call on a case gives no answer."""
    seen, _ = trouble_on(j, j.contract.build(case, j.executor.device), conspicuous=j.conspicuous)
    return not seen.returned


def _besides(j: Judgement) -> list[Requirement]:
    """What a trial that passed has shown besides: outputs as the contract has them, the same in a second call."""
    repeated = "repeat" in j.outcome.instruments and j.subject.deterministic
    return [Requirement.DETERMINISM, Requirement.CONTRACT] if repeated else [Requirement.CONTRACT]


def _held_all_the_same(j: Judgement, about: list[Requirement], failed: set[str | None]) -> list[Requirement]:
    """What held in a trial that failed for another reason: the values where they were compared and right, the
    contract where outputs came back."""
    compared = bool(j.outcome.fractions)
    right = compared and not any(f.check in (Check.VALUES, Check.RAISED) for f in j.outcome.findings)
    values = about if right and isinstance(j.trial, CaseTrial) else []
    return [*values, *([Requirement.CONTRACT] if compared else [])]
