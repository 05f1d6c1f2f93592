"""What the contracts of sums of products share: sums of equal addends, factors, and the laws."""

import pytest
import torch

from touchstone.conformance.contracts._laws import additive_on_integers, doubles
from touchstone.conformance.contracts._multilinear import expectation, informative, multilinear
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import budget
from touchstone.conformance.spec.cases import plain_case, plan
from touchstone.conformance.spec.contract import Operand


def total(x, *, alpha=1.0):
    return alpha * x.sum(0)


def contract(**more):
    made = multilinear(
        total,
        operands={"x": Operand("n cols")},
        output="y",
        axes="cols",
        along="n",
        terms=lambda inputs, params: inputs["x"].shape[0],
        sizes=[{"n": 37, "cols": 3}, {"n": 0, "cols": 3}, {"n": 130, "cols": 2}],
        **more,
    )
    made.name = "total"
    return made


def fraction(values, add):
    """The error of float32 values that are added up by `add`, over its budget."""
    expect = expectation(total, "y", lambda inputs, params: inputs["x"].shape[0])
    expected = expect({"x": values.double()}, {}, dtype=torch.float32)["y"]
    return compare.compare(add(values), expected, torch.float32).fraction


def one_after_another(values):
    return torch.from_numpy(values.numpy().cumsum(0, dtype="float32")[-1].copy())


@pytest.mark.parametrize("count", [37, 1025, 70001, 2**20])
def test_equal_addends_may_be_added_one_after_another(count):
    """Their roundings lean one way; those of others do not, and have the root of the terms."""
    values = torch.full((count, 1), 0.1) * torch.tensor([1.0, 0.7, -3.3])
    assert fraction(values, one_after_another) < 0.5
    other = values * (0.5 + torch.arange(count)[:, None] / count)
    bounds = [
        budget(expectation(total, "y", lambda i, p: count)({"x": v.double()}, {}, dtype=torch.float32)["y"], v.dtype)
        for v in (values, other)
    ]
    assert bool((bounds[0] > 3 * bounds[1]).all()) == (count > 1000)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_addend_among_equal_ones_shows(lost):
    values = torch.full((1025, 2), 0.1)
    assert fraction(values, lambda x: one_after_another(x[lost:])) > 1


def test_factors_count_with_their_size():
    expect = expectation(total, "y", lambda inputs, params: 5, factors=("alpha",))
    x = torch.tensor([[1.0, 2.0]] * 4 + [[-3.0, 1.0]], dtype=torch.float64)
    (condition,) = [c for _, c in expect({"x": x}, {"alpha": -2.0}, dtype=torch.float32)["y"].parts]
    assert condition.tolist() == [14.0, 18.0]


def test_a_sum_in_float16_is_allowed_what_each_addition_rounds():
    expect = expectation(total, "y", lambda inputs, params: inputs["x"].shape[0])
    x = torch.randn((300, 8), generator=torch.Generator().manual_seed(0)).half()
    running = torch.zeros(8, dtype=torch.float16)
    for row in x:
        running = running + row
    for compute, right in (("half_sum", True), (None, False)):
        expected = expect({"x": x.double()}, {}, dtype=torch.float16, compute=compute)["y"]
        assert compare.compare(running, expected, torch.float16).ok == right


def test_every_family_is_drawn_where_it_is_valid():
    made = contract()
    drawn = {case.values for case in plan(made, "quick").general if made.build(case).exact["x"].numel()}
    assert drawn == set(made.values)
    for case in plan(made, "default").general:
        exact = made.build(case).exact["x"]
        assert case.values != "overflowing" or bool((exact.sum(0) > torch.finfo(torch.float16).max).any())
        assert case.values not in ("one_nan",) or exact.isnan().sum() >= 1


@pytest.mark.parametrize(
    ("family", "size", "dtype", "valid"),
    [
        ("normal", 0, "float32", True),
        ("positive", 0, "float32", False),
        ("overflowing", 37, "float16", True),
        ("overflowing", 37, "float32", False),
        ("overflowing", 130, "float16", False),
    ],
)
def test_what_is_no_case(family, size, dtype, valid):
    case = plain_case(contract(), dtype, family, 0, {"n": size, "cols": 3})
    assert informative("n")(case) == valid
    assert informative(lambda params: "cols")(plain_case(contract(), "float16", "overflowing")) is True


@pytest.mark.parametrize(
    ("law", "wrong"),
    [(doubles("x"), lambda x: (x.sum(0) + 1.0,)), (additive_on_integers("x"), lambda x: (x[:-1].sum(0) + 1.0,))],
)
def test_laws(law, wrong):
    made = contract()
    for dtype in made.dtypes:
        inputs = made.build(plain_case(made, dtype, "normal"))
        for call, broken in ((lambda x: (x.float().sum(0).to(x.dtype),), False), (wrong, True)):
            outputs = call(**inputs.arguments)
            assert (law.check(call, inputs.arguments, outputs, inputs.case) is not None) == broken


def test_nan_in_any_factor_has_a_family():
    axes = {"operands": {"a": Operand("n"), "b": Operand("n")}, "sizes": [{"n": 9}], "along": "n", "axes": ""}
    made = multilinear(lambda a, b: (a * b).sum(), output="y", terms=lambda inputs, params: 9, **axes)
    made.name = "product"
    for family, name in (("one_nan", "a"), ("other_nan", "b")):
        exact = made.build(plain_case(made, "float32", family)).exact
        assert [n for n, tensor in exact.items() if tensor.isnan().any()] == [name]


def test_no_part_of_a_long_sum_can_be_left_out():
    made = contract()
    made.sizes = [{"n": 70001, "cols": 2}]
    inputs = made.build(plain_case(made, "float32", "normal"))
    expected = made.expected(inputs)["y"]
    for n in (65536, 69000):
        assert not compare.compare(inputs.placed["x"].view[:n].sum(0), expected, torch.float32).ok
