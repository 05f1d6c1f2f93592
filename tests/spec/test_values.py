"""Value families: what each has that a class of wrong kernels gets wrong."""

from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import values
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Draw

SHAPE = (20, 400)


def drawn(make, dtype="float32", shape=SHAPE, op="softmax", seed=0):
    contract = registry.contract(op)
    return make(Draw(plain_case(contract, dtype, "normal", seed), contract), shape)


def about(x):
    return float(x.mean()), float(x.std())


MOMENTS = {
    values.normal: (0, 1),
    values.large: (200, 20),
    values.shifted_negative: (-30, 1),
    values.positive: (1, 12**-0.5),
    values.binary: (0.5, 0.5),
}


@pytest.mark.parametrize("make", MOMENTS, ids=lambda make: make.__name__)
def test_mean_and_spread(make):
    mean, spread = MOMENTS[make]
    assert about(drawn(make)) == pytest.approx((mean, spread), rel=0.02, abs=0.05)


def test_ranges():
    assert set(drawn(values.binary).unique().tolist()) == {0, 1}
    assert float(drawn(values.positive).min()) >= 0.5 and float(drawn(values.positive).max()) < 1.5
    assert float(drawn(values.shifted_negative).max()) < 0


@pytest.mark.parametrize(
    ("dtype", "mean", "spread"), [("float32", 3000, 1), ("float16", 1000, 1), ("bfloat16", 100, 4)]
)
def test_a_mean_as_far_above_the_spread_as_the_dtype_resolves(dtype, mean, spread):
    assert about(drawn(values.mean_offset, dtype)) == pytest.approx((mean, spread), rel=0.02)


def test_rows_that_rise():
    x = drawn(values.ascending)
    assert float(x[:, :20].mean()) == pytest.approx(-3.7, abs=0.1) and float(x[:, -20:].mean()) == pytest.approx(
        7.7, abs=0.1
    )
    assert (x.cummax(-1).indices[:, ::40].diff() > 0).all()
    assert float(drawn(values.ascending, shape=(300, 1)).mean()) == pytest.approx(0, abs=0.1)
    assert drawn(values.ascending, shape=()).shape == (1,)


def test_rows_of_very_different_size():
    x = drawn(values.row_scales, shape=(18, 3, 200))
    assert x.std(dim=(1, 2)).log2().tolist() == pytest.approx([*range(-4, 5)] * 2, abs=0.15)
    assert float(x[8].mean()) == pytest.approx(0, abs=2)


@pytest.mark.parametrize(("shape", "axis"), [((4, 100), -1), ((4, 101), -1), ((100, 4), 0)])
def test_the_second_half_of_an_axis_is_about_minus_the_first(shape, axis):
    x = drawn(lambda draw, shape: values.cancelling(draw, shape, axis), shape=shape)
    half = shape[axis] // 2
    first, second = x.narrow(axis, 0, half), x.narrow(axis, shape[axis] - half, half)
    ratio = -second / first
    assert float(ratio.min()) > 1 and float(ratio.max()) < 1 + 2**-6 and float(ratio.std()) > 1e-3
    assert drawn(values.cancelling, shape=(3, 1)).abs().min() > 0


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_a_variance_about_as_large_as_eps(eps):
    contract = registry.contract("layer_norm")
    case = plain_case(contract, "float32", "normal")
    x = values.tiny(Draw(replace(case, params=(("eps", eps),)), contract), SHAPE)
    assert about(x[:, :-1]) == pytest.approx((0, eps**0.5), rel=0.05, abs=eps**0.5 / 20)
    assert float(x[:, -1].mean()) == pytest.approx(5 * eps**0.5, rel=0.2)


def test_the_tail_counts():
    zeros = torch.zeros(2, 400, dtype=torch.float64)
    assert values.lift_tail(zeros.clone()).tolist() == [[0] * 399 + [3]] * 2
    assert values.lift_tail(zeros.clone(), 7)[..., -1].tolist() == [7, 7]
    assert values.lift_square(zeros.clone(), 2)[..., -1].tolist() == [10, 10]  # 2 sqrt(400) / 4
    assert values.lift_square(zeros[:, :9].clone())[..., -1].tolist() == [3, 3]
    assert values.lift_tail(torch.zeros(())).item() == 0 and values.lift_tail(torch.zeros(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("terms", [1, 500, 5000])
def test_what_many_terms_are_beside_a_large_one(terms):
    assert values.small_addend(terms) * terms == pytest.approx(values.LARGE_ADDEND / 128, rel=1e-12)
    assert values.small_addend(0) == values.small_addend(1) and values.LARGE_ADDEND == 512


def test_a_family_draws_every_operand_that_is_not_derived():
    contract = registry.contract("attention_backward")
    draw = Draw(plain_case(contract, "float32", next(iter(contract.values))), contract)
    made = values.each(values.normal)(draw)
    assert {name: tuple(x.shape) for name, x in made.items()} == {
        name: contract.operand_shape(name, draw.case)
        for name, operand in contract.operands.items()
        if not operand.derived
    }
    assert {"o", "lse"}.isdisjoint(made)


def test_common_families_lift_the_tail():
    assert set(values.COMMON) == {"normal", "ascending", "row_scales", "positive"}
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal")
    made = values.COMMON["normal"](Draw(case, contract))["x"]
    plain = values.normal(Draw(case, contract), made.shape)
    assert torch.equal(made[..., :-1], plain[..., :-1]) and torch.allclose(made[..., -1], plain[..., -1] + 3)
