"""Cases: what each level covers, that it is the same every time, and that nothing is left out silently."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.night import some
from tests.processes import output_of
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import cases as generate
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.cases import LEVELS, PRODUCT_LIMIT, Plan, plan
from touchstone.conformance.spec.contract import (
    Also,
    Case,
    Contract,
    From,
    Operand,
    Output,
    Regular,
    beyond_largest,
    dtype_name,
)


def toy(valid=lambda case: True, name="toy", **changes) -> Contract:
    fields = dict(
        operands={
            "x": Operand("rows cols", ("contiguous", "sliced", "offset")),
            "w": Operand("cols", ("contiguous", "none")),
        },
        outputs={"y": Output("rows cols")},
        sizes=[dict(rows=2, cols=3), dict(rows=5, cols=1), dict(rows=0, cols=4), dict(rows=7, cols=9)],
        values={"a": lambda d: draw(d), "b": lambda d: draw(d), "c": lambda d: draw(d), "d": lambda d: draw(d)},
        params={"eps": (0.1, 0.5), "flag": (True, False)},
        expect=lambda inputs, params, *, dtype, compute=None: {},
        flops=lambda size, param: 0,
        bytes=lambda size, param, item: size["rows"] * size["cols"] * item,
        valid=valid,
        name=name,
    )
    return Contract(**{**fields, **changes})


def draw(d) -> dict:
    return {"x": d.normal(d.shape("x")), "w": d.uniform(d.shape("w"))}


def coordinates(contract: Contract, case: Case) -> dict:
    """A case as axis -> value, read off the case and not off the generator."""
    point = {"dtype": case.dtype, "size": case.sizes, "values": case.values}
    point |= {("dtype", k): options[0] for k, options in dtypes(contract).items()}
    point |= {("dtype", k): v for k, v in case.dtypes}
    return point | {("layout", k): v for k, v in case.layouts} | {("param", k): v for k, v in case.params}


def dtypes(contract: Contract) -> dict[str, list[str]]:
    """Of the operands that have a choice; the first is the usual one, which a case does not name."""
    operands = contract.operands.items()
    return {name: [dtype_name(dtype) for dtype in o.dtypes] for name, o in operands if len(o.dtypes) > 1}


def axes(contract: Contract) -> dict:
    """The axes, read off the contract."""
    found = {
        "dtype": list(contract.dtypes),
        "size": [tuple(s.items()) for s in contract.sizes],
        "values": list(contract.values),
    }
    found |= {("layout", name): list(operand.layouts) for name, operand in contract.operands.items()}
    found |= {("dtype", name): options for name, options in dtypes(contract).items()}
    return found | {("param", name): list(values) for name, values in contract.params.items()}


def make(contract: Contract, point: dict) -> Case:
    return Case(
        contract.name,
        point["dtype"],
        point["size"],
        point["values"],
        tuple((k[1], v) for k, v in point.items() if k[0] == "layout"),
        tuple((k[1], v) for k, v in point.items() if k[0] == "param"),
        dtypes=tuple((k[1], v) for k, v in point.items() if k[0] == "dtype" and v != dtypes(contract)[k[1]][0]),
    )


def pairs(contract: Contract) -> set:
    space = axes(contract)
    return {
        ((a, i), (b, j))
        for a, b in itertools.combinations(space, 2)
        for i in range(len(space[a]))
        for j in range(len(space[b]))
    }


def held(contract: Contract, cases) -> set:
    """The pairs of axis values that some case has; layouts beyond 2^31 and rows beyond a grid are cases besides."""
    space = axes(contract)
    index = {axis: {value: i for i, value in enumerate(values)} for axis, values in space.items()}
    found = set()
    for case in filter(near, cases):
        if contract.is_beyond_grid(case):
            continue
        point = coordinates(contract, case)
        found |= set(itertools.combinations([(axis, index[axis][point[axis]]) for axis in space], 2))
    return found


def near(case: Case) -> bool:
    return set(layouts.FAR_LAYOUTS).isdisjoint(case.layout.values())


def everything(contract: Contract) -> list[Case]:
    space = axes(contract)
    found = [make(contract, dict(zip(space, point, strict=True))) for point in itertools.product(*space.values())]
    return [case for case in found if contract.valid(case)]


def most(contract: Contract, level: str) -> int:
    """The number of cases that a level should need, each of which holds many values or pairs of the axes.

    The longest axis bounds quick from below, the two longest default: their product. Couplings that `valid` asks for
    and pairs that only some sizes show cost at most as much again, or half of that and one case a parameter's value
    under quick.
    """
    longest, second = sorted(map(len, axes(contract).values()), reverse=True)[:2]
    aligned = len(contract.dtypes) * len(contract.aligned)
    operands = [operand for operand in contract.operands.values() if not operand.own_dtype]
    if level == "quick":
        return longest * 3 // 2 + aligned + len(operands) + sum(map(len, contract.params.values()))
    plain = len(contract.dtypes) * (len(contract.sizes) + len(contract.values))
    ndims = [len(contract.shape(operand.axes, contract.sizes[0])) for operand in operands]
    narrow = sum(dtype != "float32" for dtype in contract.dtypes)
    return 2 * longest * second + plain + aligned + 2 * narrow * sum(ndims)


def restricted(case: Case) -> bool:
    if 0 in case.size.values():
        return case.values == "a" and case.layout["x"] == "contiguous"
    return not (case.values == "d" and case.dtype == "float16") and not (
        case.layout["w"] == "none" and case.param["flag"]
    )


@pytest.mark.parametrize("valid", [lambda case: True, restricted], ids=["free", "restricted"])
def test_default_holds_every_pair_that_can_be_had(valid):
    contract = toy(valid)
    made = plan(contract, "default")
    possible = held(contract, everything(contract))
    assert held(contract, made.cases) == possible
    assert len(made.infeasible) == len(pairs(contract) - possible)
    assert all(map(contract.valid, made.cases))
    assert len(made.general) <= most(contract, "default") < len(everything(contract))


@pytest.mark.slow
@pytest.mark.parametrize("op", some(registry.ops(), 3))
def test_pairs_of_every_op(op):
    """Every pair at level default; what is called infeasible has no valid point among thousands drawn with it."""
    contract = registry.contract(op)
    made = plan(contract, "default")
    space = axes(contract)
    missing = sorted(pairs(contract) - held(contract, made.general), key=str)
    assert len(missing) == len(made.infeasible)
    rng = random.Random(op)
    for (a, i), (b, j) in missing:
        for _ in range(300):
            point = {axis: rng.choice(values) for axis, values in space.items()}
            point[a], point[b] = space[a][i], space[b][j]
            assert not contract.valid(make(contract, point)), (
                f"{op}: a case with {a}={point[a]} and {b}={point[b]} exists"
            )


@pytest.mark.parametrize("op", registry.ops())
def test_quick_holds_every_value_of_every_op(op):
    contract = registry.contract(op)
    made = plan(contract, "quick")
    general = [case for case in filter(near, made.general) if not contract.is_beyond_grid(case)]
    seen = {(axis, value) for case in general for axis, value in coordinates(contract, case).items()}
    wanted = {(axis, value) for axis, values in axes(contract).items() for value in values}
    assert seen == wanted
    assert made.infeasible == []
    assert all(map(contract.valid, made.cases))


def shows_layout(contract: Contract, case: Case, operand: str) -> bool:
    """Whether reading the operand as if it were contiguous and at offset 0 reads other memory."""
    shape = contract.operand_shape(operand, case)
    if 0 in shape or case.layout[operand] == "none":
        return False
    view = layouts.place(torch.zeros(shape), case.layout[operand], "cpu").view
    return view.storage_offset() % 2 == 1 or not view.is_contiguous()


def is_plain(contract: Contract, case: Case) -> bool:
    """Whether some operand is two-dimensional, or a vector in an op of vectors, and none is empty."""
    shapes = [contract.operand_shape(name, case) for name in contract.operands]
    least = min(2, max(map(len, shapes)))
    return not any(0 in shape for shape in shapes) and any(sum(n > 1 for n in shape) >= least for shape in shapes)


@pytest.mark.parametrize("op", registry.ops())
def test_quick_has_every_layout_and_family_where_it_matters(op):
    """A transposed 1x1 matrix or a large value alone in its row tells nothing."""
    contract = registry.contract(op)
    made = plan(contract, "quick")
    cases = [case for case in filter(near, made.cases) if case not in made.also]
    for name, operand in contract.operands.items():
        seen = {case.layout[name] for case in cases if shows_layout(contract, case, name)}
        assert seen == set(operand.layouts) - {"contiguous", "none"}, name
    plain = [case for case in cases if is_plain(contract, case)]
    assert {case.values for case in plain} == set(contract.values)
    assert {case.dtype for case in plain} == set(contract.dtypes)
    for name, values in chosen(contract).items():
        assert {case.param[name] for case in plain} == set(values)


@pytest.mark.parametrize("op", registry.ops())
def test_quick_has_every_size_where_no_slices_are_alike(op):
    """A broadcast hides that a row or a head is taken for another."""
    contract = registry.contract(op)
    apart = [
        case for case in plan(contract, "quick").general if not {n for _, n in case.layouts} & set(layouts.BROADCASTS)
    ]
    assert {case.sizes for case in apart} >= {tuple(size.items()) for size in contract.sizes}


@pytest.mark.slow
@pytest.mark.parametrize("op", some(registry.ops(), 3))
def test_default_has_every_parameter_in_every_dtype_with_plain_values(op):
    """What is wrong with one activation in one dtype shows with values that hide nothing."""
    contract = registry.contract(op)
    first = next(iter(contract.values))
    plain = [case for case in plan(contract, "default").general if is_plain(contract, case)]
    for name, values in chosen(contract).items():
        wanted = set(itertools.product(contract.dtypes, values))
        assert {(case.dtype, case.param[name]) for case in plain} == wanted
        coupled = {value for value in values if not valid_with(contract, first, name, value)}
        found = {(case.dtype, case.param[name]) for case in plain if case.values == first}
        assert found == {(dtype, value) for dtype, value in wanted if value not in coupled}


def chosen(contract: Contract) -> dict[str, Sequence[object]]:
    """The parameters of several values, and none that follow from the case."""
    return {name: values for name, values in contract.params.items() if not isinstance(values[0], From)}


def valid_with(contract: Contract, family: str, name: str, value: object) -> bool:
    """Whether a parameter may have this value in a plain case of the family; eps = 0 may in `tiny` only."""
    point = {axis: options[0] for axis, options in axes(contract).items()}
    point |= {"values": family, ("param", name): value}
    made = (make(contract, point | {"size": tuple(size.items())}) for size in contract.sizes)
    return any(is_plain(contract, case) and contract.valid(case) for case in made)


@pytest.mark.parametrize("op", ["softmax", "matmul"])
def test_default_has_every_family_in_every_layout_where_it_matters(op):
    contract = registry.contract(op)
    plain = [case for case in plan(contract, "default").general if is_plain(contract, case)]
    rare = {pair for pair in held(contract, everything_plain(contract)) if {pair[0][0], pair[1][0]} & {"size"} == set()}
    assert rare <= held(contract, plain)


def everything_plain(contract: Contract) -> list[Case]:
    """Every valid case at two-dimensional sizes, of the plain dtype: parameters and layouts and families in full."""
    space = axes(contract) | {"dtype": ["float32"]}
    found = (make(contract, dict(zip(space, point, strict=True))) for point in itertools.product(*space.values()))
    return [case for case in found if is_plain(contract, case) and contract.valid(case)]


@pytest.mark.slow
@pytest.mark.parametrize("op", some(registry.ops(), 3))
def test_cases_have_ids_of_their_own(op):
    contract = registry.contract(op)
    for level in ("quick", "default"):
        cases = plan(contract, level).cases
        assert len({case.id for case in cases}) == len(cases)
        assert not any(" " in case.id for case in cases)


@pytest.mark.slow
@pytest.mark.parametrize("op", some(registry.ops(), 3))
def test_levels_grow(op):
    contract = registry.contract(op)
    quick, default = (
        sum(not contract.is_beyond_grid(case) for case in plan(contract, level).general)
        for level in ("quick", "default")
    )
    longest, second = sorted(map(len, axes(contract).values()), reverse=True)[:2]
    assert longest <= quick <= most(contract, "quick")
    assert 0.9 * longest * second < default <= most(contract, "default")


def accepted(case: Case) -> bool:
    """Whether a kernel with the usual restrictions takes a case."""
    size, heads = case.size, case.size.get("Sq")
    if case.dtype == "float32" or not case.contiguous or not case.filled:
        return False
    if case.op == "attention_paged":
        return size["D"] in (64, 128) and size["page"] % 16 == 0 and case.param["scale"] is None
    if case.op == "merge_states":
        return size["D"] % 64 == 0 and size["rows"] % 64 == 0
    if case.op in ("attention_decode", "attention_decode_int4"):
        return size["D"] in (64, 128) and size["Sk"] % 64 == 0 and case.param["scale"] is None
    if case.op == "mla":
        return all(size[name] % 64 == 0 for name in ("Sq", "Sk", "Dn", "Dr", "R", "Dv")) and case.param["scale"] is None
    if case.op == "mla_decode":
        return (size["W"], size["V"]) in ((576, 512), (192, 128)) and size["Sk"] % 64 == 0 and size["H"] % 16 == 0
    if heads is not None:
        square = size["Sq"] == size["Sk"] and size["Hq"] == size["Hkv"]
        return square and size["D"] in (64, 128) and heads % 64 == 0 and case.param["scale"] is None
    if "half" in size:  # rope
        return size["D"] in (64, 128) and 2 * size["half"] == size["D"] and size["S"] == size["P"]
    if "cols" in size:
        return size["cols"] >= 64 and size["cols"] & (size["cols"] - 1) == 0
    if "trailing" in size and "C" not in size:
        return math.prod(size["trailing"]) % 64 == 0
    if "trailing" in size:
        return size["C"] % 32 == 0 and case.param["groups"] == 32 and math.prod(size["trailing"]) % 16 == 0
    return all(n % 64 == 0 for n in size.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "least"), [("quick", 8), pytest.param("default", 60, marks=pytest.mark.level("default"))]
)
@pytest.mark.parametrize("op", registry.ops())
def test_every_op_has_cases_for_kernels_with_the_usual_restrictions(op, level, least):
    contract = registry.contract(op)
    made = plan(contract, level)
    found = [case for case in made.cases if accepted(case)]
    assert len(found) >= least
    assert {case.dtype for case in found} == {"float16", "bfloat16"}
    assert len({case.values for case in found}) >= 3
    assert made.regular | made.also == set(made.cases) - set(made.general)
    assert all(map(accepted, made.regular))
    assert all(map(contract.valid, made.cases))
    for name, options in contract.regular.params.items():
        counts = Counter(case.param[name] for case in found)
        assert all(counts[option] >= least // 2 for option in options)


def test_how_many_regular_cases_there_are():
    """Five sizes of one family each, all sizes of four, and at level thorough of all; the families take turns."""
    sizes = [dict(rows=8 * n, cols=16) for n in range(1, 8)]
    families = dict.fromkeys("abcdef", draw)
    contract = toy(regular=Regular(sizes, {"flag": (False, True)}), values=families)
    for level, count, each in (("quick", 5, 1), ("default", 7, 4), ("thorough", 7, 6)):
        cases = [case for case in plan(contract, level).cases if case.size in sizes and case.contiguous]
        assert len(cases) == count * 2 * 2 * each and {case.size["rows"] for case in cases} == {
            size["rows"] for size in sizes[:count]
        }
        of = Counter(case.values for case in cases)
        assert set(of) == set(families) and max(of.values()) - min(of.values()) <= 4
        assert Counter((case.dtype, case.param["flag"]) for case in cases) == dict.fromkeys(
            itertools.product(("float16", "bfloat16"), (False, True)), count * each
        )


def test_regular_cases_have_finite_values_alone():
    contract = toy(regular=Regular([dict(rows=8, cols=16)], {"flag": (True,)}))
    contract.values = {"a": contract.values["a"], "infinite": lambda draw: {n: full(draw, n) for n in draw.operands}}
    (case, other) = plan(contract, "quick").regular
    assert {case.values, other.values} == {"a"}
    assert {case.dtype, other.dtype} == {"float16", "bfloat16"}
    assert case.param["flag"] is True
    assert all(case.values == "a" for case in plan(contract, "thorough").regular)


def full(draw, name: str) -> torch.Tensor:
    return torch.full(draw.shape(name), math.inf, dtype=torch.float64)


def test_thorough_is_the_full_product_on_the_smallest_size_and_every_pair_elsewhere():
    contract = toy(restricted)
    made = plan(contract, "thorough")
    smallest = [case for case in everything(contract) if case.size == contract.sizes[0]]
    assert set(smallest) <= set(made.cases)
    assert held(contract, made.cases) == held(contract, everything(contract))
    assert made.sampled_out == 0
    assert len(made.cases) == len(set(made.cases)) > len(smallest)


def test_a_full_product_beyond_the_limit_is_sampled_and_counted():
    contract = toy(restricted, params={"eps": tuple(range(40)), "flag": (True, False)})
    made = plan(contract, "thorough")
    smallest = [case for case in everything(contract) if case.size == contract.sizes[0]]
    extra = {*generate._far(contract, "thorough", 0), *generate._plain(contract, 0)}
    kept = {case for case in made.cases if case.size == contract.sizes[0] and case not in extra}
    assert len(smallest) > PRODUCT_LIMIT
    assert made.sampled_out == len(smallest) - PRODUCT_LIMIT
    assert PRODUCT_LIMIT - len(extra) <= len(kept) < len(smallest)
    assert all(map(contract.valid, made.cases))


def test_a_product_too_large_to_enumerate_is_counted_too():
    contract = toy(lambda case: case.values != "d", params={"eps": tuple(range(400)), "flag": (True, False)})
    # 3 dtypes, 4 families (3 valid), 3 · 2 layouts, 400 · 2 parameters
    space = generate._Space(contract, 0)
    points, dropped = generate._product(space, random.Random(0))
    assert len(points) == PRODUCT_LIMIT
    assert dropped + PRODUCT_LIMIT == pytest.approx(3 * 3 * 6 * 800, rel=0.05)


def test_a_value_that_no_case_has_is_named():
    made = plan(toy(lambda case: case.values != "d"), "quick")
    assert made.infeasible == ["values=d"]


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="level: expected one of quick, default, thorough, got 'slow'"):
        plan(toy(), "slow")


def test_dtypes_narrow_the_cases():
    contract = toy()
    some = plan(contract, "default", dtypes=["float16"]).cases
    assert some == [case for case in plan(contract, "default").cases if case.dtype == "float16"]
    assert some


def test_another_seed_is_the_same_cases_with_other_inputs():
    contract = toy()
    zero, one = plan(contract, "quick", 0).cases, plan(contract, "quick", 1).cases
    assert [case.id for case in zero] == [case.id for case in one]
    assert {case.seed for case in one} == {1}
    case, other = next((a, b) for a, b in zip(zero, one, strict=True) if 0 not in a.size.values())
    first, again, second = (contract.build(c).exact["x"] for c in (case, case, other))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_inputs_differ_from_case_to_case():
    contract = toy()
    cases = [c for c in plan(contract, "default").cases if c.size == dict(rows=7, cols=9)]
    firsts = {float(contract.build(case).exact["x"][0, 0]) for case in cases}
    assert len(firsts) == len(cases)


FRESH = """
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.cases import plan
case = plan(registry.contract({op!r}), "default").cases
print([c.id for c in case])
print(registry.contract({op!r}).build(case[0]).placed["x"].view.double().sum().item())
"""


@pytest.mark.slow
def test_another_process_makes_the_same_cases_and_inputs():
    op = "softmax"
    printed = output_of(FRESH.format(op=op), PYTHONHASHSEED="12345")
    cases = plan(registry.contract(op), "default").cases
    total = registry.contract(op).build(cases[0]).placed["x"].view.double().sum().item()
    assert printed.splitlines() == [str([case.id for case in cases]), str(total)]


def test_the_order_of_planning_does_not_matter():
    contract = registry.contract("softmax")
    first = {level: [case.id for case in plan(contract, level).cases] for level in LEVELS}
    generate._plan.cache_clear()
    assert {level: [case.id for case in plan(contract, level).cases] for level in reversed(LEVELS)} == first


def test_operands_that_are_absent_and_derived():
    def derive(exact, param):
        return {"s": exact["x"].sum(-1)}

    operands = {
        "x": Operand("rows cols", ("step",)),
        "w": Operand("cols", ("none",)),
        "s": Operand("rows", ("offset",), torch.float32, derived=True),
    }
    contract = toy(operands=operands, derive=derive)
    case = next(c for c in plan(contract, "quick").cases if c.size == dict(rows=2, cols=3) and c.dtype != "float32")
    inputs = contract.build(case)
    assert list(inputs.arguments) == ["x", "w", "s", "eps", "flag"]
    assert inputs.arguments["w"] is None
    assert inputs.placed["w"] is None
    assert inputs.exact["w"] is None
    assert inputs.arguments["x"].dtype == case.torch_dtype
    assert inputs.arguments["s"].dtype == torch.float32
    assert inputs.arguments["s"].storage_offset() % 2 == 1
    assert torch.equal(inputs.exact["x"], inputs.arguments["x"].double())
    assert torch.allclose(inputs.exact["s"], inputs.exact["x"].sum(-1), rtol=1e-6)


def test_trailing_axes():
    contract = toy(
        operands={"x": Operand("rows ...", ("contiguous",)), "w": Operand("cols", layouts.VECTOR)},
        sizes=[dict(rows=2, cols=3, trailing=(4, 5))],
    )
    case = plan(contract, "quick").cases[0]
    assert contract.build(case).arguments["x"].shape == (2, 4, 5)
    assert "4x5" in case.id


def test_a_family_that_needs_two_rare_values_has_all_its_pairs():
    """Chance meets such a case once in 160 draws."""

    def rare(case: Case) -> bool:
        return case.values != "d" or (case.size == dict(rows=7, cols=9) and case.param["eps"] == 17)

    contract = toy(rare, params={"eps": tuple(range(40)), "flag": (True, False)})
    made = plan(contract, "default")
    family = [case for case in made.cases if case.values == "d"]
    for axis in ("dtype", ("layout", "x"), ("layout", "w"), ("param", "flag")):
        assert {coordinates(contract, case)[axis] for case in family} == set(axes(contract)[axis])
    assert len(made.infeasible) == 39 + 3  # d with another eps, and with another size


@pytest.mark.slow
@pytest.mark.parametrize("op", some(registry.ops(), 3))
def test_every_operand_read_through_strides_has_offsets_beyond_32_bits(op):
    contract = registry.contract(op)
    cases = plan(contract, "default").cases
    for name, operand in contract.operands.items():
        if operand.own_dtype:
            continue
        far = [case for case in cases if case.layout[name] in layouts.FAR_LAYOUTS]
        assert far, name
        for case in some(far, 4):
            view = contract.build(case).placed[name].view
            assert view.element_size() == 2
            assert sum((n - 1) * stride for n, stride in zip(view.shape, view.stride(), strict=True)) > 2**31 - 1


@pytest.mark.slow
@pytest.mark.parametrize("op", some(registry.ops(), 3))
def test_default_has_contiguous_cases_of_every_family_and_size_in_every_dtype(op):
    contract = registry.contract(op)
    plain = [case for case in plan(contract, "default").cases if set(case.layout.values()) <= {"contiguous", "none"}]
    seen = {(case.dtype, case.values) for case in plain} | {(case.dtype, case.sizes) for case in plain}
    first = next(iter(contract.values))
    for dtype in contract.dtypes:
        for size in contract.sizes:
            case = generate.plain_case(contract, dtype, first, 0, size)
            assert not contract.valid(case) or (dtype, case.sizes) in seen
        for values in contract.values:
            cases = [generate.plain_case(contract, dtype, values, 0, size) for size in contract.sizes]
            assert not any(map(contract.valid, cases)) or (dtype, values) in seen


def test_a_family_has_a_contiguous_case_at_a_size_that_is_not_empty():
    softmax = registry.contract("softmax")
    least, empty = dict(rows=3, cols=5), dict(rows=0, cols=5)
    contract = replace(
        softmax,
        sizes=[least, empty, dict(rows=4, cols=9)],
        valid=lambda case: case.values == "normal" or case.size != least,
    )
    contract.name = "softmax"
    found = {tuple(case.size.values()) for case in generate._plain(contract, 0) if case.values == "one_nan"}
    assert found == {(4, 9)}


def test_far_offsets_take_turns_in_the_16_bit_dtypes():
    matmul = registry.contract("matmul")
    found = [
        (case.dtype, *(name for name, layout in case.layouts if layout in layouts.FAR_LAYOUTS))
        for case in generate._far(matmul, "quick", 0)
    ]
    assert found == [("float16", "a"), ("bfloat16", "b")]
    every = [(case.dtype, *case.layouts) for case in generate._far(matmul, "default", 0)]
    assert len(every) == 16 and len(set(every)) == 8  # at two sizes each: two operands, two axes of each, two dtypes
    for level in ("quick", "default"):
        assert list(generate._far(replace(matmul, dtypes=("float32",)), level, 0)) == []


def test_far_offsets_come_at_two_sizes_and_with_other_parameters_above_level_quick():
    found = list(generate._far(toy(valid=lambda case: case.param["flag"] or case.size["rows"] < 7), "default", 0))
    of_x = [(case.size["rows"], case.layout["x"], case.param["eps"], case.param["flag"]) for case in found]
    assert of_x.count((7, "far0", 0.1, True)) == 2  # (2, 3) has too few rows; the only size left takes no other flag
    assert of_x.count((2, "far1", 0.1, True)) == of_x.count((7, "far1", 0.1, True)) == 2
    wide = toy(sizes=[dict(rows=2, cols=3), dict(rows=7, cols=9)])
    assert {
        (case.param["eps"], case.param["flag"]) for case in generate._far(wide, "default", 0) if case.size["rows"] == 7
    } == {(0.1, True), (0.5, False)}
    assert {case.dtype for case in found} == {"float16", "bfloat16"}


def test_results_beyond_the_largest_number_come_strided_too_above_level_quick():
    also = beyond_largest(dict(rows=2, cols=3), lambda d: draw(d))
    contract = toy(also=also)
    strided = [case for case in plan(contract, "default").also if case.values in also and case.layout["x"] == "sliced"]
    assert {case.dtype for case in strided} == {"float16", "bfloat16"}
    assert not [
        case for case in plan(contract, "quick").also if case.values in also and case.layout["x"] != "contiguous"
    ]


def test_rows_of_several_heads_are_far_apart_too_at_level_quick():
    """Along the last axis but one of more than two, where level quick has not done so already."""
    operands = {
        "x": Operand("heads rows cols"),
        "y": Operand("two heads rows cols"),
        "n": Operand("heads rows cols", dtype=torch.int32),
        "z": Operand("two rows cols"),
        "w": Operand("rows cols"),
    }
    sizes = [dict(two=2, heads=3, rows=4, cols=5), dict(two=2, heads=1, rows=7, cols=3)]
    contract = toy(operands=operands, sizes=sizes, flops=lambda size, param: math.prod(size.values()))

    def far(cases):
        return [
            (case.dtype, case.size["heads"], name, layout)
            for case in cases
            for name, layout in case.layouts
            if layout in layouts.FAR_LAYOUTS
        ]

    first = [(name, layout) for *_, name, layout in far(generate._far(contract, "quick", 0))]
    assert first == [("x", "far0"), ("y", "far1"), ("z", "far1"), ("w", "far0")]
    assert far(generate._far_rows(contract, 0)) == [("float16", 1, "x", "far1"), ("bfloat16", 1, "y", "far2")]
    assert plan(contract, "quick").also >= set(generate._far_rows(contract, 0))
    assert list(generate._far_rows(replace(contract, dtypes=("float32",)), 0)) == []


def test_operands_that_contradict_themselves_are_refused():
    with pytest.raises(ValueError, match="^dtype: goes without dtypes"):
        Operand("rows", dtype=torch.int32, dtypes=(torch.int32, torch.int64))
    with pytest.raises(ValueError, match="^layouts: broadcast: elements that are not to be used have to have memory"):
        Operand("rows cols", layouts=("contiguous", "broadcast"), garbage=lambda sizes, inputs: torch.ones(1))
    Operand("rows cols", layouts=("contiguous", "sliced"), garbage=lambda sizes, inputs: torch.ones(1))


def test_the_plain_case_is_one_of_a_plans():
    """With the same seed where none is named."""
    contract = toy()
    plain = generate.plain_case(contract, "float32", "a")
    assert plain in plan(contract, "default").cases and plain.size == contract.sizes[0]
    assert generate.plain_case(contract, "float32", "a", 3, dict(rows=7, cols=9)) in plan(contract, "default", 3).cases
    single = toy(also={"one": Also(dict(rows=1, cols=1))})
    assert generate.also_case(single, "one") in plan(single, "quick").also


def test_a_single_case_has_what_it_names_and_else_the_first_of_all():
    own = lambda d: draw(d)  # noqa: E731
    also = {
        "plainly": Also(dict(rows=1, cols=2)),
        "of_b": Also(dict(rows=1, cols=3), "b", dict(flag=False), dict(w="none"), "float16"),
        "mine": Also(dict(rows=2, cols=2), own),
    }
    contract = toy(also=also)
    plainly, of_b, mine = (generate.also_case(contract, name, 4) for name in also)
    first = (("x", "contiguous"), ("w", "contiguous"))
    assert (plainly.dtype, plainly.values, plainly.layouts, plainly.seed) == ("float32", "a", first, 4)
    assert plainly.param == {"eps": 0.1, "flag": True} and plainly.size == dict(rows=1, cols=2)
    assert (of_b.dtype, of_b.values, of_b.layout) == ("float16", "b", {"x": "contiguous", "w": "none"})
    assert of_b.param == {"eps": 0.1, "flag": False} and mine.values == "mine"


def test_a_case_in_other_layouts_and_with_other_parameters():
    """All operands at once, each alone, each other value of each parameter: never the case itself, nor one twice."""
    contract = toy()
    case = generate.plain_case(contract, "float32", "a", size=dict(rows=7, cols=9))
    found = generate.variants(contract, case)
    assert case not in found and len(set(found)) == len(found)
    assert [other.layouts for other in found if other.params == case.params] == [
        (("x", "sliced"), ("w", "contiguous")),
        (("x", "offset"), ("w", "contiguous")),
    ]
    assert [other.param for other in found if other.layouts == case.layouts] == [
        {"eps": 0.5, "flag": True},
        {"eps": 0.1, "flag": False},
    ]
    none = generate.variants(toy(lambda case: False), case)
    assert none == ()
    two = toy(operands={name: Operand("rows cols", layouts.MATRIX) for name in "ab"})
    plain = generate.plain_case(two, "float32", "a", size=dict(rows=7, cols=9))
    alone = [o.layout for o in generate.variants(two, plain) if len(set(o.layout.values())) == 2]
    assert alone == [{"a": "transposed", "b": "contiguous"}, {"a": "contiguous", "b": "transposed"}]


def test_a_few_layouts_of_many_calls():
    """No more than a fourth of the calls has room for: those of single operands give way."""
    many = toy(operands={f"x{n}": Operand("rows cols", layouts.MATRIX) for n in range(9)})
    case = generate.plain_case(many, "float32", "a")
    found = [other for other in generate.variants(many, case) if other.params == case.params]
    assert len(found) == generate.LAYOUTS == 12
    single = toy(operands={"x": Operand("rows cols", layouts.MATRIX)})
    alone = generate.variants(single, generate.plain_case(single, "float32", "a"))
    assert len([other for other in alone if other.layouts != case.layouts[:1]]) == len(layouts.MATRIX) - 1 + 2


def test_options_are_tried_in_pairs():
    """Each beside each other one and each dtype, and each optional operand both given and left out."""
    contract = toy()
    cases = list(generate._pairs_of_options(contract, 3, contract.dtypes))
    assert all(case.size == contract.sizes[0] and case.values == "a" and case.seed == 3 for case in cases)
    axes_of = {
        "dtype": lambda case: case.dtype,
        "eps": lambda case: case.param["eps"],
        "flag": lambda case: case.param["flag"],
        "w": lambda case: case.layout["w"],
    }
    options = {"dtype": contract.dtypes, "eps": (0.1, 0.5), "flag": (True, False), "w": ("contiguous", "none")}
    for one, other in itertools.combinations(axes_of, 2):
        found = {(axes_of[one](case), axes_of[other](case)) for case in cases}
        assert found == set(itertools.product(options[one], options[other])), (one, other)
    assert len(cases) <= 8 and all(case.layout["x"] == "contiguous" for case in cases)
    bare = toy(operands={"x": Operand("rows cols")}, params={"eps": (0.1,)})
    assert list(generate._pairs_of_options(bare, 0, bare.dtypes)) == []
    assert generate._given_or_not(Operand("rows", ("none", "step", "offset"))) == ("none", "step")
    assert generate._given_or_not(Operand("rows", ("step", "offset", "none"))) == ("step", "none")


def test_pairs_of_options_come_in_a_size_of_several_tiles_too():
    size = dict(rows=70, cols=130)
    contract = toy(over_tiles=size)
    found = [case for case in plan(contract, "quick").also if case.size == size]
    assert {case.dtype for case in found} == {contract.dtypes[0]}
    found = [case for case in found if case.values == "a"]
    pairs = {(case.param["eps"], case.param["flag"]) for case in found}
    assert pairs == set(itertools.product((0.1, 0.5), (True, False)))
    assert {(case.layout["w"], case.param["flag"]) for case in found} == set(
        itertools.product(("contiguous", "none"), (True, False))
    )


def test_each_family_comes_in_a_size_of_several_tiles():
    size = dict(rows=70, cols=130)
    found = [case for case in plan(toy(over_tiles=size), "quick").also if case.size == size]
    contract = toy(lambda case: case.values != "c" or case.size != size, over_tiles=size)
    fewer = [case for case in plan(contract, "quick").also if case.size == size]
    assert {case.values for case in found} == set(contract.values) == {case.values for case in fewer} | {"c"}
    assert all(
        case.layout == generate.plain_case(contract, "float32", "a").layout for case in found if case.values != "a"
    )


def test_each_family_comes_with_each_option_in_the_smallest_size():
    contract = toy(params={"eps": (0.1, 0.5), "flag": (True, False), "way": (1, 2, 3)})
    cases = list(generate._families_with_options(contract, 0))
    assert set(cases) <= set(plan(contract, "quick").cases)
    for name, options in contract.params.items():
        assert {(case.values, case.param[name]) for case in cases} == set(itertools.product(contract.values, options))
    assert {(case.dtype, case.sizes) for case in cases} == {("float32", tuple(contract.sizes[0].items()))}
    some = toy(lambda case: case.values != "b", params={"way": (1, 2)})
    assert {case.values for case in generate._families_with_options(some, 0)} == set(some.values) - {"b"}


def test_one_size_after_another_at_several_lengths():
    contract = registry.contract("matmul")
    plain = generate.plain_case(contract, "float32", "normal", size=dict(M=5, K=9, N=4))
    found = generate.lengths_in_turn(contract, plain)
    assert [tuple(case.size.values()) for case in found] == [
        *[(n, 17, 12) for n in (64, 50, 59)],
        *[(13, n, 12) for n in (64, 50, 59)],
        *[(13, 17, n) for n in (64, 50, 59)],
    ]
    assert len({case.seed for case in found}) == 9
    heads = registry.contract("attention_decode")
    for case in generate.lengths_in_turn(heads, generate.plain_case(heads, "float32", "normal")):
        assert case.size["Hq"] % case.size["Hkv"] == 0 and heads.work(case) <= 1e6
    last = registry.contract("group_norm")
    rows = generate.lengths_in_turn(last, generate.plain_case(last, "float32", "normal"))
    assert {case.size["trailing"] for case in rows} >= {(64,), (50,), (59,)}
    scalar = registry.contract("elementwise")
    assert not generate.lengths_in_turn(
        scalar, generate.plain_case(scalar, "float32", "normal", size=dict(trailing=()))
    )


def test_pairs_of_options_that_do_not_go_together_are_left_out():
    contract = toy(lambda case: case.param["flag"] or case.layout["w"] != "none")
    cases = list(generate._pairs_of_options(contract, 0, contract.dtypes))
    assert cases and all(map(contract.valid, cases))
    assert {(case.param["eps"], case.layout["w"]) for case in cases} == set(
        itertools.product((0.1, 0.5), ("contiguous", "none"))
    )


def test_what_is_long_along_an_axis_comes_in_strides_of_its_own():
    """At the longest size along each axis, one row only where there is no other, of no layout that repeats elements."""
    sizes = [dict(rows=7, cols=9), dict(rows=2000, cols=3), dict(rows=1, cols=5000), dict(rows=2, cols=1200)]
    operands = {
        "x": Operand("rows cols", ("contiguous", "broadcast", "sliced", "transposed")),
        "w": Operand("cols", layouts.VECTOR),
    }
    contract = toy(sizes=sizes, operands=operands)
    found = [(case.size["rows"], case.size["cols"], case.layout) for case in generate._long_and_strided(contract, 0)]
    strided = {"x": "transposed", "w": "step"}
    assert found[:2] == [(2000, 3, strided), (2, 1200, strided)]
    assert {(rows, cols) for rows, cols, _ in found[2:]} <= {(1, 5000)}
    assert set(plan(contract, "quick").cases) >= set(generate._long_and_strided(contract, 0))
    short = toy(sizes=sizes[:1], operands=operands)
    assert list(generate._long_and_strided(short, 0)) == []


def test_one_row_and_one_column_come_in_elements_that_are_no_neighbours():
    """In the size with the least work where only one axis is 1 long, single cases' sizes among them; in no other
    layout than that of least work, and in none that repeats elements."""
    sizes = [dict(rows=7, cols=9), dict(rows=1, cols=1), dict(rows=1, cols=5000), dict(rows=0, cols=1)]
    operands = {
        "x": Operand("rows cols", ("contiguous", "broadcast_last", "transposed", "transposed_sliced", "sliced")),
        "n": Operand("rows cols", ("contiguous", "step"), dtype=torch.int32),
        "w": Operand("cols", layouts.VECTOR),
    }
    also = {"one_column": Also(dict(rows=8, cols=1)), "one_row": Also(dict(rows=1, cols=33))}
    contract = toy(sizes=sizes, operands=operands, also=also)
    found = list(generate.single_and_strided(contract, 0))
    assert [(case.size["rows"], case.size["cols"], case.layout["x"], case.dtype) for case in found] == [
        (1, 33, "transposed_sliced", contract.dtypes[0]),
        (8, 1, "sliced", contract.dtypes[1]),
    ]
    assert {case.layout[name] for case in found for name in "nw"} == {"contiguous"}
    assert plan(contract, "quick").also >= set(found)
    above = {(case.size["cols"], case.layout["x"], case.dtype) for case in plan(contract, "default").also}
    apart = [(33, "transposed_sliced"), (1, "sliced")]
    assert above >= {(*one, dtype) for one in apart for dtype in contract.dtypes}
    no_gaps = toy(sizes=sizes, operands={"x": Operand("rows cols", ("contiguous", "broadcast_last"))})
    assert list(generate.single_and_strided(no_gaps, 0)) == []
    whole = toy(sizes=sizes[:1], operands=operands)
    assert list(generate.single_and_strided(whole, 0)) == []


def test_more_rows_than_a_grid_has_blocks():
    contract = toy(beyond_grid=[dict(rows=70000, cols=3), dict(rows=2, cols=70000)])
    quick = list(generate._beyond_grid(contract, "quick", 1))
    assert [(case.dtype, case.values, case.size["rows"], case.seed) for case in quick] == [
        (contract.dtypes[0], "a", 70000, 1),
        (contract.dtypes[1], "a", 2, 1),
    ]
    default = list(generate._beyond_grid(contract, "default", 0))
    assert len(default) == 2 * 2 * len(contract.dtypes)
    assert [case.values for case in default] == ["a", "b"] * 6
    plain, turned = default[::2], default[1::2]
    assert {case.params for case in plain} == {(("eps", 0.1), ("flag", True))}
    assert [case.param["flag"] for case in turned[:3]] == [False, True, False]
    never = toy(lambda case: case.param["flag"], beyond_grid=[dict(rows=70000, cols=3)])
    assert all(case.param["flag"] for case in generate._beyond_grid(never, "default", 0))


def test_of_a_plan_nothing_is_left_out_unless_it_says_so():
    plan = Plan([])
    assert (plan.sampled_out, plan.over_ceiling, plan.elsewhere, plan.infeasible) == (0, 0, 0, [])
