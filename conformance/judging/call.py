"""One call of a kernel: made within the instruments of conformance/judging/instruments.py, and what came back
judged."""

import contextlib
import math
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from touchstone.conformance.discovery import arrays
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.judgement import Judgement
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.spec import budget, compare, outputs
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case, Contract, Inputs

COMPARED_WITH_FAULTS = 3  # failing calls of a kernel
lost_context: list[str] = []  # the trial after which CUDA answers every call of this process with an error
_kept: dict[tuple[Contract, Case, str | None], dict[str, budget.Expected]] = {}


@dataclass(frozen=True)
class CallResult:
    value: Any  # what the call returned, None included


def snapshots(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {name: placed.snapshot() for name, placed in inputs.placed.items() if placed is not None}


def observe_call(
    j: Judgement, inputs: Inputs, byte: int = probe.PATTERNS[0], watch: probe.Watch | None = None
) -> CallResult | None:
    """Call the kernel in poisoned memory and see what it leaves behind; None where there is nothing to judge."""
    on_cuda = j.subject.device == "cuda"
    state = probe.State(random=j.trial.kind is not Kind.CALLS)
    try:
        with probe.poison(byte, j.subject.device, output_bytes(j.contract, j.case)):
            with watch or contextlib.nullcontext():
                returned = j.subject.call(inputs.arguments)
            if on_cuda:
                torch.cuda.synchronize()
    except NotImplementedError as declined:
        state.changes()
        j.decline(str(declined) or type(declined).__name__)
        return None
    except Exception as error:
        if j.debug:
            raise
        state.changes()
        j.find(Check.RAISED, error_text(error), raised=type(error).__name__)
        if on_cuda:
            _note_lost_context(j)
        return None
    _check_state(j, state)
    j.reached("allocator poison", "global state")
    return CallResult(returned)


def output_bytes(contract: Contract, case: Case) -> list[int]:
    return [
        math.prod(contract.shape(output.axes, case.size)) * (output.dtype or case.torch_dtype).itemsize
        for output in contract.outputs.values()
    ]


def _note_lost_context(j: Judgement) -> None:
    try:
        torch.cuda.synchronize()
    except Exception:
        lost_context.append(f"{j.subject.op}-{j.subject.target}-{j.subject.name}-{j.trial.id}")


def _check_state(j: Judgement, state: probe.State) -> None:
    settings, consumed = state.changes()
    if settings:
        j.find(Check.STATE, f"global state is left changed: {', '.join(settings)}")
    if consumed:
        severity = "failure" if j.subject.own else "note"
        j.find(Check.STATE, f"the call changes {', '.join(consumed)}", severity=severity, detail="rng")


def check_returned(j: Judgement, inputs: Inputs, before: dict[str, torch.Tensor], returned: Any) -> dict[str, Any]:
    """Check what one call returned and what it did to its inputs; return the outputs by name."""
    j.reached("input guards", "inputs unchanged")
    for name, placed in inputs.placed.items():
        if placed is not None and not placed.unchanged(before[name]):
            j.find(Check.INPUTS, f"{name} was written; inputs and the memory around them stay as they are", about=name)
    values = j.contract.by_name(returned, j.subject.outputs)
    if isinstance(values, str):
        j.find(Check.RETURNS, values)
        return {}
    expected = expected_of(j.contract, inputs.case, j.subject.compute)
    verdicts = {}
    for name in j.contract.outputs:
        if j.judges(name):
            verdict = check_output(j, inputs, name, values[name], expected[name])
            if verdict is not None:
                verdicts[name] = verdict
    if j.subject.diagnosed and not all(verdict.ok for verdict in verdicts.values()):
        _diagnose(j, inputs, values, expected, verdicts)
    return values


def check_output(
    j: Judgement, inputs: Inputs, name: str, got: Any, expected: budget.Expected | None
) -> compare.Verdict | None:
    """Check one output; return the verdict on its values where they can be compared."""
    problems = check_form(j, inputs, name, got, absent=expected is None)
    if expected is None or not outputs.comparable(problems):
        return None
    verdict = compare.compare(got, expected, j.case.torch_dtype, diagnosis.exact(j.contract, j.case, name))
    j.outcome.fractions[name] = verdict.fraction
    if not verdict.ok:
        j.find(Check.VALUES, f"{name}: {verdict.message}", error=verdict.fraction, about=name)
    return verdict


def check_form(j: Judgement, inputs: Inputs, name: str, got: Any, absent: bool = False) -> list[outputs.Problem]:
    """Check all of an output but its values; what is wrong with it."""
    memory = {operand: placed.buffer for operand, placed in inputs.placed.items() if placed is not None}
    found = outputs.problems(
        j.contract,
        j.case,
        name,
        got,
        j.subject.device,
        memory,
        absent=absent,
        library_type=arrays.type_name(j.subject.arrays),
        type_name=arrays.what,
    )
    for problem in found:
        severity = _severity_of_strides(j.subject, inputs, got) if problem.check is Check.STRIDES else "failure"
        j.find(problem.check, problem.message, severity=severity, about=name, detail=problem.operand)
    return found


def _severity_of_strides(subject: Subject, inputs: Inputs, got: torch.Tensor) -> str:
    """Outputs are contiguous. A user's function may pass on the strides of an input that is not, as torch itself
    does."""
    overlapping = any(stride == 0 and size > 1 for size, stride in zip(got.shape, got.stride(), strict=True))
    plain = all(placed is None or placed.view.is_contiguous() for placed in inputs.placed.values())
    return "failure" if subject.own or plain or overlapping else "note"


def _diagnose(
    j: Judgement,
    inputs: Inputs,
    values: dict[str, Any],
    expected: dict[str, budget.Expected],
    verdicts: dict[str, compare.Verdict],
) -> None:
    """Say what the wrong values look like, and who wrote the worst one; the first few failures are compared with
    mutants."""
    compared = j.subject.compared
    compared["answers"] += 1
    thoroughly = compared["answers"] <= COMPARED_WITH_FAULTS
    got = {name: values[name] for name in verdicts}
    text = diagnosis.diagnose(j.contract, inputs.case, got, expected, verdicts, mutants=thoroughly, seconds=2.0)
    lines = [text] if text else []
    for name, verdict in verdicts.items():
        if thoroughly and verdict.worst is not None:
            writer = diagnosis.owner(j.subject, inputs.case, name, verdict.worst)
            lines += [f"{name}{list(verdict.worst)} was written by {writer}"] if writer else []
    for finding in [finding for finding in j.outcome.findings if finding.check == Check.VALUES][:1]:
        finding.diagnosis = "\n".join(lines) or None


@lru_cache(maxsize=8)
def _recent(contract: Contract, case: Case, compute: str | None) -> dict[str, budget.Expected]:
    return contract.expected(contract.build(case), compute)


def expected_of(contract: Contract, case: Case, compute: str | None) -> dict[str, budget.Expected]:
    """The answer; the variants of a ladder are judged on the same cases one after another, so the latest ones stay."""
    kept = _kept.get((contract, case, compute))
    return _recent(contract, case, compute) if kept is None else kept


def keep_answers(contract: Contract, cases: Iterable[Case]) -> None:
    """Compute the answers of all these cases now and keep them, for many kernels judged on the same ones."""
    _kept.clear()
    _kept.update({(contract, case, None): contract.expected(contract.build(case)) for case in cases})


def error_text(error: BaseException) -> str:
    """The type and message of an error, and the file and line that raised it, if the message names none."""
    frames = traceback.extract_tb(error.__traceback__)
    text = str(error).strip() or "no message"
    known = not frames or re.search(r"\w\.\w+:\d", text)
    where = "" if known else f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})"
    return f"{type(error).__name__}: {text}{where}"
