"""Judging by a property: what is broken, by whom, and which requirement it is held against."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.judging.test_calls import case_of, judgement, messages, raised, softmax, subject
from touchstone.conformance.discovery import importing
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge, properties
from touchstone.conformance.judging.executor import CANNOT, DECLINES, RAISES, Observed
from touchstone.conformance.judging.judgement import DECLINED, FAILED, NOT_RUN, PASSED, Judgement
from touchstone.conformance.judging.trials import PropertyTrial
from touchstone.conformance.spec.checks import Check, Requirement
from touchstone.conformance.spec.contract import Property


def property_of(check):
    return PropertyTrial(case_of(rows=3, cols=7), Property("mine", check))


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ([], PASSED, None),
        ([raised(RAISES)], FAILED, "a further call raised SomeError: no"),
        ([raised(DECLINES, "not today")], DECLINED, None),
        ([raised(CANNOT, "not here")], NOT_RUN, None),
        ([raised(DECLINES, "")], DECLINED, None),
        ([Observed(values="returned 2 values; expected 1")], FAILED, "of a further call: returned 2 values"),
    ],
)
def test_a_property_calls_again(script, status, said):
    given = []

    def check(further, arguments, outputs, case):
        given.append((sorted(arguments), case))
        (y,) = further(**arguments)
        return None if torch.equal(y, outputs[0]) else "it differs"

    trial = property_of(check)
    j = judgement(*script, trial=trial)
    inputs = j.contract.build(trial.case)
    properties.check_property(j, trial.prop, inputs, (softmax(inputs.arguments["x"]),))
    assert j.outcome.status == status and given == [(["x"], trial.case)]
    assert [f.check for f in j.outcome.findings] == ([] if said is None else [Check.PROPERTY.of("mine")])
    assert said is None or messages(j)[0].startswith(said)
    reason = (
        {DECLINED: (script or [None])[0].raised.said or "SomeError", NOT_RUN: "not here"}
        if script and said is None
        else {}
    )
    assert j.outcome.reason == reason.get(status)


def test_what_a_property_finds_broken():
    trial = property_of(lambda *given: "it differs")
    j = judgement(trial=trial)
    properties.check_property(j, trial.prop, j.contract.build(trial.case), ())
    assert messages(j, Check.PROPERTY.of("mine")) == ["it differs"]


def test_an_error_of_a_property_is_the_kernels_only_where_right_answers_raise_none():
    of_ours = property_of(lambda *given: 1 / 0)
    j = judgement(trial=of_ours)
    with pytest.raises(ZeroDivisionError):
        properties.check_property(j, of_ours.prop, j.contract.build(of_ours.case), ())
    kernels = property_of(lambda call, arguments, outputs, case: outputs[0][0, 0] and None)
    j = judgement(trial=kernels)
    properties.check_property(j, kernels.prop, j.contract.build(kernels.case), (torch.zeros(0, 0),))
    assert messages(j)[0].startswith("what a further call returned cannot be compared: IndexError")
    j = judgement(trial=kernels)
    j.debug = True
    with pytest.raises(IndexError):
        properties.check_property(j, kernels.prop, j.contract.build(kernels.case), (torch.zeros(0, 0),))


def rows_apart(call, arguments, outputs, case):
    other = arguments["x"].clone()
    other[0] = math.nan
    (y,) = call(x=other)
    return None if torch.equal(y[1:], outputs[0][1:]) else "the other rows differ"


def stops_at_nan(x):
    return softmax(x) if not x.isnan().any() else softmax(x).fill_(math.nan)


@pytest.mark.parametrize(
    ("fn", "requirement"), [(lambda x: softmax(x) + x[:1], Requirement.VALUES), (stops_at_nan, None)]
)
def test_a_property_of_nan_that_is_broken_by_numbers_too_is_held_against_the_values(fn, requirement):
    trial = property_of(rows_apart)
    j = Judgement(subject(fn), trial)
    inputs = j.contract.build(trial.case)
    properties.check_property(j, trial.prop, inputs, (fn(inputs.arguments["x"]),))
    (found,) = j.outcome.findings
    assert found.message == "the other rows differ" and found.requirement is requirement


KEPT = """
import torch
kept = {}
def softmax(x):
    return torch.softmax(x, -1) * kept.setdefault(0, x[0, 0].item()) / x[0, 0].item()
"""


def halves(call, arguments, outputs, case):
    (half,) = call(x=arguments["x"] + 1)
    return None if torch.allclose(half, outputs[0]) else "it differs"


@pytest.mark.parametrize("text", [KEPT, KEPT.replace("kept.setdefault(0, x[0, 0].item())", "2 * x[0, 0].item() ** 2")])
def test_a_property_that_holds_where_no_call_knows_of_an_earlier_one(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    trial = property_of(halves)
    subject = Subject("softmax", importing.load(tmp_path / "mine.py", "softmax"), "mine", "user@cpu", "cpu")
    j = Judgement(subject, trial)
    inputs = j.contract.build(trial.case)
    properties.check_property(j, trial.prop, inputs, (subject.fn(inputs.arguments["x"]),))
    (found,) = j.outcome.findings
    if text is KEPT:
        assert found.message.startswith(
            "it differs; but it holds where the kernel's file is imported anew for each call"
        )
        assert found.requirement is Requirement.DETERMINISM
    else:
        assert found.message == "it differs" and found.requirement is None
    for about in (dict(untrusted=True), dict(own=True), dict(diagnosed=False)):
        assert not properties._holds_anew(Judgement(replace(subject, **about), trial), trial.prop, inputs)


def the_same_in_memory(call, arguments, outputs, case):
    (y,) = call(x=arguments["x"].t().contiguous().t())
    return None if torch.equal(y, outputs[0]) else "another answer where x is transposed in memory"


@pytest.mark.parametrize(
    ("fn", "requirement"),
    [
        (lambda x: softmax(x.as_strided(x.shape, (x.shape[1], 1))), Requirement.LAYOUTS),
        (partial(lambda calls, x: softmax(x) + next(calls), itertools.count()), Requirement.VALUES),
    ],
)
def test_a_property_of_layouts_that_is_broken_by_contiguous_operands_too_is_held_against_the_values(fn, requirement):
    outcome = judge.run(subject(fn), property_of(the_same_in_memory))
    assert [finding.requirement for finding in outcome.findings] == [requirement]
    assert outcome.requirements == ["values", "layouts"] and str(requirement) not in outcome.held
