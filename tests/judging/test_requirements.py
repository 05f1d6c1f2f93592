"""What a trial is about, and what a failure is held against: the same wrong values for different reasons."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

from touchstone import check
from touchstone.backends import NotRun, overflow
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge, requirements, special
from touchstone.conformance.judging.judgement import DECLINED, FAILED, NOT_RUN, PASSED, Judgement, Outcome
from touchstone.conformance.judging.requirements import asked, of_call, of_case, settle
from touchstone.conformance.judging.trials import (
    AsGraph,
    CaseTrial,
    Int64Index,
    InvalidCall,
    ManyCalls,
    OnStream,
    PropertyTrial,
    trials_of,
)
from touchstone.conformance.spec.cases import also_case, variants
from touchstone.conformance.spec.checks import Check, Requirement
from touchstone.conformance.spec.contract import Case


def case(dtype="float32", rows=5, cols=33, values="normal", layout="contiguous") -> Case:
    return Case("softmax", dtype, (("rows", rows), ("cols", cols)), values, (("x", layout),), (), 0)


def subject(fn, op="softmax", **about) -> Subject:
    return Subject(op, fn, "fn", "user@cpu", "cpu", **about)


def judged(fn, trial=None, **about) -> Outcome:
    return judge.run(subject(fn), trial or CaseTrial(case(**about), watched=True))


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def overflows_far_out(x):
    if x.stride(0) > 2**20:
        raise RuntimeError(f"offset 3000000000 of x is -1294967296 {overflow.OF_ACCESS}")
    return 2 * softmax(x)


def ignores_strides(x):
    return softmax(x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset()))


def swallows_nan(x):
    return softmax(x.nan_to_num(0.0))


def blamed(outcome: Outcome) -> list[str]:
    return [finding.requirement for finding in outcome.findings if finding.severity == "failure"]


@pytest.mark.parametrize(
    ("about", "requirements"),
    [
        (dict(), ["values"]),
        (dict(layout="transposed"), ["values", "layouts"]),
        (dict(values="one_nan"), ["special"]),
        (dict(values="one_nan", layout="step"), ["special", "layouts"]),
        (dict(rows=0), ["empty"]),
        (dict(layout="far0"), ["offsets"]),
    ],
)
def test_what_a_trial_is_about(about, requirements):
    outcome = judged(softmax, **about)
    assert outcome.status == PASSED
    assert outcome.requirements == requirements
    assert outcome.held == [*requirements, "determinism", "contract"]


def test_other_trials():
    contract = registry.contract("softmax")
    found, _ = trials_of(subject(softmax, own=True), "quick")
    about = {type(trial): asked(contract, trial) for trial in found}
    assert about[InvalidCall] == [Requirement.CONTRACT]
    assert about[ManyCalls] == [Requirement.DETERMINISM]
    assert about[PropertyTrial] == [Requirement.VALUES]
    of_kinds = {kind: asked(contract, kind(case())) for kind in (OnStream, AsGraph, Int64Index)}
    assert of_kinds == {
        OnStream: [Requirement.CONTRACT],
        AsGraph: [Requirement.CONTRACT],
        Int64Index: [Requirement.OFFSETS],
    }


@pytest.mark.parametrize(
    ("fn", "about", "requirement"),
    [
        (ignores_strides, dict(layout="transposed"), "layouts"),
        (ignores_strides, dict(layout="far0"), "layouts"),
        (lambda x: 2 * softmax(x), dict(layout="transposed"), "values"),
        (lambda x: 2 * softmax(x), dict(layout="far0"), "values"),
        (overflows_far_out, dict(layout="far0"), "offsets"),
        (swallows_nan, dict(values="one_nan"), "special"),
        (swallows_nan, dict(values="one_nan", layout="step"), "special"),
        (lambda x: 2 * softmax(x), dict(values="one_nan", layout="step"), "values"),
        (lambda x: x.view(-1, 0) if not x.numel() else softmax(x), dict(rows=0), "empty"),
        (lambda x: softmax(x).double(), dict(), "contract"),
        (lambda x: softmax(x).double(), dict(layout="transposed"), "contract"),
        (lambda x: x.copy_(softmax(x)), dict(), "contract"),
        (lambda x: 1 / 0, dict(layout="transposed"), "values"),
    ],
)
def test_what_a_failure_is_held_against(fn, about, requirement):
    outcome = judged(fn, **about)
    assert outcome.status == FAILED
    assert set(blamed(outcome)) == {requirement}
    assert requirement not in outcome.held


@pytest.mark.parametrize(
    ("fn", "held"),
    [
        (lambda x: x.copy_(softmax(x)), ["values"]),
        (lambda x: 2 * softmax(x), ["contract"]),
        (lambda x: softmax(x).double(), []),
        (lambda x: 1 / 0, []),
    ],
)
def test_what_holds_all_the_same_where_a_trial_fails(fn, held):
    """The values where they were compared and right, the contract where outputs came back that could be compared."""
    outcome = judged(fn)
    assert (outcome.status, outcome.held) == (FAILED, held)


def test_a_large_case_that_has_not_been_drawn_is_told_by_a_small_one_of_its_family(monkeypatch):
    softmax = registry.contract("softmax")
    least, built = tuple(softmax.sizes[0].items()), []
    contract = replace(softmax, valid=lambda case: case.sizes != least)
    nowhere = replace(softmax, valid=lambda case: False)
    contract.name = nowhere.name = "softmax"
    draw = type(softmax).build
    monkeypatch.setattr(type(softmax), "build", lambda c, case, *more: built.append(case) or draw(c, case, *more))
    monkeypatch.setattr(special, "DRAWN_WORK", softmax.work(case(rows=7)))
    large = case(values="one_nan", rows=8)
    assert of_case(contract, large) == [Requirement.SPECIAL]
    assert of_case(contract, replace(large, values="normal")) == [Requirement.VALUES]
    assert of_case(nowhere, large) == [Requirement.VALUES]
    assert len(built) == 2 and not {least, large.sizes} & {one.sizes for one in built}
    assert of_case(contract, case(values="one_nan", rows=7)) == [Requirement.SPECIAL] and len(built) == 3
    assert built[-1].size["rows"] == 7
    monkeypatch.setattr(special, "DRAWN_WORK", 0)
    single = also_case(softmax, "special_column")
    assert of_case(contract, single) == [Requirement.SPECIAL] and built[-1] == single


def test_the_values_are_those_of_the_strided_operand():
    """A kernel that fails for its values, and by chance only on these, is not accused of strides."""

    spread = {}
    for layout in ("contiguous", "transposed", "step"):
        x = registry.contract("softmax").build(case(layout=layout, rows=3, cols=33)).arguments["x"]
        spread[layout] = float(x.amax() - x.amin())
    assert len(set(spread.values())) == 3  # each case draws its own
    low = spread["transposed"] - 1e-3

    def wrong_at(x):
        return softmax(x) * (2 if low < float(x.amax() - x.amin()) < low + 2e-3 else 1)

    assert blamed(judged(wrong_at, layout="transposed", rows=3, cols=33)) == ["values"]


def test_two_different_answers_are_against_determinism():
    calls = []

    def drifts(x):
        calls.append(x)
        return softmax(x) * (1 + 1e-7 * len(calls))

    outcome = judged(drifts)
    assert [(f.check, f.severity, f.requirement) for f in outcome.findings] == [(Check.REPEAT, "note", "determinism")]
    contract = registry.contract("softmax")
    many = ManyCalls(case(rows=3), 8, variants(contract, case(rows=3)))

    def remembers():
        kept = {}
        return lambda x: kept.setdefault(x.shape, softmax(x)).clone()

    assert blamed(judge.run(subject(remembers()), many)) == ["determinism"]
    assert blamed(judge.run(subject(ignores_strides), many)) == ["layouts"]
    assert blamed(judge.run(subject(lambda x: 2 * softmax(x)), many)) == ["values"]
    norm = registry.contract("rms_norm")
    calls = next(t for t in trials_of(subject(softmax, "rms_norm"), "quick")[0] if isinstance(t, ManyCalls))
    assert norm.params["eps"][0] == 1e-6

    def fixed_eps(x, weight, *, eps):
        return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)

    assert blamed(judge.run(subject(fixed_eps, "rms_norm"), calls)) == ["values"]
    assert blamed(judge.run(subject(lambda x: softmax(x).double()), many)) == ["contract"]


def test_what_goes_wrong_with_earlier_calls_alone_is_against_determinism_in_any_layout():
    """The fifth call, in another layout, is wrong, and right when it is made again."""
    contract = registry.contract("softmax")
    many = ManyCalls(case(rows=3), 8, variants(contract, case(rows=3)))
    count = itertools.count(1)
    outcome = judge.run(subject(lambda x: softmax(x) * (2 if next(count) == 5 else 1)), many)
    assert blamed(outcome) == ["determinism"] and outcome.findings[0].message.startswith("call 5 of 8 (x ")


def test_memory_that_two_calls_share_is_against_the_contract():
    held = {}
    many = ManyCalls(case(rows=3), 5)
    outcome = judge.run(subject(lambda x: held.setdefault(0, torch.empty_like(x)).copy_(softmax(x))), many)
    assert {(f.check, f.requirement) for f in outcome.findings} == {(Check.ALIAS, "contract"), (Check.HELD, "contract")}


def test_an_operand_that_may_be_none():
    def needs_bias(x, weight, bias, *, eps=1e-5):
        return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), eps).to(x.dtype)

    contract = registry.contract("layer_norm")
    found, _ = trials_of(subject(needs_bias, "layer_norm"), "quick")
    outcomes = [judge.run(subject(needs_bias, "layer_norm"), trial) for trial in found]
    assert {each for outcome in outcomes for each in blamed(outcome)} == {"contract"}
    assert any(dict(trial.case.layouts)["bias"] == "none" for trial in found)
    assert contract.operands["bias"].layouts[1] == "none"


def test_what_is_wrong_without_an_operand_that_is_declined_is_wrong_by_its_values():
    def no_bias(x, weight, bias, *, eps=1e-5):
        if bias is not None:
            raise NotImplementedError("no bias")
        y = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], weight.float(), None, eps) * 1.5
        return y.to(x.dtype).contiguous()

    found, _ = trials_of(subject(no_bias, "layer_norm"), "quick")
    plain = [t for t in found if dict(t.case.layouts)["bias"] == "none" and t.case.filled and t.case.values == "normal"]
    outcomes = [judge.run(subject(no_bias, "layer_norm"), trial) for trial in plain]
    assert {each for outcome in outcomes for each in blamed(outcome)} == {"values"}


def test_a_kernel_that_cannot_run_is_neither_right_nor_wrong():
    def lacks(x):
        raise NotRun("libdevice.j0 is not interpreted")

    def misses(x):
        import a_package_that_is_not_there  # noqa: F401

    for fn, reason in ((lacks, "libdevice.j0 is not interpreted"), (misses, "No module named 'a_package_that_is_not_")):
        outcome = judged(fn)
        assert (outcome.status, outcome.findings, outcome.held) == (NOT_RUN, [], [])
        assert outcome.reason.startswith(reason)
        assert outcome.requirements == ["values"]
        assert judge.run(subject(fn), ManyCalls(case(), 4)).status == NOT_RUN


def test_float32_that_is_right_as_tf32_says_so():
    def cut(x):
        return (x.contiguous().view(torch.int32) & -8192).view(torch.float32)

    matmul = registry.contract("matmul")
    found, _ = trials_of(subject(torch.matmul, "matmul"), "quick")
    plain = next(
        t for t in found if t.case.dtype == "float32" and matmul.work(t.case) > 3e4 and isinstance(t, CaseTrial)
    )
    (finding,) = judge.run(subject(lambda a, b: cut(a) @ cut(b), "matmul"), plain).findings
    assert finding.passes_as == "tf32"
    assert 'compute="tf32"' in finding.diagnosis.splitlines()[0]
    wrong = judge.run(subject(lambda a, b: 1.1 * (a @ b), "matmul"), plain)
    assert wrong.findings[0].passes_as is None


def of_softmax(trial=None, **about) -> Judgement:
    return Judgement(subject(softmax, **about), trial or CaseTrial(case()))


def test_a_kernel_that_need_not_repeat_its_bits_is_not_said_to():
    for deterministic, repeated, held in (
        (True, True, ["determinism", "contract"]),
        (True, False, ["contract"]),
        (False, True, ["contract"]),
    ):
        j = of_softmax(deterministic=deterministic)
        j.reached(*["repeat"] * repeated)
        settle(j)
        assert j.outcome.held == ["values", *held]


def test_a_kernel_that_ends_its_process_is_called_no_more():
    """Nor one whose failures are not looked into: what the case shows last is what is held against it."""
    called = []
    for alone, diagnosed, again in ((True, True, True), (True, False, False), (False, True, False)):
        called.clear()
        made = subject(lambda x: called.append(x) or softmax(x), diagnosed=diagnosed)
        j = Judgement(made, CaseTrial(case(layout="transposed")))
        j.find(Check.VALUES, "y: wrong")
        j.find(Check.RAISED, "ValueError: no")
        settle(j, alone=alone)
        assert blamed(j.outcome) == ["layouts"] * 2 and len(called) == again  # both by one call


@pytest.mark.parametrize(
    ("check", "right", "as_first", "requirement"),
    [
        (Check.CONTEXT, True, False, None),
        (Check.DTYPE, True, False, "contract"),
        (Check.VALUES, True, False, "determinism"),  # right by itself
        (Check.VALUES, False, False, "determinism"),  # its values alone are blamed, which were right before
        (Check.VALUES, False, True, "values"),
        (Check.VALUES, True, True, "values"),
    ],
)
def test_what_one_of_many_calls_is_held_against(monkeypatch, check, right, as_first, requirement):
    first, other = case(), replace(case(), seed=5)
    made = first if as_first else other
    monkeypatch.setattr(requirements, "_right", lambda j, case: right)
    monkeypatch.setattr(requirements, "_blamed", lambda j, case: Requirement.VALUES)
    j = of_softmax(ManyCalls(first, 4))
    j.find(check, "wrong")
    of_call(j, j.outcome.findings, made, first)
    assert blamed(j.outcome) == [requirement]
    quiet = of_softmax(ManyCalls(first, 4), diagnosed=False)
    quiet.find(check, "wrong")
    of_call(quiet, quiet.outcome.findings, made, first)
    assert blamed(quiet.outcome) == ["determinism" if requirement == "values" else requirement]


@pytest.mark.parametrize(("anew", "requirement"), [(True, "values"), (False, "determinism"), (None, "determinism")])
def test_a_call_that_is_wrong_in_a_fresh_kernel_too_is_against_values(monkeypatch, anew, requirement):
    first = case()
    monkeypatch.setattr(requirements, "_right", lambda j, case: False)
    monkeypatch.setattr(requirements, "_blamed", lambda j, case: Requirement.VALUES)
    monkeypatch.setattr(requirements.causes, "is_wrong_anew", lambda j, case, name: anew)
    j = of_softmax(ManyCalls(first, 4))
    j.find(Check.VALUES, "wrong", about="y")
    of_call(j, j.outcome.findings, replace(first, seed=5), first)
    assert blamed(j.outcome) == [requirement]


def test_a_plainer_case_has_the_same_values(monkeypatch):
    """Contiguous operands and operands for None, of what the case itself drew; the plain family in their place last."""
    asked, wide = [], replace(case(), op="layer_norm", params=(("eps", 1e-5),))
    monkeypatch.setattr(requirements, "_right", lambda j, case, numbers=False: asked.append(case) or False)

    def of(values, x, bias):
        asked.clear()
        layouts = (("x", x), ("weight", "contiguous"), ("bias", bias))
        made = replace(wide, values=values, layouts=layouts)
        found = requirements._blamed(Judgement(subject(softmax, "layer_norm"), CaseTrial(made)), made)
        return made, found, [(dict(one.layouts)["x"], dict(one.layouts)["bias"], one.drawn_as) for one in asked]

    made, found, plainer = of("normal", "contiguous", "contiguous")
    assert (found, plainer) == (Requirement.VALUES, [])
    made, found, plainer = of("normal", "transposed", "contiguous")
    assert (found, plainer) == (Requirement.VALUES, [("contiguous", "contiguous", made.id)])
    made, found, plainer = of("normal", "contiguous", "none")
    assert (found, plainer) == (Requirement.VALUES, [("contiguous", "contiguous", made.id)])
    made, found, plainer = of("normal", "transposed", "none")
    assert plainer == [("contiguous", "none", made.id), ("contiguous", "contiguous", made.id)]
    made, found, plainer = of("one_nan", "contiguous", "contiguous")
    assert found is Requirement.VALUES and [one.values for one in asked] == ["normal"]


def entropy(values="normal", rows=130, **layout) -> Case:
    """Of so many rows with two classes some are ignored, and hold NaN."""
    layouts = tuple((name, layout.get(name, "contiguous")) for name in ("logits", "target"))
    params = (("reduction", "none"), ("ignore_index", 0), ("label_smoothing", 0.0), ("z_loss", 0.0))
    return Case("cross_entropy", "float32", (("rows", rows), ("V", 2)), values, layouts, params, 0)


def cross_entropy(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0):
    kept = target != ignore_index
    lse = torch.logsumexp(torch.where(kept[:, None], logits, 0), -1)
    assert (reduction, label_smoothing, z_loss) == ("none", 0, 0)
    return torch.where(kept, lse - logits.gather(1, target[:, None].long())[:, 0], 0)


def times_0(logits, target, **given):
    """Ignored rows are read, and multiplied by 0."""
    return cross_entropy(logits, target, **given) + 0 * logits.sum(-1) * (target == given["ignore_index"])


def counts(logits, target, **given):
    """Ignored rows are read, and count."""
    return cross_entropy(logits, target, **given) + logits.sum(-1) * (target == given["ignore_index"])


def ignores_strides_too(logits, target, **given):
    return times_0(logits.as_strided(logits.shape, (logits.shape[1], 1), logits.storage_offset()), target, **given)


@pytest.mark.parametrize(
    ("fn", "about", "blames", "held"),
    [
        (cross_entropy, dict(), set(), ["values", "special", "determinism", "contract"]),
        (cross_entropy, dict(logits="step"), set(), ["values", "special", "layouts", "determinism", "contract"]),
        (times_0, dict(), {"special"}, ["values", "contract"]),
        (times_0, dict(logits="step"), {"special"}, ["values", "contract"]),
        (ignores_strides_too, dict(), {"special"}, ["values", "contract"]),
        (counts, dict(), {"values"}, ["contract"]),
        (lambda *given, **more: 2 * cross_entropy(*given, **more), dict(), {"values"}, ["contract"]),
        (lambda *given, **more: 2 * times_0(*given, **more), dict(), {"values"}, ["contract"]),
        (lambda *given, **more: 1 / 0, dict(), {"values"}, []),
    ],
)
def test_nan_that_no_answer_depends_on_is_special_and_what_is_wrong_without_it_is_not(fn, about, blames, held):
    trial = CaseTrial(entropy(**about), watched=True)
    assert registry.contract("cross_entropy").build(trial.case).arguments["logits"].isnan().any()
    outcome = judge.run(subject(fn, "cross_entropy"), trial)
    assert set(blamed(outcome)) == blames and outcome.held == held
    assert outcome.requirements == ["values", "special", *["layouts"] * bool(about)]


def test_where_the_strides_hide_what_nan_does_the_strides_are_to_blame():
    def fn(logits, target, **given):
        return cross_entropy(logits.as_strided(logits.shape, (2, 1), logits.storage_offset()), target, **given)

    assert set(blamed(judge.run(subject(fn, "cross_entropy"), CaseTrial(entropy(logits="step"))))) == {"layouts"}


def test_integers_that_nobody_may_use_are_not_special():
    paged = registry.contract("attention_paged")
    found, _ = trials_of(subject(softmax, "attention_paged"), "quick")
    plain = next(t.case for t in found if paged.build(t.case).arguments["block_table"].max() == 2**30)
    assert special.of_case(paged, plain).besides <= {"k_cache", "v_cache"}


@pytest.mark.parametrize(
    ("off", "requirements"),
    [
        (lambda lse: 0.0, set()),
        (lambda lse: float("nan") if bool(lse.isinf().any()) else 0.0, {"special"}),
        (lambda lse: 1.0, {"values"}),
    ],
)
def test_infinities_that_follow_from_numbers_are_special(off, requirements):
    """The lse of a query without a key; with a number in its place the answer is the same."""
    op = "masked_attention_backward"
    contract = registry.contract(op)
    small = [t.case for t in trials_of(subject(softmax, op), "quick")[0] if contract.work(t.case) < special.DRAWN_WORK]
    made = next(one for one in small if one.filled and one.contiguous and special.of_case(contract, one).operands)
    assert special.of_case(contract, made) == special.Special(besides=frozenset({"lse"}))
    answers = contract.expected(contract.build(made))

    def kernel(*given, **params):
        lse = dict(zip(contract.operands, given, strict=False))["lse"]
        return [None if one is None else (one.answer + off(lse)).to(made.torch_dtype) for one in answers.values()]

    outcome = judge.run(subject(kernel, op), CaseTrial(made))
    assert set(blamed(outcome)) == requirements
    assert outcome.requirements == ["values", "special"]


@pytest.mark.parametrize(("fn", "requirement"), [(swallows_nan, "special"), (lambda x: 2 * swallows_nan(x), "values")])
def test_where_every_family_has_nan_numbers_take_its_place(monkeypatch, fn, requirement):
    contract = registry.contract("softmax")
    monkeypatch.setattr(contract, "values", dict.fromkeys(("normal", "one_nan"), contract.values["one_nan"]))
    for values in contract.values:
        made = replace(case(values=values), seed=77)  # of no other test: answers are kept by case
        assert set(blamed(judged(fn, CaseTrial(made)))) == {requirement}


@pytest.mark.parametrize("values", ["special_column", "special_row"])
def test_a_single_case_is_special_where_it_holds_nan_or_infinities(values):
    contract = registry.contract("softmax")
    single = also_case(contract, values)
    assert of_case(contract, single) == [Requirement.SPECIAL]
    assert set(blamed(judge.run(subject(swallows_nan), CaseTrial(single)))) == {"special"}


def test_a_case_is_drawn_once_to_see_what_it_holds(monkeypatch):
    """Though the smallest case of its family holds something else."""
    asked = []
    monkeypatch.setattr(special, "of_case", lambda contract, case: asked.append(case))
    assert judged(softmax, values="one_nan").requirements == ["special"] and not asked


def maximum(first_nan_is_lost=False, wrong=False):
    def reduce(x, *, function="sum"):
        if function != "max":
            least = getattr(torch, {"sum": "sum", "min": "amin"}[function])(x.float()).to(x.dtype)
            return least + 1 if wrong and bool((x > 1).all()) else least
        return x[1:].amax() if first_nan_is_lost and bool(x[0].isnan()) else x.amax()

    return reduce


@pytest.mark.parametrize(
    ("fn", "blames", "held"),
    [
        (maximum(), [], ["values", "special", "contract"]),
        (maximum(first_nan_is_lost=True), ["special"], ["values", "contract"]),
        (maximum(wrong=True), ["values"], ["contract"]),
    ],
)
def test_a_property_is_special_where_its_calls_are(fn, blames, held):
    """And of its calls the last one, with which it was broken: the least of numbers comes after NaN in the others."""
    found, _ = trials_of(subject(fn, "reduce"), "quick")
    trial = next(t for t in found if isinstance(t, PropertyTrial) and t.prop.name == "special values")
    outcome = judge.run(subject(fn, "reduce"), trial)
    assert blamed(outcome) == blames and outcome.held == held


def test_without_further_calls_nan_that_no_answer_depends_on_is_not_blamed():
    for made, requirement in ((entropy(), "values"), (entropy(logits="step"), "layouts"), (case(), "values")):
        op = made.op
        j = Judgement(subject(softmax, op, diagnosed=False), CaseTrial(made))
        j.find(Check.VALUES, "y: wrong")
        settle(j)
        assert blamed(j.outcome) == [requirement]
    j = of_softmax(CaseTrial(case(values="one_nan")), diagnosed=False)
    j.find(Check.VALUES, "y: wrong")
    settle(j)
    assert blamed(j.outcome) == ["special"]


def test_what_a_trial_was_about_is_kept_where_it_is_settled_again(monkeypatch):
    outcome = judge.run(subject(cross_entropy, "cross_entropy"), CaseTrial(entropy()))
    monkeypatch.setattr(special, "of_case", lambda *given: pytest.fail("drawn once more"))
    again = Judgement(subject(cross_entropy, "cross_entropy"), CaseTrial(entropy()), outcome)
    settle(again, alone=False)
    assert again.outcome.requirements == ["values", "special"]


def test_a_check_holds_a_far_operand_against_the_layouts():
    def told(fn):
        report = check("softmax", fn, device="cpu", level="quick", isolate="none", sizes={"cols": [33, 64, 1025]})
        return [name for name, standing in report.standing.items() if standing.failed], report.standing["offsets"].held

    def wraps(x):
        return softmax(x.contiguous() if max(x.stride()) < 2**31 / x.shape[0] else x.as_strided(x.shape, (33, 1)))

    assert told(ignores_strides) == (["layouts"], 0)
    assert told(wraps) == (["offsets"], 0)


ALONE = {
    **dict.fromkeys((Check.CONTEXT, Check.CANARY, Check.HONESTY, Check.COMPILES), None),
    **dict.fromkeys((Check.DTYPE, Check.DEVICE, Check.STRIDES, Check.ALIAS, Check.INPUTS), Requirement.CONTRACT),
    **dict.fromkeys((Check.STATE, Check.LIBRARY, Check.INVALID, Check.HELD, Check.GRAPH), Requirement.CONTRACT),
    **dict.fromkeys((Check.REPEAT, Check.UNDER), Requirement.DETERMINISM),
    Check.PROPERTY: Requirement.SPECIAL,  # what the trial is about first: its own call was right
}


@pytest.mark.parametrize("check", Check)
def test_what_each_check_is_held_against(monkeypatch, check):
    """What a check does not decide, the trial does, or a plainer case."""
    about, blame = [Requirement.SPECIAL, Requirement.LAYOUTS], lambda case: Requirement.EMPTY

    def of(trial, error=None, **given):
        j = of_softmax(trial)
        j.find(check.of("races") if check is Check.UNDER else check, "wrong", error=error, **given)
        return requirements._requirement(j, j.outcome.findings[0], about, blame)

    decided = check in ALONE
    first, invalid = case(), registry.contract("softmax").invalid[0]
    assert of(CaseTrial(first)) == ALONE.get(check, Requirement.EMPTY)
    assert of(CaseTrial(first), severity="note") == ALONE.get(check, Requirement.SPECIAL)
    assert of(ManyCalls(first, 4)) == of(Int64Index(first)) == ALONE.get(check, Requirement.SPECIAL)
    assert of(InvalidCall(first, invalid)) == (ALONE[check] if ALONE.get(check, "") is None else Requirement.CONTRACT)
    if check is Check.REPEAT:  # a second call that is wrong, not just another
        assert of(CaseTrial(first), error=2.0) == Requirement.EMPTY
    for right, said in ((True, Requirement.CONTRACT), (False, Requirement.EMPTY)):
        monkeypatch.setattr(requirements, "_right", lambda j, case, right=right: right)
        assert of(OnStream(first)) == of(AsGraph(first)) == (ALONE[check] if decided else said)


def test_what_raises_in_a_far_layout_where_integers_overflow_is_held_against_offsets():
    j = Judgement(subject(softmax), CaseTrial(case(layout="far0")))
    j.undefined = {"mine.py:3": f"int32 mul {overflow.WRAPS}: the exact 1 becomes 2"}
    j.find(Check.RAISED, "OutOfBounds: outside")
    blame = lambda case: Requirement.VALUES  # noqa: E731
    of = partial(requirements._requirement, j, j.outcome.findings[0])
    assert of([Requirement.OFFSETS], blame) is Requirement.OFFSETS
    assert of([Requirement.LAYOUTS], blame) is Requirement.VALUES
    j.undefined = {"mine.py:3": "a masked load without other"}
    assert of([Requirement.OFFSETS], blame) is Requirement.VALUES


def test_what_is_right_on_the_default_stream_alone_is_told_so(monkeypatch):
    for right, told in ((True, requirements.OTHER_STREAM), (False, "as it was")):
        monkeypatch.setattr(requirements, "_right", lambda j, case, right=right: right)
        monkeypatch.setattr(requirements, "_blamed", lambda j, case: Requirement.VALUES)
        j = of_softmax(OnStream(case()))
        j.find(Check.VALUES, "y: wrong")
        j.outcome.findings[0].diagnosis = "as it was"
        settle(j)
        assert j.outcome.findings[0].diagnosis == told


def test_an_empty_case_is_against_the_values_where_a_full_one_fails_too():
    def wrong_where_empty(x):
        return softmax(x) if x.numel() else x.view(-1, 0)

    def always_wrong(x):
        return 2 * softmax(x) if x.numel() else x.view(-1, 0)

    for fn, requirement in ((wrong_where_empty, "empty"), (always_wrong, "values")):
        assert set(blamed(judged(fn, rows=0))) == {requirement}


def wrong_without_bias(x, weight=None, bias=None, eps=1e-5):
    y = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], weight.float(), None, eps)
    return (y + 1 if bias is None else y + bias.float()).to(x.dtype)


def wrong_without_bias_at_another_eps(x, weight=None, bias=None, eps=1e-5):
    return wrong_without_bias(x, weight, bias, eps) - float(bias is None and eps == 1e-5)


@pytest.mark.parametrize(
    ("fn", "requirement"), [(wrong_without_bias, "contract"), (wrong_without_bias_at_another_eps, "values")]
)
def test_none_that_is_taken_in_a_plain_call_is_not_the_contracts(fn, requirement):
    """Where an operand that is None makes no difference in a plain call, something else of the case is to blame."""
    bare = (("x", "contiguous"), ("weight", "contiguous"), ("bias", "none"))
    made = replace(case(), op="layer_norm", layouts=bare, params=(("eps", 0.1),))
    outcome = judge.run(subject(fn, "layer_norm"), CaseTrial(made))
    assert set(blamed(outcome)) == {requirement}


@pytest.mark.parametrize(("status", "held"), [(DECLINED, []), (NOT_RUN, []), (PASSED, ["values", "contract"])])
def test_nothing_holds_in_a_trial_that_was_not_judged(status, held):
    """Though some of its calls were compared before one was declined; nor is a note of them held against anything."""
    j = of_softmax()
    j.find(Check.VALUES, "another answer", severity="note")
    j.outcome.status, j.outcome.fractions = status, {"y": 0.5}
    settle(j)
    assert j.outcome.requirements == ["values"] and j.outcome.held == held
    assert j.outcome.findings[0].requirement == ("values" if held else None)


@pytest.mark.parametrize(
    ("check", "held"),
    [
        (Check.VALUES, ["contract"]),
        (Check.RAISED, ["contract"]),
        (Check.INPUTS, ["values", "layouts"]),
        (Check.UNDER.of("races"), ["values", "layouts", "contract"]),
    ],
)
def test_wrong_values_of_strided_operands_leave_none_that_hold(monkeypatch, check, held):
    """Though only the strides are to blame: the values were wrong in this trial."""
    monkeypatch.setattr(requirements, "_blamed", lambda j, case: Requirement.LAYOUTS)
    j = Judgement(subject(softmax), CaseTrial(case(layout="transposed")))
    j.find(check, "y: not so")
    j.outcome.fractions = {"y": 0.5}
    settle(j)
    assert j.outcome.status == FAILED and j.outcome.held == held
