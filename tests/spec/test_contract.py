"""What a contract says of a case: its shapes, dtypes, work, operands, and how a function of it is called."""

import math
from dataclasses import replace

import pytest
import torch

from tests.fixed import changeable
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.contract import (
    GRID_LIMIT,
    STARTED,
    UNUSED_INTEGER,
    Also,
    Case,
    Contract,
    From,
    Int64Index,
    Invalid,
    Operand,
    Output,
    Property,
    Regular,
    beyond_largest,
    dtype_name,
    each_of_one,
    size_text,
    with_params,
)


def draw(d):
    return {"x": d.normal(d.shape("x")), "n": d.integers(d.shape("n"), 0, d.size["cols"])}


def made(**changes):
    fields = dict(
        operands={"x": Operand("rows cols"), "n": Operand("rows", layouts.VECTOR, torch.int32, positional=False)},
        outputs={"y": Output("rows cols"), "s": Output("rows", torch.float32)},
        sizes=[dict(rows=2, cols=3)],
        values={"plain": draw},
        expect=lambda inputs, params, *, dtype, compute=None: {},
        params={"eps": (0.5, 1.0)},
        name="made",
    )
    return Contract(**{**fields, **changes})


def case_of(rows=2, cols=3, dtype="float16", **about):
    given = dict(values="plain", layouts=(("x", "contiguous"), ("n", "contiguous")), params=(("eps", 0.5),))
    return Case(op="made", dtype=dtype, sizes=(("rows", rows), ("cols", cols)), **{**given, **about})


def test_what_a_call_costs_where_nobody_says():
    """Each operand and output once; an operation an element."""
    size = dict(rows=4, cols=5)
    assert made().flops(size, {}) == 4 * 5 + 4 + 4 * 5 + 4 and made().calls(size, {}) == 0
    assert made().bytes(size, {}, 2) == 2 * 48
    own = made(flops=lambda size, params: 7.0, bytes=lambda size, params, item: 3.0 * item)
    assert own.flops(size, {}) == 7.0 and own.bytes(size, {}, 2) == 6.0
    by_case = made(outputs={"y": Output(lambda case: "rows")})
    assert by_case.flops(size, {}) == 24  # an output whose axes are of the case is not counted


def test_the_work_of_a_case_is_what_takes_longest():
    assert made(flops=lambda size, params: 100.0).work(case_of()) == 50.0
    assert made(flops=lambda size, params: 2.0, calls=lambda size, params: 10.0).work(case_of()) == 81.0
    assert made(flops=lambda size, params: 2.0, bytes=lambda size, params, item: 9.0 * item).work(case_of()) == 9.0
    many = made(beyond_grid=[dict(rows=2, cols=3)])
    assert many.is_beyond_grid(case_of()) and not many.is_beyond_grid(case_of(cols=4))
    assert many.work(case_of()) == STARTED * GRID_LIMIT and many.work(case_of(cols=4)) < 100


def test_shapes_by_the_letters_of_axes():
    contract = made(
        operands={"x": Operand("rows ... cols"), "n": Operand(lambda case: "rows" if case.param["eps"] else "cols")},
        sizes=[dict(rows=2, cols=3, trailing=(4, 5))],
        outputs={"y": Output(lambda case: "cols rows", lambda case: torch.int32), "z": Output("", None)},
    )
    case = replace(case_of(), sizes=(("rows", 2), ("cols", 3), ("trailing", (4, 5))))
    assert contract.operand_shape("x", case) == (2, 4, 5, 3) and contract.operand_shape("n", case) == (2,)
    assert contract.operand_shape("n", replace(case, params=(("eps", 0.0),))) == (3,)
    assert contract.output_shape("y", case) == (3, 2) and contract.output_shape("z", case) == ()
    assert contract.output_dtype("y", case) is torch.int32 and contract.output_dtype("z", case) is torch.float16


def test_dtypes_of_operands():
    several = Operand("rows", dtypes=(torch.int32, None, torch.int64))
    contract = made(operands={"x": Operand("rows cols"), "n": Operand("rows", dtype=torch.int8), "k": several})
    case = case_of()
    assert [contract.operand_dtype(name, case) for name in "xnk"] == [torch.float16, torch.int8, torch.int32]
    assert contract.operand_dtype("k", replace(case, dtypes=(("k", "int64"),))) is torch.int64
    assert contract.operand_dtype("k", replace(case, dtypes=(("k", "same"),))) is torch.float16
    assert several.own_dtype and Operand("rows", dtype=torch.int8).own_dtype and not Operand("rows").own_dtype
    assert (dtype_name(None), dtype_name(torch.int8)) == ("same", "int8")


