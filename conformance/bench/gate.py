"""A gate for continuous integration: is anything slower than an earlier record says, by more than a share, for sure?

Between two records a median may differ for nothing. Its interval at 95 % is that of the notches of a box plot, 1.57
interquartile ranges over the square root of the number of samples (McGill, Tukey and Larsen 1978); a row counts as
slower where all of the change's interval lies above the share.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from touchstone.conformance.bench import records
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.status import Status
from touchstone.conformance.spec.returned import in_line

NOTCH = 1.57
SAME = ("device", "gpu", "system", "cpus")  # of two machines whose times can be compared
EXPECTED = "expected a share of the old time, such as 5% or 0.05"


def share(text: str) -> float:
    """The share that `--fail-if-slower` names: 0.05 for "5%" and for "0.05". Raises UsageError."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(%?)", text.strip())
    if found is None:
        raise UsageError(f"--fail-if-slower: {EXPECTED}, got {text!r}")
    value = float(found[1]) / (100 if found[2] else 1)
    if not found[2] and value >= 1:
        raise UsageError(f"--fail-if-slower: {EXPECTED}, got {text!r}; for percent write {text.strip()}%")
    return value


@dataclass
class Verdict:
    """What the gate says: a line for each row that fails it, for each that is in one record alone, for each that may be
    slower or not, and how many were compared."""

    share: float
    slower: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    compared: int = 0
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        return self.compared > 0 and not self.slower and not self.interrupted

    def lines(self) -> list[str]:
        """What is printed."""
        said = f"--fail-if-slower {100 * self.share:g}%"
        if not self.compared and not self.slower:
            return [*self.missing, f"{said}: nothing was compared, since no row is measured in both records"]
        of = f"{len(self.slower)} of {self.compared} rows are" if self.slower else f"none of {self.compared} rows is"
        ended = ["the run of NEW was interrupted"] if self.interrupted else []
        return [*self.missing, *self.unsure, *self.slower, *ended, f"{said}: {of} slower by more than that"]

    def to_dict(self) -> dict[str, Any]:
        """As the record has it."""
        return {**vars(self), "passed": self.passed}


def judge(old: Mapping[str, Any], new: Mapping[str, Any], limit: float, any_machine: bool = False) -> Verdict:
    """Compare two records of a bench, as `records.read` gives them. A row that was measured and is refused or failed
    now fails the gate too, and so does a NEW that was interrupted and may lack rows. Raises UsageError where they are
    of different machines, unless `any_machine`."""
    if old.get("date") and old["date"] == new.get("date") and old["results"] == new["results"]:
        raise UsageError("--fail-if-slower: OLD and NEW are records of the same run")
    if not any_machine:
        _same_machine(old["machine"], new["machine"])
    before, after = (_rows(record, which) for record, which in ((old, "OLD"), (new, "NEW")))
    verdict = Verdict(limit, interrupted=bool(new.get("interrupted") or new.get("status") == Status.INTERRUPTED))
    for one, other, where in ((before, after, "OLD"), (after, before, "NEW")):
        verdict.missing += [f"only in {where}: {records.label(one[key])}" for key in one if key not in other]
    for key, entry in after.items():
        was = before.get(key)
        if was is None or was["ms"] is None:
            continue
        verdict.compared += 1
        if entry["ms"] is None:
            now = in_line(entry["status"])
            verdict.slower.append(f"{records.label(entry)}: was {was['ms']:.4g} ms, is {now}")
            continue
        change, either_way = entry["ms"] / was["ms"] - 1, _uncertain(was, entry)
        low, high = 100 * (change - either_way), 100 * (change + either_way)
        said = (
            f"{records.label(entry)}: {was['ms']:.4g} -> {entry['ms']:.4g} ms, {100 * change:+.1f} % "
            f"({low:+.1f} to {high:+.1f} % at 95 % confidence)"
        )
        if change - either_way > limit:
            verdict.slower.append(said)
        elif change > limit:
            verdict.unsure.append(f"too noisy to tell: {said}")
    return verdict


def _rows(record: Mapping[str, Any], which: str) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """The rows of a record by what they measure. Raises UsageError where two measure the same."""
    found: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for entry in record["results"]:
        if found.setdefault(records.key(entry), entry) is not entry:
            raise UsageError(f"--fail-if-slower: {which} has two rows of one measurement: {records.label(entry)}")
    return found


def _uncertain(was: Mapping[str, Any], entry: Mapping[str, Any]) -> float:
    """Half the width of the interval of the change, relative to the old time."""
    halves = [
        NOTCH * (each["q3"] - each["q1"]) / math.sqrt(each.get("count") or 1) / each["ms"] for each in (was, entry)
    ]
    return entry["ms"] / was["ms"] * math.hypot(*halves)


def _same_machine(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    differing = [name for name in SAME if old.get(name) != new.get(name)]
    if differing:
        told = "; ".join(f"{name}: {old.get(name)} -> {new.get(name)}" for name in differing)
        raise UsageError(
            f"--fail-if-slower: the records are of different machines ({told}), whose times say nothing about a "
            "change; --any-machine compares them all the same"
        )
