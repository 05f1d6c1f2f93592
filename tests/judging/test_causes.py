"""Why values are wrong, where other calls tell: of kernels that keep something, that read beside an operand, that are
wrong now and then; each question by itself."""

import contextlib
import itertools
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from touchstone import backends, check
from touchstone.conformance.discovery import importing, registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import causes, diagnosis
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.call import output_bytes
from touchstone.conformance.judging.executor import Manner
from touchstone.conformance.judging.judgement import FAILED, Judgement
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case

SOFTMAX = registry.contract("softmax")
NAN = math.nan


@pytest.fixture(autouse=True)
def _in_whatever_time_it_takes(monkeypatch):
    monkeypatch.setattr(causes, "SEARCH", 60.0)


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def case_of(op="softmax", dtype="float32", seed=0, params=(), **size):
    contract = registry.contract(op)
    case = plain_case(contract, dtype, next(iter(contract.values)), seed, size or None)
    return replace(case, params=tuple({**case.param, **dict(params)}.items()))


def judgement(fn, case, **about):
    return Judgement(Subject(case.op, fn, "fn", "user@cpu", "cpu", **about), CaseTrial(case))


def caused(fn, case, calls_before=0, **about):
    """What is said of each wrong output of the kernel's next call."""
    j = judgement(fn, case, **about)
    inputs, blocks = j.contract.build(case), output_bytes(j.contract, case)
    for _ in range(calls_before):
        j.call(j.contract.build(case).arguments)
    values = j.call(inputs.arguments, Manner(probe.PATTERNS[0], blocks), inputs.placed).values
    expected = j.contract.expected(inputs)
    verdicts = {name: compare.compare(values[name], expected[name], case.torch_dtype) for name in expected}
    assert not all(verdict.ok for verdict in verdicts.values())
    return causes.of_call(j, inputs, values, expected, verdicts, blocks, again=True)


def numbered(change, fn=softmax):
    """A kernel of which `change` makes the values of its nth call wrong."""
    count = itertools.count(1)
    return lambda *given, **named: change(fn(*given, **named), next(count))


def test_a_call_that_is_wrong_alone_is_called_so():
    told = caused(numbered(lambda y, n: 2 * y if n == 3 else y), case_of(), calls_before=2)
    assert told == {
        "y": "right in further calls with the same inputs: call 3 alone, the first of these sizes or one of many"
    }


@pytest.mark.parametrize("period", [4, 5, 40])
def test_a_period_is_found_by_further_calls(period):
    """And not taken for a first call of a new size, among which one can be wrong by chance."""
    told = caused(numbered(lambda y, n: 2 * y if n % period == 0 else y), case_of(), calls_before=period - 1)["y"]
    assert told == f"every {period}th call is wrong: this is call {period}, and call {2 * period} is too"


def test_calls_that_are_wrong_without_a_period_are_no_period():
    told = caused(numbered(lambda y, n: 2 * y if n in (3, 14) else y), case_of(), calls_before=2)["y"]
    assert "call 3 alone" in told


def test_the_first_call_of_each_size_is_wrong():
    seen = set()

    def fn(x):
        new = x.shape not in seen
        seen.add(x.shape)
        return softmax(x) * (4 if new else 1)

    assert caused(fn, case_of())["y"].startswith(
        "right in further calls with the same inputs: only the first call of a size"
    )


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda first, n: first, True),
        (lambda first, n: True, False),  # the second too
        (lambda first, n: not first, False),
        (lambda first, n: False, False),
    ],
)
def test_whether_the_first_of_two_calls_of_a_new_size_alone_is_wrong(wrong, found):
    count, seen = itertools.count(), set()

    def fn(x):
        first = x.shape not in seen
        seen.add(x.shape)
        return softmax(x) * (2 if wrong(first, next(count)) else 1)

    j = judgement(fn, case_of())
    assert causes._first_of_new_sizes(j, case_of()) is found
    assert len(j.subject.recent) == (1 if found else 4)
    assert all(case.filled and label == f"on {case.id}" for label, case in j.subject.recent)


def test_without_a_new_size_nothing_is_told_of_first_calls():
    j = judgement(softmax, case_of())
    j.subject.recent.extend(("before", case_of(**size)) for size in SOFTMAX.sizes)
    assert causes._first_of_new_sizes(j, case_of()) is None
    refuses = judgement(lambda x: 1 / 0, case_of())
    assert causes._first_of_new_sizes(refuses, case_of()) is None


def kept_by(key, of=lambda x: x):
    held = {}
    return lambda x: held.setdefault(key(x), softmax(of(x))).clone()


@pytest.mark.parametrize(
    ("fn", "kept"),
    [
        (kept_by(lambda x: x.shape), True),
        (kept_by(lambda x: str(x.tolist())), False),
        (lambda x: 2 * softmax(x), False),
        (numbered(lambda y, n: y if n < 10 else 2 * y), False),  # the first size alone
    ],
)
def test_what_is_kept_from_the_first_call_of_each_new_size(fn, kept):
    """More than one size has to say so: in one rounding can."""
    j = judgement(fn, case_of())
    told = causes.kept_from_first(j, case_of())
    assert (told is not None) == kept and (len(j.subject.recent) < 4 or not kept)
    assert told is None or told.startswith("of calls with sizes that are new to it the first is right")


def test_what_is_kept_is_asked_of_several_draws_in_each_new_size():
    """The first of them again after the others."""
    given, kept = [], kept_by(lambda x: x.shape)
    causes.kept_from_first(judgement(lambda x: given.append(x.clone()) or kept(x), case_of()), case_of())
    shapes = list(dict.fromkeys(x.shape for x in given))
    assert len(shapes) >= 2
    for shape in shapes:
        *draws, last = [x for x in given if x.shape == shape]
        assert torch.equal(draws[0], last) and len(draws) == 6
        assert len({str(x.tolist()) for x in draws}) == 6


