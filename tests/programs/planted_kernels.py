"""The kernels of conformance/faults/triton, judged until the first failure; tests/faults/test_kernels.py runs this
file.

For the ops given as arguments it prints what is found first in each mutant and in each launcher that has no fault
switched on ("_looped"): on cases of level quick, and in calls under the backend's instruments. With --list it prints
how the mutants are declared.
"""

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Set
from typing import Any

import torch

from touchstone.backends import triton as backend

backend.prepare("cpu")
from tests.faults.kernels import launchers  # noqa: E402
from touchstone.conformance.discovery import registry  # noqa: E402
from touchstone.conformance.discovery.subject import Subject, not_called  # noqa: E402
from touchstone.conformance.faults import planted_in  # noqa: E402
from touchstone.conformance.judging import judge  # noqa: E402
from touchstone.conformance.judging.trials import CaseTrial, called_once, trials_of  # noqa: E402
from touchstone.conformance.spec import compare  # noqa: E402
from touchstone.conformance.spec.cases import plain_case  # noqa: E402

SIZES = 5  # the smallest of a contract that an instrument sees


def on_cases(
    op: str, fn: Callable[..., Any], deterministic: bool, dtypes: tuple[str, ...], only: Set[str] = frozenset()
) -> tuple[str, str] | None:
    """The id and the finding of the first case of level quick that fails; None if there is none. `only`: of these
    cases."""
    subject = Subject(op, fn, "planted", "user@cpu", "cpu", deterministic=deterministic)
    for trial in trials_of(subject, "quick")[0]:
        if trial.case.dtype in dtypes and isinstance(trial, CaseTrial) and (not only or trial.id in only):
            for finding in judge.run(subject, called_once(trial)).findings:
                if finding.severity == "failure":
                    return trial.id, f"{finding.check}: {finding.message}"
    return None


def under_instruments(op: str, fn: Callable[..., Any]) -> dict[str, str | None]:
    """What goes wrong under each instrument, and under none ("in order"), on small plain cases in float32."""
    contract = registry.contract(op)
    cases = [plain_case(contract, "float32", next(iter(contract.values)), size=size) for size in contract.sizes]
    cases = sorted((case for case in cases if 0 not in case.size.values() and contract.valid(case)), key=contract.work)
    instruments = {"in order": contextlib.nullcontext, **backend.instruments("cpu")}
    return {name: _first_wrong(contract, fn, cases[:SIZES], instrument) for name, instrument in instruments.items()}


def _first_wrong(contract, fn: Callable[..., Any], cases, instrument) -> str | None:
    for case in cases:
        inputs = contract.build(case)
        rest = inputs.arguments
        operands = [rest.pop(name) for name, operand in contract.operands.items() if operand.positional]
        try:
            with instrument():
                got = fn(*operands, **rest)
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"
        expected = contract.expected(inputs)
        for name, y in zip(contract.outputs, got if isinstance(got, tuple) else (got,), strict=True):
            verdict = compare.compare(y, expected[name], torch.float32)
            if not verdict.ok:
                return f"{name}: {verdict.message}"
    return None


def first_of(instruments: dict[str, str | None]) -> str | None:
    """The first of what `under_instruments` found, in a judge's words."""
    for name, wrong in instruments.items():
        if wrong is not None:
            return f"values: {wrong}" if name == "in order" else f"{name}: {wrong}"
    return None


def judged(op: str) -> dict[str, Any]:
    """The mutants first; then the launchers without one, on the cases that rejected a mutant and some more."""
    module = importlib.import_module(f"touchstone.conformance.faults.triton.{op}")
    everything = registry.contract(op).dtypes
    mutants: dict[str, str | None] = {}
    races: dict[str, str | None] = {}
    rejecting = {trial.id for trial in trials_of(Subject(op, not_called, "", "user@cpu", "cpu"), "quick")[0][::8]}
    for planted in planted_in(module, op, "triton"):
        if planted.kind == "race":
            instruments = under_instruments(op, planted.make())
            mutants[planted.name], races[planted.name] = first_of(instruments), instruments["races"]
        else:
            found = on_cases(op, planted.make(), planted.deterministic, planted.dtypes)
            mutants[planted.name] = found and found[1]
            rejecting |= {found[0]} if found else set()
    sound = {name: getattr(module, name) for name in launchers(module)}
    return {
        "mutants": mutants,
        "races": races,
        "launchers": {
            name: {"cases": on_cases(op, fn, False, everything, rejecting), **under_instruments(op, fn)}
            for name, fn in sound.items()
        },
    }


def declared(op: str) -> dict[str, list[str | None]]:
    module = importlib.import_module(f"touchstone.conformance.faults.triton.{op}")
    return {one.name: [one.kind, one.about, one.found] for one in planted_in(module, op, "triton")}


if __name__ == "__main__":
    torch.set_num_threads(1)
    words = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        if words[0] == "--list":
            found = {op: declared(op) for op in words[1:]}
        else:
            found = {op: judged(op) for op in words}
    json.dump(found, sys.stdout)
