"""The options that commands and pytest share: name, default and help of each, and the selection that they make."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from touchstone.conformance.discovery import arrays, selection
from touchstone.conformance.discovery.selection import Selection, UsageError
from touchstone.conformance.spec.cases import LEVELS

NAMES = "NAME[,NAME]"
ONE_LEVEL = f"one of {', '.join(LEVELS)}"

SHARED: dict[str, dict[str, Any]] = {
    "op": dict(nargs="*", metavar="OP", help="ops (default: all)"),
    "--op": dict(metavar=NAMES, help="ops (default: all)"),
    "--backend": dict(metavar=NAMES, help="backends (default: every one that runs here)"),
    "--variant": dict(metavar=NAMES, help="variants (default: all)"),
    "--device": dict(
        default="auto", metavar="auto|cpu|cuda", help="where kernels run (default: auto, cuda where a GPU works)"
    ),
    "--kernel": dict(metavar="FILE.py:FUNCTION", help="a function of your own with the op's signature"),
    "--arrays": dict(
        default=arrays.TENSORS,
        metavar="LIBRARY",
        help=f"with --kernel: the arrays it takes and returns: one of {', '.join(arrays.libraries())} (default: torch)",
    ),
    "--op-file": dict(metavar="FILE.py", help="with --kernel: an op of your own, its reference and contract"),
    "--level": dict(default="default", metavar="|".join(LEVELS), help="how many cases (default: default)"),
    "--quick": dict(dest="level", action="store_const", const="quick", help="short for --level quick"),
    "--thorough": dict(dest="level", action="store_const", const="thorough", help="short for --level thorough"),
    "--seed": dict(type=int, default=0, metavar="N", help="seed of the inputs (default: 0)"),
    "--json": dict(metavar="FILE", help="write the result to FILE as JSON"),
}


def add(add_argument: Callable[..., Any], *names: str, **changes: Any) -> None:
    """Add shared options by `add_argument`, argparse's or pytest's; `changes` replace what the table says of them."""
    for name in names:
        add_argument(name, **{**SHARED[name], **changes})


def positive(name: str, value: float | None) -> None:
    """Raise UsageError unless `value`, where it was given, is above 0."""
    if value is not None and not value > 0:
        raise UsageError(f"{name}: expected a positive number, got {value}")


def files(options: argparse.Namespace) -> None:
    """Raise UsageError where a file is to be written into a folder that is not there: before the work, not after."""
    for name in ("json", "csv", "picture"):
        path = getattr(options, name, None)
        if path and not Path(path).parent.is_dir():
            raise UsageError(f"--{name}: there is no folder {Path(path).parent}")


def level(name: str) -> None:
    """Raise UsageError unless `name` is a level."""
    if name not in LEVELS:
        raise UsageError(f"--level: expected {ONE_LEVEL}, got {name!r}")


def select(options: argparse.Namespace, level: str, device: str | None = None) -> Selection:
    """The selection that a command's options ask for; options that the command lacks have their defaults."""
    return selection.select(
        options.backend,
        device or options.device,
        ",".join(options.op) if options.op else None,
        options.variant,
        level,
        getattr(options, "kernel", None),
        getattr(options, "seed", 0),
        library=getattr(options, "arrays", arrays.TENSORS),
        op_file=getattr(options, "op_file", None),
    )


def prepare(chosen: Selection) -> None:
    """Set this process up for the selection's device; raises UsageError where it is set up for the other one."""
    try:
        chosen.prepare()
    except RuntimeError as error:
        raise UsageError(str(error)) from error


def require_imports(chosen: Selection) -> None:
    """Raises UsageError naming the kernel files of the selection that do not import."""
    if broken := selection.import_check(chosen):
        raise UsageError("kernel files that do not import:\n" + "\n".join(broken))
