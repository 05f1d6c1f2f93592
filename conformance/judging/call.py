"""One call of a kernel: made within the instruments of conformance/judging/instruments.py, and what came back
judged."""

import contextlib
import math
import re
import traceback
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from touchstone.conformance.discovery import arrays
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.judgement import DECLINED, FAILED, Finding, Outcome
from touchstone.conformance.judging.trials import Trial
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


def reached(outcome: Outcome, *instruments: str) -> None:
    outcome.instruments += [name for name in instruments if name not in outcome.instruments]


def observe_call(
    subject: Subject,
    trial: Trial,
    inputs: Inputs,
    outcome: Outcome,
    debug: bool,
    byte: int = probe.PATTERNS[0],
    watch: probe.Watch | None = None,
) -> CallResult | None:
    """Call the kernel in poisoned memory and see what it leaves behind; None where there is nothing to judge."""
    state = probe.State(random=not trial.calls)
    try:
        with probe.poison(byte, subject.device, output_bytes(subject.contract, trial.case)):
            with watch or contextlib.nullcontext():
                returned = subject.call(inputs.arguments)
            if subject.device == "cuda":
                torch.cuda.synchronize()
    except NotImplementedError as declined:
        state.changes()
        outcome.status, outcome.reason = DECLINED, str(declined) or type(declined).__name__
        return None
    except Exception as error:
        if debug:
            raise
        state.changes()
        find(outcome, subject, trial, "raised", error_text(error))
        if subject.device == "cuda":
            _note_lost_context(subject, trial)
        return None
    _judge_state(outcome, subject, trial, state)
    reached(outcome, "allocator poison", "global state")
    return CallResult(returned)


def output_bytes(contract: Contract, case: Case) -> list[int]:
    return [
        math.prod(contract.shape(output.axes, case.size)) * (output.dtype or case.torch_dtype).itemsize
        for output in contract.outputs.values()
    ]


def _note_lost_context(subject: Subject, trial: Trial) -> None:
    try:
        torch.cuda.synchronize()
    except Exception:
        lost_context.append(f"{subject.op}-{subject.target}-{subject.name}-{trial.id}")


def _judge_state(outcome: Outcome, subject: Subject, trial: Trial, state: probe.State) -> None:
    settings, consumed = state.changes()
    if settings:
        find(outcome, subject, trial, "state", f"global state is left changed: {', '.join(settings)}")
    if consumed:
        severity = "failure" if subject.own else "note"
        find(
            outcome, subject, trial, "state", f"the call changes {', '.join(consumed)}", severity=severity, about="rng"
        )


def judge_returned(
    outcome: Outcome, subject: Subject, trial: Trial, inputs: Inputs, before: dict[str, torch.Tensor], returned: Any
) -> dict[str, Any]:
    """Judge what one call returned and what it did to its inputs; return the outputs by name."""
    reached(outcome, "input guards", "inputs unchanged")
    for name, placed in inputs.placed.items():
        if placed is not None and not placed.unchanged(before[name]):
            message = f"{name} was written; inputs and the memory around them stay as they are"
            find(outcome, subject, trial, "inputs", message, about=name)
    contract = subject.contract
    values = contract.by_name(returned, subject.outputs)
    if isinstance(values, str):
        find(outcome, subject, trial, "returns", values)
        return {}
    expected = expected_of(contract, inputs.case, subject.compute)
    verdicts = {}
    for name in contract.outputs:
        if subject.outputs is None or name in subject.outputs:
            verdict = judge_output(outcome, subject, trial, inputs, name, values[name], expected[name])
            if verdict is not None:
                verdicts[name] = verdict
    if subject.diagnosed and not all(verdict.ok for verdict in verdicts.values()):
        _diagnose(outcome, subject, inputs, values, expected, verdicts)
    return values


def judge_output(outcome, subject, trial, inputs: Inputs, name: str, got, expected) -> compare.Verdict | None:
    """Judge one output; return the verdict on its values where they can be compared."""
    problems = outputs.problems(
        subject.contract,
        trial.case,
        name,
        got,
        subject.device,
        {operand: placed.buffer for operand, placed in inputs.placed.items() if placed is not None},
        absent=expected is None,
        library_type=arrays.type_name(subject.arrays),
        type_name=arrays.what,
    )
    for problem in problems:
        severity = _severity_of_strides(subject, inputs, got) if problem.check is Check.STRIDES else "failure"
        about = f"{name} {problem.operand}" if problem.operand else name
        find(outcome, subject, trial, problem.check, problem.message, severity=severity, about=about)
    if expected is None or any(problem.check in outputs.NOT_COMPARABLE for problem in problems):
        return None
    exact = diagnosis.exact(subject.contract, trial.case, name)
    verdict = compare.compare(got, expected, trial.case.torch_dtype, exact)
    outcome.fractions[name] = verdict.fraction
    if not verdict.ok:
        find(outcome, subject, trial, Check.VALUES, f"{name}: {verdict.message}", error=verdict.fraction, about=name)
    return verdict


def _severity_of_strides(subject: Subject, inputs: Inputs, got: torch.Tensor) -> str:
    """Outputs are contiguous. A user's function may pass on the strides of an input that is not, as torch itself
    does."""
    overlapping = any(stride == 0 and size > 1 for size, stride in zip(got.shape, got.stride(), strict=True))
    plain = all(placed is None or placed.view.is_contiguous() for placed in inputs.placed.values())
    return "failure" if subject.own or plain or overlapping else "note"


def _diagnose(
    outcome: Outcome, subject: Subject, inputs: Inputs, values: dict[str, Any], expected: dict, verdicts: dict
) -> None:
    """Say what the wrong values look like, and who wrote the worst one; the first few failures are compared with
    mutants."""
    subject.compared["answers"] += 1
    thoroughly = subject.compared["answers"] <= COMPARED_WITH_FAULTS
    got = {name: values[name] for name in verdicts}
    text = diagnosis.diagnose(subject.contract, inputs.case, got, expected, verdicts, mutants=thoroughly, seconds=2.0)
    lines = [text] if text else []
    for name, verdict in verdicts.items():
        if thoroughly and verdict.worst is not None:
            writer = diagnosis.owner(subject, inputs.case, name, verdict.worst)
            lines += [f"{name}{list(verdict.worst)} was written by {writer}"] if writer else []
    for finding in [finding for finding in outcome.findings if finding.check == "values"][:1]:
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


def find(
    outcome: Outcome,
    subject: Subject,
    trial: Trial,
    check: str,
    message: str,
    error: float | None = None,
    severity: str = "failure",
    about: str = "",
) -> None:
    """Add a finding. Its id follows from what was judged, the check, and `about`, the output or operand; not from the
    message.

    A note is added once.
    """
    text = f"{trial.id} (seed {trial.case.seed})"
    key = f"{subject.op} {subject.target} {subject.name} {text} {check} {about}"
    identifier = f"{zlib.crc32(key.encode()):08x}"
    if severity == "note" and any(finding.id == identifier for finding in outcome.findings):
        return
    outcome.findings.append(Finding(identifier, severity, check, text, message, error))
    if severity == "failure":
        outcome.status = FAILED