def test_what_is_kept_in_one_size_alone_is_not_enough():
    held, sizes = {}, []

    def fn(x):
        if x.shape not in sizes and x.shape[1] > 1:  # a row of one is 1 whatever it holds
            sizes.append(x.shape)
        return held.setdefault(x.shape, softmax(x)).clone() if [x.shape] == sizes[:1] else softmax(x)

    assert causes.kept_from_first(judgement(fn, case_of(rows=2, cols=2)), case_of(rows=2, cols=2)) is None
    assert len(sizes) > 1


def test_sizes_that_are_new_and_of_little_work():
    j = judgement(softmax, case_of())
    new = list(itertools.islice(causes._of_new_sizes(j, case_of()), 3))
    assert new and all(case.filled and SOFTMAX.work(case) < causes.reading.LITTLE * 2 for case in new)
    known = [size for size in SOFTMAX.sizes if SOFTMAX.work(case_of(**size)) >= 16]
    for case in new:
        assert any({**size, name: size[name] + 1} == case.size for size in known for name in size)
    j.subject.recent.extend(("before", case) for case in new)
    assert not {case.sizes for case in itertools.islice(causes._of_new_sizes(j, case_of()), 3)} & {
        case.sizes for case in new
    }


@pytest.mark.parametrize(("work", "some"), [(15.9, False), (16, True), (1e6, True), (1e6 + 1, False)])
def test_how_much_work_a_size_has_that_is_made_new(monkeypatch, work, some):
    monkeypatch.setattr(type(SOFTMAX), "work", lambda contract, case: work)
    assert bool(list(causes._of_new_sizes(judgement(softmax, case_of()), case_of()))) == some


@pytest.mark.parametrize("op", ["elementwise", "group_norm"])
def test_sizes_of_any_number_of_axes_are_not_made_new(op):
    assert list(causes._of_new_sizes(judgement(softmax, case_of(op)), case_of(op))) == []


def test_inputs_whose_values_were_right_and_are_not_any_more():
    first = case_of(rows=2, cols=7)
    j = judgement(lambda x: 2 * softmax(x), case_of())
    assert causes._worn(j, (), 9) is None  # none was right
    j.subject.held_first.append((4, first))
    j.subject.compared["right up to"] = 7
    said = "the inputs of call 4, whose values were right, give wrong ones by now: right up to call 7, wrong from call "
    assert causes._worn(j, (), 9) == f"{said}9 on"
    assert causes._worn(j, (), 12) == f"{said}9 on"  # the first that was wrong
    right = judgement(softmax, case_of())
    right.subject.held_first.append((4, first))
    assert causes._worn(right, (), 9) is None
    gone = judgement(lambda x: 1 / 0, case_of())
    gone.subject.held_first.append((4, first))
    assert causes._worn(gone, (), 9) is None


def test_what_is_right_again_after_another_call_is_blamed_on_no_address_and_no_memory():
    kept = []

    def fn(x):
        if x.shape[0] == 2:
            kept.append(x)
        return softmax(x) if kept else softmax(x) * math.inf

    case = case_of()
    j = judgement(fn, case)
    j.subject.held_first.append((4, case_of(rows=2, cols=7)))
    inputs, blocks = j.contract.build(case), output_bytes(j.contract, case)
    values = j.call(inputs.arguments, Manner(probe.PATTERNS[0], blocks), inputs.placed).values
    expected = j.contract.expected(inputs)
    verdicts = {"y": compare.compare(values["y"], expected["y"], case.torch_dtype)}
    found = causes.of_call(j, inputs, values, expected, verdicts, blocks, again=True)
    assert found == {
        "y": "right again after another call (rows=2, cols=7): something is kept from one call to the next"
    }


def test_what_is_remembered_of_a_call():
    j, one = judgement(softmax, case_of()), {"y": torch.tensor([0.0, 1.0])}
    causes.remember(j, 3, one)
    assert j.subject.recent == [(f"on {j.case.id}", j.case)]
    assert (j.subject.passed, j.subject.held_first, j.subject.compared["right up to"]) == ([j.case], [(3, j.case)], 3)
    causes.remember(j, 4, one)
    assert j.subject.held_first == [(3, j.case)] and j.subject.compared["right up to"] == 4
    empty = judgement(softmax, case_of(rows=0, cols=5))
    for nothing in (torch.empty(0), torch.zeros(2), torch.tensor([math.nan, math.inf, 0.0])):
        causes.remember(empty, 1, {"y": nothing, "none": None})
    assert empty.subject.passed and not empty.subject.held_first and "right up to" not in empty.subject.compared
    wrong = judgement(softmax, case_of())
    wrong.outcome.status = FAILED
    causes.remember(wrong, 1, one)
    assert wrong.subject.recent and not (wrong.subject.passed or wrong.subject.held_first)
    assert "right up to" not in wrong.subject.compared
    for number in range(200 + 5):
        causes.remember(j, number, one)
    assert len(j.subject.recent) == len(j.subject.passed) == 200


def gap_of(x):
    """What lies behind the rows of a view, where there is something."""
    return x.as_strided((len(x), 1), x.stride(), x.storage_offset() + x.shape[1])


def test_an_operand_around_which_is_read():
    case = replace(case_of(rows=4, cols=9), layouts=(("x", "sliced"),))
    contract = registry.contract("softmax")
    x = contract.build(case).arguments["x"]
    assert x.stride(0) > x.shape[1]

    def reads(x):
        return softmax(x) + 0 * gap_of(x) + gap_of(x).isnan().sum()

    told = caused(reads, case)["y"]
    assert (
        told == "they depend on memory outside the view of x: what lies around it or in its gaps is read"
        or told == (diagnosis.NAN)
    )
    j = judgement(reads, case)
    values = j.call(contract.build(case).arguments).values["y"]
    bad = torch.ones(values.shape, dtype=torch.bool)
    assert causes._read_around(j, case, "y", values, bad, ()) == ["x"]
    apart = judgement(lambda x: 2 * softmax(x), case)
    values = apart.call(contract.build(case).arguments).values["y"]
    assert causes._read_around(apart, case, "y", values, bad, ()) == []


