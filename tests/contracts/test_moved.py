"""Contracts of ops that only move data: their families tell elements apart, their answers are compared bit by bit."""

import pytest
import torch

from touchstone.conformance.contracts import _moved
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults._moved import places_of, taken
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import DTYPES, Draw, Operand, Output

SOME = [DTYPES[name] for name in DTYPES]


def _bits(x):
    return x.contiguous().view(_moved.BITS[x.element_size()])


@pytest.mark.parametrize("dtype", SOME, ids=str)
def test_tags_are_finite_and_all_different(dtype):
    numbers = _moved.as_numbers(torch.arange(_moved.PATTERNS), dtype)
    given = numbers.to(dtype)
    assert bool(given.isfinite().all())
    assert _bits(given).unique().numel() == _moved.PATTERNS
    assert torch.equal(given.double(), numbers)
    assert bool((given < 0).any()) and bool((given > 0).any())
    assert bool(((given != 0) & (given.abs() < torch.finfo(dtype).tiny)).any()), "no subnormal number"


def test_tags_of_float32_are_lost_in_16_bits():
    given = _moved.as_numbers(torch.arange(_moved.PATTERNS), torch.float32).float()
    for narrow in (torch.float16, torch.bfloat16):
        assert not bool((_bits(given.to(narrow).float()) == _bits(given)).any())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_nan_and_infinities_are_there_however_few_elements_there_are(rows, seed):
    """A kernel that makes 0 of NaN would pass where chance leaves it out of small cases."""
    contract = registry.contract("transpose")
    case = plain_case(contract, "float16", "specials", seed, {"rows": rows, "cols": 1})
    x = contract.values["specials"](Draw(case, contract))["x"]
    assert bool(x.isnan().any()) and int(x.isinf().sum()) >= min(rows - 1, 2)


def test_rows_have_tags_of_their_own():
    contract = registry.contract("transpose")
    case = plain_case(contract, "float16", "row_tags", size={"rows": 40, "cols": 7})
    x = contract.build(case).arguments["x"]
    assert bool((x == x[:, :1]).all())
    assert x[:, 0].unique().numel() == 40


def test_what_is_drawn_differs_from_case_to_case():
    """A cache must not be right for another call of the same shape."""
    contract = registry.contract("transpose")
    first, second = (contract.build(plain_case(contract, "float32", "tags", seed)).arguments["x"] for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", SOME, ids=str)
def test_the_sign_of_zero_and_subnormals_count_and_any_nan_will_do(dtype):
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    answer = Expected(torch.tensor([-0.0, least, torch.nan], dtype=torch.float64), bitwise=True)
    quiet = torch.tensor([-0.0, least, -torch.nan], dtype=dtype)
    assert compare.compare(quiet, answer, dtype).ok
    for place, wrong in ((0, 0.0), (1, 0.0), (1, 2 * least), (2, 1.0)):
        got = quiet.clone()
        got[place] = wrong
        verdict = compare.compare(got, answer, dtype)
        assert not verdict.ok and "1 of 3" in str(verdict.message)


def _padded(x, rows):
    """Two outputs: x with rows of 0 below, and its first column."""
    return torch.cat([x, x.new_zeros(rows, x.shape[1])]), x[:, 0].contiguous()


def test_places_are_where_elements_come_from_and_where_none_does():
    x = torch.tensor([[5.0, -0.0], [torch.nan, 7.0]])
    padded, column = places_of(_padded, x, 1)
    assert padded.tolist() == [[0, 1], [2, 3], [-1, -1]] and column.tolist() == [0, 2]
    for places, right in zip((padded, column), _padded(x, 1), strict=True):
        assert torch.equal(_bits(taken(x, places)), _bits(right))


def test_a_contract_is_made_of_a_reference():
    """Several outputs, one of a dtype of its own, and elements that come from nowhere."""
    contract = _moved.moved(
        lambda x, *, rows: (*_padded(x, rows), torch.tensor(float(len(x)))),
        operands={"x": Operand("R C")},
        outputs={"y": Output("R C"), "z": Output("R"), "n": Output("", torch.int32)},
        values=_moved.families("x"),
        sizes=[{"R": 40, "C": 7}],
        params={"rows": (2,)},
    )
    contract.name = "padded"
    inputs = contract.build(plain_case(contract, "bfloat16", "specials"))
    expected = contract.expected(inputs)
    assert [expected[name].dtype for name in ("y", "z", "n")] == [None, None, torch.int32]
    y, z = _padded(inputs.arguments["x"], 2)
    assert compare.compare(y, expected["y"], torch.bfloat16).ok and compare.compare(z, expected["z"], torch.bfloat16).ok
    assert compare.compare(torch.tensor(40, dtype=torch.int32), expected["n"], torch.bfloat16).ok
    assert not compare.compare(y + 0.0, expected["y"], torch.bfloat16).ok  # −0 is lost
    assert contract.flops({"R": 40, "C": 7}, {}) > 0


def test_what_moves_may_not_depend_on_what_is_moved():
    contract = registry.contract("transpose")
    prop = _moved.relabels("x")
    case = plain_case(contract, "float16", prop.values)
    arguments = contract.build(case).arguments

    def by(fn):
        return prop.check(lambda x: (fn(x),), arguments, (fn(arguments["x"]),), case)

    assert by(lambda x: x.t().contiguous()) is None
    assert by(lambda x: x.t().contiguous().sort(0).values) is not None
