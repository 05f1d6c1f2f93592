"""Which trials a kernel is given: of its kind, at its level, in its share of the work."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from tests.fixed import changeable
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.judging import trials
from touchstone.conformance.judging.trials import (
    AsGraph,
    CaseTrial,
    Compiled,
    Int64Index,
    InvalidCall,
    Kind,
    ManyCalls,
    OnStream,
    PropertyTrial,
    called_once,
    narrow,
    trials_of,
)
from touchstone.conformance.spec.cases import plain_case, plan
from touchstone.conformance.spec.contract import Property
from touchstone.conformance.spec.narrowing import EVERYTHING, Narrowing
from touchstone.conformance.spec.sharing import Share

SOFTMAX = registry.contract("softmax")


def subject(op="softmax", device="cpu", **about):
    return Subject(op, not_called, "fn", f"user@{device}", device, **about)


def of_kind(found, kind):
    return [trial for trial in found if isinstance(trial, kind)]


def many_calls(found):
    """The trials of many calls on inputs of one size."""
    return [trial for trial in of_kind(found, ManyCalls) if not trial.in_turn]


def case_of(contract=SOFTMAX, dtype="float32", size=None, **about):
    return replace(plain_case(contract, dtype, next(iter(contract.values)), size=size), **about)


def test_a_property_that_compares_bits_is_asked_of_deterministic_kernels_alone(monkeypatch):
    both = [Property("in order", lambda *given: None), Property("the same bits", lambda *given: None, bitwise=True)]
    monkeypatch.setattr(SOFTMAX, "properties", both)
    for deterministic, names in ((True, ["in order", "the same bits"]), (False, ["in order"])):
        found, _ = trials_of(subject(deterministic=deterministic), "quick")
        asked = of_kind(found, PropertyTrial)
        assert [trial.prop.name for trial in asked] == [name for name in names for _ in SOFTMAX.dtypes]
        assert [trial.case.dtype for trial in asked] == [*SOFTMAX.dtypes] * len(names)
        assert {trial.id for trial in asked} == {
            f"property-{name.replace(' ', '_')}-{dtype}" for name in names for dtype in SOFTMAX.dtypes
        }


def test_variants_are_held_to_invalid_calls_and_users_functions_are_not():
    own, _ = trials_of(subject(own=True), "quick")
    users, _ = trials_of(subject(), "quick")
    assert [trial.invalid for trial in of_kind(own, InvalidCall)] == list(SOFTMAX.invalid)
    assert SOFTMAX.invalid and not of_kind(users, InvalidCall)


@pytest.mark.parametrize(
    ("device", "level", "captures", "kinds"),
    [
        ("cpu", "thorough", True, set()),
        ("cuda", "quick", True, {OnStream}),
        ("cuda", "thorough", True, {OnStream, AsGraph, Int64Index}),
        ("cuda", "thorough", False, {OnStream, Int64Index}),
    ],
)
def test_what_takes_a_gpu(device, level, captures, kinds):
    found, _ = trials_of(subject(device=device, captures=captures), level)
    assert {type(trial) for trial in found} & {OnStream, AsGraph, Int64Index} == kinds
    for trial in of_kind(found, Int64Index):
        assert (trial.case.dtype, trial.case.size) == (SOFTMAX.int64_index.dtype, dict(SOFTMAX.int64_index.size))


def test_many_calls_are_in_one_dtype_or_in_each():
    quick, _ = trials_of(subject(), "quick")
    default, _ = trials_of(subject(), "default")
    assert [trial.case.dtype for trial in many_calls(quick)] == [SOFTMAX.dtypes[0]]
    assert [trial.case.dtype for trial in many_calls(default)] == list(SOFTMAX.dtypes)
    (one,) = many_calls(quick)
    assert (one.count, one.sized, one.id) == (50, False, f"calls-{SOFTMAX.dtypes[0]}")
    assert one.case.size == dict(SOFTMAX.sizes[0]) and one.case not in one.others and one.others


def test_calls_of_other_lengths_are_for_users_functions_and_above_level_quick():
    for own, level, dtypes in ((False, "quick", 1), (False, "default", 3), (True, "quick", 0), (True, "default", 1)):
        turned = [one for one in of_kind(trials_of(subject(own=own), level)[0], ManyCalls) if one.in_turn]
        assert len(turned) == dtypes
        for one in turned:
            assert one.id == f"calls-of_other_lengths-{one.case.dtype}" and one.count == len(one.others) == 6
            assert trials.with_few_calls(one) == one
    wide = Narrowing(where=lambda case: case.size["cols"] in (64, 50) or case == one.case)
    (left,) = narrow([one], wide)[0]
    assert [case.size["cols"] for case in left.others] == [64, 50] and left.count == 2
    assert narrow([one], Narrowing(where=lambda case: case.size["cols"] == 64 or case == one.case))[0] == []


def test_many_calls_are_as_many_as_the_ceiling_of_work_affords():
    work = SOFTMAX.work(case_of())

    def count(ceiling):
        (trial,) = many_calls(trials_of(subject(), "quick", ceiling=ceiling)[0])
        return trial.count

    assert count(1e12) == 50
    assert count(work) == 20
    assert count(1.5 * work) == 30
    assert count(work / 100) == 4


def test_a_share_has_fewer_calls_in_its_own_dtypes_and_cases():
    made = plan(SOFTMAX, "quick")
    mine = frozenset(case for case in made.cases if case.dtype == "float16")
    share = Share(dtypes=("float16",), cases=mine)
    found, plan_of = trials_of(subject(), "default", share=share)
    assert {trial.case.dtype for trial in found} == {"float16"}
    assert {trial.case for trial in of_kind(found, CaseTrial)} <= mine
    assert [trial.count for trial in many_calls(found)] == [17]
    every = trials_of(subject(), "default")[1]
    assert plan_of.elsewhere == len(every.cases) - len(plan_of.cases) > 0


def test_cases_beyond_the_ceiling_are_counted():
    works = sorted(SOFTMAX.work(case) for case in plan(SOFTMAX, "quick").cases)
    ceiling = works[len(works) // 2]
    found, made = trials_of(subject(), "quick", ceiling=ceiling)
    assert made.over_ceiling == sum(work > ceiling for work in works) > 0
    assert len(of_kind(found, CaseTrial)) == sum(work <= ceiling for work in works)


def test_a_variant_at_level_quick_takes_the_general_cases():
    made = plan(SOFTMAX, "quick")
    assert set(trials.cases_of(subject(own=True), made, "quick")) == set(made.general) < set(made.cases)
    assert set(trials.cases_of(subject(own=True), made, "default")) == set(made.cases)
    assert set(trials.cases_of(subject(), made, "quick")) == set(made.cases)


def test_single_cases_are_marked():
    contract = registry.contract("elementwise")
    found, made = trials_of(subject("elementwise"), "quick")
    cases = of_kind(found, CaseTrial)
    assert made.also and {trial.case for trial in cases if trial.single} == made.also
    assert not any(trial.instrumented or trial.watched for trial in cases if trial.single)
    assert contract.also


def test_what_is_watched():
    """All of a user's function; of a variant one case of each size, on the CPU of the sizes of least work alone."""

    def watched(**about):
        found, made = trials_of(subject(**about), "default")
        return [t.case for t in of_kind(found, CaseTrial) if t.watched], [
            c for c in made.cases if c not in made.also and not SOFTMAX.is_beyond_grid(c)
        ]

    some, every = watched()
    assert some == every
    own, every = watched(own=True, device="cuda")
    filled = {case.sizes for case in every if case.filled}
    assert len(own) == len(filled) and {case.sizes for case in own} == filled
    few, _ = watched(own=True)
    least = sorted(filled, key=lambda sizes: SOFTMAX.work(case_of(size=dict(sizes))))[:4]
    assert {case.sizes for case in few} == set(least) and len(few) == 4


