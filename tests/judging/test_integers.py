"""Which numbers of an operand of integers are said to stand where an output is wrong."""

import itertools
from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import integers, judge, reading
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.attention_decode import torch_attention_decode
from touchstone.reference.attention_varlen import torch_attention_varlen
from touchstone.reference.cross_entropy import torch_cross_entropy
from touchstone.reference.cross_entropy_backward import torch_cross_entropy_backward


def said(op, fn, output, *, again=True, params=(), **size):
    contract = registry.contract(op)
    case = plain_case(contract, "float32", next(iter(contract.values)), size=size)
    case = replace(case, params=tuple({**case.param, **dict(params)}.items()))

    def call(one):
        return contract.by_name(contract.call(fn, contract.build(one).arguments))

    bad = reading.given_on(contract, case, output, call).bad
    assert bool(bad.any())
    return integers.told(contract, case, output, bad, call if again else reading.nothing)


DECODE = dict(B=9, Hq=2, Hkv=1, Sq=1, Sk=20, D=8)


def decode(is_wrong):
    def fn(q, k, v, lengths, *, scale=None):
        o, lse = torch_attention_decode(q, k, v, lengths, scale=scale)
        at = torch.tensor([is_wrong(int(n)) for n in lengths])
        return torch.where(at[:, None, None, None], o + 1, o), lse

    return fn


@pytest.mark.parametrize(
    ("is_wrong", "text"),
    [
        (lambda n: n > 0, "lengths is 1 or more, right where it is 0"),
        (lambda n: 0 < n < 4, "lengths is 1, 2, 3, right where it is "),
        (lambda n: n >= 8, "lengths is 8 or more, right where it is 0, "),
        (lambda n: n % 2 == 1, "lengths is 1, 3, 5, right where it is 0, 2, "),
    ],
)
def test_lengths(is_wrong, text):
    told = said("attention_decode", decode(is_wrong), "o", **DECODE)
    if text.endswith("it is 0"):  # one number alone on the right side tells nothing
        assert told is None
    else:
        assert told.startswith(text)


def test_what_lies_so_by_chance_is_not_said():
    """The batch entry tells, and not its length; and in one call alone few numbers come twice."""

    def by_entry(q, k, v, lengths, *, scale=None):
        o, lse = torch_attention_decode(q, k, v, lengths, scale=scale)
        return torch.where(torch.arange(len(q))[:, None, None, None] % 2 == 1, o + 1, o), lse

    assert said("attention_decode", by_entry, "o", **DECODE) is None
    of_size = decode(lambda n: n > 1000)  # in the size of one sequence alone
    assert said("attention_decode", of_size, "o", B=1, Hq=4, Hkv=2, Sq=1, Sk=3072, D=8) is None
    assert said("attention_decode", decode(lambda n: n in (1, 3)), "o", again=False, **DECODE) is None


def test_numbers_are_listed_as_right_where_something_else_is_wrong():
    """Where all is right it can be so for another reason."""
    places = [(n, n > 3, (n,)) for n in range(9)]
    assert integers._apart(places, {}, {0, 1}) == "is 4 or more, right where it is 0, 1"
    assert integers._apart(places, {}) == "is 4 or more, right where it is 0, 1, 2, 3"
    assert integers._apart([*places, (5, False, (0,))], {}, {0, 1}) is None


def test_rows_that_are_ignored():
    def fn(logits, target, *, reduction, ignore_index, label_smoothing, z_loss):
        options = dict(reduction=reduction, label_smoothing=label_smoothing, z_loss=z_loss)
        loss = torch_cross_entropy(logits, target, ignore_index=ignore_index, **options)
        return torch.where(target == ignore_index, loss + 1, loss)

    options = {"reduction": "none", "ignore_index": 0}
    assert said("cross_entropy", fn, "loss", params=options, rows=33, V=3) == "target is ignore_index (0)"


