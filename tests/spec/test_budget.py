"""The comparator: what passes, what fails, and what it says."""

import math
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from touchstone.conformance.spec import compare as comparing
from touchstone.conformance.spec.budget import EPS, ROUNDED, Expected, T, budget, dot_extra, overflow_threshold
from touchstone.conformance.spec.compare import compare

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIXTEEN = (torch.float16, torch.bfloat16)
NAN, INF = math.nan, math.inf


def f64(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ulp(dtype: torch.dtype, value: float) -> float:
    return EPS[dtype] * 2.0 ** math.floor(math.log2(abs(value)))


def test_what_a_declared_precision_rounds_its_operands_to():
    """The distance of 1 from the next number: tf32 has 10 bits of a fraction, and two pieces of it have a bit more than
    twice as many."""
    assert {"bf16": torch.finfo(torch.bfloat16).eps, "tf32": 2.0**-10, "tf32x3": 2.0**-21} == ROUNDED


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("got", [NAN, INF, -INF])
def test_a_non_finite_value_never_passes_for_a_finite_answer(dtype, got):
    expected = Expected(f64(1.0, 2.0), parts=[(10**6, 1000.0)], rounding=1e3)
    verdict = compare(torch.tensor([1.0, got], dtype=dtype), expected, dtype)
    assert not verdict.ok
    assert verdict.first == verdict.worst == (1,)


@pytest.mark.parametrize("got", [0.0, 1.0, INF, -INF])
def test_only_nan_passes_where_the_answer_is_nan(got):
    expected = Expected(f64(NAN))
    assert not compare(torch.tensor([got]), expected, torch.float32).ok
    assert compare(torch.tensor([NAN]), expected, torch.float32).ok


def test_infinities_need_their_sign():
    expected = Expected(f64(INF, -INF))
    assert compare(torch.tensor([INF, -INF]), expected, torch.float32).ok
    for got in ([INF, INF], [-INF, INF], [INF, torch.finfo(torch.float32).min], [NAN, -INF]):
        assert not compare(torch.tensor(got), expected, torch.float32).ok


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_budget_that_is_not_a_number_lets_nothing_through(bad):
    expected = Expected(f64(1.0), parts=[(1, f64(bad))])
    assert not compare(torch.tensor([1.0]), expected, torch.float32).ok


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_either_side_of_the_largest_finite_value(dtype, sign):
    largest = torch.finfo(dtype).max
    step = ulp(dtype, largest)
    threshold = largest + step / 2

    def passes(got: float, answer: float) -> bool:
        return compare(torch.tensor([sign * got], dtype=dtype), Expected(f64(sign * answer)), dtype).ok

    assert overflow_threshold(dtype) == threshold
    assert passes(largest, largest)
    assert passes(INF, largest)  # one rounding below infinity: the budget reaches the threshold
    assert passes(largest, threshold)
    assert passes(INF, threshold)
    assert passes(INF, largest + 10 * step)
    assert not passes(largest, largest + 10 * step)  # saturated
    assert not passes(INF, largest - 10 * step)
    assert not passes(-INF, largest + 10 * step)


def test_float16_overflow_by_its_numbers():
    def passes(got: float, answer: float, parts=()) -> bool:
        return compare(torch.tensor([got], dtype=torch.float16), Expected(f64(answer), parts=parts), torch.float16).ok

    assert passes(65504.0, 65519.0)
    assert passes(INF, 65520.0)
    assert not passes(INF, 65400.0)
    assert not passes(65504.0, 65600.0)
    wide = [(1, 2e8)]  # a condition so large that both sides are within the budget
    assert passes(65504.0, 65600.0, wide)
    assert passes(INF, 65400.0, wide)


def test_a_wider_number_is_held_to_where_its_dtype_overflows():
    """65600 ± 48.046875: with as much again as is missing, the smallest number that is allowed rounds to infinity."""
    for extra, ok in ((31.953125, False), (31.96875, True), (31.9375, False)):
        expected = Expected(f64(65600.0), extra=extra)
        assert compare(f64(65600.0), expected, torch.float16).ok == ok
    for extra, ok in ((72.099609375, True), (72.099, False)):  # 65400 + 47.900390625: up to 65520 it is not infinite
        assert compare(f64(INF), Expected(f64(65400.0), extra=extra), torch.float16).ok == ok


def test_exact_families_are_compared_bit_by_bit():
    expected = Expected(f64(3.0, 5.0), parts=[(1000, 1000.0)])
    off = torch.tensor([3.0, math.nextafter(5.0, 6.0) + 2.0**-21])
    assert compare(off, expected, torch.float32).ok
    verdict = compare(off, expected, torch.float32, exact=True)
    assert not verdict.ok
    assert "bit-equal" in verdict.message
    assert verdict.first == (1,)
    assert compare(torch.tensor([3.0, 5.0]), expected, torch.float32, exact=True).ok
    assert not compare(torch.tensor([3.0, NAN]), expected, torch.float32, exact=True).ok
    rounded = Expected(f64(257.0))  # no bfloat16: the exact answer is what rounding makes of it
    right = compare(torch.tensor([256.0], dtype=torch.bfloat16), rounded, torch.bfloat16, exact=True)
    assert right.ok and right.fraction == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_what_has_bits_of_its_own_is_compared_by_them(dtype):
    """A NaN is one as good as another; nothing else is near."""
    expected = Expected(f64(0.0, 7.0, NAN if dtype.is_floating_point else 3.0), bitwise=True, dtype=dtype)
    right = compare(expected.answer.to(dtype), expected, torch.float32)
    assert right.ok and right.fraction == 0 and right.bad is None
    got = expected.answer.to(dtype)
    got[1] = 8
    wrong = compare(got, expected, torch.float32)
    assert (wrong.worst, wrong.fraction) == ((1,), INF) and wrong.message.endswith("must be equal bit by bit")
    if dtype.is_floating_point:
        got = expected.answer.to(dtype) * f64(-1.0, 1.0, 1.0).to(dtype)
        assert compare(got, expected, torch.float32).worst == (0,)  # of -0.0 too


def test_the_whole_tensor_must_match_one_alternative():
    one, other = f64(1.0, 2.0, 3.0), f64(1.5, 2.5, 3.5)
    expected = Expected(one, alternatives=[Expected(other)])
    assert compare(one.float(), expected, torch.float32).ok
    assert compare(other.float(), expected, torch.float32).ok
    mixed = compare(torch.tensor([1.0, 2.5, 3.5]), expected, torch.float32)
    assert not mixed.ok
    assert mixed.fraction > 1


def test_the_alternative_that_comes_closest_is_reported():
    expected = Expected(f64(100.0), alternatives=[Expected(f64(1.0))])
    assert "expected 1 " in compare(torch.tensor([1.1]), expected, torch.float32).message


def test_further_alternatives_are_looked_for_until_the_output_is_one_of_them():
    def further(*values):
        for value in values:
            yield Expected(f64(value), note=f"is {value}")
        raise AssertionError("another was looked for")

    expected = Expected(f64(100.0), otherwise=lambda: further(1.0, 2.0))
    assert compare(torch.tensor([2.0]), expected, torch.float32).note == "is 2.0"
    assert not compare(torch.tensor([100.0]), expected, torch.float32).note
    with pytest.raises(AssertionError, match="another"):
        compare(torch.tensor([3.0]), expected, torch.float32)


def test_float16_subnormals_are_judged_by_the_smallest_normal():
    tiny, step = torch.finfo(torch.float16).tiny, 2.0**-24
    answers = torch.arange(1, 200, dtype=torch.float64) * 0.37 * step
    assert float(answers.max()) < tiny
    expected = Expected(answers)
    assert compare(answers.half(), expected, torch.float16).ok
    verdict = compare((answers + 2 * step).half(), expected, torch.float16)
    assert not verdict.ok


def test_flushing_float32_and_bfloat16_subnormals_is_allowed():
    for dtype in (torch.float32, torch.bfloat16):
        assert compare(torch.zeros(1, dtype=dtype), Expected(f64(1e-39)), dtype).ok
    assert not compare(torch.zeros(1, dtype=torch.float16), Expected(f64(2.0**-14)), torch.float16).ok


def truncated(x: torch.Tensor) -> torch.Tensor:
    """float32 to bfloat16 by dropping the low half."""
    return (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()


def test_drift_tells_truncation_from_rounding():
    generator = torch.Generator().manual_seed(0)
    # mantissas above 1.4, where truncation stays inside the elementwise budget
    x = torch.rand(4000, generator=generator) * 0.5 + 1.45
    expected = Expected(x.double())
    assert compare(x.bfloat16(), expected, torch.bfloat16).ok
    verdict = compare(truncated(x), expected, torch.bfloat16)
    assert not verdict.ok
    assert verdict.message.endswith("truncated instead of rounded to nearest, or something systematic is missing")
    assert verdict.fraction > 1
    both = torch.where(torch.arange(4000) % 2 == 0, x, -x)  # truncation goes towards zero
    assert not compare(truncated(both), Expected(both.double()), torch.bfloat16).ok
    assert compare(truncated(x), Expected(x.double(), drift=INF), torch.bfloat16).ok
    assert compare(truncated(x[:400]), Expected(x[:400].double()), torch.bfloat16).ok  # too few to tell


def test_what_errors_that_lean_look_like():
    def told(x, factor, cut=False):
        expected = Expected(x.double(), parts=[(1.0, 2.0**12 * x.double())])
        y = x * (1 + torch.as_tensor(factor) * EPS[torch.bfloat16])
        verdict = compare(truncated(y) if cut else y.bfloat16(), expected, torch.bfloat16)
        return verdict.message.split("0.06): ")[1]

    generator = torch.Generator().manual_seed(0)
    x, wide = (torch.rand(rows, 500, generator=generator) * 0.5 + 1.45 for rows in (8, 64))
    rounding = "instead of rounded to nearest, or something systematic is missing"
    assert told(x, 0.0, cut=True) == f"truncated {rounding}" and told(x, 0.4) == f"rounded away from 0 {rounding}"
    share = (
        "% are a unit off, so not truncated: a rounding before the last, or another one of ties, a number that many "
        "elements share is off, or something systematic "
    )
    assert share in told(x, 0.1)
    slices = "another mean in each slice of axis {}, {} eps: a number that the slice shares is off"
    rows = torch.tensor([0.3, -0.1, 0.2, 0.1, 0.0, 0.3, 0.2, -0.1])[:, None]
    assert re.fullmatch(slices.format(0, r"-0\.\d+ to \+0\.\d+"), told(x, rows))
    assert re.fullmatch(slices.format(1, ".*"), told(wide, 0.1 + torch.randn(500, generator=generator) / 5))
    assert share in told(wide[:24, :30], rows.repeat(3, 1))  # no slice has enough
    assert rounding in told(wide[:, :20].repeat_interleave(50, 1), 0.0, cut=True)  # what repeats counts once


def test_drift_counts_a_value_once():
    """One value that went to the other neighbour, repeated, is no truncation."""
    up = torch.full((4000,), 1.5 + EPS[torch.bfloat16])
    answer = torch.full((4000,), 1.5 + 0.4 * EPS[torch.bfloat16], dtype=torch.float64)
    assert compare(up.bfloat16(), Expected(answer), torch.bfloat16).ok


finite_or_not = st.floats(allow_nan=True, allow_infinity=True, width=64)
near = st.one_of(finite_or_not, st.floats(-70000, 70000), st.floats(-1e-4, 1e-4), st.floats(3.3e38, 3.5e38))


@settings(max_examples=200, deadline=None)
@given(values=st.lists(near, min_size=1, max_size=20), dtype=st.sampled_from(DTYPES))
def test_a_correctly_rounded_answer_always_passes(values, dtype):
    answer = f64(*values)
    verdict = compare(answer.to(dtype), Expected(answer), dtype)
    assert verdict.ok, verdict.message
    assert verdict.fraction <= 0.5 / T + 1e-6


@settings(max_examples=100, deadline=None)
@example(value=255.0, sign=1, steps=2, dtype=torch.bfloat16)  # across a power of two
@example(value=256.0, sign=1, steps=-2, dtype=torch.bfloat16)
@given(
    value=st.floats(1e-3, 1e3),
    sign=st.sampled_from([1, -1]),
    steps=st.sampled_from([2, -2]),
    dtype=st.sampled_from(DTYPES),
)
def test_the_number_after_the_next_never_passes(value, sign, steps, dtype):
    answer = torch.tensor([value * sign], dtype=dtype)
    bits = torch.int32 if dtype is torch.float32 else torch.int16
    off = (answer.view(bits) + steps).view(dtype)  # sign and magnitude: neighbours differ by one
    assert not compare(off, Expected(answer.double()), dtype).ok


def test_fraction_is_error_over_budget():
    expected = Expected(f64(0.0, 0.0), parts=[(8, 1.0)])
    allowed = float(budget(expected, torch.float32)[0])
    assert allowed == pytest.approx(2 * EPS[torch.float32] * 4, rel=1e-3)
    verdict = compare(torch.tensor([0.0, allowed / 2]), expected, torch.float32)
    assert verdict.ok
    assert verdict.fraction == pytest.approx(0.5, rel=1e-3)
    verdict = compare(torch.tensor([0.0, 3 * allowed]), expected, torch.float32)
    assert verdict.fraction == pytest.approx(3, rel=1e-3)
    assert "3 of the budget" in verdict.message


def test_parts_and_rounding_and_extra_add_up():
    answer = f64(2.0)
    alone = budget(Expected(answer), torch.bfloat16)
    full = Expected(answer, parts=[(1, 1.0), (92, 0.5)], rounding=3.0, extra=0.25)
    more = 2 * EPS[torch.float32] * (3.0 + 10 * 0.5) + T * EPS[torch.bfloat16] * 3.0 + 0.25
    assert float(budget(full, torch.bfloat16) - alone) == pytest.approx(more)


def test_an_output_with_a_dtype_of_its_own_is_held_to_it():
    """lse is float32 whatever the inputs are: bfloat16's step is no excuse."""
    expected = Expected(f64(1.0), dtype=torch.float32)
    assert not compare(torch.tensor([1.0 + 2.0**-10]), expected, torch.bfloat16).ok
    assert compare(torch.tensor([1.0 + 2.0**-10]), Expected(f64(1.0)), torch.bfloat16).ok


def test_first_and_worst_indices():
    answer = torch.ones(3, 4, dtype=torch.float64)
    got = answer.float()
    got[1, 2], got[2, 3] = 1.1, 2.0
    verdict = compare(got, Expected(answer), torch.float32)
    assert verdict.first == (1, 2)
    assert verdict.worst == (2, 3)
    assert verdict.bad.nonzero().tolist() == [[1, 2], [2, 3]]
    assert "2 of 12" in verdict.message
    assert "first at [1, 2]" in verdict.message
    assert "worst at [2, 3]: got 2, expected 1" in verdict.message
    got[2, 3] = 1.0
    alone = compare(got, Expected(answer), torch.float32)
    assert alone.message.startswith("1 of 12 elements wrong; first at [1, 2]: got 1.10000002, expected 1 ±")
    assert "worst" not in alone.message  # it is the first


def test_the_worst_element_is_one_that_fails():
    """A NaN in its right place has no error, whatever the arithmetic makes of it."""
    verdict = compare(torch.tensor([NAN, 1.0, 5.0]), Expected(f64(NAN, 1.0, 2.0)), torch.float32)
    assert verdict.first == verdict.worst == (2,)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0)])
