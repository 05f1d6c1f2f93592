"""Goals of a file of shapes: how fast the fastest variant of a language is to be, beside a baseline or the limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from touchstone.conformance.bench.group import AGAIN, Result
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.reporting.console import Table
from touchstone.conformance.spec.words import not_one_of

LIMIT, HOST = "limit", "host_us"  # the least time that the machine allows; microseconds of the processor for a call
KEY = "goals"  # of an entry, beside its sizes


@dataclass(frozen=True)
class Goal:
    """`about`: what a case of the goal has, by name. `bound`: the ratio that is to be reached, of HOST the time that is
    not to be passed."""

    about: tuple[tuple[str, Any], ...]
    backend: str
    against: str
    bound: float

    def concerns(self, result: Result) -> bool:
        has = {"op": result.op, "dtype": result.dtype, **result.sizes, **result.params}
        same_target = result.target.partition("@")[0] == self.backend and result.kind == "variant"
        return same_target and all(name in has and has[name] == value for name, value in self.about)

    def of(self, result: Result) -> float | None:
        if self.against == HOST:
            return None if result.host_ms is None else 1e3 * result.host_ms
        return result.fraction if self.against == LIMIT else result.ratios.get(self.against)

    def reached(self, found: float) -> bool:
        return found <= self.bound if self.against == HOST else found >= self.bound


def of_entries(entries: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """The goals of a file's entries, `{"triton": {"cuBLAS": 1.0, "limit": 0.9}}`. Raises UsageError."""
    found = []
    for entry in entries:
        given = entry.get(KEY, {})
        if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
            raise selection.UsageError(
                f"--shapes: {KEY}: expected an object of backends, each with numbers by baseline, {LIMIT} or {HOST}; "
                f"got {given!r}"
            )
        about = tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in entry.items()
            if name not in (KEY, "layouts")
        )
        for backend, bounds in given.items():
            if backend not in registry.backends():
                raise selection.UsageError(f"--shapes: {KEY}: {not_one_of(backend, registry.backends())}")
            for against, bound in bounds.items():
                if isinstance(bound, bool) or not isinstance(bound, int | float) or bound <= 0:
                    raise selection.UsageError(
                        f"--shapes: {KEY}: {backend}: {against}: expected a number above 0, got {bound!r}"
                    )
                found.append(Goal(about, backend, against, float(bound)))
    return found


def held(goals: Sequence[Goal], results: Sequence[Result]) -> list[dict[str, Any]]:
    """What became of each goal, for each of its cases that were timed: the variant that comes nearest, and what it
    reaches. None where no variant has a number for it."""
    rows = []
    for goal in goals:
        cases: dict[str, list[Result]] = {}
        for result in results:
            if goal.concerns(result) and not result.name.endswith(AGAIN):
                cases.setdefault(repr((result.dtype, result.sizes, result.params)), []).append(result)
        for those in cases.values():
            reached = [(found, each.name) for each in those if each.ms and (found := goal.of(each)) is not None]
            best = (min if goal.against == HOST else max)(reached, default=(None, None))
            first = those[0]
            rows.append(
                {
                    "op": first.op,
                    "dtype": first.dtype,
                    "sizes": first.sizes,
                    "params": first.params,
                    "backend": goal.backend,
                    "against": goal.against,
                    "bound": goal.bound,
                    "found": best[0],
                    "variant": best[1],
                    "reached": best[0] is not None and goal.reached(best[0]),
                }
            )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The goals, for a terminal and for a page in Markdown."""
    missed = sum(not row["reached"] for row in rows)
    made = Table(
        f"goals: {len(rows) - missed} of {len(rows)} reached",
        ["op", "case", "backend", "variant", "against", "goal", "found", ""],
    )
    for row in rows:
        sizes = " ".join(f"{name}={n}" for name, n in row["sizes"].items())
        params = "".join(f", {name}={value}" for name, value in row["params"].items() if value is not None)
        found = "-" if row["found"] is None else f"{row['found']:.3g}"
        case = f"{row['dtype']} {sizes}{params}"
        said = "" if row["reached"] else "missed"
        made.rows.append(
            [row["op"], case, row["backend"], row["variant"] or "-", row["against"], f"{row['bound']:g}", found, said]
        )
    return made