def test_what_runs_under_a_targets_instruments():
    """The sizes of least work, and the longest rows of moderate work; fewer where variants share the work."""
    cases = [case for case in plan(SOFTMAX, "default").cases if not SOFTMAX.is_beyond_grid(case)]
    for shared, count in ((False, 6), (True, 3)):
        found = trials._instrumented(subject(), cases, shared)
        sizes = {case.sizes for case in found}
        filled = {case.sizes for case in cases if case.filled}
        works = {one: SOFTMAX.work(case_of(size=dict(one))) for one in filled}
        least = set(sorted(filled, key=works.__getitem__)[:count])
        longest = max((one for one in filled if works[one] <= 3e5), key=lambda one: one[-1][1])
        assert sizes == least | {longest} and len(found) == len(sizes)
        assert longest not in least
    assert trials._instrumented(subject(), [], False) == set()


def test_each_choice_of_parameters_runs_under_the_instruments_in_several_tiles():
    contract = registry.contract("reduce_rows")
    found, _ = trials.trials_of(subject("reduce_rows"), "quick")
    over = [one for one in found if isinstance(one, CaseTrial) and one.instrumented]
    over = [one.case for one in over if one.case.size == contract.over_tiles]
    chosen = [tuple(case.param.values()) for case in over]
    assert set(chosen) == set(product(*contract.params.values())) and len(chosen) == len(set(chosen))
    assert {case.values for case in over} == {"normal"}
    large = replace(contract, over_tiles=dict(rows=4099, cols=1025))
    cases = [plain_case(large, "float32", "normal", size=large.over_tiles)]
    assert trials._over_tiles(large, cases) == set() != trials._over_tiles(contract, over)


