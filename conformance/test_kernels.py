"""The conformance test: one item per op, lane, rung and trial. Selected by the options in conformance/plugin.py."""

import pytest

from conformance import judge
from conformance.plugin import RECORD


@pytest.mark.conformance
def test_kernel(judged, request):
    debug = request.config.getoption("usepdb") or request.config.getoption("trace")
    outcome = judge.run(judged.subject, judged.trial, debug=debug)
    about = next(value for key, value in request.node.user_properties if key == RECORD)
    about["outcome"] = outcome.to_dict()
    if outcome.status == judge.DECLINED:
        pytest.skip(f"declined: {outcome.reason}")
    if outcome.status == judge.FAILED:
        pytest.fail("\n".join(str(finding) for finding in outcome.findings), pytrace=False)
