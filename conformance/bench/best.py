"""`touchstone tune --best`: what `touchstone.best` chooses by, from records of a bench or measured here."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from touchstone.conformance.bench import cases, records
from touchstone.conformance.bench.group import DECLINED, MEASURED, NOT_RUN
from touchstone.conformance.bench.run import measure as measure_group
from touchstone.conformance.bench.timing import COLD, Guard, timer
from touchstone.conformance.discovery import measured, registry
from touchstone.conformance.discovery.measured import ABOUT, Point, Table
from touchstone.conformance.discovery.selection import Selection, UsageError
from touchstone.conformance.reporting import record
from touchstone.conformance.reporting.console import progress

FROM = "--from"
DTYPES = ("bfloat16", "float32")  # measured: one of each width
SECONDS = 0.1  # of calls of a variant on a case
LONGEST = 0.02  # seconds of a call above which a variant is not timed
DIGITS = 5  # of a time

Kind = tuple[str, str]  # op, backend


def of_record(found: Mapping[str, Any], what: str, ops: Sequence[str], backends: Sequence[str]) -> dict[Kind, Table]:
    """The points of a record, a table for each of the ops and backends in it.

    A case counts where at least two variants of the ladder were timed in turns, by themselves and with a cold cache, or
    where no other took it. `what` names the record in errors: ValueError where it is none of a GPU.
    """
    with record.of_one_form(what):
        machine = found["machine"]
        if machine.get("device") != "cuda" or "capability" not in machine:
            raise ValueError(f"{what}: expected a record of a GPU, got one of {machine.get('device')}")
        arch = f"sm_{machine['capability'].replace('.', '')}"
        about = {"gpu": machine["gpu"], **{name: found[name] for name in ABOUT if name != "gpu"}}
        by_case: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for row in found["results"]:
            backend = row["target"].partition("@")[0]
            own = row["kind"] == "variant" and row["op"] in ops and backend in backends
            if own and row["mode"] == "fwd" and row["cache"] == COLD:
                by_case.setdefault((row["op"], backend, *_case(row)), []).append(row)
        tables: dict[Kind, Table] = {}
        for (op, backend, *_), rows in by_case.items():
            point = _point(op, registry.ladder(backend, op), rows)
            if point is not None:
                before = tables.setdefault((op, backend), Table(op, backend, arch, [about]))
                tables[op, backend] = replace(before, points=[*before.points, point])
    return tables


def _case(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["dtype"], record.dumps(row["sizes"]), record.dumps(row["params"])


def _point(op: str, ladder: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Point | None:
    """The rows of one case as a point; None where they compare nothing."""
    status = {row["name"]: row["status"] for row in rows}
    ms = {row["name"]: float(f"{row['ms']:.{DIGITS}g}") for row in rows if row["status"] == MEASURED}
    ms = {name: ms[name] for name in sorted(ms, key=lambda name: ms[name]) if name in ladder}
    others = [name for name in ladder if name not in ms and status.get(name) not in (DECLINED, NOT_RUN)]
    if not ms or (len(ms) == 1 and others):
        return None
    contract, first = registry.contract(op), rows[0]
    layouts = {name: value for name, value in first["params"].items() if name in contract.operands}
    params = {name: value for name, value in first["params"].items() if name in contract.params}
    return Point(first["dtype"], first["sizes"], params, layouts, ms, 0)


@dataclass
class Written:
    """What became of the tables."""

    tables: list[tuple[Table, int]] = field(default_factory=list)  # with how many points of each are new or other
    replaced: list[str] = field(default_factory=list)  # of files that could not be read, why


def write(found: Sequence[Mapping[Kind, Table]], dry: bool = False) -> Written:
    """Merge tables with those that are there, and write those that changed."""
    merged: dict[tuple[str, ...], Table] = {}
    made = Written()
    for tables in found:
        for kind, fresh in tables.items():
            key = (*kind, fresh.arch)
            if key not in merged:
                merged[key] = _present(fresh, made)
            merged[key] = merged[key].merged(fresh)
    for _, table in sorted(merged.items()):
        before = {(point.case, str(point.ms)) for point in _present(table, Written()).points}
        changed = sum((point.case, str(point.ms)) not in before for point in table.points)
        made.tables.append((table, changed))
        if not dry:
            table.write()
    return made


def _present(like: Table, made: Written) -> Table:
    """The table that is there, of variants that are there, or an empty one."""
    empty = replace(like, records=(), points=())
    try:
        found = measured.table(like.op, like.backend, like.arch)
    except ValueError as error:
        made.replaced.append(str(error))
        return empty
    if found is None:
        return empty
    ladder = registry.ladder(like.backend, like.op)
    own = [replace(p, ms={n: ms for n, ms in p.ms.items() if n in ladder}) for p in found.points]
    return replace(found, points=[point for point in own if point.ms])


def measure(chosen: Selection, shapes: str, about: Mapping[str, Any], watch: Guard) -> Iterator[Mapping[str, Any]]:
    """The selection's ladders, timed here in turns and judged, a record for each op; `about` is what a record begins
    with."""
    plan = cases.plan(chosen, shapes, DTYPES)
    groups = [group for group in plan.groups if group.subjects]
    if not groups:
        raise UsageError(f"nothing to time with --shapes={shapes}")
    clock = timer(chosen.device, COLD)
    results: dict[str, list[Any]] = {group.case.op: [] for group in groups}
    left = Counter(group.case.op for group in groups)
    for group in progress(groups, "tune --best"):
        op = group.case.op
        group.baselines = ()
        found = measure_group(group, clock, watch, seconds=SECONDS, max_call_seconds=LONGEST)
        results[op] += [records.row(result, samples=False) for result in found]
        left[op] -= 1
        if not left[op]:
            yield {**about, "results": results.pop(op)}
    clock.close()
