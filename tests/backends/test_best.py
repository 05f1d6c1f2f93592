"""`best` is judged like any variant, in each language; on the CPU it takes the ladder's last that takes the call."""

import json

import pytest

from tests.processes import output_of, run_touchstone
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


@pytest.mark.level("default")
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


BY_TABLE = """
from touchstone.conformance.discovery import best, registry, selection
from touchstone.conformance.reporting.session import judge_subject

registry.backend({backend!r}).prepare("cpu")
for op in ("softmax", "matmul", "layer_norm", "reduce_rows", "transpose", "attention"):
    fn = best.best(op, {backend!r}, arch="sm_90")
    ceiling = selection.select({backend!r}, "cpu", op=op, level="quick").ceiling({backend!r})
    report = judge_subject(
        selection.variant_subject(op, {backend!r}, "best", fn, "cpu"), "quick", ceiling=ceiling, isolate="none"
    )
    print(op, report.verdict, report.declined, *sorted({{taken.__name__ for taken in fn._taken.values()}}))
"""


@pytest.mark.slow
@pytest.mark.level("default")
@pytest.mark.parametrize("backend", registry.backends())
def test_it_is_right_where_a_table_decides(backend):
    """That of sm_90, on the CPU, which runs most of what it names and passes over the rest."""
    if reason := registry.backend(backend).why_not("cpu"):
        pytest.skip(reason)
    lines = [line.split() for line in output_of(BY_TABLE.format(backend=backend)).splitlines()]
    assert len(lines) == 6 and all(verdict == "passed" and declined == "0" for _, verdict, declined, *_ in lines)
    assert max(len(taken) for _, _, _, *taken in lines) > 1, "other variants for other calls"
