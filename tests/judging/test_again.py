"""Cases that a kernel declined, drawn again with options that it takes: what is called, and what a report says."""

import functools
import json
import math
import random
from collections import Counter

import pytest
import torch

from tests.night import some
from touchstone import check
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.findings import fields, kept
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.again import drawn_again, in_words, of_words, options_of
from touchstone.conformance.judging.judgement import FAILED, PASSED
from touchstone.conformance.judging.trials import CaseTrial, ManyCalls, PropertyTrial, trials_of
from touchstone.conformance.reporting.session import judge_subject
from touchstone.conformance.spec.cases import plan
from touchstone.conformance.spec.contract import DTYPES, From
from touchstone.conformance.spec.layouts import FAR_LAYOUTS

SOFTMAX = registry.contract("softmax")
KERNEL = Subject("softmax", not_called, "fn", "user@cpu", "cpu")


def planned(op, level="quick"):
    return trials_of(Subject(op, not_called, "fn", "user@cpu", "cpu"), level)[0]


def drawn(op, takes, level="quick", allowed=lambda case: True):
    """(the planned trials that a kernel takes which takes the cases `takes`, what is tried after them, what of that it
    took)."""
    trials = [trial for trial in planned(op, level) if isinstance(trial, CaseTrial | ManyCalls | PropertyTrial)]
    taken, declined = ([t for t in trials if bool(takes(t.case)) is wanted] for wanted in (True, False))
    tried, took = [], []
    found = drawn_again(Subject(op, not_called, "fn", "user@cpu", "cpu"), taken, declined, allowed)
    trial = next(found, None)
    while trial is not None:
        tried.append(trial)
        if takes(trial.case):
            took.append(trial)
        try:
            trial = found.send(takes(trial.case))
        except StopIteration:
            break
    return taken, tried, took


def narrow_softmax(case):
    return case.dtype == "float16" and case.contiguous and case.size["cols"] % 8 == 0 and case.filled


def narrow_attention(case):
    return case.dtype == "bfloat16" and case.param["causal"] and case.size["D"] == 64 and case.contiguous


@pytest.mark.parametrize(("op", "takes"), [("softmax", narrow_softmax), ("attention", narrow_attention)])
def test_what_a_kernel_takes_is_called_with_the_values_and_sizes_of_what_it_declined(op, takes):
    taken, tried, took = drawn(op, takes)
    before, after = ({t.case for t in those if isinstance(t, CaseTrial)} for those in (taken, took))
    assert not before & after
    assert len(after) >= 3 * len(before)
    values, every = {case.values for case in before | after}, set(registry.contract(op).values)
    assert len(values & every) > 0.8 * len(every)
    assert len({case.sizes for case in before | after}) > 2 * len({case.sizes for case in before})
    assert len(tried) < 3 * len(planned(op))


@pytest.mark.parametrize(("op", "axis"), [("softmax", "cols"), ("group_norm", "C")])
def test_special_values_are_tried_at_sizes_of_tiles_too(op, axis):
    """Of the sizes at which a plan has them none is a whole tile."""
    taken, _, took = drawn(op, lambda case: case.filled and case.size[axis] % 128 == 0)
    assert "one_nan" not in {trial.case.values for trial in taken}
    assert "one_nan" in {trial.case.values for trial in took}


def test_an_option_that_only_declined_cases_had_is_tried_once_in_a_case_that_was_taken():
    """Each transposed case of the plan is in another dtype here."""
    trials = [t for t in planned("softmax") if isinstance(t, CaseTrial) and t.case.size["cols"] < 1000]
    taken = [t for t in trials if t.case.dtype == "float32" and t.case.contiguous]
    declined = [t for t in trials if t.case.dtype != "float32" and t.case.layout["x"] == "transposed"]
    assert taken
    assert declined
    known, tried = [t.case for t in taken], []
    found = drawn_again(KERNEL, taken, declined, lambda case: True)
    trial = next(found)
    while trial is not None:
        tried.append(trial.case)
        if "transposed" in trial.case.layout.values() and len(known) == len(taken) + len(tried) - 1:
            like = [set(options_of(trial.case).items()) - set(options_of(case).items()) for case in known]
            assert {(("layout", "x"), "transposed")} in like
        if trial.case.dtype == "float32":
            known.append(trial.case)
        try:
            trial = found.send(trial.case.dtype == "float32")
        except StopIteration:
            break
    again = {case for case in tried if case.layout["x"] == "transposed" and case.dtype == "float32"}
    assert len(again) >= len(declined) / 2


