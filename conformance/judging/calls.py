"""Judging by more than one plain call: a repeat, other instruments, many calls, another stream, a property, an
output beyond 2^31 elements."""

import re
from dataclasses import replace
from typing import Any

import torch

from touchstone import backends
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.call import (
    CallResult,
    error_text,
    expected_of,
    find,
    judge_output,
    judge_returned,
    observe_call,
    reached,
    snapshots,
)
from touchstone.conformance.judging.judgement import DECLINED, FAILED, PASSED, Outcome
from touchstone.conformance.judging.trials import Trial
from touchstone.conformance.spec import compare, layouts
from touchstone.conformance.spec.contract import Case, Contract, Inputs, Invalid, Property
from touchstone.conformance.spec.outputs import overlap

HELD = 6  # latest outputs that are looked at again after each of many calls; all are at the end
SLEEP_CYCLES = 20_000_000  # about 10 ms, for which the stream of a "stream" trial holds its inputs back


def call_again(
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
    returned = observe_call(subject, trial, inputs, again, debug and watch is None, probe.PATTERNS[1], watch)
    second = None if returned is None else subject.contract.by_name(returned.value, subject.outputs)
    if watch is not None:
        _judge_watched(outcome, subject, trial, watch, second)
        if not isinstance(second, dict) or not all(_same_bits(tensor, second[name]) for name, tensor in kept.items()):
            again = Outcome(outcome.trial, outcome.dtype, PASSED)
            returned = observe_call(subject, trial, inputs, again, debug, probe.PATTERNS[1])
            second = None if returned is None else subject.contract.by_name(returned.value, subject.outputs)
    outcome.findings += again.findings
    if again.status == FAILED:
        outcome.status = FAILED
    if not isinstance(second, dict):
        what = second or again.reason or "raised"
        find(outcome, subject, trial, "repeat", f"a second call with the same inputs: {what}")
        return
    for name, placed in inputs.placed.items():
        if placed is not None and not placed.unchanged(before[name]):
            find(outcome, subject, trial, "inputs", f"{name} was written in a second call", about=name)
    for name, tensor in kept.items():
        if not _same_bits(tensor, values[name]):
            message = f"{name}: a later call changed what an earlier one had returned"
            find(outcome, subject, trial, "held", message, about=name)
        elif not isinstance(second[name], torch.Tensor) or second[name].shape != tensor.shape:
            find(outcome, subject, trial, "repeat", f"{name}: a second call returns something else", about=name)
        elif overlap(second[name], values[name]):
            find(outcome, subject, trial, "alias", f"{name}: two calls return the same memory", about=f"{name} twice")
        elif not _same_bits(tensor, second[name]):
            _judge_repeat(outcome, subject, trial, inputs, name, second[name])
    reached(outcome, "repeat", "held outputs")


def _judge_watched(outcome: Outcome, subject: Subject, trial: Trial, watch: probe.Watch, values: Any) -> None:
    """What the dispatch mode saw: writes outside torch's allocations, and library calls."""
    for message in watch.broken():
        find(outcome, subject, trial, "bounds", message)
    outcome.library = sorted(watch.library)
    if subject.own and outcome.library:
        message = (
            f"the launcher calls the library: {', '.join(outcome.library)}; allowed are allocation, fills and views"
        )
        find(outcome, subject, trial, "library", message)
    if isinstance(values, dict):
        reached(outcome, "library calls")
        tensors = [tensor for tensor in values.values() if isinstance(tensor, torch.Tensor) and tensor.numel()]
        if all(map(watch.reached, tensors)):
            reached(outcome, "output guards")


def _judge_repeat(outcome: Outcome, subject: Subject, trial: Trial, inputs: Inputs, name: str, second) -> None:
    """Two calls with the same inputs gave different bits: wrong values fail, so does a variant that declares
    nothing."""
    expected = expected_of(subject.contract, inputs.case, subject.compute)[name]
    exact = diagnosis.exact(subject.contract, trial.case, name)
    verdict = None if second.dtype.is_complex else compare.compare(second, expected, trial.case.torch_dtype, exact)
    if verdict is None or not verdict.ok:
        why = verdict.message if verdict else f"dtype {second.dtype}"
        fraction = verdict.fraction if verdict else None
        message = f"{name}, on a second call with the same inputs: {why}"
        find(outcome, subject, trial, "repeat", message, fraction, about=name)
    elif subject.deterministic:
        severity = "failure" if subject.own else "note"
        message = f"{name}: two calls with the same inputs differ in some bits"
        find(outcome, subject, trial, "repeat", message, severity=severity, about=name)


def _same_bits(a: torch.Tensor, b: Any) -> bool:
    if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(probe.raw(a), probe.raw(b))


def call_under_instruments(outcome: Outcome, subject: Subject, trial: Trial, inputs: Inputs) -> None:
    """Further calls within what the backend's interpreter or emulator offers: other schedules, a race detector."""
    target = subject.target.partition("@")[0]
    for backend in [target] if target in registry.backends() else registry.backends():
        offered = getattr(registry.backend(backend), "instruments", None)
        for name, within in (offered(subject.device) if offered else {}).items():
            again, before = Outcome(outcome.trial, outcome.dtype, PASSED), backends.launches()
            try:
                with within():
                    returned = subject.call(inputs.arguments)
            except NotImplementedError:
                continue
            except Exception as error:
                find(outcome, subject, trial, f"under {name}", error_text(error))
                return
            values = subject.contract.by_name(returned, subject.outputs)
            if isinstance(values, str):
                find(outcome, subject, trial, f"under {name}", values)
                return
            expected = expected_of(subject.contract, inputs.case, subject.compute)
            for output, tensor in values.items():
                if subject.outputs is None or output in subject.outputs:
                    judge_output(again, subject, trial, inputs, output, tensor, expected[output])
            for finding in [found for found in again.findings if found.severity == "failure"][:1]:
                find(outcome, subject, trial, f"under {name}", finding.message, finding.error)
                return
            if backends.launches() == before:
                break  # no kernel of this backend is behind the function
            reached(outcome, name)


def many_calls(subject: Subject, trial: Trial, outcome: Outcome, debug: bool) -> Outcome:
    """Many calls with distinct inputs, every second one in the buffers of the call before; all outputs are held.

    What depends on the number of calls, on addresses, or on what an earlier call left behind shows here: a result kept
    by address, by object or version of a tensor, by shape, by a few elements or a sum, or without the parameters.
    Declining a call in another layout or with another parameter than the first is no fault.
    """
    held: list[tuple[int, str, torch.Tensor, torch.Tensor]] = []  # call, output, what was returned, its bits then
    inputs = None
    cases = cases_of(trial, subject.contract)
    for number, case in enumerate(cases, 1):
        fresh = subject.contract.build(case, subject.device)
        if inputs is None or number % 2:
            inputs = fresh
        else:
            for name, placed in fresh.placed.items():
                old = inputs.placed[name]
                if placed is not None and old is not None:
                    old.buffer.data.copy_(placed.buffer)  # `data`: other libraries do not count versions either
            inputs = Inputs(case, inputs.placed, fresh.exact, fresh.params)
        before = snapshots(inputs)
        known = len(outcome.findings)
        returned = observe_call(subject, trial, inputs, outcome, debug, probe.PATTERNS[number % 2])
        if returned is None and outcome.status == DECLINED:
            if number == 1:
                return outcome
            outcome.status, outcome.reason = PASSED, None
            continue
        values = {} if returned is None else judge_returned(outcome, subject, trial, inputs, before, returned.value)
        for finding in outcome.findings[known:]:
            finding.message = f"call {number} of {trial.calls}{_about(cases, number)}: {finding.message}"
        for name, tensor in values.items():
            if isinstance(tensor, torch.Tensor):
                twin = next((one for one, other, kept, _ in held if other == name and overlap(kept, tensor)), None)
                if twin is not None:
                    message = f"{name}: calls {twin} and {number} return the same memory"
                    find(outcome, subject, trial, "alias", message, about=f"{name} twice")
                held.append((number, name, tensor, tensor.clone()))
        recent = held[-HELD:] if number < trial.calls else held
        changed = next(((one, name) for one, name, kept, bits in recent if not _same_bits(kept, bits)), None)
        if changed is not None:
            message = f"{changed[1]}: call {number} changed what call {changed[0]} had returned"
            find(outcome, subject, trial, "held", message, about=changed[1])
        if outcome.status == FAILED:
            return outcome
    reached(outcome, f"{trial.calls} calls with distinct inputs", "held outputs")
    return outcome


def cases_of(trial: Trial, contract: Contract) -> list[Case]:
    """The cases that a trial calls the kernel on.

    Many calls come in pairs that share their buffers. The second of a pair has one operand mirrored inside, in turn; or
    another parameter, on the same tensors; or values of its own. Half of the pairs are in other layouts.
    """
    if not trial.calls:
        return [trial.case]
    drawn = [name for name, operand in contract.operands.items() if operand.counts and not operand.derived]
    drawn = drawn if contract.mirrors else []
    layouts = [replace(trial.case, layouts=other.layouts) for other in trial.others]
    params = [replace(trial.case, params=other.params) for other in trial.others]
    layouts, params = ([c for c in some if c != trial.case and contract.valid(c)] for some in (layouts, params))
    cases: list[Case] = []
    for number in range(1, trial.calls + 1):
        turn, place = divmod(number - 1, 8)
        plain = replace(trial.case, layouts=cases[-1].layouts) if place % 2 else trial.case
        case = replace(plain, seed=trial.case.seed + 1000 * number)
        if place in (4, 6) and layouts:
            case = replace(case, layouts=layouts[(2 * turn + place // 6) % len(layouts)].layouts)
        elif place in (1, 5) and drawn:
            case = replace(cases[-1], mirrored=drawn[(2 * turn + place // 5) % len(drawn)])
        elif place == 3 and params:
            case = replace(cases[-1], params=params[turn % len(params)].params, drawn_as=cases[-1].id)
        cases.append(case)
    return cases


def _about(cases: list[Case], number: int) -> str:
    """What is special about one of many calls, in brackets."""
    case, parts = cases[number - 1], []
    if number > 1 and case.seed == cases[number - 2].seed:
        before = cases[number - 2].params
        changed = [f"{case.mirrored} mirrored inside"] if case.mirrored else []
        changed += [f"{name}={value}" for name, value in case.params if (name, value) not in before]
        parts.append(f"as call {number - 1}, but {', '.join(changed)}")
    strided = [f"{name} {layout}" for name, layout in case.layouts if (name, layout) not in cases[0].layouts]
    return f" ({'; '.join([*parts, *strided])})" if parts or strided else ""


def int64_index_output(subject: Subject, trial: Trial, outcome: Outcome, debug: bool) -> Outcome:
    """One call whose output exceeds 2^31 elements; compared are the first and last rows and those around the 2^31st."""
    contract, case = subject.contract, trial.case
    int64_index = contract.int64_index
    assert int64_index is not None
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
        placed: dict[str, layouts.BufferView | None] = {
            name: layouts.BufferView(tensor, tensor.view(torch.uint8)) for name, tensor in tensors.items()
        }
        returned = observe_call(subject, trial, Inputs(case, placed, {}, case.param), outcome, debug)
    except torch.OutOfMemoryError as error:
        outcome.status, outcome.reason = DECLINED, f"not run: {str(error).partition('.')[0]}"
        return outcome
    if returned is None:
        return outcome
    values = contract.by_name(returned.value, subject.outputs)
    if isinstance(values, str):
        find(outcome, subject, trial, "returns", values)
        return outcome
    for name, output in contract.outputs.items():
        got, shape = values.get(name), contract.shape(output.axes, case.size)
        if not isinstance(got, torch.Tensor) or tuple(got.shape) != shape or not got.is_contiguous():
            what = (
                f"{tuple(got.shape)}, strides {got.stride()}" if isinstance(got, torch.Tensor) else type(got).__name__
            )
            find(outcome, subject, trial, "shape", f"{name}: expected contiguous {shape}, got {what}", about=name)
            return outcome
        columns = got[0].numel()
        middle = 2**31 // columns
        wanted = [row for row in (0, 1, middle - 1, middle, middle + 1, shape[0] - 2, shape[0] - 1) if row < shape[0]]
        rows = torch.tensor(wanted, device=got.device)
        some = {
            n: t.index_select(int64_index.rows[n], rows) if n in int64_index.rows else t for n, t in tensors.items()
        }
        exact = {n: t.cpu().double() for n, t in some.items()}
        expected = contract.expect(exact, case.param, dtype=case.torch_dtype, compute=subject.compute)[name]
        verdict = compare.compare(got.index_select(0, rows), expected, case.torch_dtype)
        outcome.fractions[name] = verdict.fraction
        if not verdict.ok:
            message = f"{name}, rows {wanted} of {shape[0]}: {verdict.message}"
            find(outcome, subject, trial, "values", message, error=verdict.fraction, about=name)
    return outcome


def on_another_stream(
    subject: Subject, trial: Trial, inputs: Inputs, outcome: Outcome, debug: bool
) -> CallResult | None:
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
        returned = observe_call(subject, trial, inputs, outcome, debug)
    stream.synchronize()
    reached(outcome, "current stream")
    return returned


def judge_property(
    outcome: Outcome, subject: Subject, trial: Trial, prop: Property, inputs: Inputs, values: tuple, debug: bool
) -> None:
    """A property calls the kernel again, with inputs of its own."""

    def call(**arguments: Any) -> tuple[Any, ...]:
        returned = subject.call(arguments)
        return tuple(returned) if isinstance(returned, tuple | list) else (returned,)

    try:
        broken = prop.check(call, inputs.arguments, values, trial.case)
    except NotImplementedError as declined:
        outcome.status, outcome.reason = DECLINED, str(declined) or type(declined).__name__
        return
    except Exception as error:
        if debug:
            raise
        broken = f"a further call raised {error_text(error)}"
    if broken:
        find(outcome, subject, trial, f"property: {prop.name}", broken)


def invalid_call(subject: Subject, trial: Trial, invalid: Invalid) -> Outcome:
    inputs = subject.contract.build(trial.case, subject.device)
    outcome = Outcome(trial.id, trial.case.dtype, PASSED)
    names = invalid.error if isinstance(invalid.error, tuple) else (invalid.error,)
    wanted = f"{' or '.join(e.__name__ for e in names)} whose message matches {invalid.match!r}"
    try:
        subject.call(invalid.spoil(inputs.arguments))
    except invalid.error as error:
        if not re.search(invalid.match, str(error)):
            find(outcome, subject, trial, "invalid", f"expected {wanted}, got {type(error).__name__}: {error}")
    except Exception as error:
        find(outcome, subject, trial, "invalid", f"expected {wanted}, got {error_text(error)}")
    else:
        find(outcome, subject, trial, "invalid", f"expected {wanted}, but the call went through")
    return outcome
