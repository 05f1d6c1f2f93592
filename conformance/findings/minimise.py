"""A failing trial made smaller while the same check still fails.

Sizes shrink first, then layouts become contiguous, parameters their first values, the dtype float32 and the value
family the simplest; at last the values themselves. Every attempt is judged as the trial was, in a child where one can
be forked.
"""

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings.rerun import rerun
from touchstone.conformance.judging.judgement import Finding
from touchstone.conformance.judging.trials import (
    AsGraph,
    CaseTrial,
    Compiled,
    Int64Index,
    InvalidCall,
    ManyCalls,
    OnStream,
    PropertyTrial,
    Trial,
    in_turn,
)
from touchstone.conformance.spec.contract import Case, Contract

LITERAL = 64  # elements of an operand that a script spells out
QUIET_SECONDS = 5.0  # between lines of progress


@dataclass(frozen=True)
class SubjectWithContract(Subject):
    """A subject judged against a contract of its own: one whose values were replaced."""

    given: Contract | None = None

    @property
    def contract(self) -> Contract:
        return self.given if self.given is not None else registry.contract(self.op)


@dataclass
class Minimal:
    """The smallest failing trial found. `made` says how operands are made, as an expression of torch; others are
    drawn."""

    subject: SubjectWithContract
    trial: Trial
    finding: Finding
    made: dict[str, str] = field(default_factory=dict)
    tried: int = 0


def minimise(
    subject: Subject,
    trial: Trial,
    finding: Finding,
    *,
    seconds: float = 60.0,
    tell: Callable[[str], None] | None = None,
) -> Minimal:
    """Shrink `trial` for about `seconds` while it gives a failure like `finding`: the same check, the same error
    raised.

    `tell` is given lines of progress (None: they go to stderr).
    """
    fields = {name: getattr(subject, name) for name in subject.__dataclass_fields__}
    search = _Search(
        finding, time.monotonic() + seconds, tell or (lambda line: print(line, file=sys.stderr, flush=True))
    )
    least = Minimal(SubjectWithContract(**fields), trial, finding)
    match trial:
        case InvalidCall():
            pass
        case Compiled():
            raise ValueError(f"--minimise: {trial.id} says what does not compile: there is nothing to make smaller")
        case Int64Index():
            search.tell(f"minimise: {trial.id} is left as it is: it takes an output of more than 2^31 elements")
        case CaseTrial() | PropertyTrial() | ManyCalls() | OnStream() | AsGraph():
            _shrink_trial(least, search)
            if isinstance(least.trial, CaseTrial):
                _shrink_values(least, search)
        case _:
            assert_never(trial)
    least.tried = search.tried
    return least


class _Search:
    """Judges attempts until time is up, and says how it goes."""

    def __init__(self, finding: Finding, end: float, tell: Callable[[str], None]):
        self.finding = finding
        self.end, self.tell, self.tried, self.told = end, tell, 0, time.monotonic()

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

    def fails(self, subject: Subject, trial: Trial) -> Finding | None:
        """The failure like the first one that `trial` gives, or None."""
        self.tried += 1
        if time.monotonic() - self.told > QUIET_SECONDS:
            self.told = time.monotonic()
            self.tell(f"minimise: {self.tried} tried, {max(0, self.end - self.told):.0f} s left, now {trial.id}")
        try:
            subject.contract.expected(subject.contract.build(trial.case), subject.compute)
        except Exception:  # sizes that do not go together
            return None
        outcome = rerun(subject, trial, self.finding.check)
        found = [f for f in outcome.findings if _alike(f, self.finding)]
        return found[0] if found else None


def _alike(one: Finding, other: Finding) -> bool:
    """The same check failed, on the same output or operand, or by the same type of error."""
    return (one.check, one.about, one.raised) == (other.check, other.about, other.raised)


def _shrink_trial(least: Minimal, search: _Search) -> None:
    seen = {least.trial.case.id}
    if not isinstance(least.trial, CaseTrial):
        plain = CaseTrial(least.trial.case, watched=True)
        found = search.fails(least.subject, plain)
        if found:
            least.trial, least.finding = plain, found
    moved = True
    while moved and not search.over:
        moved = False
        for case in simpler(least.subject.contract, least.trial.case):
            if search.over:
                return
            if case.id in seen or not least.subject.contract.valid(case):
                continue
            seen.add(case.id)
            turned = isinstance(least.trial, ManyCalls) and least.trial.in_turn
            trial = in_turn(least.subject.contract, case) if turned else replace(least.trial, case=case)
            found = search.fails(least.subject, trial)
            if found:
                least.trial, least.finding, moved = trial, found, True
                break


