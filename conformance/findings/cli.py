"""`python -m touchstone replay`: run the trial of one finding again."""

import argparse
from typing import Any

from touchstone.conformance.discovery import options as shared
from touchstone.conformance.reporting.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    replay = commands.add_parser(
        "replay",
        help="run the trial of one finding again and say what is wrong",
        description="Run the trial of one finding again and say what is wrong; with --minimise, shrink it to a "
        "stand-alone script. Exit status 1: it still fails.",
    )
    replay.add_argument("id", metavar="ID", help="the finding's id, as printed in brackets")
    replay.add_argument("--minimise", action="store_true", help="shrink it and print a stand-alone script")
    replay.add_argument(
        "--seconds", type=float, default=60.0, metavar="SECONDS", help="with --minimise: about how long (default: 60)"
    )
    replay.add_argument("--picture", metavar="FILE", help="draw the errors into FILE.png or FILE.svg")
    replay.add_argument(
        "--anywhere", action="store_true", help="run the kernel's file though it is not under the current folder"
    )
    shared.add(replay.add_argument, "--json")
    replay.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command. Exit status 1 where the finding is there again."""
    from touchstone.conformance.findings import replay

    shared.positive("--seconds", options.seconds)
    result = replay.replay(
        options.id,
        minimise=options.minimise,
        picture_to=options.picture,
        seconds=options.seconds,
        anywhere=options.anywhere,
    )
    print(replay.text(result))
    if result["script"]:
        print(f"\n{result['script']}", end="")
    finding = result["finding"]
    options.recording.concerns(finding["device"], finding["level"], finding["seed"])
    options.recording.entries["replay"] = result
    return Status.FAILED if result["failed"] else Status.PASSED
