"""The laws that contracts share: each holds for a right function and is broken by a wrong one."""

import pytest
import torch

from touchstone.conformance.contracts._laws import adjoint, equals_op, integers_of, relabels
from touchstone.conformance.spec.budget import simple
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Contract, Operand, Output
from touchstone.conformance.spec.values import normal


def product(a, x):
    return ((a.float() @ x.float()).to(a.dtype),)


def on_integers(arguments, case):
    return {name: integers_of(tensor) for name, tensor in arguments.items()}


def backward(call, arguments, ys):
    return call(a=arguments["a"].t(), x=ys[0])


def of_ones(arguments, case):
    return {**arguments, "x": torch.ones_like(arguments["x"])}


def sums(exact, case):
    return {"y": simple(exact["a"].sum(1), terms=exact["a"].shape[1])}


def turned(arguments, case):
    return {"a": arguments["a"].flip(0), "x": arguments["x"]}


def backwards(outputs, case):
    return [y.flip(0) for y in outputs]


def last_lost(a, x):
    return product(a[:, :-1], x[:-1])


def first_row_twice(a, x):
    (y,) = product(a, x)
    return (torch.cat([2 * y[:1], y[1:]]),)


LAWS = [
    (adjoint("x", back=backward, exact=on_integers), lambda a, x: product(a, x.cumsum(0))),
    (equals_op("the sums of rows", of_ones, sums), last_lost),
    (relabels("rows may change places", turned, backwards), first_row_twice),
    (relabels("columns may change places", lambda a, case: {n: t.flip(-1) for n, t in a.items()}), None),
]


def contract():
    made = Contract(
        operands={"a": Operand("M K"), "x": Operand("K")},
        outputs={"y": Output("M")},
        sizes=[{"M": 5, "K": 9}],
        values={"normal": lambda draw: {name: normal(draw, draw.shape(name)) for name in draw.operands}},
        expect=lambda inputs, params, **about: {},
    )
    made.name = "product"
    return made


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("law", "wrong"), LAWS)
def test_a_law_holds_and_can_be_broken(law, wrong, dtype):
    made = contract()
    inputs = made.build(plain_case(made, dtype, "normal"))
    given = on_integers(inputs.arguments, inputs.case) if law.bitwise else inputs.arguments
    for call, broken in ((product, False), (wrong or (lambda a, x: product(a, x * torch.arange(len(x)))), True)):
        found = law.check(call, given, call(**given), inputs.case)
        assert (found is not None) == broken, found


def test_what_is_not_the_transpose_is_named():
    made = contract()
    inputs = made.build(plain_case(made, "float32", "normal"))
    law = adjoint("x", back=lambda call, given, ys: (ys[0].new_zeros(9),), exact=on_integers)
    assert "its transpose" in law.check(product, inputs.arguments, product(**inputs.arguments), inputs.case)
