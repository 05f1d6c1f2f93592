"""Judging one kernel on one trial: each thing that can be wrong is reported by the check named after it."""

import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.night import some
from touchstone import backends
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import call, calls, diagnosis, executor, judge
from touchstone.conformance.judging.judgement import DECLINED, FAILED, PASSED, Judgement, Outcome
from touchstone.conformance.judging.trials import (
    CALLS,
    AsGraph,
    CaseTrial,
    Int64Index,
    InvalidCall,
    Kind,
    ManyCalls,
    OnStream,
    PropertyTrial,
    trials_of,
)
from touchstone.conformance.reporting import earlier
from touchstone.conformance.reporting.report import Report
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.cases import plain_case, plan
from touchstone.conformance.spec.checks import Check, Requirement
from touchstone.conformance.spec.compare import worst
from touchstone.conformance.spec.contract import Case, Invalid, Property

LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "broadcast")


def case(dtype="float32", rows=5, cols=33, values="normal", layout="contiguous", seed=0) -> Case:
    return Case("softmax", dtype, (("rows", rows), ("cols", cols)), values, (("x", layout),), (), seed)


def subject(fn, op="softmax", **changes) -> Subject:
    return Subject(op, fn, changes.pop("name", "fn"), "user@cpu", "cpu", **changes)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def judged(fn, *, own=False, outputs=None, op="softmax", **about) -> Outcome:
    made = case(**about)
    return judge.run(subject(fn, op=op, own=own, outputs=outputs), CaseTrial(replace(made, op=op)))


def checks(outcome: Outcome) -> list[str]:
    return [finding.check for finding in outcome.findings]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_correct_kernel_passes(dtype, layout):
    outcome = judged(softmax, dtype=dtype, layout=layout)
    assert outcome.status == PASSED
    assert outcome.findings == []
    assert 0 < outcome.fractions["y"] <= 1


@pytest.mark.parametrize("values", ["row_of_neg_inf", "one_pos_inf", "one_nan"])
def test_special_values_follow_torch(values):
    assert judged(softmax, values=values, rows=3).status == PASSED
    outcome = judged(lambda x: softmax(x).nan_to_num(0.0), values=values, rows=3)
    assert checks(outcome) == [Check.VALUES]
    assert outcome.findings[0].error == math.inf


def through(change):
    """softmax, then `change` of (x, y)."""
    return lambda x: change(x, softmax(x))


def dropped_tail(x, y):
    y[..., -1] = 0
    return y


def write_input(x, y):
    x[-1, -1] += 1
    return y


def write_before_input(x, y):
    x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(1.0)
    return y


def write_into_gap(x, y):
    x.as_strided((1,), (1,), x.storage_offset() + x.shape[1]).fill_(1.0)
    return y


def in_place(x, y):
    return x.copy_(y)


def view_of_input(x, y):
    x.copy_(y)
    return torch.from_numpy(x.numpy())  # another storage object on the same memory


def column_major(x, y):
    return y.t().contiguous().t()


