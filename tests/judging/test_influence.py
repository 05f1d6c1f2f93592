"""On what the wrong elements of an output are said to depend, or not to; and where nothing is said."""

import itertools
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

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


def from_row(first, step):
    """What every so many rows add to each one."""
    return lambda e: 1e-2 * e[first::step].sum() * torch.ones(len(e), 1)


@pytest.mark.parametrize(
    ("first", "step", "rows"),
    [
        (2, 2, "rows 2, 4, 6, ... (every second from 2, 8 of 18)"),
        (3, 5, "rows 3, 8, 13, ... (every 5th from 3, 3 of 18)"),
        (12, 1, "rows 12..17"),
        (17, 1, "rows 17"),
    ],
)
def test_of_what_lies_outside_all_that_moves_is_named(first, step, rows):
    told = said("softmax", summed(from_row(first, step)), rows=18, cols=9)
    assert told == f"y[0] changes with {rows} of x, on which its answer does not depend"


def test_of_what_moves_too_little_by_itself_some_or_all_is_said(monkeypatch):
    monkeypatch.setattr(influence._Look, "_reaches", lambda look, row, name, letter, at: None)
    told = said("softmax", summed(from_row(2, 2)), rows=18, cols=9)
    assert told == "y[0] changes with some or all of rows 1..16 of x, on which its answer does not depend"


@pytest.mark.parametrize(
    ("some", "rows"),
    [
        (slice(2, None, 2), "rows 2, 4, 6, ... (every second from 2, 19 of 40) of x"),
        (slice(3, 30), "rows 3..29 of x"),
        ([1, 3, 4, 30], "rows 1, 3..4, 30 (4 of 40) of x, among others"),
        ([1, 3, 4, 20, 30], "rows 1, 3..4, 30 (4 of 40) of x, among others"),
    ],
)
def test_of_many_slices_those_next_to_what_counts_are_tried(monkeypatch, some, rows):
    """What is a run or a period there is one up to the last of all; else others are said to be left."""
    monkeypatch.setattr(influence, "ALONE", 0)
    told = said("softmax", summed(lambda e: 1e-2 * e[some].sum() * torch.ones(len(e), 1)), rows=40, cols=9)
    assert told == f"y[0] changes with {rows}, on which its answer does not depend"


def test_slices_between_those_on_which_an_answer_depends_are_named_too():
    """And those on both sides of them."""
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", next(iter(contract.values)), size=dict(rows=10, cols=9))
    look = influence._Look(
        contract,
        case,
        "y",
        "cpu",
        lambda inputs: contract.by_name(summed(from_row(1, 2))(*inputs.arguments.values())),
        math.inf,
    )
    look.rows = [influence.Row((4,), look._row((4,)))]
    part = influence.Beside("x", "rows", 10, slice(2, 7), (slice(1, 2), slice(7, 10)))
    assert look._of_reached(part) == "rows 1, 3, 5, ... (every second from 1, 5 of 10) of x"
    on_both = dict(look._of_operand("x", look.rows[0]))["changes"]
    assert (on_both.span, on_both.reached) == (slice(4, 5), (slice(1, 4), slice(5, 10)))


def test_an_operand_of_any_number_of_axes():
    """Groups that reach into the next one."""

    def fn(x, weight, bias, *, groups, eps=1e-5):
        per = x.shape[1] // groups
        y = torch.empty_like(x)
        for g in range(groups):
            wide = x[:, g * per : (g + 1) * per + 2].flatten(1)
            mean, variance = (
                of(1)[(...,) + (None,) * (x.ndim - 1)] for of in (wide.mean, partial(wide.var, correction=0))
            )
            y[:, g * per : (g + 1) * per] = (x[:, g * per : (g + 1) * per] - mean) * (variance + eps) ** -0.5
        along = [1, -1, *[1] * (x.ndim - 2)]
        return y * weight.reshape(along) + (0 if bias is None else bias.reshape(along))

    told = said("group_norm", fn, params={"groups": 3}, N=2, C=9, trailing=(4, 5))
    assert told == "y[0, 0, 0] changes with C 3..4 of x, on which its answer does not depend"
    told = said("group_norm", fn, params={"groups": 3}, N=2, C=9, trailing=())
    assert told.startswith("y[0], where it is wrong, changes with C")


def test_how_many_slices_there_are_along_each_axis():
    look = look_at(without(0), rows=3, cols=60)
    look.contract = SimpleNamespace(operand_axes=lambda name, case: name)
    look.plain = SimpleNamespace(exact=dict.fromkeys(("N C ...", "N ... D", "... D", "...", "N"), torch.ones(2, 3, 4)))
    sizes = {axes: look._sizes(axes) for axes in look.plain.exact}
    assert sizes == {
        "N C ...": dict(N=2, C=3),
        "N ... D": dict(N=2, D=4),
        "... D": dict(D=4),
        "...": {},
        "N": dict(N=2),
    }


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
    assert told == "dx[0], where it is wrong, does not change with bits, on which its answer depends"


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


def without(*dropped, off=0.0):
    """A log-sum-exp of rows that has none of the columns `dropped`, and is off by something."""

    def fn(x):
        kept = torch.ones(x.shape[-1], dtype=torch.bool)
        kept[torch.arange(x.shape[-1])[torch.tensor(dropped)]] = False
        return torch.softmax(x, -1), torch.logsumexp(x[:, kept], -1) + off

    return fn