def test_operands_that_may_be_left_out():
    assert Operand("rows", ("contiguous", "none")).optional
    assert not Operand("rows", ("none",)).optional and not Operand("rows").optional


def test_a_case_by_its_parts():
    case = case_of(params=(("eps", 0.5), ("total", From(lambda case: 7 * case.size["rows"]))))
    assert case.size == {"rows": 2, "cols": 3} and case.layout == {"x": "contiguous", "n": "contiguous"}
    assert case.param == {"eps": 0.5, "total": 14} and case.torch_dtype is torch.float16
    assert case.id == str(case) == "float16-2x3-plain-eps=0.5"
    strided = replace(case, layouts=(("x", "transposed"), ("n", "none")), dtypes=(("n", "int64"),))
    assert strided.id == "float16-2x3-plain-x:transposed-n:none-n:int64-eps=0.5"
    assert case.contiguous and not strided.contiguous
    assert replace(case, layouts=(("x", "contiguous"), ("n", "none"))).contiguous
    assert case.filled and not case_of(cols=0).filled
    assert not replace(case, sizes=(("trailing", (2, 0)),)).filled and replace(case, sizes=(("trailing", ()),)).filled
    assert size_text((("trailing", (2, 3)), ("C", 4))) == "2x3x4" and size_text((("trailing", ()),)) == "scalar"
    assert with_params(eps=1.0)(case).param == {"eps": 1.0, "total": 14}


def test_a_case_with_none_for_some_operands_and_the_others_contiguous():
    case = Case("op", "float32", (), "normal", (("x", "transposed"), ("bias", "none"), ("w", "contiguous")), ())
    assert case.absent == {"bias"} and case.plainly_laid(case.absent).absent == {"bias"}
    assert case.plainly_laid(case.absent).contiguous and not case.contiguous
    assert case.plainly_laid({"x", "w"}).layout == {"x": "none", "bias": "contiguous", "w": "none"}


def test_draws_follow_from_the_case_the_seed_and_what_is_drawn():
    case = case_of()

    def first(case, what=""):
        return torch.rand(1, generator=case.rng(what)).item()

    same = [first(case), first(case), first(replace(case, mirrored="x"))]
    assert len(set(same)) == 1
    others = [
        first(case, "element"),
        first(replace(case, seed=1)),
        first(case_of(cols=4)),
        first(replace(case, op="o")),
    ]
    assert len({same[0], *others}) == 5
    assert first(replace(case_of(cols=4), drawn_as=case.id)) == same[0]


def test_operands_are_built_rounded_and_the_same_in_float64():
    contract = made()
    inputs = contract.build(case_of())
    x, n = inputs.arguments["x"], inputs.arguments["n"]
    assert (x.dtype, n.dtype, inputs.arguments["eps"]) == (torch.float16, torch.int32, 0.5)
    assert torch.equal(inputs.exact["x"], x.double()) and torch.equal(inputs.exact["n"], n.double())
    none = contract.build(case_of(layouts=(("x", "contiguous"), ("n", "none"))))
    assert none.placed["n"] is none.exact["n"] is none.arguments["n"] is None
    repeated = contract.build(case_of(layouts=(("x", "broadcast"), ("n", "contiguous"))))
    assert torch.equal(repeated.exact["x"][1], repeated.exact["x"][0])
    assert torch.equal(repeated.exact["x"], repeated.arguments["x"].double())


def test_an_index_is_poisoned_with_the_last_of_what_it_indexes():
    contract = made(
        operands={"x": Operand("rows cols"), "n": Operand("rows", layouts.VECTOR, torch.int32, indexes="cols")}
    )
    placed = contract.build(case_of(layouts=(("x", "contiguous"), ("n", "step")))).placed["n"]
    around = placed.buffer.view(torch.int32)
    assert set(around.tolist()) - set(placed.view.tolist()) <= {2} and bool((around == 2).sum() > 100)


