"""As which rounding a result in 16 bits is said to look."""

import pytest
import torch

from touchstone import check
from touchstone.conformance.spec import rounding

DTYPES = (torch.float16, torch.bfloat16)


def sums(dtype):
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2000, generator=draw).to(dtype).double() for _ in "ab")
    return a + b


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_way_is_told_from_the_others(dtype):
    exact = sums(dtype)
    for text, rounded in rounding._ways(exact, dtype):
        assert rounding.way(rounded, exact) == text
        off = int((rounded != exact.to(dtype)).sum())
        name = str(dtype).removeprefix("torch.")
        assert rounding.told(rounded, exact, "a + b") == (
            f"{off} of 2000 elements are not the nearest {name} to a + b, as if it were {text}"
        )
    for right in (exact.to(dtype), exact.float().to(dtype)):
        assert rounding.way(right, exact) is None and rounding.told(right, exact, "a + b") is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours(dtype):
    number = torch.tensor([1.0, -1.0, 0.0, -0.0, 2.0, 1000.0], dtype=dtype)
    above, below = rounding._stepped(number, 1), rounding._stepped(number, -1)
    assert bool((above.double() > number.double()).all() & (below.double() < number.double()).all())
    assert torch.equal(rounding._stepped(above, -1) + 0.0, number + 0.0)
    middle = (above.double() + below.double()) / 2
    assert bool(((middle - number.double()).abs() <= (above.double() - below.double()) / 4).all())


def test_where_no_way_is_told():
    exact = sums(torch.bfloat16)
    assert rounding.way((exact * 1.01).bfloat16(), exact) is None
    assert rounding.way(exact.float(), exact) is None and rounding.way(exact.int(), exact) is None
    assert rounding.told((exact * 1.01).bfloat16(), exact, "it").endswith("are not the nearest bfloat16 to it")
    shared = torch.tensor([torch.inf, torch.nan, 1.0], dtype=torch.float64)
    assert rounding.way(shared.bfloat16(), shared) is None


def test_reports_say_so():
    """Half of a unit is added and the rest cut off: ties go away from 0."""

    def add(a, b, *, function):
        if function != "add" or a.dtype is not torch.bfloat16:
            return {"add": torch.add, "mul": torch.mul, "maximum": torch.maximum}[function](a, b)
        bits = (a.float() + b.float()).view(torch.int32)
        return ((bits + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)

    report = check("elementwise", add, device="cpu", level="quick", dtypes=["bfloat16"])
    ties = "as if {} were rounded to the nearest, ties away from 0"
    assert ties.format("it") in str(report) and ties.format("the exact result") in str(report)