def test_what_is_kept_by_an_address_is_not_taken_for_memory_around_an_operand():
    """In the place of one of two operands, in another call's memory, whose values were others."""
    contract, kept = registry.contract("matmul"), {}
    case = case_of("matmul")
    inputs = contract.build(case)
    kept[inputs.placed["b"].view.data_ptr()] = torch.ones_like(inputs.placed["b"].view)

    def matmul(a, b):
        return a @ kept.setdefault(b.data_ptr(), b)

    j = judgement(matmul, case)
    values = j.call(inputs.arguments, placed=inputs.placed).values
    expected = contract.expected(inputs)
    verdicts = {"c": compare.compare(values["c"], expected["c"], torch.float32)}
    told = causes.of_call(j, inputs, values, expected, verdicts, output_bytes(contract, case), again=True)
    assert told["c"].startswith("right where b with the same values lies at another address: ")
    wrong = judgement(lambda a, b: a @ b * (2 + a.data_ptr() % 4093), case)
    values = wrong.call(inputs.arguments, placed=inputs.placed).values
    assert causes._of_places(wrong, inputs, "c", values["c"], values["c"] != 0, expected["c"], ()) is None


def of_nan(fn, case):
    j = judgement(fn, case)
    inputs = j.contract.build(case)
    got = j.call(inputs.arguments, placed=inputs.placed).values["y"]
    bad = torch.isnan(got)
    return causes.of_nan(j, case, "y", got, bad, j.contract.expected(inputs)["y"])


def test_nan_from_between_the_elements_of_an_operand():
    case = case_of("rms_norm", rows=5, cols=7)

    def packed(x, weight, *, eps=1e-6):
        x = torch.as_strided(x, x.shape, (x.shape[1], 1))
        return torch.nn.functional.rms_norm(x, x.shape[-1:], torch.as_strided(weight, weight.shape, (1,)), eps)

    def of(packed=packed, **layouts):
        return of_nan(
            packed, replace(case, layouts=tuple((name, layouts.get(name, kind)) for name, kind in case.layouts))
        )

    def nan_behind(x, weight, *, eps=1e-6):
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
        return y if x.is_contiguous() and weight.is_contiguous() else y * NAN

    said = "NaN around or between the elements of {} is read; strides, offset or end are not used as they are"
    assert of(nan_behind, x="step") == f"right where x is contiguous: {said.format('it')}"
    both = of(nan_behind, x="step", weight="step")
    assert both == f"right where x and weight are contiguous: {said.format('them')}"
    assert of(nan_behind, x="far0").endswith("as they are, or an offset is computed in 32 bits")

    def nan_off_16_bytes(x, weight, *, eps=1e-6):
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
        return y * NAN if x.data_ptr() % 16 else y

    assert of(nan_off_16_bytes, x="offset").startswith("right where x is at a multiple of 16 bytes: NaN around")
    assert of(lambda x, weight, *, eps: x * NAN, x="step") is None
    j = judgement(packed, case)
    number = torch.ones(5, 7)
    right = j.contract.expected(j.contract.build(case))["y"]
    assert causes.of_nan(j, case, "y", number, number > 0, right) is None


def test_nan_of_infinities():
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "partial_neg_inf", size=dict(rows=5, cols=33))
    assert bool(contract.build(case).exact["x"].isinf().any())
    told = of_nan(lambda x: torch.softmax(x, -1) + 0 * x, case)
    assert told == "right with -10000 in the place of the infinities of x: 0 * inf, or inf - inf"
    assert of_nan(lambda x: torch.softmax(x, -1) * NAN, case) is None


KEEPING = """
import torch
kept = {}
def softmax(x):
    y = torch.softmax(x, -1)
    return y * kept.setdefault(x.dtype, len(x)) / max(len(x), 1)
"""
STARTING = """
import torch
def softmax(x):
    softmax.scratch = getattr(softmax, "scratch", None)
    if softmax.scratch is None:
        softmax.scratch = torch.empty(1)
    return torch.softmax(x, -1) + softmax.scratch
"""


def kept_between(tmp_path, text, rows, earlier, **about):
    """What is said of a call with so many rows, after some others."""
    (tmp_path / "mine.py").write_text(text)
    fn, case = importing.load(tmp_path / "mine.py", "softmax"), case_of(rows=rows, cols=7)
    j = judgement(fn, case, **about)
    j.earlier = [(label, case_of(rows=rows, cols=7)) for label, rows in earlier]
    inputs = j.contract.build(case)
    for _, other in j.earlier:
        j.call(j.contract.build(other).arguments, Manner(probe.PATTERNS[0], (4,)))
    return causes.kept_between(j, inputs, "y", j.contract.expected(inputs)["y"], (4,))


def test_what_is_kept_from_one_call_to_the_next(tmp_path):
    first = "right as the first call of the kernel's file imported anew, and wrong after other calls"
    kept = "something is kept from one call to the next"
    earlier = [("on that", 3), ("on another", 5)]
    assert kept_between(tmp_path, KEEPING, 5, earlier) == f"{first}, as after a call on that (rows=3): {kept}"
    assert kept_between(tmp_path, KEEPING, 5, [("call 1", 3)]) == f"{first}, as after call 1 (rows=3): {kept}"
    assert kept_between(tmp_path, KEEPING, 3, earlier) is None  # it is right
    assert kept_between(tmp_path, KEEPING, 5, earlier, untrusted=True) is None
    assert kept_between(tmp_path, KEEPING.replace("return y", "return 2 + y"), 5, earlier) is None  # always wrong
    assert kept_between(tmp_path, STARTING, 5, earlier) == diagnosis.NOT_ZEROED


def test_a_function_that_was_not_imported_by_its_path_is_not_imported_once_more():
    assert "x" not in caused(lambda x: softmax(x) * 2, case_of())
    with pytest.raises(ImportError, match="softmax was not imported by the path of its file"):
        importing.once_more(softmax)