def test_above_level_quick_two_cases_of_a_size_run_under_the_instruments():
    def of_sizes(level):
        found, _ = trials.trials_of(subject(), level)
        return Counter(one.case.sizes for one in found if isinstance(one, CaseTrial) and one.instrumented)

    quick, default = of_sizes("quick"), of_sizes("default")
    assert set(quick.values()) == {1} and len(quick) == 8  # with the longest, and several tiles
    assert default.keys() >= quick.keys() and sum(count == 2 for count in default.values()) >= 6


def test_of_each_size_the_case_whose_dtype_and_parameters_were_taken_least():
    contract = registry.contract("rms_norm")
    sizes = [dict(rows=rows, cols=8) for rows in (1, 2, 3, 4)]
    cases = [
        replace(case_of(contract, dtype, size), params=(("eps", eps),))
        for size in sizes
        for dtype in ("float32", "float16")
        for eps in (1e-6, 0.5)
    ]
    empty = case_of(contract, "float32", dict(rows=0, cols=8))
    found = sorted(trials._first_of_sizes(subject("rms_norm"), [empty, *cases], None), key=lambda c: c.size["rows"])
    assert [(case.dtype, case.param["eps"]) for case in found] == [
        ("float32", 1e-6),
        ("float16", 0.5),
        ("float32", 1e-6),
        ("float16", 0.5),
    ]
    assert [c.size["rows"] for c in trials._first_of_sizes(subject("rms_norm"), cases[4:], 1)] == [2]


def test_the_length_of_a_row():
    assert trials._row(case_of(size=dict(rows=3, cols=65))) == 65
    trailing = registry.contract("elementwise")
    assert trials._row(case_of(trailing, size=dict(trailing=(2, 33)))) == 33
    assert trials._row(case_of(trailing, size=dict(trailing=()))) == 1


