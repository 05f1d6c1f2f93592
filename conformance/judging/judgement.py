"""What judging a kernel on one trial gives: findings, gathered in an outcome."""

import textwrap
import zlib
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging.trials import Kind, Trial
from touchstone.conformance.spec.contract import Case, Contract

PASSED, FAILED, DECLINED = "passed", "failed", "declined"
UNPORTED = " is not ported yet: "  # in what a variant raises whose body `touchstone port` left to be written


@dataclass
class Finding:
    """One thing held against a kernel."""

    id: str
    severity: str  # "failure" or "note"
    check: str  # a Check, or the text of one with a name (`Check.of`)
    case: str
    message: str
    error: float | None = None  # multiple of the budget
    diagnosis: str | None = None
    about: str | None = None  # the output or operand
    raised: str | None = None  # the type of the error that the kernel raised

    def __str__(self) -> str:
        text = f"[{self.id}] {self.check}: {self.message}\n    in {self.case}"
        return text if self.diagnosis is None else text + "\n" + textwrap.indent(self.diagnosis, "    ")


@dataclass
class Outcome:
    """What one trial gave."""

    trial: str
    kind: Kind
    dtype: str
    status: str
    fractions: dict[str, float] = field(default_factory=dict)  # output -> worst error over its budget
    findings: list[Finding] = field(default_factory=list)
    reason: str | None = None  # why it was declined
    instruments: list[str] = field(default_factory=list)  # those that reached the kernel
    library: list[str] = field(default_factory=list)  # library calls seen, apart from allocation, fills and views

    @classmethod
    def of(cls, trial: Trial) -> "Outcome":
        """That of a trial in which nothing is found yet."""
        return cls(trial.id, trial.kind, trial.case.dtype, PASSED)

    @property
    def unported(self) -> bool:
        """Whether it was declined because the variant's port has not been written."""
        return self.status == DECLINED and UNPORTED in (self.reason or "")

    def to_dict(self) -> dict[str, Any]:
        """The outcome in plain types, as JSON and pytest-xdist take it."""
        return asdict(self, dict_factory=_plain)

    @staticmethod
    def from_dict(record: dict[str, Any]) -> "Outcome":
        findings = [Finding(**finding) for finding in record["findings"]]
        return Outcome(**{**record, "kind": Kind(record["kind"]), "findings": findings})


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in pairs}


class Judgement:
    """One kernel on one trial, and what is found: `outcome`. With `debug` exceptions of the kernel are let through."""

    def __init__(self, subject: Subject, trial: Trial, outcome: Outcome | None = None, debug: bool = False):
        self.subject, self.trial, self.debug = subject, trial, debug
        self.outcome = Outcome.of(trial) if outcome is None else outcome

    @property
    def contract(self) -> Contract:
        return self.subject.contract

    @property
    def case(self) -> Case:
        return self.trial.case

    @property
    def passes(self) -> bool:
        """Whether nothing that fails was found so far, and the kernel did not decline."""
        return self.outcome.status == PASSED

    def judges(self, output: str) -> bool:
        """Whether an output is one of those that the kernel is judged on."""
        return self.subject.outputs is None or output in self.subject.outputs

    def again(self, debug: bool) -> "Judgement":
        """The same kernel on the same trial, with nothing found yet."""
        return Judgement(self.subject, self.trial, debug=debug)

    def decline(self, reason: str) -> None:
        self.outcome.status, self.outcome.reason = DECLINED, reason

    def reached(self, *instruments: str) -> None:
        """These instruments have seen the kernel at work."""
        self.outcome.instruments += [name for name in instruments if name not in self.outcome.instruments]

    def find(
        self,
        check: str,
        message: str,
        *,
        error: float | None = None,
        severity: str = "failure",
        about: str | None = None,
        detail: str = "",
        raised: str | None = None,
    ) -> None:
        """Add a finding of a `Check`, `about` an output or operand. A note is added once.

        Its id follows from what was judged, the check, `about` and `detail`, which tells apart what else is found about
        the same; not from the message.
        """
        text = f"{self.trial.id} (seed {self.case.seed})"
        whole = f"{about or ''} {detail}".strip()
        key = f"{self.subject.op} {self.subject.target} {self.subject.name} {text} {check} {whole}"
        identifier = f"{zlib.crc32(key.encode()):08x}"
        if severity == "note" and any(finding.id == identifier for finding in self.outcome.findings):
            return
        finding = Finding(identifier, severity, check, text, message, error, about=about, raised=raised)
        self.outcome.findings.append(finding)
        if severity == "failure":
            self.outcome.status = FAILED
