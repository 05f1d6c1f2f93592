"""What a diagnosis says of wrong answers whose cause is known, heat maps, and who wrote an element."""

import contextlib
import itertools
import math
import sys
import time
import types
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.faults import Planted
from touchstone.conformance.judging import diagnosis, heatmap
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.executor import InProcess, _address, _index, _writer
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.attention_decode import torch_attention_decode

SOFTMAX = registry.contract("softmax")


def case_of(rows=3, cols=65, dtype="float32", values="normal", op="softmax"):
    return plain_case(registry.contract(op), dtype, values, size=dict(rows=rows, cols=cols))


def diagnose(fn, case, **options):
    """The diagnosis of a function of softmax's signature on one case, of all its outputs."""
    contract = registry.contract(case.op)
    got = contract.by_name(contract.call(fn, contract.build(case).arguments))
    expected = contract.expected(contract.build(case))
    verdicts = {
        name: compare.compare(tensor, expected[name], case.torch_dtype, diagnosis.exact(contract, case, name))
        for name, tensor in got.items()
    }
    texts = diagnosis.diagnose(contract, case, got, expected, verdicts, **{"seconds": 20.0, **options})
    return "\n".join(texts.values())


def softmax(x):
    return torch.softmax(x.double(), -1).to(x.dtype)


def marked(shape, *index):
    bad = torch.zeros(shape, dtype=torch.bool)
    for where in index:
        bad[where] = True
    return bad


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (torch.ones(3, 5, dtype=torch.bool), "everything"),
        (
            marked((37, 20), slice(32, 37)),
            "rows from 32 on, the last 5 of 37 (the overhang of tiles of 8 to 32), all cols",
        ),
        (marked((37, 20), slice(3, 7)), "rows 3..6 of 37, all cols"),
        (marked((4, 5003), (..., slice(1024, None))), "cols from 1024 on, the last 3979 of 5003, all rows"),
        (marked((4, 65), (..., 64)), "cols 64 of 65, the last (the overhang of tiles of 2 to 64), all rows"),
        (marked((4, 65), (0, ...)), "rows 0 of 4, the first, all cols"),
        (marked((4, 65), (..., slice(1, None, 2))), "every second of 65 cols, from 1, all rows"),
        (marked((2, 64), (..., slice(0, 8)), (..., slice(32, 40))), "cols 0..7, 32..39 (16 of 64), all rows"),
        (
            marked((2, 150), *((..., slice(i, i + 13)) for i in (0, 64, 128))),
            "cols 0..12 of every 64 (39 of 150), all rows",
        ),
        (
            marked((5, 6555), (4, slice(6547, None))),  # 32767 in front
            "rows 4 of 5, the last, cols from 6547 on, the last 8 of 6555",
        ),
        (
            marked((5, 6555), (4, slice(6548, None))),
            "rows 4 of 5, the last, cols from 6548 on, the last 7 of 6555: the last 7 in memory order (the overhang of "
            "tiles of 8 to 4096)",
        ),
        (marked((9, 9), (2, 3)), "one element of 81, at [2, 3]"),
        (~marked((40, 50), (slice(0, 32), slice(0, 32))), "everything but rows 0..31 of 40, cols 0..31 of 50"),
        (marked((1, 64), (0, slice(0, 64, 3))), "every third of 64 cols, from 0"),
        (marked((9, 7), *((i // 7, i % 7) for i in range(0, 63, 4))), "every fourth element in memory order, from 0"),
        (marked((50, 50), *((i, i) for i in range(50))), "50 of 2500 elements, scattered over all rows, all cols"),
        (~marked((6, 8), (1, 1), (2, 5)), "most of all rows, all cols (46 of 48)"),
        (~marked((40, 50), (1, 1), (2, 5)), "everything but 2 of 2000 elements"),
        (~marked((40, 50), (1, slice(3, 5))), "everything but 2 of 2000 elements"),  # beside each other by chance
        (~marked((40, 50), (1, 3)), "everything but one element of 2000, at [1, 3]"),
        (~marked((40, 50), (1, slice(3, 7))), "everything but rows 1 of 40, cols 3..6 of 50"),
        (~marked((40, 50), (1, slice(3, 7)), (5, 30)), "everything but 5 of 2000 elements"),
        (~marked((3, 500), (..., 7)), "cols 0..6, 8..499 (499 of 500), all rows"),
        (~marked((3, 500), (..., 7), (1, 9)), "most of cols 0..6, 8..499 (499 of 500), all rows (1496 of 1497)"),
        (~marked((1, 500), (0, 7)), "cols 0..6, 8..499 (499 of 500)"),
    ],
)
def test_regions(bad, text):
    if text.startswith("50 of"):
        bad[0, 7] = bad[7, 0] = True
        text = text.replace("50 of 2500", "52 of 2500")
    assert diagnosis.region(bad, ("rows", "cols")) == text


def relation(change, shape=(6, 8), case=None, axes=("rows", "cols")):
    """What is said of the answer 1..n after `change`."""
    case = case or case_of(*shape)
    answer = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64).reshape(shape) ** 1.5
    expected, got = Expected(answer), change(answer).float()
    bad = compare.compare(got, expected, torch.float32).bad
    assert bad is not None
    return diagnosis.related(got, expected, case, bad, axes, False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda y: y * math.log(2), "0.6931 x the answer (ln 2)"),
        (lambda y: y / math.log(2), "1.443 x the answer (1/ln 2)"),
        (lambda y: -y, "-1 x the answer (-1)"),
        (lambda y: y * 2, "2 x the answer (2)"),
        (lambda y: y * 8, "8 x the answer (cols)"),
        (lambda y: y / math.sqrt(6), "0.4082 x the answer (1/sqrt(rows))"),
        (lambda y: y * 1.23, "1.23 x the answer"),
        (lambda y: y * 1.015, "1.015 x the answer"),
        (lambda y: y * 1.005, "(1 +0.005) x the answer"),
        (lambda y: y + math.log(2), "the answer +0.6931 (ln 2)"),
        (lambda y: y - 7.25, "the answer -7.25"),
        (lambda y: y * torch.arange(2.0, 8.0)[:, None], "each row is a factor of its own times the answer, 2 to 7"),
        (lambda y: y + torch.arange(5.0, 11.0)[:, None], "each row is the answer plus a number of its own, 5 to 10"),
        (lambda y: y.mT.reshape(y.shape), "the answer with rows and cols swapped in memory"),
        (lambda y: y.roll(1, 1), "the answer moved by +1 along cols"),
        (lambda y: y.roll(-1, 0), "the answer moved by -1 along rows"),
        (lambda y: y.flip(0), "the answer reversed along rows"),
        (lambda y: y[:, [1, 0, 3, 2, 5, 4, 7, 6]], "the answer with each two neighbours along cols swapped"),
        (lambda y: y.roll(4, 1), "the answer with both halves along cols swapped"),
        (lambda y: y[:, [1, 0, 3, 2, 5, 4, 6, 7]], "the answer's values in another order"),
        (lambda y: y * (1 - 3e-4), "(1 -0.0003) x the answer"),
        (lambda y: y.reshape(-1).roll(13).reshape(y.shape), "the answer's values in another order"),
        (torch.zeros_like, "all 0 there"),
        (lambda y: y * math.nan, diagnosis.NAN),
        (lambda y: y * math.inf, "infinite there: an overflow, or a division by 0"),
        (lambda y: y * -math.inf, diagnosis.LOG_OF_0),
        (lambda y: y * torch.tensor([math.inf, -math.inf] * 4), "infinite there: an overflow, or a division by 0"),
        (lambda y: y.sin(), None),
        (lambda y: y * (1 + 3e-7), None),
        (lambda y: y * (1 + 7e-7), None),
    ],
)
def test_relations(change, text):
    assert relation(change) == text


def test_an_infinity_of_the_other_sign():
    expected, got = Expected(torch.tensor([1.0, -math.inf]).double()), torch.tensor([1.0, math.inf])
    bad = torch.tensor([False, True])
    assert diagnosis.related(got, expected, case_of(1, 2), bad, ("cols",), False) == diagnosis.OTHER_SIGN


def test_an_overhang_that_cases_that_pass_have_too_is_not_named():
    case = case_of(5, 37)
    text = "rows 4 of 5, the last, cols from 32 on, the last 5 of 37 (the overhang of tiles of {})"
    for cols, left in ((64, "8 to 32"), (15, "16 to 32"), (31, "32"), (65, None)):
        passed = plain_case(registry.contract("softmax"), "float32", "normal", size=dict(rows=5, cols=cols))
        found = diagnosis.without_refuted(text.format("8 to 32"), case, [passed])
        assert found == (text.format(left) if left else text.partition(" (the")[0])
        assert diagnosis.without_refuted(found, case, [replace(passed, dtype="float16")]) == found


@pytest.mark.parametrize(
    ("answer", "change", "said"),
    [
        (torch.ones(20), lambda y: 0 * y, True),
        (torch.ones(20), lambda y: y * math.nan, True),
        (torch.ones(20), lambda y: y * torch.linspace(2, 3, 5), False),  # numbers that something was computed to
        (torch.zeros(20), lambda y: y + 1, True),  # all are alike
        (torch.tensor([1.0] * 15 + [0.0] * 5), lambda y: y + 1, False),  # where the values put what is special
        (torch.tensor([1.0] * 15 + [math.nan] * 5), lambda y: torch.zeros(5), False),
        (torch.tensor([math.nan] + [1.0] * 14 + [math.nan] * 5), lambda y: torch.zeros(5), True),
    ],
)
def test_an_overhang_is_what_was_left_out(answer, change, said):
    got, bad = answer.clone(), torch.arange(20) >= 15
    got[15:] = change(answer[15:])
    assert diagnosis.is_left_out(Expected(answer.double()), got, bad) == said


def test_nan_that_a_conversion_makes_is_no_memory_that_nothing_wrote():
    """torch's vectorised conversion to bfloat16 makes the NaN of all ones of every other, as fresh memory holds it."""
    answer, got = torch.ones(3, 80, dtype=torch.float64), (torch.zeros(3, 80) / 0).bfloat16()
    case, bad = replace(case_of(3, 80), dtype="bfloat16"), torch.ones(3, 80, dtype=torch.bool)
    assert diagnosis.related(got, Expected(answer), case, bad, ["rows", "cols"], False) == diagnosis.NAN


def test_zeros_at_other_places():
    answer = torch.tensor([[1.5, 0.0, 2.5, 0.0], [0.0, 3.5, 0.0, 4.5]], dtype=torch.float64).repeat(1, 4)
    got, expected = answer.roll(1, 1).float(), Expected(answer)
    bad = compare.compare(got, expected, torch.float32).bad
    said = diagnosis.related(got, expected, case_of(2, 4), bad, ["rows", "cols"], False)
    few = diagnosis.related(got[:, :4], Expected(answer[:, :4]), case_of(2, 4), bad[:, :4], ["rows", "cols"], False)
    assert "mask" not in (few or "")
    assert said == "0 where the answer is not, and not 0 where it is: another mask, or another index into it"


@pytest.mark.parametrize("byte", probe.PATTERNS)
def test_what_was_never_written(byte):
    def tail_left(y):
        y = y.float()
        y[:, 4:].view(torch.uint8).fill_(byte)
        return y

    assert relation(tail_left) == "they were never written, or added to: the allocator's fill is still there"


def test_a_constant_of_the_parameters():
    contract = registry.contract("rms_norm")
    case = plain_case(contract, "float32", "normal", size=dict(rows=6, cols=8))
    case = type(case)(**{**vars(case), "params": (("eps", 0.1),)})
    assert relation(lambda y: y * 10, case=case) == "10 x the answer (1/eps)"


def test_rows_of_three_have_no_factors_of_their_own():
    def rows(y):
        return y * torch.arange(2.0, 2.0 + len(y))[:, None]

    assert relation(rows, shape=(12, 3)) is None
    assert relation(rows, shape=(12, 4)) == "each row is a factor of its own times the answer, 2 to 13"
    assert relation(rows, shape=(2, 4)) is not None and relation(rows, shape=(1, 7)) == "2 x the answer (2)"


def test_what_a_mutant_explains_is_not_called_right_in_a_lower_precision():
    told = diagnose(lambda x: softmax(x) * 1.005, case_of(), lower="tf32")
    assert "mutant half_percent" in told and "tf32" not in told
    assert "right as tf32: " in diagnose(lambda x: softmax(x) * 1.005, case_of(), lower="tf32", mutants=[])


