"""`python -m touchstone schema`: what a record looks like, as JSON Schema."""

import argparse
from typing import Any

from touchstone.conformance.reporting.record import SCHEMA
from touchstone.conformance.reporting.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of what --json writes",
        description="Print the JSON Schema of what --json writes; docs/records.md explains it.",
    )
    schema.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The schema as the package has it."""
    print(SCHEMA.read_text(), end="")
    return Status.PASSED