def test_nothing_is_drawn_where_nothing_is_declined():
    assert list(drawn_again(KERNEL, planned("softmax"), [], lambda case: True)) == []


def test_a_kernel_that_took_nothing_gets_plain_cases_until_it_takes_one():
    _, tried, took = drawn("softmax", lambda case: False)
    assert 20 < len(tried) <= 200
    assert not took
    assert {(trial.case.values, trial.case.contiguous) for trial in tried} == {("normal", True)}
    one = tried[-1].case
    taken, tried, took = drawn("softmax", lambda case: options_of(case) == options_of(one))
    assert not taken
    assert len(took) > 4


def test_the_values_of_a_single_case_stay_in_its_dtype_sizes_and_parameters():
    own = {trial.case.values: trial.case for trial in planned("cross_entropy_backward") if isinstance(trial, CaseTrial)}
    _, tried, _ = drawn("cross_entropy_backward", lambda case: case.dtype == "bfloat16" and case.contiguous)
    values = registry.contract("cross_entropy_backward").values
    single = [trial.case for trial in tried if trial.case.values not in values]
    for case in single:
        like = own[case.values]
        assert (case.dtype, case.sizes, case.params) == (like.dtype, like.sizes, like.params)


def test_sizes_are_rounded_up_to_multiples_where_a_kernel_asks_for_them():
    _, _, took = drawn("softmax", lambda case: case.filled and case.size["cols"] % 16 == 0 and case.contiguous)
    assert {48, 272, 1040, 10016} <= {trial.case.size["cols"] for trial in took}
    known = {trial.case.size["cols"] for trial in planned("softmax")}
    _, tried, _ = drawn("softmax", lambda case: case.size["cols"] == 1)
    assert len([trial for trial in tried if trial.case.size["cols"] not in known]) < 6


def test_of_options_that_do_not_go_together_one_is_exchanged():
    """With as many heads of keys as of queries: 4 and 2 of them are taken, 4 beside 2 are not."""

    def as_many(case):
        return case.size["Hq"] == case.size["Hkv"]

    def lengths(case):
        return [case.size[name] for name in ("N", "Tq", "Tk", "Sq", "Sk")]

    taken, _, took = drawn("attention_varlen_backward", as_many)
    before = [lengths(trial.case) for trial in taken]
    grouped = [lengths(trial.case) for trial in planned("attention_varlen_backward") if not as_many(trial.case)]
    again = {tuple(one) for one in (lengths(trial.case) for trial in took) if one in grouped and one not in before}
    assert len(again) > 3


def test_no_case_is_called_twice_or_that_is_not_allowed():
    taken, tried, _ = drawn("softmax", narrow_softmax, allowed=lambda case: case.size["cols"] < 100)
    cases = [trial.case for trial in tried if isinstance(trial, CaseTrial)]
    assert cases
    assert max(Counter(cases).values()) == 1
    assert all(case.size["cols"] < 100 for case in cases)
    assert not {trial.case for trial in taken} & set(cases)


def test_offsets_beyond_2_to_the_31_stay_and_at_their_sizes():
    far = [t.case for t in planned("attention") if set(t.case.layout.values()) & set(FAR_LAYOUTS)]
    (dtype,) = {"float16", "bfloat16"} - {far[0].dtype}
    _, _, took = drawn("attention", lambda case: case.dtype == dtype and case.size["D"] % 8 == 0)
    sizes = {(one, case.sizes) for case in far for one in case.layouts}
    again = [t.case for t in took if set(t.case.layout.values()) & set(FAR_LAYOUTS)]
    assert again
    for case in again:
        assert {(one, case.sizes) for one in case.layouts if one[1] in FAR_LAYOUTS} <= sizes


