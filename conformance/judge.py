"""Judging one kernel on one trial: call it, look at what came back, compare with the float64 answer.

A trial is a case (values), a law (a property) or an invalid call (an error that must come before any launch).
"""

import re
import traceback
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import torch

from conformance import budget, registry
from conformance.contract import Case, Contract, Inputs, Invalid, Law
from conformance.generate import Plan, plain_case, plan

PASSED, FAILED, DECLINED = "passed", "failed", "declined"


@dataclass(frozen=True)
class Subject:
    """A kernel under judgement, and what it declares about itself."""

    op: str
    fn: Callable[..., Any]
    name: str
    lane: str  # "triton@cpu"; "user@cpu" for a function that is not ours
    device: str
    own: bool = False  # one of this repository's rungs: held to the launcher's rules too
    compute: str | None = None
    deterministic: bool = True
    outputs: tuple[str, ...] | None = None  # None: all

    @property
    def contract(self) -> Contract:
        return registry.contract(self.op)


@dataclass
class Finding:
    """One thing held against a kernel."""

    id: str
    severity: str  # "failure" or "note"
    check: str  # "values", "shape", "raised", ...
    case: str
    message: str
    error: float | None = None  # multiple of the budget
    diagnosis: str | None = None

    def __str__(self) -> str:
        return f"[{self.id}] {self.check}: {self.message}\n    in {self.case}"


@dataclass
class Outcome:
    """What one trial gave."""

    trial: str
    dtype: str
    status: str
    fractions: dict[str, float] = field(default_factory=dict)  # output -> worst error over its budget
    findings: list[Finding] = field(default_factory=list)
    reason: str | None = None  # why it was declined

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(record: dict[str, Any]) -> "Outcome":
        return Outcome(**{**record, "findings": [Finding(**f) for f in record["findings"]]})


@dataclass(frozen=True)
class Trial:
    case: Case
    law: Law | None = None
    invalid: Invalid | None = None

    @property
    def id(self) -> str:
        if self.law:
            return f"law-{self.law.name.replace(' ', '_')}-{self.case.dtype}"
        if self.invalid:
            return f"invalid-{self.invalid.name.replace(' ', '_')}"
        return self.case.id


def trials(subject: Subject, level: str, seed: int = 0, ceiling: float | None = None) -> tuple[list[Trial], Plan]:
    """All trials of a subject: cases under the lane's ceiling of work, laws in every dtype, invalid calls for our rungs."""
    contract = subject.contract
    made = plan(contract, level, seed)
    cases = [case for case in made.cases if ceiling is None or contract.work(case) <= ceiling]
    made = Plan(cases, made.infeasible, made.sampled_out, len(made.cases) - len(cases))
    found = [Trial(case) for case in cases]
    for law in contract.laws:
        if law.bitwise and not subject.deterministic:
            continue
        found += [Trial(plain_case(contract, dtype, law.values, seed), law=law) for dtype in contract.dtypes]
    if subject.own:
        base = plain_case(contract, contract.dtypes[0], next(iter(contract.values)), seed)
        found += [Trial(base, invalid=invalid) for invalid in contract.invalid]
    return found, made


