"""The sections on timings: the fastest variants, ladders, rooflines, sweeps."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from touchstone.conformance.bench.ceilings import Ceilings
from touchstone.conformance.bench.group import AGAIN
from touchstone.conformance.html import charts
from touchstone.conformance.html.charts import Bar, Line, Point, number
from touchstone.conformance.html.markup import details, source, table
from touchstone.conformance.html.records import Record
from touchstone.conformance.reporting.console import Table

MOST_POINTS = 3  # sizes along an axis that make a sweep


def targets_of(records: Sequence[Record]) -> dict[str, int]:
    """A colour for each target that has variants."""
    targets = sorted(
        {row["target"] for record in records for row in record.data["results"] if row["kind"] == "variant"}
    )
    return {target: place for place, target in enumerate(targets)}


def measured(records: Sequence[Record]) -> dict[tuple[str, ...], list[tuple[Record, dict[str, Any]]]]:
    """Results by (op, mode, dtype, sizes, parameters, cache), each with its record.

    Of the same contestant the newest counts, but what was timed without baselines does not displace what was timed with
    them.
    """
    groups: dict[tuple[str, ...], dict[tuple[str, str], tuple[Record, dict[str, Any]]]] = defaultdict(dict)
    for record in sorted(records, key=lambda each: each.about.get("date") or ""):
        for row in record.data["results"]:
            if row["name"].endswith(AGAIN):
                continue
            key = tuple(_key(row[name]) for name in ("op", "mode", "dtype", "sizes", "params", "cache"))
            who = (row["target"], row["name"])
            if who in groups[key] and _with_baselines(groups[key][who][1]) and not _with_baselines(row):
                continue
            groups[key].pop(who, None)  # the order is that of the newest
            groups[key][who] = (record, row)
    return {key: list(rows.values()) for key, rows in groups.items()}


def _with_baselines(row: Mapping[str, Any]) -> bool:
    return bool(set(row["ratios"]) - {"itself"})


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def what(row: Mapping[str, Any]) -> str:
    """A group in words: its mode, dtype, sizes and parameters."""
    sizes = "".join(f" {name}={n}" for name, n in row["sizes"].items())
    params = "".join(f", {name}={value}" for name, value in row["params"].items() if value is not None)
    mode = "" if row["mode"] == "fwd" else f"{row['mode']} "
    return f"{mode}{row['dtype']}{sizes}{params}, {row['cache']}"


def fastest_table(records: Sequence[Record]) -> Table:
    """Per op and group the best variant of each target: its ratio to the first baseline, its fraction of the
    roofline."""
    targets = list(targets_of(records))
    rows = [[rows[0][1]["op"], what(rows[0][1]), *best_of(rows, targets)] for rows in measured(records).values()]
    return Table(
        "the fastest variant of each target", ["op", "case", "baseline", *targets], sorted(rows, key=lambda row: row[0])
    )


def fastest(records: Sequence[Record]) -> str:
    """The table of the fastest variants."""
    made = fastest_table(records)
    if not made.rows:
        return ""
    intro = (
        "<p>The ratio to the baseline, interleaved with it (above 1 is faster), the fraction of the roofline, the "
        "variant.</p>"
    )
    return (
        intro
        + table(made.columns, made.rows, kind="sortable")
        + source(r for rows in measured(records).values() for r, _ in rows)
    )


def baseline_of(rows: Sequence[tuple[Record, Mapping[str, Any]]]) -> str | None:
    """The first baseline of the newest record of a group that timed one."""
    timed = [(record, row) for record, row in rows if row["kind"] == "baseline" and row["ms"] is not None]
    newest = max((record for record, _ in timed), key=lambda record: record.about.get("date") or "", default=None)
    return next((row["name"] for record, row in timed if record is newest), None)


def best_of(rows: Sequence[tuple[Record, Mapping[str, Any]]], targets: Sequence[str]) -> list[str]:
    """The first baseline of a group, and of each target the fastest variant: ratio, fraction of the roofline, name."""
    baseline = baseline_of(rows)
    cells = []
    for target in targets:
        timed = [
            row for _, row in rows if (row["target"], row["kind"]) == (target, "variant") and row["ms"] is not None
        ]
        if not timed:
            cells.append("-")
            continue
        best = min(timed, key=lambda row: row["ms"])
        ratio = f"{best['ratios'][baseline]:.2f}×, " if baseline in best["ratios"] else ""
        share = "" if best["fraction"] is None else f"{100 * best['fraction']:.0f} %, "
        cells.append(f"{ratio}{share}{best['name']}")
    return [baseline or "none", *cells]


def ladders(records: Sequence[Record]) -> str:
    """Per op and group: a bar for each contestant, as a fraction of the roofline."""
    groups, targets = measured(records), targets_of(records)
    if not groups:
        return ""
    by_op: dict[str, list[str]] = defaultdict(list)
    for rows in groups.values():
        first = rows[0][1]
        baseline = baseline_of(rows)
        bars = [_bar(row, targets, baseline) for _, row in sorted(rows, key=lambda each: _place(each[1], targets))]
        body = charts.bars(bars) + source(record for record, _ in rows)
        by_op[first["op"]].append(details(what(first), body, open_=not by_op[first["op"]]))
    intro = (
        "<p>Each bar is a fraction of the roofline: the least time that the copy rate and the matrix-product rate "
        "measured in the same run allow, divided by the median time. Beside it the median, and the ratio to the "
        "first baseline, interleaved with it (above 1 is faster than the baseline).</p>"
    )
    key = charts.legend([*targets.items(), ("baselines", None)])
    twice = [
        abs(row["ratios"]["itself"] - 1) for r in records for row in r.data["results"] if "itself" in row["ratios"]
    ]
    if twice:
        key += (
            f"<p>Noise: {len(twice)} times a kernel was timed against itself; the ratio was within {max(twice):.1%} "
            "of 1.</p>"
        )
    return (
        intro
        + key
        + "".join(
            f'<h3 id="ladder-{escape(op)}">{escape(op)}</h3>{"".join(parts)}' for op, parts in sorted(by_op.items())
        )
    )


def _place(row: Mapping[str, Any], targets: Mapping[str, int]) -> int:
    """Target by target, variants in the order of the ladder, baselines last."""
    return targets[row["target"]] if row["kind"] == "variant" else len(targets)


def _bar(row: Mapping[str, Any], targets: Mapping[str, int], baseline: str | None) -> Bar:
    series = targets[row["target"]] if row["kind"] == "variant" else None
    label = f"{row['target'].partition('@')[0]} {row['name']}" if row["kind"] == "variant" else row["name"]
    if row["ms"] is None:
        return Bar(label, None, row["status"], series)
    ratio = f"{row['ratios'][baseline]:.2f}×" if baseline in row["ratios"] else ""
    share = row["fraction"]
    return Bar(
        label,
        share,
        f"{'' if share is None else f'{100 * share:.0f} %, '}{number(row['ms'])} ms {ratio}".strip(),
        series,
    )


def rooflines(records: Sequence[Record]) -> str:
    """Per op and dtype: rate against arithmetic intensity, under the ceilings of the run."""
    targets = targets_of(records)
    plots: dict[tuple[str, str], list[tuple[Record, dict[str, Any]]]] = defaultdict(list)
    for rows in measured(records).values():
        for record, row in rows:
            if row["tflops"] and row["gbps"] and record.data["ceilings"]:
                plots[row["op"], row["dtype"]].append((record, row))
    if not plots:
        return ""
    figures = [_roofline(op, dtype, rows, targets) for (op, dtype), rows in sorted(plots.items())]
    intro = (
        "<p>Operations a second against operations per byte that has to move. Lines: ceilings measured in the run.</p>"
    )
    return (
        intro + charts.legend([*targets.items(), ("baselines", None)]) + f'<div class="grid2">{"".join(figures)}</div>'
    )


def _roofline(op: str, dtype: str, rows: Sequence[tuple[Record, dict[str, Any]]], targets: Mapping[str, int]) -> str:
    record = rows[-1][0]
    ceilings = Ceilings(**record.data["ceilings"])
    copy, product = ceilings.copy / 1e12, ceilings.products.get(dtype, 0.0) / 1e12
    points = []
    for _, row in rows:
        series = targets[row["target"]] if row["kind"] == "variant" else None
        sizes = "×".join(str(n) for n in row["sizes"].values())
        label = f"{row['name']}: {row['target']}, {sizes}, {number(row['tflops'])} TFLOP/s, {number(row['ms'])} ms"
        points.append(Point(1e3 * row["tflops"] / row["gbps"], row["tflops"], series, label))
    points.sort(key=lambda point: point.series is not None)  # variants over baselines
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
    """Curves along an axis that takes several sizes while the others stay: attention over the sequence, softmax over
    rows."""
    targets = targets_of(records)
    figures = []
    groups: dict[tuple, list[tuple[Record, dict[str, Any]]]] = defaultdict(list)
    for rows in measured(records).values():
        for record, row in rows:
            if row["ms"] is not None:
                groups[tuple(_key(row[n]) for n in ("op", "mode", "dtype", "params", "cache"))].append((record, row))
    for rows in groups.values():
        for axis, fixed, those in _along(rows):
            figures += [_sweep(axis, fixed, those, targets, curve) for curve in _curves(those)]
    key = charts.legend([*targets.items(), ("baselines", None)])
    return f'{key}<div class="grid2">{"".join(figures)}</div>' if figures else ""


Rows = list[tuple[Record, dict[str, Any]]]


def _along(rows: Rows) -> list[tuple[str, dict[str, int], Rows]]:
    """The axis along which there are several sizes, the axes that stay, and the rows in which they do.

    Other axes may move in step with it, one way: a batch that gets smaller as sequences get longer; not where the same
    curve exists without that.
    """
    axes = list(rows[0][1]["sizes"])
    sizes = {id(row): {axis: _key(n) for axis, n in row["sizes"].items()} for _, row in rows}
    steps = {tuple(axis for axis in axes if a[axis] != b[axis]) for a in sizes.values() for b in sizes.values()}
    found: list[tuple[str, dict[str, int], Rows]] = []
    for moving in sorted((step for step in steps if step), key=len):
        numbers = [axis for axis in moving if not any(isinstance(row["sizes"][axis], list) for _, row in rows)]
        if not numbers:
            continue
        still: dict[tuple, Rows] = defaultdict(list)
        for record, row in rows:
            still[tuple(sizes[id(row)][axis] for axis in axes if axis not in moving)].append((record, row))
        for those in still.values():
            main = max(numbers, key=lambda axis: max(row["sizes"][axis] for _, row in those))
            places = {row["sizes"][main] for _, row in those}
            in_step = len({tuple(sizes[id(row)].values()) for _, row in those}) == len(places)
            if any(main == axis and places <= {row["sizes"][axis] for _, row in each} for axis, _, each in found):
                continue
            if in_step and len(places) >= MOST_POINTS and all(_one_way(those, main, axis) for axis in numbers):
                named = {axis: those[0][1]["sizes"][axis] for axis in axes if axis not in moving}
                found.append((main, named, those))
    return found


def _one_way(rows: Rows, main: str, axis: str) -> bool:
    """Whether sizes along `axis` only grow, or only fall, as those along `main` grow."""
    sizes = [size for _, size in sorted({(row["sizes"][main], row["sizes"][axis]) for _, row in rows})]
    return sizes in (sorted(sizes), sorted(sizes, reverse=True))


def _curves(rows: Rows) -> list[tuple[str, str, Callable[[Mapping[str, Any]], float | None]]]:
    """What is worth a curve: the rate, and the memory beyond inputs and outputs where it differs between
    contestants."""
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
    axis: str, fixed: dict[str, int], rows: Rows, targets: Mapping[str, int], curve: tuple[str, str, Callable]
) -> str:
    name, unit, value = curve
    curves: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    series: dict[tuple[str, str], int | None] = {}
    for _, row in rows:
        if value(row):
            who = (row["target"], row["name"])
            curves[who].append((row["sizes"][axis], value(row)))
            series[who] = targets[row["target"]] if row["kind"] == "variant" else None
    first = rows[0][1]
    title = f"{first['op']} {name}: {what({**first, 'sizes': fixed})}"
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