def test_elements_that_nobody_may_use_are_nan_or_far_out():
    unused = lambda inputs, params: torch.tensor([False, True])[:, None]  # noqa: E731
    contract = made(
        operands={
            "x": Operand("rows cols", ("contiguous",), garbage=unused),
            "n": Operand("rows", ("contiguous",), torch.int32, garbage=lambda *given: unused(*given)[:, 0]),
        }
    )
    inputs = contract.build(case_of())
    assert torch.isnan(inputs.arguments["x"][1]).all() and not torch.isnan(inputs.arguments["x"][0]).any()
    assert inputs.exact["x"][1].tolist() == [0, 0, 0] and inputs.exact["n"][1] == 0
    assert inputs.arguments["n"][1] == UNUSED_INTEGER
    small = replace(contract, operands={**contract.operands, "n": replace(contract.operands["n"], dtype=torch.int8)})
    assert small.build(case_of()).arguments["n"][1] == 127


def test_a_mirrored_operand_keeps_its_border_and_sums():
    contract = made()
    plain = contract.build(case_of(rows=4, cols=6)).exact["x"]
    turned = contract.build(case_of(rows=4, cols=6, mirrored="x")).exact["x"]
    expected = plain.clone()
    expected[1:3, 1:5] = plain[1:3, 1:5].flip(1)
    assert torch.equal(turned, expected)
    few = contract.build(case_of(rows=2, cols=6, mirrored="x")).exact["x"]
    both = contract.build(case_of(rows=2, cols=6)).exact["x"]
    assert torch.equal(few[:, 1:5], both[:, 1:5].flip(1)) and torch.equal(few[:, [0, 5]], both[:, [0, 5]])
    assert contract.build(case_of(rows=0, cols=6, mirrored="x")).exact["x"].numel() == 0


@pytest.mark.parametrize("changed", [dict(mirrored="x"), dict(altered="x")])
def test_an_operand_that_is_none_stays_none(changed):
    without = made(values={"plain": lambda d: {"x": None, "n": torch.zeros(4)}})
    assert without.build(case_of(rows=4, cols=6, **changed)).exact["x"] is None


def test_an_altered_operand_has_another_number_in_one_place():
    contract = made()
    plain, changed = (contract.build(case_of(rows=4, cols=6, altered=name)).exact["x"] for name in (None, "x"))
    (place,) = (plain != changed).nonzero().tolist()
    assert changed[tuple(place)] == 2 * plain.abs().max()
    zeros = made(values={"plain": lambda d: {"x": torch.zeros(4, 6), "n": torch.full((4,), 5.0)}})
    assert zeros.build(case_of(rows=4, cols=6, altered="x")).exact["x"].sum() == 1.0
    index = {"x": Operand("rows cols"), "n": Operand("rows", dtype=torch.int32, indexes="cols")}
    of_index = replace(zeros, operands=index)
    assert sorted(of_index.build(case_of(rows=4, cols=6, altered="n")).exact["n"].tolist()) == [0, 5, 5, 5]
    assert made().build(case_of(rows=0, cols=6, altered="x")).exact["x"].shape == (0, 6)
    nan = made(values={"plain": lambda d: {"x": torch.full((4, 6), math.nan), "n": torch.zeros(4)}})
    assert nan.build(case_of(rows=4, cols=6, altered="x")).exact["x"].nan_to_num().sum() == 1.0


def test_a_family_is_the_contracts_or_a_single_cases():
    own = lambda d: {"x": torch.ones(2, 3), "n": torch.zeros(2)}  # noqa: E731
    contract = made(also={"mine": Also(dict(rows=2, cols=3), own), "plainly": Also(dict(rows=2, cols=3), "plain")})
    assert contract.family("plain") is draw and contract.family("mine") is own
    with pytest.raises(KeyError, match="plainly: no family of values"):
        contract.family("plainly")
    assert contract.build(case_of(values="mine")).exact["x"].sum() == 6


def test_single_cases_of_results_beyond_the_largest_number():
    def family(d):
        return {"x": d.of_largest("x", 0.5, 0.75), "n": torch.zeros(d.shape("n"))}

    size = dict(rows=4, cols=5)
    found = beyond_largest(size, family, {"eps": 1.0})
    assert {name: (one.size, one.values, one.params, one.dtype) for name, one in found.items()} == {
        f"beyond_largest_{dtype}": (size, family, {"eps": 1.0}, dtype) for dtype in ("float16", "bfloat16")
    }
    contract = made(also=found)
    assert contract.reaches_beyond_largest and not made(also={"other": Also(size)}).reaches_beyond_largest
    exact = contract.build(case_of(4, 5, "bfloat16", values="beyond_largest_bfloat16")).exact["x"]
    share = exact / torch.finfo(torch.bfloat16).max
    assert bool(((share >= 0.5) & (share <= 0.75)).all()) and len(share.unique()) > 10


