"""Between which neighbouring sizes a kernel is said to stop being right."""

from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import call, edges, judge, reading
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case


def said(op, fn, output="y", *, seconds=60.0, layouts=(), **size):
    contract = registry.contract(op)
    case = plain_case(contract, "float32", next(iter(contract.values)), size=size)
    case = replace(case, layouts=tuple({**case.layout, **dict(layouts)}.items()))

    def called(one):
        return contract.by_name(contract.call(fn, contract.build(one).arguments))

    return edges.of_output(contract, case, output, called, seconds)


def wrong_if(is_wrong):
    return lambda x: torch.softmax(x, -1) * (2 if is_wrong(*x.shape) else 1)


@pytest.mark.parametrize(
    ("is_wrong", "text"),
    [
        (lambda rows, cols: cols > 64, "right with cols 64, wrong with cols 65"),
        (
            lambda rows, cols: cols > 64 and cols != 128 and cols != 256,
            "right with cols 64 and 128 and 256, wrong with cols 65",
        ),
        (lambda rows, cols: cols > 100, "right with cols 100, wrong with cols 101"),
        (lambda rows, cols: rows > 5, "right with rows 5, wrong with rows 6"),
        (
            lambda rows, cols: rows > 5 and cols > 64,
            "right with rows 5, wrong with rows 6, all else being equal, right with cols 64, wrong with cols 65",
        ),
        # islands of right sizes among wrong ones
        (lambda rows, cols: cols > 6 and cols not in range(130, 151), "right with cols 6, wrong with cols 7"),
        (lambda rows, cols: cols > 6 and cols % 32 not in (4, 5), "right with cols 6, wrong with cols 7"),
        (lambda rows, cols: cols > 100 and cols not in (102, 105), None),
        (lambda rows, cols: True, None),
        (lambda rows, cols: cols > 2, None),  # of one or two there is little to go wrong
    ],
)
def test_edges(is_wrong, text):
    told = said("softmax", wrong_if(is_wrong), rows=9, cols=300)
    assert told == (text and f"{text}, all else being equal")


@pytest.mark.parametrize(
    ("is_wrong", "multiple"),
    [
        (lambda cols: cols % 64, 64),
        (lambda cols: cols % 4, 4),
        (lambda cols: cols % 4 or cols == 12, None),
        (lambda cols: cols % 4 and cols != 7, None),
    ],
)
def test_a_size_that_has_to_be_a_multiple(is_wrong, multiple):
    told = said("softmax", wrong_if(lambda rows, cols: cols > 3 and is_wrong(cols)), rows=9, cols=301)
    assert ("has to be a multiple of" in told) == bool(multiple)
    if multiple == 4:
        assert (
            told == "right with cols 4 and 8 and 12, wrong with cols 5 and 7 and 9 and 11: it has to be a multiple of 4"
        )


def test_sizes_far_beyond_the_edge_are_not_called():
    """Each takes a kernel as long as it is long."""
    asked = []

    def fn(x):
        asked.append(x.shape[1])
        return wrong_if(lambda rows, cols: cols > 64)(x)

    assert said("softmax", fn, rows=2, cols=20000) == "right with cols 64, wrong with cols 65, all else being equal"
    assert sorted(set(asked))[-2] <= 256 and max(asked) == 20000


def test_where_nothing_is_said():
    beyond = wrong_if(lambda rows, cols: cols > 64)
    assert said("softmax", beyond, seconds=0.0, rows=9, cols=300) is None
    assert said("softmax", beyond, rows=9, cols=64) is None  # it is right
    strided = lambda x: torch.softmax(x, -1) * (1 if x.is_contiguous() else 2)  # noqa: E731
    assert said("softmax", strided, layouts={"x": "sliced"}, rows=9, cols=300) is None
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=9, cols=300))
    assert edges.of_output(contract, case, "y", reading.nothing, 60.0) is None


def test_sizes_that_do_not_go_together_are_left_out():
    """A head of queries has to have one of keys."""

    def fn(q, k, v, *, causal, scale):
        s = (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT) * q.shape[-1] ** -0.5
        right = torch.softmax(s, -1) @ v.repeat_interleave(q.shape[1] // k.shape[1], 1)
        return right * (2 if q.shape[1] > 8 else 1), torch.logsumexp(s, -1)

    told = said("attention", fn, "o", B=1, Hq=12, Hkv=4, Sq=5, Sk=9, D=8)
    assert told == "right with Hq 8, wrong with Hq 12, all else being equal" or told is None


def test_a_kernel_is_called_for_hints_for_a_limited_time(monkeypatch):
    def fn(x):
        return torch.softmax(x, -1) + (0.1 * torch.cos(37 * x) if x.shape[1] > 64 else 0)

    case = plain_case(registry.contract("softmax"), "float32", "normal", size=dict(rows=3, cols=200))

    def told():
        outcome = judge.run(Subject("softmax", fn, "fn", "user@cpu", "cpu"), CaseTrial(case))
        return outcome.findings[0].diagnosis

    assert "right with cols 64, wrong with cols 65" in told()
    monkeypatch.setattr(call, "OF_A_KERNEL", 0.0)
    assert "right with" not in told()


def test_a_size_from_which_on_some_values_alone_are_wrong_is_none():
    """The first column is above 0 in the case's own values, and below it in others."""

    def by_values(x):
        return torch.softmax(x, -1) * (2 if x.shape[1] > 64 and x[0, 0] > 0 else 1)

    drawn = [
        registry.contract("softmax")
        .build(plain_case(registry.contract("softmax"), "float32", "normal", seed, dict(rows=9, cols=65)))
        .arguments["x"][0, 0]
        for seed in range(3)
    ]
    assert len({bool(x > 0) for x in drawn}) == 2  # of three draws not all are wrong
    assert said("softmax", by_values, rows=9, cols=300) is None


def test_a_size_that_an_index_has_is_none():
    """Rows of q are wrong from where the last sequence begins on: a place in cu_q, and no tile."""
    contract = registry.contract("attention_varlen")
    case = plain_case(contract, "float32", "normal")
    ends = contract.build(case).exact["cu_q"].long().tolist()

    def right_up_to(n):
        def called(one):
            inputs = contract.build(one)
            exact = {name: answer.answer.float() for name, answer in contract.expected(inputs).items()}
            return {name: value + (one.size["Tq"] > n) for name, value in exact.items()}

        return edges.of_output(contract, case, "o", called, 60.0)

    inside = next(n for n in range(4, case.size["Tq"]) if n not in ends)
    assert f"right with Tq {inside}" in (right_up_to(inside) or "")
    assert all("Tq" not in (right_up_to(end) or "") for end in ends if 4 <= end < case.size["Tq"])