def test_untrusted_kernels_get_sizes_that_no_plan_has():
    found, made = trials_of(subject(untrusted=True), "quick", seed=3)
    drawn = [trial.case for trial in of_kind(found, CaseTrial) if trial.case not in made.cases]
    planned = {case.sizes for case in made.cases}
    assert len(drawn) == 2 * len(SOFTMAX.dtypes)
    assert {dtype: sum(case.dtype == dtype for case in drawn) for dtype in SOFTMAX.dtypes} == dict.fromkeys(
        SOFTMAX.dtypes, 2
    )
    assert any(case.sizes not in planned for case in drawn)
    assert all(SOFTMAX.work(case) <= 2e5 and SOFTMAX.valid(case) for case in drawn)
    again = [t.case for t in of_kind(trials_of(subject(untrusted=True), "quick", seed=3)[0], CaseTrial)]
    assert drawn == [case for case in again if case not in made.cases]
    other = [t.case for t in of_kind(trials_of(subject(untrusted=True), "quick", seed=4)[0], CaseTrial)]
    assert {case.sizes for case in other} - planned != {case.sizes for case in drawn} - planned
    plain, _ = trials_of(subject(), "quick", seed=3)
    assert {t.case for t in of_kind(plain, CaseTrial)} == set(made.cases)
    assert trials._of_drawn_sizes(SOFTMAX, [], 3) == []


def test_a_size_that_is_drawn():
    draw = random.Random(0)
    found = [trials._other(5, draw) for _ in range(400)]
    assert (min(found), max(found)) == (1, 11)
    assert all(1 <= n <= 2 * m + 1 for m, n in zip((3, 4), trials._other((3, 4), draw), strict=True))


def test_the_plainest_case_that_a_narrowing_leaves():
    def plainest(narrowing, ceiling=None):
        return trials._plainest(SOFTMAX, "float32", 0, ceiling, narrowing).size

    assert plainest(EVERYTHING) == dict(SOFTMAX.sizes[0])
    wide = Narrowing(where=lambda case: case.size["cols"] > 100)
    works = {SOFTMAX.work(case_of(size=size)): size for size in SOFTMAX.sizes if size["cols"] > 100 and size["rows"]}
    assert plainest(wide) == dict(works[min(works)])
    assert plainest(wide, min(works)) == dict(works[min(works)])
    assert plainest(wide, min(works) - 1) == dict(SOFTMAX.sizes[0])
    assert plainest(Narrowing(where=lambda case: False)) == dict(SOFTMAX.sizes[0])


def test_many_calls_are_made_of_a_case_that_a_narrowing_leaves():
    narrowing = Narrowing(where=lambda case: case.size["cols"] > 100 or case.dtype == "float16")
    found, _ = trials_of(subject(), "quick", narrowing=narrowing)
    (many,) = many_calls(found)
    assert many.sized and not narrowing.leaves_out(many.case) and many.case.dtype == SOFTMAX.dtypes[0]
    found, _ = trials_of(subject(), "quick", narrowing=Narrowing(dtypes=["float16"]))
    assert [(trial.case.dtype, trial.sized) for trial in many_calls(found)] == [("float16", False)]


def test_a_narrowing_leaves_trials_out_and_says_by_what():
    found, _ = trials_of(subject(), "default")
    kept, left_out = narrow(found, Narrowing(dtypes=["float16"], where=lambda case: case.size["cols"] < 100))
    assert {trial.case.dtype for trial in kept} == {"float16"} and all(t.case.size["cols"] < 100 for t in kept)
    narrow_ones = [trial for trial in found if trial.case.dtype == "float16"]
    wide = sum(trial.case.size["cols"] >= 100 for trial in narrow_ones)
    assert left_out == {"left out by dtypes": len(found) - len(narrow_ones), "left out by where": wide}
    assert narrow(found, EVERYTHING) == (found, {})


def test_many_calls_keep_what_of_them_a_narrowing_leaves():
    many = ManyCalls(case_of(), 5, (case_of(layouts=(("x", "transposed"),)), case_of(layouts=(("x", "sliced"),))))
    (kept,), left_out = narrow([many], Narrowing(where=lambda case: case.layout["x"] != "sliced"))
    assert kept == replace(many, others=many.others[:1]) and left_out == {}


