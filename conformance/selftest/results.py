"""What the self-test found out: of each mutant and known-good kernel, of each op, and in a few lines of all.

A mutant is killed by a trial that fails; a known-good kernel that fails a trial is a false alarm. A mutant that nothing
kills is a hole, and so is a family of cases that kills nothing; a family without which every mutant would still be
killed is redundant.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from touchstone.conformance.judging.trials import ManyCalls, PropertyTrial, Trial
from touchstone.conformance.reporting.console import Table
from touchstone.conformance.spec.contract import size_text

NARROW = 0.01  # of the trials: a mutant that fewer kill escapes another draw of the cases
# kills after which a kernel in a backend's language is left, by level: interpreters and emulators are slow
ENOUGH = {"quick": 1, "default": 4}


@dataclass
class MutantResult:
    """One mutant or known-good kernel, on the trials of the dtypes in which it is one."""

    op: str
    name: str
    kind: str
    about: str
    backend: str | None
    trials: int = 0
    declined: int = 0
    killed: list[str] = field(default_factory=list)  # ids of the trials that fail
    checks: dict[str, int] = field(default_factory=dict)  # check of the first finding -> trials
    families: list[str] = field(default_factory=list)  # of the trials that kill
    needs: list[str] = field(default_factory=list)  # families without which nothing would kill it
    first: str | None = None  # the first finding

    @property
    def is_known_good(self) -> bool:
        return self.kind == "known-good"


@dataclass
class OpResult:
    """All mutants and known-good kernels of one op."""

    op: str
    level: str
    seed: int
    judged: list[MutantResult] = field(default_factory=list)
    families: list[str] = field(default_factory=list)  # all of the level
    notes: list[str] = field(default_factory=list)
    whole: bool = True  # whether mutants in torch were judged on every trial, which tells what a family is worth
    families_of: dict[str, list[str]] = field(default_factory=dict)  # by a trial's id; not in a record

    @property
    def mutants(self) -> list[MutantResult]:
        return [one for one in self.judged if not one.is_known_good]

    @property
    def known_good(self) -> list[MutantResult]:
        return [one for one in self.judged if one.is_known_good]

    @property
    def survivors(self) -> list[MutantResult]:
        return [one for one in self.mutants if not one.killed]

    @property
    def thin(self) -> list[MutantResult]:
        """Mutants that one trial alone kills, of those that were not left after it."""
        left = ENOUGH.get(self.level) == 1
        judged = [one for one in self.mutants if self.whole and not (left and one.backend)]
        return [one for one in judged if len(one.killed) == 1]

    @property
    def narrow(self) -> list[MutantResult]:
        """Mutants that few of the trials kill, of those judged on all: not left because enough had killed them."""
        enough = ENOUGH.get(self.level, math.inf)
        judged = [one for one in self.mutants if one.killed and not (one.backend and len(one.killed) >= enough)]
        return [one for one in judged if len(one.killed) < NARROW * one.trials] if self.whole else []

    @property
    def false_alarms(self) -> list[MutantResult]:
        return [one for one in self.known_good if one.killed]

    @property
    def known_good_checks(self) -> int:
        return sum(one.trials - one.declined for one in self.known_good)

    @property
    def idle_families(self) -> list[str]:
        """Families that kill nothing."""
        used = {family for one in self.mutants for family in one.families}
        return [family for family in self.families if family not in used]

    @property
    def redundant_families(self) -> list[str]:
        """Families that kill, but without which every mutant is still killed."""
        needed = {family for one in self.mutants for family in one.needs}
        idle = set(self.idle_families)
        return [family for family in self.families if family not in needed and family not in idle]

    def to_dict(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "level": self.level,
            "seed": self.seed,
            "whole": self.whole,
            "mutants": len(self.mutants),
            "killed": len(self.mutants) - len(self.survivors),
            "killed by one trial only": [f.name for f in self.thin],
            "narrow": [f.name for f in self.narrow],
            "survivors": [f.name for f in self.survivors],
            "known-good": len(self.known_good),
            "known-good checks": self.known_good_checks,
            "false alarms": [c.name for c in self.false_alarms],
            "families that kill nothing": self.idle_families,
            "redundant families": self.redundant_families,
            "families": self.families,
            "judged": [asdict(one) for one in self.judged],
            "notes": self.notes,
        }

    def matrix(self) -> Table:
        """Mutants by the families of their cases: how many trials of the family kill."""
        columns = list(dict.fromkeys(heading(family) for family in self.families if in_matrix(family)))
        table = Table(
            f"{self.op}: trials that kill, level {self.level}, seed {self.seed}", ["mutant", "kind", *columns, "of"]
        )
        for one in self.judged:
            count = Counter(heading(family) for trial in one.killed for family in self.families_of.get(trial, ()))
            cells = [str(count[column]) if count[column] else "." for column in columns]
            table.rows.append([one.name, one.kind, *cells, f"{len(one.killed)}/{one.trials}"])
        return table


def in_matrix(family: str) -> bool:
    return family.partition(" ")[0] in ("values", "property", "calls")


def heading(family: str) -> str:
    return family.removeprefix("values ")


def families(trial: Trial) -> list[str]:
    """What a trial is an instance of: its value family, size, layouts that are not contiguous, parameters; or its
    property."""
    if isinstance(trial, PropertyTrial):
        return [f"property {trial.prop.name}"]
    if isinstance(trial, ManyCalls):
        return ["calls of other lengths" if trial.in_turn else f"calls {trial.count}"]
    case = trial.case
    found = [f"values {case.values}", f"size {size_text(case.sizes)}", f"dtype {case.dtype}"]
    found += [f"layout {name} {layout}" for name, layout in case.layouts if layout != "contiguous"]
    return found + [f"parameter {name}={value}" for name, value in case.params]


def summary(results: Sequence[OpResult]) -> Table:
    level, seed = results[0].level, results[0].seed
    columns = [
        "op",
        "mutants",
        "killed",
        "by 1 trial",
        "known-good",
        "checks",
        "false alarms",
        "idle families",
        "redundant",
    ]
    table = Table(f"what the judge catches, level {level}, seed {seed}", columns)
    for result in results:
        table.rows.append(_summary_row(result.op, [result]))
    table.rows.append(_summary_row("all", results))
    return table


def _summary_row(name: str, results: Sequence[OpResult]) -> list[str]:
    def total(count) -> str:
        return str(sum(count(result) for result in results))

    def worth(count) -> str:
        return total(count) if all(result.whole for result in results) else "-"

    return [
        name,
        total(lambda r: len(r.mutants)),
        total(lambda r: len(r.mutants) - len(r.survivors)),
        worth(lambda r: len(r.thin)),
        total(lambda r: len(r.known_good)),
        total(lambda r: r.known_good_checks),
        total(lambda r: sum(len(c.killed) for c in r.false_alarms)),
        worth(lambda r: len(r.idle_families)),
        worth(lambda r: len(r.redundant_families)),
    ]


def holes(results: Sequence[OpResult]) -> list[str]:
    """The gaps that the self-test found, one sentence each: survivors, false alarms, idle families."""
    found = []
    for result in results:
        for one in result.survivors:
            found.append(f"{result.op}: nothing kills {one.name} ({one.kind}: {one.about})")
        for one in result.false_alarms:
            found.append(
                f"{result.op}: the known-good kernel {one.name} is rejected in {len(one.killed)} trials: {one.first}"
            )
        if result.level != "quick":
            found += [f"{result.op}: {one.name} is killed by one trial alone: {one.killed[0]}" for one in result.thin]
        found += [
            f"{result.op}: {one.name} is killed by {len(one.killed)} of {one.trials}: {', '.join(one.killed[:2])}"
            for one in result.narrow
        ]
        if result.whole and result.idle_families:
            found.append(f"{result.op}: families that kill nothing: {', '.join(result.idle_families)}")
        found += [f"{result.op}: {note}" for note in result.notes]
    return found


def passed(results: Sequence[OpResult]) -> bool:
    """Whether no known-good kernel is rejected and, at levels above quick, every mutant is killed by two trials at
    least."""
    if any(result.false_alarms for result in results):
        return False
    return results[0].level == "quick" or not any(result.survivors or result.thin for result in results)
