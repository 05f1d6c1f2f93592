"""What failing cases have in common is tried: without it, all else being equal, they have to pass."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from touchstone import check
from touchstone.conformance.discovery import registry
from touchstone.conformance.judging.judgement import FAILED, NOT_RUN, PASSED, Finding, Outcome
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting import common
from touchstone.conformance.reporting.intervention import Intervention
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check


def case(rows, cols, dtype="float32", values="normal", x="contiguous"):
    made = plain_case(registry.contract("softmax"), dtype, values, size=dict(rows=rows, cols=cols))
    return replace(made, layouts=(("x", x),))


SMALL = [case(rows, cols) for rows in (1, 3, 17) for cols in (5, 24, 64)]
LARGE = [case(rows, 1000) for rows in (1, 3, 17)]


def told(wrong, right, fails, asked=None, end=math.inf):
    def is_wrong(one):
        if asked is not None:
            asked.append(one)
        return fails(one)

    return str(common.in_common(wrong, right, tried=Intervention(is_wrong, end)))


def test_a_bound_of_a_size_has_to_be_why():
    bound = "cols from 1000 on (right up to 64)"
    asked = []
    assert bound in told(LARGE, SMALL, lambda one: one.size["cols"] > 64, asked)
    assert {one.size["cols"] for one in asked} == {64} and {one.values for one in asked} == {"normal"}
    assert bound not in told(LARGE, SMALL, lambda one: True)
    assert bound in told(LARGE, SMALL, lambda one: None)  # it declines
    assert bound in told(LARGE, SMALL, lambda one: True, end=0.0)  # there is no time


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ([replace(one, values="tiny") for one in SMALL], "values tiny"),
        ([replace(one, dtype="float16") for one in SMALL], "dtype float16"),
        ([replace(one, layouts=(("x", "sliced"),)) for one in SMALL], "x not contiguous"),
    ],
)
def test_so_has_whatever_else_a_case_has(wrong, text):
    asked = []
    assert text in told(wrong, SMALL, lambda one: False, asked) and len(asked) > 0
    assert text not in told(wrong, SMALL, lambda one: True)


def test_values_stay_where_a_layout_is_changed():
    asked = []
    told([replace(one, layouts=(("x", "sliced"),)) for one in SMALL], SMALL, lambda one: False, asked)
    assert all(one.drawn_as is not None and "sliced" in one.drawn_as for one in asked)


def test_a_report_calls_the_kernel_again():
    finding = partial(Finding, "0" * 8, "failure", Check.VALUES, "a case", "wrong", about="y")

    def note(call):
        judged = [
            (SimpleNamespace(case=one, kind=Kind.CASE), Outcome(one.id, Kind.CASE, one.dtype, status, findings=found))
            for cases, status in ((LARGE, FAILED), (SMALL, PASSED))
            for one in cases
            for found in [[finding()] if status == FAILED else []]
        ]
        common.note(judged, call)
        return str(next(f.diagnosis for _, outcome in judged for f in outcome.findings))

    def call(status, *found):
        return lambda one: Outcome(one.id, Kind.CASE, one.dtype, status, findings=list(found))

    assert "cols from 1000 on" in note(call(PASSED)) and "cols from 1000 on" in note(None)
    assert "cols from 1000 on" not in note(call(FAILED, finding()))
    other = Finding("0" * 8, "failure", Check.RAISED, "a case", "wrong")
    assert "cols from 1000 on" in note(call(FAILED, other))  # it fails otherwise there
    assert "cols from 1000 on" in note(call(NOT_RUN))


def test_of_a_size_and_a_family_that_come_together_the_cause_is_told():
    """Long rows alone have large values in these cases."""

    def fn(x):
        return x.softmax(-1) * (1.5 if x.abs().max() > 50 else 1.0)

    def together(one):
        return one.values in ("normal", "large") and one.filled and (one.values == "large") == (one.size["cols"] > 60)

    report = check("softmax", fn, device="cpu", level="default", where=together)
    said = [line for line in str(report).splitlines() if "that fail so" in line]
    assert any("values large" in line for line in said) and not any("cols" in line for line in said)
