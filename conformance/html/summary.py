"""The first section: of each op the fastest variant in each language, whether it is right, and how fast it is."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from touchstone.conformance.html import timings, verdicts
from touchstone.conformance.html.charts import number
from touchstone.conformance.html.markup import breakable, scroll, source
from touchstone.conformance.html.records import Record
from touchstone.conformance.reporting.console import fraction_text

Rows = Sequence[tuple[Record, dict[str, Any]]]


def summary(judged: Sequence[Record], timed: Sequence[Record], link: Callable[[str], str]) -> str:
    """A table for each machine that timed something, the one with the newest record first. `link` is where more about
    an op stands."""
    machines: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(timed, key=_date, reverse=True):
        machines[_machine(record)].append(record)
    variants = verdicts.best_known(judged)
    return "".join(_table(machine, records, variants, link) for machine, records in machines.items())


def _date(record: Record) -> str:
    return str(record.about.get("date") or "")


def _machine(record: Record) -> str:
    machine = record.about.get("machine") or {}
    return str(machine.get("gpu") or machine.get("cpu") or machine.get("system") or "a machine that was not recorded")


def _table(machine: str, records: Sequence[Record], variants: verdicts.Variants, link: Callable[[str], str]) -> str:
    targets = list(timings.targets_of(records))
    by_op: dict[str, list[Rows]] = defaultdict(list)
    for rows in timings.measured(records).values():
        by_op[rows[0][1]["op"]].append(rows)
    chosen = {op: max(groups, key=_weight) for op, groups in sorted(by_op.items())}
    columns = ["op", *(target.partition("@")[0] for target in targets), "baseline", "case"]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f'<tr><th><a href="{escape(link(op))}">{breakable(op)}</a></th>'
        + "".join(_cell(op, target, rows, variants) for target in targets)
        + f'{_baseline(rows)}<td class="wide">{escape(timings.what(rows[0][1]))}</td></tr>'
        for op, rows in chosen.items()
    )
    dates = sorted({_date(record)[:10] for record in records} - {""})
    when = f", {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "") if dates else ""
    return (
        f"<h3>{escape(machine)}{when}</h3>"
        "<p>Of each op the fastest variant in each language: a tick where every trial passed, with the largest error "
        "as a fraction of its budget; the median time, its share of the least that memory and arithmetic of this "
        "machine allow, and the ratio to the baseline (above 1 is faster). One case an op; the others stand below.</p>"
        + scroll(f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>')
        + source(record for rows in chosen.values() for record, _ in rows)
    )


def _weight(rows: Rows) -> tuple:
    """Which case stands for an op: one with most languages and with a baseline, the forward pass in bfloat16, of the
    largest."""
    first = rows[0][1]
    targets = {row["target"] for _, row in rows if row["kind"] == "variant" and row["ms"] is not None}
    size = max((row["roof"]["ms"] for _, row in rows if row["roof"]), default=0.0)
    named = timings.baseline_of(rows) is not None
    return len(targets), named, first["mode"] == "fwd", first["dtype"] == "bfloat16", size


def _cell(op: str, target: str, rows: Rows, variants: verdicts.Variants) -> str:
    timed = [row for _, row in rows if (row["target"], row["kind"]) == (target, "variant") and row["ms"] is not None]
    if not timed:
        return '<td class="none" data-sort="-1">not timed</td>'
    best = min(timed, key=lambda row: row["ms"])
    ratio = best["ratios"].get(timings.baseline_of(rows))
    share = best["fraction"]
    parts = [f"{number(best['ms'])} ms", "" if share is None else f"{100 * share:.0f} %"]
    parts.append("" if ratio is None else f"<b>{ratio:.2f}×</b>")
    mark = _mark(variants.get((op, target, best["name"])))
    place = ratio if ratio is not None else share or 0.0
    return (
        f'<td data-sort="{place:.6g}">{escape(best["name"])} {mark}'
        f"<small>{' · '.join(part for part in parts if part)}</small></td>"
    )


def _mark(found: tuple[Record, Mapping[str, Any]] | None) -> str:
    """Whether a variant is right: a tick or a cross, and in words to whom the pointer rests on it or who listens."""
    if found is None or found[1]["not_run"]:
        return '<span class="note">not judged</span>'
    record, entry = found
    if entry["failed"]:
        return f'<span class="bad">✗ {entry["failed"]} failed</span>'
    largest = fraction_text(verdicts.worst_of(entry))
    said = f"{entry['passed']} trials passed at level {record.data.get('level')}, the largest error {largest}"
    return f'<span class="good" title="{escape(said)} of its budget">✓ {largest}</span>'


def _baseline(rows: Rows) -> str:
    name = timings.baseline_of(rows)
    ms = next((row["ms"] for _, row in rows if (row["name"], row["kind"]) == (name, "baseline")), None)
    said = f"<small>{number(ms)} ms</small>" if ms is not None else ""
    return f'<td class="wide" data-sort="{escape(name or "")}">{escape(name or "none")}{said}</td>'
