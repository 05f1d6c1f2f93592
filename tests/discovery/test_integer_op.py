"""An op with operands of integers, of several dtypes, and with elements that are not to be used."""

from pathlib import Path

import pytest
import torch

from tests.spec import integer_op
from touchstone import check, load_op
from touchstone.conformance.spec.cases import plan
from touchstone.conformance.spec.checks import Check


@pytest.fixture(scope="module")
def op():
    return load_op(Path(integer_op.__file__))


def right(x, index, lengths, start, *, total, each):
    """Reads what it may, in the dtype it is given in."""
    return integer_op.gather(x, index, lengths, start, total=total, each=each)


def stride_ignored(x, index, lengths, start, *, total, each):
    """index is read as if it were contiguous"""
    rows = index.as_strided(index.shape, (index.shape[1], 1)).clamp(0, len(x) - 1)
    return right(x, rows, lengths, start, total=total, each=each)


def read_as_int32(x, index, lengths, start, *, total, each):
    """the words of index are taken to be 32 bits"""
    words = index.contiguous().view(torch.int32).flatten()[: index.numel()].view(index.shape)
    return right(x, words.clamp(0, len(x) - 1), lengths, start, total=total, each=each)


def all_used(x, index, lengths, start, *, total, each):
    """entries beyond a length are used too"""
    everything = torch.full_like(lengths, index.shape[1])
    return right(x, index.clamp(0, len(x) - 1), everything, start, total=total, each=each)


def one_too_many(x, index, lengths, start, *, total, each):
    """the number of rows is off by one"""
    y, count = right(x, index, lengths, start, total=total, each=each)
    return y, count + 1


def unsigned_zero(x, index, lengths, start, *, total, each):
    """what lies beyond a length is -0"""
    y, count = right(x, index, lengths, start, total=total, each=each)
    return torch.where(y == 0, -torch.zeros_like(y), y), count


def first_start(x, index, lengths, start, *, total, each):
    """every count begins at the first of start"""
    first = start.flatten()[:1].expand(index.shape[0]) if each else start
    return right(x, index, lengths, first, total=total, each=each)


def wrong_total(x, index, lengths, start, *, total, each):
    """total is another than the case's"""
    assert total == index.numel()
    return right(x, index, lengths, start, total=total, each=each)


def test_it_is_judged(op):
    report = check(op, right, device="cpu", level="default", isolate="none")
    assert report.passed, report
    assert check(op, wrong_total, device="cpu", level="quick", isolate="none").passed


@pytest.mark.parametrize("wrong", [stride_ignored, read_as_int32, all_used, one_too_many, unsigned_zero, first_start])
def test_what_is_wrong_is_found(op, wrong):
    report = check(op, wrong, device="cpu", level="quick", isolate="none")
    assert not report.passed
    assert {finding.check for finding in report.findings} & {Check.VALUES, "values"}


def test_dtypes_are_an_axis():
    cases = plan(integer_op.contract, "default").cases
    assert {dict(case.dtypes).get("index", "int64") for case in cases} == {"int64", "int32"}
    narrow = next(case for case in cases if case.dtypes)
    assert "index:int32" in narrow.id and "total" not in narrow.id
    inputs = integer_op.contract.build(narrow)
    assert inputs.placed["index"].view.dtype == torch.int32 and inputs.placed["index"].view.device.type == "cpu"
    assert inputs.params["total"] == inputs.placed["index"].view.numel()


def test_poison_around_indices_is_the_last_of_them():
    contract = integer_op.contract
    case = next(case for case in plan(contract, "default").cases if case.layout["index"] == "step" and case.filled)
    placed = contract.build(case).placed
    dtype = placed["index"].view.dtype
    ints = placed["index"].buffer.view(dtype)
    assert int(ints[0]) == int(ints[-1]) == case.size["V"] - 1
    assert placed["lengths"].buffer[0] == 0x7B


def test_elements_that_are_not_to_be_used():
    contract = integer_op.contract
    case = next(case for case in plan(contract, "default").cases if case.size["N"] == 9)
    inputs = contract.build(case)
    unused = torch.arange(9) >= inputs.exact["lengths"][:, None]
    assert unused.any() and bool((inputs.placed["index"].view[unused] == 2**30).all())
    assert not inputs.exact["index"][unused].any()


def test_axes_that_follow_from_a_parameter():
    """An operand, like an output, is a number in one case and a vector in another; its layouts show in the latter."""
    cases = [case for case in plan(integer_op.contract, "default").cases if case.size["B"] == 3]
    assert {integer_op.contract.build(case).placed["start"].view.shape for case in cases} == {(), (3,)}
    shown = {case.layout["start"] for case in cases if case.param["each"]}
    assert shown == {"contiguous", "step", "broadcast_last"}
    assert integer_op.contract.bytes({"V": 2, "D": 3, "B": 5, "N": 7}, {}, 1) == 2 * 3 + 5 * 7 + 5 + 5 * 7 * 3