def test_nothing_to_compare_passes(shape):
    verdict = compare(torch.empty(shape), Expected(torch.empty(shape, dtype=torch.float64)), torch.float32)
    assert verdict.ok
    assert verdict.fraction == 0


def test_a_budget_is_computed_once_for_all_that_is_compared_with_an_answer(monkeypatch):
    made = []
    monkeypatch.setattr(comparing, "budget", lambda *args: made.append(args) or budget(*args))
    one, other = (Expected(torch.tensor([1.0, 2.0], dtype=torch.float64)) for _ in range(2))
    got = torch.tensor([1.0, 2.0])
    assert [compare(values, one, torch.float32).ok for values in (got, got + 1, got)] == [True, False, True]
    assert len(made) == 1
    assert compare(got, other, torch.float32).ok and compare(got.half(), one, torch.float16).ok and len(made) == 3
    assert compare(torch.ones(3, 1), Expected(torch.ones((), dtype=torch.float64)), torch.float32).ok and len(made) == 4


def test_an_answer_may_broadcast():
    expected = Expected(f64(1.0, 2.0, 3.0), parts=[(4, f64(1.0))])
    got = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 9.0]])
    verdict = compare(got, expected, torch.float32)
    assert verdict.worst == (1, 2)
    assert compare(got[:1], expected, torch.float32).ok
    assert not compare(got, expected, torch.float32, exact=True).ok


def test_zero_is_judged_absolutely_by_the_condition():
    """Cancellation: what the inputs make unavoidable is allowed, and no more."""
    expected = Expected(f64(0.0), parts=[(1, 100.0)])
    allowed = 2 * EPS[torch.float32] * 3 * 100
    assert compare(torch.tensor([0.9 * allowed]), expected, torch.float32).ok
    assert not compare(torch.tensor([1.1 * allowed]), expected, torch.float32).ok
    assert not compare(torch.tensor([1e-20]), Expected(f64(0.0)), torch.float32).ok


def test_a_declared_precision_widens_by_its_own_rounding():
    answer, squares = f64(10.0), f64(4.0)
    assert dot_extra(None, answer, squares) == 0.0
    tf32, three = dot_extra("tf32", answer, squares), dot_extra("tf32x3", answer, squares)
    assert float(tf32) == pytest.approx(2.0**-10 * 28)
    assert float(three) == pytest.approx(float(tf32) * 2.0**-11)
