"""Judging one kernel on one trial: call it, look at what came back, compare with the float64 answer.

A trial is a case (values), a law (a property), many calls (state kept between them), a call on another stream, or an
invalid call (an error that must come before any launch). The instruments around a call are in conformance/probe.py.
"""

import contextlib
import inspect
import re
import textwrap
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch

import backends
from conformance import arrays, budget, diagnosis, layouts, probe, registry
from conformance.contract import Case, Contract, Inputs, Invalid, Law
from conformance.generate import Plan, plain_case, plan

PASSED, FAILED, DECLINED = "passed", "failed", "declined"
CALLS = 50  # of a trial of many calls
HELD = 6  # latest outputs that are looked at again after each of them; all are at the end
NOT_CASES = ("law-", "invalid-", "calls-", "stream-", "huge-")  # how the ids of trials that are no cases begin
COMPARED_WITH_FAULTS = 3  # failing calls of a kernel
WATCHED_SIZES = 4  # of one of our rungs on the CPU
INSTRUMENTED_SIZES = 6
SLEEP_CYCLES = 20_000_000  # about 10 ms, for which the stream of a "stream" trial holds its inputs back


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
    diagnosed: bool = True  # whether wrong values are looked into
    compared: Counter[str] = field(
        default_factory=Counter, compare=False, repr=False
    )  # wrong answers with faults, so far
    arrays: str = "torch"  # the library whose arrays the kernel takes and returns

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
        text = f"[{self.id}] {self.check}: {self.message}\n    in {self.case}"
        return text if self.diagnosis is None else text + "\n" + textwrap.indent(self.diagnosis, "    ")


@dataclass
class Outcome:
    """What one trial gave."""

    trial: str
    dtype: str
    status: str
    fractions: dict[str, float] = field(default_factory=dict)  # output -> worst error over its budget
    findings: list[Finding] = field(default_factory=list)
    reason: str | None = None  # why it was declined
    instruments: list[str] = field(default_factory=list)  # those that reached the kernel
    library: list[str] = field(default_factory=list)  # library calls seen, apart from allocation, fills and views

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
    calls: int = 0  # so many calls with distinct inputs
    stream: bool = False  # on a stream of its own
    huge: bool = False  # an output beyond 2^31 elements, of which some rows are compared
    instrumented: bool = False  # further calls under the instruments of the backend
    watched: bool = False  # a second call, between guard bands

    @property
    def id(self) -> str:
        if self.calls:
            return f"calls-{self.case.dtype}"
        if self.huge:
            return f"huge-{self.case.id}"
        if self.stream:
            return f"stream-{self.case.dtype}"
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
    watched, instrumented = _watched(subject, cases), _first_of_sizes(subject, cases, INSTRUMENTED_SIZES)
    found = [Trial(case, watched=case in watched, instrumented=case in instrumented) for case in cases]
    for law in contract.laws:
        if law.bitwise and not subject.deterministic:
            continue
        found += [Trial(plain_case(contract, dtype, law.values, seed), law=law) for dtype in contract.dtypes]
    plain = [plain_case(contract, dtype, next(iter(contract.values)), seed) for dtype in contract.dtypes]
    found += [Trial(case, calls=CALLS) for case in (plain[:1] if level == "quick" else plain)]
    if subject.device == "cuda":
        found.append(Trial(plain[0], stream=True))
        if level == "thorough" and contract.huge is not None:
            huge = plain_case(contract, contract.huge.dtype, next(iter(contract.values)), seed, contract.huge.size)
            found.append(Trial(huge, huge=True))
    if subject.own:
        found += [Trial(plain[0], invalid=invalid) for invalid in contract.invalid]
    return found, made


def _watched(subject: Subject, cases: list[Case]) -> set[Case]:
    """The cases that are called a second time, watched: all of a user's function, of our rungs the first of each size.

    On the CPU, where an interpreter or emulator checks the bounds of each access itself, only the sizes of least work.
    """
    if not subject.own:
        return set(cases)
    return _first_of_sizes(subject, cases, WATCHED_SIZES if subject.device == "cpu" else None)


def _first_of_sizes(subject: Subject, cases: list[Case], count: int | None) -> set[Case]:
    """The first case of each size without a 0; of the `count` sizes of least work."""
    first = {case.sizes: case for case in reversed(cases) if all(_numbers(case.sizes))}
    return set(sorted(first.values(), key=subject.contract.work)[:count])


