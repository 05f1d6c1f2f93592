"""One call of a kernel: made within the instruments of conformance/judging/instruments.py, and what came back
judged."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any

import torch

from touchstone.conformance.discovery import arrays
from touchstone.conformance.judging import (
    causes,
    diagnosis,
    edges,
    honesty,
    indices,
    influence,
    options,
    reading,
    slices,
    strided,
    without,
)
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.executor import CANNOT, DECLINES, RAISES, Manner, Observed, Raised
from touchstone.conformance.judging.judgement import Finding, Judgement
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.spec import budget, compare, layouts, outputs
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case, Contract, Inputs

COMPARED_WITH_FAULTS = 3  # failing calls of a kernel on numbers, and of those on NaN and infinities
OF_A_CALL, OF_A_KERNEL = 30.0, 60.0  # seconds in which it is called for hints about one of them, and about all
MANY = 24  # wrong elements that are not right in a lower precision by chance
ROUNDED_ONCE = 0.9  # of the elements, more than which are the rounded answer where nothing was rounded before
LOWER = ("tf32x3", "tf32")  # precisions in which a failure in float32 is judged again, the highest first
_kept: dict[tuple[Contract, Case, str | None], dict[str, budget.Expected]] = {}


def snapshots(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {name: placed.snapshot() for name, placed in inputs.placed.items() if placed is not None}


_ON_HOST = {
    "cpu": "beside a GPU it would lie on the CPU: allocated without device=, or moved there",
    "cuda": "expected a tensor on cuda, got one on cpu",
}

# What a launcher raises that does not take a size.
REFUSALS = ("AssertionError", "OutOfResources", "RuntimeError", "ValueError")


def observe_call(
    j: Judgement,
    inputs: Inputs,
    byte: int = probe.PATTERNS[0],
    watched: bool = False,
    late: bool = False,
    usual: bool = False,
) -> Observed:
    """Call the kernel in poisoned memory and see what it leaves behind; whether there is something to judge is told by
    `Observed.returned`. `late`: on a stream on which the inputs arrive late; `usual`: as `Manner` has it."""
    manner = Manner(
        byte,
        output_bytes(j.contract, inputs.case),
        watched=watched,
        state=True,
        generators=j.trial.kind is not Kind.CALLS,
        element=honesty.element(j) if watched else None,
        usual=usual,
        late=late,
    )
    seen = j.call(inputs.arguments, manner, inputs.placed)
    honesty.check(j, seen, manner.element)
    if seen.raised is not None:
        j.outcome.displaced = seen.displaced
        if j.outcome.single and seen.raised.types[0] in REFUSALS and not seen.launched and seen.lost is None:
            j.decline(seen.raised.text)  # "n = 66001 exceeds 65536": published launchers have such limits
        elif seen.raised.kind == RAISES and j.contract.raises(inputs):
            j.decline(f"the reference raises too: {seen.raised.text}")
        else:
            note_raised(j, seen.raised)
        return seen
    _check_state(j, seen)
    j.reached("allocator poison", "global state")
    return seen


def note_raised(j: Judgement, raised: Raised) -> None:
    if raised.kind == DECLINES:
        j.decline(raised.said or raised.types[0])
    elif raised.kind == CANNOT:
        j.not_run(raised.said or raised.types[0])
    else:
        j.find(Check.RAISED, raised.text, raised=raised.types[0])


def output_bytes(contract: Contract, case: Case) -> tuple[int, ...]:
    """The sizes in bytes of an op's outputs."""
    return tuple(
        math.prod(contract.output_shape(name, case)) * contract.output_dtype(name, case).itemsize
        for name in contract.outputs
    )


def _check_state(j: Judgement, seen: Observed) -> None:
    if seen.settings:
        j.find(Check.STATE, f"global state is left changed: {', '.join(seen.settings)}")
    if seen.consumed:
        severity = "failure" if j.subject.own else "note"
        j.find(Check.STATE, f"the call changes {', '.join(seen.consumed)}", severity=severity, detail="rng")