def test_the_kernel_is_called_once_on_each_case():
    case, calls = case_of(), []

    def call(other):
        calls.append(other)
        return {"y": softmax(SOFTMAX.build(other).arguments["x"]) * 1.005}

    assert "half_percent" in diagnose(lambda x: softmax(x) * 1.005, case, call=call)
    assert calls and len(calls) == len(set(calls))


def test_the_kernel_is_called_once_on_what_two_outputs_ask_of_it():
    """Whether each is right in float32."""
    case, calls, contract = case_of(4, 33, "bfloat16", op="online_softmax"), [], registry.contract("online_softmax")

    def wrong(x):
        return softmax(x / 2), torch.logsumexp(x.double() / 2, -1).float()

    def call(other):
        calls.append(other)
        return contract.by_name(contract.call(wrong, contract.build(other).arguments))

    said = diagnose(wrong, case, call=call)
    assert "y: wrong" in said and "lse: wrong" in said
    assert [other.dtype for other in calls] == ["float32"]


def test_too_few_elements_tell_no_factor():
    assert relation(lambda y: torch.where(y > y.max() - 1, 3 * y, y)) is None


def test_axes_of_any_number():
    assert diagnosis.axis_names("N C ...", 5) == ["N", "C", "axis 2", "axis 3", "axis 4"]
    assert diagnosis.axis_names("N C ...", 2) == ["N", "C"]
    assert diagnosis.axis_names("rows", 1) == ["rows"]


def test_a_mutant_is_named():
    def no_maximum(x):
        e = x.float().exp()
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)

    text = diagnose(no_maximum, case_of(values="large"))
    assert text.startswith("equals the reference, but ")
    assert "(mutant no_maximum)" in text.splitlines()[0]
    assert text.splitlines()[1] == "y: wrong: everything"


def test_the_ops_own_faults_are_named_before_generic_ones():
    def half_too_much(x):
        return softmax(x) * 1.005

    (line,) = [line for line in diagnose(half_too_much, case_of()).splitlines() if "(mutant " in line]
    assert line == "equals the reference, but the result is 0.5 % too large (mutant half_percent)"
    own, general = (
        Planted("softmax", name, "x", "scale", lambda: half_too_much, generic=name == "half_percent")
        for name in ("my_own", "half_percent")
    )
    found = matches(half_too_much, [general, own])
    assert [mutant.name for mutant in found] == ["my_own", "half_percent"]


def matches(fn, mutants, case=None, seconds=20.0):
    case = case or case_of()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "planted", lambda op: mutants)
        got = {"y": fn(SOFTMAX.build(case).arguments["x"])}
        expected = SOFTMAX.expected(SOFTMAX.build(case))
        verdicts = {"y": compare.compare(got["y"], expected["y"], case.torch_dtype)}
        return diagnosis.matching_mutants(SOFTMAX, case, got, expected, verdicts, seconds).get("y", [])


def planted(name, fn, kind="scale", **options):
    return Planted("softmax", name, name, kind, lambda: fn, **options)


def test_which_faults_match():
    def wrong(x):
        return softmax(x) * 1.5

    mutants = [
        planted("right", softmax),
        planted("other", lambda x: softmax(x) * 1.4),
        planted("same", lambda x: softmax(x) * 1.5),
        planted("a_control", wrong, kind="known-good"),
        planted("writes", wrong, kind="mutation"),
        planted("in_half", wrong, dtypes=("float16",)),
        planted("a_kernel", wrong, backend="somewhere"),
        planted("raises", lambda x: 1 / 0),
        planted("another_shape", lambda x: wrong(x)[0]),
        planted("nothing", lambda x: None),
        planted("more", lambda x: (wrong(x), wrong(x))),
    ]
    assert [mutant.name for mutant in matches(wrong, mutants)] == ["same"]
    assert matches(lambda x: softmax(x) * 1.6, mutants) == []


def test_at_most_three_are_named_and_the_closest_first():
    near = [planted(f"near{i}", lambda x, i=i: softmax(x) * (1.5 + 2e-8 * i)) for i in (4, 1, 3, 2)]

    def wrong(x):
        return (torch.softmax(x.double(), -1) * 1.5).float()

    assert matches(wrong, near)[0].name == "near1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "planted", lambda op: near)
        assert diagnose(wrong, case_of()).count("(mutant near") == 3


def of_two_outputs(y_by, lse_by, case, kind="scale"):
    """The mutants of a kind that match the outputs of a softmax with the logarithm of its sum."""
    contract = registry.contract("online_softmax")
    inputs, mutants = contract.build(case), []

    def fn(y_by, lse_by):
        return lambda x: (torch.softmax(x, -1) * y_by, torch.logsumexp(x, -1) + lse_by)

    for name, by in {"both": (1.5, 1.0), "y_alone": (1.5, 0.0), "lse_otherwise": (1.5, 2.0)}.items():
        mutants.append(Planted("online_softmax", name, name, kind, lambda by=by: fn(*by)))
    got = contract.by_name(fn(y_by, lse_by)(inputs.arguments["x"]))
    expected = contract.expected(inputs)
    verdicts = {n: compare.compare(got[n], e, case.torch_dtype) for n, e in expected.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "planted", lambda op: mutants)
        found = diagnosis.matching_mutants(contract, case, got, expected, verdicts, 20.0)
    return {name: sorted(m.name for m in mutants) for name, mutants in found.items()}


def test_what_a_mutant_makes_of_a_right_output_of_the_same_rows_has_to_be_right():
    case = case_of(op="online_softmax")
    assert of_two_outputs(1.5, 1.0, case) == {"y": ["both"], "lse": ["both"]}
    assert of_two_outputs(1.5, 0.0, case) == {"y": ["y_alone"]}
    assert of_two_outputs(1.5, 3.0, case)["y"] == ["y_alone"]  # which has the other one right
    assert of_two_outputs(1.25, 2.0, case) == {"y": [], "lse": []}  # y is neither right nor as it is
    assert of_two_outputs(math.nan, 2.0, case) == {"y": [], "lse": ["lse_otherwise"]}  # NaN has ways of its own
    assert of_two_outputs(1.25, 2.0, case, "precision") == {"y": [], "lse": ["lse_otherwise"]}  # and so has rounding
    assert of_two_outputs(1.0, 1.0, case) == {"lse": []}


def test_mutants_are_told_apart_in_other_families_of_values():
    """One that is wrong where the kernel is right is none, whatever else is known of it."""
    case = case_of(3, 65)

    def at_most(limit):
        return lambda x: softmax(x) * torch.where(x.abs().amax() > limit, 2.0, 1.0 if limit else 2.0)

    def told(kernel, names, seconds=20.0):
        mutants = [planted(name, fn) for name, fn in names.items()]

        def call(other):
            return {"y": kernel(SOFTMAX.build(other).arguments["x"])}

        found = diagnosis.told_by_families(SOFTMAX, case, {"y": mutants}, call, seconds)
        return [mutant.name for mutant in found["y"]]

    never, large, always = softmax, at_most(20.0), at_most(0.0)
    assert told(never, {"always": always}) == []
    assert told(large, {"large": large, "always": always}) == ["large"]
    assert told(large, {"large": large, "always": always}, seconds=-1.0) == ["large", "always"]
    assert told(always, {"large": large, "always": always}) == ["always"]
    assert told(lambda x: 3 * softmax(x), {"large": large, "always": always}) == ["large", "always"]


def test_what_explains_one_special_value_explains_the_others(monkeypatch):
    """Softmax of a row of -inf is uniform where -inf is a number, which keeps NaN, and where NaN counts as 0."""
    case = plain_case(SOFTMAX, "float32", "row_of_neg_inf", size=dict(rows=3, cols=65))

    def sentinel(x):
        return softmax(x.clamp_min(-1e30))

    def nan_is_0(x):
        e = (x - x.nan_to_num(-math.inf).amax(-1, keepdim=True)).nan_to_num(0.0).exp()
        return e / e.sum(-1, keepdim=True)

    def told(kernel, values="row_of_neg_inf"):
        def call(other):
            return {"y": kernel(SOFTMAX.build(other).arguments["x"])}

        mutants = {"y": [planted("sentinel", sentinel)]}
        return diagnosis.told_by_families(SOFTMAX, replace(case, values=values), mutants, call, 20.0)["y"]

    assert [mutant.name for mutant in told(sentinel)] == ["sentinel"]
    assert told(nan_is_0) == []
    assert [mutant.name for mutant in told(lambda x: softmax(x) * 2, "normal")] == ["sentinel"]


def test_of_several_mutants_those_that_cases_of_another_dtype_refute_come_off():
    case = case_of()
    got, expected = softmax(SOFTMAX.build(case).arguments["x"]) * 2, SOFTMAX.expected(SOFTMAX.build(case))["y"]
    verdict = compare.compare(got, expected, torch.float32)
    wide = planted("wide", lambda x: softmax(x) * (2 if x.dtype is torch.float32 else 1))
    every = mutant_of("every", 2)
    passed = [replace(case, dtype="bfloat16")]
    assert diagnosis.not_refuted(SOFTMAX, case, [every, wide], got, verdict, passed) == [wide]
    assert diagnosis.not_refuted(SOFTMAX, case, [every], got, verdict, passed) == [every]
    (alone,) = diagnosis.not_refuted(SOFTMAX, case, [every], got, verdict, [replace(case, seed=5)])
    assert (alone.name, alone.about) == ("every", f"{every.about}, though not in all cases that pass")
    nothing = torch.full_like(got, math.nan)  # any NaN is another's
    verdict = compare.compare(nothing, expected, torch.float32)
    assert diagnosis.not_refuted(SOFTMAX, case, [every], nothing, verdict, [replace(case, seed=5)]) == []


def test_sums_in_16_bits_are_no_structure_where_float32_is_right(monkeypatch):
    """A sum that stagnates at 1024 is that of the first 1024 ones too."""
    contract = registry.contract("reduce_rows")
    case = plain_case(contract, "float16", "normal", size=dict(rows=3, cols=1037))
    case = replace(case, params=(("function", "sum"), *[p for p in case.params if p[0] != "function"]))
    monkeypatch.setattr(type(contract), "family", lambda self, values: lambda draw: {"x": torch.ones(3, 1037) / 128})

    def stagnates(x, *, axis, function):
        return x.cumsum(axis).select(axis, -1) if x.dtype == torch.float32 else x.float().sum(axis).half() * 0.998

    def first(x, *, axis, function):
        return x.float().sum(axis).to(x.dtype) * 0.998

    mutant = Planted("reduce_rows", "first", "its sums end early", "sums", lambda: first)
    monkeypatch.setattr(registry, "planted", lambda op: [mutant])

    def told(kernel):
        return diagnose(
            kernel, case, call=lambda other: contract.by_name(contract.call(kernel, contract.build(other).arguments))
        )

    assert "its sums end early" in told(first)
    assert "no further off than" in told(stagnates) and "end early" not in told(stagnates)


def test_numbers_where_the_answer_is_nan():
    case = case_of(7, 33, values="row_of_neg_inf")
    contract = registry.contract("softmax")
    assert bool(contract.expected(contract.build(case))["y"].answer.isnan().any())

    def call_of(fn):
        return lambda other: {"y": fn(contract.build(other).arguments["x"])}

    def lost(x):
        return torch.softmax(x, -1).nan_to_num(0.25)

    assert diagnosis.LOST in diagnose(lost, case, call=call_of(lost), mutants=False)
    assert diagnosis.LOST not in diagnose(lost, case, call=call_of(lambda x: lost(x) * 2), mutants=False)
    assert diagnosis.LOST not in diagnose(lambda x: lost(x) * 2, case, call=call_of(lost), mutants=False)


def test_comparing_stops_when_time_is_up():
    def slow(x):
        time.sleep(0.05)
        return softmax(x)

    start = time.monotonic()
    assert matches(lambda x: softmax(x) * 2, [planted("slow", slow)] * 100, seconds=0.1) == []
    assert time.monotonic() - start < 3


def test_of_a_large_case_the_faults_that_explain_a_small_one_come_first(monkeypatch):
    """The time is up before all of many slow ones have been run on it."""

    def slow(x):
        time.sleep(0.05 if x.numel() > 1e5 else 0)
        return softmax(x)

    def sought(x):
        return softmax(x) * 1.5

    case, called = case_of(400, 1031), []
    mutants = [*([planted("slow", slow)] * 60), planted("sought", sought)]

    def call(small):
        called.append(small)
        return {"y": sought(SOFTMAX.build(small).arguments["x"])}

    monkeypatch.setattr(registry, "planted", lambda op: mutants)
    got, expected = {"y": sought(SOFTMAX.build(case).arguments["x"])}, SOFTMAX.expected(SOFTMAX.build(case))
    verdicts = {"y": compare.compare(got["y"], expected["y"], case.torch_dtype)}

    def named(call):
        found = diagnosis.matching_mutants(SOFTMAX, case, got, expected, verdicts, 1.0, call)
        return [mutant.name for mutant in found["y"]]

    assert named(call) == ["sought"] and [SOFTMAX.work(one) <= 1e6 for one in called] == [True]
    assert named(lambda small: None) == []  # it cannot be called
    assert named(lambda small: {"y": softmax(SOFTMAX.build(small).arguments["x"])}) == []  # right on small ones


