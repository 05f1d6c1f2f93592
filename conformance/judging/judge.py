"""Judging one kernel on one trial: call it, look at what came back, compare with the float64 answer.

A trial is a case (values), a property (a property), many calls (state kept between them), a call on another stream, or
an invalid call (an error that must come before any launch). conformance/judging/trials.py lists them,
conformance/judging/call.py judges one call, conformance/judging/calls.py what more than one call shows; the instruments
around a call are in conformance/judging/instruments.py.
"""

from collections.abc import Sequence

import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import call as verdict
from touchstone.conformance.judging import calls
from touchstone.conformance.judging.judgement import DECLINED, PASSED, Outcome
from touchstone.conformance.judging.trials import Trial
from touchstone.conformance.spec import budget, compare, layouts


def run(subject: Subject, trial: Trial, debug: bool = False) -> Outcome:
    """Judge `subject` on `trial`. With `debug` an exception of the kernel is let through, for a debugger."""
    outcome = _run(subject, trial, debug)
    if not _comparator_is_sound():
        verdict.find(
            outcome, subject, trial, "canary", "the call tampered with the comparison: unequal numbers compare equal"
        )
    return outcome


def _run(subject: Subject, trial: Trial, debug: bool) -> Outcome:
    outcome = Outcome(trial.id, trial.case.dtype, PASSED)
    if subject.device == "cuda" and verdict.lost_context:
        verdict.find(
            outcome,
            subject,
            trial,
            "context",
            f"not judged: {verdict.lost_context[0]} left the GPU unusable for this process",
        )
        return outcome
    if trial.invalid is not None:
        return calls.invalid_call(subject, trial, trial.invalid)
    if trial.calls:
        return calls.many_calls(subject, trial, outcome, debug)
    if trial.int64_index:
        return calls.int64_index_output(subject, trial, outcome, debug)
    try:
        inputs = subject.contract.build(trial.case, subject.device)
    except layouts.NoRoom as error:
        outcome.status, outcome.reason = DECLINED, f"not run: {error}"
        return outcome
    before = verdict.snapshots(inputs)
    call = calls.on_another_stream if trial.stream else verdict.observe_call
    returned = call(subject, trial, inputs, outcome, debug)
    if returned is None:
        return outcome
    values = verdict.judge_returned(outcome, subject, trial, inputs, before, returned.value)
    if trial.prop is not None and outcome.status == PASSED:
        calls.judge_property(outcome, subject, trial, trial.prop, inputs, tuple(values.values()), debug)
    if trial.watched and outcome.status == PASSED:
        calls.call_again(outcome, subject, trial, inputs, before, values, debug)
    if trial.instrumented and outcome.status == PASSED:
        calls.call_under_instruments(outcome, subject, trial, inputs)
    return outcome


def _comparator_is_sound() -> bool:
    """Whether numbers known to differ still compare as different."""
    expected = budget.Expected(torch.tensor([1.0, 2.0], dtype=torch.float64))
    near = compare.compare(torch.tensor([1.0, 2.0]), expected, torch.float32)
    far = compare.compare(torch.tensor([1.0, 2.5]), expected, torch.float32)
    return near.ok and not far.ok


def keep_answers(found: Sequence[Trial]) -> None:
    """Compute the answers of all these trials of one op now and keep them, for many kernels judged on the same ones."""
    kept = [trial for trial in found if trial.invalid is None and not trial.int64_index]
    if kept:
        contract = registry.contract(kept[0].case.op)
        verdict.keep_answers(contract, (case for trial in kept for case in calls.cases_of(trial, contract)))