def test_an_import_anew_leaves_the_module_that_there_is(tmp_path):
    (tmp_path / "mine.py").write_text(KEEPING)
    fn = importing.load(tmp_path / "mine.py", "softmax")
    other, module = importing.once_more(fn), sys.modules[fn.__module__]
    assert other is not fn and module.softmax is fn and other.__globals__["kept"] is not module.kept
    (tmp_path / "mine.py").write_text("x = 1")
    with pytest.raises(ImportError, match="defines no function 'softmax'"):
        importing.once_more(fn)


def test_operands_of_their_own_dtype_and_large_ones_are_not_looked_around(monkeypatch):
    case = replace(case_of(rows=4, cols=9), layouts=(("x", "sliced"),))
    j = judgement(lambda x: softmax(x) + gap_of(x), case)
    values = j.call(SOFTMAX.build(case).arguments).values["y"]
    bad = torch.ones(values.shape, dtype=torch.bool)
    assert causes._read_around(j, case, "y", values, bad, ()) == ["x"]
    monkeypatch.setattr(causes, "SMALL", 8)
    assert causes._read_around(j, case, "y", values, bad, ()) == []


def test_operands_that_hold_the_same_numbers():
    one, nan = torch.tensor([1.0, 2.0]), torch.tensor([1.0, NAN])
    assert causes._equal(None, None) and causes._equal(one, one.clone()) and causes._equal(nan, nan.clone())
    for other in (None, one[:1], 2 * one, nan):
        assert not causes._equal(one, other) and not causes._equal(other, one)


def test_a_parameter_that_was_not_looked_at_needs_the_same_operands():
    case = case_of("layer_norm", rows=3, cols=5)
    name = "eps"
    other = replace(case, params=((name, 0.5),), drawn_as=case.id)
    j = judgement(softmax, case)
    assert causes._instead(j, other, case) == f", of {name}=0.5: it is kept, or {name} of this call not looked at"
    assert causes._instead(j, replace(other, seed=1), case) == ""
    assert causes._instead(j, replace(case, seed=1), case) == ""
    none = tuple((n, "none" if n == "bias" else layout) for n, layout in case.layouts)
    bare = replace(case, layouts=none)
    assert causes._instead(j, replace(other, layouts=none, drawn_as=bare.id), bare) != ""
    assert causes._instead(j, replace(other, layouts=none), case) == ""


def test_the_answer_of_an_earlier_call(monkeypatch):
    first, other, wide = case_of(rows=3, cols=7), case_of(seed=5, rows=3, cols=7), case_of(rows=3, cols=8)
    kept = SOFTMAX.expected(SOFTMAX.build(first))["y"].answer.float()

    def said(fn, earlier, again=True):
        j = judgement(fn, other)
        j.earlier = [(f"call {number}", case) for number, case in enumerate(earlier, 1)]
        inputs = SOFTMAX.build(other)
        values = j.call(inputs.arguments).values
        expected = SOFTMAX.expected(inputs)
        wrong = {"y": compare.compare(values["y"], expected["y"], torch.float32).bad}
        return causes._of_earlier_calls(j, other, values, wrong, expected if again else None)

    assert said(lambda x: kept.clone(), [wide, first]) == {"y": "the answer of an earlier call, call 2"}
    assert said(lambda x: kept.clone(), [first, first]) == {"y": "the answer of an earlier call, call 2"}  # the latest
    assert said(lambda x: kept.clone(), [wide, other]) == {}
    assert said(lambda x: 2 * softmax(x), [wide, first]) == {}
    count = itertools.count()
    by_chance = lambda x: 2 * softmax(x) if next(count) % 2 else kept.clone()  # noqa: E731
    assert said(by_chance, [first]) == {}  # what the next call gives is neither right nor an earlier answer
    assert said(by_chance, [first], again=False) == {"y": "the answer of an earlier call, call 1"}
    monkeypatch.setattr(causes, "tells", lambda answer, bad: False)  # it could come about otherwise
    assert said(lambda x: kept.clone(), [wide, first]) == {}


def test_of_many_earlier_calls_the_first_and_the_latest_are_looked_at():
    """Those with outputs of the same shape, the latest first."""
    cases = [case_of(seed=seed, rows=3, cols=7) for seed in range(20)]
    last = cases.pop()
    kept = [SOFTMAX.expected(SOFTMAX.build(case))["y"].answer.float() for case in cases]

    def said(at):
        j = judgement(lambda x: kept[at].clone(), last)
        j.earlier = [(f"call {number}", case) for number, case in enumerate(cases)]
        inputs = SOFTMAX.build(last)
        values = j.call(inputs.arguments).values
        wrong = {"y": compare.compare(values["y"], SOFTMAX.expected(inputs)["y"], torch.float32).bad}
        return causes._of_earlier_calls(j, last, values, wrong, None).get("y")

    told = [said(at) for at in range(19)]
    near = [*range(6), *range(19 - 6, 19)]
    assert told == [f"the answer of an earlier call, call {at}" if at in near else None for at in range(19)]


def test_which_elements_differ():
    one, bad = torch.arange(40.0), torch.zeros(40, dtype=torch.bool)
    bad[:20] = True
    few, many = one.clone(), one + 1
    few[0] = -1
    assert causes._differs(one, many, bad) and not causes._differs(one, few, bad)
    assert causes._differs(one, few, bad, most=False) and not causes._differs(one, one.clone(), bad, most=False)
    few[0], few[30] = 0.0, -1
    assert not causes._differs(one, few, bad, most=False)  # elsewhere
    assert not causes._differs(one, many.double(), bad) and not causes._differs(one, many[:4], bad)
    assert not causes._differs(one, None, bad)
    assert causes._differs(torch.zeros(3), -torch.zeros(3), torch.ones(3, dtype=torch.bool))  # bits