@pytest.mark.parametrize(
    ("dropped", "text"),
    [
        (range(4, 60, 5), "cols 4, 9, 14, ... (every 5th from 4, 12 of 60)"),
        (range(1, 60, 2), "cols 1, 3, 5, ... (every second from 1, 30 of 60)"),
        (range(40, 60), "cols 40..59"),
        ([0, 1, 2, 58, 59], "cols 0..2, 58..59 (5 of 60)"),
        ([0, 1, 20, 21, 40, 41], "cols 0..1, 20..21, 40..41 (6 of 60)"),
        (range(20, 26), "cols 20..25"),  # though both ends count
        (range(2, 58, 5), "cols 2, 7, 12, ... (every 5th from 2, 12 of 60)"),
    ],
)
def test_all_columns_that_are_left_out_are_named(dropped, text):
    told = said("online_softmax", without(*dropped), "lse", rows=3, cols=60)
    assert told == f"lse[0] does not change with {text} of x, on which its answer depends"


@pytest.mark.parametrize(
    ("dropped", "text"),
    [
        (range(4, 60, 5), "cols 4, 9, 14, ... (every 5th from 4, 12 of 60)"),
        (range(3, 60, 4), "cols 3, 7, 11, ... (every fourth from 3, 15 of 60)"),
        (range(30, 45), "cols 30..44"),
        ([1, 2, 30], None),  # neither a part nor at equal distances
    ],
)
def test_some_columns_at_once_where_there_are_many(monkeypatch, dropped, text):
    monkeypatch.setattr(influence, "ALONE", 0)
    told = said("online_softmax", without(*dropped), "lse", rows=3, cols=60)
    assert told == (text and f"lse[0] does not change with {text} of x, on which its answer depends")


@pytest.mark.parametrize(("off", "so"), [(0.0, True), (20.0, False)])
def test_what_moves_the_answer_by_far_less_than_it_is_off_is_no_cause(off, so):
    told = said("online_softmax", without(59, off=off), "lse", rows=3, cols=60)
    assert (told is not None) == so


def look_at(fn, end=math.inf, **size):
    """A kernel's log-sum-exp of rows under the glass."""
    contract = registry.contract("online_softmax")
    case = plain_case(contract, "float32", next(iter(contract.values)), size=size)
    return influence._Look(
        contract, case, "lse", "cpu", lambda inputs: contract.by_name(contract.call(fn, inputs.arguments)), end
    )


@pytest.mark.parametrize(("stays", "lost"), [(True, {0, 2}), (False, {0, 1, 2})])
def test_a_slice_on_which_the_answer_does_not_depend_is_not_lost(monkeypatch, stays, lost):
    """One with which it hardly moves can be."""
    look = look_at(without(0, 2), rows=3, cols=4)
    told = {0: True, 1: None, 2: True, 3: False}
    monkeypatch.setattr(look, "_is_lost", lambda row, part, some: told[some[0]])
    monkeypatch.setattr(look, "_answer_stays", lambda row, name, box: stays)
    assert look._elsewhere(look.rows[0], influence.Part("x", "cols", 4, slice(0, 4), set())) == lost


def test_an_answer_that_cannot_be_had_without_some_slices():
    """Where numbers of another operand point to them, say."""
    contract = registry.contract("rope")
    size = dict(B=1, Hq=2, Hkv=2, S=5, D=8, half=4, P=9)
    case = plain_case(contract, "float32", next(iter(contract.values)), size=size)
    look = influence._Look(contract, case, "q_turned", "cpu", lambda inputs: None, 0.0)
    look.got = torch.zeros(1, 2, 5, 8)
    assert look._without("P", set(range(9))) is None
    whole = look._without("B", set())
    assert torch.equal(whole, contract.expected(look.plain)["q_turned"].answer)


def test_slices_of_which_nothing_is_known_are_taken_with_a_run_or_a_period():
    span = slice(0, 20)
    assert influence._filled({4, 6}, {3, 7}, span) == {4, 5, 6}
    assert influence._filled({1, 11}, {2, 3, 4, 5, 7, 8, 9, 10, 12}, span) == {1, 6, 11, 16}
    assert influence._filled({1, 11}, set(range(20)) - {1, 11}, span) == {1, 11}


def test_columns_are_not_said_to_be_lost_when_time_is_up(monkeypatch):
    """None of those that were not tried."""
    look = look_at(without(0, 59), rows=3, cols=60)
    row, told = look.rows[0], look._is_lost
    part = influence.Part("x", "cols", 60, slice(0, 60), {0, 59})

    def until_5(row, part, some):
        look.end = 0.0 if some == [5] else look.end
        return told(row, part, some)

    monkeypatch.setattr(look, "_is_lost", until_5)
    assert look._elsewhere(row, part) == {0, 59}


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


def test_what_an_element_makes_of_its_own_is_no_leak():
    """Where the factor of an element has to be 0."""

    def fn(x, bias, dy, *, activation):
        z = x + bias
        dx = dy * torch.where(z > -1.5, 1.0, 0.0)
        return dx, dx.sum(0)

    def leaks(x, bias, dy, *, activation):
        z = x + bias
        dx = dy * torch.where(z > 0, 1.0, 0.0) + torch.where(z > 0, 0.0, dy.roll(1, 1))
        return dx, dx.sum(0)

    options = dict(params={"activation": "relu"}, rows=4, cols=9)
    assert said("activation_backward", fn, "dx", **options) is None
    assert "dy, on which its answer does not depend" in said("activation_backward", leaks, "dx", **options)
