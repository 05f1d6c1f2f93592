"""`python -m touchstone COMMAND`: assembles the commands; each has its options and its body in its own room."""

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import touchstone
from touchstone.conformance import check_cli, describe_cli, emulate_cli, judge_cli
from touchstone.conformance.bench import cli as bench
from touchstone.conformance.bench import tune_cli
from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.findings import cli as replay
from touchstone.conformance.html import cli as report
from touchstone.conformance.porting import cli as port
from touchstone.conformance.reporting import cli as inventory
from touchstone.conformance.reporting import schema_cli as schema
from touchstone.conformance.reporting.record import STDOUT, Record, standard_output_kept
from touchstone.conformance.reporting.status import BROKEN_PIPE, EXPLAINED, Status, is_the_machines
from touchstone.conformance.selftest import cli as selftest
from touchstone.conformance.spec.returned import visible
from touchstone.conformance.spec.words import did_you_mean, not_one_of

COMMANDS = (
    inventory,
    check_cli,
    describe_cli,
    judge_cli,
    emulate_cli,
    replay,
    selftest,
    tune_cli,
    port,
    bench,
    report,
    schema,
)  # as --help lists them


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status, a `Status`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parse(arguments)
    path = getattr(options, "json", None)
    try:
        with (
            terminated_as_interrupted(),
            standard_output_kept() if path == STDOUT else nullcontext(sys.stdout) as stream,
        ):
            options.recording = Record(options.command, path, ["python", "-m", "touchstone", *arguments], stream)
            status = _run(options, arguments)
            try:
                options.recording.end(status)
            except OSError as error:
                if isinstance(error, BrokenPipeError):
                    raise
                status = _told(options, f"--json: {path}: {error.strerror}", Status.NOT_RUN)
        sys.stdout.flush()  # a closed pipe is met here, and not when the interpreter ends
        return status
    except BrokenPipeError:  # `... | head`: whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout when it ends
        return BROKEN_PIPE


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Within: SIGTERM ends this process, and none that it forks, as Ctrl-C does. One that was told to pass over it
    does."""
    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _end_at_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_at_sigterm)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> Status:
    """Run the command, and say on standard error why it came to no end of its own."""
    try:
        shared.contradictions(arguments)
        shared.files(options)
        return Status(options.run(options))
    except CannotRun as error:
        options.recording.reason = str(error)
        return _told(options, str(error), Status.NOT_RUN)
    except ValueError as error:  # UsageError is one
        return _told(options, str(error), Status.USAGE)
    except (OSError, MemoryError) as error:
        if not is_the_machines(error):
            raise
        options.recording.reason = f"this machine could not go on: {error or type(error).__name__}"
        return _told(options, options.recording.reason, Status.NOT_RUN)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Status.INTERRUPTED


def _told(options: argparse.Namespace, message: str, status: Status) -> Status:
    print(f"python -m touchstone {options.command}: {visible(message)}", file=sys.stderr)
    return status


def _parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a command; for a word that no command knows, the one that may be meant."""
    made, commands = _parsers()
    word = next((argument for argument in arguments if not argument.startswith("-")), None)
    if word is not None and word not in commands:
        made.error(f"COMMAND: {not_one_of(word, commands)}")
    options, unknown = made.parse_known_args(arguments)
    if unknown:
        command = commands[options.command]
        name = unknown[0].partition("=")[0]
        if name == "--op" and "op" in vars(options):
            meant = f"; ops come without an option: {options.command} OP"
        else:
            meant = did_you_mean(name, re.findall(r"--[a-z-]+", command.format_usage()))
        command.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return options


class _Parser(argparse.ArgumentParser):
    """That of a command. It takes no beginning of an option for the option: --op is not --op-file."""

    def __init__(self, **about: Any):
        super().__init__(**about, epilog=EXPLAINED, allow_abbrev=False)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    return _parsers()[0]


def _parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of all commands, and each command's own."""
    made = argparse.ArgumentParser(
        prog="python -m touchstone",
        description="Judge GPU kernels against a float64 reference, and time those that are right.",
        epilog=f"`python -m touchstone COMMAND --help` explains a command. {EXPLAINED}",
    )
    made.add_argument("--version", action="version", version=f"touchstone {touchstone.__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        command.add(commands)
    return made, commands.choices
