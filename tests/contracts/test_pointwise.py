"""Contracts of functions that act element by element: a formula and one line judge right and wrong kernels."""

import math
import types

import pytest
import torch

from touchstone.conformance.contracts import _activations as acts
from touchstone.conformance.contracts._bounds_rows import OPTIONAL
from touchstone.conformance.contracts._pointwise import ANY_RANK, SIZES, conditions, pointwise
from touchstone.conformance.faults import _pointwise as faults
from touchstone.conformance.faults import planted_in
from touchstone.conformance.spec import cases as generate
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.contract import Operand
from touchstone.reference._activations import torch_act, torch_act_grad


def shifted_square(x, bias):
    wide = x if bias is None else x + bias
    return wide + wide * wide


def plain_contract(**fields):
    contract = pointwise(
        shifted_square,
        {"x": Operand("rows cols"), "bias": Operand("cols", OPTIONAL)},
        exact={"integers": ["y"]},
        stored=(lambda x, bias: x if bias is None else x + bias, lambda z, x, bias: z + z * z),
        **fields,
    )
    contract.name = "shifted_square"
    return contract


def worst(contract, fn, dtypes=("float32", "float16", "bfloat16"), level="quick"):
    """The largest fraction of the budget over the cases of a level, or the first that is above 1."""
    found = []
    for case in generate.plan(contract, level, dtypes=dtypes).cases:
        if found and not found[-1] <= 1:
            return found[-1]
        if any(layout.startswith("far") for _, layout in case.layouts):
            continue
        inputs = contract.build(case)
        expected = contract.expected(inputs)
        for (name, want), got in zip(expected.items(), as_tuple(fn(*inputs.arguments.values())), strict=True):
            exact = name in contract.exact.get(case.values, ())
            found.append(compare.compare(got, want, case.torch_dtype, exact).fraction)
    return compare.worst(found)


CONTRACT = plain_contract()


def as_tuple(returned):
    return returned if isinstance(returned, tuple) else (returned,)


MODULE = types.SimpleNamespace()
faults.plant_pointwise(vars(MODULE), shifted_square, ("x", "bias"), ("bias",))


def planted(known_good):
    return [one for one in planted_in(MODULE, "shifted_square") if one.is_known_good == known_good]


@pytest.mark.parametrize("kernel", planted(True), ids=lambda one: one.name)
def test_known_good_kernels_leave_room(kernel):
    assert worst(CONTRACT, kernel.make()) < 0.9


@pytest.mark.parametrize("kernel", planted(False), ids=lambda one: one.name)
def test_each_planted_fault_is_outside_the_budget(kernel):
    for dtype in kernel.dtypes:
        assert not worst(CONTRACT, kernel.make(), (dtype,), "default") <= 1, dtype


def test_a_stored_intermediate_is_another_answer_and_a_narrower_one_is_not():
    def added(x, bias):
        return x.float() if bias is None else x.float() + bias.float()

    def through(dtype):
        return lambda x, bias: shifted_square(added(x, bias).to(dtype).float(), None).to(x.dtype)

    for dtype in ("float16", "bfloat16"):
        right = through({"float16": torch.float16, "bfloat16": torch.bfloat16}[dtype])
        assert worst(CONTRACT, right, (dtype,)) < 0.9
    assert worst(CONTRACT, through(torch.bfloat16), ("float16",)) > 1


def test_the_condition_is_that_of_the_derivatives():
    x, bias = torch.tensor([[3.0, -2.0]], dtype=torch.float64), torch.tensor([1.0, 5.0], dtype=torch.float64)
    (found,) = conditions(shifted_square, {"x": x, "bias": bias}, {})
    z = x + bias
    torch.testing.assert_close(found, (z + z * z).abs() + (1 + 2 * z).abs() * (x.abs() + bias.abs()))
    (found,) = conditions(torch.sqrt, {"input": torch.tensor([-1.0, math.nan], dtype=torch.float64)}, {})
    assert found.isnan().all()  # the contract takes NaN for no budget where the answer is NaN


def test_any_rank_has_cases_of_every_rank_and_layout():
    contract = pointwise(lambda a, b: a - b, ["a", "b"], axes=ANY_RANK, outputs=("c",))
    contract.name = "difference"
    assert worst(contract, lambda a, b: (a.float() - b.float()).to(a.dtype)) < 0.9
    assert worst(contract, lambda a, b: (b.float() - a.float()).to(a.dtype)) > 1
    cases = generate.plan(contract, "quick").general
    assert {dict(case.sizes)["trailing"] for case in cases} == {size["trailing"] for size in SIZES[ANY_RANK]}
    tried = {layout for case in cases for _, layout in case.layouts}
    assert tried >= set(contract.operands["a"].layouts)


def test_approximate_units_have_the_room_that_is_declared():
    contract = pointwise(torch.tanh, {"input": Operand("rows cols")}, approximate=lambda inputs, params: [2.0**-11])
    inputs = contract.build(generate.plain_case(contract, "float32", "normal"))
    off = torch.tanh(inputs.exact["input"]) + 2.0**-11
    for compute, ok in ((None, False), ("approximate", True)):
        verdict = compare.compare(off.float(), contract.expected(inputs, compute)["y"], torch.float32)
        assert verdict.ok == ok


def test_where_a_function_is_flat_an_error_of_its_argument_is_worth_nothing():
    z = torch.tensor([-50.0, 0.0, 3.0, math.nan, math.inf], dtype=torch.float64)
    size = torch.tensor([50.0, 2.0, 5.0, 1.0, math.inf], dtype=torch.float64)
    found = acts.moved(torch_act, z, "silu", size, acts.STEEPEST["silu"])
    assert found[0] < 1e-15 and found[3:].tolist() == [0, 0]
    torch.testing.assert_close(found[1:3], torch_act_grad(z[1:3], "silu") * size[1:3], rtol=1e-5, atol=0.0)
    bent = acts.moved(torch_act, torch.zeros(1, dtype=torch.float64), "relu", torch.ones(1), 1.0)
    jump = acts.moved(torch_act, torch.full((1,), 0.5, dtype=torch.float64), "hardshrink", torch.ones(1), 1.0)
    assert bent.item() == pytest.approx(1.0) and jump.item() == 1.0
