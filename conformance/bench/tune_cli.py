"""`python -m touchstone tune`: time the configurations of variants on this GPU and pin the fastest."""

import argparse
from typing import Any

from touchstone.conformance.discovery import options as shared
from touchstone.conformance.reporting.console import Table, show
from touchstone.conformance.reporting.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    tune = commands.add_parser(
        "tune",
        help="time a variant's configurations on this GPU and pin the fastest",
        description="Time the configurations of every variant that declares several, on this GPU, after they passed "
        "the judge, and pin the fastest in the variant's table. Exit status 1: nothing was pinned.",
    )
    shared.add(tune.add_argument, "op", help="ops to tune (default: every op with a tunable variant)")
    shared.add(tune.add_argument, "--backend", "--variant")
    tune.add_argument("--dry-run", action="store_true", help="print what would be pinned, write nothing")
    shared.add(tune.add_argument, "--json")
    tune.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command. Exit status 1 where nothing was pinned."""
    from touchstone.conformance.bench.tune import tune

    chosen = shared.select(options, "quick", device="cuda", on_gpu="tuning")
    options.recording.concerns(chosen.device)
    shared.prepare(chosen)
    records = tune(chosen, write=not options.dry_run)
    columns = ["op", "variant", "dtype", "sizes", "config", "ms", "tried"]
    table = Table("pinned configurations", columns)
    table.rows += [[str(record[key]) for key in columns] for record in records]
    show(table)
    options.recording.entries["pinned"] = records
    return Status.PASSED if records else Status.FAILED