def test_outputs_that_go_off():
    first, bad = torch.zeros(4), torch.tensor([True, True, False, False])
    steps = [torch.tensor([n, n, 0.0, 0.0]) for n in (1.0, 2.0, 3.0)]
    assert causes._go_off(first, steps, bad)
    assert not causes._go_off(first, steps[::-1], bad) and not causes._go_off(first, [steps[0], steps[0]], bad)
    assert not causes._go_off(first, [first, steps[0]], bad)  # the second is no further than the first
    assert not causes._go_off(first, steps, ~bad)
    assert not causes._go_off(first, [*steps, steps[0] * math.inf], bad)
    assert not causes._go_off(first, [steps[0][:2]], bad) and not causes._go_off(first, [None], bad)


def test_an_output_that_drifts_does_so_in_further_calls():
    case, inputs = case_of(), SOFTMAX.build(case_of())
    bad = torch.ones(SOFTMAX.output_shape("y", case), dtype=torch.bool)
    first, made = torch.zeros(bad.shape), []
    later = [first + n for n in (1, 2, 3)]
    for change, drifts in (
        (lambda y, n: torch.full_like(y, 10.0 * n), True),
        (lambda y, n: torch.full_like(y, -1.0 if n == 4 else 10.0 * n).clamp_min(0), False),
        (lambda y, n: y if n < 3 else y[0], False),
    ):
        made.clear()
        j = judgement(numbered(lambda y, n, change=change: made.append(n) or change(y, n)), case)
        assert causes._drifts(j, inputs, "y", first, later, bad, ()) == drifts
        assert not drifts or made == [1, 2, 3, 4]
    assert not causes._drifts(j, inputs, "y", first.int(), [x.int() for x in later], bad, ())
    assert not causes._drifts(j, inputs, "y", first, later[::-1], bad, ())


def test_sums_that_begin_where_the_call_before_ended():
    answer, bad = Expected(torch.tensor([3.0, -2.0, math.inf], dtype=torch.float64)), torch.tensor([True, True, True])
    finite = torch.tensor([3.0, -2.0, 0.0])
    first = 2 * finite
    assert causes._grows(first, [3 * finite, 4 * finite], answer, bad) == [
        True,
        True,
    ]  # what has no answer does not count
    assert causes._grows(first, [3 * finite, 3 * finite], answer, bad) == [True, False]
    assert causes._grows(first, [3 * finite, None], answer, bad) == [False]
    assert causes._grows(first, [(3 * finite)[:2]], answer, bad) == [False]
    assert causes._grows(first, [3 * finite], None, bad) == [False]


def test_an_output_of_another_call_is_right_or_not():
    case = case_of(rows=2, cols=3)
    j, answer = judgement(softmax, case), SOFTMAX.expected(SOFTMAX.build(case))["y"]
    right = answer.answer.float()
    assert causes.is_right(j, case, "y", right, answer) and causes.is_right(j, case, "y", None, None)
    for got in (right * 1.1, right[:1], None, "y"):
        assert not causes.is_right(j, case, "y", got, answer)
    assert not causes.is_right(j, case, "y", right, None)


def test_a_call_on_another_case():
    case = case_of(rows=2, cols=3)
    held = torch.zeros(2, 3)
    values = causes.on_case(judgement(lambda x: held.copy_(softmax(x)), case), case)
    kept = values["y"].clone()
    held.zero_()
    assert torch.equal(values["y"], kept) and kept.sum() > 1  # a copy
    assert causes.on_case(judgement(lambda x: 1 / 0, case), case) is None
    assert causes.on_case(judgement(lambda x: (x, x), case), case) is None
    never = replace(SOFTMAX, valid=lambda case: False)
    assert causes.on_case(judgement(softmax, case), case, never) is None


@pytest.mark.parametrize(
    ("cases", "first", "wrong", "said"),
    [
        (9, 4, [4, 5, 6, 7, 8, 9], "right in the first 3 calls, wrong from call 4 on"),
        (9, 6, [6, 7, 8, 9], None),  # too few to say
        (9, 5, [5, 6, 7, 8, 9], "right in the first 4 calls, wrong from call 5 on"),
        (9, 2, [2, 4, 6, 8], "every 2th call is wrong: 2, 4, 6, 8"),
        (11, 2, [2, 4, 6, 8, 10], "every 2th call is wrong: 2, 4, 6, 8, ..."),
        (9, 2, [2, 4, 6], None),
        (9, 8, [8], None),  # too few calls behind it
        (9, 5, [5], "only call 5 of 9 is wrong"),
        (9, 2, [2, 3, 9], None),
    ],
)
def test_which_of_many_calls_are_wrong(cases, first, wrong, said):
    assert causes.of_many([case_of()] * cases, first, wrong) == said


def test_several_things_that_the_wrong_of_many_calls_have():
    plain = case_of("elementwise")
    both = replace(plain, layouts=(("a", "transposed"), ("b", "sliced")))
    one = replace(plain, layouts=(("a", "transposed"), ("b", "contiguous")))
    assert causes.of_many([plain, both, plain], 2, [2]) == "wrong in 1 of 3 calls, those with a transposed and b sliced"
    assert causes.of_many([one, both, plain], 2, [2]) == "wrong in 1 of 3 calls, those with b sliced"


def test_numbers_in_the_places_that_no_answer_depends_on():
    assert causes.of_numbers(SOFTMAX) is None
    contract = registry.contract("attention_decode")
    found = causes.of_numbers(contract)
    assert all(operand.garbage is None for operand in found.operands.values())
    assert found.operands.keys() == contract.operands.keys() and found.name == contract.name
    case = plain_case(contract, "float32", next(iter(contract.values)))
    assert contract.build(case).arguments["v"].isnan().any() and not found.build(case).arguments["v"].isnan().any()


