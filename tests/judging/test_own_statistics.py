"""As with which mean and variance the rows of a norm are said to be wrong."""

from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.judging import diagnosis, own_statistics, reading
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
    depends = dict(depends=lambda output: f"{output}[0] changes with it", edge=lambda output: pytest.fail("not asked"))
    text = diagnosis.diagnose(contract, case, got, expected, verdicts, mutants=False, **depends)["y"]
    assert "; y[0] changes with it; each row is as with a variance of 0.95 to 0.99 of its" in text.splitlines()[0]


def test_another_op_has_no_statistics():
    assert said("softmax", lambda x: 1.1 * torch.softmax(x, -1), rows=5, cols=40) is None


def test_a_variance_that_cancels():
    """E[x²] - E[x]² in float32, far from 0; and one that is off by more than that."""

    x = (torch.randn(6, 64, generator=torch.Generator().manual_seed(1)) + 3000).double()
    variance, squares = x.var(1, correction=0, keepdim=True), x.mean(1, keepdim=True) ** 2
    off = squares * 2.0**-24 * torch.linspace(1, 6, 6)[:, None]
    told = own_statistics._cancelled(x, (variance + off + 1e-5) / (variance + 1e-5), 1e-5)
    assert told is not None and told.startswith(
        "a variance that is off by up to 6 roundings of mean^2 in float32, as E"
    )
    assert own_statistics._cancelled(x, (variance + 100 * off + 1e-5) / (variance + 1e-5), 1e-5) is None
    assert own_statistics._cancelled(x, (variance + off / 500 + 1e-5) / (variance + 1e-5), 1e-5) is None
    assert (
        own_statistics._cancelled(x - 2995, (variance + off + 1e-5) / (variance + 1e-5), 1e-5) is None
    )  # no large mean


def test_a_layer_norm_whose_variance_cancels():
    contract = registry.contract("layer_norm")
    case = plain_case(contract, "float32", "mean_offset", size=dict(rows=6, cols=64))
    inputs = contract.build(case)
    x, weight, bias = (inputs.exact[name] for name in ("x", "weight", "bias"))
    variance = (x.var(1, correction=0, keepdim=True) + x.mean(1, keepdim=True) ** 2 * 2.0**-24 * 3) + case.param["eps"]
    got = (x - x.mean(1, keepdim=True)) * variance**-0.5 * weight + (0 if bias is None else bias)
    right = contract.expected(inputs)["y"]
    bad = compare.compare(got.float(), right, torch.float32).bad
    allowed = torch.as_tensor(budget(right, torch.float32)).expand(got.shape)
    told = own_statistics.of_parts(contract, case, "y", got, right.answer.expand(got.shape), allowed, bad)
    assert told is not None and told.startswith(
        "each row is as with a variance that is off by up to 3 roundings of mean^2"
    )


def padded(to):
    def fn(x, weight, bias, *, eps=1e-5):
        x, more = x.double(), to(x.shape[1]) - x.shape[1]
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean).square().sum(-1, keepdim=True) + more * mean.square()) / x.shape[1]
        return ((x - mean) * (variance + eps) ** -0.5 * weight + (0 if bias is None else bias)).float()

    return fn


def said_of_padding(fn, op="layer_norm", sizes=((6, 65), (3, 40), (2, 200), (4, 64)), of=None):
    contract = registry.contract(op)
    cases = [plain_case(contract, "float32", "mean_offset", size=dict(rows=r, cols=c)) for r, c in sizes]
    cases = [replace(case, params=(("eps", 1e-3),)) for case in cases]

    def call(case):
        return contract.by_name(contract.call(fn, contract.build(case).arguments))

    case = cases[0] if of is None else of(cases[0])
    return own_statistics.padding(contract, case, reading.given_on(contract, case, "y", call), cases, "y", call)


@pytest.mark.parametrize(
    ("to", "text"),
    [
        (lambda n: 1 << (n - 1).bit_length(), "the next power of two"),
        (lambda n: -(-n // 32) * 32, "a multiple of 32"),
        (lambda n: 2 * n, None),  # as if the mean were not taken away
        (lambda n: n, None),
    ],
)
def test_padding_that_counts_in_the_variance(to, text):
    told = said_of_padding(padded(to))
    assert told == (
        text
        and f"each row is as if it were padded to {text} and the padding counted in its variance, as 0 less the mean"
    )


def test_padding_is_told_of_a_case_that_shows_it():
    """Not of rows that are wrong for another reason there, as those of small variance, whose eps is left out."""

    def fn(x, *rest, eps):
        if x.abs().max() > 100:
            return padded(lambda n: 1 << (n - 1).bit_length())(x, *rest, eps=eps)
        return layer(lambda m, v, rows: (m, 0.25 * v))(x, *rest, eps=eps)

    assert said_of_padding(fn) is not None
    assert said_of_padding(fn, of=lambda case: replace(case, values="tiny")) is None


def test_padding_is_told_by_several_sizes():
    power = padded(lambda n: 1 << (n - 1).bit_length())
    assert said_of_padding(power, sizes=((6, 65),)) is None
    assert said_of_padding(padded(lambda n: n + 63), sizes=((6, 65), (3, 100), (2, 40))) is None