def check_returned(
    j: Judgement, inputs: Inputs, before: dict[str, torch.Tensor], values: dict[str, Any] | str
) -> dict[str, Any]:
    """Check what one call returned and what it did to its inputs; return the outputs by name, where their values could
    be compared: another shape may be that of terabytes, expanded from one element."""
    j.reached("input guards", "inputs unchanged")
    plain = _of_the_right_form(j, inputs, values)
    written, copies = layouts.changed_beside(inputs.placed, before, list(plain.values()))
    for name in written:
        j.find(Check.INPUTS, f"{name} was written; inputs and the memory around them stay as they are", about=name)
    if isinstance(values, str):
        j.find(Check.RETURNS, values)
        return {}
    on_host = dict(zip(plain, copies, strict=True))
    expected = expected_of(j.contract, inputs.case, j.subject.compute)
    verdicts = {}
    whole = True
    for name in filter(j.judges, j.contract.outputs):
        verdict = check_output(j, inputs, name, values[name], expected[name], on_host.get(name))
        if verdict is not None:
            verdicts[name] = verdict
        elif expected[name] is not None:
            whole = False
    if j.subject.diagnosed and not all(verdict.ok for verdict in verdicts.values()):
        _diagnose(j, inputs, values, expected, verdicts)
    return values if whole else {}


def _of_the_right_form(j: Judgement, inputs: Inputs, values: dict[str, Any] | str) -> dict[str, torch.Tensor]:
    """The outputs that are judged, plain tensors on a GPU, of the right shape: those that may be copied."""
    if isinstance(values, str):
        return {}
    return {
        name: value
        for name, value in values.items()
        if j.judges(name)
        and type(value) is torch.Tensor
        and value.is_cuda
        and value.shape == torch.Size(j.contract.output_shape(name, inputs.case))
    }


def check_output(
    j: Judgement,
    inputs: Inputs,
    name: str,
    got: Any,
    expected: budget.Expected | None,
    on_host: torch.Tensor | None = None,
) -> compare.Verdict | None:
    """Check one output, of which `on_host` may be a copy; return the verdict on its values where they can be
    compared."""
    problems = check_form(j, inputs, name, got, absent=expected is None)
    if expected is None or not outputs.comparable(problems):
        return None
    given = got if on_host is None else on_host
    verdict = compare.compare(given, expected, j.case.torch_dtype, diagnosis.exact(j.contract, j.case, name))
    j.outcome.fractions[name] = verdict.fraction
    compared = j.outcome.elements.setdefault(name, [0, 0])
    compared[0] += got.numel()
    compared[1] += got.numel() - verdict.excused
    if not verdict.ok:
        j.find(Check.VALUES, f"{name}: {verdict.message}", error=verdict.fraction, about=name)
    elif verdict.note:
        j.find(Check.VALUES, f"{name}: {verdict.note}", severity="note", about=name, detail="alternative")
    return verdict


def check_form(j: Judgement, inputs: Inputs, name: str, got: Any, absent: bool = False) -> list[outputs.Problem]:
    """Check all of an output but its values; what is wrong with it."""
    memory = {operand: placed.buffer for operand, placed in inputs.placed.items() if placed is not None}
    found = outputs.problems(
        j.contract,
        inputs.case,  # of many calls each has parameters of its own, on which the shape may depend
        name,
        got,
        j.executor.device,
        memory,
        absent=absent,
        library_type=arrays.type_name(j.subject.arrays),
        type_name=arrays.what,
    )
    if not found and name in j.on_host:
        found.append(outputs.Problem(Check.DEVICE, f"{name}: {_ON_HOST[j.subject.device]}"))
    for problem in found:
        severity = _severity_of_strides(j, inputs, name, got) if problem.check is Check.STRIDES else "failure"
        j.find(problem.check, problem.message, severity=severity, about=name, detail=problem.operand)
    return found


