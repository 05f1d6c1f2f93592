"""Without which options a wrong kernel is said to be right."""

from dataclasses import replace

import pytest

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge, options, reading
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.masked_attention import torch_masked_attention

CONTRACT = registry.contract("masked_attention")


def case_of(bias="contiguous", slopes="contiguous", **params):
    case = plain_case(CONTRACT, "float32", "normal", size=dict(B=2, Hq=2, Hkv=1, Sq=9, Sk=13, D=16))
    layouts = {**case.layout, "bias": bias, "slopes": slopes}
    return replace(case, layouts=tuple(layouts.items()), params=tuple({**case.param, **params}.items()))


def told(is_wrong, case, seconds=20.0):
    def call(other):
        exact = CONTRACT.build(other).exact
        o, lse = torch_masked_attention(**exact, **other.param)
        wrong = is_wrong(exact["bias"] is not None, exact["slopes"] is not None, **other.param)
        return {"o": o.float() + wrong, "lse": lse.float()}

    return options.of_output(CONTRACT, case, "o", call, seconds)


@pytest.mark.parametrize(
    ("is_wrong", "text"),
    [
        (
            lambda bias, slopes, softcap, **_: softcap is not None and (bias or slopes),
            "right with softcap=None, or without bias and slopes, all else being equal",
        ),
        (
            lambda bias, slopes, softcap, **_: softcap is not None and bias,
            "right with softcap=None, or without bias, or without bias and slopes, all else being equal",
        ),
        (lambda bias, slopes, window, **_: window is not None, "right with window=None, all else being equal"),
        (lambda bias, slopes, **_: True, None),  # whatever is left out
        (lambda bias, slopes, softcap, **_: softcap is None, None),  # right in this case
    ],
)
def test_options_without_which_a_kernel_is_right(is_wrong, text):
    case = case_of(softcap=2.5, window=3)
    assert told(is_wrong, case) == text
    assert told(is_wrong, case, seconds=-1.0) is None
    assert options.of_output(CONTRACT, case, "o", reading.nothing, 20.0) is None


def test_an_option_that_is_the_only_one_is_in_the_case_already():
    case = case_of("none", "none", softcap=2.5, window=None)
    assert told(lambda bias, slopes, softcap, **_: softcap is not None, case) is None


def test_a_failure_says_so():
    def fn(*operands, softcap=None, **params):
        o, lse = torch_masked_attention(*operands, softcap=softcap, **params)
        return o + (softcap is not None and operands[3] is not None) * (37 * o).cos() / 9, lse

    case = case_of(slopes="none", softcap=2.5)
    outcome = judge.run(Subject("masked_attention", fn, "fn", "user@cpu", "cpu"), CaseTrial(case))
    assert "right with softcap=None, or without bias, all else being equal" in outcome.findings[0].diagnosis


def test_an_option_that_is_right_by_chance_is_not_told():
    case = case_of(softcap=2.5, window=3, p=0.3, seed=1099511627792)
    softcap = "right with softcap=None, all else being equal"

    def capped(is_wrong):
        return lambda bias, slopes, softcap, **given: softcap is not None and is_wrong(**given)

    every = "right with softcap=None, or with seed=0, all else being equal"
    assert told(capped(lambda seed, **_: seed > 0), case) == every
    assert told(capped(lambda seed, **_: seed % 3 == 1099511627792 % 3), case) == softcap  # of other seeds some are
    without = "right with window=None, or with softcap=None, all else being equal"
    assert told(capped(lambda window, **_: window == 3), case) == without  # which other windows are right tells nothing

    def of_some_values(other):
        exact = CONTRACT.build(other).exact
        o, lse = torch_masked_attention(**exact, **other.param)
        wrong = other.param["softcap"] is not None and not (other.param["window"] is None and other.seed == case.seed)
        return {"o": o.float() + wrong, "lse": lse.float()}

    assert options.of_output(CONTRACT, case, "o", of_some_values, 20.0) == softcap
