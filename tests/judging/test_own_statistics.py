"""As with which mean and variance the rows of a norm are said to be wrong."""

from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.judging import diagnosis, own_statistics
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import budget
from touchstone.conformance.spec.cases import plain_case


def said(op, fn, params=(), **size):
    contract = registry.contract(op)
    case = plain_case(contract, "float32", "normal", size=size)
    case = replace(case, params=tuple({**case.param, **dict(params)}.items()))
    inputs = contract.build(case)
    got = contract.by_name(contract.call(fn, inputs.arguments))["y"]
    right = contract.expected(inputs)["y"]
    bad = compare.compare(got, right, torch.float32).bad
    allowed = torch.as_tensor(budget(right, torch.float32)).expand(got.shape)
    return own_statistics.of_parts(contract, case, "y", got.double(), right.answer.expand(got.shape), allowed, bad)


def layer(change):
    def fn(x, weight, bias, *, eps=1e-5):
        x, rows = x.double(), torch.arange(1.0, len(x) + 1).double()[:, None]
        mean, variance = change(x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0) + eps, rows)
        y = (x - mean) * variance**-0.5 * weight + (0 if bias is None else bias)
        return y.float()

    return fn


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m, v, rows: (m, 0.99 * v), "each row is as with a variance of 0.99 of its own, and its own mean"),
        (
            lambda m, v, rows: (m, (1 - 0.01 * rows) * v),
            "each row is as with a variance of 0.95 to 0.99 of its own, and its own mean",
        ),
        (
            lambda m, v, rows: (m + 0.01 * rows * v.sqrt(), v),
            "each row is as with a mean off by up to 0.05 of its deviation, and its own variance",
        ),
        (
            lambda m, v, rows: (m - 0.01 * rows * v.sqrt(), 1.1 * v),
            "each row is as with a mean off by up to 0.05 of its deviation, and a variance of 1.1 of its own",
        ),
        (lambda m, v, rows: (m, v * torch.linspace(1, 2, 40)), None),
        (lambda m, v, rows: (m, 1e30 * v), None),  # next to nothing
    ],
)
def test_other_statistics_of_a_row(change, text):
    assert said("layer_norm", layer(change), rows=5, cols=40) == text


def test_too_few_columns_tell_nothing():
    fn = layer(lambda m, v, rows: (m, 0.9 * v))
    assert said("layer_norm", fn, rows=5, cols=8) is not None and said("layer_norm", fn, rows=5, cols=7) is None


def test_a_mean_of_squares():
    def fn(x, weight, *, eps=1e-6):
        return (x * (0.9 * x.square().mean(-1, keepdim=True) + eps) ** -0.5 * weight).float()

    assert said("rms_norm", fn, rows=5, cols=40) == "each row is as with a mean of squares of 0.9 of its own"


def test_a_group():
    def fn(x, weight, bias, *, groups, eps=1e-5):
        y = torch.nn.functional.group_norm(x, groups)
        along = [1, -1, *[1] * (x.ndim - 2)]
        return y / 0.9**0.5 * weight.reshape(along) + (0 if bias is None else bias.reshape(along))

    told = said("group_norm", fn, params={"groups": 3}, N=2, C=6, trailing=(5,))
    assert told is not None and told.startswith("each group is as with a variance of 0.9")


def test_a_diagnosis_says_so():
    contract = registry.contract("layer_norm")
    case = plain_case(contract, "float32", "normal", size=dict(rows=5, cols=40))
    fn = layer(lambda m, v, rows: (m, (1 - 0.01 * rows) * v))
    got, expected = (
        contract.by_name(contract.call(fn, contract.build(case).arguments)),
        contract.expected(contract.build(case)),
    )
    verdicts = {"y": compare.compare(got["y"], expected["y"], torch.float32)}
    text = diagnosis.diagnose(contract, case, got, expected, verdicts, mutants=False)["y"]
    assert "; each row is as with a variance of 0.95 to 0.99 of its own, and its own mean" in text.splitlines()[0]


def test_another_op_has_no_statistics():
    assert said("softmax", lambda x: 1.1 * torch.softmax(x, -1), rows=5, cols=40) is None
