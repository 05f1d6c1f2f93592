"""The result of judging one kernel: the object that `check` returns."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from touchstone.conformance.derived.contract import Strength
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging.judgement import (
    DECLINED,
    FAILED,
    INTERRUPTED,
    NOT_RUN,
    PARTIAL,
    PASSED,
    Finding,
    Outcome,
)
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting.console import Table, fraction_text
from touchstone.conformance.reporting.groups import Group, grouped
from touchstone.conformance.reporting.record import Record, capped
from touchstone.conformance.reporting.source import source_of
from touchstone.conformance.spec.budget import COMPUTE
from touchstone.conformance.spec.checks import Requirement
from touchstone.conformance.spec.compare import worst

SHOWN_FINDINGS = 8  # root causes
SHOWN_CALLS = 8
LITTLE = 0.1  # of the trials, or of the elements of the outputs: where less is judged, the verdict says so
RAISED_FINDINGS = 2  # in a message that ends a user's test


class IncorrectKernel(AssertionError):
    """A kernel did not pass; the message says why in a few lines, and `report` holds everything."""

    def __init__(self, report: "Report"):
        super().__init__(report.failure())
        self.report = report


@dataclass(frozen=True)
class Standing:
    """How a kernel stands on one requirement, in trials: those in which it held, failed, was declined, or not run."""

    requirement: Requirement
    held: int
    failed: int
    declined: int
    not_run: int

    @property
    def verdict(self) -> str:
        if self.failed:
            return "fails"
        return "holds" if self.held else NOT_RUN if self.not_run else "not judged"

    @property
    def trials(self) -> str:
        """ "20 of 23, 2 declined"; "-" where no trial was about it."""
        others = [(self.declined, DECLINED), (self.not_run, NOT_RUN)]
        judged = [f"{self.held} of {self.held + self.failed}"] if self.held + self.failed else []
        return ", ".join(judged + [f"{count} {status}" for count, status in others if count]) or "-"


@dataclass(repr=False)
class Report:
    """The outcomes of one kernel's trials. `str(report)` is the tables and the findings, those of one root cause once.

    `require` names the requirements that decide; none stands for all. `kept`: `touchstone replay` knows the findings;
    `elsewhere`: the kernel's file is not under the current folder, which has to be said to `replay`.
    `interrupted`: Ctrl-C came before all trials were run. `lacking`: why the kernel was not called here at all.
    `least_coverage`: what `covered` must be to pass.

    Of a derived contract (docs/any-function.md): `determined`, by output, is the share of elements with a budget below
    1 % of them in float32, and `selftest` counts the wrong versions of the reference that it rejects.
    """

    op: str
    name: str
    target: str
    level: str
    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    planned: int = 0  # cases of the level, before anything was narrowed
    not_run: dict[str, int] = field(default_factory=dict)  # reason -> cases
    instruments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    require: tuple[str, ...] = ()
    kept: bool = False
    elsewhere: bool = False
    interrupted: bool = False
    lacking: str | None = None
    least_coverage: float = 0.0
    surprises: list[str] = field(default_factory=list)  # failures that were expected and did not come
    compute: str | None = None  # the lower precision in which it was judged
    determined: dict[str, float] = field(default_factory=dict)
    selftest: Strength | None = None
    untrusted: bool = False  # and whether as a kernel that nobody has read
    source: dict[str, str | None] = field(default_factory=lambda: {"file": None, "function": None, "sha256": None})

    @property
    def findings(self) -> list[Finding]:
        return [finding for outcome in self.outcomes for finding in outcome.findings]

    @property
    def failures(self) -> list[Finding]:
        """The findings that decide: failures of what is required."""
        return [finding for finding in self.findings if finding.fails(self.require)]

    @property
    def cases(self) -> int:
        """Trials that were judged: run and not declined."""
        return sum(outcome.judged for outcome in self.outcomes)

    @property
    def declined(self) -> int:
        return sum(outcome.status == DECLINED for outcome in self.outcomes)

    @property
    def verdict(self) -> str:
        """ "passed", "failed", "partial" where too little was judged, "interrupted" where nothing had failed by then,
        or "not run": nothing could be judged here, for a reason that is not the kernel's."""
        if self.failures or self.surprises or self.unported is not None:
            return FAILED
        if self.interrupted:
            return INTERRUPTED
        if not self._judged_some():
            not_run = self.lacking or any(outcome.status == NOT_RUN for outcome in self.outcomes)
            return NOT_RUN if not_run else FAILED
        missing = [self.standing[name] for name in self.require if not self.standing[name].held]
        if not missing:
            return PASSED if (self.covered or 0.0) >= self.least_coverage else PARTIAL
        return NOT_RUN if all(each.verdict == NOT_RUN for each in missing) else FAILED

    @property
    def passed(self) -> bool:
        """True when some case was judged, what is required holds, and nothing is left to be ported."""
        return self.verdict == PASSED

    @property
    def standing(self) -> dict[str, Standing]:
        """How the kernel stands on each requirement."""
        return {str(requirement): self._standing(requirement) for requirement in Requirement}

    def _standing(self, requirement: Requirement) -> Standing:
        def failed(outcome: Outcome) -> bool:
            return any(f.fails() and f.requirement == requirement for f in outcome.findings)

        about = Counter(outcome.status for outcome in self.outcomes if requirement in outcome.requirements)
        held = sum(requirement in outcome.held for outcome in self.outcomes)
        return Standing(requirement, held, sum(map(failed, self.outcomes)), about[DECLINED], about[NOT_RUN])

    @property
    def unported(self) -> str | None:
        """Which variant has not been ported yet, and from where, in the words it raised; None where it runs."""
        return next((outcome.reason for outcome in self.outcomes if outcome.unported), None)

    @property
    def covered(self) -> float | None:
        """The share of the trials judged among those it was called on: the others it declined, or they could not be
        run. The contract's single cases do not count where it declined them, nor do trials in which the contract judges
        no element, and neither those in place of declined ones. None where there are none."""
        planned = [outcome for outcome in self.outcomes if outcome.again is None]
        spared = sum(outcome.status == DECLINED and (outcome.single or outcome.blank) for outcome in planned)
        counted = len(planned) - spared
        return sum(outcome.judged for outcome in planned) / counted if counted else None

    @property
    def again(self) -> int:
        """Trials in place of some that were declined, with options that the kernel takes."""
        return sum(outcome.again is not None for outcome in self.outcomes)

    @property
    def reason(self) -> str | None:
        """Why nothing could be judged; None where something was."""
        if self.unported is not None or self.verdict != NOT_RUN:
            return self.unported
        return self.lacking or next(outcome.reason for outcome in self.outcomes if outcome.status == NOT_RUN)

    @property
    def elements(self) -> dict[str, tuple[int, int]]:
        """Of each output: how many elements were compared, and how many of them the contract judges."""
        found: dict[str, tuple[int, int]] = {}
        for outcome in self.outcomes:
            for name, (compared, judged) in outcome.elements.items():
                before = found.get(name, (0, 0))
                found[name] = before[0] + compared, before[1] + judged
        return found

    def _little(self) -> str:
        """ ", but ..." where a kernel passed on next to nothing."""
        trials = self.cases < LITTLE * (len(self.outcomes) - self.again)
        poor = [name for name, (compared, judged) in self.elements.items() if judged < LITTLE * compared]
        if trials or len(poor) == len(self.elements) > 0:
            return ", but next to nothing was judged"
        return f", but next to nothing of {', '.join(poor)} was judged" if poor else ""

    def _judged_some(self) -> bool:
        """Invalid and repeated calls do not count, and empty operands and properties only where no other case was
        selected."""
        cases = [outcome for outcome in self.outcomes if outcome.kind is Kind.CASE]
        filled = [outcome for outcome in cases if Requirement.EMPTY not in outcome.requirements]
        properties = [outcome for outcome in self.outcomes if outcome.kind is Kind.PROPERTY]
        return any(outcome.judged for outcome in filled or cases or properties)

    @property
    def worst(self) -> float | None:
        """The largest error seen, as a fraction of the budget."""
        return worst([fraction for outcome in self.outcomes for fraction in outcome.fractions.values()])

    def worst_of(self, dtype: str) -> float | None:
        return worst([f for outcome in self.outcomes if outcome.dtype == dtype for f in outcome.fractions.values()])

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def reached(self) -> dict[str, int]:
        """Instruments of the probe by the number of trials in which they reached the kernel."""
        return dict(Counter(name for outcome in self.outcomes for name in outcome.instruments))

    @property
    def library(self) -> dict[str, int]:
        """Library calls seen, by the number of trials; allocation, fills and views are not counted."""
        return dict(Counter(name for outcome in self.outcomes for name in outcome.library))

    def table(self) -> Table:
        """Outputs by dtypes: the worst error as a fraction of the budget."""
        outputs = list(dict.fromkeys(name for outcome in self.outcomes for name in outcome.fractions))
        dtypes = list(dict.fromkeys(outcome.dtype for outcome in self.outcomes))
        rows: list[Sequence[str]] = []
        for name in outputs:
            cells = [
                worst([o.fractions[name] for o in self.outcomes if o.dtype == d and name in o.fractions])
                for d in dtypes
            ]
            rows.append([name, *map(fraction_text, cells)])
        title = f"{self.op}: {self.name} on {self.target}, level {self.level}, seed {self.seed} (worst error / budget)"
        return Table(title, ["output", *dtypes], rows)

    def requirements(self) -> Table:
        """How the kernel stands on each requirement."""
        rows: list[Sequence[str]] = [
            [each.requirement, each.verdict, each.trials, each.requirement.about] for each in self.standing.values()
        ]
        return Table("", ["requirement", "verdict", "held", "what it asks"], rows)

    def summary(self) -> str:
        if self.unported is not None:
            return f"FAILED: {self.unported}"
        total = len(self.outcomes) - self.again + sum(self.not_run.values())
        more = f" and on {self.again} in place of declined ones" if self.again else ""
        parts = [f"judged on {self.cases - self.again} of {total} trials{more}"]
        parts += [
            f"{judged} of {compared} elements of {name}"
            for name, (compared, judged) in self.elements.items()
            if judged < compared
        ]
        for status in (DECLINED, NOT_RUN):
            reasons = Counter(_in_a_line(str(o.reason)) for o in self.outcomes if o.status == status)
            if reasons:
                why = f" ({'; '.join(list(reasons)[:3])})" if self.verdict != NOT_RUN or status != NOT_RUN else ""
                parts.append(f"{reasons.total()} {status}{why}")
        parts += [f"{count} {reason}" for reason, count in self.not_run.items() if count]
        return f"{self._verdict_text()}; {', '.join(parts)}"

    def _verdict_text(self) -> str:
        verdict = self.verdict
        if verdict == NOT_RUN:
            return f"NOT RUN: {_in_a_line(str(self.reason))}"
        if verdict == INTERRUPTED:
            return "INTERRUPTED"
        spared = [each for name, each in self.standing.items() if each.failed and name not in self.require]
        beside = [f"{each.requirement} fails in {each.failed} trials" for each in spared] if self.require else []
        also = f" (required: {'; '.join([', '.join(self.require), *beside])})" if self.require else ""
        if verdict == PASSED:
            return f"PASSED{self._little()}{also}"
        if verdict == PARTIAL:
            return f"PARTIAL: coverage {self.covered:.1%}, less than the {self.least_coverage:.1%} asked for{also}"
        failed = sum(any(f.fails(self.require) for f in outcome.findings) for outcome in self.outcomes)
        if failed:
            as_well = f', all right with compute="{self.passes_as}"' if self.passes_as else ""
            return f"FAILED: {failed} trials{as_well}{also}"
        if self.surprises:
            return f"FAILED: {'; '.join(self.surprises)}{also}"
        missing = [name for name in self.require if not self.standing[name].held] if self._judged_some() else []
        return f"FAILED: nothing was judged{' for ' if missing else ''}{', '.join(missing)}{also}"

    @property
    def passes_as(self) -> str | None:
        """The lower precision in which everything that fails would be right; None where there is none."""
        found = [finding.passes_as for finding in self.failures]
        return None if None in found or not found else max(found, key=lambda name: COMPUTE[str(name)])

    def failure(self) -> str:
        """Why the kernel did not pass, in a few lines: the verdict and the first findings, one of each root cause."""
        groups = grouped(self.failures)
        lines = [f"{self.op}: {self.name} on {self.target}: {self.summary()}"]
        lines += [group.text(self.command(group.example)) for group in groups[:RAISED_FINDINGS]]
        return "\n".join(lines + self._more(groups[RAISED_FINDINGS:], "print the report to see them"))

    def command(self, finding: Finding) -> str:
        """What repeats a finding: a command where it is kept, else the call of `check` that meets it again."""
        if self.kept:
            return f"python -m touchstone replay {finding.id}{' --anywhere' if self.elsewhere else ''}"
        outcome = next(outcome for outcome in self.outcomes if finding in outcome.findings)
        narrow = f"dtypes=[{outcome.dtype!r}]"
        if outcome.again is not None:  # it is called where others are declined
            narrow = ""
        elif outcome.kind is Kind.CASE:
            narrow = f"where=lambda case: case.id == {outcome.trial!r}"
        device = self.target.partition("@")[2]
        given = f"device={device!r}, level={self.level!r}, seed={self.seed}{', untrusted=True' * self.untrusted}"
        return f"check({self.op!r}, {self.name}, {', '.join(filter(None, [given, narrow]))})"

    @staticmethod
    def _more(groups: list[Group], where: str) -> list[str]:
        """A line that says how much is not shown."""
        count = sum(len(group.findings) for group in groups)
        return [f"... and {count} more findings of {len(groups)} other causes ({where})"] if groups else []

    def raise_for_failure(self) -> "Report":
        """Raise `IncorrectKernel`, an AssertionError with a short message, unless the kernel passed; else the
        report."""
        if not self.passed:
            __tracebackhide__ = True  # pytest shows the caller's line, not this one
            raise IncorrectKernel(self)
        return self

    def __repr__(self) -> str:
        return f"<Report {self.op}: {self.name} on {self.target}, level {self.level}: {self.summary()}>"

    def __str__(self) -> str:
        if self.unported is not None and not self.cases:
            return "\n".join([self.table().title, *map(_in_a_line, self.notes), self.summary()])
        lines = [self.table().plain()]
        if any(outcome.requirements for outcome in self.outcomes):
            lines.append(self.requirements().plain())
        lines += ["", *map(_in_a_line, self.notes)]
        spared = [f for f in self.findings if f.fails() and not f.fails(self.require)]
        for head, groups in (("", grouped(self.failures)), ("not required: ", grouped(spared))):
            lines += [head + group.text(self.command(group.example)) for group in groups[:SHOWN_FINDINGS]]
            lines += self._more(groups[SHOWN_FINDINGS:], "report.findings, --json")
        notes = grouped(finding for finding in self.findings if finding.severity == "note")
        lines += [f"note: {group.text(self.command(group.example))}" for group in notes[:SHOWN_FINDINGS]]
        if self.library:
            calls = [f"{name} ({count})" for name, count in sorted(self.library.items(), key=lambda item: -item[1])]
            lines.append(
                f"note: calls the library: "
                f"{', '.join(calls[:SHOWN_CALLS])}{', ...' if len(calls) > SHOWN_CALLS else ''}"
            )
        reached = [f"{name} ({count})" for name, count in self.reached.items()]
        if reached or self.instruments:
            lines.append(f"instruments (trials reached): {', '.join([*self.instruments, *reached])}")
        return "\n".join([*lines, self.summary()])

    def to_dict(self) -> dict[str, Any]:
        """One of a record's `reports` (docs/records.md). `to_json` gives the whole record."""
        groups = grouped(self.findings)
        group_of = {id(finding): group.id for group in groups for finding in group.findings}
        return {
            "op": self.op,
            "name": self.name,
            "target": self.target,
            "level": self.level,
            "seed": self.seed,
            "compute": self.compute,
            "source": self.source,
            "verdict": self.verdict,
            "passed": self.passed,
            "interrupted": self.interrupted,
            "reason": capped(self.reason),
            "require": list(self.require),
            "requirements": {
                name: {"verdict": each.verdict, **{k: v for k, v in vars(each).items() if k != "requirement"}}
                for name, each in self.standing.items()
            },
            "worst": self.worst,
            "outputs": self.outputs,
            "coverage": self.coverage(),
            "findings": [
                _finding(finding, outcome.trial, group_of[id(finding)])
                for outcome in self.outcomes
                for finding in outcome.findings
            ],
            "groups": [_group(group) for group in groups],
            "outcomes": [_outcome(outcome) for outcome in self.outcomes],
            "instruments": [*self.instruments, *self.reached],
            "library": self.library,
            "notes": [capped(note) for note in self.notes],
            "surprises": [capped(each) for each in self.surprises],
        }

    @property
    def outputs(self) -> dict[str, float]:
        """Each output's largest error, as a fraction of its budget."""
        found: dict[str, list[float]] = {}
        for outcome in self.outcomes:
            for name, fraction in outcome.fractions.items():
                found.setdefault(name, []).append(fraction)
        largest = {name: worst(each) for name, each in found.items()}
        return {name: fraction for name, fraction in largest.items() if fraction is not None}

    def coverage(self) -> dict[str, Any]:
        """How many of the trials were judged, passed, failed, declined, or not run, and the reasons why not.

        `fraction` is `covered`, and `least` what it must be.
        """
        count = Counter(outcome.status for outcome in self.outcomes)
        reasons: dict[str, Counter[str]] = {DECLINED: Counter(), NOT_RUN: Counter(self.not_run)}
        for outcome in self.outcomes:
            if outcome.status in reasons:
                reasons[outcome.status][str(capped(outcome.reason))] += 1
        return {
            "trials": len(self.outcomes) + sum(self.not_run.values()),
            "judged": self.cases,
            "again": self.again,
            "passed": count[PASSED],
            "failed": count[FAILED],
            "declined": count[DECLINED],
            "not_run": reasons[NOT_RUN].total(),
            "fraction": self.covered,
            "least": self.least_coverage,
            "reasons": {"declined": dict(reasons[DECLINED]), "not_run": dict(reasons[NOT_RUN])},
        }

    def to_json(self) -> str:
        """The record of this report alone (docs/records.md)."""
        return Record.of_report(self).text()


def _in_a_line(text: str) -> str:
    return " ".join(text.splitlines())


def _finding(finding: Finding, trial: str, group: str) -> dict[str, Any]:
    made = asdict(finding) | {"trial": trial, "group": group}
    del made["case"]  # the trial's id and the seed, in words
    return made | {name: capped(made[name]) for name in ("message", "diagnosis")}


def _group(group: Group) -> dict[str, Any]:
    example = group.example
    about = {name: getattr(example, name) for name in ("severity", "check", "requirement", "about")}
    return {"id": group.id, "count": len(group.findings), **about, "example": example.id}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    made = outcome.to_dict()
    del made["findings"], made["displaced"]
    return made | {"reason": capped(outcome.reason)}


def empty(subject: Subject, level: str, seed: int) -> Report:
    """The report of a kernel of which nothing is known yet but its source, as it lies there now."""
    made = Report(subject.op, subject.name, subject.target, level, seed, compute=subject.compute)
    made.untrusted = subject.untrusted
    made.source = source_of(subject)
    return made