def run(subject: Subject, trial: Trial, debug: bool = False) -> Outcome:
    """Judge `subject` on `trial`. With `debug` an exception of the kernel is let through, for a debugger."""
    outcome = Outcome(trial.id, trial.case.dtype, PASSED)
    if subject.device == "cuda" and _lost_context:
        _find(
            outcome, subject, trial, "context", f"not judged: {_lost_context[0]} left the GPU unusable for this process"
        )
        return outcome
    if trial.invalid is not None:
        return _run_invalid(subject, trial, trial.invalid)
    inputs = subject.contract.build(trial.case, subject.device)
    before = {name: placed.snapshot() for name, placed in inputs.placed.items() if placed is not None}
    try:
        returned = _call(subject, inputs.arguments)
        if subject.device == "cuda":
            torch.cuda.synchronize()
    except NotImplementedError as declined:
        outcome.status, outcome.reason = DECLINED, str(declined) or type(declined).__name__
        return outcome
    except Exception as error:
        if debug:
            raise
        _find(outcome, subject, trial, "raised", _error_text(error))
        if subject.device == "cuda":
            _note_lost_context(subject, trial)
        return outcome
    for name, placed in inputs.placed.items():
        if placed is not None and not placed.unchanged(before[name]):
            message = f"{name} was written; inputs and the memory around them stay as they are"
            _find(outcome, subject, trial, "inputs", message, about=name)
    contract = subject.contract
    values = _by_name(returned, contract, subject.outputs)
    if isinstance(values, str):
        _find(outcome, subject, trial, "returns", values)
        return outcome
    expected = _expected(contract, trial.case, subject.compute)
    for name, output in contract.outputs.items():
        if subject.outputs is None or name in subject.outputs:
            _judge_output(outcome, subject, trial, inputs, name, output, values[name], expected[name])
    if trial.law is not None and outcome.status == PASSED:
        _judge_law(outcome, subject, trial, trial.law, inputs, tuple(values.values()), debug)
    return outcome


_lost_context: list[str] = []  # the trial after which CUDA answers every call of this process with an error


def _note_lost_context(subject: Subject, trial: Trial) -> None:
    try:
        torch.cuda.synchronize()
    except Exception:
        _lost_context.append(f"{subject.op}-{subject.lane}-{subject.name}-{trial.id}")


def _judge_law(
    outcome: Outcome, subject: Subject, trial: Trial, law: Law, inputs: Inputs, values: tuple, debug: bool
) -> None:
    """A law calls the kernel again, with inputs of its own."""
    try:
        broken = law.check(_caller(subject), inputs.arguments, values, trial.case)
    except NotImplementedError as declined:
        outcome.status, outcome.reason = DECLINED, str(declined) or type(declined).__name__
        return
    except Exception as error:
        if debug:
            raise
        broken = f"a further call raised {_error_text(error)}"
    if broken:
        _find(outcome, subject, trial, f"law: {law.name}", broken)


@lru_cache(maxsize=8)
def _expected(contract: Contract, case: Case, compute: str | None) -> dict[str, budget.Expected]:
    """The rungs of a ladder are judged on the same cases one after another: the answer is computed once."""
    return contract.expected(contract.build(case), compute)


def _call(subject: Subject, arguments: dict[str, Any]) -> Any:
    """Call the kernel: our rungs by keyword, since names are part of the signature; a user's function as one would write it."""
    if subject.own:
        return subject.fn(**arguments)
    rest = dict(arguments)
    return subject.fn(
        *[rest.pop(name) for name, operand in subject.contract.operands.items() if operand.positional], **rest
    )


def _caller(subject: Subject) -> Callable[..., tuple]:
    def call(**arguments):
        returned = _call(subject, arguments)
        return returned if isinstance(returned, tuple) else (returned,)

    return call


def _by_name(returned: Any, contract: Contract, judged: Sequence[str] | None) -> dict[str, Any] | str:
    """The outputs by name. A function judged on some outputs may return only those, in the contract's order."""
    names = list(contract.outputs)
    some = [name for name in names if judged is None or name in judged]
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    for taken in (names, some):
        if len(values) == len(taken):
            return dict(zip(taken, values, strict=True))
    if values is not returned:
        return f"returned {type(returned).__name__}; expected a tuple of {len(names)}"
    return f"returned {len(values)} values; expected {len(names)}"


