"""Calls captured as CUDA graphs: what a replay shows of a launcher."""

from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.trials import AsGraph, trials_of
from touchstone.conformance.spec.checks import Check

pytestmark = pytest.mark.needs("GPU")


def right(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def waits(x):
    """It reads the largest element on the host."""
    return torch.softmax(x.float() - float(x.max()), -1).to(x.dtype).contiguous()


def on_the_host(x):
    """The answer is computed outside the graph."""
    return right(x.cpu()).to(x.device)


kept = torch.empty(0)


def launches_once(x):
    """A replay of the second call finds nothing to do."""
    global kept
    if kept.shape != x.shape or kept.dtype != x.dtype:
        kept = right(x)
    return kept


def outcome(fn, own):
    subject = Subject("softmax", fn, fn.__name__, "user@cuda", "cuda", own=own)
    trial = next(trial for trial in trials_of(subject, "quick")[0] if isinstance(trial, AsGraph))
    return judge.run(subject, trial)


@pytest.mark.parametrize("own", [True, False])
def test_a_replay_gives_the_answer(own):
    found = outcome(right, own)
    assert not found.findings and "graph capture" in found.instruments


@pytest.mark.parametrize("fn", [waits, on_the_host, launches_once])
@pytest.mark.parametrize("own", [True, False])
def test_what_cannot_be_replayed_is_a_failure_of_ours_and_a_note_of_others(fn, own):
    findings = outcome(fn, own).findings
    assert findings and {finding.check for finding in findings} == {Check.GRAPH}
    assert {finding.severity for finding in findings} == {"failure" if own else "note"}
    assert not outcome(right, own).findings  # the device still works


def test_a_variant_that_says_so_is_not_captured():
    subject = Subject("softmax", right, "right", "user@cuda", "cuda", own=True)
    kinds = [any(isinstance(t, AsGraph) for t in trials_of(replace(subject, captures=c), "quick")[0]) for c in (0, 1)]
    assert kinds == [False, True]