def simpler(contract: Contract, case: Case) -> Iterator[Case]:
    """Cases one step simpler than `case`, the boldest first. Not all of them are valid."""
    for sizes in smaller(case.size):
        yield replace(case, sizes=tuple(sizes.items()))
    for name, layout in case.layouts:
        plain = contract.operands[name].layouts[0]
        if layout != plain:
            yield replace(case, layouts=tuple((n, plain if n == name else old) for n, old in case.layouts))
    for name, option in case.params:
        first = contract.params[name][0]
        if option != first:
            yield replace(case, params=tuple((n, first if n == name else old) for n, old in case.params))
    if case.dtype != "float32" and "float32" in contract.dtypes:
        yield replace(case, dtype="float32")
    families = list(contract.values)
    for family in families[: families.index(case.values)] if case.values in families else families:
        yield replace(case, values=family)


def smaller(size: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each letter smaller, down to 1, by much before by little; then two letters together, which can be coupled."""
    for name, value in size.items():
        if isinstance(value, tuple):
            for position, n in enumerate(value):
                for m in _less(n):
                    yield {**size, name: (*value[:position], m, *value[position + 1 :])}
        else:
            for m in _less(value):
                yield {**size, name: m}
    letters = [name for name, value in size.items() if isinstance(value, int) and value > 1]
    for one, other in itertools.combinations(letters, 2):
        yield {**size, one: max(1, size[one] // 2), other: max(1, size[other] // 2)}
        yield {**size, one: size[one] - 1, other: size[other] - 1}


def _less(n: int) -> Iterator[int]:
    step = n - 1
    while step >= 1:
        yield n - step
        step //= 2


def _shrink_values(least: Minimal, search: _Search) -> None:
    """Replace operands one by one by formulas; accepted where the kernel still fails and a right one does not."""
    contract, case = registry.contract(least.subject.op), least.trial.case
    inputs = contract.build(case)
    drawn = {n: inputs.exact[n] for n, operand in contract.operands.items() if not operand.derived}
    right = next(
        (
            p
            for p in registry.planted(contract.name)
            if p.is_known_good and p.backend is None and case.dtype in p.dtypes
        ),
        None,
    )
    for name, value in list(drawn.items()):
        if value is None or not value.numel():
            continue
        for code in formulas(value):
            if search.over:
                return
            attempt = {**drawn, name: evaluate(code).to(torch.float64)}
            given = replace(least.subject, given=with_values(contract, case, attempt))
            found = search.fails(given, least.trial)
            if found is None or (
                right is not None and search.fails(replace(given, fn=right.make(), own=False), least.trial)
            ):
                continue
            drawn, least.subject, least.finding = attempt, given, found
            least.made[name] = code
            break


def with_values(contract: Contract, case: Case, drawn: Mapping[str, torch.Tensor | None]) -> Contract:
    """The contract with `drawn` as the case's family; nothing has to be bit-equal, since the family no longer sees to
    it."""
    return replace(contract, values={**contract.values, case.values: lambda draw: dict(drawn)}, exact={})


def formulas(value: torch.Tensor) -> Iterator[str]:
    """Expressions of torch that give simpler values of the same shape, the simplest first."""
    shape = ", ".join(map(str, value.shape))
    whole = f"({shape})" if value.ndim != 1 else f"({shape},)"
    yield f"torch.zeros{whole}"
    yield f"torch.ones{whole}"
    few = value.numel() <= LITERAL
    integers = f"(torch.arange({value.numel()}) % 7 - 3.0).reshape{whole}"
    yield literal(evaluate(integers)) if few else integers
    seeded = f"torch.randn({whole}, generator=torch.Generator().manual_seed(0))"
    if few:
        yield literal(value.round())
        yield literal((value * 16).round() / 16)
        return
    yield seeded
    usable = value[torch.isfinite(value)]
    if usable.numel() > 1:
        yield f"{usable.std().item():.2g} * {seeded} + {usable.mean().item():.3g}"
        yield f"torch.linspace({usable.min().item():.3g}, {usable.max().item():.3g}, {value.numel()}).reshape{whole}"


def evaluate(code: str) -> torch.Tensor:
    return eval(code, {"torch": torch, "inf": math.inf, "nan": math.nan})


def literal(value: torch.Tensor) -> str:
    """The values spelled out; integers without their point."""

    def spell(part: Any) -> str:
        if isinstance(part, list):
            return f"[{', '.join(map(spell, part))}]"
        return str(int(part)) + "." if math.isfinite(part) and part == int(part) and abs(part) < 1e6 else repr(part)

    return f"torch.tensor({spell(value.to(torch.float64).tolist())})"
