"""On what the wrong elements of an output are said to depend, or not to; and where nothing is said."""

import itertools
from dataclasses import replace

import pytest
import torch

from touchstone import check
from touchstone.conformance.discovery import registry
from touchstone.conformance.judging import influence
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference import attention_decode


def said(op, fn, output="y", *, params=(), dtype="float32", seconds=60.0, **size):
    """What an output of a kernel is said to depend on, or not to, in its call on a plain case."""
    contract = registry.contract(op)
    case = plain_case(contract, dtype, next(iter(contract.values)), size=size)
    case = replace(case, params=tuple({**case.param, **dict(params)}.items()))

    def call(inputs):
        found = contract.call(fn, inputs.arguments)
        return None if found is None else contract.by_name(found)

    return influence.of_output(contract, case, output, "cpu", call, seconds)


def summed(more):
    """A softmax whose sums have `more` of the powers in them."""

    def fn(x):
        e = torch.exp(x.float())
        return (e / (e.sum(-1, keepdim=True) + more(e))).to(x.dtype)

    return fn


def next_row(e):
    return torch.cat([e[1:, :2].sum(1, keepdim=True), 0 * e[:1, :1]])


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (next_row, "y[0] changes with rows 1 of x, on which its answer does not depend"),
        (lambda e: -e[:, -3:].sum(-1, keepdim=True), None),  # which it still weighs itself
        (lambda e: e[:, :1], None),  # a term twice
    ],
)
def test_a_sum_that_reaches_into_another_row(more, text):
    assert said("softmax", summed(more), rows=5, cols=9) == text


def attention(mask, skipped=0):
    def fn(q, k, v, *, causal=False, scale=None):
        s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[-1] ** -0.5
        s[..., :skipped] = -torch.inf
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        s = s.masked_fill(mask(i + k.shape[2] - q.shape[2], j), -torch.inf) if causal else s
        return torch.softmax(s, -1) @ v.repeat_interleave(q.shape[1] // k.shape[1], 1), torch.logsumexp(s, -1)

    return fn


SIZE = dict(B=1, Hq=2, Hkv=1, Sq=5, Sk=12, D=8)


def test_queries_that_see_keys_behind_them():
    told = said("attention", attention(lambda i, j: j > i + 2), "o", params={"causal": True}, **SIZE)
    keys, values = "Sk 8..9 of k", "Sk 8..9 of v"
    assert told == f"o[0, 0, 0] changes with {keys}, {values}, on which its answer does not depend"


@pytest.mark.parametrize("output", ["o", "lse"])
def test_keys_that_are_not_seen(output):
    told = said("attention", attention(lambda i, j: j > i, skipped=3), output, params={"causal": True}, **SIZE)
    parts = "Sk 0..2 of k, Sk 0..2 of v" if output == "o" else "Sk 0..2 of k"
    assert told == f"{output}[0, 0, 0] does not change with {parts}, on which its answer depends"


def test_the_last_keys_that_are_not_seen():
    told = said("attention", attention(lambda i, j: j > i - 2), "lse", params={"causal": True}, **SIZE)
    assert told == "lse[0, 0, 0] does not change with Sk 6..7 of k, on which its answer depends"


def test_an_output_that_is_made_of_another_operand():
    def fn(q, k, cos, sin, positions, *, interleaved=False):
        return k.clone(), k.clone()

    size = dict(B=2, Hq=2, Hkv=2, S=5, D=40, half=10, P=9)
    told = said("rope", fn, "q_turned", **size)
    assert told.startswith("q_turned[0, 0, 0] changes with k, on which its answer does not depend, and does not change")
    assert "with q, " in told


def test_a_mask_that_is_not_read():
    def fn(dy, bits, *, p=0.5):
        keep = torch.rand(dy.shape, generator=torch.Generator().manual_seed(7)) >= p
        return torch.where(keep, dy / (1 - p), 0.0)

    told = said("dropout_bitmask_backward", fn, "dx", trailing=(3, 40), words=4)
    assert told == "dx[0] does not change with bits, on which its answer depends"


def test_one_length_for_a_whole_batch():
    def fn(q, k, v, lengths, *, scale=None):
        one = lengths.max().expand(lengths.shape)
        return attention_decode.torch_attention_decode(q, k.nan_to_num(), v.nan_to_num(), one, scale=scale)

    told = said("attention_decode", fn, "lse", B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    assert " of lengths, on which its answer does not depend" in told


def test_an_output_of_one_axis():
    def fn(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
        xhat = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
        return dy, (dy * xhat)[:-2].sum(0), dy.sum(0)

    told = said("layer_norm_backward", fn, "dweight", rows=9, cols=5)
    assert told == "dweight does not change with rows 7..8 of x, rows 7..8 of dy, on which its answer depends"


def test_where_nothing_is_said(monkeypatch):
    reads_on = summed(next_row)
    size = dict(rows=5, cols=9)
    assert said("softmax", reads_on, seconds=0.0, **size) is None
    assert said("softmax", lambda x: None, **size) is None
    assert said("softmax", lambda x: reads_on(x) * torch.nan, **size) is None
    assert said("softmax", lambda x: 0 * x, **size) is None
    count = itertools.count(1)
    assert said("softmax", lambda x: reads_on(x) * next(count), **size) is None  # another one in each call
    assert said("softmax", lambda x: torch.softmax(x, -1), **size) is None
    monkeypatch.setattr(influence, "WORK_LIMIT", 0)
    assert said("softmax", reads_on, **size) is None


def test_what_follows_from_other_operands_follows_them():
    """dv has the weights of a given lse, which depends on the other keys."""

    def fn(q, k, v, o, lse, do, *, causal=False, scale=None):
        p = torch.exp(q @ k.mT * q.shape[-1] ** -0.5 - lse[..., None])
        dv = p.mT @ do
        dp = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return dp @ k, dp.mT @ q, 1.1 * dv

    told = said("attention_backward", fn, "dv", B=1, Hq=1, Hkv=1, Sq=5, Sk=6, D=8)
    assert told is None


def test_in_a_small_case_what_is_not_told_by_a_large_one():
    told = said("softmax", summed(next_row), rows=900, cols=2000)
    assert told.startswith("y[0] changes with rows 1 of x, on which its answer does not depend (float32-")


@pytest.mark.parametrize(("seconds", "so"), [(60.0, True), (0.0, False)])
def test_a_report_says_so_within_a_few_seconds(monkeypatch, seconds, so):
    monkeypatch.setattr(influence, "SECONDS", 60.0)
    monkeypatch.setattr(influence, "OF_A_KERNEL", seconds)
    report = check("softmax", summed(next_row), device="cpu", level="quick", dtypes=["float32"])
    assert ("changes with rows " in str(report)) == so


@pytest.mark.parametrize(("holds_from", "found"), [(0, 0), (3, 3), (8, 8)])
def test_the_least_number_from_which_something_holds(holds_from, found):
    assert influence._least(0, 8, lambda at: at >= holds_from) == found
