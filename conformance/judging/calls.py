"""Judging by more than one plain call: a repeat, other instruments, many calls, another stream, a graph, a property,
an output beyond 2^31 elements."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.judging import causes, diagnosis, honesty, requirements
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.call import (
    check_form,
    check_returned,
    expected_of,
    is_view,
    note_raised,
    observe_call,
    snapshots,
    trouble_on,
)
from touchstone.conformance.judging.causes import is_right
from touchstone.conformance.judging.executor import RAISES, Manner, Observed, instruments_of
from touchstone.conformance.judging.judgement import DECLINED, FAILED, NOT_RUN, PASSED, Finding, Judgement
from touchstone.conformance.judging.trials import ManyCalls, Trial
from touchstone.conformance.spec import compare, layouts
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case, Contract, Inputs, Invalid
from touchstone.conformance.spec.outputs import extent, meet, overlap

FURTHER = 3.0  # seconds for calls after the first with wrong values
LONGEST = 10.0  # seconds that a case with many rows may take on a CPU
HELD = 6  # latest outputs that are looked at again after each of many calls; all are at the end


def call_again(j: Judgement, inputs: Inputs, before: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
    """A second call on the same inputs, in memory with the other poison, watched where that is possible.

    A dispatch mode can make a call fail or compute otherwise: what differs under it is judged on a third call without.
    """
    held = {name: tensor for name, tensor in values.items() if isinstance(tensor, torch.Tensor)}
    kept = {name: tensor.clone() for name, tensor in held.items()}
    again = j.again(debug=False)
    seen = observe_call(again, inputs, probe.PATTERNS[1], watched=True)
    second = seen.values if seen.returned else None
    if seen.watched:
        _check_watched(j, seen)
    same = _as_kept(kept, second)
    if not (isinstance(second, dict) and all(same.values())) and (seen.watched or j.debug):
        again = j.again(debug=j.debug)
        seen = observe_call(again, inputs, probe.PATTERNS[1])
        second = seen.values if seen.returned else None
        same = _as_kept(kept, second)
    j.outcome.findings += again.outcome.findings
    if again.outcome.status == FAILED:
        j.outcome.status = FAILED
    if not isinstance(second, dict):
        what = second or again.outcome.reason or "raised"
        j.find(Check.REPEAT, f"a second call with the same inputs: {what}")
        return
    for name in layouts.changed(inputs.placed, before):
        j.find(Check.INPUTS, f"{name} was written in a second call", about=name)
    j.executor.reread(list(held.values()))
    still = _as_kept(kept, held)
    for name, tensor in kept.items():
        if not still[name]:
            j.find(Check.HELD, f"{name}: a later call changed what an earlier one had returned", about=name)
        elif not isinstance(second[name], torch.Tensor) or (
            (second[name].shape, second[name].device) != (tensor.shape, tensor.device)
        ):
            j.find(Check.REPEAT, f"{name}: a second call returns something else", about=name)
        elif overlap(second[name], values[name]) and not is_view(inputs, second[name]):
            j.find(Check.ALIAS, f"{name}: two calls return the same memory", about=name, detail="twice")
        elif not same[name]:
            _check_repeat(j, inputs, name, second[name])
    j.reached("repeat", "held outputs")


def _check_watched(j: Judgement, seen: Observed) -> None:
    """What the dispatch mode saw: writes outside torch's allocations, and library calls."""
    for message in seen.broken:
        j.find(Check.BOUNDS, message)
    library = j.outcome.library = seen.library
    if j.subject.own and library:
        message = f"the launcher calls the library: {', '.join(library)}; allowed are allocation, fills and views"
        j.find(Check.LIBRARY, message)
    honesty.check_library(j, seen)
    if seen.returned and isinstance(seen.values, dict):
        j.reached("library calls")
        if seen.guarded:
            j.reached("output guards")


def _check_repeat(j: Judgement, inputs: Inputs, name: str, second: torch.Tensor) -> None:
    """Two calls with the same inputs gave different bits: wrong values fail, so does a variant that declares
    nothing."""
    expected = expected_of(j.contract, inputs.case, j.subject.compute)[name]
    exact = diagnosis.exact(j.contract, j.case, name)
    verdict = None if second.dtype.is_complex else compare.compare(second, expected, j.case.torch_dtype, exact)
    if verdict is None or not verdict.ok:
        why = verdict.message if verdict else f"dtype {second.dtype}"
        fraction = verdict.fraction if verdict else None
        j.find(Check.REPEAT, f"{name}, on a second call with the same inputs: {why}", error=fraction, about=name)
    elif j.subject.deterministic:
        severity = "failure" if j.subject.own else "note"
        message = f"{name}: two calls with the same inputs differ in some bits"
        j.find(Check.REPEAT, message, severity=severity, about=name)


