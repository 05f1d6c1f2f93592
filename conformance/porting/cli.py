"""`python -m touchstone port`: begin a port of a variant to another language, or compare a port with its source."""

import argparse
from typing import Any

from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.console import write_json


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    port = commands.add_parser(
        "port",
        help="begin a port of a variant to another language, or compare a port with its source",
        description="Write a file for another backend's language, with the signatures and launches of a variant and "
        "bodies that are left to write; with --trace, compare a port with its source, tile by tile.",
    )
    port.add_argument("op", metavar="OP", help="the op to port")
    port.add_argument("--from", dest="source", metavar="NAME", required=True, help="the backend to port from")
    port.add_argument("--to", dest="target", metavar="NAME", required=True, help="the backend to port to")
    shared.add(port.add_argument, "--variant", help="variants of the source (default: its whole ladder)")
    port.add_argument("--as", dest="name", metavar="NAME", help="name of the ported variant in the target language")
    port.add_argument(
        "-o",
        "--output",
        metavar="FILE.py",
        help="the file to write (default, in a clone of the repository: backends/TO/OP.py)",
    )
    port.add_argument(
        "--trace", action="store_true", help="run source and port on the CPU and show the first tile that differs"
    )
    port.add_argument("--case", metavar="ID", help="with --trace: a case, as check names it (default: small ones)")
    shared.add(port.add_argument, "--seed", help="with --trace: seed of the inputs (default: 0)")
    shared.add(port.add_argument, "--json")
    port.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """The command. Exit status 1 where --trace finds a difference."""
    from touchstone.conformance.porting import port, trace

    planned = port.plan(options.op, options.source, options.target, options.variant, options.output, options.name)
    if options.trace:
        found = trace.trace(planned, options.case, options.seed)
        print(found)
        if options.json:
            write_json(options.json, found.to_dict())
        return 0 if found.agrees else 1
    if options.case is not None or options.seed:
        raise UsageError("--case and --seed go with --trace")
    if not options.output and not registry.is_clone():
        raise UsageError(
            "-o: expected the file to write: only in a clone of the repository there is a folder for it "
            f"(backends/{options.target}), and this Touchstone is installed in {registry.ROOT}"
        )
    written = port.write(planned)
    print(port.summary(planned, written))
    if options.json:
        write_json(options.json, port.record(planned, written))
    return 0
