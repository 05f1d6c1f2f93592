"""`python -m touchstone describe`: the interface of an op, or by what a kernel would be judged whose contract is
derived from a function of torch."""

import argparse
from typing import Any

from touchstone.conformance.discovery import derivation, registry
from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.reporting.interface import described
from touchstone.conformance.reporting.status import Status


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    made = commands.add_parser(
        "describe",
        help="the interface of an op; by what a kernel of any PyTorch function would be judged",
        description="Of an op: how a kernel is called, its operands, options and outputs with their shapes and dtypes, "
        "what it computes, and on what it is judged. Of a function of torch: derive its contract and print it, with "
        "axes, sizes, families of values, error budgets, and how many wrong versions of the function it rejects "
        "(docs/any-function.md).",
    )
    made.add_argument("what", nargs="?", metavar="OP | FILE.py:FUNCTION", help="the op, or the function, in torch")
    shared.add(made.add_argument, "--inputs", "--kernelbench")
    made.add_argument("--mutants", type=int, default=24, metavar="N", help="wrong versions to try (default: 24)")
    made.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command; the status is that of a kernel that passes, unless the contract would not be used."""
    from touchstone.conformance.against import description

    if (options.what is None) == (options.kernelbench is None):
        raise UsageError("expected an op, FILE.py:FUNCTION with --inputs, or --kernelbench=FILE.py")
    if options.mutants < 0:
        raise UsageError(f"--mutants: expected a whole number of at least 0, got {options.mutants}")
    if options.what is not None and _names_an_op(options.what):
        if options.inputs is not None:
            raise UsageError("--inputs: goes with FILE.py:FUNCTION, and not with an op, which has its own")
        print(described(registry.contract(options.what)))
        return Status.PASSED
    try:
        if options.what is not None:
            contract = derivation.of_files(options.what, options.inputs)
            name = options.what.rpartition(":")[2]
        else:
            contract, name = derivation.of_problem(options.kernelbench), "Model"
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    print(description(contract, name, options.mutants))
    return Status.PASSED


def _names_an_op(what: str) -> bool:
    """Whether this is the name of an op, right or not, and not a function in a file."""
    return ":" not in what and not what.endswith(".py")
