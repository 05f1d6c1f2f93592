"""A report: its verdict, how a kernel stands on each requirement, what decides, and what repeats a finding."""

import json

import pytest

from touchstone import Report, check
from touchstone.conformance.judging.judgement import DECLINED, FAILED, NOT_RUN, PASSED, Finding, Outcome
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting.report import IncorrectKernel
from touchstone.conformance.spec.checks import Check, Requirement

VALUES, EMPTY, CONTRACT, LAYOUTS = Requirement.VALUES, Requirement.EMPTY, Requirement.CONTRACT, Requirement.LAYOUTS


def outcome(number, status=PASSED, asked=(VALUES,), held=(), failed=(), reason=None, **about) -> Outcome:
    findings = [
        Finding(
            f"{number:08x}",
            "failure",
            Check.VALUES,
            "float32-3x33-normal (seed 0)",
            "y: wrong",
            2.0,
            requirement=each,
            **about,
        )
        for each in failed
    ]
    return Outcome(
        f"float32-{number}x33-normal",
        Kind.CASE,
        "float32",
        status,
        {},
        findings,
        reason,
        requirements=list(asked),
        held=list(held),
    )


def report(*outcomes, require=()) -> Report:
    return Report("softmax", "fn", "user@cpu", "quick", 0, list(outcomes), require=require)


RIGHT = outcome(1, held=(VALUES, CONTRACT))
WRONG_EMPTY = outcome(2, FAILED, (EMPTY,), failed=(EMPTY,))
LACKING = outcome(3, NOT_RUN, reason="libdevice.j0 is not interpreted")
EMPTY_ONLY = outcome(4, asked=(EMPTY,), held=(EMPTY, CONTRACT))
DECLINES = outcome(5, DECLINED, reason="too many columns")


@pytest.mark.parametrize(
    ("outcomes", "require", "verdict"),
    [
        ([RIGHT], (), PASSED),
        ([RIGHT, DECLINES], (), PASSED),
        ([EMPTY_ONLY, DECLINES], (), FAILED),
        ([RIGHT, WRONG_EMPTY], (), FAILED),
        ([RIGHT, WRONG_EMPTY], ("values",), PASSED),
        ([RIGHT, WRONG_EMPTY], ("values", "empty"), FAILED),
        ([RIGHT], ("offsets",), FAILED),
        ([RIGHT, outcome(6, FAILED, failed=(None,))], ("values",), FAILED),
        ([DECLINES], (), FAILED),
        ([], (), FAILED),
        ([LACKING], (), NOT_RUN),
        ([LACKING, EMPTY_ONLY], (), NOT_RUN),
        ([LACKING, EMPTY_ONLY, RIGHT], (), PASSED),
        ([LACKING, WRONG_EMPTY], (), FAILED),
        ([LACKING, EMPTY_ONLY], ("values",), NOT_RUN),
    ],
)
def test_the_verdict(outcomes, require, verdict):
    made = report(*outcomes, require=require)
    assert made.verdict == verdict
    assert made.passed == (verdict == PASSED)
    assert made.summary().startswith({PASSED: "PASSED", FAILED: "FAILED", NOT_RUN: "NOT RUN: libdevice.j0"}[verdict])
    assert json.loads(made.to_json())["verdict"] == verdict


def test_the_standing_on_each_requirement():
    made = report(RIGHT, RIGHT, outcome(7, FAILED, failed=(LAYOUTS,), held=(CONTRACT,)), WRONG_EMPTY, DECLINES, LACKING)
    standing = {name: (each.verdict, each.trials) for name, each in made.standing.items() if each.trials != "-"}
    assert standing == {
        "values": ("holds", "2 of 2, 1 declined, 1 not run"),
        "layouts": ("fails", "0 of 1"),
        "empty": ("fails", "0 of 1"),
        "contract": ("holds", "3 of 3"),
    }
    assert made.standing["offsets"].verdict == "not judged"
    record = made.to_dict()["requirements"]
    assert record["values"] == {"verdict": "holds", "held": 2, "failed": 0, "declined": 1, "not_run": 1}
    lines = [line.split()[:2] for line in str(made).splitlines()]
    assert ["values", "holds"] in lines and ["empty", "fails"] in lines