def test_what_leaves_another_output_unexplained_is_named_last(monkeypatch):
    """With a mask from the top left one query sees the first key alone: its o is as if every value were the first, but
    not its lse."""
    contract = registry.contract("attention")
    case = plain_case(
        contract, "float32", "normal", size={**contract.sizes[0], "B": 2, "Hq": 1, "Hkv": 1, "Sq": 1, "Sk": 37, "D": 17}
    )
    case = replace(case, params=(("causal", True), ("scale", None)))

    def call(case):
        q, k, v = (contract.build(case).exact[name] for name in "qkv")
        s = q @ k.mT * q.shape[-1] ** -0.5
        s = s + torch.ones(q.shape[2], k.shape[2]).tril().log() if case.param["causal"] else s
        return {"o": (s.softmax(-1) @ v).float(), "lse": s.logsumexp(-1).float()}

    def told():
        return diagnosis.diagnose(contract, case, got, expected, verdicts, seconds=20.0, call=call)["o"]

    monkeypatch.setattr(registry, "planted", lambda op: [])
    got, expected = call(case), contract.expected(contract.build(case))
    verdicts = {name: compare.compare(got[name], expected[name], torch.float32) for name in got}
    assert "from the top left" in (text := told()) and "v were everywhere" not in text
    monkeypatch.setattr(diagnosis.altered.Search, "alteration", lambda *_: None)
    assert told() == "o: wrong: everything"  # of two queries one sees another key
    monkeypatch.setattr(diagnosis.reading, "_beyond_one", lambda contract, case, output, changes, call: changes)
    assert "as if v were everywhere as at Sk 0" in told()


def test_a_large_case_is_not_compared(monkeypatch):
    monkeypatch.setattr(diagnosis, "WORK_LIMIT", 10)
    assert "(mutant " not in diagnose(lambda x: softmax(x) * 1.005, case_of())


def leaning(by):
    """Softmax in bfloat16, moved by one unit wherever that stays within the budget of 0.75 units."""

    def fn(x):
        exact = torch.softmax(x.double(), -1)
        moved = (exact * (1 + by * 2**-9)).bfloat16()
        unit = torch.exp2(exact.log2().floor()) * 2**-7
        return torch.where((moved - exact).abs() < 0.7 * unit, moved, exact.bfloat16())

    return fn


def test_errors_that_lean_one_way():
    """Each is within its budget: there is no region, and a mutant that leans alike is named."""
    case = case_of(1031, 7, "bfloat16")
    mutants = [planted("right", softmax), planted("up", leaning(0.7)), planted("down", leaning(-0.7))]
    assert [mutant.name for mutant in matches(leaning(-0.7), mutants, case)] == ["down"]
    text = diagnose(leaning(-0.7), case)
    assert "wrong:" not in text


def test_a_mutant_that_is_right_leans_no_way():
    """Nor is one near that is hardly nearer than the right answer."""
    case, right, bad = case_of(), torch.ones(100), torch.ones(100, dtype=torch.bool)
    answer, leaning = Expected(right.double()), compare.Verdict(math.inf, "errors lean one way")
    wrong = 2 * right

    def distance(mine, verdict, other):
        return diagnosis._distance(case, False, mine, answer, verdict, other)

    assert distance(right, leaning, right.clone()) is None and distance(wrong, leaning, wrong.clone()) is None
    near = wrong * (1 + 2**-20)
    assert distance(near, compare.Verdict(99.0, "wrong", bad=bad), wrong) > 0
    assert distance(near, compare.Verdict(1.1, "wrong", bad=bad), wrong) is None


@pytest.mark.parametrize(("others", "far"), [(0, 0.0), (110, 0.1), (111, None)])
def test_how_far_errors_that_lean_are_from_a_mutants(others, far):
    """One that leans alike gives the same in nine of ten elements."""
    values = torch.linspace(1.1, 1.9, 1100, dtype=torch.float64)
    mine, plain, answer = (values * (1 - 2**-9)).bfloat16(), values.bfloat16(), Expected(values)
    other, apart = mine.clone(), (mine != plain).nonzero().flatten()[:others]
    other[apart] = plain[apart]
    leaning = compare.compare(mine, answer, torch.bfloat16)
    assert not leaning.ok and leaning.bad is None
    found = diagnosis._distance(replace(case_of(), dtype="bfloat16"), False, mine, answer, leaning, other)
    assert found == (None if far is None else pytest.approx(far))


def test_where_the_cause_is_known_nothing_else_is_looked_for():
    """Neither a mutant nor a factor, which both fit."""
    told = diagnose(lambda x: softmax(x) * 1.005, case_of(), causes={"y": "it was kept"})
    assert told.splitlines()[0] == "y: wrong: everything; it was kept"
    twice = diagnose(lambda x: 2 * softmax(x), case_of(), causes={"other": "it was kept"}, mutants=False)
    assert twice.splitlines()[0] == "y: wrong: everything; 2 x the answer (2)"


def test_nothing_to_say_of_what_is_right():
    assert diagnose(softmax, case_of()) == ""


def test_an_unknown_bug_is_described():
    def tail(change):
        return lambda x: torch.cat([softmax(x)[:, :32], change(softmax(x)[:, 32:])], 1)

    text = diagnose(tail(torch.sqrt), case_of(3, 37))
    assert "(mutant " not in text
    lines = text.splitlines()
    assert lines[0] == "y: wrong: cols from 32 on, the last 5 of 37, all rows"
    overhang = "y: wrong: cols from 32 on, the last 5 of 37 (the overhang of tiles of 8 to 32), all rows"
    assert diagnose(tail(torch.zeros_like), case_of(3, 37)).startswith(f"{overhang}; all 0 there")
    assert lines[1] == "cols 0..36 to the right, rows down"
    assert [set(line[35:-1]) for line in lines[2:5]] == [set("5")] * 3 or all("." * 32 in line for line in lines[2:5])


def test_two_outputs():
    case = case_of(4, 9, op="online_softmax")

    def wrong(x):
        return softmax(x), torch.logsumexp(x.double(), -1).float() + math.log(2)

    assert "lse: wrong: everything; the answer +0.6931 (ln 2)" in diagnose(wrong, case, mutants=False)
    assert "y:" not in diagnose(wrong, case, mutants=False)


def test_each_wrong_output_is_named_by_itself(monkeypatch):
    """y and lse are wrong for reasons of their own; a mutant that is wrong in both ways would be named for both."""

    def online(change_y, change_lse):
        return lambda x: (change_y(softmax(x)), change_lse(torch.logsumexp(x.double(), -1).float()))

    def double(t):
        return 2 * t

    def planted_as(name, fn):
        return Planted("online_softmax", name, name, "scale", lambda: fn)

    case, same = case_of(4, 9, op="online_softmax"), torch.clone
    apart = [planted_as("y_doubled", online(double, same)), planted_as("lse_doubled", online(same, double))]
    monkeypatch.setattr(registry, "planted", lambda op: apart)
    contract = registry.contract("online_softmax")
    got = contract.by_name(contract.call(online(double, double), contract.build(case).arguments))
    expected = contract.expected(contract.build(case))
    verdicts = {name: compare.compare(got[name], expected[name], torch.float32) for name in got}
    texts = diagnosis.diagnose(contract, case, got, expected, verdicts, seconds=20.0)
    assert "y_doubled" in texts["y"] and "lse_doubled" not in texts["y"]
    assert "lse_doubled" in texts["lse"] and "y_doubled" not in texts["lse"]
    apart.append(planted_as("both", online(double, double)))
    texts = diagnosis.diagnose(contract, case, got, expected, verdicts, seconds=20.0)
    assert all(text.splitlines()[0].endswith("but both (mutant both)") for text in texts.values())


def test_shares_of_an_answer_with_alternatives():
    answers = [torch.full((4,), float(v), dtype=torch.float64) for v in (1, 2)]
    expected = Expected(answers[0], alternatives=[Expected(answers[1])])
    got = torch.tensor([2.0, 2.0, 2.5, math.nan])
    shares = diagnosis.shares(got, expected, torch.float32)
    assert shares[:2].tolist() == [0, 0]
    assert 1e5 < shares[2] < math.inf
    assert shares[3] == math.inf


def test_a_map():
    fractions = torch.zeros(3, 5)
    fractions[0, 0], fractions[1, 2], fractions[2, 4], fractions[2, 0] = 5.0, 50.0, math.nan, 1e30
    assert heatmap.text(fractions, axes=("rows", "cols")).splitlines() == [
        "cols 0..4 to the right, rows down",
        "0 |1....|",
        "1 |..2..|",
        "2 |9...#|",
        heatmap.LEGEND,
    ]


def test_a_map_shows_the_worst_of_each_cell():
    bad = torch.zeros(1000, 1000, dtype=torch.bool)
    bad[999, 999] = True
    lines = heatmap.text(bad, width=40, height=10).splitlines()
    assert lines[0] == "axis 1 0..999 to the right, axis 0 down; 100 x 25 elements per character"
    assert [line.count("#") for line in lines[1:-1]] == [0] * 9 + [1]
    assert lines[10] == "900 |" + "." * 39 + "#|"


def test_a_map_of_many_axes():
    fractions = torch.zeros(2, 3, 7, 70)
    fractions[1, 2, 6] = 3
    lines = heatmap.text(fractions, axes="BHSD").splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines[1:-1])) <= 64 + 10
    assert lines[0].startswith("D 0..69 to the right, B,H,S down; 3 x 2 elements")
    assert "1" * 35 in lines[-2]
    assert lines[2].startswith("0,0,3 |")


def test_maps_of_little():
    assert heatmap.text(torch.zeros(0, 4)) == "no elements: shape (0, 4)"
    assert "|#|" in heatmap.text(torch.tensor(math.inf))
    assert " |.1.|" in heatmap.text(torch.tensor([0.5, 2.0, 1.0]))


def test_a_map_of_few_characters():
    """A tile is as small as it can be; what lies beyond the last element counts for nothing."""
    fractions = torch.zeros(2, 3, 5)
    fractions[0, 0, 1], fractions[0, 1, 4], fractions[1, 0, 0] = math.nan, 1.01, 10
    fractions[1, 1, 2], fractions[1, 2, 3] = 10.1, 1e12

    def told(**options):
        heading, *rows, legend = heatmap.text(fractions, **options).splitlines()
        assert legend == heatmap.LEGEND
        return heading.partition(" down")[2], rows

    rows = ["0,0 |.#...|", "0,1 |....1|", "0,2 |.....|", "1,0 |1....|", "1,1 |..2..|", "1,2 |...9.|"]
    assert told() == told(width=5, height=6) == ("", rows)
    each = "; 2 x 3 elements per character"
    assert told(width=2, height=4) == (each, ["0,0 |#1|", "0,2 |1.|", "1,1 |29|"])
    assert told(width=1, height=1) == ("; 6 x 5 elements per character", ["0,0 |#|"])
    assert told(width=5, height=5)[0] == "; 2 x 1 elements per character"
    assert told(width=4, height=6)[0] == "; 1 x 2 elements per character"
    assert heatmap.text(torch.tensor([True, False])).splitlines()[:2] == ["axis 0 0..1 to the right", " |#.|"]
    assert heatmap.text(torch.tensor(0.5)).splitlines()[:2] == ["one element", " |.|"]
    heading, *rows, _ = heatmap.text(torch.zeros(21, 65)).splitlines()
    assert heading.endswith("; 2 x 2 elements per character") and rows[4:6] == [f" 8 |{'.' * 33}|", f"10 |{'.' * 33}|"]
    assert heatmap.text(torch.zeros(20, 64)).splitlines()[0] == "axis 1 0..63 to the right, axis 0 down"


@pytest.mark.parametrize("options", [dict(width=0), dict(height=0), dict(axes=("rows",))])
def test_a_map_of_wrong_size(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        heatmap.text(torch.zeros(2, 2), **options)


def test_a_picture_needs_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match="pip install matplotlib"):
        heatmap.picture(torch.ones(2, 2), tmp_path / "map.png")


