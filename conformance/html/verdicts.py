"""The sections on what the judge said of kernels, and on what its self-test says of the judge."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from touchstone.conformance.html.markup import details, scroll, source, table
from touchstone.conformance.html.records import Record
from touchstone.conformance.judging.judge import worst
from touchstone.conformance.reporting.console import Table, fraction_text
from touchstone.conformance.selftest.run import heading
from touchstone.conformance.spec.cases import LEVELS


def verdicts(records: Sequence[Record]) -> str:
    """Ops by lanes: the worst error as a fraction of its budget, then each op's rungs."""
    rungs = best_known(records)
    if not rungs:
        return ""
    lanes = sorted({lane for _, lane, _ in rungs})
    ops = sorted({op for op, _, _ in rungs})
    head = "".join(f"<th>{escape(lane)}</th>" for lane in lanes)
    body = []
    for op in ops:
        cells = [
            _verdict([found for (o, at, _), (_, found) in rungs.items() if (o, at) == (op, lane)]) for lane in lanes
        ]
        body.append(f'<tr><th><a href="#op-{escape(op)}">{escape(op)}</a></th>{"".join(cells)}</tr>')
    matrix = scroll(
        f'<table class="matrix"><thead><tr><th>op</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )
    intro = (
        "<p>The largest error of any rung in any case, as a fraction of the error budget of its output and "
        "dtype: 1.00 is the "
        "limit. Below it, how many rungs were judged, and in how many trials. Of several records the highest "
        "level counts.</p>"
    )
    return intro + matrix + source(record for record, _ in rungs.values()) + "".join(_rungs_of(op, rungs) for op in ops)


def verdict_table(records: Sequence[Record]) -> Table:
    """Ops by lanes, for a page in Markdown: rungs that passed of those that ran, the worst error, the level."""
    rungs = best_known(records)
    lanes = sorted({lane for _, lane, _ in rungs})
    made = Table("rungs that pass, and the worst error as a fraction of its budget", ["op", *lanes])
    for op in sorted({op for op, _, _ in rungs}):
        cells = []
        for lane in lanes:
            ran = [
                (r, rung) for (o, at, _), (r, rung) in rungs.items() if (o, at) == (op, lane) and not rung["not_run"]
            ]
            good = sum(rung["failed"] == 0 and rung["passed"] > 0 for _, rung in ran)
            largest = worst([w for _, rung in ran if (w := worst_of(rung)) is not None])
            levels = "/".join(dict.fromkeys(str(r.data.get("level")) for r, _ in ran))
            cells.append(f"{good} of {len(ran)}, {fraction_text(largest)}, {levels}" if ran else "-")
        made.rows.append([op, *cells])
    return made


Rungs = dict[tuple[str, str, str], tuple[Record, dict[str, Any]]]


def best_known(records: Sequence[Record]) -> Rungs:
    """(op, lane, rung) -> the record of the highest level that judged it, the newest of them, and what it says."""
    levels = list(LEVELS)

    def rank(record: Record, rung: Mapping[str, Any]) -> tuple:
        level = record.data.get("level")
        return not rung["not_run"], levels.index(level) if level in levels else -1, record.about.get("date") or ""

    found: Rungs = {}
    for record in records:
        for rung in record.data["rungs"]:
            key = (rung["op"], rung["lane"], rung["variant"])
            if key not in found or rank(record, rung) >= rank(*found[key]):
                found[key] = (record, rung)
    return found


def worst_of(rung: Mapping[str, Any]) -> float | None:
    return worst([fraction for row in rung["worst"].values() for fraction in row.values()])


def _verdict(rungs: Sequence[Mapping[str, Any]]) -> str:
    ran = [rung for rung in rungs if not rung["not_run"]]
    if not ran:
        return f'<td class="none">{"not run" if rungs else "no kernel"}</td>'
    failed, passed = sum(rung["failed"] for rung in ran), sum(rung["passed"] for rung in ran)
    largest = worst([w for w in map(worst_of, ran) if w is not None])
    counts = f"{len(ran)} rungs, {passed:,} trials" if len(ran) > 1 else f"1 rung, {passed:,} trials"
    if len(ran) < len(rungs):
        counts += f", {len(rungs) - len(ran)} not run"
    if failed:
        return (
            f'<td style="background:rgb(var(--bad) / .18)"><span class="bad">{failed} '
            f"failed</span><small>{counts}</small></td>"
        )
    shade = 0.1 + 0.25 * min(largest or 0.0, 1.0)
    return f'<td style="background:rgb(var(--good) / {shade:.2f})">{fraction_text(largest)}<small>{counts}</small></td>'


def _rungs_of(op: str, rungs: Rungs) -> str:
    mine = {key: found for key, found in rungs.items() if key[0] == op}
    dtypes = list(dict.fromkeys(dtype for _, rung in mine.values() for dtype in rung["worst"]))
    rows, failures = [], []
    for (_, lane, variant), (record, rung) in mine.items():
        errors = [worst(list(rung["worst"].get(dtype, {}).values())) for dtype in dtypes]
        counts = [rung[status] for status in ("passed", "failed", "declined")]
        counts = ["not run", "", ""] if rung["not_run"] else counts
        rows.append(
            [lane, variant, record.data.get("level") or "", *counts, *map(fraction_text, errors), rung["compute"] or ""]
        )
        failures += [f"{lane} {variant} [{f['id']}] {f['check']}: {f['message']}" for f in rung["findings"]]
    columns = ["lane", "rung", "level", "passed", "failed", "declined", *dtypes, "computes in"]
    lines = "".join(f'<p class="bad">{escape(line)}</p>' for line in failures)
    body = details(
        f"{op}: {len(mine)} rungs", table(columns, rows, numbers=["passed", "failed", "declined", *dtypes]) + lines
    )
    return f'<div id="op-{escape(op)}">{body}</div>'


def selftests(records: Sequence[Record]) -> str:
    return "".join(map(_selftest, records))


def _selftest(record: Record) -> str:
    faults = [one for op in record.data["ops"] for one in op["judged"] if one["kind"] != "control"]
    controls = [one for op in record.data["ops"] for one in op["judged"] if one["kind"] == "control"]
    killed, twice = (sum(one["kills"] >= n for one in faults) for n in (1, 2))
    checks, alarms = sum(one["trials"] for one in controls), sum(one["kills"] for one in controls)
    said = (
        f"<p><b>{killed:,} of {len(faults):,} planted faults are killed</b>, {twice:,} by two trials or more; "
        f"{len(controls)} right "
        f"kernels written independently have <b>{alarms or 'no'} false alarms in {checks:,} checks</b>. Level "
        f"{escape(str(record.data['level']))}.</p>"
    )
    columns = [
        "op",
        "faults",
        "killed",
        "by two or more",
        "controls",
        "checks",
        "false alarms",
        "idle families",
        "redundant",
    ]
    rows = [_counts(op) for op in record.data["ops"]]
    parts = [said, table(columns, rows, numbers=columns[1:]), source([record])]
    if holes := record.data.get("holes"):
        parts.append(
            details(f"What it found wanting: {len(holes)}", "".join(f"<p>{escape(line)}</p>" for line in holes))
        )
    if compared := record.data.get("comparison"):
        parts.append("<h3>The same faults under other rules</h3>")
        parts.append("<p>Caught of those planted in torch to which the rule applies.</p>")
        parts.append(table(compared["columns"], compared["rows"], numbers=compared["columns"][1:]) + source([record]))
    parts.append("<h3>Kill matrix</h3><p>Share of the faults of a kind that some trial of the family kills.</p>")
    parts += [
        details(f"{op['op']}: {len(op['judged'])} planted", _matrix(op) + _worth(op) + _planted(op))
        for op in record.data["ops"]
    ]
    return "".join(parts)


def _counts(op: Mapping[str, Any]) -> list[str]:
    faults = [one for one in op["judged"] if one["kind"] != "control"]
    controls = [one for one in op["judged"] if one["kind"] == "control"]
    redundant = "-" if op["redundant"] is None else len(op["redundant"])
    return [
        op["op"],
        *map(
            str,
            (
                len(faults),
                sum(one["kills"] > 0 for one in faults),
                sum(one["kills"] > 1 for one in faults),
                len(controls),
                sum(one["trials"] for one in controls),
                sum(one["kills"] for one in controls),
                "-" if op["redundant"] is None else len(op["idle"]),
                redundant,
            ),
        ),
    ]


def _matrix(op: Mapping[str, Any]) -> str:
    """Kinds of faults by families of values, laws and calls."""
    shown = range(len(op["families"]))
    kinds: dict[str, list[Any]] = defaultdict(list)
    for one in op["judged"]:
        if one["kind"] != "control":
            kinds[one["kind"]].append(one)
    head = "".join(f'<th class="tall">{escape(heading(op["families"][i]))}</th>' for i in shown)
    rows = []
    for kind, those in sorted(kinds.items()):
        shares = [sum(i in one["families"] for one in those) / len(those) for i in shown]
        cells = "".join(
            f'<td style="background:rgb(var(--good) / {0.65 * share:.2f})">{f"{100 * share:.0f}" if share else ""}</td>'
            for share in shares
        )
        rows.append(f"<tr><td>{escape(kind)} ({len(those)})</td>{cells}</tr>")
    return scroll(
        f'<table class="heat"><thead><tr><th>kind '
        f"(faults)</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        '<p class="note">per cent</p>'
    )


def _worth(op: Mapping[str, Any]) -> str:
    """The families that kill nothing, and those that the others could do without."""
    if op["redundant"] is None:
        return ""
    said = {
        "Kill nothing": op["idle"],
        "Each could be left out, and every fault would still be killed": op["redundant"],
    }
    lines = "".join(f"<p>{what}: {escape(', '.join(names))}.</p>" for what, names in said.items() if names)
    return details("families that are idle or redundant", lines) if lines else ""


def _planted(op: Mapping[str, Any]) -> str:
    rows = [
        [one["name"], one["backend"] or "torch", one["kind"], f"{one['kills']} of {one['trials']}", one["about"]]
        for one in op["judged"]
    ]
    return details("all that is planted", table(["name", "in", "kind", "trials that fail", "what"], rows))
