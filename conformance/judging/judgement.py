"""What judging a kernel on one trial gives: findings, gathered in an outcome."""

import textwrap
import zlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging.executor import PLAIN, Executor, InProcess, Manner, Observed, Placed
from touchstone.conformance.judging.special import Special
from touchstone.conformance.judging.trials import CaseTrial, Compiled, Kind, ManyCalls, Trial
from touchstone.conformance.spec.checks import Requirement
from touchstone.conformance.spec.contract import Case, Contract
from touchstone.conformance.spec.returned import quoted

PASSED, FAILED, DECLINED, NOT_RUN = "passed", "failed", "declined", "not run"
PARTIAL, INTERRUPTED = "partial", "interrupted"  # besides, verdicts on a kernel
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
    requirement: str | None = None  # the Requirement that is not met; None: it fails whatever is required
    passes_as: str | None = None  # a lower precision (`compute`) in which the values would be right

    def fails(self, required: Collection[str] = ()) -> bool:
        """Whether it is a failure where these requirements decide; none stands for all."""
        return self.severity == "failure" and (not required or self.requirement in (None, *required))

    def __str__(self) -> str:
        text = f"[{self.id}] {self.check}: {quoted(self.message)}\n    in {self.case}"
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
    reason: str | None = None  # why it was declined, or not run
    instruments: list[str] = field(default_factory=list)  # those that reached the kernel
    library: list[str] = field(default_factory=list)  # library calls seen, apart from allocation, fills and views
    answered: list[str] = field(default_factory=list)  # what the launcher asked of CUDA so far, on the CPU
    displaced: bool = False  # it raised because its kernels were set up for another device before
    requirements: list[str] = field(default_factory=list)  # what the trial was to show (`Requirement`)
    held: list[str] = field(default_factory=list)  # and what of it, and besides, it showed to hold
    single: bool = False  # of one that may be declined: a single case of the contract, sizes of no plan, a compiler
    again: dict[str, str] | None = None  # the case, where it is one in place of a declined one, as in_words has it
    elements: dict[str, list[int]] = field(default_factory=dict)  # output -> those compared, and those judged

    @classmethod
    def of(cls, trial: Trial) -> "Outcome":
        """That of a trial in which nothing is found yet."""
        match trial:
            case CaseTrial():
                single = trial.single
            case ManyCalls():
                single = trial.in_turn
            case _:
                single = isinstance(trial, Compiled)
        return cls(trial.id, trial.kind, trial.case.dtype, PASSED, single=single)

    @property
    def judged(self) -> bool:
        """Whether the kernel ran, and did not decline."""
        return self.status in (PASSED, FAILED)

    @property
    def blank(self) -> bool:
        """Whether outputs were compared, and the contract judges no element of them."""
        compared = sum(every for every, _ in self.elements.values())
        return compared > 0 and not any(judged for _, judged in self.elements.values())

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
    """One kernel on one trial, and what is found: `outcome`.

    `executor` makes the calls; None: in this process. With `debug` exceptions of the kernel are let through.
    """

    def __init__(
        self,
        subject: Subject,
        trial: Trial,
        outcome: Outcome | None = None,
        debug: bool = False,
        executor: Executor | None = None,
    ):
        self.subject, self.trial, self.debug = subject, trial, debug
        self.executor = InProcess(subject) if executor is None else executor
        self.outcome = Outcome.of(trial) if outcome is None else outcome
        # where what is undefined is not as on GPUs; None: everywhere
        self.conspicuous: tuple[str, ...] | None = None if subject.strict else ()
        self.undefined: dict[str, str] = {}  # what was undefined in the calls so far, by place
        self.left: dict[str, None] = {}  # settings that calls after the first one left changed
        self.consumed: dict[str, str] = {}  # by its name, what else of their process they changed first
        # calls before this one, in words, and their cases: what a kernel may have kept of
        self.earlier: list[tuple[str, Case]] = list(subject.recent)
        self.special: dict[Case, Special] = {}  # where cases that were drawn hold NaN and infinities
        self.further: list[Requirement | None] = []  # what each call of a property shows beyond its case
        self.on_host: list[str] = []  # outputs of the last call that would lie on the CPU beside a GPU

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
        again = Judgement(self.subject, self.trial, debug=debug, executor=self.executor)
        again.conspicuous, again.left, again.consumed = self.conspicuous, self.left, self.consumed
        return again

    def call(self, arguments: Mapping[str, Any], manner: Manner = PLAIN, placed: Placed | None = None) -> Observed:
        """Call the kernel; what is undefined is as this judgement has it."""
        manner = replace(manner, conspicuous=self.conspicuous)
        self.subject.compared["calls"] += 1
        seen = self.executor.call(arguments, manner, placed, debug=self.debug)
        self.outcome.answered, self.on_host = seen.asked, seen.on_host
        self.note_undefined(seen)
        if not manner.state and seen.raised is None:
            self.left.update(dict.fromkeys(seen.settings))
            for what in seen.consumed:
                self.consumed.setdefault(what.partition(" from ")[0], what)
        return seen

    def note_undefined(self, seen: Observed) -> None:
        """What a call met that is undefined, among the rest of this trial's calls."""
        self.undefined.update(seen.undefined)

    def decline(self, reason: str) -> None:
        self.outcome.status, self.outcome.reason = DECLINED, reason

    def not_run(self, reason: str) -> None:
        """The kernel cannot be executed here."""
        self.outcome.status, self.outcome.reason = NOT_RUN, reason

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
        requirement: Requirement | None = None,
    ) -> None:
        """Add a finding of a `Check`, `about` an output or operand. A note is added once.

        Its id follows from what was judged, the check, `about` and `detail`, which tells apart what else is found about
        the same; not from the message. Which requirement it is about follows from the check, else from the trial
        (conformance/judging/requirements.py).
        """
        text = f"{self.trial.id} (seed {self.case.seed})"
        whole = f"{about or ''} {detail}".strip()
        key = f"{self.subject.op} {self.subject.target} {self.subject.name} {text} {check} {whole}"
        identifier = f"{zlib.crc32(key.encode()):08x}"
        if severity == "note" and any(finding.id == identifier for finding in self.outcome.findings):
            return
        finding = Finding(identifier, severity, check, text, message, error, about=about, raised=raised)
        finding.requirement = requirement
        self.outcome.findings.append(finding)
        if severity == "failure":
            self.outcome.status = FAILED