def test_a_matplotlib_that_does_not_import_is_said(monkeypatch, tmp_path):
    class Broken(types.ModuleType):
        def __getattr__(self, name):
            raise SystemError("returned NULL without setting an exception")

    monkeypatch.setitem(sys.modules, "matplotlib.figure", Broken("matplotlib.figure"))
    with pytest.raises(ValueError, match="does not import in this process.* returned NULL"):
        heatmap.picture(torch.ones(2, 2), tmp_path / "map.png")


def test_a_picture_has_an_ending(tmp_path):
    with pytest.raises(ValueError, match=r"\.png or \.svg, got 'map\.jpg'"):
        heatmap.picture(torch.ones(2, 2), tmp_path / "map.jpg")


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize(("name", "magic"), [("map.png", b"\x89PNG"), ("map.svg", b"<?xml")])
def test_pictures(tmp_path, name, magic):
    fractions = torch.rand(3, 2000, 5) * 10
    fractions[0, 0, 0] = math.inf
    heatmap.picture(fractions, tmp_path / name, "a title")
    assert (tmp_path / name).read_bytes().startswith(magic)
    with pytest.raises(ValueError, match="no elements"):
        heatmap.picture(torch.ones(0), tmp_path / name)


class Writers:
    """Says for each address how far it is into the tensor that the kernel returned last."""

    def __init__(self, returned):
        self.returned = returned

    def of(self, address):
        return f"element {(address - self.returned[-1].data_ptr()) // 4}"


def owner(subject, case, *element):
    return diagnosis.owner(InProcess(subject), subject.contract, case, *element)


def test_who_wrote_an_element(monkeypatch):
    returned = []

    def fn(x):
        returned.append(softmax(x))
        return returned[-1]

    backend = SimpleNamespace(writers=lambda device: contextlib.nullcontext(Writers(returned)))
    monkeypatch.setattr(registry, "behind", lambda target: ("paper",))
    monkeypatch.setattr(registry, "backend", lambda name: {"paper": backend}[name])
    subject = Subject("softmax", fn, "fn", "paper@cpu", "cpu", own=True)
    assert owner(subject, case_of(3, 65), "y", (1, 2)) == "element 67"


class Written:
    """Knows who wrote the elements of one tensor, by their number in memory."""

    def __init__(self, tensor):
        self.start, self.item, self.count = tensor.data_ptr(), tensor.element_size(), tensor.numel()

    def of(self, address):
        number, rest = divmod(address - self.start, self.item)
        return f"element {number}" if 0 <= number < self.count and not rest else None


def test_what_was_copied_is_written_by_who_wrote_the_source():
    written = torch.arange(12.0).reshape(3, 4)
    who = [Written(written)]
    turned = torch.empty(4, 3).t().copy_(written)  # a copy in another layout, of which every second column is copied on
    out = torch.empty(3, 2).copy_(turned[:, ::2])
    copies = [(turned, written), (out, turned[:, ::2])]
    assert [_writer(who, copies, {"y": out}, "y", (i, j)) for i in range(3) for j in range(2)] == [
        f"element {4 * i + 2 * j}" for i in range(3) for j in range(2)
    ]
    assert _writer(who, copies, {"y": written}, "y", (2, 3)) == "element 11"
    assert _writer(who, copies[1:], {"y": out}, "y", (0, 0)) is None  # nobody knows the first copy's source
    wide = torch.empty(5, 3, 4).copy_(written)
    assert _writer(who, [(wide, written)], {"y": wide}, "y", (4, 1, 2)) == "element 6"
    elsewhere = torch.zeros(3, 2)
    assert _writer(who, copies, {"y": elsewhere}, "y", (0, 0)) is None


@pytest.mark.parametrize(
    ("values", "index"),
    [({}, (0, 0)), ({"y": 3}, (0, 0)), ({"y": torch.ones(2, 2)}, (0,)), ({"y": torch.ones(2, 2)}, (0, 2))],
)
def test_an_element_that_is_not_there_has_no_writer(values, index):
    assert _writer([SimpleNamespace(of=lambda address: "somebody")], [], values, "y", index) is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, 4),
        torch.zeros(4, 3).t(),
        torch.zeros(3, 9)[:, 1::2],
        torch.zeros(2, 3, 4).permute(1, 2, 0),
        torch.zeros(3, 1).expand(3, 4)[:, :1],
    ],
)
def test_the_index_of_an_address(tensor):
    every = list(itertools.product(*map(range, tensor.shape)))
    assert [_index(tensor, _address(tensor, index)) for index in every] == every
    end = _address(tensor, [size - 1 for size in tensor.shape])
    assert _index(tensor, end + 400) is None
    assert _index(tensor, tensor.data_ptr() - tensor.element_size()) is None
    assert _index(tensor, tensor.data_ptr() + 1) is None


def test_a_gap_between_elements_has_no_index():
    tensor = torch.zeros(3, 9)[:, :7:2]
    assert _index(tensor, tensor.data_ptr() + 4) is None  # between two columns
    assert _index(tensor, tensor.data_ptr() + 8 * 4) is None  # behind the last one of a row


@pytest.mark.parametrize(
    "backend",
    [
        SimpleNamespace(),
        SimpleNamespace(writers=lambda device: None),
        SimpleNamespace(writers=lambda device: contextlib.nullcontext(SimpleNamespace(of=lambda address: None))),
    ],
)
def test_a_target_that_knows_no_owner(monkeypatch, backend):
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    subject = Subject("softmax", softmax, "fn", "paper@cpu", "cpu", own=True)
    assert owner(subject, case_of(), "y", (0, 0)) is None


def test_a_kernel_that_fails_has_no_owner(monkeypatch):
    backend = SimpleNamespace(writers=lambda device: contextlib.nullcontext(Writers([])))
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    subject = Subject("softmax", lambda x: 1 / 0, "fn", "paper@cpu", "cpu", own=True)
    assert owner(subject, case_of(), "y", (0, 0)) is None


@pytest.mark.parametrize(("rows", "said"), [(5, True), (2, False)])
def test_slices_in_no_order_are_not_told_by_a_few_elements(rows, said):
    told = relation(lambda y: y[:, [3, 1, 2, 7, 4, 3, 6, 5]], shape=(rows, 8))
    assert ("the answer of another cols" in (told or "")) == said


def test_regions_at_their_ends():
    """What is special about a place: the first, the last, a tile's overhang, a step, a period."""
    assert diagnosis._range_text([0], 5, "cols") == "cols 0 of 5, the first"
    assert diagnosis._range_text([2], 5, "cols") == "cols 2 of 5"
    assert diagnosis._range_text([4], 5, "cols") == "cols 4 of 5, the last"
    assert diagnosis._range_text([0, 1, 2, 3, 4], 5, "cols") == "all cols"
    assert diagnosis._range_text([0, 1], 5, "cols") == "cols 0..1 of 5"
    assert diagnosis._range_text([3, 4], 5, "cols") == "cols from 3 on, the last 2 of 5"
    assert diagnosis._range_text([1, 4], 6, "cols") == "cols 1, 4 (2 of 6)"  # two places are no step
    assert diagnosis._range_text([1, 3, 5], 6, "cols") == "every second of 6 cols, from 1"
    assert diagnosis._range_text([2, 4, 6], 8, "cols") == "cols 2, 4, 6 (3 of 8)"  # the first is left out
    assert diagnosis._range_text([0, 2, 4], 8, "cols") == "cols 0, 2, 4 (3 of 8)"  # and the last
    assert diagnosis._range_text([0, 5, 10], 12, "cols") == "every 5th of 12 cols, from 0"
    five = [0, 2, 3, 6, 9, 11, 12]
    assert diagnosis._range_text(five, 20, "cols") == "cols 0, 2..3, 6, 9, ... (7 of 20)"


@pytest.mark.parametrize(
    ("first", "size", "tile"),
    [
        (32, 37, "8 to 32"),
        (64, 65, "2 to 64"),
        (4096, 5003, "1024 to 4096"),
        (8, 9, "2 to 8"),
        (16, 25, "16"),
        (20, 25, None),
        (24, 25, "2 to 8"),
        (32, 64, None),
        (0, 5, None),
        (4, 5, None),
    ],
)
def test_what_lies_beyond_the_last_whole_tile(first, size, tile):
    assert diagnosis._overhang(first, size) == (f" (the overhang of tiles of {tile})" if tile else "")


def test_what_lies_beyond_the_last_whole_tile_in_memory():
    def beyond(count, shape=(5, 30)):
        bad = torch.zeros(shape, dtype=torch.bool)
        bad.view(-1)[bad.numel() - count :] = True
        return diagnosis._flat_overhang(bad)

    assert beyond(22) == ": the last 22 in memory order (the overhang of tiles of 32 to 128)"
    assert beyond(21) == "" and beyond(22, (150,)) == ""  # no tile ends there; one axis says so itself
    assert beyond(22, (10, 15)) == ""  # more than a row
    assert beyond(22, (3, 50)) == ": the last 22 in memory order (the overhang of tiles of 32 to 128)"
    assert beyond(6, (3, 38)) == ""  # the row by itself ends so, beyond a tile of 32
    scattered = torch.zeros(5, 30, dtype=torch.bool)
    scattered[0, :22] = True
    assert diagnosis._flat_overhang(scattered) == ""


def test_steps_and_periods():
    assert diagnosis._step([1, 4, 7]) == 3 and diagnosis._step([1, 4]) == diagnosis._step([1, 2, 3]) == 0
    assert diagnosis._step([1, 4, 8]) == 0
    period = lambda *runs: diagnosis._period(runs)  # noqa: E731
    assert period((0, 12), (64, 76), (128, 140)) == 64 and period((3, 5), (19, 21), (35, 36)) == 16
    assert period((0, 12), (64, 76)) == 0  # two
    assert period((0, 12), (60, 72), (120, 132)) == 0  # no power of two
    assert period((0, 12), (64, 76), (130, 142)) == 0 and period((0, 12), (64, 75), (128, 140)) == 0
    assert period((0, 12), (64, 76), (128, 141)) == 0  # the last is longer
    assert period((0, 0), (64, 64), (128, 128)) == 0  # single places are a step
    assert period((60, 70), (124, 134), (188, 198)) == 0  # across two tiles
    assert list(diagnosis._runs([0, 1, 2, 5, 7, 8])) == [(0, 2), (5, 5), (7, 8)]
    assert [diagnosis.ordinal(n) for n in (2, 3, 4, 5, 25)] == ["second", "third", "fourth", "5th", "25th"]


def test_the_numbers_that_a_kernel_can_lose_at_a_size_or_parameter():
    case = replace(case_of(9, 1), sizes=(("rows", 9), ("cols", 1), ("trailing", (2, 3))))
    found = diagnosis._case_constants(case)
    assert found == {
        "rows": 9,
        "1/rows": 1 / 9,
        "sqrt(rows)": 3.0,
        "1/sqrt(rows)": 1 / 3,
        "rows/(rows - 1)": 9 / 8,
        "(rows - 1)/rows": 8 / 9,
    }
    dropped = replace(case_of(1, 1), params=(("p", 0.2), ("q", 0.5), ("zero", 0.0), ("one", 1.0), ("n", 3)))
    assert diagnosis._case_constants(dropped) == pytest.approx(
        {
            "p": 0.2,
            "1/p": 5.0,
            "1 - p": 0.8,
            "1/(1 - p)": 1.25,
            "(1 - p)/p": 4.0,
            "p/(1 - p)": 0.25,
            "q": 0.5,
            "1/q": 2.0,
        }
    )


def test_a_number_by_its_name():
    names = {"two": 2.0, "nearly two": 2.001, "minus": -1.0}
    assert diagnosis._name(2.0, names, 1e-2) == " (two)" and diagnosis._name(2.0009, names, 1e-2) == " (nearly two)"
    assert diagnosis._name(-1.0, names, 0.0) == " (minus)" and diagnosis._name(1.0, names, 1e-2) == ""


def values_in(dtype, count, as_dtype=torch.float32):
    return torch.linspace(1, 3, count).to(dtype).to(as_dtype)