def _judge_output(outcome, subject, trial, inputs: Inputs, name: str, output, got, expected) -> None:
    if expected is None:
        if got is not None:
            _find(outcome, subject, trial, "returns", f"{name} must be None here, got {type(got).__name__}", about=name)
        return
    if type(got) is not torch.Tensor:
        _find(
            outcome, subject, trial, "returns", f"{name}: expected a torch.Tensor, got {type(got).__name__}", about=name
        )
        return
    if got.layout is not torch.strided:
        _find(
            outcome, subject, trial, "returns", f"{name}: expected a dense tensor, got layout {got.layout}", about=name
        )
        return
    shape = subject.contract.shape(output.axes, trial.case.size)
    dtype = output.dtype or trial.case.torch_dtype
    if tuple(got.shape) != shape:
        _find(outcome, subject, trial, "shape", f"{name}: expected shape {shape}, got {tuple(got.shape)}", about=name)
        return
    if got.dtype != dtype:
        _find(outcome, subject, trial, "dtype", f"{name}: expected {dtype}, got {got.dtype}", about=name)
        return
    if got.device.type != subject.device:
        _find(
            outcome,
            subject,
            trial,
            "device",
            f"{name}: expected a tensor on {subject.device}, got {got.device}",
            about=name,
        )
        return
    _judge_strides(outcome, subject, trial, inputs, name, got)
    for operand, placed in inputs.placed.items():
        if (
            placed is not None
            and got.numel()
            and 0 <= got.data_ptr() - placed.buffer.data_ptr() < placed.buffer.numel()
        ):
            _find(
                outcome,
                subject,
                trial,
                "alias",
                f"{name} shares memory with the input {operand}",
                about=f"{name} {operand}",
            )
    exact = name in subject.contract.exact.get(trial.case.values, ())
    verdict = budget.compare(got, expected, trial.case.torch_dtype, exact)
    outcome.fractions[name] = verdict.fraction
    if not verdict.ok:
        _find(outcome, subject, trial, "values", f"{name}: {verdict.message}", error=verdict.fraction, about=name)


def _judge_strides(outcome, subject, trial, inputs: Inputs, name: str, got: torch.Tensor) -> None:
    """Outputs are contiguous. A user's function may pass on the strides of an input that is not, as torch itself does."""
    if got.is_contiguous():
        return
    overlapping = any(stride == 0 and size > 1 for size, stride in zip(got.shape, got.stride(), strict=True))
    plain = all(placed is None or placed.view.is_contiguous() for placed in inputs.placed.values())
    severity = "failure" if subject.own or plain or overlapping else "note"
    message = f"{name}: expected a contiguous tensor, got strides {got.stride()}"
    _find(outcome, subject, trial, "strides", message, severity=severity, about=name)


def _run_invalid(subject: Subject, trial: Trial, invalid: Invalid) -> Outcome:
    inputs = subject.contract.build(trial.case, subject.device)
    outcome = Outcome(trial.id, trial.case.dtype, PASSED)
    names = invalid.error if isinstance(invalid.error, tuple) else (invalid.error,)
    wanted = f"{' or '.join(e.__name__ for e in names)} whose message matches {invalid.match!r}"
    try:
        _call(subject, invalid.spoil(inputs.arguments))
    except invalid.error as error:
        if not re.search(invalid.match, str(error)):
            _find(outcome, subject, trial, "invalid", f"expected {wanted}, got {type(error).__name__}: {error}")
    except Exception as error:
        _find(outcome, subject, trial, "invalid", f"expected {wanted}, got {_error_text(error)}")
    else:
        _find(outcome, subject, trial, "invalid", f"expected {wanted}, but the call went through")
    return outcome


def _error_text(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    text = str(error).strip() or "no message"
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"


def _find(
    outcome: Outcome,
    subject: Subject,
    trial: Trial,
    check: str,
    message: str,
    error: float | None = None,
    severity: str = "failure",
    about: str = "",
) -> None:
    """Add a finding. Its id follows from what was judged, the check, and `about`, the output or operand; not from the message."""
    text = f"{trial.id} (seed {trial.case.seed})"
    key = f"{subject.op} {subject.lane} {subject.name} {text} {check} {about}"
    outcome.findings.append(Finding(f"{zlib.crc32(key.encode()):08x}", severity, check, text, message, error))
    if severity == "failure":
        outcome.status = FAILED


def worst(fractions: Sequence[float]) -> float | None:
    """The worst of some fractions of the budget; NaN wins."""
    if not fractions:
        return None
    return max(fractions, key=lambda f: (f != f, f))