def test_the_length_of_a_rows_sequence():
    def fn(q, k, v, cu_q, cu_k, **options):
        o, lse = torch_attention_varlen(q, k, v, cu_q, cu_k, **options)
        for begin, end, keys in zip(cu_q[:-1], cu_q[1:], cu_k.diff(), strict=True):
            lse[:, begin:end] += float(keys == 0 and end > begin)
            lse[:, begin:end].nan_to_num_(neginf=0.0)
        return o, lse

    told = said("attention_varlen", fn, "lse", N=4, Tq=8, Tk=9, Sq=3, Sk=6, Hq=2, Hkv=1, D=16)
    assert told.startswith("the sequence's length in k is 0, right where it is ")


def test_a_list_of_numbers_that_stand_at_one_place_each_is_none():
    """Each row of a sequence has its length: it is one number, whatever is wrong there. A bound is told."""

    def packed(*lengths):  # wrong where the sequence is the last, or of another case
        rows = [(n, so) for n, so in lengths for _ in range(n)]
        return [(n, so, (at,)) for at, (n, so) in enumerate(rows)]

    places = [*packed((1, False), (3, False), (2, False), (5, True)), *packed((7, False), (9, False), (4, True)) * 2]
    assert integers._apart(integers._runs(places), {}) is None
    assert integers._apart(places, {}) == "is 4, 5, right where it is 1, 2, 3, 7, 9"

    def long(q, k, v, cu_q, cu_k, **options):
        o, lse = torch_attention_varlen(q, k, v, cu_q, cu_k, **options)
        for begin, end in itertools.pairwise(cu_q.tolist()):
            if end - begin > 8:
                lse[:, begin:end] = lse[:, begin:end].nan_to_num(neginf=0.0) + 1
        return o, lse

    size = dict(N=8, Tq=150, Tk=70, Sq=129, Sk=65, Hq=2, Hkv=1, D=16)
    told = said("attention_varlen", long, "lse", **size)
    assert told.startswith("the sequence's length in q is 9 or more, right where it is ")


def test_numbers_are_listed_that_are_wrong_at_several_places():
    def places(*of_wrong):
        right = [(n, False, (at,)) for at, n in enumerate((0, 2, 4, 6, 8, 0, 2, 4, 6, 8, 0, 2))]
        return [*right, *((n, True, (20 + at,)) for at, n in enumerate(of_wrong))]

    assert integers._apart(places(1, 5), {}) is None and integers._apart(places(1, 5, 1), {}) is None
    assert integers._apart(places(1, 5, 1, 1), {}) == "is 1, 5, right where it is 0, 2, 4, 6, 8"
    assert integers._apart(places(1, 5) * 3, {}) is None  # the same places in other cases
    assert len(integers._runs(places(1, 1, 1))) == 13


def test_nothing_is_called_where_there_are_no_integers():
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=4, cols=5))
    bad = torch.ones(4, 5, dtype=torch.bool)
    assert integers.told(contract, case, "y", bad, lambda other: pytest.fail("it was called")) is None


def test_what_is_wrong_at_an_index_alone():
    def told(bad, V=3):
        contract = registry.contract("cross_entropy_backward")
        case = plain_case(contract, "float32", next(iter(contract.values)), size=dict(rows=33, V=V))
        at = contract.build(case).exact["target"][:, None] == torch.arange(V)
        return integers.at_index(contract, case, "dlogits", bad(at))

    assert told(lambda at: at) == "V is target"
    assert told(lambda at: at & (torch.arange(33)[:, None] % 3 == 0)) == "V is target"
    assert told(lambda at: at.roll(1, 0)) is None
    assert told(lambda at: at & (torch.arange(33)[:, None] < 3)) is None  # three of three classes, by chance
    assert told(lambda at: at & (torch.arange(33)[:, None] < 3), V=100) == "V is target"
    assert told(lambda at: torch.ones_like(at)) is None


def test_a_hint_says_so():
    def fn(logits, target, lse, dloss, **options):
        right = torch_cross_entropy_backward(logits, target, lse, dloss, **options)
        return right + 0.01 * (target[:, None] == torch.arange(logits.shape[1]))

    contract = registry.contract("cross_entropy_backward")
    case = plain_case(contract, "float32", "normal", size=dict(rows=33, V=17))
    outcome = judge.run(Subject(contract.name, fn, "fn", "user@cpu", "cpu"), CaseTrial(case))
    assert "(where V is target)" in outcome.findings[0].diagnosis
