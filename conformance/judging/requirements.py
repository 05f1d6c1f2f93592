"""Which requirements a trial is about, and which one a failure is held against.

A check that looks at one thing decides by itself: a wrong dtype is the contract's. Wrong values on a strided operand
can be wrong strides or wrong values: the same case with contiguous operands tells. Those on operands with NaN or
infinities, which a family draws or which are where no answer depends on them, are told apart by numbers in their place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from touchstone.backends import overflow
from touchstone.conformance.judging import causes, special
from touchstone.conformance.judging.call import trouble_on
from touchstone.conformance.judging.judgement import PASSED, Finding, Judgement
from touchstone.conformance.judging.special import Special
from touchstone.conformance.judging.trials import (
    AsGraph,
    CaseTrial,
    Compiled,
    Int64Index,
    InvalidCall,
    ManyCalls,
    OnStream,
    Trial,
)
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check, Requirement
from touchstone.conformance.spec.contract import Case, Contract, Inputs

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
OTHER_STREAM = (
    "right in the same call on the default stream: the kernel does not run on torch.cuda.current_stream(), on which "
    "its inputs come and its result is read; other libraries than torch have a current stream of their own"
)
WHATEVER_IS_REQUIRED = (Check.CONTEXT, Check.CANARY, Check.HONESTY, Check.COMPILES)


def note_inputs(j: Judgement, inputs: Inputs) -> None:
    """Keep which operands of a case hold NaN or infinities, while they are at hand."""
    j.special[inputs.case] = special.of_inputs(j.contract, inputs)


def note_call(j: Judgement, arguments: Mapping[str, Any]) -> None:
    """Keep what a call of a property shows beyond the trial's case: NaN or infinities in operands that have none there,
    or an operand in strides that is contiguous there."""
    if special.of_arguments(arguments) - _special(j, j.case).operands:
        j.further.append(Requirement.SPECIAL)
    elif j.case.contiguous and any(isinstance(a, torch.Tensor) and not a.is_contiguous() for a in arguments.values()):
        j.further.append(Requirement.LAYOUTS)
    else:
        j.further.append(None)


def _special(j: Judgement, case: Case) -> Special:
    known = j.special.get(case)
    return special.of_case(j.contract, case) if known is None else known


def asked(contract: Contract, trial: Trial, holds: Special | None = None) -> list[Requirement]:
    """What a trial is to show, the plainest first. `holds`: where its case has NaN and infinities, if that is known."""
    match trial:
        case InvalidCall() | OnStream() | AsGraph() | Compiled():
            return [Requirement.CONTRACT]
        case ManyCalls():
            return [Requirement.DETERMINISM]
        case Int64Index():
            return [Requirement.OFFSETS]
        case _:
            return of_case(contract, trial.case, holds)


def of_case(contract: Contract, case: Case, holds: Special | None = None) -> list[Requirement]:
    """What a call on a case shows, the plainest first. `holds` as in `asked`.

    NaN in elements that no answer depends on shows what those that are drawn show, and leaves the answer to numbers.
    """
    if not case.filled:
        return [Requirement.EMPTY]
    others = {layout for _, layout in case.layouts if layout not in PLAIN}
    if any(layout in layouts.FAR_LAYOUTS for layout in others):
        return [Requirement.OFFSETS]
    holds = special.of_case(contract, case) if holds is None else holds
    found = [] if holds.drawn else [Requirement.VALUES]
    found += [Requirement.SPECIAL] if holds.operands else []
    return [*found, Requirement.LAYOUTS] if others else found


def settle(j: Judgement, alone: bool = True) -> None:
    """Write into the outcome what the trial was about, what of that held, and what each failure is held against.

    With `alone` the kernel may be called again on a plainer case; a kernel that ends its process may not. A trial in
    which the contract judges no element counts as declined.
    """
    outcome = j.outcome
    # of a trial that has been settled in another process what it was about is known
    about = [*map(Requirement, outcome.requirements)] or _asked(j)
    if outcome.status == PASSED and outcome.blank:
        j.decline(BLANK)
    outcome.requirements = [str(each) for each in about]
    if not outcome.judged:
        return
    blamed: dict[Case, Requirement] = {}

    def blame(case: Case) -> Requirement:
        if case not in blamed:
            blamed[case] = _blamed(j, case) if alone and j.subject.diagnosed else _shown_last(j, case)
        return blamed[case]

    for finding in outcome.findings:
        if finding.requirement is None:
            finding.requirement = _requirement(j, finding, about, blame)
            against = finding.check, finding.requirement
            if isinstance(j.trial, OnStream) and against == (Check.VALUES, Requirement.CONTRACT):
                finding.diagnosis = OTHER_STREAM
    failed = {finding.requirement for finding in outcome.findings if finding.severity == "failure"}
    held = [*about, *_besides(j)] if outcome.status == PASSED else _held_all_the_same(j, about, failed)
    outcome.held = [str(each) for each in dict.fromkeys(held) if each not in failed]


def _asked(j: Judgement) -> list[Requirement]:
    """What a trial was about, and so were the further calls of a property."""
    about = asked(j.contract, j.trial, j.special.get(j.case))
    return list(dict.fromkeys([*about, *(each for each in j.further if each is not None)]))


def _shown_last(j: Judgement, case: Case) -> Requirement:
    """What a failure on a case is held against without further calls: what it shows last, but for NaN in elements that
    no answer depends on."""
    about = of_case(j.contract, case, j.special.get(case))
    return next(each for each in reversed(about) if each is not Requirement.SPECIAL or each is about[0])


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
    if check.startswith(Check.PROPERTY):  # the case's own values were right
        return next((each for each in j.further[-1:] if each is not None), about[0])
    if overflow.OF_ACCESS in finding.message or (about == [Requirement.OFFSETS] and _raised_by_overflow(j, finding)):
        return Requirement.OFFSETS  # whatever else is wrong with the same call
    if isinstance(j.trial, ManyCalls | Int64Index) or finding.severity == "note":
        return about[0]
    if isinstance(j.trial, OnStream | AsGraph) and _right(j, j.case):
        return Requirement.CONTRACT
    return blame(j.case)


def _raised_by_overflow(j: Judgement, finding: Finding) -> bool:
    """Whether a call raised in which integers of 32 bits overflow, as far as the backend sees that."""
    return finding.check == Check.RAISED and any(overflow.WRAPS in what for what in j.undefined.values())


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
            other_values = case != first and case.params == first.params
            of_values = finding.requirement is Requirement.VALUES and other_values
            if of_values and not causes.is_wrong_anew(j, case, finding.about):
                finding.requirement = Requirement.DETERMINISM  # it keeps what an earlier call left


def _blamed(j: Judgement, case: Case) -> Requirement:
    """What a failure on a case is held against: the plainest requirement that a plainer case fails too, as far as the
    kernel can be called again."""
    if j.executor.spent:
        return _shown_last(j, case)
    holds = _special(j, case)
    about = of_case(j.contract, case, holds)
    if about[-1] in (Requirement.LAYOUTS, Requirement.OFFSETS):
        plain = replace(case.plainly_laid(case.absent), drawn_as=case.drawn_as or case.id)  # the same values
        if _right(j, plain):
            is_far = about[-1] is Requirement.OFFSETS
            return about[-1] if not is_far or _right(j, _nearer(case)) else Requirement.LAYOUTS
        case, about = plain, of_case(j.contract, plain, holds)
    given = replace(case.plainly_laid(()), drawn_as=case.drawn_as or case.id)
    right = bool(case.absent) and _right(j, given) and not _declines(j, given)
    if right and not _takes_none(j, case):
        return Requirement.CONTRACT  # None is not taken for an operand that may be None
    if about == [Requirement.EMPTY]:
        full = replace(plain_case(j.contract, case.dtype, next(iter(j.contract.values)), case.seed), params=case.params)
        return about[0] if not j.contract.valid(full) or _right(j, full) else Requirement.VALUES
    if Requirement.SPECIAL not in about:
        return about[0]
    finite = replace(case, values=next(iter(j.contract.values))) if holds.drawn else case
    return Requirement.SPECIAL if _right(j, finite, numbers=True) else Requirement.VALUES


def _nearer(case: Case) -> Case:
    """The case, with the operands that are far along an axis near: who does not take an operand's strides is wrong
    there too."""
    near = tuple((name, layouts.nearer(layout)) for name, layout in case.layouts)
    return replace(case, layouts=near, drawn_as=case.drawn_as or case.id)


def _takes_none(j: Judgement, case: Case) -> bool:
    """Whether a plain call, with each parameter at its first value, is right where the operands that are None here are
    None."""
    contract = j.contract
    first = plain_case(contract, case.dtype, next(iter(contract.values)), case.seed)
    plain = first.plainly_laid(case.absent)
    return contract.valid(plain) and _right(j, plain) and not _declines(j, plain)


def _right(j: Judgement, case: Case, numbers: bool = False) -> bool:
    """Whether a call on a case gives the right answer, or none because the kernel declines; with `numbers` in place of
    NaN and infinities."""
    inputs = j.contract.build(case, j.executor.device)
    answers = j.contract.expected(inputs, j.subject.compute) if numbers and special.take_away(inputs) else None
    _, found = trouble_on(j, inputs, conspicuous=j.conspicuous, answers=answers)
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
    """What held in a trial that failed for another reason: the values where they were compared and right, or where a
    call without NaN and infinities had them right; the contract where outputs came back."""
    compared = bool(j.outcome.fractions)
    right = compared and not any(f.check in (Check.VALUES, Check.RAISED) for f in j.outcome.findings)
    values = about if right and isinstance(j.trial, CaseTrial) else []
    if Requirement.SPECIAL in failed:
        values = [each for each in about if each is Requirement.VALUES]
    return [*values, *([Requirement.CONTRACT] if compared else [])]