FAULTS = {
    "float64": (lambda x, y: y.double(), Check.DTYPE),
    "float16": (lambda x, y: y.half(), Check.DTYPE),
    "transposed shape": (lambda x, y: y.t().contiguous(), Check.SHAPE),
    "one more axis": (lambda x, y: y[None], Check.SHAPE),
    "one column less": (lambda x, y: y[:, 1:].contiguous(), Check.SHAPE),
    "column major": (column_major, Check.STRIDES),
    "without memory": (lambda x, y: y.to("meta"), Check.RETURNS),
    "None": (lambda x, y: None, Check.RETURNS),
    "two values": (lambda x, y: (y, y), Check.RETURNS),
    "no values": (lambda x, y: (), Check.RETURNS),
    "array": (lambda x, y: y.numpy(), Check.RETURNS),
    "subclass": (lambda x, y: torch.nn.Parameter(y), Check.RETURNS),
    "sparse": (lambda x, y: y.to_sparse(), Check.RETURNS),
    "zeros": (lambda x, y: torch.zeros_like(y), Check.VALUES),
    "ones": (lambda x, y: torch.ones_like(y), Check.VALUES),
    "NaN": (lambda x, y: torch.full_like(y, math.nan), Check.VALUES),
    "uniform": (lambda x, y: torch.full_like(y, 1 / y.shape[1]), Check.VALUES),
    "dropped tail": (dropped_tail, Check.VALUES),
    "scaled by a thousandth": (lambda x, y: y * 1.001, Check.VALUES),
    "input written": (write_input, Check.INPUTS),
    "memory before the input written": (write_before_input, Check.INPUTS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_by_its_check(fault):
    change, check = FAULTS[fault]
    outcome = judged(through(change))
    assert outcome.status == FAILED
    assert checks(outcome) == [check]
    finding = outcome.findings[0]
    assert finding.severity == "failure"
    assert "float32-5x33-normal (seed 0)" in finding.case
    if check == Check.VALUES:
        assert not finding.error <= 1
        assert finding.message.startswith("y: ")
        assert finding.about == "y"


def test_wrong_values_of_a_kernel_that_is_not_to_be_diagnosed_are_not_looked_into():
    of = partial(subject, through(lambda x, y: y * 1.001))
    for diagnosed in (True, False):
        (finding,) = judge.run(of(diagnosed=diagnosed), CaseTrial(case())).findings
        assert (finding.check, finding.diagnosis is not None) == (Check.VALUES, diagnosed)


def test_working_in_place_is_two_findings():
    assert checks(judged(through(in_place))) == [Check.INPUTS, Check.ALIAS]


def test_an_alias_is_seen_through_another_storage():
    assert checks(judged(through(view_of_input))) == [Check.INPUTS, Check.ALIAS]


def test_writing_into_the_gap_between_rows():
    outcome = judged(through(write_into_gap), layout="sliced")
    assert checks(outcome) == [Check.INPUTS]
    assert outcome.findings[0].message.startswith("x was written")


def test_strides_ignored_reads_poison():
    def ignores_strides(x):
        return softmax(x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset()))

    assert judged(ignores_strides).status == PASSED
    for layout in ("transposed", "sliced", "step", "broadcast"):
        assert checks(judged(ignores_strides, layout=layout)) == [Check.VALUES]


def test_storage_offset_ignored_reads_poison():
    def ignores_offset(x):
        return softmax(x.as_strided(x.shape, x.stride(), x.storage_offset() // 32 * 32))

    assert judged(ignores_offset).status == PASSED
    assert checks(judged(ignores_offset, layout="offset")) == [Check.VALUES]


def test_strides_passed_on_from_the_input_are_a_note_for_a_users_function():
    kept = through(column_major)
    outcome = judged(kept, layout="transposed")
    assert outcome.status == PASSED
    assert [(f.check, f.severity) for f in outcome.findings] == [(Check.STRIDES, "note")]
    assert judged(kept, layout="transposed", own=True).status == FAILED
    overlapping = judged(lambda x: softmax(x[:1]).expand(x.shape), layout="broadcast")
    assert [(f.check, f.severity) for f in overlapping.findings] == [(Check.STRIDES, "failure")]


def test_an_exception_is_a_finding_with_its_place():
    def broken(x):
        raise ZeroDivisionError("one over nothing")

    outcome = judged(broken)
    assert outcome.status == FAILED
    assert checks(outcome) == [Check.RAISED]
    assert outcome.findings[0].message.startswith("ZeroDivisionError: one over nothing (test_judge.py:")


def test_debug_lets_the_exception_through():
    def broken(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        judge.run(subject(broken), CaseTrial(case()), debug=True)


def test_not_implemented_is_a_decline():
    def declines(x):
        raise NotImplementedError("33 columns; I hold 32")

    outcome = judged(declines)
    assert outcome.status == DECLINED
    assert outcome.reason == "33 columns; I hold 32"
    assert outcome.findings == []
    assert judge.run(subject(declines), CaseTrial(case()), debug=True).status == DECLINED


def test_a_users_function_is_called_by_position_and_a_variant_by_name():
    assert judged(lambda anything: softmax(anything)).status == PASSED
    assert checks(judged(lambda anything: softmax(anything), own=True)) == [Check.RAISED]
    assert judged(softmax, own=True).status == PASSED


@pytest.mark.parametrize("wrap", [lambda y: (y,), lambda y: [y], lambda y: y])
def test_one_output_may_come_in_a_tuple(wrap):
    assert judged(lambda x: wrap(softmax(x))).status == PASSED


def online_softmax(x):
    return softmax(x), torch.logsumexp(x.double(), -1).float()


def test_several_outputs_are_judged_each():
    assert judged(online_softmax, op="online_softmax").status == PASSED
    outcome = judged(lambda x: tuple(2 * t for t in online_softmax(x)), op="online_softmax")
    assert [f.message.partition(":")[0] for f in outcome.findings] == ["y", "lse"]
    assert len({f.id for f in outcome.findings}) == 2
    assert set(outcome.fractions) == {"y", "lse"}
    assert checks(judged(softmax, op="online_softmax")) == [Check.RETURNS]
    assert checks(judged(lambda x: online_softmax(x)[::-1], op="online_softmax")) == [Check.SHAPE, Check.SHAPE]


def test_a_subset_of_outputs():
    """A function judged on one output may return all of them, or that one."""
    wrong_lse = lambda x: (softmax(x), None)  # noqa: E731
    assert judged(wrong_lse, op="online_softmax").status == FAILED
    for fn in (wrong_lse, online_softmax, softmax, lambda x: (softmax(x),)):
        outcome = judged(fn, op="online_softmax", outputs=("y",))
        assert outcome.status == PASSED
        assert set(outcome.fractions) == {"y"}
    assert judged(wrong_lse, op="online_softmax", outputs=("lse",)).status == FAILED
    assert judged(lambda x: online_softmax(x)[1], op="online_softmax", outputs=("lse",)).status == PASSED


def test_empty_cases_are_judged():
    assert judged(softmax, rows=0, cols=5).status == PASSED
    assert checks(judged(lambda x: x.new_empty(5, 0), rows=0, cols=5)) == [Check.SHAPE]


def property_trials(fn, own=False):
    made = subject(fn, own=own)
    return [t for t in trials_of(made, "quick")[0] if isinstance(t, PropertyTrial)]


def test_a_kernel_that_is_right_only_on_its_case_breaks_a_property():
    def drifts(x):
        """Wrong for positive multiples of 1/8, which no case has and the property does."""
        y = softmax(x)
        return y if bool((8 * x != (8 * x).round()).any()) else y * (1 + 0.1 * bool(x.max() > 0))

    broken = [
        outcome
        for outcome in (judge.run(subject(drifts), t) for t in property_trials(drifts))
        if outcome.status == FAILED
    ]
    assert len(broken) == 3  # one a dtype
    assert {check for outcome in broken for check in checks(outcome)} == {Check.PROPERTY.of("shift invariance")}


def test_a_kernel_that_raises_or_declines_inside_a_property():
    def on_eighths(error):
        def fn(x):
            if not bool((8 * x != (8 * x).round()).any()):
                raise error
            return softmax(x)

        return fn

    raising = on_eighths(RuntimeError("no"))
    outcomes = [judge.run(subject(raising), trial) for trial in property_trials(raising)]
    assert [checks(o) for o in outcomes if o.status == FAILED] == [[Check.PROPERTY.of("shift invariance")]] * 3
    assert "a further call raised RuntimeError: no" in next(o for o in outcomes if o.findings).findings[0].message
    shift = next(trial for trial in property_trials(raising) if trial.prop.name == "shift invariance")
    with pytest.raises(RuntimeError, match="no"):
        judge.run(subject(raising), shift, debug=True)
    declining = on_eighths(NotImplementedError("not these"))
    outcomes = [judge.run(subject(declining), trial) for trial in property_trials(declining)]
    assert sum(o.status == DECLINED for o in outcomes) == 3
    assert not any(o.findings for o in outcomes)


def test_a_wrong_kernel_is_not_asked_for_the_property():
    def never(call, arguments, outputs, made):
        raise AssertionError

    assert checks(judge.run(subject(torch.zeros_like), PropertyTrial(case(), Property("never", never)))) == [
        Check.VALUES
    ]


def invalid(spoil, error, match) -> InvalidCall:
    return InvalidCall(case(), Invalid("spoilt", spoil, error, match))


def one_axis(arguments):
    return {"x": arguments["x"].flatten()}


def test_invalid_calls_need_the_error_and_the_name():
    def raises(error):
        def fn(x):
            if x.ndim != 2:
                raise error
            return softmax(x)

        return subject(fn, own=True)

    trial = invalid(one_axis, (ValueError, TypeError), r"\bx\b")
    assert judge.run(raises(ValueError("x: expected 2 axes")), trial).status == PASSED
    assert judge.run(raises(TypeError("x: expected 2 axes")), trial).status == PASSED
    for fn, told in [
        (raises(ValueError("bad input")), "ValueError or TypeError whose message matches"),
        (raises(RuntimeError("x")), "got RuntimeError: x"),
        (raises(NotImplementedError("x")), "got NotImplementedError: x"),
        (subject(softmax, own=True), "but the call went through"),
    ]:
        outcome = judge.run(fn, trial)
        assert checks(outcome) == [Check.INVALID]
        assert told in outcome.findings[0].message


def test_the_trials_of_a_subject():
    contract = registry.contract("softmax")
    ours, user = (trials_of(subject(softmax, own=own), "quick")[0] for own in (True, False))
    made = plan(contract, "quick")
    regular = {case.id for case in made.regular | made.also}
    assert made.regular and made.also
    same = [t.id for t in user if t.id not in regular and not (isinstance(t, ManyCalls) and t.in_turn)]
    assert same == [t.id for t in ours if not isinstance(t, InvalidCall)] and len(same) < len(user) - len(regular)
    assert regular <= {t.id for t in user}
    assert regular <= {t.id for t in trials_of(subject(softmax, own=True), "default")[0]}
    assert len([t for t in ours if isinstance(t, InvalidCall)]) == len(contract.invalid) > 0
    assert len([t for t in ours if isinstance(t, PropertyTrial)]) == 3 * len(contract.properties) > 0
    assert len({t.id for t in ours}) == len(ours)
    assert all(" " not in t.id for t in ours)


def test_work_beyond_the_ceiling_is_dropped_and_counted():
    contract = registry.contract("softmax")
    made = subject(softmax)
    everything, plan = trials_of(made, "quick")
    assert plan.over_ceiling == 0
    work = sorted(contract.work(t.case) for t in everything if not isinstance(t, PropertyTrial))
    ceiling = work[len(work) // 2]
    some, plan = trials_of(made, "quick", ceiling=ceiling)
    assert plan.over_ceiling == len(everything) - len(some) > 0
    assert all(contract.work(t.case) <= ceiling for t in some if not isinstance(t, PropertyTrial))


def test_finding_ids_are_stable_and_tell_findings_apart():
    zeros, ones = (judged(fn).findings[0] for fn in (torch.zeros_like, torch.ones_like))
    assert zeros.id == judged(torch.zeros_like).findings[0].id == ones.id  # of what was judged, not of the numbers
    assert zeros.id == "ce4bf73e"
    others = [
        judged(torch.zeros_like, cols=34),
        judged(torch.zeros_like, seed=1),
        judged(torch.zeros_like, dtype="float16"),
        judged(lambda x: None),
        judged(torch.zeros_like, op="online_softmax", outputs=("y",)),
    ]
    assert len({zeros.id, *(o.findings[0].id for o in others)}) == 6


def test_what_a_finding_is_about():
    def wrong_shape(x):
        return softmax(x)[:1], online_softmax(x)[1]

    def raises(x):
        raise ZeroDivisionError("by: nothing")

    def about(fn, **options):
        return [(f.check, f.about, f.raised) for f in judged(fn, **options).findings]

    assert about(through(in_place)) == [(Check.INPUTS, "x", None), (Check.ALIAS, "y", None)]
    assert about(wrong_shape, op="online_softmax") == [(Check.SHAPE, "y", None)]
    assert about(softmax, op="online_softmax") == [(Check.RETURNS, None, None)]
    assert about(raises) == [(Check.RAISED, None, "ZeroDivisionError")]


@pytest.mark.slow
@pytest.mark.parametrize("op", some(registry.ops(), 4))
def test_the_kind_of_an_earlier_record_follows_from_the_id(op):
    found, _ = trials_of(subject(softmax, op=op, own=True), "default")
    for trial in [*found, OnStream(found[0].case), AsGraph(found[0].case), Int64Index(found[0].case)]:
        assert earlier.kind(trial.id) is trial.kind
    written = {"trial": f"huge-{found[0].case.id}", "status": "passed", "findings": []}
    assert earlier.converted(written) == {**written, "trial": Int64Index(found[0].case).id, "kind": "int64_index"}
    assert earlier.converted({"trial": "law-shift-float32", "check": "law: shift"}) == {
        "trial": "property-shift-float32",
        "check": "property: shift",
        "kind": "property",
    }


def test_an_outcome_goes_through_a_dictionary():
    outcome = judged(through(in_place))
    assert Outcome.from_dict(outcome.to_dict()) == outcome
    assert outcome.to_dict()["findings"][0]["check"] == "inputs"
    assert outcome.to_dict()["kind"] == "case"
    plain = {str, int, float, list, dict, type(None)}
    assert {type(value) for found in outcome.to_dict()["findings"] for value in found.values()} <= plain
    assert {type(value) for value in outcome.to_dict().values()} <= {*plain, bool}  # pytest-xdist sends no others


def test_the_answer_is_computed_once_for_a_ladder():
    call._recent.cache_clear()
    for _ in range(3):
        judged(softmax, seed=77)
    assert call._recent.cache_info().misses == 1


def test_answers_that_are_kept_are_not_computed_again():
    trials = [CaseTrial(case(seed=78)), ManyCalls(case(seed=79), 4)]
    judge.keep_answers(trials)
    call._recent.cache_clear()
    try:
        assert [judge.run(subject(softmax), trial).status for trial in trials] == [PASSED, PASSED]
        assert call._recent.cache_info().misses == 0
        judge.keep_answers(trials[:1])  # others are forgotten
        judge.run(subject(softmax), trials[1])
        assert call._recent.cache_info().misses == 4
    finally:
        call._kept.clear()


def test_an_outcome_begins_with_nothing():
    outcome = Outcome.of(CaseTrial(case()))
    assert (outcome.status, outcome.kind, outcome.dtype) == (PASSED, Kind.CASE, "float32")
    assert outcome.judged and not outcome.displaced and not outcome.unported and outcome.reason is None
    listed = (
        outcome.findings,
        outcome.instruments,
        outcome.library,
        outcome.answered,
        outcome.requirements,
        outcome.held,
    )
    assert all(each == [] for each in listed) and outcome.fractions == {}


def test_every_case_of_a_users_function_is_watched_and_of_a_variant_one_of_a_size():
    ours, user = (
        [t for t in trials_of(subject(softmax, own=own), "quick")[0] if isinstance(t, CaseTrial)]
        for own in (True, False)
    )
    grid = registry.contract("softmax").is_beyond_grid  # rows and columns by the ten thousand are called once
    single = plan(registry.contract("softmax"), "quick").also
    assert all(trial.watched for trial in user if not grid(trial.case) and trial.case not in single)
    sizes = [trial.case.sizes for trial in ours if trial.watched]
    assert 0 < len(sizes) == len(set(sizes)) < len({trial.case.sizes for trial in ours})


def test_a_64th_of_many_rows_is_a_case_of_every_op_that_has_them():
    """Also of those of whose sizes some are shapes."""
    for op in registry.ops():
        contract = registry.contract(op)
        for size in contract.beyond_grid:
            case = plain_case(contract, contract.dtypes[0], next(iter(contract.values)), size=size)
            few = calls.a_64th(case)
            assert contract.valid(few) and contract.work(few) < contract.work(case) / 16, (op, few.id)


def test_a_case_of_many_rows_that_fails_is_not_called_again_for_hints():
    """On a CPU, where a call may take ten seconds."""
    rows = []

    def wrong(x):
        rows.append(len(x))
        return softmax(x) * 2

    contract = registry.contract("softmax")
    (size,) = contract.beyond_grid
    outcome = judge.run(subject(wrong), CaseTrial(plain_case(contract, "float32", "normal", size=size)))
    assert outcome.status == FAILED
    assert rows.count(size["rows"]) == 1


def test_a_search_for_hints_that_fails_takes_no_finding(monkeypatch):
    def fails(*args, **options):
        raise RuntimeError("sizes 16 and 32")

    monkeypatch.setattr(diagnosis, "diagnose", fails)
    trial = next(trial for trial in trials_of(subject(softmax), "quick")[0] if isinstance(trial, CaseTrial))
    outcome = judge.run(subject(torch.zeros_like), trial)
    (finding,) = [finding for finding in outcome.findings if finding.check == Check.VALUES]
    assert outcome.status == FAILED
    assert finding.diagnosis == "y: no hint, looking for one failed (RuntimeError: sizes 16 and 32)"


def test_a_launcher_may_refuse_a_single_case_before_it_launches():
    trials = [trial for trial in trials_of(subject(softmax), "quick")[0] if isinstance(trial, CaseTrial)]
    single = {trial.single: trial for trial in sorted(trials, key=lambda trial: trial.case.size["cols"])}
    assert single[True].case in plan(registry.contract("softmax"), "quick").also

    def refuses(x):
        raise RuntimeError(f"n = {x.shape[1]} exceeds 65536")

    def launches(x):
        with backends.running():
            return refuses(x)

    def judged_on(trial, fn):
        return judge.run(subject(fn), trial)

    outcome = judged_on(single[True], refuses)
    assert outcome.status == DECLINED and "n = 66001 exceeds 65536" in outcome.reason and outcome.single
    assert judged_on(single[False], refuses).status == judged_on(single[True], launches).status == FAILED
    assert judged_on(single[True], torch.zeros_like).status == FAILED
    assert judged_on(single[True], lambda x: 1 / 0).status == FAILED
    report = Report("softmax", "fn", "user@cpu", "quick", 0, [judged_on(single[False], softmax), outcome])
    report.least_coverage = 1.0
    assert report.covered == 1.0 and report.verdict == PASSED
    report.outcomes.append(replace(outcome, single=False))
    assert report.verdict == "partial"


@pytest.mark.parametrize("level", ["quick", "thorough"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_has_trials_of_its_own(device, level):
    found, _ = trials_of(replace(subject(softmax), device=device), level)
    kinds = Counter(type(trial) for trial in found if isinstance(trial, OnStream | AsGraph | Int64Index))
    thorough = {AsGraph: 1, Int64Index: 1} if level == "thorough" else {}
    assert kinds == ({OnStream: 1, **thorough} if device == "cuda" else {})
    if device == "cuda":
        found, _ = trials_of(replace(subject(softmax, captures=False), device=device), level)
        assert not any(isinstance(trial, AsGraph) for trial in found)


def test_a_call_that_may_have_raised_for_another_devices_kernels_says_so():
    def fn(x):
        raise NotImplementedError("could not run 'a::b' with arguments from the 'CPU' backend")

    assert judged(fn).displaced and not judged(fn, own=True).displaced
    assert not judged(lambda x: 1 / 0).displaced


@pytest.mark.parametrize(
    "later",
    [
        lambda y: y[:, :1],
        lambda y: y.reshape(-1, 1, 1),
        lambda y: None,
        lambda y: "text",
        lambda y: [y, y],
        lambda y: 1 / 0,
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_a_kernel_whose_further_calls_give_something_else_is_told_by_its_first(later, many):
    number = itertools.count()

    def fn(x):
        y = 2 * softmax(x)
        return later(softmax(x)) if next(number) else y

    outcome = judge.run(subject(fn), ManyCalls(case(), 4) if many else CaseTrial(case()))
    first = outcome.findings[0]
    assert outcome.status == FAILED and first.check == "values"
    assert "right in further calls" not in (first.diagnosis or "")


def test_worst_lets_nan_win():
    assert worst([]) is None
    assert worst([0.1, 2.0, 0.5]) == 2.0
    assert math.isnan(worst([0.1, math.nan, math.inf]))
    assert worst([0.1, math.inf]) == math.inf


def test_an_error_names_its_place_once():
    def text(message):
        try:
            raise ValueError(message)
        except ValueError as error:
            return executor.error_text(error)

    assert re.fullmatch(r"ValueError: wrong shape \(test_judge\.py:\d+\)", text("wrong shape"))
    assert re.fullmatch(r"ValueError: no message \(test_judge\.py:\d+\)", text(""))
    assert text("kernel.py:12: wrong index") == "ValueError: kernel.py:12: wrong index"


def test_many_calls_keep_to_what_a_target_can_work():
    def calls(ceiling):
        found, _ = trials_of(subject(softmax), "quick", ceiling=ceiling)
        return [trial.count for trial in found if isinstance(trial, ManyCalls)]

    assert calls(None) == calls(1e9) == [CALLS, 6]  # those of other lengths
    assert calls(10.0) == [4]


class Followed:
    """A judgement of a trial whose further calls are only noted, after a first one that passes, fails or is none."""

    def __init__(self, monkeypatch, trial, first="passes", beyond_grid=False, device="cpu"):
        self.asked = []
        about = replace(subject(softmax), device=device, target=f"user@{device}")
        self.j = Judgement(about, trial)
        if first == "failed":
            self.j.find(Check.VALUES, "wrong")
        self.first = None if first == "nothing" else judge._Call("inputs", "before", {"y": 1, "lse": 2}, ["emulator"])
        named = "takes_long call_again call_under_instruments check_property as_graph many_calls invalid_call"
        for name in f"{named} int64_index_output".split():
            monkeypatch.setattr(
                judge.properties if name == "check_property" else judge.calls, name, partial(self._note, name)
            )
        monkeypatch.setattr(judge.undefined, "call_otherwise", partial(self._note, "call_otherwise"))
        monkeypatch.setattr(judge, "_first_call", lambda j, late=False: self._note("late" if late else "first", j))
        monkeypatch.setattr(type(self.j.contract), "is_beyond_grid", lambda contract, case: beyond_grid)
        judge._run(self.j, trial)

    def _note(self, name, j, *given):
        assert j is self.j
        self.asked.append((name, *given))
        return self.first if name in ("first", "late") else name == "takes_long"


def test_what_each_kind_of_trial_calls(monkeypatch):
    prop, spoilt = Property("a", lambda *given: None), invalid(one_axis, ValueError, "x")
    for trial, asked in (
        (PropertyTrial(case(), prop), [("first",), ("check_property", prop, "inputs", (1, 2))]),
        (OnStream(case()), [("late",)]),
        (AsGraph(case()), [("as_graph",)]),
        (ManyCalls(case(), 4), [("many_calls", ManyCalls(case(), 4))]),
        (spoilt, [("invalid_call", spoilt.invalid)]),
        (Int64Index(case()), [("int64_index_output",)]),
    ):
        followed = Followed(monkeypatch, trial)
        assert followed.asked == asked
        assert followed.j.outcome.instruments == (["current stream"] if isinstance(trial, OnStream) else [])
    for first in ("failed", "nothing"):
        assert Followed(monkeypatch, PropertyTrial(case(), prop), first).asked == [("first",)]
    assert Followed(monkeypatch, OnStream(case()), "nothing").j.outcome.instruments == []


def test_what_follows_a_call_on_a_case(monkeypatch):
    again = ("call_again", "inputs", "before", {"y": 1, "lse": 2})
    under = ("call_under_instruments", "inputs", ["emulator"])
    otherwise = ("call_otherwise", "inputs")
    for watched, instrumented, asked in (
        (False, False, [otherwise]),
        (True, False, [again, otherwise]),
        (False, True, [under, otherwise]),
        (True, True, [again, under, otherwise]),
    ):
        trial = CaseTrial(case(), watched, instrumented)
        assert Followed(monkeypatch, trial).asked == [("first",), *asked]
        for first in ("failed", "nothing"):
            assert Followed(monkeypatch, trial, first).asked == [("first",)]


def test_a_case_with_many_rows_is_not_called_where_that_takes_long(monkeypatch):
    trial = CaseTrial(case(), True, True)
    assert Followed(monkeypatch, trial, beyond_grid=True).asked == [("takes_long",)]
    on_gpu = Followed(monkeypatch, trial, beyond_grid=True, device="cuda").asked
    assert on_gpu[0] == ("first",) and ("takes_long",) not in on_gpu


@pytest.mark.parametrize("late", [True, False])
def test_the_first_call_of_a_trial(monkeypatch, late):
    """Its buffers are looked at before and after; where there is no room for them, or it returns not, it is none."""
    manners, room = [], True
    whole = judge.call.observe_call

    def observe(j, inputs, **named):
        manners.append(named)
        if not room:
            raise layouts.NoRoom("4 GiB")
        return whole(j, inputs)

    monkeypatch.setattr(judge.call, "observe_call", observe)
    j = Judgement(subject(softmax), CaseTrial(case()))
    first = judge._first_call(j, late=late)
    assert manners == [{"late": late}] and torch.equal(first.values["y"], softmax(first.inputs.arguments["x"]))
    assert first.before.keys() == {"x"} and layouts.changed(first.inputs.placed, first.before) == []
    assert j.subject.compared["right up to"] == 1 and j.subject.passed == [j.case]
    refuses = Judgement(subject(lambda x: 1 / 0), CaseTrial(case()))
    assert judge._first_call(refuses) is None and not refuses.subject.recent
    room = False
    j = Judgement(subject(softmax), CaseTrial(case()))
    assert judge._first_call(j) is None and (j.outcome.status, j.outcome.reason) == (DECLINED, "not run: 4 GiB")


def test_after_a_context_was_lost_nothing_is_judged_on_the_gpu(monkeypatch):
    called = []
    monkeypatch.setattr(judge, "lost_context", ["an illegal memory access", "what followed"])
    fn = lambda x: called.append(x) or softmax(x)  # noqa: E731
    outcome = judge.run(replace(subject(fn), device="cuda", target="user@cuda"), CaseTrial(case()))
    (finding,) = outcome.findings
    assert finding.check == Check.CONTEXT and finding.message.endswith("since: an illegal memory access")
    assert outcome.status == FAILED and not called and finding.requirement is None
    assert judge.run(subject(fn), CaseTrial(case())).status == PASSED and called


def test_a_finding_is_held_against_what_it_is_said_to_be():
    j = Judgement(subject(softmax), CaseTrial(case()))
    j.find(Check.VALUES, "wrong", requirement=Requirement.OFFSETS)
    j.find(Check.VALUES, "wrong")
    assert [finding.requirement for finding in j.outcome.findings] == [Requirement.OFFSETS, None]