def _as_kept(kept: Mapping[str, torch.Tensor], values: Any) -> dict[str, bool]:
    """Which outputs of a call, `values` by name, have the bits that were kept."""
    given = values if isinstance(values, dict) else {}
    return dict(zip(kept, _same_bits([(tensor, given.get(name)) for name, tensor in kept.items()]), strict=True))


def _same_bits(pairs: Sequence[tuple[torch.Tensor, Any]]) -> list[bool]:
    """Whether both of each pair are tensors of one form, and of the same bits."""

    def alike(a: torch.Tensor, b: Any) -> bool:
        return isinstance(b, torch.Tensor) and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)

    same = iter(layouts.equal_each([(probe.raw(a), probe.raw(b)) for a, b in pairs if alike(a, b)]))
    return [alike(a, b) and next(same) for a, b in pairs]


def call_under_instruments(j: Judgement, inputs: Inputs, engines: Sequence[str]) -> None:
    """Further calls within what these interpreters or emulators offer, on which kernels were launched: other schedules,
    a race detector."""
    for backend, engine, names in instruments_of(j.subject, engines):
        for name in names:
            seen, found = trouble_on(j, inputs, conspicuous=j.conspicuous, instrument=(backend, name))
            if found is not None:
                j.find(Check.UNDER.of(name), found.message, error=found.error, raised=found.raised)
                return
            if engine in seen.launched:
                j.reached(name)


def many_calls(j: Judgement, trial: ManyCalls) -> None:
    """Many calls with distinct inputs, every second one in the buffers of the call before; all outputs are held.

    What depends on the number of calls, on addresses, or on what an earlier call left behind shows here: a result kept
    by address, by object or version of a tensor, by shape, by a few elements or a sum, or without the parameters. Every
    second pair of calls finds neither guard bands in the operands' storages nor gradients on, as in a usual program.
    Declining a call in another layout or with another parameter than those before is no fault; to decline one that
    differs from a call that was taken in its values alone is to decline the trial.
    """
    outcome = j.outcome
    # call, output, what was returned, its bits then, and where it lies
    held: list[tuple[int, str, torch.Tensor, torch.Tensor, tuple[int, int]]] = []
    takers: dict[Any, int] = {}  # the first call that was taken, by its form
    inputs = None
    cases = cases_of(trial, j.contract)
    j.earlier.clear()
    for number, case in enumerate(cases, 1):
        fresh = j.contract.build(case, j.executor.device)
        if inputs is None or number % 2 or _shapes(fresh) != _shapes(inputs):
            inputs = fresh
        else:
            for name, placed in fresh.placed.items():
                old = inputs.placed[name]
                if placed is not None and old is not None:
                    old.buffer.data.copy_(placed.buffer)  # `data`: other libraries do not count versions either
            inputs = Inputs(case, inputs.placed, fresh.exact, fresh.params)
        before = snapshots(inputs)
        known = len(outcome.findings)
        seen = observe_call(j, inputs, probe.PATTERNS[number % 2], usual=number % 4 in (3, 0))
        if not seen.returned and outcome.status in (DECLINED, NOT_RUN):
            if number == 1:
                return
            if (taken := takers.get(_form(case))) is not None:
                outcome.reason = f"call {number} of {trial.count}, though it took call {taken}: {outcome.reason}"
                return
            outcome.status, outcome.reason = PASSED, None
            continue
        takers.setdefault(_form(case), number)
        values = check_returned(j, inputs, before, seen.values) if seen.returned else {}
        j.earlier.append((f"call {number}", case))
        found = outcome.findings[known:]
        if outcome.status == FAILED and number > 1 and j.subject.diagnosed:
            _say_which(j, found, cases, number)
        requirements.of_call(j, found, case, cases[0])
        for finding in found:
            finding.message = f"call {number} of {trial.count}{_about(cases, number)}: {finding.message}"
        for name, tensor in values.items():
            if isinstance(tensor, torch.Tensor) and not is_view(inputs, tensor):
                place = extent(tensor)
                twin = next((one for one, other, _, _, there in held if other == name and meet(there, place)), None)
                if twin is not None:
                    message = f"{name}: calls {twin} and {number} return the same memory"
                    j.find(Check.ALIAS, message, about=name, detail="twice")
                held.append((number, name, tensor, tensor.clone(), place))
        recent = held[-HELD:] if number < trial.count else held
        j.executor.reread([kept for _, _, kept, *_ in recent])
        same = _same_bits([(kept, bits) for _, _, kept, bits, _ in recent])
        changed = next(((one, name) for (one, name, *_), equal in zip(recent, same, strict=True) if not equal), None)
        if changed is not None:
            message = f"{changed[1]}: call {number} changed what call {changed[0]} had returned"
            j.find(Check.HELD, message, about=changed[1])
        if outcome.status == FAILED:
            return
    j.reached(f"{trial.count} calls with distinct inputs", "held outputs")