def _severity_of_strides(j: Judgement, inputs: Inputs, output: str, got: torch.Tensor) -> str:
    """Outputs are contiguous. A user's function may pass on the strides of an input that is not, as torch itself
    does, and give a view of what it has computed where the reference does."""
    free = j.contract.may_be_strided(output) or is_view(inputs, got)
    overlapping = not free and any(n > 1 and stride == 0 for n, stride in zip(got.shape, got.stride(), strict=True))
    plain = all(placed is None or placed.view.is_contiguous() for placed in inputs.placed.values())
    strict = j.subject.own or (plain and not free)
    return "failure" if strict or overlapping else "note"


def is_view(inputs: Inputs, output: torch.Tensor) -> bool:
    """Whether an output lies in the memory of an operand; where the contract does not allow that it fails."""
    return any(placed is not None and outputs.overlap(placed.buffer, output) for placed in inputs.placed.values())


def trouble_on(
    j: Judgement,
    inputs: Inputs,
    *,
    conspicuous: Sequence[str] | None,
    instrument: tuple[str, str] | None = None,
    answers: dict[str, budget.Expected] | None = None,
) -> tuple[Observed, Finding | None]:
    """One more call on `inputs`, and its first failure; None where it gives the right answer, declines or cannot run.

    `conspicuous`: the places at which what is undefined is not as on GPUs; `instrument`: a backend, and the name of one
    of its instruments; `answers`: those on inputs that are no longer as their case has them.
    """
    again = j.again(debug=False)
    again.conspicuous = None if conspicuous is None else tuple(conspicuous)
    blocks = output_bytes(j.contract, inputs.case)
    seen = again.call(inputs.arguments, Manner(probe.PATTERNS[0], blocks, instrument=instrument), inputs.placed)
    j.note_undefined(seen)
    if seen.raised is not None:
        if seen.raised.kind == RAISES:
            again.find(Check.RAISED, seen.raised.text, raised=seen.raised.types[0])
    elif isinstance(seen.values, str):
        again.find(Check.RETURNS, seen.values)
    else:
        expected = expected_of(j.contract, inputs.case, j.subject.compute) if answers is None else answers
        for name, got in seen.values.items():
            if j.judges(name):
                check_output(again, inputs, name, got, expected[name])
    return seen, next((found for found in again.outcome.findings if found.severity == "failure"), None)


def _diagnose(
    j: Judgement,
    inputs: Inputs,
    values: dict[str, Any],
    expected: dict[str, budget.Expected],
    verdicts: dict[str, compare.Verdict],
) -> None:
    """Say of each wrong output what its values look like, and who wrote the worst one; the first few failures are
    compared with mutants. What goes wrong in that is said, and takes nothing from the findings."""
    try:
        _explain(j, inputs, values, expected, verdicts)
    except Exception as error:
        for finding in j.outcome.findings:
            if finding.check == Check.VALUES and finding.fails() and finding.diagnosis is None:
                finding.diagnosis = (
                    f"{finding.about}: no hint, looking for one failed ({type(error).__name__}: {error})"
                )