def test_cases_of_many_rows_are_drawn_in_place_of_such_alone():
    """Each takes seconds on a CPU. Here a kernel takes one of them and no other case of the plan."""
    contract = registry.contract("merge_states")
    taken, tried, took = drawn("merge_states", lambda case: case.size["P"] == 2 and case.dtype == "float32")
    assert [contract.is_beyond_grid(t.case) for t in taken if isinstance(t, CaseTrial)] == [True]
    assert len(took) > 10
    many = {size for t in taken for size in t.case.sizes if size[1] > 65535}
    assert many
    assert not [t.case.id for t in tried if many & set(t.case.sizes)]
    contract = registry.contract("activation_backward")
    _, tried, _ = drawn("activation_backward", lambda case: case.param["activation"] == "silu")
    beyond = [t.case for t in tried if contract.is_beyond_grid(t.case)]
    assert {(case.values, case.dtype) for case in beyond} == {("normal", "float32")}


def test_other_sizes_make_no_case_much_larger():
    """A cache of 66,001 pages has heads of 8, and would have 16 times as many bytes with heads of 128."""
    contract = registry.contract("attention_paged")

    def elements(case):
        return sum(math.prod(contract.operand_shape(name, case)) for name in contract.operands)

    largest = max(elements(trial.case) for trial in planned("attention_paged"))
    _, tried, _ = drawn("attention_paged", lambda case: case.size["D"] % 64 == 0 and case.dtype == "float16")
    assert len(tried) > 30
    assert max(elements(trial.case) for trial in tried) <= 2 * largest


def test_sizes_of_which_the_answers_have_another_shape_are_none_of_the_op():
    contract = registry.contract("mla_decode")
    _, tried, _ = drawn("mla_decode", lambda case: case.dtype == "float32" and case.size["W"] % 8 == 0)
    for case in [trial.case for trial in tried if isinstance(trial, CaseTrial)]:
        for name, one in contract.expected(contract.build(case)).items():
            assert one.answer.shape == contract.output_shape(name, case)


def test_many_calls_are_made_of_what_is_taken_and_properties_are_asked_where_they_are_made_for_alone():
    _, tried, took = drawn("attention", narrow_attention)
    calls = [trial for trial in took if isinstance(trial, ManyCalls) and not trial.in_turn]
    assert [narrow_attention(trial.case) for trial in calls] == [True]
    assert 1 not in (calls[0].case.size["Sq"], calls[0].case.size["Sk"])
    assert not [trial for trial in tried if isinstance(trial, PropertyTrial)]


def test_a_property_that_holds_anywhere_is_asked_at_the_sizes_that_are_taken():
    """A plan of splits that is kept from a call with fewer keys shows in nothing else."""

    def takes(case):
        return case.dtype != "float32" and (case.size["W"], case.size["V"]) == (576, 512) and case.size["Sq"] <= 4

    _, tried, took = drawn("mla_decode", takes)
    asked = [(trial.prop.name, trial.case.dtype) for trial in took if isinstance(trial, PropertyTrial)]
    assert asked == [("an earlier call leaves nothing behind", dtype) for dtype in ("float16", "bfloat16")]
    assert all(trial.prop.anywhere for trial in tried if isinstance(trial, PropertyTrial))


@pytest.mark.parametrize("op", ["softmax", "attention_varlen", "dropout", "elementwise"])
def test_a_case_is_found_again_by_its_words(op):
    cases = plan(registry.contract(op), "default").cases
    for case in cases:
        words = json.loads(json.dumps(in_words(case)))
        assert of_words(words, cases) == case
    assert of_words(in_words(cases[0]) | {"values": "of another day"}, cases) is None
    assert of_words(in_words(cases[0]) | {"dtype ": "'float8'"}, cases) is None


def narrow(x):
    if x.dtype is not torch.float16 or not x.is_contiguous() or x.shape[-1] % 8 or not x.numel():
        raise NotImplementedError("contiguous rows of float16, of a multiple of 8")
    return torch.softmax(x.float(), -1).half()


def wrong_with_infinities(x):
    """A fault that no planned case which `narrow` takes shows."""
    some = torch.isneginf(x).any(-1, keepdim=True) & torch.isfinite(x).any(-1, keepdim=True)
    return torch.where(some, x.new_full((), 0.5), narrow(x))


def test_a_restricted_kernel_is_judged_on_as_many_cases_as_another():
    right = check("softmax", narrow, device="cpu", level="quick")
    assert right.verdict == PASSED
    assert right.again > 30
    assert right.cases > 40
    planned_ones = [outcome for outcome in right.outcomes if outcome.again is None]
    assert len(planned_ones) == len(planned("softmax"))
    assert sum(outcome.judged for outcome in planned_ones) < 12
    assert right.covered == pytest.approx(
        sum(o.judged for o in planned_ones) / sum(o.judged or not o.single for o in planned_ones)
    )
    assert f"trials and on {right.again} in place of declined ones, " in right.summary()
    assert all(outcome.judged for outcome in right.outcomes if outcome.again is not None)