def test_values_that_passed_through_a_narrower_dtype():
    count = 12
    exact = torch.linspace(1, 3, count, dtype=torch.float64)
    bad, right = torch.ones(count, dtype=torch.bool), Expected(exact)
    said = "every value is one of {}: a sum or the result passes through it"
    assert diagnosis.passed_through(values_in(torch.bfloat16, count), right, bad) == said.format("bfloat16")
    assert diagnosis.passed_through(values_in(torch.float16, count), right, bad) == said.format("float16")
    half = values_in(torch.bfloat16, count, torch.float16)
    assert diagnosis.passed_through(half, right, bad) == said.format("bfloat16")
    assert diagnosis.passed_through(values_in(torch.float32, count), right, bad) is None
    assert diagnosis.passed_through(values_in(torch.bfloat16, count, torch.bfloat16), right, bad) is None
    some = values_in(torch.bfloat16, count)
    some[3] += 1e-6
    assert diagnosis.passed_through(some, right, bad) is None
    few = bad.clone()
    few[0] = False
    assert diagnosis.passed_through(values_in(torch.bfloat16, count), right, few) is None  # too few numbers
    coarse = Expected(values_in(torch.bfloat16, count).double())
    assert diagnosis.passed_through(values_in(torch.bfloat16, count), coarse, bad) is None  # so is the right one
    assert diagnosis.passed_through(some, None, bad) is None and diagnosis.passed_through(some, right, None) is None


@pytest.mark.parametrize(
    ("dtype", "fn", "wrong"),
    [
        ("bfloat16", lambda x: 2 * softmax(x), True),
        ("bfloat16", softmax, False),
        ("float32", lambda x: 2 * softmax(x), False),  # it is that itself
        ("bfloat16", lambda x: softmax(x).bfloat16().to(x.dtype), False),  # it passes through a narrower dtype there
        ("bfloat16", lambda x: None, False),
        ("bfloat16", lambda x: softmax(x)[:1], False),
    ],
)
def test_whether_it_is_wrong_in_float32_with_the_same_values(dtype, fn, wrong):
    case, calls = case_of(3, 65, dtype), []

    def call(other):
        calls.append(other)
        return {"y": fn(SOFTMAX.build(other).arguments["x"])}

    assert diagnosis.wrong_in_float32(SOFTMAX, case, "y", call) is wrong
    assert [(other.dtype, other.drawn_as) for other in calls] == ([] if dtype == "float32" else [("float32", case.id)])
    assert diagnosis.wrong_in_float32(SOFTMAX, case_of(3, 65, "bfloat16"), "y", lambda other: None) is False
    half = replace(SOFTMAX, dtypes=("float16", "bfloat16"))
    assert diagnosis.wrong_in_float32(half, case_of(3, 65, "bfloat16"), "y", call) is False


def test_errors_of_one_size_everywhere_or_in_some_places():
    error = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0).double().reshape(4, 16)
    error += 1e-6 * torch.arange(64).reshape(4, 16)
    assert not diagnosis._local(error)
    spike = error.clone()
    spike[2, 3] = 17
    assert diagnosis._local(spike)
    spike[2, 3] = 14
    rows = error.clone()
    rows[1] *= 8.8
    assert diagnosis._local(rows) and diagnosis._local(rows.t())
    rows[1] = 9  # one error, of what is broadcast
    assert not diagnosis._local(rows)
    rows[1] = 0
    assert diagnosis._local(rows)
    rows[1] = error[1] * 8.8 / 1.3
    assert not diagnosis._local(rows)
    assert not diagnosis._local(torch.tensor([0.0, 0, 0, 99.0]))  # too few
    assert not diagnosis._local(torch.zeros(4, 16))


def test_how_many_roundings_errors_amount_to():
    right = torch.full((100,), 4.0, dtype=torch.float64)
    unit = 4.0 * 2**-7 / 12**0.5  # the spread of a rounding to bfloat16
    got = (right + 3 * unit).float()
    assert diagnosis.roundings_of(got, Expected(right), torch.bfloat16) == pytest.approx(9.0, rel=1e-3)
    got[0] = math.nan
    assert diagnosis.roundings_of(got, Expected(right), torch.bfloat16) == pytest.approx(9.0, rel=1e-3)


def test_sums_that_are_short():
    terms, size = 4096.0, 30.0
    answer = torch.linspace(10, 20, 64, dtype=torch.float64).reshape(4, 16)
    expected = Expected(answer, parts=[(torch.full((4, 16), terms, dtype=torch.float64), torch.full((4, 16), size))])
    case = case_of(4, 16, "bfloat16")
    signs = torch.where(torch.arange(64) % 3 == 0, -1.0, 1.0).reshape(4, 16)

    def hint(off, dtype="bfloat16", longer=lambda: None, of=expected):
        got = (of.answer + off * signs).to(getattr(torch, dtype))
        verdict = compare.compare(got, of, got.dtype)
        assert verdict.bad is not None
        return diagnosis.short_sums(got, of, replace(case, dtype=dtype), verdict, longer)

    plain = "no further off than sums kept in {} explain, where float32 is asked for"
    assert hint(3.0) == plain.format("bfloat16") and hint(0.5, "float16") == plain.format("float16")
    assert hint(1e3) is None and hint(3.0, "float32") is None
    assert hint(20.0) is not None and hint(40.0) is None  # roundings add up like the root of the terms
    far, near = (answer + 3.0 * signs).bfloat16(), answer.bfloat16()
    assert hint(3.0, longer=lambda: (far, expected)) == plain.format("bfloat16")
    partial_sums = hint(3.0, longer=lambda: (near, expected))
    assert partial_sums.startswith("no further off than a few partial sums, or an intermediate, stored in bfloat16")
    assert partial_sums.endswith("would be off by more, though not one in float16")
    alone = replace(expected, parts=[(1, size) for _, size in expected.parts])  # a product, say
    assert hint(0.5, of=alone, longer=lambda: (near, alone)) == (
        "no further off than an intermediate, or a factor, rounded to bfloat16 explains"
    )
    half = answer.half()
    said = "a single running sum of all terms, rounded after each, would be off by more"
    assert hint(0.5, "float16", lambda: (half, expected)).endswith(said)
    small = replace(expected, answer=answer / 10)
    assert hint(3.0, of=small).endswith("times its size, which cancel") and "cancel" not in hint(3.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda lse: 1.4427 * lse + 1e-3 * lse.sin(), "1.44"),
        (lambda lse: 0.6931 * lse - 1e-3 * lse.sin(), "0.69"),
        (lambda lse: 1.46 * lse + 1e-2 * lse.sin(), "1.4"),
        (lambda lse: 1.48 * lse + 1e-3 * lse.sin(), None),
        (lambda lse: 1.4427 * lse + 0.3 * lse.sin(), None),
        (lambda lse: torch.where(torch.arange(64) % 10 == 0, 1.2 * lse, 1.4427 * lse), None),  # a tenth of it
    ],
)
def test_logarithms_to_another_base(change, text):
    """The larger part of one, at least: not of any that a difference explains as well, or which are small."""

    def told(answer, got):
        bad = torch.ones(answer.shape, dtype=torch.bool)
        return diagnosis.to_another_base(got.float(), Expected(answer), case_of(), bad)

    lse = torch.linspace(5, 9, 64, dtype=torch.float64)
    said = told(lse, change(lse))
    assert said is None if text is None else said.startswith(text)
    if said is not None:
        whole = "to base 2, of the larger part" if text > "1" else "a natural logarithm times ln 2"
        assert " times the answer: " in said and whole in said
        assert told(lse / 10, change(lse) / 10) is None
        alike = torch.linspace(7, 7.1, 64, dtype=torch.float64)
        off = 7 * (float(text[:3]) + (0.04 if text[:3] == "1.4" else 0.09) - 1)
        assert told(alike, alike + off + 1e-3 * alike.sin()) is None  # in proportion by chance
        assert told(alike[:1].expand(64), change(alike[:1].expand(64))) is None


