"""Without which numbers a kernel is found to be right."""

import math
from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge, without
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.attention_backward import torch_attention_backward
from touchstone.reference.elementwise import torch_elementwise

SUM, GRADIENT = registry.contract("elementwise"), registry.contract("attention_backward")


def told(is_wrong, number=None, of=("a", "b"), *, seconds=20.0, dtype="float32", values="normal"):
    """What is said of a sum that is wrong where `is_wrong(a, b)`; `number` stands in some operands, where it is
    given."""

    def family(draw):
        drawn = dict(SUM.values[values](draw))
        for name in of if number is not None else ():
            drawn[name].flatten()[::9] = number
        return drawn

    contract = replace(SUM, values={**SUM.values, values: family})
    case = plain_case(contract, dtype, values)

    def call(other, changed):
        given = changed.build(other).arguments
        so = is_wrong(given["a"], given["b"])
        return None if so is None else {"y": torch_elementwise(**given) + so}

    return without.of_output(contract, case, "y", call, seconds)


def has(x, number):
    return bool((x == number).any())


@pytest.mark.parametrize(
    ("number", "kind"), [(math.inf, "inf"), (-math.inf, "-inf"), (0.0, "0"), (1e-40, "numbers next to 0")]
)
@pytest.mark.parametrize("of", ["a", "b", ("a", "b")])
def test_a_number_that_makes_it_wrong(number, kind, of):
    def is_wrong(a, b):
        return has({"a": a, "b": b}[of], number) if isinstance(of, str) else has(a, number) or has(b, number)

    named = of if isinstance(of, str) else "a and b"
    assert told(is_wrong, number) == f"right without {kind} in {named}, all else being equal"


def test_nan_and_zeros_below_0():
    assert told(lambda a, b: bool(b.isnan().any()), math.nan) == "right without NaN in b, all else being equal"
    is_wrong = lambda a, b: bool((torch.signbit(a) & (a == 0)).any())  # noqa: E731
    assert told(is_wrong, -0.0, ("a",)) == "right without -0 in a, all else being equal"


def test_signs():
    assert told(lambda a, b: bool((a < 0).any())) == "right without negative numbers in a, all else being equal"
    assert told(lambda a, b: bool((b > 0).any())) == "right without positive numbers in b, all else being equal"


def test_numbers_are_those_of_the_operands_dtype():
    text = "right without 0 in a, all else being equal"
    assert told(lambda a, b: has(a, 0.0), 1e-12, ("a",), dtype="float16") == text


def test_where_nothing_is_said():
    assert told(lambda a, b: True, 0.0) is None  # wrong without them too
    assert told(lambda a, b: False, 0.0) is None
    assert told(lambda a, b: has(a, 0.0), 0.0, seconds=0.0) is None
    assert told(lambda a, b: has(a, float(a[0, 0]))) is None  # whatever its numbers are
    only_once = iter([True, True, False])
    assert told(lambda a, b: next(only_once, False), 0.0) is None  # the values decide
    assert told(lambda a, b: has(a, 0.0) or None, 0.0, ("a",)) is None  # nothing comes of a call without them
    both = lambda a, b: has(a, 0.0) and has(b, math.inf)  # noqa: E731
    assert told(both, 0.0) is None  # there is no infinity


def test_what_follows_from_an_operand_follows_from_its_other_numbers():
    """o and lse are those of the q that is given; rows of o that see no key are 0."""

    def family(draw):
        drawn = GRADIENT.values["normal"](draw)
        return {**drawn, **{name: drawn[name].masked_fill(drawn[name] > 1.5, 0.0) for name in ("q", "do")}}

    contract = replace(GRADIENT, values={**GRADIENT.values, "normal": family})
    case = plain_case(contract, "float32", "normal", size=dict(B=1, Hq=2, Hkv=2, Sq=9, Sk=7, D=16))
    case = replace(case, params=(("causal", True), ("scale", None)))

    def said(is_wrong):
        def call(other, changed):
            arguments = changed.build(other).arguments
            grads, wrong = torch_attention_backward(**arguments), is_wrong(**arguments)
            return {name: grad + wrong for name, grad in zip(("dq", "dk", "dv"), grads, strict=True)}

        return without.of_output(contract, case, "dk", call, 20.0)

    text = "right without 0 in q and do, all else being equal"
    assert said(lambda q, do, **_: has(q, 0.0) or has(do, 0.0)) == text
    assert said(lambda q, **_: bool((q < 0).any())) == "right without negative numbers in q, all else being equal"


def test_a_failure_says_so():
    def fn(a, b, *, function="add"):
        return torch_elementwise(a, b, function=function) * (0.5 if bool((a[..., :1] < -30).any()) else 1) ** 0.5

    case = plain_case(SUM, "float32", "wide")
    outcome = judge.run(Subject("elementwise", fn, "fn", "user@cpu", "cpu"), CaseTrial(case))
    assert outcome.findings and "all else being equal" in outcome.findings[0].diagnosis
