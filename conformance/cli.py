"""`python -m touchstone COMMAND`: assembles the commands; each has its options and its body in its own room."""

import argparse
import os
import sys
from collections.abc import Sequence

import touchstone
from touchstone.conformance import check_cli
from touchstone.conformance.bench import cli as bench
from touchstone.conformance.bench import tune_cli
from touchstone.conformance.discovery import options as shared
from touchstone.conformance.findings import cli as replay
from touchstone.conformance.html import cli as report
from touchstone.conformance.porting import cli as port
from touchstone.conformance.reporting import cli as inventory
from touchstone.conformance.selftest import cli as selftest

USAGE_ERROR = 2
INTERRUPTED = 130  # what a shell reports of a command that SIGINT ended
BROKEN_PIPE = 141  # and of one that SIGPIPE ended
COMMANDS = (inventory, check_cli, replay, selftest, tune_cli, port, bench, report)  # as --help lists them


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 passed, 1 failed, 2 wrong usage."""
    options = parser().parse_args(argv)
    try:
        shared.files(options)
        return options.run(options)
    except ValueError as error:  # UsageError is one
        print(f"python -m touchstone {options.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:  # `... | head`: whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout when it ends
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    made = argparse.ArgumentParser(
        prog="python -m touchstone",
        description="Judge GPU kernels against a float64 reference, and time those that are right.",
        epilog="`python -m touchstone COMMAND --help` explains a command. Exit status: 0 passed, 1 failed, 2 wrong "
        "arguments.",
    )
    made.add_argument("--version", action="version", version=f"touchstone {touchstone.__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return made