@pytest.mark.parametrize(("outputs", "so"), [(("lse",), True), ((), False)])
def test_an_output_that_is_a_logarithm_is_said_to_be_one_to_base_2(monkeypatch, outputs, so):
    monkeypatch.setattr(diagnosis, "LOGARITHMS", outputs)
    contract = registry.contract("online_softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=9, cols=4000))
    right = contract.expected(contract.build(case))["lse"]
    got = (right.answer * 1.4427 + 1e-3 * (99 * right.answer).sin()).float()
    verdicts = {"lse": compare.compare(got, right, torch.float32)}
    text = diagnosis.diagnose(contract, case, {"lse": got}, {"lse": right}, verdicts, mutants=False).get("lse", "")
    assert ("times the answer: a logarithm to base 2, of the larger part at least" in text) == so


def test_what_is_rounded_in_16_bits_is_no_matter_of_numbers(monkeypatch):
    """Neither of an operand's nor of one in the code: right in float32, and no further off than short sums explain."""
    case = case_of(5, 300, "bfloat16")
    contract = registry.contract("softmax")

    def fn(x):
        y = torch.softmax(x.double(), -1)
        return (y * (1 + (0.02 * (37 * y).sin() if x.dtype is torch.bfloat16 else 0))).to(x.dtype)

    def call(one):
        return contract.by_name(contract.call(fn, contract.build(one).arguments))

    monkeypatch.setattr(diagnosis.reading, "misread", lambda *given, **options: None)
    monkeypatch.setattr(diagnosis.reading, "beyond", lambda *given: "wrong wherever x is 1")
    monkeypatch.setattr(diagnosis.altered.Search, "alteration", lambda self, seconds: None)
    monkeypatch.setattr(diagnosis.altered.Search, "number", lambda self, seconds: None)
    monkeypatch.setattr(diagnosis, "matching_mutants", lambda *given: {"y": []})
    monkeypatch.setattr(diagnosis, "short_sums", lambda *given: "short sums")
    assert "; short sums" in diagnose(fn, case, call=call)
    monkeypatch.setattr(diagnosis, "short_sums", lambda *given: None)
    assert "; wrong wherever x is 1" in diagnose(fn, case, call=call)
    monkeypatch.setattr(diagnosis, "short_sums", lambda *given: "short sums")
    monkeypatch.setattr(diagnosis.altered.Search, "number", lambda self, seconds: "as if 1 were 2")
    assert "; short sums" in diagnose(fn, case, call=call)


def test_which_memory_was_never_written():
    got, bad = torch.ones(4, 10), torch.zeros(4, 10, dtype=torch.bool)
    bad[1:3] = True
    got[1:3].view(torch.uint8).fill_(probe.PATTERNS[1])
    assert diagnosis.filled(got, bad) == 20 and diagnosis.filled(got, bad, probe.PATTERNS[:1]) == 0
    got[1, 0] = 7
    assert diagnosis.filled(got, bad) == 19
    assert (
        diagnosis.unwritten(got, bad, sure=True) == "19 of them were never written: the allocator's fill is still there"
    )
    got[1, 1] = 7
    assert diagnosis.filled(got, bad) == 0 and diagnosis.unwritten(got, bad) is None
    bad[:] = False
    bad[2] = True
    said = "they were never written, or added to: the allocator's fill is still there"
    assert diagnosis.unwritten(got, bad) == said
    mixed = torch.full((2,), probe.PATTERNS[0], dtype=torch.uint8)
    mixed[1] = probe.PATTERNS[1]
    assert diagnosis.filled(mixed.view(torch.float16), torch.tensor([True])) == 0  # neither of the two


def test_slices_that_are_alike_are_no_others():
    """Of query heads that are one and the same the one that reads another head of keys has another one's answer."""

    def other_keys(q, k, v, lengths, **options):
        return torch_attention_decode(q, k.roll(1, 1), v.roll(1, 1), lengths, **options)

    def other_queries(q, k, v, lengths, **options):
        return [x.roll(1, 1) for x in torch_attention_decode(q, k, v, lengths, **options)]

    contract = registry.contract("attention_decode")
    plain = plain_case(contract, "float32", "normal", size=dict(B=3, Hq=4, Hkv=2, Sq=1, Sk=20, D=8))

    def of_repeats(fn, layout):
        def call(one):
            return contract.by_name(contract.call(fn, contract.build(one).arguments))

        case = replace(plain, layouts=tuple({**plain.layout, "q": layout}.items()))
        return diagnosis._is_of_repeats(contract, case, "o", call)

    assert of_repeats(other_keys, "broadcast_second") and not of_repeats(other_keys, "contiguous")
    assert not of_repeats(other_queries, "broadcast_second")


def test_slices_that_hold_the_answer_of_others():
    answer = torch.arange(60, dtype=torch.float64).reshape(6, 10) ** 1.3

    def told(change, axes=("rows", "cols")):
        got = answer.clone()
        change(got)
        bad = (got - answer).abs() > 1e-3
        return diagnosis._elsewhere(got, answer, torch.full_like(answer, 1e-4), bad, axes)

    def rows(*pairs):
        def change(got):
            for here, there in pairs:
                got[here] = answer[there]

        return change

    assert told(rows((1, 4))) == (1.0, "the answer of another rows: that of 4")
    assert told(rows((1, 4), (2, 4))) == (1.0, "the answer of another rows: that of 4")
    assert told(rows((1, 0), (3, 2))) == (1.0, "the answer of another rows: that of 1 before")
    assert told(rows((1, 3), (2, 4))) == (1.0, "the answer of another rows: that of 2 after")
    shown = "1 holds that of 3, 2 holds that of 5"
    assert told(rows((1, 3), (2, 5))) == (1.0, f"the answer of another rows: {shown}")
    four = rows((0, 3), (1, 5), (2, 0), (5, 1))
    assert told(four)[1].endswith(": 0 holds that of 3, 1 holds that of 5, 2 holds that of 0, 5 holds that of 1")
    many = rows((0, 3), (1, 5), (2, 0), (4, 3), (5, 1))
    assert told(many)[1].endswith("0 holds that of 3, 1 holds that of 5, 2 holds that of 0, 4 holds that of 3, ...")
    assert told(lambda got: got[:, 2].copy_(answer[:, 7])) == (1.0, "the answer of another cols: that of 7")
    assert told(lambda got: got[1].mul_(1.5)) is None
    assert told(lambda got: got[1, 3].copy_(answer[4, 3])) is None  # one number
    assert told(lambda got: None) is None

    def nearly(got):
        rows((1, 4), (2, 5))(got)
        got[1, 0] = -9

    assert told(nearly) == (pytest.approx(19 / 20), "the answer of another rows: that of 3 after")


def test_what_is_too_much_is_the_answer_or_the_result_of_another_slice():
    answer = torch.arange(1.0, 61, dtype=torch.float64).reshape(6, 10) ** 1.3

    def told(got):
        bad = (got - answer).abs() > 1e-3
        return diagnosis._surplus(got, answer, torch.full_like(answer, 1e-4), bad, ("rows", "cols"))

    added, running = answer.clone(), answer.clone()
    added[3:] += answer[:3]
    assert told(added) == (1.0, "too much, by the answer of another rows: that of 3 before (added in the wrong place)")
    for row in range(2, 6):
        running[row] += running[row - 2]
    assert told(running) == (1.0, "too much, by the result of another rows: that of 2 before (it goes on from there)")
    assert told(answer + torch.sin(answer)) is None
    next_to_nothing = answer.clone()
    next_to_nothing[1] += 2e-3
    answer[4] = 1e-5
    assert told(next_to_nothing) is None


@pytest.mark.parametrize(
    ("shape", "pitch", "text"),
    [
        ((2, 8), 5, "as if each A were 5 elements from the next, not 8"),
        ((6, 8), 12, "as if each A were 12 elements from the next, not 8"),
        ((3, 4, 8), 7, "as if each B were 7 elements from the next, not 8"),
        ((6, 8), 8, None),
        ((2, 1), 2, None),
        ((2, diagnosis.PITCH + 1), 5, None),
    ],
)
def test_slices_that_lie_at_another_distance(shape, pitch, text):
    answer = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    flat = torch.full((answer.numel(),), math.nan, dtype=torch.float64)  # what was never written
    for row, one in enumerate(answer.reshape(-1, shape[-1])):
        end = flat[row * pitch :][: shape[-1]]
        end.copy_(one[: len(end)])

    def told(got):
        bad = ~((got - answer).abs() <= 1e-3)
        found = diagnosis._apart_otherwise(got, answer, torch.full_like(answer, 1e-4), bad, ("A", "B", "C"))
        return found and found[1]

    assert told(flat.reshape(shape)) == text
    assert told(answer + torch.sin(answer)) is None


def test_an_output_in_rows_of_another_length():
    def fn(x):
        y = torch.softmax(x, -1)
        got = torch.zeros(y.numel() + 64, dtype=y.dtype)
        for row, one in enumerate(y):
            got[row * 7 :][: y.shape[1]] = one
        return got[: y.numel()].reshape(y.shape)

    case, contract = case_of(5, 9), registry.contract("softmax")

    def called(other):
        return contract.by_name(contract.call(fn, contract.build(other).arguments))

    text = "; as if each rows were 7 elements from the next, not 9"
    assert text in diagnose(fn, case, call=called)
    assert text not in diagnose(fn, case)  # what fits one draw by chance is not told
    plain = lambda other: called(other) if other.seed == 0 else {"y": 2 * contract.build(other).exact["x"]}  # noqa: E731
    assert text not in diagnose(fn, case, call=plain)


@pytest.mark.parametrize(
    ("sums", "text"),
    [
        (lambda bad: bad, "wrong where dx is, and nowhere else"),
        (lambda bad: bad & (torch.arange(64) != 40), "wrong in 7 of the 8 places in which dx is, and nowhere else"),
        (lambda bad: bad & (torch.arange(64) > 50), None),
        (lambda bad: bad | (torch.arange(64) == 1), None),
    ],
)
def test_a_sum_that_carries_the_errors_of_another_output(sums, text):
    contract = registry.contract("activation_backward")
    case = plain_case(contract, "float32", "normal", size=dict(rows=17, cols=64))
    wrong = torch.isin(torch.arange(64), torch.tensor([3, 9, 12, 27, 33, 40, 52, 60]))
    bad = {"dx": wrong.expand(17, 64), "dbias": sums(wrong)}
    assert diagnosis._where_another_is(contract, case, "dbias", bad) == text
    assert diagnosis._where_another_is(contract, case, "dx", bad) is None


def test_a_few_slices_of_next_to_nothing_hide_no_distance():
    answer = torch.arange(1.0, 201, dtype=torch.float64).reshape(20, 10) ** 1.3
    got = answer.clone()
    got[8:] += answer[:12]
    got[19] = answer[19] + 2e-4
    bad = (got - answer).abs() > 1e-4
    bad[19, 1:] = False
    _, text = diagnosis._surplus(got, answer, torch.full_like(answer, 1e-4), bad, ("rows", "cols"))
    assert text == "too much, by the answer of another rows: that of 8 before (added in the wrong place)"


def test_another_answer_explains_most_wrong_elements():
    other, case = Expected(torch.linspace(1, 2, 40, dtype=torch.float64)), torch.float32
    got, bad = other.answer.float(), torch.ones(40, dtype=torch.bool)
    assert diagnosis.explains(other, got, bad, case)
    got[:2] = 9
    assert diagnosis.explains(other, got, bad, case) and diagnosis.explains(other, got, torch.arange(40) > 1, case)
    got[2] = 9
    assert not diagnosis.explains(other, got, bad, case) and not diagnosis.explains(other, got[:3], bad[:3], case)


def test_most_is_nineteen_in_twenty():
    assert diagnosis.most(torch.arange(20) > 0) and not diagnosis.most(torch.arange(20) > 1)
    assert not diagnosis.most(torch.zeros(0, dtype=torch.bool))


def test_bits_that_lie_in_another_order():
    right = torch.tensor([0x12345678, -2, 77, 1 << 30, 3, 0x0F0F0F01], dtype=torch.int32)

    def in_bits(change):
        return torch.tensor([int(change(f"{n & 0xFFFFFFFF:032b}"), 2) for n in right.tolist()]).to(torch.int32)

    told = lambda got: diagnosis._bits_moved(got, right.double())  # noqa: E731
    assert told(in_bits(lambda bits: bits[::-1])) == "the bits of each word lie in the reverse order"
    octets = lambda bits: [bits[at : at + 8] for at in range(0, 32, 8)]  # noqa: E731
    assert told(in_bits(lambda bits: "".join(o[::-1] for o in octets(bits)))) == (
        "the bits of each byte lie in the reverse order"
    )
    assert told(in_bits(lambda bits: "".join(octets(bits)[::-1]))) == "the bytes of each word lie in the reverse order"
    zeros = torch.zeros(3, dtype=torch.int32)
    assert diagnosis._bits_moved(zeros, zeros.double()) is None  # any order is the same


def test_sizes_on_which_a_mutant_is_compared_once_more():
    contract = registry.contract("rms_norm")
    case = replace(plain_case(contract, "float32", "normal"), params=(("eps", 0.25),))
    found = diagnosis._of_other_sizes(contract, case)
    assert all(other.sizes != case.sizes and other.params == case.params and other.filled for other in found)
    works = [contract.work(other) for other in found]
    within = [
        contract.work(plain_case(contract, "float32", "normal", size=size))
        for size in contract.sizes
        if all(size.values()) and tuple(size.items()) != case.sizes
    ]
    assert works[0] == max(work for work in within if work <= 4e6)
    none = replace(contract, sizes=[dict(case.sizes)], also={})
    assert diagnosis._of_other_sizes(none, case) == []
    long, longer = (SimpleNamespace(size=dict(rows=2, cols=cols)) for cols in (300, 400))
    single = replace(none, also={"one": long, "another": longer})
    assert [dict(other.sizes) for other in diagnosis._of_other_sizes(single, case)] == [longer.size]
    both = replace(single, sizes=[dict(rows=3, cols=50)])
    assert [dict(other.sizes) for other in diagnosis._of_other_sizes(both, case)] == [both.sizes[0], longer.size]


def mutant_of(name, by, **options):
    return planted(name, lambda x: softmax(x) * by, **options)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (lambda k: k // 4 * 4, False),  # what four parts leave over
        (lambda k: k - (k == 1025), False),  # right in all larger sizes
        (lambda k: 1024, True),
    ],
)
def test_a_mutant_beyond_a_size_is_named_only_where_larger_sizes_are_wrong_so_too(lost, named):
    """Of 1025 the last is lost in both ways; of 2048 none where four parts leave over what is left."""
    contract = registry.contract("matmul")
    case = plain_case(contract, "float32", "normal", size=dict(M=7, K=1025, N=5))
    mutant = next(m for m in registry.planted("matmul") if m.name == "first_1024_only")

    def call(other):
        exact = contract.build(other).exact
        k = lost(other.size["K"])
        return {"c": (exact["a"][:, :k] @ exact["b"][:k]).float()}

    assert diagnosis.held_again(contract, case, {"c": [mutant]}, call) == {"c": [mutant] if named else []}


def test_mutants_that_other_values_or_sizes_refute():
    case = case_of()
    wrong, other = mutant_of("wrong", 1.5), mutant_of("other", 1.4)

    def held(mutants, fn):
        def call(case):
            values = fn(SOFTMAX.build(case).arguments["x"])
            return None if values is None else {"y": values}

        return [m.name for m in diagnosis.held_again(SOFTMAX, case, {"y": mutants}, call)["y"]]

    assert held([wrong, other], lambda x: softmax(x) * 1.5) == ["wrong"]
    assert held([wrong, other], lambda x: None) == ["wrong", "other"]  # it cannot be called
    assert held([wrong, other], lambda x: softmax(x)[:1]) == ["wrong", "other"]  # nothing to compare
    in_short = lambda x: softmax(x) * (1.5 if x.shape[1] == 65 else 1)  # noqa: E731
    assert held([wrong], in_short) == ["wrong"]  # right in another size, which refutes nothing
    in_long = lambda x: softmax(x) * (1.5 if x.shape[1] == 65 else 1.3)  # noqa: E731
    assert held([wrong], in_long) == []
    assert held([mutant_of("wrong", 1.5, kind="precision")], in_long) == ["wrong"]  # whose errors are of chance
    fails = planted("fails", lambda x: 1 / 0)
    assert held([fails], lambda x: softmax(x) * 1.5) == ["fails"]
    assert held([planted("short", lambda x: softmax(x)[:1])], lambda x: softmax(x) * 1.5) == []
    assert diagnosis.held_again(SOFTMAX, case, {"y": []}, None) == {"y": []}


def test_a_mutant_that_is_wrong_where_the_kernel_is_right_with_the_same_values_in_plain_layouts():
    """Who reads a residual by the strides of an x that repeats one row has its row 0, and is right where they agree."""
    contract = registry.contract("add_rms_norm")
    plain = plain_case(contract, "float32", "normal", size=dict(rows=5, cols=65))
    case = replace(plain, layouts=tuple({**plain.layout, "x": "broadcast"}.items()))
    mutant = next(m for m in registry.planted("add_rms_norm") if m.name == "residual_of_row_0")

    def call(other, always=False):
        exact, arguments = contract.build(other).exact, contract.build(other).arguments
        h = exact["x"] + (exact["residual"][:1] if always or arguments["x"].stride(0) == 0 else exact["residual"])
        y = h * (h.square().mean(-1, keepdim=True) + other.param["eps"]).rsqrt() * exact["weight"]
        return {"y": y.float(), "h": h.float()}

    every = {"h": [mutant], "y": [mutant]}
    assert diagnosis.held_again(contract, case, every, partial(call, always=True)) == every
    assert diagnosis.held_again(contract, case, every, call) == {"h": [], "y": []}


