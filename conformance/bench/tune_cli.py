"""`python -m touchstone tune`: time the configurations of variants on this GPU and pin the fastest; with --best, time
whole ladders, for `touchstone.best` to choose by."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.discovery.selection import Selection, UsageError
from touchstone.conformance.reporting.console import Table, show
from touchstone.conformance.reporting.status import Status

WITH_BEST = ("from", "shapes")  # options that go with --best alone


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    tune = commands.add_parser(
        "tune",
        help="time a variant's configurations on this GPU and pin the fastest",
        description="Time the configurations of every variant that declares several, on this GPU, after they passed "
        "the judge, and pin the fastest in the variant's table. With --best, time the variants of each ladder instead, "
        "and write the table by which touchstone.best chooses one for a call. Exit status 1: nothing was pinned.",
    )
    shared.add(tune.add_argument, "op", help="ops to tune (default: every op with a tunable variant; with --best, all)")
    shared.add(tune.add_argument, "--backend", "--variant")
    tune.add_argument("--best", action="store_true", help="time the variants of each ladder against one another")
    tune.add_argument(
        "--from",
        nargs="+",
        metavar="RECORD",
        help="with --best: time nothing, take what records of `bench --json` on a GPU hold; needs no GPU",
    )
    tune.add_argument(
        "--shapes", metavar="large|FILE", help="with --best: the cases, as for `bench` (default: the contracts' large)"
    )
    tune.add_argument("--dry-run", action="store_true", help="print what would be pinned, write nothing")
    shared.add(tune.add_argument, "--json")
    tune.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command. Exit status 1 where nothing was pinned."""
    for name in WITH_BEST if not options.best else ():
        if vars(options)[name] is not None:
            raise UsageError(f"--{name}: goes with --best")
    return _best(options) if options.best else _configurations(options)


def _configurations(options: argparse.Namespace) -> Status:
    """Of each variant that declares several."""
    from touchstone.conformance.bench.tune import tune

    chosen = _on_gpu(options)
    shared.prepare(chosen)
    records = tune(chosen, write=not options.dry_run)
    columns = ["op", "variant", "dtype", "sizes", "config", "ms", "tried"]
    table = Table("pinned configurations", columns)
    table.rows += [[str(record[key]) for key in columns] for record in records]
    show(table)
    options.recording.entries["pinned"] = records
    return Status.PASSED if records else Status.FAILED


def _on_gpu(options: argparse.Namespace) -> Selection:
    chosen = shared.select(options, "quick", device="cuda", on_gpu="tuning")
    options.recording.concerns(chosen.device)
    return chosen


def _best(options: argparse.Namespace) -> Status:
    """The tables of whole ladders."""
    from touchstone.conformance.bench import best, records

    if options.variant is not None:
        raise UsageError("--variant: goes without --best, which times the variants of a ladder against one another")
    found = vars(options)["from"]
    if found is not None and options.shapes is not None:
        raise UsageError("--from and --shapes: give one of the two; with --from nothing is timed")
    if found is None:
        parts = _timed(options)
    else:
        ops, backends = _asked(options)
        read = [best.of_record(records.read(p, best.FROM), f"{best.FROM}: {p}", ops, backends) for p in found]
        parts = iter([read])
    columns = ["op", "backend", "arch", "points", "new"]
    table = Table("what best chooses by", columns)
    pinned = options.recording.entries["pinned"] = []
    replaced = []
    for part in parts:
        made = best.write(part, options.dry_run)
        replaced += made.replaced
        for each, changed in made.tables:
            row = [each.op, each.backend, each.arch, len(each.points), changed]
            table.rows.append([str(cell) for cell in row])
            pinned.append({**dict(zip(columns, row, strict=True)), "file": str(each.path.relative_to(registry.ROOT))})
    show(table)
    for why in replaced:
        print(f"written anew: {why}")
    return Status.PASSED if pinned else Status.FAILED


def _asked(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The ops and backends asked for, whatever runs here."""
    chosen = selection.select(op=",".join(options.op) if options.op else None, device="cpu", op_option="op")
    known = [name for name in registry.backends() if registry.kernel_ops(name)]
    asked = [name.strip() for name in options.backend.split(",")] if options.backend else known
    for name in asked:
        registry.backend(name)
    return chosen.ops, asked


def _timed(options: argparse.Namespace) -> Iterator[Sequence[Any]]:
    """The tables of a run on this GPU, op by op: who stops it keeps those of the ops that are done."""
    from touchstone.conformance.bench import best
    from touchstone.conformance.bench.run import guard

    chosen = _on_gpu(options)
    watch = guard()  # before any kernel's file is imported
    shared.prepare(chosen)
    shared.require_imports(chosen)
    for found in best.measure(chosen, options.shapes or "large", options.recording.about, watch):
        yield [best.of_record(found, "this run", chosen.ops, chosen.backends)]
