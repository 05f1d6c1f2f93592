"""`best` is judged like any variant, in each language; on the CPU it takes the ladder's last that takes the call."""

import json

import pytest

from tests.processes import run_touchstone
from touchstone.conformance.discovery import registry


def judged(*arguments: str, timeout: float = 300) -> list[dict]:
    """The reports of a check of `best` on the CPU."""
    done = run_touchstone(
        ["-m", "touchstone", "check", *arguments, "--variant", "best", "--device", "cpu", "--quick", "--json", "-"],
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)["reports"]


def none_declined(reports: list[dict]) -> bool:
    return not [outcome for report in reports for outcome in report["outcomes"] if outcome["status"] == "declined"]


@pytest.mark.slow
def test_it_is_right_in_every_language():
    reports = judged("elementwise", "transpose", "--dtypes", "bfloat16")
    running = [name for name in registry.backends() if registry.backend(name).why_not("cpu") is None]
    assert {(each["op"], each["target"].partition("@")[0]) for each in reports} == {
        (op, name) for op in ("elementwise", "transpose") for name in running
    }
    assert all(each["name"] == "best" and each["verdict"] == "passed" for each in reports)
    assert none_declined(reports)


@pytest.mark.slow
@pytest.mark.level("default")
@pytest.mark.parametrize("backend", registry.backends())
@pytest.mark.parametrize("op", registry.ops())
def test_it_is_right_for_every_op(op, backend):
    if op not in registry.kernel_ops(backend):
        pytest.skip(f"{backend} has no {op}")
    if reason := registry.backend(backend).why_not("cpu"):
        pytest.skip(reason)
    (report,) = judged(op, "--backend", backend, timeout=900)
    assert report["verdict"] == "passed" and none_declined([report])
