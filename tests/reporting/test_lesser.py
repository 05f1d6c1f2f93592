"""Which hints are left out beside others of the same kernel."""

from types import SimpleNamespace

import pytest

from touchstone.conformance.discovery import registry
from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging.judgement import FAILED, PASSED, Finding, Outcome
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.reporting import common, lesser
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.checks import Check

KNOWN = "equals the reference, but the mask is that of keys (mutant mask_of_keys)\no: wrong: everything"
STEP = (
    "right with Tq 33, wrong with Tq 34, all else being equal, right with Tk 60, wrong with Tk 61, all else being equal"
)
FLOAT16 = "no further off than sums kept in float16 explain, where float32 is asked for"


def left(told: str, *beside: str, check: Check = Check.VALUES) -> str | None:
    findings = [
        Finding("0" * 8, "failure", check, "a case", "wrong", about=about, diagnosis=text)
        for about, text in zip("abcd", (told, *beside), strict=False)
    ]
    lesser.drop(findings)
    return findings[0].diagnosis


@pytest.mark.parametrize("hint", [diagnosis.NAN, STEP, FLOAT16])
def test_what_says_less_is_left_out_beside_a_cause_that_was_tried(hint):
    told = f"a: wrong: rows 3 of 5; {hint}\n  0 |..#|"
    assert left(told, KNOWN) == "a: wrong: rows 3 of 5\n  0 |..#|"
    assert left(told) == left(told, "b: wrong: all; 2 x the answer") == told
    assert left(told, KNOWN, check=Check.RAISED) == told
    assert left(told, KNOWN.replace("(mutant", "though not in all cases that pass (mutant")) == told


def test_no_rounding_is_said_of_an_output_that_is_far_off_somewhere():
    def told(*errors):
        findings = [
            Finding("0" * 8, "failure", Check.VALUES, "a case", "wrong", about="y", error=error, diagnosis=text)
            for error, text in zip(errors, (f"y: wrong: rows 3 of 5; {FLOAT16}", None), strict=True)
        ]
        lesser.drop(findings)
        return findings[0].diagnosis

    assert told(30.0, 1e30) == "y: wrong: rows 3 of 5"
    assert told(30.0, 200.0).endswith(FLOAT16)


def test_what_was_tried_is_kept():
    for told in ("a: wrong: all; right without bias, all else being equal", f"a: wrong: all; as if x were 0; {STEP}"):
        assert left(told, KNOWN) == told


def test_nothing_of_sizes_is_told_beside_a_cause_that_was_tried():
    contract = registry.contract("online_softmax")

    def told(y, lse):
        cases = [
            plain_case(contract, "float32", "normal", size=dict(rows=rows, cols=cols))
            for rows in (1, 3, 17)
            for cols in (5, 24, 64, 1000)
        ]
        judged = []
        for one in cases:
            is_long = one.size["cols"] > 64
            found = [
                Finding("0" * 8, "failure", Check.VALUES, "a case", f"{about}: wrong", about=about, diagnosis=text)
                for about, text in (("y", y), ("lse", lse))
                if is_long and text
            ]
            outcome = Outcome(one.id, Kind.CASE, one.dtype, FAILED if found else PASSED, findings=found)
            judged.append((SimpleNamespace(case=one, kind=Kind.CASE), outcome))
        common.note(judged)
        findings = [finding for _, outcome in judged for finding in outcome.findings]
        return [
            "cols from 1000 on" in "".join(f.diagnosis for f in findings if f.about == name) for name in ("y", "lse")
        ]

    vague = "lse: wrong: everything"
    assert told("y: wrong: everything", vague) == [True, True]
    assert told("y: wrong: everything; as if x were 0", vague) == [True, False]
    assert told(KNOWN, vague) == [False, False]  # the mutant says when