def test_single_cases_of_one_element_along_each_axis():
    size = dict(M=3, K=4, N=5)
    assert {name: also.size for name, also in each_of_one(size).items()} == {
        "one_M": dict(M=1, K=4, N=5),
        "one_K": dict(M=3, K=1, N=5),
        "one_N": dict(M=3, K=4, N=1),
    }
    assert list(each_of_one(size, "K")) == ["one_K"]


def test_how_a_function_is_called():
    contract, told = made(), []

    def fn(x, n=None, *, eps=0.5):
        told.append((x, n, eps))

    contract.call(fn, {"x": 1, "n": 2, "eps": 0.5})
    contract.call(fn, {"x": 1, "n": 2, "eps": 1.0}, by_name=True)
    assert told == [(1, 2, 0.5), (1, 2, 1.0)]
    given = []
    every = lambda *by_position, **by_name: given.append((by_position, by_name))  # noqa: E731
    contract.call(every, {"x": 1, "n": 2, "eps": 0.5})
    contract.call(every, {"x": 1, "n": 2, "eps": 0.5}, by_name=True)
    assert given == [((1,), {"n": 2, "eps": 0.5}), ((), {"x": 1, "n": 2, "eps": 0.5})]


def test_a_default_is_the_functions_own_where_it_has_one():
    contract = made()
    own = lambda x, n, eps=0.25: eps  # noqa: E731
    assert contract.call(own, {"x": 1, "n": 2, "eps": 0.5}) == 0.25
    assert contract.call(own, {"x": 1, "n": 2, "eps": 1.0}) == 1.0
    assert contract.call(lambda x, n, eps: eps, {"x": 1, "n": 2, "eps": 0.5}) == 0.5
    whole = made(params={"eps": (1, 2)})
    assert whole.call(own, {"x": 1, "n": 2, "eps": True}) is True  # of another type
    follows = made(params={"eps": (From(lambda case: 3),)})
    assert follows.call(own, {"x": 1, "n": 2, "eps": 3}) == 3


def test_what_does_not_fit_is_said():
    contract = made()
    assert contract.form() == "fn(x, n=None, eps=0.5)"
    assert contract.misfit(lambda x, n=None, eps=0.5: None) is None and contract.misfit(lambda *a, **k: None) is None
    assert contract.misfit(object()) is None  # no signature to be seen

    def short(x):
        return x

    class Callable:
        def __call__(self, x):
            return x

    assert contract.misfit(short).startswith("short(x): made is called as fn(x, n=None, eps=0.5); ")
    assert contract.misfit(Callable()).startswith("Callable(x): made is called as ")
    assert contract.misfit(lambda x, n, eps, more: None) is not None


def test_what_is_returned_by_output():
    contract, y, s = made(), torch.ones(2), torch.zeros(2)
    assert contract.by_name((y, s)) == contract.by_name([y, s]) == {"y": y, "s": s}
    assert contract.by_name(y, ["y"]) == contract.by_name((y,), ["y"]) == {"y": y}
    assert contract.by_name(s, ["s"]) == {"s": s} and contract.by_name((y, s), ["s"]) == {"y": y, "s": s}
    assert contract.by_name((y, None)) == {"y": y, "s": None}
    assert contract.by_name(y) == "returned Tensor; expected a tuple of 2"
    assert contract.by_name((y, s, y)) == "returned 3 values; expected 2"
    assert contract.by_name(None) == "returned NoneType; expected a tuple of 2"

    class Pair(tuple):
        pass

    assert contract.by_name(Pair((y, s))).startswith("returned ") and "itself" in contract.by_name(Pair((y, s)))
    posing = torch.nn.Parameter(y)
    assert contract.by_name((y, posing)).startswith("s: expected a torch.Tensor, got torch.nn.parameter.Parameter")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (dict(dtype=torch.int32, dtypes=(torch.int32, None)), "dtype: goes without dtypes"),
        (dict(layouts=("contiguous", "broadcast"), garbage=lambda *given: None), "layouts: broadcast: "),
    ],
)
def test_operands_that_contradict_themselves(about, said):
    with pytest.raises(ValueError, match=said):
        Operand("rows", **about)


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Operand, Output, From, Invalid, Property, Int64Index, Regular, Also, Case) == []