def as_graph(j: Judgement) -> None:
    """A call captured as a CUDA graph, of which the replay is judged. What is found is a failure of our variants, and
    of others a note: nobody has asked them for it."""
    inputs = j.contract.build(j.case, j.executor.device)
    before = snapshots(inputs)
    seen = j.call(inputs.arguments, Manner(replayed=True), inputs.placed)
    if seen.raised is not None and seen.raised.kind != RAISES:
        note_raised(j, seen.raised)
        return
    found = []
    if seen.raised is not None:
        found.append(f"cannot be captured as a CUDA graph: {seen.raised.text}")
    else:
        replay = j.again(j.debug)
        check_returned(replay, inputs, before, seen.values)
        found += [
            f"replayed from a CUDA graph: {f.message}" for f in replay.outcome.findings if f.severity == "failure"
        ]
    for message in found:
        j.find(Check.GRAPH, message, severity="failure" if j.subject.own else "note", detail=message[:40])
    j.reached("graph capture")


def _say_which(j: Judgement, findings: Sequence[Finding], cases: Sequence[Case], first: int) -> None:
    """Make the rest of the calls, from the `first` with wrong values on, and add to its findings which are wrong."""
    values = [finding for finding in findings if finding.check == Check.VALUES and finding.fails()]
    wrong, end = [first], time.monotonic() + FURTHER
    for number, case in enumerate(cases[first:] if values else [], first + 1):
        seen = j.again(debug=False).call(j.contract.build(case, j.executor.device).arguments)
        if time.monotonic() > end or not seen.returned or not isinstance(seen.values, dict):
            return
        expected = expected_of(j.contract, case, j.subject.compute)
        if not all(is_right(j, case, name, seen.values[name], expected[name]) for name in filter(j.judges, expected)):
            wrong.append(number)
    text = causes.of_many(cases, first, wrong)
    for finding in values if text else ():
        finding.diagnosis = "\n".join(filter(None, [text, finding.diagnosis]))


