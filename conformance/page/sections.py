"""The sections of the report, each from the records of its kind; a section without a record is left out."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from conformance.bench.ceilings import Ceilings
from conformance.console import Table, fraction_text
from conformance.generate import LEVELS
from conformance.page import charts
from conformance.page.charts import Bar, Line, Point, number
from conformance.page.records import Record

AGAIN = " (again)"  # how the name of a kernel ends that is timed against itself
WRAPPED = ("case", "what")  # columns of long text
MOST_POINTS = 3  # sizes along an axis that make a sweep


def all_sections(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """(anchor, heading, HTML) of every section for which there is something to show."""
    kinds: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        kinds[record.kind].append(record)
    made = [
        ("verdicts", "Verdicts", verdicts(kinds["judged"])),
        ("selftest", "What the judge catches, and whom it accuses", selftests(kinds["selftest"])),
        ("fastest", "The fastest rung of each lane", fastest(kinds["bench"])),
        ("ladders", "Ladders", ladders(kinds["bench"])),
        ("rooflines", "Rooflines", rooflines(kinds["bench"])),
        ("sweeps", "Sweeps", sweeps(kinds["bench"])),
        ("compiled", "Compiled", compiled(kinds["judged"])),
        ("records", "Where the numbers come from", sources(records)),
    ]
    return [(anchor, heading, body) for anchor, heading, body in made if body]


def source(records: Iterable[Record | str]) -> str:
    """Links to the records that a figure is made from."""
    names = dict.fromkeys(each if isinstance(each, str) else each.name for each in records)
    links = ", ".join(f'<a href="#record-{escape(name)}">{escape(name)}</a>' for name in names)
    return f'<p class="source">from {links}</p>'


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[str] = (), kind: str = "") -> str:
    """A table that scrolls sideways on a narrow screen. Cells are text; those of the columns `numbers` stand right, those
    of WRAPPED may take several lines."""
    classes = [" class=n" if name in numbers else " class=wide" if name in WRAPPED else "" for name in columns]

    def cell(tag: str, text: Any, of: int) -> str:
        return f"<{tag}{classes[of]}>{escape(str(text))}</{tag}>"

    head = "".join(cell("th", name, i) for i, name in enumerate(columns))
    body = "".join(f"<tr>{''.join(cell('td', text, i) for i, text in enumerate(row))}</tr>" for row in rows)
    return scroll(f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>')


def scroll(body: str) -> str:
    return f'<div class="scroll" tabindex="0">{body}</div>'


def details(summary: str, body: str, open_: bool = False) -> str:
    return f"<details{' open' if open_ else ''}><summary>{escape(summary)}</summary>{body}</details>"


# ---- verdicts ----------------------------------------------------------------


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
        "<p>The largest error of any rung in any case, as a fraction of the error budget of its output and dtype: 1.00 is the "
        "limit. Below it, how many rungs were judged, and in how many trials. Of several records the highest level counts.</p>"
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
            worst = max((w for _, rung in ran if (w := worst_of(rung)) is not None), default=None)
            levels = "/".join(dict.fromkeys(str(r.data.get("level")) for r, _ in ran))
            cells.append(f"{good} of {len(ran)}, {fraction_text(worst)}, {levels}" if ran else "-")
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
    return max((fraction for row in rung["worst"].values() for fraction in row.values()), default=None)


def _verdict(rungs: Sequence[Mapping[str, Any]]) -> str:
    ran = [rung for rung in rungs if not rung["not_run"]]
    if not ran:
        return f'<td class="none">{"not run" if rungs else "no kernel"}</td>'
    failed, passed = sum(rung["failed"] for rung in ran), sum(rung["passed"] for rung in ran)
    worst = max((w for w in map(worst_of, ran) if w is not None), default=None)
    counts = f"{len(ran)} rungs, {passed:,} trials" if len(ran) > 1 else f"1 rung, {passed:,} trials"
    if len(ran) < len(rungs):
        counts += f", {len(rungs) - len(ran)} not run"
    if failed:
        return f'<td style="background:rgb(var(--bad) / .18)"><span class="bad">{failed} failed</span><small>{counts}</small></td>'
    shade = 0.1 + 0.25 * min(worst or 0.0, 1.0)
    return f'<td style="background:rgb(var(--good) / {shade:.2f})">{fraction_text(worst)}<small>{counts}</small></td>'


def _rungs_of(op: str, rungs: Rungs) -> str:
    mine = {key: found for key, found in rungs.items() if key[0] == op}
    dtypes = list(dict.fromkeys(dtype for _, rung in mine.values() for dtype in rung["worst"]))
    rows, failures = [], []
    for (_, lane, variant), (record, rung) in mine.items():
        worst = [max(rung["worst"].get(dtype, {}).values(), default=None) for dtype in dtypes]
        counts = [rung[status] for status in ("passed", "failed", "declined")]
        counts = ["not run", "", ""] if rung["not_run"] else counts
        rows.append(
            [lane, variant, record.data.get("level") or "", *counts, *map(fraction_text, worst), rung["compute"] or ""]
        )
        failures += [f"{lane} {variant} [{f['id']}] {f['check']}: {f['message']}" for f in rung["findings"]]
    columns = ["lane", "rung", "level", "passed", "failed", "declined", *dtypes, "computes in"]
    lines = "".join(f'<p class="bad">{escape(line)}</p>' for line in failures)
    body = details(
        f"{op}: {len(mine)} rungs", table(columns, rows, numbers=["passed", "failed", "declined", *dtypes]) + lines
    )
    return f'<div id="op-{escape(op)}">{body}</div>'


# ---- the self-test -----------------------------------------------------------


def selftests(records: Sequence[Record]) -> str:
    return "".join(map(_selftest, records))


def _selftest(record: Record) -> str:
    faults = [one for op in record.data["ops"] for one in op["judged"] if one["kind"] != "control"]
    controls = [one for op in record.data["ops"] for one in op["judged"] if one["kind"] == "control"]
    killed, twice = (sum(one["kills"] >= n for one in faults) for n in (1, 2))
    checks, alarms = sum(one["trials"] for one in controls), sum(one["kills"] for one in controls)
    said = (
        f"<p><b>{killed:,} of {len(faults):,} planted faults are killed</b>, {twice:,} by two trials or more; {len(controls)} right "
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
        op["op"], *map(str, (
            len(faults), sum(one["kills"] > 0 for one in faults), sum(one["kills"] > 1 for one in faults), len(controls),
            sum(one["trials"] for one in controls), sum(one["kills"] for one in controls),
            "-" if op["redundant"] is None else len(op["idle"]), redundant,
        )),
    ]  # fmt: skip


def _matrix(op: Mapping[str, Any]) -> str:
    """Kinds of faults by families of values, laws and calls."""
    shown = range(len(op["families"]))
    kinds: dict[str, list[Any]] = defaultdict(list)
    for one in op["judged"]:
        if one["kind"] != "control":
            kinds[one["kind"]].append(one)
    head = "".join(f'<th class="tall">{escape(op["families"][i].removeprefix("values "))}</th>' for i in shown)
    rows = []
    for kind, those in sorted(kinds.items()):
        shares = [sum(i in one["families"] for one in those) / len(those) for i in shown]
        cells = "".join(
            f'<td style="background:rgb(var(--good) / {0.65 * share:.2f})">{f"{100 * share:.0f}" if share else ""}</td>'
            for share in shares
        )
        rows.append(f"<tr><td>{escape(kind)} ({len(those)})</td>{cells}</tr>")
    return scroll(
        f'<table class="heat"><thead><tr><th>kind (faults)</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
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


# ---- the bench ---------------------------------------------------------------


def lanes_of(records: Sequence[Record]) -> dict[str, int]:
    """A colour for each lane that has rungs."""
    lanes = sorted({row["lane"] for record in records for row in record.data["results"] if row["kind"] == "rung"})
    return {lane: place for place, lane in enumerate(lanes)}


def measured(records: Sequence[Record]) -> dict[tuple[str, ...], list[tuple[Record, dict[str, Any]]]]:
    """Results by (op, mode, dtype, sizes, parameters, cache), each with its record; the newest of the same contestant."""
    groups: dict[tuple[str, ...], dict[tuple[str, str], tuple[Record, dict[str, Any]]]] = defaultdict(dict)
    for record in sorted(records, key=lambda each: each.about.get("date") or ""):
        for row in record.data["results"]:
            if row["name"].endswith(AGAIN):
                continue
            key = tuple(_key(row[name]) for name in ("op", "mode", "dtype", "sizes", "params", "cache"))
            who = (row["lane"], row["name"])
            groups[key].pop(who, None)  # the order is that of the newest
            groups[key][who] = (record, row)
    return {key: list(rows.values()) for key, rows in groups.items()}


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _what(row: Mapping[str, Any]) -> str:
    """A group in words: its mode, dtype, sizes and parameters."""
    sizes = "".join(f" {name}={n}" for name, n in row["sizes"].items())
    params = "".join(f", {name}={value}" for name, value in row["params"].items() if value is not None)
    mode = "" if row["mode"] == "fwd" else f"{row['mode']} "
    return f"{mode}{row['dtype']}{sizes}{params}, {row['cache']}"


def fastest_table(records: Sequence[Record]) -> Table:
    """Per op and group the best rung of each lane: its ratio to the first peer, its fraction of the roofline."""
    lanes = list(lanes_of(records))
    rows = [[rows[0][1]["op"], _what(rows[0][1]), *best_of(rows, lanes)] for rows in measured(records).values()]
    return Table("the fastest rung of each lane", ["op", "case", "peer", *lanes], sorted(rows, key=lambda row: row[0]))


def fastest(records: Sequence[Record]) -> str:
    """The table of the fastest rungs."""
    made = fastest_table(records)
    if not made.rows:
        return ""
    intro = "<p>The ratio to the peer, timed by turns with it (above 1 is faster), the fraction of the roofline, the rung.</p>"
    return intro + table(made.columns, made.rows) + source(r for rows in measured(records).values() for r, _ in rows)


def peer_of(rows: Sequence[tuple[Record, Mapping[str, Any]]]) -> str | None:
    """The first peer of the newest record of a group."""
    newest = max((record for record, _ in rows), key=lambda record: record.about.get("date") or "")
    timed = (row for record, row in rows if record is newest and row["kind"] == "peer" and row["ms"] is not None)
    return next((row["name"] for row in timed), None)


def best_of(rows: Sequence[tuple[Record, Mapping[str, Any]]], lanes: Sequence[str]) -> list[str]:
    """The first peer of a group, and of each lane the fastest rung: ratio, fraction of the roofline, name."""
    peer = peer_of(rows)
    cells = []
    for lane in lanes:
        timed = [row for _, row in rows if (row["lane"], row["kind"]) == (lane, "rung") and row["ms"] is not None]
        if not timed:
            cells.append("-")
            continue
        best = min(timed, key=lambda row: row["ms"])
        ratio = f"{best['ratios'][peer]:.2f}×, " if peer in best["ratios"] else ""
        share = "" if best["fraction"] is None else f"{100 * best['fraction']:.0f} %, "
        cells.append(f"{ratio}{share}{best['name']}")
    return [peer or "none", *cells]


def ladders(records: Sequence[Record]) -> str:
    """Per op and group: a bar for each contestant, as a fraction of the roofline."""
    groups, lanes = measured(records), lanes_of(records)
    if not groups:
        return ""
    by_op: dict[str, list[str]] = defaultdict(list)
    for rows in groups.values():
        first = rows[0][1]
        peer = peer_of(rows)
        bars = [_bar(row, lanes, peer) for _, row in sorted(rows, key=lambda each: _place(each[1], lanes))]
        body = charts.bars(bars) + source(record for record, _ in rows)
        by_op[first["op"]].append(details(_what(first), body, open_=not by_op[first["op"]]))
    intro = (
        "<p>Each bar is a fraction of the roofline: the least time that the copy rate and the matrix-product rate measured in "
        "the same run allow, divided by the median time. Beside it the median, and the ratio to the first peer, interleaved "
        "with it (above 1 is faster than the peer).</p>"
    )
    key = charts.legend([*lanes.items(), ("peers", None)])
    twice = [
        abs(row["ratios"]["itself"] - 1) for r in records for row in r.data["results"] if "itself" in row["ratios"]
    ]
    if twice:
        key += f"<p>Noise: {len(twice)} times a kernel was timed against itself; the ratio was within {max(twice):.1%} of 1.</p>"
    return intro + key + "".join(f"<h3>{escape(op)}</h3>{''.join(parts)}" for op, parts in sorted(by_op.items()))


def _place(row: Mapping[str, Any], lanes: Mapping[str, int]) -> int:
    """Lane by lane, rungs in the order of the ladder, peers last."""
    return lanes[row["lane"]] if row["kind"] == "rung" else len(lanes)


def _bar(row: Mapping[str, Any], lanes: Mapping[str, int], peer: str | None) -> Bar:
    series = lanes[row["lane"]] if row["kind"] == "rung" else None
    label = f"{row['lane'].partition('@')[0]} {row['name']}" if row["kind"] == "rung" else row["name"]
    if row["ms"] is None:
        return Bar(label, None, row["status"], series)
    ratio = f"{row['ratios'][peer]:.2f}×" if peer in row["ratios"] else ""
    share = row["fraction"]
    return Bar(
        label,
        share,
        f"{'' if share is None else f'{100 * share:.0f} %, '}{number(row['ms'])} ms {ratio}".strip(),
        series,
    )


def rooflines(records: Sequence[Record]) -> str:
    """Per op and dtype: rate against arithmetic intensity, under the ceilings of the run."""
    lanes = lanes_of(records)
    plots: dict[tuple[str, str], list[tuple[Record, dict[str, Any]]]] = defaultdict(list)
    for rows in measured(records).values():
        for record, row in rows:
            if row["tflops"] and row["gbps"] and record.data["ceilings"]:
                plots[row["op"], row["dtype"]].append((record, row))
    if not plots:
        return ""
    figures = [_roofline(op, dtype, rows, lanes) for (op, dtype), rows in sorted(plots.items())]
    intro = (
        "<p>Operations a second against operations per byte that has to move. Lines: ceilings measured in the run.</p>"
    )
    return intro + charts.legend([*lanes.items(), ("peers", None)]) + f'<div class="grid2">{"".join(figures)}</div>'


def _roofline(op: str, dtype: str, rows: Sequence[tuple[Record, dict[str, Any]]], lanes: Mapping[str, int]) -> str:
    record = rows[-1][0]
    ceilings = Ceilings(**record.data["ceilings"])
    copy, product = ceilings.copy / 1e12, ceilings.matmul.get(dtype, 0.0) / 1e12
    points = []
    for _, row in rows:
        series = lanes[row["lane"]] if row["kind"] == "rung" else None
        sizes = "×".join(str(n) for n in row["sizes"].values())
        label = f"{row['name']}: {row['lane']}, {sizes}, {number(row['tflops'])} TFLOP/s, {number(row['ms'])} ms"
        points.append(Point(1e3 * row["tflops"] / row["gbps"], row["tflops"], series, label))
    points.sort(key=lambda point: point.series is not None)  # rungs over peers
    max(points, key=lambda point: (point.series is not None, point.y)).named = True
    xs = [point.x for point in points]
    knee = product / copy if product else max(xs)
    low, high = min(*xs, knee) / 4, 4 * max(*xs, knee)
    roof = [(low, copy * low), (min(knee, high), copy * min(knee, high))] + ([(high, product)] if knee < high else [])
    ys = [point.y for point in points] + [value for _, value in roof]
    x, y = charts.axes([low, high], ys)
    lines = [Line(f"copy {number(1e3 * copy)} GB/s, matrix product {number(product)} TFLOP/s", roof, None, dashed=True)]
    title = f"{op}, {dtype}"
    picture = charts.chart(title, "FLOP per byte", "TFLOP/s", x, y, lines, points)
    return f"<figure><h3>{escape(title)}</h3>{picture}{source(each for each, _ in rows)}</figure>"


def sweeps(records: Sequence[Record]) -> str:
    """Curves along an axis that takes several sizes while the others stay: attention over the sequence, softmax over rows."""
    lanes = lanes_of(records)
    figures = []
    groups: dict[tuple, list[tuple[Record, dict[str, Any]]]] = defaultdict(list)
    for rows in measured(records).values():
        for record, row in rows:
            if row["ms"] is not None:
                groups[tuple(_key(row[n]) for n in ("op", "mode", "dtype", "params", "cache"))].append((record, row))
    for rows in groups.values():
        for axis, fixed, those in _along(rows):
            figures += [_sweep(axis, fixed, those, lanes, what) for what in _curves(those)]
    key = charts.legend([*lanes.items(), ("peers", None)])
    return f'{key}<div class="grid2">{"".join(figures)}</div>' if figures else ""


Rows = list[tuple[Record, dict[str, Any]]]


def _along(rows: Rows) -> list[tuple[str, dict[str, int], Rows]]:
    """The axis along which there are several sizes, the axes that stay, and the rows in which they do.

    Other axes may move in step with it, a batch that gets smaller as sequences get longer; not where the same curve exists
    without that.
    """
    axes = list(rows[0][1]["sizes"])
    steps = {tuple(axis for axis in axes if a["sizes"][axis] != b["sizes"][axis]) for _, a in rows for _, b in rows}
    found: list[tuple[str, dict[str, int], Rows]] = []
    for moving in sorted((step for step in steps if step), key=len):
        still: dict[tuple, Rows] = defaultdict(list)
        for record, row in rows:
            still[tuple(row["sizes"][axis] for axis in axes if axis not in moving)].append((record, row))
        for fixed, those in still.items():
            main = max(moving, key=lambda axis: max(row["sizes"][axis] for _, row in those))
            places = {row["sizes"][main] for _, row in those}
            in_step = len({tuple(row["sizes"].values()) for _, row in those}) == len(places)
            if any(main == axis and places <= {row["sizes"][axis] for _, row in each} for axis, _, each in found):
                continue
            if in_step and len(places) >= MOST_POINTS:
                named = dict(zip((axis for axis in axes if axis not in moving), fixed, strict=True))
                found.append((main, named, those))
    return found


def _curves(rows: Rows) -> list[tuple[str, str, Callable[[Mapping[str, Any]], float | None]]]:
    """What is worth a curve: the rate, and the memory beyond inputs and outputs where it differs between contestants."""
    first = rows[0][1]
    rate: tuple[str, str, Callable[[Mapping[str, Any]], float | None]] = (
        ("rate", "TFLOP/s", lambda row: row["tflops"])
        if first["roof"] and first["roof"]["bound"] == "compute"
        else ("rate", "GB/s", lambda row: row["gbps"])
    )
    found = [rate]
    peaks = [row["peak_bytes"] for _, row in rows if row["sizes"] == first["sizes"] and row["peak_bytes"]]
    if peaks and max(peaks) > 1.1 * min(peaks):
        found.append(("peak memory", "MB", lambda row: row["peak_bytes"] and row["peak_bytes"] / 1e6))
    return found


def _sweep(
    axis: str, fixed: dict[str, int], rows: Rows, lanes: Mapping[str, int], what: tuple[str, str, Callable]
) -> str:
    name, unit, value = what
    curves: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    series: dict[tuple[str, str], int | None] = {}
    for _, row in rows:
        if value(row):
            who = (row["lane"], row["name"])
            curves[who].append((row["sizes"][axis], value(row)))
            series[who] = lanes[row["lane"]] if row["kind"] == "rung" else None
    first = rows[0][1]
    title = f"{first['op']} {name}: {_what({**first, 'sizes': fixed})}"
    last = {who: max(points) for who, points in curves.items()}
    points = [Point(*last[who], series[who], f"{who[1]}: {who[0]}", named=True) for who in curves]
    dots = [
        Point(a, b, series[who], f"{who[1]}: {who[0]}, {number(b)} {unit}")
        for who, each in curves.items()
        for a, b in each
    ]
    xs, ys = ([point[i] for each in curves.values() for point in each] for i in (0, 1))
    x, y = charts.axes(xs, ys, x_base=2.0, y_linear=name == "rate")
    lines = [
        Line(f"{who[1]}, {who[0]}", sorted(each), series[who], series[who] is None) for who, each in curves.items()
    ]
    picture = charts.chart(title, axis, unit, x, y, lines, dots + sorted(points, key=lambda p: -p.y))
    return f"<figure><h3>{escape(title)}</h3>{picture}{source(record for record, _ in rows)}</figure>"


# ---- compile conformance, provenance -----------------------------------------


def compiled(records: Sequence[Record]) -> str:
    """Registers, spills and shared memory of every kernel, by rung and architecture."""
    columns = {
        "backend": "backend", "rung": "rung", "kernel": "kernel", "arch": "arch", "compiled": "specialisations", "registers": "registers",
        "spills": "spilled bytes", "shared": "shared bytes",
    }  # fmt: skip
    by_op: dict[str, list[Any]] = defaultdict(list)
    used: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        for row in record.data.get("compiled", []):
            if row.get("compiled"):
                by_op[row["op"]].append([row.get(name, "") for name in columns])
                used[row["op"]].append(record)
    if not by_op:
        return ""
    intro = "<p>Compiled without a GPU: registers and spilled bytes a thread, static shared memory a block, the most of any.</p>"
    numbers = list(columns.values())[4:]
    return intro + "".join(
        details(f"{op}: {len(rows)} kernels", table(list(columns.values()), rows, numbers) + source(used[op]))
        for op, rows in sorted(by_op.items())
    )


def sources(records: Sequence[Record]) -> str:
    """Each record: its command, date, commit, versions, machine, and what it holds."""
    parts = []
    for record in records:
        about = record.about
        commit = str(about.get("commit") or "not recorded")[:12] + (" with changes" if about.get("changed") else "")
        rows = [
            ("holds", _holds(record)),
            ("command", about.get("command") or "not recorded"),
            ("date", about.get("date") or "not recorded"),
            ("commit", commit),
            *((label, _pairs(about.get(key))) for label, key in (("versions", "versions"), ("machine", "machine"))),
        ]
        body = "".join(f'<tr><th>{name}</th><td class="wide">{escape(str(text))}</td></tr>' for name, text in rows)
        parts.append(
            f'<h3 id="record-{escape(record.name)}">{escape(record.name)}</h3>' + scroll(f"<table>{body}</table>")
        )
    return "".join(parts)


def _pairs(values: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) if values else "not recorded"


def _holds(record: Record) -> str:
    data = record.data
    if record.kind == "judged":
        lanes = Counter(rung["lane"] for rung in data["rungs"] if not rung["not_run"])
        counts = ", ".join(f"{count} rungs on {lane}" for lane, count in sorted(lanes.items())) or "no rung"
        return f"verdicts, level {data.get('level')}, seed {data.get('seed')}: {counts}"
    if record.kind == "selftest":
        return f"a self-test, level {data['level']}, seed {data['seed']}, of {len(data['ops'])} ops"
    return f"{len(data['results'])} timings"
