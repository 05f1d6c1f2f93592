"""The result of judging one kernel: the object that `check` returns."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging.judgement import DECLINED, FAILED, Finding, Outcome
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting.console import Table, fraction_text
from touchstone.conformance.reporting.provenance import versions
from touchstone.conformance.spec.compare import worst

SHOWN_FINDINGS = 8
SHOWN_CALLS = 8
RAISED_FINDINGS = 2  # in a message that ends a user's test


class IncorrectKernel(AssertionError):
    """A kernel did not pass; the message says why in a few lines, and `report` holds everything."""

    def __init__(self, report: "Report"):
        super().__init__(report.failure())
        self.report = report


@dataclass(repr=False)
class Report:
    """The outcomes of one kernel's trials. `str(report)` is a table and the findings."""

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

    @property
    def findings(self) -> list[Finding]:
        return [finding for outcome in self.outcomes for finding in outcome.findings]

    @property
    def cases(self) -> int:
        """Trials that were judged: run and not declined."""
        return sum(outcome.status != DECLINED for outcome in self.outcomes)

    @property
    def declined(self) -> int:
        return sum(outcome.status == DECLINED for outcome in self.outcomes)

    @property
    def passed(self) -> bool:
        """True when some case was judged, no finding is a failure, and nothing is left to be ported."""
        failed = any(finding.severity == "failure" for finding in self.findings)
        return self._judged_some() and not failed and self.unported is None

    @property
    def unported(self) -> str | None:
        """Which variant has not been ported yet, and from where, in the words it raised; None where it runs."""
        return next((outcome.reason for outcome in self.outcomes if outcome.unported), None)

    def _judged_some(self) -> bool:
        """Invalid and repeated calls do not count, and properties only where no case was selected."""
        cases = [outcome for outcome in self.outcomes if outcome.kind is Kind.CASE]
        properties = [outcome for outcome in self.outcomes if outcome.kind is Kind.PROPERTY]
        return any(outcome.status != DECLINED for outcome in cases or properties)

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

    def summary(self) -> str:
        if self.unported is not None:
            return f"FAILED: {self.unported}"
        total = self.cases + self.declined + sum(self.not_run.values())
        parts = [f"judged on {self.cases} of {total} trials"]
        if self.declined:
            reasons = dict.fromkeys(o.reason for o in self.outcomes if o.status == DECLINED)
            parts.append(f"{self.declined} declined ({'; '.join(list(map(str, reasons))[:3])})")
        parts += [f"{count} {reason}" for reason, count in self.not_run.items() if count]
        failed = sum(outcome.status == FAILED for outcome in self.outcomes)
        verdict = "PASSED" if self.passed else f"FAILED: {failed} trials" if failed else "FAILED: nothing was judged"
        return f"{verdict}; {', '.join(parts)}"

    def failure(self) -> str:
        """Why the kernel did not pass, in a few lines: the verdict and the first findings."""
        failures = [finding for finding in self.findings if finding.severity == "failure"]
        lines = [f"{self.op}: {self.name} on {self.target}: {self.summary()}"]
        lines += [str(finding) for finding in failures[:RAISED_FINDINGS]]
        if len(failures) > RAISED_FINDINGS:
            lines.append(f"... and {len(failures) - RAISED_FINDINGS} more findings (print the report to see them)")
        return "\n".join(lines)

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
            return "\n".join([self.table().title, *self.notes, self.summary()])
        lines = [self.table().plain(), "", *self.notes]
        failures = [f for f in self.findings if f.severity == "failure"]
        lines += [str(finding) for finding in failures[:SHOWN_FINDINGS]]
        if len(failures) > SHOWN_FINDINGS:
            lines.append(f"... and {len(failures) - SHOWN_FINDINGS} more findings (report.findings, --json)")
        lines += [f"note: {finding}" for finding in self.findings if finding.severity == "note"][:SHOWN_FINDINGS]
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
        return {
            "op": self.op,
            "name": self.name,
            "target": self.target,
            "level": self.level,
            "seed": self.seed,
            "passed": self.passed,
            "worst": self.worst,
            "cases": self.cases,
            "declined": self.declined,
            "not_run": self.not_run,
            "instruments": [*self.instruments, *self.reached],
            "library": self.library,
            "notes": self.notes,
            "versions": versions(),
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)


def empty(subject: Subject, level: str, seed: int) -> Report:
    return Report(subject.op, subject.name, subject.target, level, seed)