def test_what_is_not_required_is_told_all_the_same():
    text = str(report(RIGHT, WRONG_EMPTY, require=("values",)))
    assert "not required: [00000002] values: y: wrong" in text
    assert "PASSED (required: values; empty fails in 1 trials)" in text


def test_records_without_requirements_are_read():
    record = RIGHT.to_dict() | {"findings": [vars(WRONG_EMPTY.findings[0])]}
    for new in ("requirements", "held"):
        del record[new]
    for new in ("requirement", "passes_as"):
        del record["findings"][0][new]
    earlier = Outcome.from_dict(record)
    assert earlier.requirements == [] and earlier.findings[0].requirement is None
    assert "requirement  verdict" not in str(report(earlier))


def test_every_finding_ends_with_what_repeats_it():
    made = report(RIGHT, WRONG_EMPTY)
    again = (
        "check('softmax', fn, device='cpu', level='quick', seed=0, where=lambda case: case.id == 'float32-2x33-normal')"
    )
    assert f"    repeat: {again}" in str(made)
    made.kept = True
    assert "    repeat: python -m touchstone replay 00000002" in str(made)
    with pytest.raises(IncorrectKernel, match="repeat: python -m touchstone replay 00000002"):
        made.raise_for_failure()


def test_a_lower_precision_that_would_do_is_named():
    some, other = (outcome(n, FAILED, failed=(VALUES,), passes_as=name) for n, name in ((8, "tf32x3"), (9, "tf32")))
    assert 'FAILED: 2 trials, all right with compute="tf32"' in report(some, other).summary()
    assert "all right" not in report(some, other, WRONG_EMPTY).summary()


LINES = "no\nPASSED; judged on 38 of 38 trials\x1b[2K\n    repeat: sh k.sh\n::error::"


def raises(x):
    raise ValueError(LINES)


def declines(x):
    raise NotImplementedError(LINES)


@pytest.mark.parametrize("isolate", ["fork", "none"])
@pytest.mark.parametrize("kernel", [raises, declines])
def test_what_a_kernel_says_makes_no_line_of_the_report(kernel, isolate):
    found = check(
        "softmax", kernel, device="cpu", level="quick", dtypes=["float32"], sizes={"rows": 3}, isolate=isolate
    )
    text = str(found)
    assert found.verdict == FAILED and "\\x1b[2K" in text and "\x1b" not in text + found.to_json()
    assert [line for line in text.splitlines() if line.strip().startswith(("PASSED", "repeat: sh", "::"))] == []
    assert text.splitlines()[-1].startswith("FAILED: ")


def test_a_verdict_says_where_next_to_nothing_was_judged():
    few = report(RIGHT, *[DECLINES] * 10)
    assert few.passed and few.summary().startswith("PASSED, but next to nothing was judged; judged on 1 of 11 trials")
    assert report(RIGHT, *[DECLINES] * 9).summary().startswith("PASSED; judged on 1 of 10 trials")
    parts = [outcome(number, held=(VALUES,)) for number in range(2)]
    parts[0].elements, parts[1].elements = {"y": [40, 3], "z": [40, 40]}, {"y": [10, 1], "z": [0, 0]}
    one = report(*parts)
    assert one.elements == {"y": (50, 4), "z": (40, 40)}
    assert one.summary().startswith("PASSED, but next to nothing of y was judged; ")
    assert ", 4 of 50 elements of y" in one.summary() and "of z" not in one.summary()
    parts[1].elements["y"] = [10, 2]
    assert one.summary().startswith("PASSED; judged on 2 of 2 trials, 5 of 50 elements of y")