def _explain(
    j: Judgement,
    inputs: Inputs,
    values: dict[str, Any],
    expected: dict[str, budget.Expected],
    verdicts: dict[str, compare.Verdict],
) -> None:
    compared, start = j.subject.compared, time.monotonic()
    long = j.executor.device == "cpu" and j.contract.is_beyond_grid(inputs.case)  # a call takes seconds
    finite = all(value is None or bool(value.isfinite().all()) for value in inputs.exact.values())
    answers = "answers" if finite else "answers of no numbers"  # which other causes make
    thoroughly = compared[answers] < COMPARED_WITH_FAULTS
    compared[answers] += not long
    end = start + min(OF_A_CALL, OF_A_KERNEL - compared["hints, ms"] / 1000)
    got = {name: values[name] for name in verdicts}
    blocks = output_bytes(j.contract, inputs.case)
    again = thoroughly and not long and j.trial.kind is Kind.CASE
    of_nan = again or (j.trial.kind is Kind.CASE and not inputs.case.filled)  # few, and of little work
    found = causes.of_call(j, inputs, got, expected, verdicts, blocks, again)
    if thoroughly and j.trial.kind is Kind.CALLS and len(j.earlier) > 0:
        for name in [name for name, verdict in verdicts.items() if verdict.bad is not None and name not in found]:
            if text := causes.kept_between(j, inputs, name, expected[name], blocks):
                found[name] = text
    if thoroughly and not long and j.trial.kind is Kind.CALLS and not found:
        again = of_nan = _is_wrong_alone(j, inputs.case, verdicts)
    for name in [name for name, text in found.items() if again and causes.OUTSIDE in text]:
        found[name] = "; ".join(
            filter(None, [found[name], _timed(j, strided, inputs.case, name, partial(causes.on_case, j))])
        )
    texts = _with_numbers(j, inputs.case, got, verdicts, found) if again else {}
    lower = _passes_as(j, inputs, got, verdicts, again)
    texts |= diagnosis.diagnose(
        j.contract,
        inputs.case,
        got,
        expected,
        {name: verdict for name, verdict in verdicts.items() if name not in texts},
        mutants=thoroughly,
        causes=found,
        lower=lower,
        longer=_until(end, partial(_longest, j)) if again else (lambda name: None),
        passed=j.subject.passed if thoroughly else (),
        idle=(
            (
                lambda name, bad: (
                    causes.let_through(j, inputs.case, name, got[name], bad, expected[name])
                    or causes.of_nan(j, inputs.case, name, got[name], bad, expected[name])
                )
            )
            if of_nan
            else (lambda name, bad: None)
        ),
        call=_until(end, partial(causes.on_case, j)) if again else reading.nothing,
        kept=cache(_until(end, lambda: causes.kept_from_first(j, inputs.case))) if again else (lambda: None),
        depends=_until(end, partial(_depends, j, inputs.case)) if again else (lambda name: None),
        edge=_until(end, partial(_edge, j, inputs.case)) if again else (lambda name: None),
        slices=_until(end, partial(_slices, j, inputs.case)) if again else (lambda name: None),
    )
    compared["hints, ms"] += round(1000 * (time.monotonic() - start))
    for finding in j.outcome.findings:
        if finding.check != Check.VALUES or not finding.fails() or finding.diagnosis is not None:
            continue
        if finding.about not in verdicts:
            continue
        name, verdict = finding.about, verdicts[finding.about]
        lines = [texts[name]] if name in texts else []
        if lower is not None and lines and lines[0].startswith(f"right as {lower}"):
            finding.passes_as = lower
        if thoroughly and not long and verdict.worst is not None:
            compared["calls"] += 1  # of the kernel, as hints number them
            writer = diagnosis.owner(j.executor, j.contract, inputs.case, name, verdict.worst)
            lines += [f"{name}{list(verdict.worst)} was written by {writer}"] if writer else []
        finding.diagnosis = "\n".join(lines) or None


def _is_wrong_alone(j: Judgement, case: Case, verdicts: Mapping[str, compare.Verdict]) -> bool:
    """Whether a call of many is wrong by itself, too: what is said of such a one can be said of it."""
    wrong = [name for name, verdict in verdicts.items() if not verdict.ok]
    return all(edges.is_wrong(j.contract, case, name, partial(causes.on_case, j)) is True for name in wrong)


def _until(end: float, asked: Callable[..., Any]) -> Callable[..., Any]:
    """What further calls of the kernel tell, up to a time, and None after that: each may have to be compiled."""
    return lambda *given: asked(*given) if time.monotonic() < end else None


def _depends(j: Judgement, case: Case, output: str) -> str | None:
    """What an output depends on and must not, or does not and has to, as further calls on small cases tell, and whether
    it is right where indices are in order; for a few seconds of a kernel."""
    known, start = j.subject.compared, time.monotonic()
    seconds = min(influence.SECONDS, influence.OF_A_KERNEL - known["influence, ms"] / 1000)
    if seconds <= 0:
        return None
    text = influence.of_output(
        j.contract, case, output, j.executor.device, lambda inputs: causes.on_inputs(j, inputs), seconds
    )
    ordered = indices.in_order(j.contract, case, output, j.executor.device, lambda inputs: causes.on_inputs(j, inputs))
    known["influence, ms"] += round(1000 * (time.monotonic() - start))
    return "; ".join(filter(None, [ordered, text])) or None


