"""Which slices of an operand a kernel is found to be wrong on."""

import re
from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge, slices
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.rms_norm import torch_rms_norm
from touchstone.reference.softmax import torch_softmax

NORM, SOFTMAX = registry.contract("rms_norm"), registry.contract("softmax")
ROWS = replace(plain_case(NORM, "float32", "normal"), sizes=(("rows", 20), ("cols", 33)))


def wrong_where(rows):
    """An rms_norm that gives such rows half of their answer."""

    def kernel(x, weight, eps=1e-6):
        y = torch_rms_norm(x, weight, eps=eps)
        return torch.where(rows(x)[:, None], y / 2, y)

    return kernel


def told(kernel, case=ROWS, contract=NORM):
    def call(inputs):
        return {"y": kernel(**inputs.arguments)}

    return slices.of_output(contract, case, "y", call, 10.0)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (lambda x: x.amax(1) > 2.0, r"wrong where the largest x in its rows is 2\.\d* or more, right up to 1\.\d*$"),
        (
            lambda x: x.amin(1) < -2.0,
            r"wrong where the smallest x in its rows is -2\.\d* or less, right from -1\.\d* on$",
        ),
        (
            lambda x: x.argmax(1) >= 16,
            r"wrong where the index of the largest x in its rows is 1\d or more, right up to",
        ),
        (lambda x: x.sum(1) > 0, r"wrong where the sum of x in its rows is [\d.]+ or more, right up to -"),
    ],
)
def test_the_statistic_of_a_row_that_tells(rows, text):
    assert re.match(text, told(wrong_where(rows)))


def test_rows_that_are_wrong_by_their_place_have_no_statistic():
    assert told(wrong_where(lambda x: torch.arange(len(x)) % 7 == 3)) is None
    assert told(wrong_where(lambda x: torch.arange(len(x)) >= 16)) is None


def test_of_one_call_alone_the_place_can_be_what_tells():
    def call(inputs):
        calls.append(inputs.case)
        return {"y": kernel(**inputs.arguments)} if len(calls) == 1 else None

    calls, kernel = [], wrong_where(lambda x: x.amax(1) > 2.0)
    case = replace(ROWS, sizes=(("rows", 100), ("cols", 33)))
    assert slices.of_output(NORM, case, "y", call, 10.0) is None and len(calls) > 1


def test_what_is_right_or_wrong_everywhere_tells_nothing():
    assert told(wrong_where(lambda x: torch.zeros(len(x), dtype=torch.bool))) is None
    assert told(wrong_where(lambda x: torch.ones(len(x), dtype=torch.bool))) is None


def test_where_all_is_wrong_another_family_of_values_tells():
    large = replace(ROWS, sizes=(("rows", 64), ("cols", 64)), values="large")
    text = told(wrong_where(lambda x: x.square().mean(1) > 100), large)
    assert text.startswith("wrong where the ") and text.endswith(", with values row_scales")


def test_what_tells_with_other_values_has_to_tell_with_the_ones_of_the_case():
    sizes = (("rows", 100), ("cols", 5))
    kernel = wrong_where(lambda x: (x < 0).all(1) | (x.amax(1) > 150))
    assert "is negative alone" in told(kernel, replace(ROWS, sizes=sizes))
    assert told(kernel, replace(ROWS, sizes=sizes, values="large")) is None


def test_rows_with_nan():
    case = replace(plain_case(SOFTMAX, "float32", "one_nan"), sizes=(("rows", 40), ("cols", 33)))
    text = told(lambda x: torch_softmax(x.nan_to_num(0.0)), case, SOFTMAX)
    assert text == "wrong where x has NaN in its rows, and nowhere else"


def test_a_failure_says_so():
    kernel = wrong_where(lambda x: x.argmax(1) >= 16)
    outcome = judge.run(Subject("rms_norm", kernel, "kernel", "user@cpu", "cpu"), CaseTrial(ROWS))
    assert "wrong where the index of the largest x in its rows is" in outcome.findings[0].diagnosis


def test_where_an_error_grows_beyond_the_budget_is_no_bound_of_a_kernel():
    def kernel(x, weight, eps=1e-6):
        return torch_rms_norm(x, weight, eps=eps) * (1 + 1e-6 * x.amax(1, keepdim=True))

    assert told(kernel) is None


def test_where_nothing_lies_near_a_bound_none_is_told():
    key = ("x", ("rows",), "the largest {}")
    near, far = ([(float(n), n >= bound, (n,)) for n in (*range(10), *range(11, 20))] for bound in (10, 11))
    assert slices._bound(key, near) == slices._bound(key, far)
    assert slices._bound(key, near) == "wrong where the largest x in its rows is 11 or more, right up to 9"
    assert slices._bound(key, [(1.0, True, (0,)), (2.0, True, (1,)), (9.0, False, (2,)), (11.0, False, (3,))]) is None


def passing(rows, cols, values="normal", **other):
    return replace(plain_case(NORM, "float32", values), sizes=(("rows", rows), ("cols", cols)), **other)


@pytest.mark.parametrize(
    ("part", "refuted"),
    [
        ("wrong where the largest x in its rows is 0.5 or more, right up to 0.4", True),
        ("wrong where the largest x in its rows is 0.5 or more, right up to 0.4, with values large", True),
        ("wrong where the largest x in its rows is 50 or more, right up to 40", False),
        ("wrong where the largest |x| in its rows is 0.1 or less, right from 0.2 on", False),
        ("wrong where the smallest x in its rows is -0.5 or less, right from -0.4 on", True),
        ("wrong where x has NaN in its rows, and nowhere else", False),
        ("wrong where the largest weight in its rows is 0.5 or more, right up to 0.4", False),  # which has none
        ("wrong where the largest x in its cols is 0.5 or more, right up to 0.4", True),
        ("wrong: most of rows 0..7", False),
        ("wrong where o is, and nowhere else", False),
    ],
)
def test_what_slices_of_cases_that_pass_refute(part, refuted):
    assert slices.is_refuted(part, NORM, ROWS, [passing(3, 33)]) is refuted


def test_cases_of_another_dtype_or_parameter_refute_nothing():
    part = "wrong where the largest x in its rows is 0.5 or more, right up to 0.4"
    for other in (passing(3, 33, dtype="float16"), passing(3, 33, params=(("eps", 0.5),)), passing(3, 0)):
        assert not slices.is_refuted(part, NORM, ROWS, [other])
    assert not slices.is_refuted(part, NORM, ROWS, [])


def test_nan_in_a_row_that_is_right_refutes_that_it_is_why():
    part = "wrong where x has NaN in its rows, and nowhere else"
    assert slices.is_refuted(part, NORM, ROWS, [passing(7, 33, "one_nan")])
