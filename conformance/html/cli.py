"""`python -m touchstone report`: records into HTML that needs no network: one page, or one an op beside an overview."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.console import Table
from touchstone.conformance.reporting.record import of_one_form
from touchstone.conformance.reporting.status import Status, is_the_machines

RESULTS = registry.ROOT / "docs" / "results"
STYLE = Path(__file__).with_name("style.css")
SCRIPT = Path(__file__).with_name("report.js")
LARGEST = 1_000_000  # bytes of a page


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    report = commands.add_parser(
        "report",
        help="make HTML pages from the records that --json and judge write",
        description="Make an HTML page, which needs no network, from the records that check, selftest, bench and "
        "pytest write with --json, and from the results of judge. Where it would be larger than a megabyte, it is an "
        "overview, and a folder beside it has a page for each op.",
    )
    report.add_argument(
        "record",
        nargs="*",
        metavar="RECORD.json",
        help="files written with --json, or by judge (default, in a clone of the repository: docs/results/*.json)",
    )
    report.add_argument("-o", "--output", metavar="FILE.html", help="the page to write (default: report.html)")
    report.add_argument(
        "--keep", metavar="FOLDER", help="write the records in short form into FOLDER; a page then only with -o"
    )
    report.add_argument(
        "--markdown", action="store_true", help="print the tables of verdicts and of the fastest variants instead"
    )
    report.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    from touchstone.conformance.html import records

    paths = options.record or sorted(RESULTS.glob("*.json"))
    if not paths:
        where = "docs/results has none" if registry.is_clone() else "an installed Touchstone keeps none"
        raise UsageError(
            f"RECORD.json: expected files that check, selftest, bench or pytest wrote with --json; {where}"
        )
    found = records.read(paths)
    with of_one_form(", ".join(str(path) for path in paths)):
        return _made(options, found)


def _made(options: argparse.Namespace, found: Sequence[Any]) -> Status:
    from touchstone.conformance.html import records

    if options.markdown:
        if options.output or options.keep:
            raise UsageError("--markdown prints, and goes with neither --output nor --keep")
        print("\n\n".join(table.markdown() for table in tables(found) if table.rows))
        return Status.PASSED
    if options.keep:
        for path in records.keep(found, options.keep):
            print(f"kept {path}, {path.stat().st_size / 1024:.0f} KB")
    if options.output or not options.keep:
        output = Path(options.output or "report.html")
        made = pages(found, output.stem)
        try:
            for name, text in made.items():
                if name:
                    output.with_suffix("").mkdir(exist_ok=True)
                (output.parent / name if name else output).write_text(text)
        except OSError as error:
            if is_the_machines(error):
                raise
            raise UsageError(f"--output: {output}: {error.strerror}") from None
        others = f" and {len(made) - 1} pages in {output.with_suffix('')}," if len(made) > 1 else ""
        size = output.stat().st_size / 1024
        print(f"wrote {output}, {size:.0f} KB,{others} from {', '.join(record.name for record in found)}")
    return Status.PASSED


def tables(found: Sequence[Any]) -> list[Table]:
    """The verdicts and the fastest variants."""
    from touchstone.conformance.html import timings, verdicts

    judged, timed = ([record for record in found if record.kind == kind] for kind in ("judged", "bench"))
    return [verdicts.verdict_table(judged), timings.fastest_table(timed)]


def pages(found: Sequence[Any], folder: str) -> dict[str, str]:
    """The report: one page, by the name ""; where that would be more than LARGEST bytes, an overview and a page an op,
    by their names below `folder`."""
    from touchstone.conformance.html.sections import all_sections, of_op, overview

    whole = page("Touchstone report", all_sections(found))
    if len(whole.encode()) <= LARGEST:
        return {"": whole}
    made = {"": page("Touchstone report", overview(found, lambda op: f"{folder}/{op}.html"))}
    for op in sorted(set().union(*(record.ops() for record in found))):
        made[f"{folder}/{op}.html"] = page(f"{op}, Touchstone report", of_op(found, op), back=f"../{folder}.html")
    return made


def page(title: str, parts: Sequence[tuple[str, str, str]], back: str | None = None) -> str:
    """One HTML page of sections (anchor, heading, HTML), which needs no network. `back`: of the overview, if any."""
    links = f'<a href="{escape(back)}">all ops</a>' if back else ""
    links += "".join(f'<a href="#{anchor}">{escape(heading)}</a>' for anchor, heading, _ in parts)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(heading)}</h2>{text}</section>' for anchor, heading, text in parts
    )
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE.read_text()}</style></head><body>"
        f'<header><h1>{escape(title.partition(",")[0])}</h1><p class="note">Kernels judged against float64, and timed; '
        f"made {when}. Each figure names the record that it comes from.</p><nav>{links}</nav></header>"
        f"<main>{body}</main><script>{SCRIPT.read_text()}</script></body></html>\n"
    )