def _slices(j: Judgement, case: Case, output: str) -> str | None:
    """What the slices on which an output is wrong have in common, or without which numbers it is right, as further
    calls tell; for a few seconds of a kernel."""
    text = _timed(j, slices, case, output, lambda inputs: causes.on_inputs(j, inputs), device=j.executor.device)
    return text or _timed(j, without, case, output, partial(causes.on_case, j))


def _edge(j: Judgement, case: Case, output: str) -> str | None:
    """From which size on an output is wrong, without which options it is right, and in which strides, as further calls
    tell; for a few seconds of a kernel."""
    found = (_timed(j, looked, case, output, partial(causes.on_case, j)) for looked in (edges, options, strided))
    return "; ".join(filter(None, found)) or None


def _timed(
    j: Judgement, looked: ModuleType, case: Case, output: str, call: Callable[..., Any], **more: Any
) -> str | None:
    """What one of such modules finds, for as long as it may look at a kernel."""
    known, start, key = j.subject.compared, time.monotonic(), f"{looked.__name__}, ms"
    seconds = min(looked.SECONDS, looked.OF_A_KERNEL - known[key] / 1000)
    if seconds <= 0:
        return None
    text = looked.of_output(j.contract, case, output, call, seconds, **more)
    known[key] += round(1000 * (time.monotonic() - start))
    return text


def _with_numbers(
    j: Judgement, case: Case, got: dict[str, Any], verdicts: dict[str, compare.Verdict], found: dict[str, str]
) -> dict[str, str]:
    """Of outputs that are NaN for that of elements which no answer depends on: what they look like with numbers there,
    where they are wrong then too, but not NaN, and that is explained. NaN hides what is done with them."""
    hidden = [name for name, verdict in verdicts.items() if name not in found and _is_nan(got[name], verdict)]
    contract = causes.of_numbers(j.contract) if hidden else None
    values = None if contract is None else causes.on_case(j, case, contract)
    if contract is None or values is None:
        return {}
    right = contract.expected(contract.build(case), j.subject.compute)
    judged = {
        name: compare.compare(values[name], right[name], case.torch_dtype)
        for name in hidden
        if isinstance(values[name], torch.Tensor) and values[name].shape == got[name].shape
    }
    wrong = {name: v for name, v in judged.items() if not v.ok and not _is_nan(values[name], v)}
    texts = diagnosis.diagnose(
        contract,
        case,
        values,
        right,
        wrong,
        passed=j.subject.passed,
        call=lambda other: causes.on_case(j, other, contract),
    )
    return {
        name: f"{text}\nwith numbers in the places that no answer depends on, where NaN shows that they are read"
        for name, text in texts.items()
        if "equals the reference" in text or "; as if" in text
    }


def _is_nan(got: torch.Tensor, verdict: compare.Verdict) -> bool:
    """Whether most of what is wrong of an output is NaN."""
    return verdict.bad is not None and diagnosis.most(torch.isnan(got.cpu()[verdict.bad.cpu()]))


def _longest(j: Judgement, output: str) -> tuple[torch.Tensor, budget.Expected] | None:
    """An output of a call with the longest sums of the contract's sizes, and what it has to be: of the size with the
    most terms by the budget, and of that with the most elements along the axes that the output has not, the one where
    it is further off."""
    most: dict[str, tuple[float, Inputs, budget.Expected]] = {}
    for size in j.contract.sizes:
        case = plain_case(j.contract, j.case.dtype, next(iter(j.contract.values)), j.case.seed, size)
        if not case.filled or not j.contract.valid(case):
            continue
        inputs = j.contract.build(case, j.executor.device)
        answer = j.contract.expected(inputs)[output]
        if answer is None or not answer.parts:
            continue
        lengths = {
            "terms": float(torch.as_tensor(answer.parts[0][0]).max()),
            "summed": _summed(j.contract, case, output),
        }
        for kind, length in lengths.items():
            if kind not in most or length > most[kind][0]:
                most[kind] = length, inputs, answer
    found: list[tuple[torch.Tensor, budget.Expected]] = []
    for _, inputs, answer in {each[1].case: each for each in most.values()}.values():
        seen = j.again(debug=False).call(inputs.arguments, placed=inputs.placed)
        got = seen.values.get(output) if seen.returned and isinstance(seen.values, dict) else None
        if isinstance(got, torch.Tensor) and got.shape == answer.answer.shape:
            found.append((got, answer))
    return max(found, key=lambda each: diagnosis.roundings_of(each[0], each[1], j.case.torch_dtype), default=None)


