"""The sections on what the judge said of kernels, and on what its self-test says of the judge."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from touchstone.conformance.html.markup import breakable, details, scroll, source, table
from touchstone.conformance.html.records import Record
from touchstone.conformance.reporting.console import Table, fraction_text
from touchstone.conformance.selftest.results import heading
from touchstone.conformance.spec.cases import LEVELS
from touchstone.conformance.spec.compare import worst


def verdicts(records: Sequence[Record]) -> str:
    """Ops by targets, then each op's variants."""
    variants = best_known(records)
    if not variants:
        return ""
    ops = sorted({op for op, _, _ in variants})
    return matrix(records, lambda op: f"#op-{op}") + "".join(_variants_of(op, variants) for op in ops)


def matrix(records: Sequence[Record], link: Callable[[str], str]) -> str:
    """Ops by targets: the worst error as a fraction of its budget. `link` is where more about an op stands."""
    variants = best_known(records)
    if not variants:
        return ""
    targets = sorted({target for _, target, _ in variants})
    head = "".join(f"<th>{escape(target)}</th>" for target in targets)
    body = []
    for op in sorted({op for op, _, _ in variants}):
        cells = [
            _verdict([found for (o, at, _), (_, found) in variants.items() if (o, at) == (op, target)])
            for target in targets
        ]
        body.append(f'<tr><th><a href="{escape(link(op))}">{breakable(op)}</a></th>{"".join(cells)}</tr>')
    made = scroll(
        f'<table class="matrix"><thead><tr><th>op</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )
    intro = (
        "<p>The largest error of any variant in any case, as a fraction of the error budget of its output and dtype: "
        "1.00 is the limit. Below it, how many variants were judged, and in how many trials. Of several records the "
        "highest level counts.</p>"
    )
    return intro + made + source(record for record, _ in variants.values())


def verdict_table(records: Sequence[Record]) -> Table:
    """Ops by targets, for a page in Markdown: variants that passed of those that ran, the worst error, the level."""
    variants = best_known(records)
    targets = sorted({target for _, target, _ in variants})
    made = Table("variants that pass, and the worst error as a fraction of its budget", ["op", *targets])
    for op in sorted({op for op, _, _ in variants}):
        cells = []
        for target in targets:
            ran = [
                (r, entry)
                for (o, at, _), (r, entry) in variants.items()
                if (o, at) == (op, target) and not entry["not_run"]
            ]
            good = sum(entry["failed"] == 0 and entry["passed"] > 0 for _, entry in ran)
            largest = worst([w for _, entry in ran if (w := worst_of(entry)) is not None])
            levels = "/".join(dict.fromkeys(str(r.data.get("level")) for r, _ in ran))
            cells.append(f"{good} of {len(ran)}, {fraction_text(largest)}, {levels}" if ran else "-")
        made.rows.append([op, *cells])
    return made


Variants = dict[tuple[str, str, str], tuple[Record, dict[str, Any]]]


def best_known(records: Sequence[Record]) -> Variants:
    """(op, target, variant) -> the record of the highest level that judged it, the newest of them, and what it says."""
    levels = list(LEVELS)

    def rank(record: Record, entry: Mapping[str, Any]) -> tuple:
        level = record.data.get("level")
        return not entry["not_run"], levels.index(level) if level in levels else -1, record.about.get("date") or ""

    found: Variants = {}
    for record in records:
        for entry in record.data["variants"]:
            key = (entry["op"], entry["target"], entry["variant"])
            if key not in found or rank(record, entry) >= rank(*found[key]):
                found[key] = (record, entry)
    return found


def worst_of(entry: Mapping[str, Any]) -> float | None:
    return worst([fraction for row in entry["worst"].values() for fraction in row.values()])


def _verdict(variants: Sequence[Mapping[str, Any]]) -> str:
    ran = [entry for entry in variants if not entry["not_run"]]
    if not ran:
        return f'<td class="none">{"not run" if variants else "no kernel"}</td>'
    failed, passed = sum(entry["failed"] for entry in ran), sum(entry["passed"] for entry in ran)
    largest = worst([w for w in map(worst_of, ran) if w is not None])
    counts = f"{len(ran)} variants, {passed:,} trials" if len(ran) > 1 else f"1 variant, {passed:,} trials"
    if len(ran) < len(variants):
        counts += f", {len(variants) - len(ran)} not run"
    if failed:
        return (
            f'<td style="background:rgb(var(--bad) / .18)"><span class="bad">{failed} '
            f"failed</span><small>{counts}</small></td>"
        )
    shade = 0.1 + 0.25 * min(largest or 0.0, 1.0)
    return f'<td style="background:rgb(var(--good) / {shade:.2f})">{fraction_text(largest)}<small>{counts}</small></td>'


def _variants_of(op: str, variants: Variants) -> str:
    mine = {key: found for key, found in variants.items() if key[0] == op}
    dtypes = list(dict.fromkeys(dtype for _, entry in mine.values() for dtype in entry["worst"]))
    rows, failures = [], []
    for (_, target, variant), (record, entry) in mine.items():
        errors = [worst(list(entry["worst"].get(dtype, {}).values())) for dtype in dtypes]
        counts = [entry[status] for status in ("passed", "failed", "declined")]
        counts = ["not run", "", ""] if entry["not_run"] else counts
        rows.append(
            [
                target,
                variant,
                record.data.get("level") or "",
                *counts,
                *map(fraction_text, errors),
                entry["compute"] or "",
            ]
        )
        failures += [f"{target} {variant} [{f['id']}] {f['check']}: {f['message']}" for f in entry["findings"]]
    columns = ["target", "variant", "level", "passed", "failed", "declined", *dtypes, "computes in"]
    lines = "".join(f'<p class="bad">{escape(line)}</p>' for line in failures)
    body = details(
        f"{op}: {len(mine)} variants", table(columns, rows, numbers=["passed", "failed", "declined", *dtypes]) + lines
    )
    return f'<div id="op-{escape(op)}">{body}</div>'


def selftests(records: Sequence[Record]) -> str:
    """Counts by op, the same mutants under other rules, and for each op which families of cases kill what."""
    return "".join(map(counts, records)) + "".join(map(_by_kind, records))


def counts(record: Record) -> str:
    """How many mutants are killed and how many right kernels rejected, by op, and under the rules of others."""
    mutants = [one for op in record.data["ops"] for one in op["judged"] if one["kind"] != "known-good"]
    known_good = [one for op in record.data["ops"] for one in op["judged"] if one["kind"] == "known-good"]
    killed, twice = (sum(one["kills"] >= n for one in mutants) for n in (1, 2))
    checks, alarms = sum(one["trials"] for one in known_good), sum(one["kills"] for one in known_good)
    said = (
        f"<p><b>{killed:,} of {len(mutants):,} mutants are killed</b>, {twice:,} by two trials or more; "
        f"{len(known_good)} right kernels written independently have <b>{alarms or 'no'} false alarms in {checks:,} "
        f"checks</b>. Level {escape(str(record.data['level']))}.</p>"
    )
    columns = [
        "op",
        "mutants",
        "killed",
        "by two or more",
        "known-good",
        "checks",
        "false alarms",
        "idle families",
        "redundant",
    ]
    rows = [_counts(op) for op in record.data["ops"]]
    parts = [said, table(columns, rows, numbers=columns[1:]), source([record])]
    if holes := record.data.get("holes"):
        parts.append(details(f"Gaps: {len(holes)}", "".join(f"<p>{escape(line)}</p>" for line in holes)))
    if compared := record.data.get("comparison"):
        parts.append("<h3>The same mutants under other projects' rules</h3>")
        parts.append("<p>Torch mutants caught, of those to which the rule applies.</p>")
        parts.append(table(compared["columns"], compared["rows"], numbers=compared["columns"][1:]) + source([record]))
    return "".join(parts)


def _by_kind(record: Record) -> str:
    intro = "<h3>Kill matrix</h3><p>Share of the mutants of a kind that some trial of the family kills.</p>"
    return intro + "".join(
        details(f"{op['op']}: {len(op['judged'])} kernels", _matrix(op) + _worth(op) + _planted(op))
        for op in record.data["ops"]
    )


def _counts(op: Mapping[str, Any]) -> list[str]:
    mutants = [one for one in op["judged"] if one["kind"] != "known-good"]
    known_good = [one for one in op["judged"] if one["kind"] == "known-good"]
    redundant = "-" if op["redundant"] is None else len(op["redundant"])
    return [
        op["op"],
        *map(
            str,
            (
                len(mutants),
                sum(one["kills"] > 0 for one in mutants),
                sum(one["kills"] > 1 for one in mutants),
                len(known_good),
                sum(one["trials"] for one in known_good),
                sum(one["kills"] for one in known_good),
                "-" if op["redundant"] is None else len(op["idle"]),
                redundant,
            ),
        ),
    ]


def _matrix(op: Mapping[str, Any]) -> str:
    """Kinds of mutants by families of values, properties and calls."""
    shown = range(len(op["families"]))
    kinds: dict[str, list[Any]] = defaultdict(list)
    for one in op["judged"]:
        if one["kind"] != "known-good":
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
        f"(mutants)</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        '<p class="note">per cent</p>'
    )


def _worth(op: Mapping[str, Any]) -> str:
    """The families that kill nothing, and those that the others could do without."""
    if op["redundant"] is None:
        return ""
    said = {
        "Kill nothing": op["idle"],
        "Each could be left out, and every mutant would still be killed": op["redundant"],
    }
    lines = "".join(f"<p>{what}: {escape(', '.join(names))}.</p>" for what, names in said.items() if names)
    return details("families that are idle or redundant", lines) if lines else ""


def _planted(op: Mapping[str, Any]) -> str:
    rows = [
        [one["name"], one["backend"] or "torch", one["kind"], f"{one['kills']} of {one['trials']}", one["about"]]
        for one in op["judged"]
    ]
    return details(
        "all mutants and known-good kernels", table(["name", "in", "kind", "trials that fail", "what"], rows)
    )
