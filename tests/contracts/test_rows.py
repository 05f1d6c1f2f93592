"""The contracts of the row-wise ops: their cases, properties and invalid calls, and the room that their budgets
leave."""

import importlib
from functools import cache

import pytest
import torch

from tests.night import some
from touchstone.backends import shapes
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import planted_in
from touchstone.conformance.spec import cases as generate
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.cases import plain_case

SPECS = {
    "softmax": "rows cols",
    "online_softmax": "rows cols",
    "softmax_backward": "rows cols, rows cols",
    "layer_norm": "rows cols, cols, cols?",
    "rms_norm": "rows cols, cols",
    "layer_norm_backward": "rows cols, cols, rows cols, rows:float32?, rows:float32?",
    "rms_norm_backward": "rows cols, cols, rows cols, rows:float32?",
    "group_norm": "N C ..., C, C?",
    "add_layer_norm": "rows cols, rows cols, cols, cols?",
    "add_rms_norm": "rows cols, rows cols, cols",
}


@cache
def _built(op):
    contract = registry.contract(op)
    return contract, [contract.build(case) for case in generate.plan(contract, "default").cases]


@cache
def _prepared(op):
    contract, built = _built(op)
    return contract, [(inputs, contract.expected(inputs)) for inputs in built]


def _planted(op, known_good):
    module = importlib.import_module(f"touchstone.conformance.faults.{op}")
    return [planted for planted in planted_in(module, op) if planted.is_known_good == known_good]


def _caller(contract, fn):
    """`fn` by keyword, as a property calls a kernel: operands that are positional by the op's signature go in by
    position."""
    positional = [name for name, operand in contract.operands.items() if operand.positional]

    def call(**arguments):
        outputs = fn(*[arguments.pop(name) for name in positional], **arguments)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return call


def _verdict(contract, inputs, name, want, got):
    exact = name in contract.exact.get(inputs.case.values, ())
    return compare.compare(got, want, inputs.case.torch_dtype, exact)


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.parametrize("op", SPECS)
def test_the_rounded_answer_passes(op):
    contract, prepared = _prepared(op)
    for inputs, expected in prepared:
        case = inputs.case
        for name, want in expected.items():
            got = want.answer.to(want.dtype or case.torch_dtype)
            assert got.shape == contract.shape(contract.outputs[name].axes, case.size)
            verdict = _verdict(contract, inputs, name, want, got)
            assert verdict.ok, f"{case.id}: {name}: {verdict.message}"


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.parametrize("op", SPECS)
def test_known_good_kernels_leave_room_in_the_budget(op):
    contract, prepared = _prepared(op)
    known_good = _planted(op, known_good=True)
    assert len(known_good) >= 3
    for kernel in known_good:
        call = _caller(contract, kernel.make())
        for inputs, expected in prepared:
            for (name, want), got in zip(expected.items(), call(**inputs.arguments), strict=True):
                fraction = _verdict(contract, inputs, name, want, got).fraction
                assert fraction < 0.9, f"{kernel.name}, {inputs.case.id}: {name}: {fraction:.3f} of the budget"


@pytest.mark.slow
@pytest.mark.parametrize("op", some(list(SPECS), 3))
def test_cases_have_every_size_and_layout(op):
    contract, built = _built(op)
    covered = {case.sizes for case in generate.plan(contract, "quick").general}
    assert covered == {tuple(size.items()) for size in (*contract.sizes, *contract.beyond_grid)}
    for operand, spec in contract.operands.items():
        tried = {inputs.case.layout[operand] for inputs in built}
        assert tried >= set(spec.layouts)


@pytest.mark.slow
@pytest.mark.parametrize("op", SPECS)
def test_properties_hold_and_can_be_broken(op):
    contract = registry.contract(op)
    known_good, mutants = _planted(op, known_good=True), _planted(op, known_good=False)
    for prop in contract.properties:
        broken = set()
        for dtype in contract.dtypes:
            case = plain_case(contract, dtype, prop.values)
            arguments = contract.build(case).arguments

            def check(planted, prop=prop, case=case, arguments=arguments):
                call = _caller(contract, planted.make())
                return prop.check(call, arguments, call(**arguments), case)

            for kernel in known_good:
                assert check(kernel) is None, f"{prop.name}: {kernel.name} in {dtype}"
            broken |= {mutant.name for mutant in mutants if dtype in mutant.dtypes and check(mutant)}
        assert broken, f"{prop.name}: no mutant breaks it"


@pytest.mark.slow
@pytest.mark.parametrize("op", SPECS)
def test_invalid_calls_are_invalid_and_named(op):
    contract, built = _built(op)

    def launch(**arguments):
        shapes(SPECS[op], **{name: arguments[name] for name in contract.operands})
        groups = arguments.get("groups", 1)
        if groups < 1 or arguments["x" if "x" in arguments else "y"].shape[1] % groups:
            raise ValueError(f"groups: {groups} does not divide the channels")

    for inputs in built:
        launch(**inputs.arguments)
    valid = contract.build(plain_case(contract, "float32", "normal")).arguments
    for invalid in contract.invalid:
        with pytest.raises(invalid.error, match=invalid.match):
            launch(**invalid.spoil(valid))


def test_products_rounded_before_dweight_sums_them_are_accepted_with_a_note():
    """As autograd of a norm in 16 bits has it; not sums in 16 bits, nor rounded products of an x̂ that was not."""
    contract = registry.contract("rms_norm_backward")
    case = plain_case(contract, "bfloat16", "cancelling_rows", size={"rows": 130, "cols": 33})
    inputs = contract.build(case)
    expected = contract.expected(inputs)["dweight"]
    x, dy = inputs.arguments["x"], inputs.arguments["dy"]
    wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + case.param["eps"])
    stored = wide.bfloat16()

    def verdict(products, sum_dtype=torch.float32):
        total = torch.zeros(33, dtype=sum_dtype)
        for row in products:
            total = total + row.to(sum_dtype)
        return compare.compare(total.bfloat16(), expected, torch.bfloat16)

    rounded = verdict(dy * stored)
    assert rounded.ok and "rounded to the input's dtype before it is summed" in rounded.note
    for right in (dy.float() * wide, dy.float() * stored.float()):
        assert verdict(right).ok and not verdict(right).note
    assert verdict(dy * stored, torch.bfloat16).fraction > 10
    assert verdict((dy.float() * wide).bfloat16()).fraction > 10
