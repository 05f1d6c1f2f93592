"""`python -m touchstone describe`: by what a kernel would be judged whose contract is derived from a function of
torch."""

import argparse
from typing import Any

from touchstone.conformance.discovery import derivation
from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    made = commands.add_parser(
        "describe",
        help="by what a kernel of any PyTorch function would be judged",
        description="Derive the contract of a function of torch and print it: axes, sizes, families of values, error "
        "budgets, and how many wrong versions of the function it rejects (docs/any-function.md).",
    )
    made.add_argument("reference", nargs="?", metavar="FILE.py:FUNCTION", help="the function, in torch")
    shared.add(made.add_argument, "--inputs", "--kernelbench")
    made.add_argument("--mutants", type=int, default=24, metavar="N", help="wrong versions to try (default: 24)")
    made.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command; the status is that of a kernel that passes, unless the contract would not be used."""
    from touchstone.conformance.against import description

    if (options.reference is None) == (options.kernelbench is None):
        raise UsageError("expected FILE.py:FUNCTION with --inputs, or --kernelbench=FILE.py")
    if options.mutants < 0:
        raise UsageError(f"--mutants: expected a whole number of at least 0, got {options.mutants}")
    try:
        if options.reference is not None:
            contract = derivation.of_files(options.reference, options.inputs)
            name = options.reference.rpartition(":")[2]
        else:
            contract, name = derivation.of_problem(options.kernelbench), "Model"
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    print(description(contract, name, options.mutants))
    return Status.PASSED
