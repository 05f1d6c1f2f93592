"""The conformance test: one item per op, target, variant and trial. Selected by the options in
conformance/suite/plugin.py."""

from contextlib import ExitStack

import pytest

from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import DECLINED, FAILED
from touchstone.conformance.suite.plugin import RECORD


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
    if option.kernel and not debug and option.capture != "no":
        runner = runner_of(judged.subject, judged.trials)
        if runner.stopped:
            pytest.skip(f"not run: {runner.stopped}")
        outcome = runner.outcome(judged.index)
    else:
        outcome = judge.run(judged.subject, judged.trial, debug=debug)
    about = next(value for key, value in request.node.user_properties if key == RECORD)
    about["outcome"] = outcome.to_dict()
    if outcome.status == DECLINED:
        pytest.skip(f"declined: {outcome.reason}")
    if outcome.status == FAILED:
        pytest.fail("\n".join(str(finding) for finding in outcome.findings), pytrace=False)