def _summed(contract: Contract, case: Case, output: str) -> float:
    """Elements along the axes of operands that an output has not."""
    axes = {axis for name in contract.operands for axis in contract.operand_axes(name, case).split()}
    axes -= {"...", *contract.output_axes(output, case).split()}
    return math.prod(case.size[axis] for axis in axes) if axes else 0.0


def _passes_as(
    j: Judgement, inputs: Inputs, got: dict[str, Any], verdicts: dict[str, compare.Verdict], again: bool
) -> str | None:
    """The highest of the LOWER precisions in which all wrong outputs of a float32 case would be right; None: none.

    A term left out of thousands is within a wider budget too: where the kernel may be called `again`, it has to be
    right so with other values of the same sizes, those among them whose products are exact in any precision; else
    more than a few elements have to be.
    """
    case = inputs.case
    if case.torch_dtype is not torch.float32 or j.subject.compute is not None:
        return None
    wrong = [name for name, verdict in verdicts.items() if not verdict.ok]
    for compute in LOWER:
        if f"beyond {compute}" in j.subject.compared:
            continue
        expected = j.contract.expected(j.contract.build(case), compute)
        exact = {name: diagnosis.exact(j.contract, case, name) for name in wrong}
        if not all(compare.compare(got[n], expected[n], torch.float32, exact[n]).ok for n in wrong):
            j.subject.compared[f"beyond {compute}"] = 1  # a fault that this precision does not explain
            continue
        most = max((int(verdict.bad.sum()) for verdict in verdicts.values() if verdict.bad is not None), default=0)
        right = _right_with_others(j, case, wrong, compute, 1 + MANY // max(most, 1)) if again else most >= MANY
        return compute if right else None
    return None


def _right_with_others(j: Judgement, case: Case, names: list[str], compute: str, draws: int) -> bool:
    """Whether outputs are right in a lower precision with other values of the same sizes: other draws, and as many of
    the families whose answers are exact, in which a term that is left out is often 0. In tf32 the contract's first size
    is beyond float32's budget too, and in any it is not what float64 gives: what is wrong in some sizes alone, or for
    some values, is another fault."""
    first = plain_case(j.contract, case.dtype, next(iter(j.contract.values)), case.seed)
    values = causes.on_case(j, first)
    if values is not None:
        whole = j.contract.expected(j.contract.build(first))
        if all(_is_rounded_once(values.get(name), whole[name]) for name in names):
            return False
        if compute == "tf32" and all(causes.is_right(j, first, name, values.get(name), whole[name]) for name in names):
            return False
    others = [replace(case, seed=case.seed + more) for more in range(1, 4)]
    for family, of in j.contract.exact.items():
        if set(names) & set(of):
            others += [replace(case, values=family, seed=case.seed + more) for more in range(draws)]
    for other in others:
        if not j.contract.valid(other):
            continue
        values = causes.on_case(j, other)
        if values is None:
            return False
        expected = j.contract.expected(j.contract.build(other), compute)
        if not all(causes.is_right(j, other, name, values.get(name), expected[name]) for name in names):
            return False
    return True


def _is_rounded_once(value: Any, expected: budget.Expected) -> bool:
    """Whether nearly all elements are the answer in the output's dtype, as where everything is computed in float64."""
    if not isinstance(value, torch.Tensor) or value.shape != expected.answer.shape:
        return False
    return (value.cpu() == expected.answer.to(value.dtype).cpu()).double().mean().item() > ROUNDED_ONCE


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