def test_what_no_planned_case_shows_that_the_kernel_takes_is_found_and_replayed():
    report = check("softmax", wrong_with_infinities, device="cpu", level="quick", isolate="none")
    failed = [outcome for outcome in report.outcomes if outcome.status == FAILED]
    assert failed
    assert all(outcome.again is not None for outcome in failed)
    assert "where=" not in report.command(report.failures[0])
    subject = Subject("softmax", wrong_with_infinities, "fn", "user@cpu", "cpu")
    for record in kept.records(subject, failed, "quick", 0):
        record = json.loads(json.dumps(record))
        assert fields.problem(record) is None
        trial = kept.trial_of(record, subject)
        assert trial.id == record["trial"]
        assert judge.run(subject, trial).status == FAILED
        with pytest.raises(ValueError, match="has no trial"):
            kept.trial_of(record | {"again": record["again"] | {"values": "of another day"}}, subject)


def declining(fn, contract, draw):
    """The function, which declines what by chance it does not take: all dtypes but one, values of parameters, strided
    operands, rows of no multiple of 8."""
    dtype = DTYPES[draw.choice(contract.dtypes)]
    params = {name: draw.choice(values) for name, values in contract.params.items() if draw.random() < 0.4}
    params = {name: value for name, value in params.items() if not isinstance(value, From)}
    strided, multiple = draw.random() < 0.5, draw.choice([1, 1, 8])

    @functools.wraps(fn)
    def restricted(*args, **kwargs):
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        first = next((t for t in tensors if t.is_floating_point()), tensors[0])
        if first.is_floating_point() and first.dtype != dtype:
            raise NotImplementedError("another dtype")
        if any(kwargs.get(name, value) != value for name, value in params.items()):
            raise NotImplementedError("a parameter")
        if not strided and not all(t.is_contiguous() for t in tensors):
            raise NotImplementedError("strides")
        if not first.numel() or any(n % multiple for n in first.shape[-1:]):
            raise NotImplementedError("a size")
        return fn(*args, **kwargs)

    return restricted


@pytest.mark.parametrize("op", some(registry.ops(), 12))
def test_a_right_kernel_that_declines_by_chance_is_not_accused(op):
    draw = random.Random(op)
    right = [planted for planted in registry.planted(op) if planted.is_known_good]
    again = 0
    for _ in range(3):
        planted = draw.choice(right)
        fn = declining(planted.make(), registry.contract(op), draw)
        report = judge_subject(Subject(op, fn, planted.name, "user@cpu", "cpu"), "quick", isolate="none")
        assert not report.failures, planted.name
        again += report.again
    assert again


def test_a_narrowed_check_draws_within_what_it_is_narrowed_to():
    report = check("softmax", narrow, device="cpu", level="quick", where=lambda case: case.size["cols"] not in (24, 48))
    assert report.again
    sizes = {outcome.again["size cols"] for outcome in report.outcomes if outcome.again is not None}
    assert sizes and not sizes & {"24", "48"}  # 33 columns are 48 where a kernel takes multiples of 16


def test_our_own_variants_are_called_on_what_is_planned_alone(monkeypatch):
    monkeypatch.setattr("touchstone.conformance.reporting.session.drawn_again", lambda *given: pytest.fail("drawn"))
    judge_subject(Subject("softmax", narrow, "fn", "triton@cpu", "cpu", own=True), "quick", isolate="none")


def test_sizes_that_do_not_go_together_are_left_out(monkeypatch):
    known = {trial.case.sizes for trial in planned("softmax")}
    real = SOFTMAX.build

    def build(case, *given):
        if case.sizes not in known:
            raise ValueError("no number of heads that divides the other, say")
        return real(case, *given)

    new = {trial.case.sizes for trial in drawn("softmax", narrow_softmax)[1]} - known
    monkeypatch.setattr(SOFTMAX, "build", build)
    assert new
    assert {trial.case.sizes for trial in drawn("softmax", narrow_softmax)[1]} <= known