def test_a_property_is_left_out_with_the_case_on_which_it_calls():
    elsewhere = Property("elsewhere", lambda *given: None, elsewhere=lambda case: replace(case, dtype="float16"))
    trial = PropertyTrial(case_of(), elsewhere)
    assert narrow([trial], Narrowing(dtypes=["float32"])) == ([], {"left out by dtypes": 1})
    assert narrow([trial], Narrowing(dtypes=["float16"])) == ([], {"left out by dtypes": 1})
    assert narrow([trial], Narrowing(dtypes=["float32", "float16"])) == ([trial], {})
    plain = PropertyTrial(case_of(), Property("plain", lambda *given: None))
    assert narrow([plain], Narrowing(dtypes=["float32"])) == ([plain], {})


def test_further_calls_are_dropped():
    case = case_of()
    whole = CaseTrial(case, watched=True, instrumented=True, single=True)
    assert called_once(whole) == CaseTrial(case, single=True)
    many = ManyCalls(case, 5)
    assert called_once(many) is many
    assert whole.id == case.id and ManyCalls(case, 5, sized=True).id == "calls-float32-3x33"
    assert (whole.kind, many.kind) == (Kind.CASE, Kind.CALLS)


def test_sizes_of_which_the_mathematics_give_nothing_are_not_drawn(monkeypatch):
    """As where one size has to be a multiple of another."""
    whole, asked = SOFTMAX.expect, []

    def expect(exact, params, **named):
        asked.append(len(exact["x"]))
        if len(exact["x"]) % 2:
            raise ValueError("rows are even")
        return whole(exact, params, **named)

    monkeypatch.setattr(SOFTMAX, "expect", expect)
    found = trials._of_drawn_sizes(SOFTMAX, [case_of(size=dict(rows=4, cols=5))], 3)
    assert any(rows % 2 for rows in asked) and found and all(case.size["rows"] % 2 == 0 for case in found)


def test_a_size_of_just_so_much_work_runs_under_instruments_besides(monkeypatch):
    monkeypatch.setattr(trials, "INSTRUMENTED_SIZES", 1)
    short, long = (case_of(size=dict(rows=2, cols=cols)) for cols in (3, 90))
    for limit, cases in ((SOFTMAX.work(long), {short, long}), (SOFTMAX.work(long) - 1, {short})):
        monkeypatch.setattr(trials, "INSTRUMENTED_WORK", limit)
        assert trials._instrumented(subject(), [short, long], False) == cases


def test_equal_trials_are_one_in_a_set():
    """Of every kind; what is known of one is kept by it."""
    prop, invalid = Property("in order", lambda *given: None), SOFTMAX.invalid[0]

    def made(seed=0):
        case = case_of(seed=seed)
        return [
            CaseTrial(case),
            PropertyTrial(case, prop),
            InvalidCall(case, invalid),
            ManyCalls(case, 3, (case,)),
            OnStream(case),
            AsGraph(case),
            Int64Index(case),
            Compiled(case, (case,), "a backend"),
        ]

    assert set(made()) == set(made()) and len({*made(), *made(seed=1)}) == 16
    assert {type(trial) for trial in made()} == set(get_args(trials.Trial))


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(CaseTrial, PropertyTrial, InvalidCall, ManyCalls, OnStream, AsGraph, Int64Index, Compiled) == []


@pytest.mark.parametrize(("work", "found"), [(2e5, True), (2e5 + 1, False)])
def test_sizes_are_drawn_sixty_times_at_most(monkeypatch, work, found):
    """Until there are two of a dtype, of no more work than that."""
    drawn, plain = [], trials.plain_case
    monkeypatch.setattr(type(SOFTMAX), "work", lambda contract, case: work)
    monkeypatch.setattr(trials, "plain_case", lambda *given: drawn.append(given) or plain(*given))
    cases = trials._of_drawn_sizes(SOFTMAX, [case_of(size=dict(rows=4, cols=5))], 3)
    assert len(cases) == (2 * len(SOFTMAX.dtypes) if found else 0) and (len(drawn) < 60 if found else len(drawn) == 60)