def _numbers(sizes: Sequence[tuple[str, Any]]) -> list[int]:
    return [n for _, size in sizes for n in (size if isinstance(size, tuple) else (size,))]


def run(subject: Subject, trial: Trial, debug: bool = False) -> Outcome:
    """Judge `subject` on `trial`. With `debug` an exception of the kernel is let through, for a debugger."""
    outcome = _run(subject, trial, debug)
    if not _canary_sings():
        _find(outcome, subject, trial, "canary", "the call tampered with the comparison: unequal numbers compare equal")
    return outcome


def _run(subject: Subject, trial: Trial, debug: bool) -> Outcome:
    outcome = Outcome(trial.id, trial.case.dtype, PASSED)
    if subject.device == "cuda" and _lost_context:
        _find(
            outcome, subject, trial, "context", f"not judged: {_lost_context[0]} left the GPU unusable for this process"
        )
        return outcome
    if trial.invalid is not None:
        return _run_invalid(subject, trial, trial.invalid)
    if trial.calls:
        return _run_calls(subject, trial, outcome, debug)
    if trial.huge:
        return _run_huge(subject, trial, outcome, debug)
    try:
        inputs = subject.contract.build(trial.case, subject.device)
    except layouts.NoRoom as error:
        outcome.status, outcome.reason = DECLINED, f"not run: {error}"
        return outcome
    before = _snapshots(inputs)
    call = _on_another_stream if trial.stream else _observed
    returned = call(subject, trial, inputs, outcome, debug)
    if returned is None:
        return outcome
    values = _judge_returned(outcome, subject, trial, inputs, before, returned.value)
    if trial.law is not None and outcome.status == PASSED:
        _judge_law(outcome, subject, trial, trial.law, inputs, tuple(values.values()), debug)
    if trial.watched and outcome.status == PASSED:
        _call_again(outcome, subject, trial, inputs, before, values, debug)
    if trial.instrumented and outcome.status == PASSED:
        _call_under_instruments(outcome, subject, trial, inputs)
    return outcome


@dataclass(frozen=True)
class _Returned:
    value: Any  # what the call returned, None included