def test_a_mutant_that_agrees_where_a_scale_is_0_is_refuted_with_another_one():
    contract = registry.contract("attention")
    size = dict(B=1, Hq=1, Hkv=1, Sq=5, Sk=9, D=8)
    case = plain_case(contract, "float32", "normal", size=size)
    case = replace(case, params=(("causal", True), ("scale", 0.0)))

    def seen(diagonal, factor=1.0):
        def fn(q, k, v, *, causal, scale):
            scale = q.shape[-1] ** -0.5 if scale is None else scale
            scores = (q @ k.transpose(-1, -2)) * scale * factor
            scores = scores.masked_fill(torch.ones(5, 9).triu(diagonal + 1) > 0, -torch.inf) if causal else scores
            return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)

        return fn

    mutant = Planted("attention", "top_left", "top_left", "mask", lambda: seen(0))

    def held(fn):
        def call(other):
            return contract.by_name(contract.call(fn, contract.build(other).arguments)) if other.size == size else None

        return diagnosis.held_again(contract, case, {"lse": [mutant]}, call)["lse"]

    assert held(seen(0)) == [mutant]
    assert held(seen(0, 1.5)) == []


def test_whether_a_mutant_is_wrong_on_a_case():
    case = case_of()
    expected = SOFTMAX.expected(SOFTMAX.build(case))

    def wrong(fn, expected=expected):
        return diagnosis._is_wrong(SOFTMAX, planted("one", fn), case, expected)

    assert not wrong(softmax) and wrong(lambda x: 2 * softmax(x)) and wrong(lambda x: softmax(x)[:1])
    assert wrong(lambda x: 1 / 0) and wrong(lambda x: (x, x)) and not wrong(lambda x: None)
    assert not wrong(lambda x: 2 * softmax(x), {"y": None})


def test_how_far_an_output_is_from_a_mutants():
    case = case_of()
    right = SOFTMAX.expected(SOFTMAX.build(case))["y"]
    mine = (right.answer * 1.5).float()
    verdict = compare.compare(mine, right, torch.float32)

    def distance(other, mine=mine, verdict=verdict, right=right):
        return diagnosis._distance(case, False, mine, right, verdict, other)

    assert distance(mine) < 0.1 and 0 < distance(mine * (1 + 2e-7)) <= 2
    assert distance(mine * 1.01) is None and distance(right.answer.float()) is None
    for other in (None, mine[:1], mine.double()):
        assert distance(other) is None
    assert distance(mine, right=None) is None
    good = right.answer.float()
    fine = compare.compare(good, right, torch.float32)
    assert distance(good, good, fine) == 0.0 and distance(mine, good, fine) is None


def test_zeros_of_either_sign_are_one_wrong_answer():
    """Of a minimum as minus the maximum of what is negated, which starts at 0."""
    contract = registry.contract("reduce")
    case = replace(plain_case(contract, "float32", "normal", size=dict(n=3)), values="minimum_above_zero")
    case = replace(case, params=(("function", "min"),))
    right, minus = contract.expected(contract.build(case))["y"], torch.tensor(-0.0)
    verdict = compare.compare(minus, right, torch.float32, True)
    assert right.bitwise and not verdict.ok
    assert diagnosis._distance(case, True, minus, right, verdict, torch.tensor(0.0)) == 0.0
    assert diagnosis._distance(case, True, minus, right, verdict, torch.tensor(0.125)) is None


def test_the_answer_that_comes_closest():
    answers = [Expected(torch.full((4,), float(v), dtype=torch.float64)) for v in (1, 2, 4)]
    expected = replace(answers[0], alternatives=answers[1:])
    for value, number in ((1.1, 0), (2.2, 1), (3.5, 2), (4.0, 2)):
        got = torch.full((4,), value)
        found = diagnosis.closest(got, expected, torch.float32)
        assert found.alternatives == [] and torch.equal(found.answer, answers[number].answer)
    mixed = torch.tensor([2.0, 2.0, 2.0, 9.0])  # most of it is the second's, though its last element is nearer to 4
    assert torch.equal(diagnosis.closest(mixed, expected, torch.float32).answer, answers[1].answer)
    assert compare.compare(mixed, expected, torch.float32).bad.tolist() == [False, False, False, True]


def test_shares_say_which_elements_are_wrong():
    right = torch.tensor([1.0, 2.0, math.inf, 4.0], dtype=torch.float64)
    got = torch.tensor([1.0, 2.0 + 1e-5, math.inf, math.nan])
    shares = diagnosis.shares(got, Expected(right), torch.float32)
    assert shares[0] == 0 and 1 < shares[1] < 1e4 and shares[2] <= 1 and shares[3] == math.inf
    fine = diagnosis.shares(got[:1] * (1 + 1e-6), Expected(right[:1], extra=1e-5), torch.float32)
    assert 0 < fine[0] <= 1


def test_what_cannot_be_compared_refutes_no_mutant():
    """An output that has no answer on a case, or that the kernel does not give there."""
    case, wrong = case_of(), mutant_of("wrong", 1.5)
    unasked = replace(SOFTMAX, expect=lambda *given, **named: {"y": None})
    y = softmax(SOFTMAX.build(case).arguments["x"])
    for contract, values in ((unasked, {"y": y}), (SOFTMAX, {}), (SOFTMAX, {"y": y[:1]}), (SOFTMAX, {"y": "?"})):
        for only_wrong in (False, True):
            found = {"y": [wrong]}
            diagnosis._held(contract, case, found, values, only_wrong)
            assert found == {"y": [wrong]}
    found = {"y": [wrong]}
    diagnosis._held(SOFTMAX, case, found, {"y": y}, only_wrong=True)
    assert found == {"y": [wrong]}  # the kernel is right there
    diagnosis._held(SOFTMAX, case, found, {"y": y}, only_wrong=False)
    assert found == {"y": []}


@pytest.mark.parametrize(
    ("off", "factor", "said"),
    [
        (0.9, 0.5, "0.5 x the answer"),
        (1.5, 0.5, None),
        (0.9, -1.5, "-1.5 x the answer"),
        (1.4, -1.5, "-1.5 x the answer"),  # the budget grows with a factor above 1
        (1.6, -1.5, None),
    ],
)
def test_a_factor_fits_within_its_budget(off, factor, said):
    answer = torch.linspace(10, 30, 40, dtype=torch.float64)
    tolerance = torch.full((40,), 0.01, dtype=torch.float64)
    value = factor * answer
    value[::10] += off * 0.01
    found = diagnosis._fitted(value, answer, tolerance, torch.ones(40, dtype=torch.bool), {}, 0.0)
    assert (found and found[1]) == said


@pytest.mark.parametrize(
    ("wrong_by", "apart_by", "near"),
    [(8.0, 1.9, True), (8.0, 2.1, False), (3.0, 1.4, True), (3.0, 1.6, False), (1.2, 0.7, False)],
)
def test_a_mutant_is_as_near_as_two_budgets_and_half_of_the_error(wrong_by, apart_by, near):
    case = case_of(4, 16)
    right = Expected(torch.linspace(1, 2, 64, dtype=torch.float64).reshape(4, 16), extra=1e-3, drift=math.inf)
    budget = diagnosis.budget.budget(right, torch.float32)
    mine = (right.answer + wrong_by * budget).float()
    other = (right.answer + (wrong_by + apart_by) * budget).float()
    distance = diagnosis._distance(case, False, mine, right, compare.compare(mine, right, torch.float32), other)
    assert distance == pytest.approx(apart_by, rel=0.01) if near else distance is None


@pytest.mark.parametrize(("slight", "told"), [(0.9, True), (1.1, False)])
def test_rows_of_their_own_factors_leave_the_others_as_they_are(slight, told):
    """A row that is barely wrong has the factor 1, within twice its budget; so has one plus a number of its own."""
    answer = torch.linspace(10, 30, 60, dtype=torch.float64).reshape(6, 10) ** 1.5
    tolerance, bad = torch.full_like(answer, 0.01), torch.ones(6, 10, dtype=torch.bool)
    for change, said in (
        (lambda row, n: row * n, "each row is a factor of its own times the answer, 2 to 6"),
        (lambda row, n: row + n, "each row is the answer plus a number of its own, 2 to 6"),
    ):
        value = torch.stack([change(row, n) for n, row in enumerate(answer, 1)])
        value[0] = answer[0] + slight * 0.01
        found = diagnosis._fitted(value, answer, tolerance, bad, {}, 0.0)
        assert found == ((1.0, said) if told else None)


@pytest.mark.parametrize(
    ("factor", "off", "told"), [(0.5, 0.9, True), (0.5, 1.2, False), (3.0, 2.9, True), (3.0, 3.1, False)]
)
def test_the_budget_of_a_row_grows_with_its_factor(factor, off, told):
    answer = torch.linspace(10, 30, 60, dtype=torch.float64).reshape(6, 10) ** 1.5
    tolerance, bad = torch.full_like(answer, 0.01), torch.ones(6, 10, dtype=torch.bool)
    factors = torch.tensor([factor, 1.5, 1.7, 1.9, 2.1, 2.3], dtype=torch.float64)[:, None]
    value = factors * answer
    value[0, ::3] += off * 0.01  # four of the ten: the median of the row stays
    found = diagnosis._fitted(value, answer, tolerance, bad, {}, 0.0)
    assert (found is not None and found[1].startswith("each row is a factor of its own")) == told


def test_a_picture_is_drawn_by_the_indices_of_elements(monkeypatch, tmp_path):
    drawn = {}

    class Plot:
        def __init__(self, **about):
            drawn.update(about)

        def __getattr__(self, name):
            return lambda *given, **named: drawn.__setitem__(name, (given, named)) or self

    monkeypatch.setitem(sys.modules, "matplotlib.figure", SimpleNamespace(Figure=Plot))
    fractions = torch.tensor([[0.01, 1.0, 100.0], [0.0, math.nan, 1.0]])
    heatmap.picture(fractions, tmp_path / "map.png", "a title")
    (shown,), about = drawn["imshow"]
    assert shown.tolist() == [pytest.approx(row) for row in ([-2, 0, 2], [-3, 3, 0])]
    extent = (-0.5, 2.5, 1.5, -0.5)
    tiles = dict(aspect="auto", interpolation="nearest")  # each cell of one colour, whatever the shape
    assert about == dict(cmap="coolwarm", vmin=-3, vmax=3, extent=extent, **tiles)
    assert drawn["colorbar"][1]["label"].startswith("log10(error / budget)")
    assert drawn["layout"] == "constrained" and drawn["figsize"] == (8, 5)
    words = drawn["set_title"][0], drawn["set_xlabel"][0], drawn["set_ylabel"][0]
    assert words == (("a title",), ("last axis",), ("first axis",)) and drawn["savefig"][0] == (tmp_path / "map.png",)
    heatmap.picture(torch.ones(3, 2000, 5), tmp_path / "map.png")
    assert drawn["imshow"][0][0].shape == (1000, 5) and drawn["imshow"][1]["extent"] == (-0.5, 4.5, 5999.5, -0.5)
    assert (drawn["imshow"][1]["vmin"], drawn["imshow"][1]["vmax"]) == (-1, 1)
    assert drawn["set_ylabel"][0] == ("other axes, folded",)
    heatmap.picture(torch.ones(4), tmp_path / "map.svg")
    assert drawn["set_ylabel"][0] == ("",)
    for rows, shown in ((1024, 1024), (1025, 513)):
        heatmap.picture(torch.ones(rows, 2), tmp_path / "map.png")
        assert drawn["imshow"][0][0].shape == (shown, 2)


@pytest.mark.parametrize(("roundings", "few"), [(1.0, True), (8.0, True), (8.5, False), (60.0, False)])
def test_a_few_partial_sums_are_off_by_no_more_than_eight_roundings(monkeypatch, roundings, few):
    monkeypatch.setattr(diagnosis, "roundings_of", lambda *given: roundings)
    answer = torch.linspace(10, 20, 64, dtype=torch.float64).reshape(4, 16)
    expected = Expected(answer, parts=[(torch.full((4, 16), 4096.0), torch.full((4, 16), 30.0))])
    got = (answer + torch.where(torch.arange(64) % 3 == 0, -3.0, 3.0).reshape(4, 16)).bfloat16()
    verdict = compare.compare(got, expected, torch.bfloat16)
    said = diagnosis.short_sums(got, expected, case_of(4, 16, "bfloat16"), verdict, lambda: (got, expected))
    assert said.startswith("no further off than") and ("a few partial sums" in said) == few