def test_fresh_memory_of_zeros_hides_a_missing_fill():
    """A kernel that adds to memory which it has allocated is right where that holds zeros."""

    def adds(x):
        return torch.empty(x.shape).add_(softmax(x))

    case = case_of(rows=4, cols=300)
    assert caused(adds, case)["y"] == diagnosis.NOT_ZEROED
    right = SOFTMAX.expected(SOFTMAX.build(case))["y"]
    j, everywhere = judgement(adds, case), torch.ones(4, 300, dtype=torch.bool)
    good = {"y": right.answer.float()}
    assert causes._counts_on_zeros(j, case, "y", good, right, everywhere)
    assert not causes._counts_on_zeros(j, case, "y", {"y": 2 * good["y"]}, right, everywhere)
    assert not causes._counts_on_zeros(j, case, "y", {}, right, everywhere)
    assert not causes._counts_on_zeros(j, case, "y", good, None, everywhere)
    zeros = Expected(torch.zeros(4, 300, dtype=torch.float64))
    assert not causes._counts_on_zeros(j, case, "y", {"y": torch.zeros(4, 300)}, zeros, everywhere)


def test_memory_that_nothing_wrote_is_told_by_another_fill():
    case = case_of(rows=4, cols=300)

    def tail(fill):
        def fn(x):
            y = torch.empty(x.shape)
            y[:, :200] = softmax(x)[:, :200]
            return fill(y)

        return fn

    told = caused(tail(lambda y: y), case)["y"]
    assert told == "they were never written: the allocator's fill is still there"
    transposed = case_of("transpose", rows=3, cols=33)

    def bounds_not_exchanged(x):
        y, (rows, cols) = torch.empty(x.shape[1], x.shape[0]), x.shape
        for i in range(cols):
            for j in range(rows):
                if i // 16 * 16 + j % 16 < cols and j // 16 * 16 + i % 16 < rows:
                    y[i, j] = x[j, i]
        return y

    assert caused(bounds_not_exchanged, transposed)["y"] == (
        f"{told}; the bounds are those of the element whose cols and rows within a tile are exchanged (tiles of 16)"
    )
    computed = tail(lambda y: torch.where(y.isnan(), NAN, y).where(torch.arange(300) < 200, torch.tensor(NAN)))
    j = judgement(computed, case)
    got = torch.zeros(4, 300)
    got[:, 200:].view(torch.uint8).fill_(probe.PATTERNS[0])
    bad = torch.zeros(4, 300, dtype=torch.bool)
    bad[:, 200:] = True
    assert not causes._refilled(j, SOFTMAX.build(case), "y", bad, ())
    assert causes._refilled(judgement(tail(lambda y: y), case), SOFTMAX.build(case), "y", bad, (4800,))
    assert causes._refilled(judgement(lambda x: 1 / 0, case), SOFTMAX.build(case), "y", bad, ())


def test_other_values_in_each_call_are_told_and_why():
    told = caused(lambda x: softmax(x) * (1 + torch.rand(x.shape)), case_of(rows=4, cols=9))["y"]
    assert told == "other values in each call with the same inputs: a race, or memory that nothing wrote"
    unsteady = judgement(softmax, case_of(), untrusted=True)
    assert causes._unsteady(unsteady).endswith("or the library's arithmetic, which is given other numbers here")
    for about in (dict(untrusted=False), dict(untrusted=True, allow_library=True)):
        assert causes._unsteady(judgement(softmax, case_of(), **about)) == "a race, or memory that nothing wrote"


class RaceCondition(Exception):
    pass


def racing(monkeypatch, decides=lambda way, y: 2 * y if way is None else 3 * y, engine="emulator", found=True):
    """A kernel in which the order of threads decides values, on an engine that can look for races; and under which
    instruments it was called, in which sizes."""
    way, seen = [None], []

    @contextlib.contextmanager
    def instrument(name):
        way[0] = name
        yield
        way[0] = None

    offered = {name: lambda name=name: instrument(name) for name in ("reverse", "races")}
    backend = SimpleNamespace(ENGINE="emulator", instruments=lambda device: offered)
    monkeypatch.setattr(registry, "behind", lambda target: ("slate", "chalk"))
    monkeypatch.setattr(registry, "backend", lambda name: backend)

    def fn(x):
        with backends.running(engine=engine):
            seen.append((way[0], tuple(x.shape)))
            if way[0] == "races" and found:
                raise RaceCondition("k (k.cu:7): tile[0]: thread 1 reads it, thread 0 writes it at k.cu:4")
            return decides(way[0], softmax(x))

    return fn, seen


RACE = "a race: k (k.cu:7): tile[0]: thread 1 reads it, thread 0 writes it at k.cu:4"


@pytest.mark.parametrize(
    ("decides", "so"),
    [
        (lambda way, y: 2 * y if way is None else 3 * y, True),
        (lambda way, y: 2 * y, False),  # whatever the order
        (lambda way, y: NAN * y, True),  # which no order tells
        (lambda way, y: 2 * y if way is None else 1 / 0, True),  # no other order gives values
    ],
)
def test_a_race_that_decides_wrong_values_is_named(monkeypatch, decides, so):
    fn, seen = racing(monkeypatch, decides)
    told = caused(fn, case_of(rows=4, cols=9))
    assert (told.get("y") == RACE) == so
    assert [way for way, _ in seen if way] == ["races", "reverse"]  # of two languages on one engine, the first


@pytest.mark.parametrize("more", [dict(found=False), dict(engine="interpreter")])
def test_a_kernel_without_races_gets_none(monkeypatch, more):
    fn, seen = racing(monkeypatch, **more)
    assert caused(fn, case_of(rows=4, cols=9)) == {}
    assert [way for way, _ in seen if way] == (["races"] if "found" in more else [])


def test_a_race_takes_the_place_of_a_guess_alone(monkeypatch):
    fn, _ = racing(monkeypatch, lambda way, y: y * (1 + torch.rand(y.shape)))
    assert caused(fn, case_of(rows=4, cols=9))["y"] == RACE
    fn, seen = racing(monkeypatch, lambda way, y: y)
    told = caused(numbered(lambda y, n: 2 * y if n == 1 else y, fn), case_of())["y"]
    assert told.startswith("right in further calls") and not [way for way, _ in seen if way]


