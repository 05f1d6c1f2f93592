"""What is timed together, and what comes of it: a group of contestants, and one result for each of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from touchstone.conformance.bench.ceilings import Roof
from touchstone.conformance.bench.timing import Stats
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.spec.baselines import Baseline, Bench
from touchstone.conformance.spec.contract import Case, Contract

MEASURED, DECLINED, NOT_RUN, REFUSED, FAILED = "measured", "declined", "not run", "refused", "failed"
AGAIN = " (again)"  # how the name of a kernel ends that is timed against itself


@dataclass
class Group:
    """Contestants timed together on one op and case."""

    contract: Contract
    bench: Bench
    case: Case
    subjects: Sequence[tuple[str, Subject]]  # (backend, variant)
    baselines: Sequence[Baseline] = ()
    mode: str = "fwd"

    @property
    def title(self) -> str:
        sizes = ", ".join(f"{name}={n}" for name, n in self.case.sizes)
        params = "".join(f", {name}={value}" for name, value in self.params.items() if self.varies(name))
        mode = "" if self.mode == "fwd" else f" {self.mode}"
        return f"{self.case.op}{mode} {self.case.dtype} {sizes}{params}"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, and the layout of each operand that does not lie as the contract's first has it."""
        layouts = {n: layout for n, layout in self.case.layouts if layout != self.contract.operands[n].layouts[0]}
        return self.case.param | layouts

    def varies(self, name: str) -> bool:
        return name in self.bench.params or name in self.contract.operands


@dataclass
class Result:
    """One contestant's row. `ms` and what follows from it are None unless its status is "measured"."""

    op: str
    name: str
    target: str
    kind: str  # "variant" or "baseline"
    dtype: str
    sizes: dict[str, Any]
    params: dict[str, Any]
    mode: str
    cache: str
    status: str = NOT_RUN
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compute: str | None = None
    stats: Stats | None = None
    host_ms: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    roof: Roof | None = None
    ratios: dict[str, float] = field(default_factory=dict)  # baseline -> its time over this one's: above 1 is faster
    peak_bytes: int | None = None
    resources: dict[str, int] | None = None
    clocks: dict[str, str] = field(default_factory=dict)
    worst: float | None = None  # error over budget
    seconds: list[float] = field(default_factory=list)  # every sample

    @property
    def ms(self) -> float | None:
        return self.stats.median if self.stats is not None and self.status == MEASURED else None

    @property
    def fraction(self) -> float | None:
        return None if self.roof is None or self.ms is None else self.roof.ms / self.ms
