"""`python -m touchstone port`: begin a port of a variant to another language, or compare a port with its source."""

import argparse
from typing import Any

from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    port = commands.add_parser(
        "port",
        help="begin a port of a variant to another language, or compare a port with its source",
        description="Write a file for another backend's language, with the signatures and launches of a variant, or "
        "of a function of your own, and bodies that are left to write; with --trace, compare a port with its source, "
        "tile by tile. Nothing is written without -o.",
    )
    port.add_argument("op", metavar="OP", help="the op to port")
    port.add_argument("--from", dest="source", metavar="NAME", required=True, help="the backend to port from")
    port.add_argument("--to", dest="target", metavar="NAME", required=True, help="the backend to port to")
    shared.add(port.add_argument, "--variant", help="variants of the source (default: its whole ladder)")
    shared.add(port.add_argument, "--kernel", help="a function of your own to port, in place of a variant")
    port.add_argument("--as", dest="name", metavar="NAME", help="name of the ported variant in the target language")
    port.add_argument(
        "-o",
        "--output",
        metavar="FILE.py",
        help="the file to write, or with --trace the one to compare (without -o what would be written is printed; "
        "--trace compares backends/TO/OP.py)",
    )
    port.add_argument(
        "--trace", action="store_true", help="run source and port on the CPU and show the first tile that differs"
    )
    port.add_argument("--case", metavar="ID", help="with --trace: a case, as check names it (default: small ones)")
    shared.add(port.add_argument, "--seed", help="with --trace: seed of the inputs (default: 0)")
    shared.add(port.add_argument, "--json")
    port.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command. Exit status 1 where --trace finds a difference."""
    from touchstone.conformance.porting import port, trace

    output = options.output or (None if options.trace else f"{options.op}.py")
    planned = port.plan(
        options.op, options.source, options.target, options.variant, output, options.name, options.kernel
    )
    if options.trace:
        found = trace.trace(planned, options.case, options.seed or 0)
        print(found)
        options.recording.concerns("cpu", seed=options.seed or 0)
        options.recording.entries["trace"] = found.to_dict()
        return Status.PASSED if found.agrees else Status.FAILED
    if options.case is not None or options.seed is not None:
        raise UsageError("--case and --seed go with --trace")
    written = port.write(planned) if options.output else []
    print(port.summary(planned, written))
    options.recording.entries["port"] = port.record(planned, written)
    return Status.PASSED