def test_races_are_looked_for_in_a_little_case_where_the_work_is_much(monkeypatch):
    monkeypatch.setattr(causes, "RACE_WORK", 100)
    fn, seen = racing(monkeypatch)
    case = case_of(rows=40, cols=90)
    assert caused(fn, case)["y"] == RACE
    (shape,) = {shape for way, shape in seen if way == "races"}
    assert shape != (40, 90)
    fn, seen = racing(monkeypatch, lambda way, y: 2 * y if y.shape == (40, 90) else y)
    assert caused(fn, case) == {} and not [way for way, _ in seen if way]  # none of little work is wrong


def test_races_are_looked_for_in_later_calls_once_one_is_found(monkeypatch):
    fn, _ = racing(monkeypatch)
    case = case_of(rows=4, cols=9)
    j = judgement(fn, case)
    inputs = j.contract.build(case)
    values = j.call(inputs.arguments).values
    expected = j.contract.expected(inputs)
    verdicts = {"y": compare.compare(values["y"], expected["y"], torch.float32)}

    def told(again):
        return causes.of_call(j, inputs, values, expected, verdicts, (), again)

    assert told(again=False) == {}
    assert told(again=True) == told(again=False) == {"y": RACE}
    j.subject.compared["races, ms"] = causes.RACE_MS + 1
    assert told(again=False) == told(again=True) == {}


def test_an_operand_that_the_kernel_has_written_and_reads_again():
    def told(factor):
        def fn(x):
            y = softmax(x) * factor()
            x.mul_(0.5)
            return y

        report = check("softmax", fn, device="cpu", level="quick", isolate="none", dtypes=["float32"])
        return [found.diagnosis or "" for found in report.failures if found.check == "values"]

    known = "the same ones where these are made anew: it reads what it has itself written into x"
    assert any(known in text for text in told(lambda: 2))
    assert not any(known in text for text in told(lambda: 1 + torch.rand(())))


def test_in_what_memory_and_how_often_a_kernel_is_called_again(monkeypatch):
    """Three times in memory of one byte; where it gives something else each time, once more in zeros."""
    poisons, call = [], causes._values

    def values(j, inputs, blocks, byte=0xFF):
        poisons.append(byte)
        return call(j, inputs, blocks, byte)

    monkeypatch.setattr(causes, "_values", values)
    caused(lambda x: softmax(x) * (1 + torch.rand(x.shape)), case_of(rows=4, cols=9))
    assert poisons[:4] == [0xFF, 0xFF, 0xFF, 0x00]


def test_a_kernel_that_is_wrong_in_the_same_way_each_time_has_no_cause():
    assert caused(lambda x: 2 * softmax(x), case_of(rows=4, cols=9)) == {}
    assert caused(numbered(lambda y, n: 2 * y if n < 3 else y[0]), case_of(rows=4, cols=9)) == {}  # no further calls


