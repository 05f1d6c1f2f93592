"""The conformance test: one item per op, target, variant and trial. Selected by the options in
conformance/suite/plugin.py."""

from contextlib import ExitStack

import pytest

from touchstone.conformance.findings import kept
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import FAILED
from touchstone.conformance.reporting.groups import Group
from touchstone.conformance.reporting.tolerance import Tolerance
from touchstone.conformance.spec.returned import quoted
from touchstone.conformance.suite.plugin import RECORD, SELECTION


@pytest.fixture(scope="session")
def runner_of():
    """The session's runner of a subject, made when first asked for."""
    runners: dict[int, Runner] = {}
    with ExitStack() as stack:

        def of(subject, trials):
            if id(subject) not in runners:
                runners[id(subject)] = stack.enter_context(Runner(subject, trials))
            return runners[id(subject)]

        yield of


@pytest.mark.conformance
def test_kernel(judged, request, runner_of):
    option = request.config.option
    debug = option.usepdb or option.trace
    if option.kernel and not request.config.stash[SELECTION].here:
        runner = runner_of(judged.subject, judged.trials)
        if runner.stopped:
            pytest.skip(f"not run: {runner.stopped}")
        outcome = runner.outcome(judged.index)
    else:
        outcome = judge.run(judged.subject, judged.trial, debug=debug)
    about = next(value for key, value in request.node.user_properties if key == RECORD)
    tolerance, failed = Tolerance(judged.expected), outcome.status == FAILED
    outcome = tolerance.settled(judged.trial.case, outcome)
    about["outcome"], about["expected"] = outcome.to_dict(), tolerance.counts
    if not outcome.judged:
        pytest.skip(quoted(f"{outcome.status}: {outcome.reason}"))
    if failed and outcome.status != FAILED:
        notes = [finding.message for finding in outcome.findings if finding.severity == "note"]
        pytest.xfail(quoted("; ".join(notes)))
    if outcome.status == FAILED:
        required = request.config.stash[SELECTION].require
        found = [finding for finding in outcome.findings if finding.fails(required)]
        if not found:
            spared = dict.fromkeys(str(finding.requirement) for finding in outcome.findings if finding.fails())
            pytest.skip(f"not required, and fails: {', '.join(spared)}")
        texts = [Group([finding]).text(kept.command(finding.id, judged.subject)) for finding in found]
        pytest.fail("\n".join(texts), pytrace=False)