@pytest.mark.parametrize(("work", "tried"), [(1e7, True), (1.1e7, False)])
def test_mutants_are_run_on_cases_of_little_work_that_passed(monkeypatch, work, tried):
    """On the latest four of the case's dtype."""
    case = case_of()
    passed = [replace(case, seed=seed, dtype="float16" if seed == 3 else "float32") for seed in range(1, 8)]
    monkeypatch.setattr(type(SOFTMAX), "work", lambda contract, case: work)
    run = []
    own = planted("own", lambda x: run.append(x) or softmax(x))
    got = 2 * softmax(SOFTMAX.build(case).arguments["x"])
    verdict = compare.compare(got, SOFTMAX.expected(SOFTMAX.build(case))["y"], torch.float32)
    assert diagnosis.not_refuted(SOFTMAX, case, [own], got, verdict, passed) == [own]
    latest = [SOFTMAX.build(one).arguments["x"] for one in passed[-4:]]
    assert len(run) == (4 if tried else 0) and all(map(torch.equal, run, latest))


def test_of_the_cases_that_passed_there_is_one_of_each_family():
    passed = [case_of(values=name, cols=cols) for cols, name in ((5, "normal"), (5, "large"), (6, "normal"))]
    assert diagnosis._of_each_family(passed) == [passed[2], passed[1]]


def test_of_the_cases_that_passed_half_have_other_parameters():
    contract = registry.contract("activation")
    plain = plain_case(contract, "float32", "normal", size=dict(rows=3, cols=5))

    def cases(*names):
        return [replace(plain, params=(("activation", name),), seed=seed) for seed, name in enumerate(names)]

    def tried(*names, of="gelu"):
        found = diagnosis._apart_from(replace(plain, params=(("activation", of),)), cases(*names))
        return [dict(one.params)["activation"] + str(one.seed) for one in found]

    assert tried("gelu", "gelu") == ["gelu0", "gelu1"] and tried() == []
    assert tried("relu", *["gelu"] * 6) == ["relu0", "gelu4", "gelu5", "gelu6"]
    assert tried("silu", "relu", "elu", "relu", *["gelu"] * 3) == ["relu3", "elu2", "gelu5", "gelu6"]
    assert tried("silu", "relu", "elu") == ["relu1", "elu2", "silu0"]


@pytest.mark.parametrize(("count", "told"), [(64, True), (65, False)])
def test_of_many_wrong_rows_none_is_looked_for_elsewhere(monkeypatch, count, told):
    answer = torch.arange(700, dtype=torch.float64).reshape(70, 10) ** 1.3
    got = answer.clone()
    got[:count] = answer[1 : count + 1]
    bad = (got - answer).abs() > 1e-3
    monkeypatch.setattr(diagnosis, "COMPARED", 0)
    said = diagnosis._elsewhere(got, answer, torch.full_like(answer, 1e-4), bad, ("rows", "cols"))
    assert said == ((1.0, "the answer of another rows: that of 1 after") if told else None)


def test_a_mutants_answer_has_the_budget_of_the_right_one_and_of_what_it_moves_by():
    right = Expected(torch.tensor([[3.0, 1.0, 2.0]], dtype=torch.float64), extra=0.25)
    moved = diagnosis._moved_to(right, torch.tensor([[5.0, 1.0, -2.0]]))
    assert moved.answer.tolist() == [[5, 1, -2]] and moved.answer.dtype is torch.float64 and moved.drift == math.inf
    assert (moved.extra - 0.25).tolist() == [pytest.approx([2 * 2e-6, 0, 4 * 2e-6])]


@pytest.mark.parametrize(
    ("count", "but", "told"), [(16, 15, True), (15, 14, False), (15, None, True), (2, None, True), (1, None, False)]
)
def test_zeros_at_other_places_are_enough_to_tell_another_mask(count, but, told):
    here = torch.arange(40) % 2 == 0
    answer = torch.where(here, torch.linspace(1, 9, 40), 0.0).double().reshape(4, 10)
    got = torch.where(~here | (torch.arange(40) == but), torch.linspace(2, 5, 40), 0.0).reshape(4, 10)
    bad = (torch.arange(40) < count).reshape(4, 10)
    said = diagnosis.related(got, Expected(answer), case_of(4, 10), bad, ["rows", "cols"], False)
    assert (said or "").startswith("0 where the answer is not, and not 0 where it is") == told


@pytest.mark.parametrize(("work", "compared"), [(2e8, True), (2e8 + 1, False)])
def test_up_to_how_much_work_mutants_are_run(monkeypatch, work, compared):
    monkeypatch.setattr(type(SOFTMAX), "work", lambda contract, case: work)
    same = planted("same", lambda x: 2 * softmax(x))
    assert matches(lambda x: 2 * softmax(x), [same]) == ([same] if compared else [])


@pytest.mark.parametrize(("work", "sizes"), [(4e6, 3), (4e6 + 1, 0)])
def test_up_to_how_much_work_another_size_is_tried(monkeypatch, work, sizes):
    monkeypatch.setattr(type(SOFTMAX), "work", lambda contract, case: work)
    assert len(diagnosis._of_other_sizes(replace(SOFTMAX, also={}), case_of())) == sizes


def test_other_sizes_are_large_middling_and_small_ones():
    found = [SOFTMAX.work(one) for one in diagnosis._of_other_sizes(replace(SOFTMAX, also={}), case_of())]
    little = sorted(w for w in (SOFTMAX.work(case_of(**size)) for size in SOFTMAX.sizes) if w <= 4e6)
    assert found == sorted(found, reverse=True) and len(found) == 3
    assert found[0] == little[-1] and little[0] <= found[2] < little[len(little) // 2]


@pytest.mark.parametrize(("off", "told"), [(0.5, True), (0.51, False)])
def test_elements_at_other_places_are_those_of_the_answer_within_its_tolerance(off, told):
    answer = 10 * torch.arange(48, dtype=torch.float64).reshape(6, 8) ** 1.5
    moved = {
        "the answer moved by +1 along cols": answer.roll(1, 1),
        "the answer reversed along rows": answer.flip(0),
        "the answer with both halves along cols swapped": answer.roll(4, 1),
        "the answer with rows and cols swapped in memory": answer.mT.reshape(6, 8),
    }
    for text, value in moved.items():
        found = diagnosis._moved(value.round() + off, answer.round(), torch.full_like(answer, 0.5), ["rows", "cols"])
        assert found == (text if told else None)


def test_that_nan_is_not_unwritten_memory_is_no_cause():
    """It keeps nobody from looking for one; what is a cause does."""
    case = replace(case_of(3, 8), values="large")

    def no_maximum(x):
        e = torch.exp(x.float())
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)

    assert "the maximum is not subtracted" in diagnose(no_maximum, case, causes={"y": diagnosis.NAN})
    assert "maximum" not in diagnose(no_maximum, case, causes={"y": diagnosis.NOT_ZEROED})


def test_nan_beyond_a_bound_is_said_to_be_what_overflows():
    case = plain_case(registry.contract("glu"), "float32", "normal", size=dict(rows=3, cols=33))
    case = replace(case, params=(("activation", "sigmoid"),))

    def fn(gate, up, *, activation):
        return torch.where(gate > 50, bad, torch.sigmoid(gate)) * up

    bad = torch.tensor(math.nan)
    assert "(right up to" in (told := diagnose(fn, case)) and "overflows: inf/inf or inf - inf" in told
    bad = torch.tensor(0.5)
    assert "overflows" not in diagnose(fn, case)


def test_the_values_in_another_order_are_told_where_the_two_least_are_equal():
    answer = torch.tensor([7.0, 1.0, 1.0, 5.0, 3.0, 4.0], dtype=torch.float64)
    tolerance = torch.full_like(answer, 1e-3)
    assert (
        diagnosis._moved(answer[[3, 2, 5, 0, 1, 4]], answer, tolerance, ["cols"])
        == "the answer's values in another order"
    )


def test_any_draw_of_many_values_is_no_other_order_of_them():
    """Where neighbours among them are closer than what is allowed."""
    draws = torch.rand(2, 2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near = torch.full_like(draws[0], 0.05)
    assert bool((draws[0].sort().values - draws[1].sort().values).abs().lt(0.05).all())
    assert diagnosis._moved(*draws, near, ["cols"]) is None


def test_what_an_earlier_call_left_is_said_where_nothing_else_explains_an_answer(monkeypatch):
    monkeypatch.setattr(diagnosis.reading, "misread", lambda *_: None)
    monkeypatch.setattr(diagnosis.altered.Search, "alteration", lambda *_: None)
    noise = torch.rand(3, 65, generator=torch.Generator().manual_seed(0))
    told = diagnose(lambda x: noise, case_of(), kept=lambda: "it holds what was left there")
    assert "it holds what was left there" in told
    assert "left there" not in diagnose(lambda x: noise, case_of())
    monkeypatch.setattr(diagnosis.altered.Search, "alteration", lambda *_: "equals another reference")
    told = diagnose(lambda x: noise, case_of(), kept=lambda: "it holds what was left there")
    assert "equals another reference" in told and "left there" not in told


def test_zeros_that_were_there_before_are_what_a_rule_leaves_out():
    contract = registry.contract("matmul")
    case = plain_case(contract, "float32", next(iter(contract.values)), size=dict(M=41, N=70, K=9))

    def fn(a, b):
        c = a @ b
        c[:, c.shape[1] // 16 * 16 :] = 0
        return c

    def call(other):
        return contract.by_name(contract.call(fn, contract.build(other).arguments))

    text = diagnose(fn, case, call=call)
    rule = "all 0 there: the grid has the whole tiles along N alone: a quotient is rounded down (tiles of 16)"
    assert text.splitlines()[0].endswith(rule)
    assert "the grid has" not in diagnose(fn, case)


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (lambda y: y.sin(), True),
        (lambda y: y * torch.linspace(1, 2, len(y))[:, None], True),  # rows of their own factors
        (lambda y: y[:1].expand(y.shape), False),  # the answer of another row
        (lambda y: 2 * y, False),
    ],
)
def test_what_an_output_depends_on_is_asked_where_nothing_else_is_known(change, asked):
    text = diagnose(lambda x: change(softmax(x)), case_of(7, 65), mutants=False, depends=lambda output: f"on {output}")
    assert ("on y" in text) == asked
    known = {"y": "known"}
    assert "on y" not in diagnose(lambda x: softmax(x).sin(), case_of(), causes=known, depends=lambda output: "on y")


@pytest.mark.parametrize(("output", "text"), [("lse", diagnosis.LOG_OF_0), ("y", diagnosis.INFINITE)])
def test_the_logarithm_of_0_is_that_of_an_output_that_is_one(output, text):
    def fn(x):
        y, lse = softmax(x), torch.logsumexp(x.double(), -1).float()
        return (y, lse - math.inf) if output == "lse" else (y - math.inf, lse)

    assert f"; {text}" in diagnose(fn, case_of(4, 9, op="online_softmax"), mutants=False)


def test_rows_that_are_related_so_where_an_operand_repeats_its_values_only():
    """Along the rows of x the error follows x, which is one number in each row of this case."""
    plain = case_of(5, 40)
    broadcast = replace(plain, layouts=(("x", "broadcast_last"),))

    def off(x):
        return softmax(x) + x

    def call(other):
        return {"y": off(SOFTMAX.build(other).arguments["x"])}

    assert "each row is a factor of its own" in diagnose(off, broadcast, mutants=False)
    assert "each row is" not in diagnose(off, broadcast, call=call, mutants=False)
    times = lambda x: softmax(x) * torch.arange(2.0, 7.0)[:, None]  # noqa: E731
    again = lambda other: {"y": times(SOFTMAX.build(other).arguments["x"])}  # noqa: E731
    assert "each row is a factor of its own" in diagnose(times, broadcast, call=again, mutants=False)


def test_few_numbers_at_other_places_are_in_no_order():
    answer = torch.arange(1.0, 13.0).double().reshape(3, 4)
    names = ["rows", "cols"]

    def moved(*swapped):
        got = answer.reshape(-1).clone()
        got[[a for a, b in swapped for a in (a, b)]] = answer.reshape(-1)[[b for a, b in swapped for b in (b, a)]]
        return diagnosis._moved(got.reshape(3, 4), answer, torch.full((3, 4), 1e-6).double(), names)

    assert moved((0, 6)) is None and moved((0, 6), (3, 9)) == "the answer's values in another order"