def decoded(change, op="attention_decode"):
    """A kernel of attention over a cache, of which `change` makes the weights (B, Hq, Sq, Sk) of its values."""

    def fn(q, k, v, lengths, *, scale=None):
        group, factor = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5 if scale is None else scale
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        seen = (torch.arange(k.shape[2]) <= (lengths[:, None] - q.shape[2] + torch.arange(q.shape[2]))[..., None])[
            :, None
        ]
        s = (factor * q @ k.mT).masked_fill(~seen, -torch.inf)
        lse = torch.logsumexp(s, -1)
        p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0)[..., None])
        return change(p, ~seen) @ v, lse

    return fn


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p, hidden: p, "with numbers in the place of NaN it is right"),
        (lambda p, hidden: p + 0.3 * hidden, "count"),  # of which zeros would hide the factor
        (lambda p, hidden: 1.4 * p, "count"),
    ],
)
def test_what_is_done_with_nan_that_is_not_to_be_read(change, said):
    case = case_of("attention_decode", B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    j = judgement(decoded(change), case)
    inputs = j.contract.build(case)
    got = j.call(inputs.arguments).values["o"]
    expected = j.contract.expected(inputs)["o"]
    bad = compare.compare(got, expected, torch.float32).bad
    told = causes.let_through(j, case, "o", got, bad, expected)
    begin = "v has NaN in rows from lengths on, on which no answer depends: they are read, and "
    assert told is not None and told.startswith(begin + said)
    assert causes.let_through(j, case, "o", got, bad, None) is None
    numbers = got.nan_to_num(7.0)
    assert causes.let_through(j, case, "o", numbers, bad, expected) is None  # it is no NaN


def test_nan_of_elements_that_are_used_is_told_where_it_is(monkeypatch):
    case = case_of("attention_decode", B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    j = judgement(decoded(lambda p, hidden: p), case)
    inputs = j.contract.build(case)
    got, expected = j.call(inputs.arguments).values["o"], j.contract.expected(inputs)["o"]
    bad, build = compare.compare(got, expected, torch.float32).bad, j.contract.build

    def with_nan(one, *device):
        """The operands as they are; what is told of them has a NaN in an element that is used."""
        found = build(one, *device)
        if not device:
            found.exact["v"][0, 0, 0, 0] = math.nan
        return found

    monkeypatch.setattr(j.contract, "build", with_nan)
    told = causes.let_through(j, case, "o", got, bad, expected)
    assert told is not None and told.startswith(
        "they depend on the NaN at one element of 432, at [0, 0, 0, 0] of v, on"
    )


def test_what_raises_once_nan_is_gone_has_no_right_answer_then():
    case = case_of("attention_decode", B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    right = decoded(lambda p, hidden: p)

    def fn(q, k, v, lengths, **params):
        if not v.isnan().any():
            raise ValueError("no NaN")
        return right(q, k, v, lengths, **params)

    j = judgement(fn, case)
    inputs = j.contract.build(case)
    got, expected = judgement(right, case).call(inputs.arguments).values["o"], j.contract.expected(inputs)["o"]
    bad = compare.compare(got, expected, torch.float32).bad
    assert causes.let_through(j, case, "o", got, bad, expected) is None


def test_nan_of_two_operands_of_which_each_alone_is_enough():
    def fn(q, k, v, lengths, *, scale=None):
        seen = (torch.arange(k.shape[2]) <= (lengths[:, None] - 1)[..., None])[:, None]
        s = q @ k.mT * q.shape[-1] ** -0.5 + torch.where(seen, 0.0, -1e30)
        return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)

    case = case_of("attention_decode", B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    j = judgement(fn, case)
    inputs = j.contract.build(case)
    got, expected = j.call(inputs.arguments).values["o"], j.contract.expected(inputs)["o"]
    bad = compare.compare(got, expected, torch.float32).bad
    told = causes.let_through(j, case, "o", got, bad, expected)
    assert told.startswith("k and v have NaN in rows from lengths on, on which no answer depends: they are read, and ")


def test_of_operands_that_have_nan_those_are_named_that_do_something():
    """Of an answer of -inf too: the log-sum-exp of rows without keys."""

    def fn(q, k, v, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None):
        s = torch.einsum("qhd,kgd->hqk", q, k)
        o = torch.einsum("hqk,kgd->qhd", torch.softmax(s, -1), v)
        return o, torch.logsumexp(s, -1)

    case = case_of("attention_varlen", N=3, Tq=8, Tk=20, Sq=3, Sk=5, Hq=1, Hkv=1, D=8)
    j = judgement(fn, case)
    inputs = j.contract.build(case)
    expected = j.contract.expected(inputs)
    assert all(bool(inputs.placed[name].view.isnan().any()) for name in "qkv")
    assert bool((expected["lse"].answer == -math.inf).any())
    for output, names in (("lse", "q and k have"), ("o", "q and k and v have")):
        got = j.call(inputs.arguments).values[output]
        bad = compare.compare(got, expected[output], torch.float32).bad
        told = causes.let_through(j, case, output, got, bad, expected[output])
        assert bool(got.isnan().all()) and told.startswith(f"{names} NaN in rows behind the last sequence, on which")


def test_nan_of_another_row_is_said_to_be_read_where_it_is():
    """A sum of each row that goes on into the next one."""

    def fn(x):
        e = torch.exp(x)
        return e / (e.sum(-1, keepdim=True) + 0.25 * e.sum(-1, keepdim=True).roll(-1, 0))

    case = replace(case_of(rows=3, cols=33), values="one_nan")
    j = judgement(fn, case)
    inputs = j.contract.build(case)
    ((row, col),) = inputs.exact["x"].isnan().nonzero().tolist()
    got, expected = j.call(inputs.arguments).values["y"], j.contract.expected(inputs)["y"]
    bad = got.isnan() & expected.answer.isfinite()
    assert causes.let_through(j, case, "y", got, bad, expected) == (
        f"they depend on the NaN at one element of 99, at [{row}, {col}] of x, on which these answers do not: it is "
        "read there"
    )


def test_nan_of_nobody_is_not_let_through():
    case = case_of("attention_decode", B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    right = decoded(lambda p, hidden: p)

    def fn(q, k, v, lengths, *, scale=None):
        o, lse = right(q, k.nan_to_num(), v.nan_to_num(), lengths, scale=scale)
        return o * NAN, lse

    j = judgement(fn, case)
    inputs = j.contract.build(case)
    got, expected = j.call(inputs.arguments).values["o"], j.contract.expected(inputs)["o"]
    assert causes.let_through(j, case, "o", got, torch.ones(got.shape, dtype=torch.bool), expected) is None


def test_an_earlier_answer_of_which_nothing_shows_is_not_named(monkeypatch):
    """Zeros come about otherwise; and an output need not have an answer in every call."""
    case, first, other = (case_of(seed=seed, rows=3, cols=7) for seed in (9, 1, 2))
    answers = {first.seed: None, other.seed: Expected(torch.zeros(3, 7, dtype=torch.float64))}
    of_seed = SimpleNamespace(
        outputs=("y",),
        build=lambda case: case,
        expected=lambda case, compute=None: {"y": answers.get(case.seed)},
        output_shape=SOFTMAX.output_shape,
    )
    j = judgement(softmax, case)
    monkeypatch.setattr(registry, "contract", lambda op: of_seed)
    j.earlier = [("call 1", first), ("call 2", other)]
    values, wrong = {"y": torch.zeros(3, 7)}, {"y": torch.ones(3, 7, dtype=torch.bool)}
    assert causes._of_earlier_calls(j, case, values, wrong, None) == {}
    values["y"] += torch.arange(1.0, 8.0)
    answers[other.seed] = Expected(values["y"].double())
    monkeypatch.setattr(causes, "_instead", lambda j, other, case: "")
    assert causes._of_earlier_calls(j, case, values, wrong, None) == {"y": "the answer of an earlier call, call 2"}


def test_where_no_further_call_can_be_made_what_is_found_is_given():
    case = case_of(rows=3, cols=7)
    inputs, expected = SOFTMAX.build(case), SOFTMAX.expected(SOFTMAX.build(case))
    made = []
    for fn, again in ((lambda x: 2 * softmax(x), False), (lambda x: 1 / 0, True)):
        made.clear()
        j = judgement(lambda x, fn=fn: made.append(1) or fn(x), case)
        values = {"y": 2 * expected["y"].answer.float()}
        verdicts = {"y": compare.compare(values["y"], expected["y"], torch.float32)}
        assert causes.of_call(j, inputs, values, expected, verdicts, (), again=again) == {}
        assert len(made) == 2 * again  # one for races


def test_a_call_that_is_wrong_alone_is_looked_for_on_a_cheap_case(monkeypatch):
    """The first that was right: of 64 calls on it none is wrong."""
    shapes, cheap, case = [], case_of(rows=2, cols=3), case_of(rows=3, cols=7)
    j = judgement(lambda x: shapes.append(tuple(x.shape)) or softmax(x), case)
    j.subject.held_first.append((1, cheap))
    monkeypatch.setattr(causes, "_first_of_new_sizes", lambda j, case: None)
    assert "call 5 alone" in causes._once(j, case, 5) and shapes == [(2, 3)] * 64
    j.subject.held_first.clear()
    assert "call 5 alone" in causes._once(j, case, 5) and shapes[-1] == (3, 7)