def a_64th(case: Case) -> Case:
    """A case with a 64th of its rows, and of the sequences that they lie in."""
    largest = max(n for _, n in case.sizes if isinstance(n, int))
    sizes = tuple((name, -(-n // 64) if isinstance(n, int) and 4 * n > largest else n) for name, n in case.sizes)
    return replace(case, sizes=sizes)


def takes_long(j: Judgement) -> bool:
    """Whether a case with many rows would take more than LONGEST seconds, judging by one with a 64th of them. A note
    says so, and findings of that one count."""
    few = a_64th(j.case)
    seconds = 0.0
    for _ in range(2):  # the first call compiles
        inputs = j.contract.build(few)
        before = snapshots(inputs)
        start = time.monotonic()
        seen = observe_call(j, inputs)
        seconds = time.monotonic() - start
        if not seen.returned:
            return True
    if 64 * seconds <= LONGEST:
        return False
    check_returned(j, inputs, before, seen.values)
    what = f"{few.id} took {seconds:.2g} s here, and 64 times as many rows would take {64 * seconds:.0f} s"
    j.find(Check.VALUES, f"not called with them: {what}", severity="note")
    return True


def _form(case: Case) -> Any:
    """What the cases of one trial differ in, but for their numbers."""
    return tuple(sorted(case.layouts)), repr(sorted(case.params)), case.sizes


def _shapes(inputs: Inputs) -> list[torch.Size | None]:
    return [None if placed is None else placed.view.shape for placed in inputs.placed.values()]


def cases_of(trial: Trial, contract: Contract) -> list[Case]:
    """The cases that a trial calls the kernel on.

    Many calls come in pairs that share their buffers. The second of a pair has one operand mirrored inside, in turn, or
    one element of it altered; or another parameter, on the same tensors. Half of the pairs are in other layouts.
    """
    if not isinstance(trial, ManyCalls):
        return [trial.case]
    if trial.in_turn:
        return list(trial.others)
    drawn = [name for name, o in contract.operands.items() if o.counts and not o.derived and not o.fixed]
    drawn = drawn if contract.mirrors else []
    layouts = [replace(trial.case, layouts=other.layouts) for other in trial.others]
    params = [replace(trial.case, params=other.params) for other in trial.others]
    layouts, params = ([c for c in some if c != trial.case and contract.valid(c)] for some in (layouts, params))
    cases: list[Case] = []
    for number in range(1, trial.count + 1):
        turn, place = divmod(number - 1, 8)
        plain = replace(trial.case, layouts=cases[-1].layouts) if place % 2 else trial.case
        case = replace(plain, seed=trial.case.seed + 1000 * number)
        if place in (4, 6) and layouts:
            case = replace(case, layouts=layouts[(2 * turn + (place == 6)) % len(layouts)].layouts)
        elif place in (1, 5) and drawn:
            case = replace(cases[-1], mirrored=drawn[(2 * turn + (place == 5)) % len(drawn)])
        elif place == 7 and drawn:
            case = replace(cases[-1], altered=drawn[turn % len(drawn)])
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
        changed += [f"one element of {case.altered} altered"] if case.altered else []
        changed += [f"{name}={value}" for name, value in case.params if (name, value) not in before]
        parts.append(f"as call {number - 1}, but {', '.join(changed)}")
    parts += [f"{name}={size}" for name, size in case.sizes if cases[0].size[name] != size]
    strided = [f"{name} {layout}" for name, layout in case.layouts if (name, layout) not in cases[0].layouts]
    return f" ({'; '.join([*parts, *strided])})" if parts or strided else ""


def int64_index_output(j: Judgement) -> None:
    """One call whose output exceeds 2^31 elements; compared are the first and last rows and those around the 2^31st."""
    contract, case, device = j.contract, j.case, j.executor.device
    int64_index = contract.int64_index
    assert int64_index is not None
    generator = torch.Generator(device).manual_seed(case.seed)
    try:
        tensors: dict[str, torch.Tensor | None] = {
            name: torch.randn(
                contract.operand_shape(name, case),
                generator=generator,
                dtype=contract.operand_dtype(name, case),
                device=device,
            )
            if operand.counts or not operand.derived
            else None
            for name, operand in contract.operands.items()
        }
        placed: dict[str, layouts.BufferView | None] = {
            name: None if tensor is None else layouts.BufferView(tensor, tensor.view(torch.uint8))
            for name, tensor in tensors.items()
        }
        inputs = Inputs(case, placed, {}, case.param)
        seen = observe_call(j, inputs)
    except (torch.OutOfMemoryError, layouts.NoRoom) as error:
        j.decline(f"not run: {str(error).partition('.')[0]}")
        return
    if not seen.returned:
        return
    if isinstance(seen.values, str):
        j.find(Check.RETURNS, seen.values)
        return
    operand, axis = next(iter(int64_index.rows.items()))
    letter = contract.operand_axes(operand, case).split()[axis]
    for name, got in seen.values.items():
        if not j.judges(name):
            continue
        if check_form(j, inputs, name, got):
            return
        if contract.output_axes(name, case).split()[0] != letter:
            continue  # a sum over all rows
        size, columns = got.shape[0], got[0].numel()
        middle = 2**31 // columns
        wanted = [row for row in (0, 1, middle - 1, middle, middle + 1, size - 2, size - 1) if row < size]
        rows = torch.tensor(wanted, device=got.device)
        some = {
            n: t.index_select(int64_index.rows[n], rows) if t is not None and n in int64_index.rows else t
            for n, t in tensors.items()
        }
        exact = {n: None if t is None else t.cpu().double() for n, t in some.items()}
        expected = contract.expect(exact, case.param, dtype=case.torch_dtype, compute=j.subject.compute)[name]
        verdict = compare.compare(got.index_select(0, rows), expected, case.torch_dtype)
        j.outcome.fractions[name] = verdict.fraction
        if not verdict.ok:
            message = f"{name}, rows {wanted} of {size}: {verdict.message}"
            j.find(Check.VALUES, message, error=verdict.fraction, about=name)


def invalid_call(j: Judgement, invalid: Invalid) -> None:
    """A call with arguments that the op's signature excludes: the error has to be the contract's, and name why."""
    inputs = j.contract.build(j.case, j.executor.device)
    errors = invalid.error if isinstance(invalid.error, tuple) else (invalid.error,)
    names = [error.__name__ for error in errors]
    wanted = f"{' or '.join(names)} whose message matches {invalid.match!r}"
    raised = j.executor.call(invalid.spoil(inputs.arguments), placed=inputs.placed).raised
    if raised is None:
        j.find(Check.INVALID, f"expected {wanted}, but the call went through")
    elif not set(names) & set(raised.types):
        j.find(Check.INVALID, f"expected {wanted}, got {raised.text}")
    elif not re.search(invalid.match, raised.said):
        j.find(Check.INVALID, f"expected {wanted}, got {raised.types[0]}: {raised.said}")
