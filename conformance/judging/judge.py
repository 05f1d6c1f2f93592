"""Judging one kernel on one trial: call it, look at what came back, compare with the float64 answer.

conformance/judging/trials.py says what a trial can be, conformance/judging/call.py checks one call,
conformance/judging/calls.py what more than one call shows; the instruments around a call are in
conformance/judging/instruments.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import call, calls, causes, properties, requirements, undefined
from touchstone.conformance.judging.executor import Executor, lost_context
from touchstone.conformance.judging.judgement import DECLINED, Judgement, Outcome
from touchstone.conformance.judging.trials import (
    AsGraph,
    CaseTrial,
    Compiled,
    Int64Index,
    InvalidCall,
    ManyCalls,
    OnStream,
    PropertyTrial,
    Trial,
)
from touchstone.conformance.spec import budget, compare, layouts
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Inputs


def run(subject: Subject, trial: Trial, debug: bool = False, executor: Executor | None = None) -> Outcome:
    """Judge `subject` on `trial`. With `debug` an exception of the kernel is let through, for a debugger.

    `executor` makes the calls of the kernel; None: they are made in this process.
    """
    j = Judgement(subject, trial, debug=debug, executor=executor)
    if j.executor.device == "cuda" and lost_context:
        j.find(Check.CONTEXT, f"not judged: the GPU is of no use to this process since: {lost_context[0]}")
    else:
        _run(j, trial)
        if j.left:
            j.find(Check.STATE, f"global state is left changed by a call after the first: {', '.join(j.left)}")
        if j.consumed:
            what = f"a call after the first changes {', '.join(j.consumed.values())}"
            j.find(Check.STATE, what, severity="note", detail="later")
        requirements.settle(j)
        undefined.explain(j)
    if not _comparator_is_sound():
        j.find(Check.CANARY, "the call tampered with the comparison: unequal numbers compare equal")
    return j.outcome


def _run(j: Judgement, trial: Trial) -> None:
    match trial:
        case CaseTrial():
            if j.executor.device == "cpu" and j.contract.is_beyond_grid(j.case) and calls.takes_long(j):
                return
            first = _first_call(j)
            if trial.instrumented and j.outcome.status == DECLINED:
                j.subject.owed.add(j.case.sizes)  # to the next case of these sizes, in another dtype, say
            if first is not None and trial.watched and j.passes:
                calls.call_again(j, first.inputs, first.before, first.values)
            if first is not None and (trial.instrumented or j.case.sizes in j.subject.owed) and j.passes:
                j.subject.owed.discard(j.case.sizes)
                calls.call_under_instruments(j, first.inputs, first.engines)
            if first is not None and j.passes:
                undefined.call_otherwise(j, first.inputs)
        case PropertyTrial():
            first = _first_call(j)
            if first is not None and j.passes:
                properties.check_property(j, trial.prop, first.inputs, tuple(first.values.values()))
        case OnStream():
            if _first_call(j, late=True) is not None:
                j.reached("current stream")
        case AsGraph():
            calls.as_graph(j)
        case ManyCalls():
            calls.many_calls(j, trial)
        case Compiled():
            j.decline("not compiled: that takes a process of its own")
        case InvalidCall():
            calls.invalid_call(j, trial.invalid)
        case Int64Index():
            calls.int64_index_output(j)
        case _:
            assert_never(trial)


class _Call(NamedTuple):
    """A call that was checked: its inputs, what their buffers held before, the outputs by name, and on which engines it
    launched kernels."""

    inputs: Inputs
    before: dict[str, torch.Tensor]
    values: dict[str, Any]
    engines: Sequence[str]


def _first_call(j: Judgement, late: bool = False) -> _Call | None:
    """Call the kernel on the trial's case and check what it returns; None where it returns not. `late`: on a stream on
    which the inputs arrive late."""
    try:
        inputs = j.contract.build(j.case, j.executor.device)
    except layouts.NoRoom as error:
        j.decline(f"not run: {error}")
        return None
    requirements.note_inputs(j, inputs)
    before = call.snapshots(inputs)
    try:
        seen = call.observe_call(j, inputs, late=late)
    except layouts.NoRoom as error:
        j.decline(f"not run: {error}")
        return None
    if not seen.returned:
        return None
    number = j.subject.compared["calls"]
    first = _Call(inputs, before, call.check_returned(j, inputs, before, seen.values), seen.launched)
    causes.remember(j, number, first.values)
    return first


def _comparator_is_sound() -> bool:
    """Whether numbers known to differ still compare as different."""
    near, far = (compare.compare(numbers, _ONE_AND_TWO, torch.float32) for numbers in (_NEAR, _FAR))
    return near.ok and not far.ok


_ONE_AND_TWO = budget.Expected(torch.tensor([1.0, 2.0], dtype=torch.float64))  # one: half of a comparison is its budget
_NEAR, _FAR = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])


def keep_answers(found: Sequence[Trial]) -> None:
    """Compute the answers of all these trials of one op now and keep them, for many kernels judged on the same ones."""
    kept = [trial for trial in found if not isinstance(trial, InvalidCall | Int64Index | Compiled)]
    if kept:
        contract = registry.contract(kept[0].case.op)
        call.keep_answers(contract, (case for trial in kept for case in calls.cases_of(trial, contract)))