def _snapshots(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {name: placed.snapshot() for name, placed in inputs.placed.items() if placed is not None}


def _reached(outcome: Outcome, *instruments: str) -> None:
    outcome.instruments += [name for name in instruments if name not in outcome.instruments]


def _observed(
    subject: Subject,
    trial: Trial,
    inputs: Inputs,
    outcome: Outcome,
    debug: bool,
    byte: int = probe.PATTERNS[0],
    watch: probe.Watch | None = None,
) -> _Returned | None:
    """Call the kernel in poisoned memory and see what it leaves behind; None where there is nothing to judge."""
    state = probe.State(random=not trial.calls)
    try:
        with probe.poison(byte, subject.device, _output_bytes(subject.contract, trial.case)):
            with watch or contextlib.nullcontext():
                returned = _call(subject, inputs.arguments)
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
        _find(outcome, subject, trial, "raised", _error_text(error))
        if subject.device == "cuda":
            _note_lost_context(subject, trial)
        return None
    _judge_state(outcome, subject, trial, state)
    _reached(outcome, "allocator poison", "global state")
    return _Returned(returned)


def _output_bytes(contract: Contract, case: Case) -> list[int]:
    sizes = []
    for output in contract.outputs.values():
        sizes.append(
            torch.Size(contract.shape(output.axes, case.size)).numel() * (output.dtype or case.torch_dtype).itemsize
        )
    return sizes


def _judge_state(outcome: Outcome, subject: Subject, trial: Trial, state: probe.State) -> None:
    settings, consumed = state.changes()
    if settings:
        _find(outcome, subject, trial, "state", f"global state is left changed: {', '.join(settings)}")
    if consumed:
        severity = "failure" if subject.own else "note"
        _find(outcome, subject, trial, "state", f"the call moves {', '.join(consumed)}", severity=severity, about="rng")


def _judge_returned(
    outcome: Outcome, subject: Subject, trial: Trial, inputs: Inputs, before: dict[str, torch.Tensor], returned: Any
) -> dict[str, Any]:
    """Judge what one call returned and what it did to its inputs; return the outputs by name."""
    _reached(outcome, "input guards", "inputs unchanged")
    for name, placed in inputs.placed.items():
        if placed is not None and not placed.unchanged(before[name]):
            message = f"{name} was written; inputs and the memory around them stay as they are"
            _find(outcome, subject, trial, "inputs", message, about=name)
    contract = subject.contract
    values = _by_name(returned, contract, subject.outputs)
    if isinstance(values, str):
        _find(outcome, subject, trial, "returns", values)
        return {}
    expected = _expected(contract, inputs.case, subject.compute)
    verdicts = {}
    for name, output in contract.outputs.items():
        if subject.outputs is None or name in subject.outputs:
            verdict = _judge_output(outcome, subject, trial, inputs, name, output, values[name], expected[name])
            if verdict is not None:
                verdicts[name] = verdict
    if subject.diagnosed and not all(verdict.ok for verdict in verdicts.values()):
        _diagnose(outcome, subject, inputs, values, expected, verdicts)
    return values


def _diagnose(
    outcome: Outcome, subject: Subject, inputs: Inputs, values: dict[str, Any], expected: dict, verdicts: dict
) -> None:
    """Say what the wrong values look like, and who wrote the worst one; the first few failures are compared with faults."""
    subject.compared["answers"] += 1
    thoroughly = subject.compared["answers"] <= COMPARED_WITH_FAULTS
    got = {name: values[name] for name in verdicts}
    text = diagnosis.diagnose(subject.contract, inputs.case, got, expected, verdicts, faults=thoroughly, seconds=2.0)
    lines = [text] if text else []
    for name, verdict in verdicts.items():
        if thoroughly and verdict.worst is not None:
            writer = diagnosis.owner(subject, inputs.case, name, verdict.worst)
            lines += [f"{name}{list(verdict.worst)} was written by {writer}"] if writer else []
    for finding in [finding for finding in outcome.findings if finding.check == "values"][:1]:
        finding.diagnosis = "\n".join(lines) or None


def _canary_sings() -> bool:
    """Whether numbers known to differ still compare as different."""
    expected = budget.Expected(torch.tensor([1.0, 2.0], dtype=torch.float64))
    near = budget.compare(torch.tensor([1.0, 2.0]), expected, torch.float32)
    far = budget.compare(torch.tensor([1.0, 2.5]), expected, torch.float32)
    return near.ok and not far.ok


def _call_again(
    outcome: Outcome,
    subject: Subject,
    trial: Trial,
    inputs: Inputs,
    before: dict[str, torch.Tensor],
    values: dict[str, Any],
    debug: bool,
) -> None:
    """A second call on the same inputs, in memory with the other poison, watched where that is possible.

    A dispatch mode can make a call fail or compute otherwise: what differs under it is judged on a third call without.
    """
    kept = {name: tensor.clone() for name, tensor in values.items() if isinstance(tensor, torch.Tensor)}
    watch = None if probe.compiled(subject.fn) else probe.Watch()
    again = Outcome(outcome.trial, outcome.dtype, PASSED)
    returned = _observed(subject, trial, inputs, again, debug and watch is None, probe.PATTERNS[1], watch)
    second = None if returned is None else _by_name(returned.value, subject.contract, subject.outputs)
    if watch is not None:
        _judge_watched(outcome, subject, trial, watch, second)
        if not isinstance(second, dict) or not all(_same_bits(tensor, second[name]) for name, tensor in kept.items()):
            again = Outcome(outcome.trial, outcome.dtype, PASSED)
            returned = _observed(subject, trial, inputs, again, debug, probe.PATTERNS[1])
            second = None if returned is None else _by_name(returned.value, subject.contract, subject.outputs)
    outcome.findings += again.findings
    if again.status == FAILED:
        outcome.status = FAILED
    if not isinstance(second, dict):
        what = second or again.reason or "raised"
        _find(outcome, subject, trial, "repeat", f"a second call with the same inputs: {what}")
        return
    for name, placed in inputs.placed.items():
        if placed is not None and not placed.unchanged(before[name]):
            _find(outcome, subject, trial, "inputs", f"{name} was written in a second call", about=name)
    for name, tensor in kept.items():
        if not _same_bits(tensor, values[name]):
            message = f"{name}: a later call changed what an earlier one had returned"
            _find(outcome, subject, trial, "held", message, about=name)
        elif not isinstance(second[name], torch.Tensor) or second[name].shape != tensor.shape:
            _find(outcome, subject, trial, "repeat", f"{name}: a second call returns something else", about=name)
        elif _overlap(second[name], values[name]):
            _find(outcome, subject, trial, "alias", f"{name}: two calls return the same memory", about=f"{name} twice")
        elif not _same_bits(tensor, second[name]):
            _judge_repeat(outcome, subject, trial, inputs, name, second[name])
    _reached(outcome, "repeat", "held outputs")


def _call_under_instruments(outcome: Outcome, subject: Subject, trial: Trial, inputs: Inputs) -> None:
    """Further calls within what the backend's interpreter or emulator offers: other schedules, a race detector."""
    lane = subject.lane.partition("@")[0]
    for backend in [lane] if lane in registry.backends() else registry.backends():
        offered = getattr(registry.backend(backend), "instruments", None)
        for name, within in (offered(subject.device) if offered else {}).items():
            again, before = Outcome(outcome.trial, outcome.dtype, PASSED), backends.launches()
            try:
                with within():
                    returned = _call(subject, inputs.arguments)
            except NotImplementedError:
                continue
            except Exception as error:
                _find(outcome, subject, trial, f"under {name}", _error_text(error))
                return
            values = _by_name(returned, subject.contract, subject.outputs)
            if isinstance(values, str):
                _find(outcome, subject, trial, f"under {name}", values)
                return
            expected = _expected(subject.contract, inputs.case, subject.compute)
            for output, tensor in values.items():
                if subject.outputs is None or output in subject.outputs:
                    made = subject.contract.outputs[output]
                    _judge_output(again, subject, trial, inputs, output, made, tensor, expected[output])
            for finding in [found for found in again.findings if found.severity == "failure"][:1]:
                _find(outcome, subject, trial, f"under {name}", finding.message, finding.error)
                return
            if backends.launches() == before:
                break  # no kernel of this backend is behind the function
            _reached(outcome, name)


def _judge_watched(outcome: Outcome, subject: Subject, trial: Trial, watch: probe.Watch, values: Any) -> None:
    """What the dispatch mode saw: writes outside torch's allocations, and library calls."""
    for message in watch.broken():
        _find(outcome, subject, trial, "bounds", message)
    outcome.library = sorted(watch.library)
    if subject.own and outcome.library:
        message = (
            f"the launcher calls the library: {', '.join(outcome.library)}; allowed are allocation, fills and views"
        )
        _find(outcome, subject, trial, "library", message)
    if isinstance(values, dict):
        _reached(outcome, "library calls")
        tensors = [tensor for tensor in values.values() if isinstance(tensor, torch.Tensor) and tensor.numel()]
        if all(map(watch.reached, tensors)):
            _reached(outcome, "output guards")


def _judge_repeat(outcome: Outcome, subject: Subject, trial: Trial, inputs: Inputs, name: str, second) -> None:
    """Two calls with the same inputs gave different bits: wrong values fail, so does a rung that declares nothing."""
    expected = _expected(subject.contract, inputs.case, subject.compute)[name]
    exact = name in subject.contract.exact.get(trial.case.values, ())
    verdict = None if second.dtype.is_complex else budget.compare(second, expected, trial.case.torch_dtype, exact)
    if verdict is None or not verdict.ok:
        why = verdict.message if verdict else f"dtype {second.dtype}"
        fraction = verdict.fraction if verdict else None
        _find(
            outcome,
            subject,
            trial,
            "repeat",
            f"{name}, on a second call with the same inputs: {why}",
            fraction,
            about=name,
        )
    elif subject.deterministic:
        severity = "failure" if subject.own else "note"
        message = f"{name}: two calls with the same inputs differ in some bits"
        _find(outcome, subject, trial, "repeat", message, severity=severity, about=name)


def _same_bits(a: torch.Tensor, b: Any) -> bool:
    if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(probe.raw(a), probe.raw(b))


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.numel() or not b.numel():
        return False
    (a_start, a_end), (b_start, b_end) = _extent(a), _extent(b)
    return a_start < b_end and b_start < a_end


def _extent(x: torch.Tensor) -> tuple[int, int]:
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _run_calls(subject: Subject, trial: Trial, outcome: Outcome, debug: bool) -> Outcome:
    """Many calls with distinct inputs, every second one in the buffers of the call before; all outputs are held.

    What depends on the number of calls, on addresses, or on what an earlier call left behind shows here.
    """
    held: list[tuple[int, str, torch.Tensor, torch.Tensor]] = []  # call, output, what was returned, its bits then
    inputs = None
    for number, case in enumerate(_cases_of(trial), 1):
        fresh = subject.contract.build(case, subject.device)
        if inputs is None or number % 2:
            inputs = fresh
        else:
            for name, placed in fresh.placed.items():
                old = inputs.placed[name]
                if placed is not None and old is not None:
                    old.buffer.copy_(placed.buffer)
            inputs = Inputs(case, inputs.placed, fresh.exact, fresh.params)
        before = _snapshots(inputs)
        known = len(outcome.findings)
        returned = _observed(subject, trial, inputs, outcome, debug, probe.PATTERNS[number % 2])
        if returned is None and outcome.status == DECLINED:
            return outcome
        values = {} if returned is None else _judge_returned(outcome, subject, trial, inputs, before, returned.value)
        for finding in outcome.findings[known:]:
            finding.message = f"call {number} of {trial.calls}: {finding.message}"
        for name, tensor in values.items():
            if isinstance(tensor, torch.Tensor):
                twin = next((one for one, other, kept, _ in held if other == name and _overlap(kept, tensor)), None)
                if twin is not None:
                    message = f"{name}: calls {twin} and {number} return the same memory"
                    _find(outcome, subject, trial, "alias", message, about=f"{name} twice")
                held.append((number, name, tensor, tensor.clone()))
        recent = held[-HELD:] if number < trial.calls else held
        changed = next(((one, name) for one, name, kept, bits in recent if not _same_bits(kept, bits)), None)
        if changed is not None:
            message = f"{changed[1]}: call {number} changed what call {changed[0]} had returned"
            _find(outcome, subject, trial, "held", message, about=changed[1])
        if outcome.status == FAILED:
            return outcome
    _reached(outcome, f"{trial.calls} calls with distinct inputs", "held outputs")
    return outcome


def _run_huge(subject: Subject, trial: Trial, outcome: Outcome, debug: bool) -> Outcome:
    """One call whose output exceeds 2^31 elements; compared are the first and last rows and those around the 2^31st."""
    contract, case = subject.contract, trial.case
    huge = contract.huge
    assert huge is not None
    generator = torch.Generator(subject.device).manual_seed(case.seed)
    try:
        tensors = {
            name: torch.randn(
                contract.shape(operand.axes, case.size),
                generator=generator,
                dtype=case.torch_dtype,
                device=subject.device,
            )
            for name, operand in contract.operands.items()
        }
        placed: dict[str, layouts.Placed | None] = {
            name: layouts.Placed(tensor, tensor.view(torch.uint8)) for name, tensor in tensors.items()
        }
        returned = _observed(subject, trial, Inputs(case, placed, {}, case.param), outcome, debug)
    except torch.OutOfMemoryError as error:
        outcome.status, outcome.reason = DECLINED, f"not run: {str(error).partition('.')[0]}"
        return outcome
    if returned is None:
        return outcome
    values = _by_name(returned.value, contract, subject.outputs)
    if isinstance(values, str):
        _find(outcome, subject, trial, "returns", values)
        return outcome
    for name, output in contract.outputs.items():
        got, shape = values.get(name), contract.shape(output.axes, case.size)
        if not isinstance(got, torch.Tensor) or tuple(got.shape) != shape or not got.is_contiguous():
            what = (
                f"{tuple(got.shape)}, strides {got.stride()}" if isinstance(got, torch.Tensor) else type(got).__name__
            )
            _find(outcome, subject, trial, "shape", f"{name}: expected contiguous {shape}, got {what}", about=name)
            return outcome
        columns = got[0].numel()
        middle = 2**31 // columns
        wanted = [row for row in (0, 1, middle - 1, middle, middle + 1, shape[0] - 2, shape[0] - 1) if row < shape[0]]
        rows = torch.tensor(wanted, device=got.device)
        some = {n: t.index_select(huge.rows[n], rows) if n in huge.rows else t for n, t in tensors.items()}
        exact = {n: t.cpu().double() for n, t in some.items()}
        expected = contract.expect(exact, case.param, dtype=case.torch_dtype, compute=subject.compute)[name]
        verdict = budget.compare(got.index_select(0, rows), expected, case.torch_dtype)
        outcome.fractions[name] = verdict.fraction
        if not verdict.ok:
            message = f"{name}, rows {wanted} of {shape[0]}: {verdict.message}"
            _find(outcome, subject, trial, "values", message, error=verdict.fraction, about=name)
    return outcome


def _on_another_stream(
    subject: Subject, trial: Trial, inputs: Inputs, outcome: Outcome, debug: bool
) -> _Returned | None:
    """Call the kernel on a stream whose inputs arrive late: work on any other stream reads what was there before."""
    arrived = {name: placed.buffer.clone() for name, placed in inputs.placed.items() if placed is not None}
    for placed in inputs.placed.values():
        if placed is not None:
            placed.buffer.fill_(probe.PATTERNS[1])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        for name, buffer in arrived.items():
            inputs.placed[name].buffer.copy_(buffer)  # type: ignore[union-attr]
        returned = _observed(subject, trial, inputs, outcome, debug)
    stream.synchronize()
    _reached(outcome, "current stream")
    return returned


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


def _answer(contract: Contract, case: Case, compute: str | None) -> dict[str, budget.Expected]:
    return contract.expected(contract.build(case), compute)


_expected = lru_cache(maxsize=8)(_answer)  # the rungs of a ladder are judged on the same cases one after another


def keep_answers(found: Sequence[Trial]) -> None:
    """Compute the answers of all these trials now and keep them, for many kernels judged on the same ones."""
    global _expected
    _expected = lru_cache(maxsize=None)(_answer)
    for trial in found:
        if trial.invalid is None and not trial.huge:
            for case in _cases_of(trial):
                _expected(registry.contract(case.op), case, None)


def _cases_of(trial: Trial) -> list[Case]:
    if not trial.calls:
        return [trial.case]
    return [replace(trial.case, seed=trial.case.seed + 1000 * number) for number in range(1, trial.calls + 1)]


def _call(subject: Subject, arguments: dict[str, Any]) -> Any:
    """Call the kernel: our rungs by keyword, since names are part of the signature; a user's function as one would write it.

    A parameter at the contract's default is left to the default of a function that has one.
    """
    arguments = {
        name: value
        for name, value in arguments.items()
        if name not in subject.contract.params
        or (type(value), value) != (type(subject.contract.params[name][0]), subject.contract.params[name][0])
        or name not in _defaults(subject.fn)
    }
    if subject.own:
        return subject.fn(**arguments)
    rest = dict(arguments)
    return arrays.on_tensors(subject.fn, subject.arrays)(
        *[rest.pop(name) for name, operand in subject.contract.operands.items() if operand.positional], **rest
    )


def _defaults(fn: Callable[..., Any]) -> frozenset[str]:
    """The parameters to which a function gives a default."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(p.name for p in parameters if p.default is not p.empty)


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


def _judge_output(outcome, subject, trial, inputs: Inputs, name: str, output, got, expected) -> budget.Verdict | None:
    """Judge one output; return the verdict on its values where they can be compared."""
    if expected is None:
        if got is not None:
            _find(outcome, subject, trial, "returns", f"{name} must be None here, got {type(got).__name__}", about=name)
        return None
    if type(got) is not torch.Tensor:
        _find(
            outcome,
            subject,
            trial,
            "returns",
            f"{name}: expected a {arrays.type_name(subject.arrays)}, got {arrays.what(got)}",
            about=name,
        )
        return None
    if got.layout is not torch.strided:
        _find(
            outcome, subject, trial, "returns", f"{name}: expected a dense tensor, got layout {got.layout}", about=name
        )
        return None
    shape = subject.contract.shape(output.axes, trial.case.size)
    dtype = output.dtype or trial.case.torch_dtype
    if tuple(got.shape) != shape:
        _find(outcome, subject, trial, "shape", f"{name}: expected shape {shape}, got {tuple(got.shape)}", about=name)
        return None
    if got.dtype != dtype:
        _find(outcome, subject, trial, "dtype", f"{name}: expected {dtype}, got {got.dtype}", about=name)
        return None
    if got.device.type != subject.device:
        _find(
            outcome,
            subject,
            trial,
            "device",
            f"{name}: expected a tensor on {subject.device}, got {got.device}",
            about=name,
        )
        return None
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
    return verdict


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
