"""`python -m touchstone emulate`: run a kernel of a `.cu` file on the CPU, and say what a GPU would leave undefined."""

from typing import Any

from touchstone.backends.emulator import command
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    made = commands.add_parser(
        "emulate",
        help="run a kernel of a .cu file, or a program of CUDA kernels in Python, on the CPU",
        description="Compile the kernels of a .cu file as it stands for the CPU, list them, or run one in three orders "
        "of its threads and blocks and under the race detector (docs/emulator.md).",
    )
    command.add_options(made)
    made.set_defaults(run=run)


def run(options: Any) -> Status:
    """The command; FAILED after a finding, and where a Python program ends with a status of its own."""
    try:
        status = command.run(options)
        return Status(status) if status in (Status.PASSED, Status.FAILED, Status.USAGE) else Status.FAILED
    except KeyError as error:
        raise UsageError(error.args[0]) from error
    except (TypeError, RuntimeError, OSError) as error:
        raise UsageError(str(error)) from error
