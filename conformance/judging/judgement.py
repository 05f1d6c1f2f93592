"""What judging a kernel on one trial gives: findings, gathered in an outcome."""

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

PASSED, FAILED, DECLINED = "passed", "failed", "declined"
UNPORTED = " is not ported yet: "  # in what a variant raises whose body `conformance port` left to be written


@dataclass
class Finding:
    """One thing held against a kernel."""

    id: str
    severity: str  # "failure" or "note"
    check: str  # "values", "shape", "raised", ...
    case: str
    message: str
    error: float | None = None  # multiple of the budget
    diagnosis: str | None = None

    def __str__(self) -> str:
        text = f"[{self.id}] {self.check}: {self.message}\n    in {self.case}"
        return text if self.diagnosis is None else text + "\n" + textwrap.indent(self.diagnosis, "    ")


@dataclass
class Outcome:
    """What one trial gave."""

    trial: str
    dtype: str
    status: str
    fractions: dict[str, float] = field(default_factory=dict)  # output -> worst error over its budget
    findings: list[Finding] = field(default_factory=list)
    reason: str | None = None  # why it was declined
    instruments: list[str] = field(default_factory=list)  # those that reached the kernel
    library: list[str] = field(default_factory=list)  # library calls seen, apart from allocation, fills and views

    @property
    def unported(self) -> bool:
        """Whether it was declined because the variant's port has not been written."""
        return self.status == DECLINED and UNPORTED in (self.reason or "")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(record: dict[str, Any]) -> "Outcome":
        return Outcome(**{**record, "findings": [Finding(**f) for f in record["findings"]]})
