"""Cases divided among the variants of a ladder: nothing is lost, and little is done twice."""

import pytest

from tests.fixed import changeable
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import sharing
from touchstone.conformance.spec.cases import plan
from touchstone.conformance.spec.sharing import FEWEST, homes, shares

ALL = ("float32", "float16", "bfloat16")
HALF = ALL[1:]


@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ({"a": ALL}, {"a": ALL}),
        ({"a": ALL, "b": ALL}, {"a": ("float32", "bfloat16"), "b": ("float16",)}),
        ({"a": ALL, "b": ALL, "c": ALL}, {"a": ("float32",), "b": ("float16",), "c": ("bfloat16",)}),
        ({"a": ALL, "b": HALF}, {"a": ("float32", "bfloat16"), "b": ("float16",)}),
        ({"a": HALF, "b": HALF}, {"a": ("float16",), "b": ("bfloat16",)}),  # nobody takes float32
        ({"a": HALF, "b": ALL}, {"a": HALF, "b": ("float32",)}),
        # what is left over goes to those that have the fewest, though others take it too and stand before them
        (
            {"a": ("float32",), "b": ("float32", "float16"), "c": ALL},
            {"a": ("float32",), "b": ("float16",), "c": ALL[2:]},
        ),
        ({"a": ALL, "b": ()}, {"a": ALL, "b": ()}),
        ({}, {}),
    ],
)
def test_each_dtype_has_a_variant_that_takes_it(takes, expected):
    assert {name: set(those) for name, those in homes(ALL, takes).items()} == {
        name: set(those) for name, those in expected.items()
    }


@pytest.mark.parametrize("op", ["matmul", "attention", "rope", "dot"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 13])
def test_every_case_is_in_a_share_and_few_are_in_many(op, count):
    contract = registry.contract(op)
    cases = plan(contract, "quick").general
    takes = {f"variant{n}": HALF if n % 4 == 3 else contract.dtypes for n in range(count)}
    found = shares(contract, takes, cases)
    held = [case for share in found.values() for case in share.cases]
    assert set(held) == set(cases)
    for name, share in found.items():
        assert {case.dtype for case in share.cases} == set(share.dtypes) <= set(takes[name])
        assert len(share.cases) >= min(FEWEST, min(sum(case.dtype == dtype for case in cases) for dtype in ALL))
    contiguous = sum(case.contiguous for case in cases)
    assert len(held) <= max(len(cases), (FEWEST + 2) * count) + contiguous * count
    if count > 1:
        assert max(len(share.cases) for share in found.values()) < len(cases)


def test_a_variant_that_takes_aligned_sizes_alone_has_one():
    contract = registry.contract("matmul")
    assert contract.aligned
    cases = plan(contract, "quick").general
    for share in shares(contract, {f"variant{n}": ALL for n in range(9)}, cases).values():
        assert any(case.contiguous and dict(case.sizes) in list(contract.aligned) for case in share.cases)


def test_what_no_variant_takes_is_in_no_share():
    contract = registry.contract("softmax")
    cases = plan(contract, "quick").general
    found = shares(contract, {"a": HALF, "b": HALF}, cases)
    held = {case for share in found.values() for case in share.cases}
    assert held == {case for case in cases if case.dtype in HALF}


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(sharing.Share) == []


def test_a_dtype_without_cases_is_nobodys_share():
    contract = registry.contract("softmax")
    cases = [case for case in plan(contract, "quick").cases if case.dtype == "float16"]
    made = shares(contract, {"one": contract.dtypes, "other": contract.dtypes}, cases)
    assert made["one"].cases | made["other"].cases == set(cases)
    assert shares(contract, {"one": ("float32",)}, cases)["one"].cases == frozenset()
