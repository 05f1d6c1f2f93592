"""The laws that contracts share: each holds for a right function and is broken by a wrong one."""

import pytest
import torch

from touchstone.conformance.contracts._laws import adjoint, equals_op, integers_of, relabels
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.budget import simple
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Contract, Operand, Output
from touchstone.conformance.spec.values import normal
from touchstone.reference.attention_decode import torch_attention_decode


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


@pytest.mark.parametrize(("op", "size"), [("matmul", None), ("elementwise", {"trailing": (3, 33)})])
def test_two_views_of_one_memory(op, size):
    made = registry.contract(op)
    case = plain_case(made, "float32", next(iter(made.values)), size=size)
    given = made.build(case).arguments
    (law,) = [each for each in made.properties if each.name == "two views of one memory"]

    def right(a, b, **params):
        return (a @ b if op == "matmul" else a + b,)

    def once(a, b, **params):
        return right(a, a.mT.clone() if op == "matmul" else a) if a.data_ptr() == b.data_ptr() else right(a, b)

    def its_own_twice(a, b, **params):
        return right(a, torch.zeros_like(b) if a.data_ptr() == b.data_ptr() else b)

    assert law.check(right, given, right(**given), case) is None

    def nowhere(a, b, **params):
        return right(a, b * torch.nan if a.data_ptr() == b.data_ptr() else b)

    for wrong in (its_own_twice, nowhere):
        assert "in the same memory" in law.check(wrong, given, right(**given), case)
    assert (law.check(once, given, right(**given), case) is None) == (op == "matmul")  # a + a, not a + its transpose


@pytest.mark.parametrize("op", ["glu", "glu_backward"])
def test_halves_of_one_tensor(op):
    made = registry.contract(op)
    case = plain_case(made, "float32", next(iter(made.values)))
    given = made.build(case).arguments
    (law,) = [each for each in made.properties if each.name == "halves of one tensor"]

    def right(gate, up, dy=None, **params):
        s = torch.sigmoid(gate)
        return (gate * s * up,) if dy is None else (dy * up * s * (1 + gate * (1 - s)), dy * gate * s)

    def told(change):
        def wrong(gate, up, *rest, **params):
            joined = gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr()
            return right(*(change(gate, up) if joined else (gate, up)), *rest, **params)

        return law.check(wrong, given, right(**given), case)

    assert told(lambda gate, up: (gate, up)) is None
    in_order = told(lambda gate, up: (gate, up) if gate.data_ptr() < up.data_ptr() else (up, gate))
    assert in_order == "up and gate as the halves of one tensor give another answer than in two"
    assert "gate and up as the halves" in told(lambda gate, up: (gate * torch.nan, up))


def test_what_is_not_the_transpose_is_named():
    made = contract()
    inputs = made.build(plain_case(made, "float32", "normal"))
    law = adjoint("x", back=lambda call, given, ys: (ys[0].new_zeros(9),), exact=on_integers)
    assert "its transpose" in law.check(product, inputs.arguments, product(**inputs.arguments), inputs.case)


def gathered_by(width_of, plan=None):
    """Attention over a cache in pages whose table's rows are `width_of(table, pages in use)` apart in memory; with a
    `plan` no sequence is longer than the longest one of the first call with a table of that shape."""

    def fn(q, k_cache, v_cache, block_table, lengths, *, scale=None):
        page = k_cache.shape[1]
        width = width_of(block_table, -(-int(lengths.max()) // page))
        flat = block_table.reshape(-1)
        places = torch.arange(len(block_table))[:, None] * width + torch.arange(block_table.shape[1])
        table = flat[places.clamp_max(len(flat) - 1)].long().clamp_max(len(k_cache) - 1)
        k, v = (t[table].flatten(1, 2).transpose(1, 2).nan_to_num() for t in (k_cache, v_cache))
        if plan is not None:
            lengths = lengths.clamp_max(plan.setdefault(block_table.shape, int(lengths.max())))
        return torch_attention_decode(q, k, v, lengths, scale=scale)

    return fn


def its_own(table, used):
    return table.shape[1]


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (gathered_by(its_own), None),
        (
            gathered_by(lambda table, used: used),
            "not by what was called before: a wider cache, of which no more is used, moves",
        ),
        (gathered_by(its_own, {}), "a call with fewer keys before moves"),
    ],
)
def test_what_a_call_leaves_behind_is_told_from_what_is_beyond_its_keys(fn, said):
    contract = registry.contract("attention_paged")
    prop = next(p for p in contract.properties if p.name == "an earlier call leaves nothing behind")
    case = plain_case(contract, "float32", prop.values)
    arguments = contract.build(case).arguments
    broken = prop.check(lambda **given: fn(**given), arguments, fn(**arguments), case)
    assert broken is None if said is None else said in broken
