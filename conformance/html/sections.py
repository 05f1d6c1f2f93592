"""The sections of the report, each from the records of its kind; a section without a record is left out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from touchstone.conformance.html import timings, verdicts
from touchstone.conformance.html.markup import details, scroll, source, table
from touchstone.conformance.html.records import Record
from touchstone.conformance.html.summary import summary

SELFTEST = "What the judge catches, and its false positives"

Section = tuple[str, str, str]  # anchor, title, HTML


def all_sections(records: Sequence[Record]) -> list[Section]:
    """Every section for which there is something to show, for a page that holds everything."""
    kinds = _by_kind(records)
    first = ("summary", "Which kernel", summary(kinds["judged"], kinds["bench"], lambda op: f"#ladder-{op}"))
    return _shown([first, *_detailed(records)])


def of_op(records: Sequence[Record], op: str) -> list[Section]:
    """What there is about one op, for a page of its own."""
    mine = [record.of_op(op) for record in records if op in record.ops()]
    return _shown(_detailed(mine))


def overview(records: Sequence[Record], link: Callable[[str], str]) -> list[Section]:
    """What is about all ops, for a page beside those of each op, which are at `link`."""
    kinds = _by_kind(records)
    return _shown(
        [
            ("summary", "Which kernel", summary(kinds["judged"], kinds["bench"], link)),
            ("verdicts", "Verdicts", verdicts.matrix(kinds["judged"], link)),
            ("selftest", SELFTEST, "".join(map(verdicts.counts, kinds["selftest"]))),
            ("fastest", "The fastest variant of each target", timings.fastest(kinds["bench"])),
            ("records", "Where the numbers come from", sources(records)),
        ]
    )


def _detailed(records: Sequence[Record]) -> list[Section]:
    kinds = _by_kind(records)
    return [
        ("verdicts", "Verdicts", verdicts.verdicts(kinds["judged"])),
        ("selftest", SELFTEST, verdicts.selftests(kinds["selftest"])),
        ("fastest", "The fastest variant of each target", timings.fastest(kinds["bench"])),
        ("ladders", "Ladders", timings.ladders(kinds["bench"])),
        ("rooflines", "Rooflines", timings.rooflines(kinds["bench"])),
        ("sweeps", "Sweeps", timings.sweeps(kinds["bench"])),
        ("compiled", "Compiled", compiled(kinds["judged"])),
        ("records", "Where the numbers come from", sources(records)),
    ]


def _by_kind(records: Sequence[Record]) -> Mapping[str, list[Record]]:
    kinds: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        kinds[record.kind].append(record)
    return kinds


def _shown(made: Sequence[Section]) -> list[Section]:
    return [(anchor, title, body) for anchor, title, body in made if body]


def compiled(records: Sequence[Record]) -> str:
    """Registers, spills and shared memory of every kernel, by variant and architecture."""
    columns = {
        "backend": "backend",
        "variant": "variant",
        "kernel": "kernel",
        "arch": "arch",
        "compiled": "specialisations",
        "registers": "registers",
        "spills": "spilled bytes",
        "shared": "shared bytes",
    }
    by_op: dict[str, list[Any]] = defaultdict(list)
    used: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        for row in record.data.get("compiled", []):
            if row.get("compiled"):
                by_op[row["op"]].append([row.get(name, "") for name in columns])
                used[row["op"]].append(record)
    if not by_op:
        return ""
    intro = (
        "<p>Compiled without a GPU: registers and spilled bytes per thread, static shared memory per block, "
        "each the largest of any.</p>"
    )
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
        targets = Counter(entry["target"] for entry in data["variants"] if not entry["not_run"])
        counts = ", ".join(f"{count} variants on {target}" for target, count in sorted(targets.items())) or "no variant"
        return f"verdicts, level {data.get('level')}, seed {data.get('seed')}: {counts}"
    if record.kind == "selftest":
        return f"a self-test, level {data['level']}, seed {data['seed']}, of {len(data['ops'])} ops"
    return f"{len(data['results'])} timings"
