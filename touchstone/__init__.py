"""Touchstone: reference algorithms, GPU kernels in several languages, and a judge that says which kernels are right.

    from touchstone import check
    report = check("softmax", my_softmax, device="cpu", level="quick")
    print(report)

The code is `touchstone.reference`, `touchstone.backends` and `touchstone.conformance`. In a clone these are links to
the folders of the same names beside this one, so that nothing has to be installed; a wheel holds the folders
themselves.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from touchstone.conformance.against import check_against, describe
    from touchstone.conformance.check import assert_correct, check
    from touchstone.conformance.derived.contract import derive
    from touchstone.conformance.derived.refusals import Refused
    from touchstone.conformance.discovery.best import best
    from touchstone.conformance.discovery.opfile import load_op
    from touchstone.conformance.reporting.report import Report
    from touchstone.conformance.spec.budget import simple
    from touchstone.conformance.spec.contract import Contract, Operand, Output

__version__ = "0.1.0"

__all__ = [
    "Contract",
    "Operand",
    "Output",
    "Refused",
    "Report",
    "assert_correct",
    "best",
    "check",
    "check_against",
    "derive",
    "describe",
    "load_op",
    "simple",
]

# Imported when first asked for, so that a kernel or a reference can be imported without the judge.
_HOMES = {
    "assert_correct": "touchstone.conformance.check",
    "best": "touchstone.conformance.discovery.best",
    "check": "touchstone.conformance.check",
    "check_against": "touchstone.conformance.against",
    "derive": "touchstone.conformance.derived.contract",
    "describe": "touchstone.conformance.against",
    "Refused": "touchstone.conformance.derived.refusals",
    "load_op": "touchstone.conformance.discovery.opfile",
    "Report": "touchstone.conformance.reporting.report",
    "simple": "touchstone.conformance.spec.budget",
    "Contract": "touchstone.conformance.spec.contract",
    "Operand": "touchstone.conformance.spec.contract",
    "Output": "touchstone.conformance.spec.contract",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
