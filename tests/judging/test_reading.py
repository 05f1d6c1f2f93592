"""Which operands, heads and parameters a wrong kernel is said to read; and what is not said, since another call refutes
it."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from touchstone import check
from touchstone.conformance.discovery import registry
from touchstone.conformance.faults import Planted, attention, mlp
from touchstone.conformance.judging import altered, causes, diagnosis, reading
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Contract, From, Operand, Output
from touchstone.reference import attention_decode, attention_varlen, masked_attention, mla_decode, rope


def called(contract, fn):
    return lambda case: contract.by_name(contract.call(fn, contract.build(case).arguments))


def said(op, fn, output="y", *, call=True, seconds=20.0, dtype="float32", params=(), none=(), **size):
    """What a kernel is said to read in its call on a plain case, where it may be called again or may not; with
    None for the operands `none`."""
    contract = registry.contract(op)
    case = plain_case(contract, dtype, next(iter(contract.values)), size=size)
    case = replace(case, params=tuple({**case.param, **dict(params)}.items()))
    case = replace(case, layouts=tuple({**case.layout, **dict.fromkeys(none, "none")}.items()))
    got, right = called(contract, fn)(case)[output], contract.expected(contract.build(case))[output]
    bad = compare.compare(got, right, case.torch_dtype).bad
    assert bad is not None
    further = called(contract, fn) if call else reading.nothing
    return reading.misread(contract, case, output, got, bad, seconds, further)


def rms(x, weight, eps):
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


def norm(change):
    return lambda x, weight, *, eps=1e-6: change(x, weight, eps)


def for_rows(where, this, other):
    y = other.clone()
    y[where] = this[where]
    return y


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x, w, eps: rms(x, w.roll(1), eps), "as if each cols of weight were the one before"),
        (lambda x, w, eps: rms(x, w[:1].expand(w.shape), eps), "as if weight were everywhere as at cols 0"),
        (lambda x, w, eps: rms(x, 0 * w, eps), None),  # of any operand
        (lambda x, w, eps: for_rows([2], x, rms(x, w, eps)), "the elements of x, unchanged"),
        (lambda x, w, eps: for_rows([1, 3], rms(x, w.roll(-1), eps), rms(x, w, eps)), "each cols of weight"),
        (lambda x, w, eps: rms(x, w, eps) * 1.5, None),
        (
            lambda x, w, eps: rms(x, w.flip(0), eps),
            "cols read weight of others: 0 that of 6, 1 that of 5, 2 that of 4, ...",
        ),
        (lambda x, w, eps: rms(x, w.sin(), eps), None),
    ],
)
def test_operands_read_otherwise(change, text):
    told = said("rms_norm", norm(change), rows=5, cols=7)
    assert told is None if text is None else text in told


def glu(act, other=F.silu):
    """A gate of `act` in the rows up to 2, and of `other` behind them."""
    return lambda gate, up, *, activation="silu": torch.cat([act(gate[:2]) * up[:2], other(gate[2:]) * up[2:]])


def test_a_size_in_the_place_of_a_parameter():
    def fn(*operands, window=None, **params):
        cut = window if window is None else min(window, operands[1].shape[2])
        return masked_attention.torch_masked_attention(*operands, window=cut, **params)

    size = dict(B=1, Hq=2, Hkv=1, Sq=300, Sk=150, D=16)
    told = said("masked_attention", fn, "o", params=dict(window=200), none=("seg_q", "seg_k"), **size)
    assert told == "as if window were 150 (Sk), not 200"


def test_an_operand_in_the_place_of_another():
    def fn(q, k, v, cu_q, cu_k, **params):
        return attention_varlen.torch_attention_varlen(q, k, v, cu_q, cu_q, **params)

    size = dict(N=4, Tq=20, Tk=20, Sq=9, Sk=9, Hq=2, Hkv=1, D=16)
    assert said("attention_varlen", fn, "o", **size) == "as if cu_k were cu_q"


def test_a_reading_is_refuted_where_an_axis_of_one_element_has_two():
    """The logarithm of the sum over one part is that part's; of two it is more."""
    contract = registry.contract("merge_states")

    def left(fn, parts):
        case = plain_case(contract, "float32", "normal", size=dict(P=parts, rows=5, D=16))
        change = reading._other_operand("lse", lambda lse: lse + 1)
        return list(reading._beyond_one(contract, case, "lse", {"more": change}, called(contract, fn)))

    def more(o, lse):
        return o.mean(0), lse.logsumexp(0) + 1

    def of_one(o, lse):
        return o.mean(0), lse[0] + 1

    assert left(more, 1) == left(more, 2) == ["more"]
    assert left(of_one, 1) == [] and left(of_one, 2) == ["more"]  # of two parts nothing else is tried


def test_a_change_of_what_a_switch_does_is_refuted_where_it_is_wrong_without_it_too():
    contract = registry.contract("attention")
    case = plain_case(contract, "float32", "normal", size=dict(B=1, Hq=2, Hkv=1, Sq=7, Sk=40, D=16))
    case = replace(case, params=tuple({**case.param, "causal": True}.items()))
    *_, off = reading.refuting(contract, case)
    assert off.param == {**case.param, "causal": False} and off.sizes == case.sizes
    assert off not in reading.refuting(contract, replace(case, params=off.params))[2:]


def test_a_parameter_that_is_not_looked_at():
    assert said("glu", glu(torch.sigmoid, torch.sigmoid), rows=5, cols=33) == "as if activation were sigmoid, not silu"
    assert said("glu", glu(torch.sigmoid), rows=5, cols=33) == "as if activation were sigmoid, not silu"
    assert said("glu", glu(torch.tanh), rows=5, cols=33) is None


def test_a_number_in_the_place_of_a_parameter():
    contract = registry.contract("rms_norm")
    plain = plain_case(contract, "float32", "normal", size=dict(rows=5, cols=7))

    def told(eps_there, eps):
        case = replace(plain, params=(("eps", eps),))

        def fn(x, weight, *, eps=1e-6):
            return rms(x, weight, eps_there)

        got, right = called(contract, fn)(case)["y"], contract.expected(contract.build(case))["y"]
        bad = compare.compare(got, right, torch.float32).bad
        return reading.misread(contract, case, "y", got, bad, 20.0, called(contract, fn))

    assert told(0.02, 0.5) is None
    assert told(1e-4, 0.5) == "as if eps were 0.0001, not 0.5"


def test_operands_in_another_order():
    def of(change):
        return lambda gate, up, *, activation="silu": F.silu(change(gate, up)[0]) * change(gate, up)[1]

    size = dict(rows=5, cols=33)
    assert said("glu", of(lambda gate, up: (up, gate)), **size) == "as if gate and up were each other"
    assert said("glu", of(lambda gate, up: (gate, gate)), **size) == "as if up were gate"

    def product(b_of):
        return lambda a, b: a @ b_of(b.contiguous())

    told = said("matmul", product(lambda b: b.view(b.shape[1], b.shape[0]).t()), "c", M=5, K=7, N=6)
    assert told == "as if K and N of b were the other way round in memory"
    assert said("matmul", product(lambda b: b.flip(0)), "c", M=5, K=7, N=6) is None


def test_operands_by_other_strides():
    softmax_backward, case = of_case("softmax_backward", rows=5, cols=7)

    def told(contract, case, output, fn):
        got, right = called(contract, fn)(case)[output], contract.expected(contract.build(case))[output]
        bad = compare.compare(got, right, torch.float32).bad
        return reading.misread(contract, case, output, got, bad, 20.0, called(contract, fn))

    def in_layouts(case, **layouts):
        return replace(case, layouts=tuple((name, layouts.get(name, layout)) for name, layout in case.layouts))

    def backward(read):
        return lambda y, dy: y * (read(y, dy) - (y * read(y, dy)).sum(-1, keepdim=True))

    strided = in_layouts(case, dy="transposed")
    as_y = backward(lambda y, dy: dy.as_strided(y.shape, y.stride()))
    assert told(softmax_backward, strided, "dx", as_y) == "as if dy were packed, whatever its strides"
    strided = in_layouts(case, y="transposed")
    as_y = backward(lambda y, dy: dy.as_strided(y.shape, y.stride()))
    assert told(softmax_backward, strided, "dx", as_y) == "as if dy had the strides of y"
    assert told(softmax_backward, strided, "dx", backward(lambda y, dy: dy.sin())) is None

    contract, case = of_case("matmul", M=5, K=5, N=5)
    both = in_layouts(case, a="transposed", b="transposed")
    packed = told(contract, both, "c", lambda a, b: a.as_strided(a.shape, (5, 1)) @ b.as_strided(b.shape, (5, 1)))
    assert packed == "as if a and b were packed, whatever their strides"
    beyond = reading._restrided(contract, {"a": "b"})
    with pytest.raises(LookupError, match="beyond"):
        beyond({}, in_layouts(case, b="far0"))


def test_an_operand_that_was_kept():
    contract = registry.contract("rms_norm")
    earlier = plain_case(contract, "float32", "normal", seed=5, size=dict(rows=3, cols=7))
    kept = contract.build(earlier).exact["weight"].float()
    case = plain_case(contract, "float32", "normal", size=dict(rows=5, cols=7))

    def told(weight_of, cases):
        fn = norm(lambda x, w, eps: rms(x, weight_of(w), eps))
        got, right = called(contract, fn)(case)["y"], contract.expected(contract.build(case))["y"]
        bad = compare.compare(got, right, torch.float32).bad
        return reading.misread(contract, case, "y", got, bad, 20.0, called(contract, fn), cases)

    assert told(lambda w: kept, [earlier]) == f"as if weight were that of an earlier call, on {earlier.id}"
    assert told(lambda w: kept, []) is None
    assert told(lambda w: kept.sin(), [earlier]) is None


def test_integers_that_are_not_looked_at():
    def decode(lengths_of):
        return lambda q, k, v, lengths, *, scale=None: attention_decode.torch_attention_decode(
            q, k.nan_to_num(), v.nan_to_num(), lengths_of(k, lengths), scale=scale
        )

    size = dict(B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    told = said("attention_decode", decode(lambda k, lengths: torch.full_like(lengths, 4)), "o", **size)
    assert told is None
    told = said("attention_decode", decode(lambda k, lengths: torch.full_like(lengths, 3)), "o", **size)
    assert told == "as if all lengths were 3 (B)"


@pytest.mark.parametrize(("output", "number"), [("lse", -torch.inf), ("o", 0.0)])
def test_rows_that_are_left_with_nothing_tell_no_operand(output, number):
    def fn(q, k, v, cu_q, cu_k, **options):
        o, lse = attention_varlen.torch_attention_varlen(q, k, v, cu_q, cu_k, **options)
        outputs = {"o": o, "lse": lse.t()}
        for start, stop in itertools.pairwise(cu_q.tolist()):
            if stop - start < 16:
                outputs[output][start:stop] = number
        return o, lse

    size = next(size for size in registry.contract("attention_varlen").sizes if size["Sq"] == 129)
    assert said("attention_varlen", fn, output, **size) is None


def test_an_index_that_is_one_off():
    def turned(by):
        return lambda q, k, cos, sin, positions, *, interleaved=False: rope.torch_rope(
            q, k, cos, sin, (positions + by) % len(cos), interleaved=interleaved
        )

    size = registry.contract("rope").sizes[0]
    assert said("rope", turned(1), "q_turned", **size) == "as if each P of cos and sin were the one after"
    assert "each P of cos and sin were the one before" in said("rope", turned(-1), "q_turned", **size)
    assert said("rope", turned(3), "q_turned", **size) is None

    def decode(by):
        return lambda q, k, v, lengths, *, scale=None: attention_decode.torch_attention_decode(
            q, k.nan_to_num(), v.nan_to_num(), (lengths - by).clamp_min(0), scale=scale
        )

    size = dict(B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    assert said("attention_decode", decode(1), "o", **size) == "as if each of lengths were one less"
    assert said("attention_decode", decode(3), "o", **size) is None


def test_counts_are_read_for_more_than_a_few_queries():
    """Queries that see one key less than they should, one in four: the others have their lengths right."""

    def fn(q, k, v, lengths, *, scale=None):
        clean = q, k.nan_to_num(), v.nan_to_num()
        o, lse = attention_decode.torch_attention_decode(*clean, lengths, scale=scale)
        fewer, _ = attention_decode.torch_attention_decode(*clean, (lengths - 1).clamp_min(0), scale=scale)
        o[:, :, 3::4] = fewer[:, :, 3::4]
        return o, lse

    size = dict(B=2, Hq=2, Hkv=1, Sq=8, Sk=40, D=16)
    told = said("attention_decode", fn, "o", **size)
    assert told is None or "lengths" not in told


def test_a_vector_that_is_indexed_by_another_axis():
    by_row = norm(lambda x, w, eps: rms(x, x.new_ones(x.shape[1]), eps) * w[torch.arange(len(x)) % len(w), None])
    reversed_ = norm(lambda x, w, eps: rms(x, x.new_ones(x.shape[1]), eps) * w.flip(0)[: len(x), None])
    assert said("rms_norm", by_row, rows=5, cols=7) == "as if weight were indexed by rows, not by cols"
    assert said("rms_norm", reversed_, rows=5, cols=7) is None


def test_a_window_one_key_wider():
    def fn(by):
        return lambda q, k, v, bias, slopes, seg_q, seg_k, *, window, **params: masked_attention.torch_masked_attention(
            q, k, v, bias, slopes, seg_q, seg_k, window=window and window + by, **params
        )

    size = dict(B=2, Hq=2, Hkv=2, Sq=9, Sk=13, D=16)
    assert said("masked_attention", fn(1), "o", params={"window": 3}, **size) == "as if window were 4, not 3"
    assert said("masked_attention", fn(3), "o", params={"window": 3}, **size) is None


def test_several_readings_are_told_apart_by_another_size():
    """Of two columns the first is every one, or the one before, or the one after: in more columns only one of these."""
    told = said("rms_norm", norm(lambda x, w, eps: rms(x, w.roll(1), eps)), rows=5, cols=2)
    assert told == "as if each cols of weight were the one before"


def test_padding_that_counts():
    def padded(x):
        return torch.softmax(F.pad(x, (0, -x.shape[1] % 16)), -1)[:, : x.shape[1]].contiguous()

    assert said("softmax", padded, rows=5, cols=37) == (
        "as if cols were 48, with 0 in the places that are new: padding that counts"
    )
    assert said("softmax", lambda x: torch.softmax(x, -1) * 0.9, rows=5, cols=37) is None


def test_a_scale_that_follows_from_a_size():
    def fn(q, cache, lengths, *, dim_v, scale):
        return mla_decode.torch_mla_decode(q, cache, lengths, dim_v=dim_v, scale=q.shape[-1] ** -0.5)

    size = dict(B=2, H=3, Sq=2, Sk=9, W=24, V=16)
    assert said("mla_decode", fn, "o", **size) == "as if scale were 1/sqrt(W)"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: x.clamp(-1.5, 1.5), "wrong wherever |x| >= 1.5"),
        (lambda x: x.clamp_max(1.0), "wrong wherever x >= 1."),
        (lambda x: x.clamp_min(-1.0), "wrong wherever x <= -1."),
        (lambda x: torch.where(x > 1.0, x.roll(1), x + (torch.arange(33) < 3) * x), None),
    ],
)
def test_an_operand_beyond_a_bound(change, text):
    contract = registry.contract("activation")
    case = plain_case(contract, "float32", "normal", size=dict(rows=5, cols=33))
    case = replace(case, params=(("activation", "identity"),), layouts=(("x", "contiguous"), ("bias", "none")))
    x = contract.build(case).exact["x"]
    told = reading.beyond(contract, case, "y", (change(x) - x).abs() > 1e-6)
    assert told is None if text is None else text in told


def test_numbers_at_which_alone_an_operand_or_a_sum_of_two_is_wrong():
    contract = registry.contract("activation")
    case = plain_case(contract, "bfloat16", "quarters", size=dict(rows=17, cols=64))
    case = replace(case, params=(("activation", "hardswish"),))
    exact = contract.build(case).exact
    z = exact["x"] + exact["bias"]
    told = reading.beyond(contract, case, "y", z.abs() == 3)
    assert told == "wrong wherever x + bias is -3 or 3, and nowhere else"
    assert reading.beyond(contract, case, "y", (z.abs() == 3) & (torch.arange(64) % 2 == 0)) is None
    assert reading.beyond(contract, case, "y", torch.isin(z, z.unique()[::2])) is None  # too many


def test_numbers_that_stand_at_one_place_each_are_no_rule():
    """Any places have numbers: those of a weight are told where they repeat, or another draw has them too."""
    contract = registry.contract("layer_norm_backward")
    case = plain_case(contract, "float32", "normal", size=dict(rows=3, cols=33))
    drawn = {case: torch.linspace(-2, 2, 33).double(), reading.again(case): torch.linspace(-2, 2, 33).double().flip(0)}
    right = Expected(torch.zeros(33, dtype=torch.float64))
    paper = SimpleNamespace(
        build=lambda one: SimpleNamespace(exact={"weight": drawn[one]}),
        operand_dtype=contract.operand_dtype,
        expected=lambda inputs: {"dweight": right},
    )
    places = torch.zeros(33, dtype=torch.bool)
    places[[0, 3, 31]] = True

    def told(bad, in_again=None):
        call = reading.nothing if in_again is None else lambda one: {"dweight": in_again.float()}
        return reading.beyond(paper, case, "dweight", bad, call)

    text = "wrong wherever weight is -2 or -1.625 or 1.875, and nowhere else"
    assert told(places) is None and told(places, torch.zeros(33)) is None
    assert told(places, places.flip(0)) == text and told(places, places) is None
    drawn[case] = drawn[case].tile(4)[:100].float().double()  # each at three places
    right = Expected(torch.zeros(100, dtype=torch.float64))
    every = places.tile(4)[:100]
    assert told(every) == text
    assert told(every, torch.zeros(100)) == text  # the numbers are not in that draw
    drawn[reading.again(case)] = drawn[case]
    assert told(every, torch.zeros(100)) is None and told(every, every) == text


@pytest.mark.parametrize(("value", "so"), [(1.0, False), (None, True)])
def test_what_is_broadcast_stands_at_one_place(value, so):
    x = torch.randint(0, 9, (4, 30), generator=torch.Generator().manual_seed(1)).double()
    x = x if value is None else torch.arange(30.0).expand(4, 30)
    assert reading._repeat(x, torch.tensor([3.0, 5.0])) == so


def test_a_bound_that_another_draw_goes_beyond_is_none():
    contract = registry.contract("activation")
    case = plain_case(contract, "float32", "normal", size=dict(rows=4, cols=16))
    case = replace(case, params=(("activation", "identity"),), layouts=(("x", "contiguous"), ("bias", "none")))
    x, y = (contract.build(one).exact["x"] for one in (case, reading.again(case)))
    bound = x.flatten().sort().values[-4]
    assert bool((y >= bound).any())
    assert reading.beyond(contract, case, "y", x >= bound) is not None
    assert reading.beyond(contract, case, "y", x >= bound, lambda one: {"y": y.float()}) is None


def test_a_bound_that_is_none():
    """Indices are no sizes, whole rows are named as rows, and another draw may refute it."""
    contract = registry.contract("cross_entropy")
    case = plain_case(contract, "float32", "normal", size=dict(rows=7, V=33))
    case = replace(case, params=(("reduction", "none"), *case.params[1:]))
    target = contract.build(case).exact["target"]
    assert reading.beyond(contract, case, "loss", target >= target.sort().values[3]) is None

    contract = registry.contract("activation")
    case = plain_case(contract, "float32", "normal", size=dict(rows=4, cols=16))
    case = replace(case, params=(("activation", "identity"),), layouts=(("x", "contiguous"), ("bias", "none")))
    x = contract.build(case).exact["x"]
    bound = x.abs().flatten().sort().values[40]
    bad = x.abs() >= bound

    def called_with(change):
        return lambda other: {"y": change(contract.build(other).exact["x"]).float()}

    steady = called_with(lambda x: torch.where(x.abs() >= bound, 9 * x, x))
    assert "wrong wherever |x| >= " in reading.beyond(contract, case, "y", bad, steady)
    by_chance = called_with(lambda x: torch.where(torch.arange(16) % 2 == 1, 9 * x, x))
    assert reading.beyond(contract, case, "y", bad, by_chance) is None
    rows = (x.abs().amax(1) > x.abs().amax(1).min())[:, None].expand(4, 16)
    assert reading.beyond(contract, case, "y", rows) is None


def test_a_bound_of_the_size_that_other_values_refute_is_one_of_the_number():
    """In these values the largest numbers are positive, in others not."""
    contract = registry.contract("activation")
    case = plain_case(contract, "float32", "normal", size=dict(rows=2, cols=16))
    case = replace(case, params=(("activation", "identity"),), layouts=(("x", "contiguous"), ("bias", "none")))
    x = torch.linspace(-5, 26, 32, dtype=torch.float64).reshape(2, 16)[:, torch.randperm(16)]
    drawn = {case: x, reading.again(case): torch.where(x < -3, x - 100, x)}
    right = {name: {"y": Expected(value)} for name, value in drawn.items()}
    paper = SimpleNamespace(
        build=lambda one: SimpleNamespace(exact={"x": drawn[one]}, of=one),
        operand_dtype=contract.operand_dtype,
        expected=lambda inputs: right[inputs.of],
    )
    bad = x >= 20.0

    def call(one):
        return {"y": torch.where(drawn[one] >= 20.0, 9 * drawn[one], drawn[one]).float()}

    assert reading.beyond(paper, case, "y", bad) == "wrong wherever |x| >= 20, and nowhere else (right up to 19)"
    assert reading.beyond(paper, case, "y", bad, call) == "wrong wherever x >= 20, and nowhere else (right up to 19)"


def test_a_number_that_is_nan_tells_no_mutant():
    contract = registry.contract("cross_entropy")
    case = plain_case(contract, "float32", "normal", size=dict(rows=7, V=33))
    mutants = [m for m in registry.planted("cross_entropy") if m.name in ("all_nan", "ignored_rows_are_computed")]
    assert len(mutants) == 2
    verdict = compare.Verdict(2.0, "", (0,), (0,), torch.ones(3, dtype=torch.bool))
    got = torch.full((3,), torch.nan)
    assert [m.generic for m in diagnosis.not_refuted(contract, case, mutants, got, verdict, [])] == [False]
    assert len(diagnosis.not_refuted(contract, case, mutants, torch.ones(3), verdict, [])) == 2
    alone = compare.Verdict(2.0, "", (), (), torch.ones((), dtype=torch.bool))
    assert diagnosis.not_refuted(contract, case, mutants, got[0], alone, []) == []


def test_an_operand_that_need_not_be_given():
    def fn(x, weight, bias=None, *, eps=1e-5):
        return F.layer_norm(x, x.shape[-1:], weight, None, eps)

    assert said("layer_norm", fn, rows=3, cols=33) == "as if bias were not given"


def test_what_other_values_refute_is_not_said():
    """It looks as if rows were read otherwise only for this draw; where that cannot be seen, only of all is it said."""
    contract = registry.contract("rms_norm")
    case = plain_case(contract, "float32", "normal", size=dict(rows=5, cols=7))
    drawn = contract.build(case).arguments["x"]

    def by_chance(x, weight, *, eps=1e-6):
        return rms(x, weight.roll(1) if torch.equal(x, drawn) else weight.flip(0), eps)

    some = norm(lambda x, w, eps: for_rows([1, 3], rms(x, w.roll(1), eps), rms(x, w, eps)))
    assert said("rms_norm", by_chance, rows=5, cols=7) is None
    assert "the one before" in said("rms_norm", by_chance, rows=5, cols=7, call=False)
    assert "the one before" in said("rms_norm", some, rows=5, cols=7)
    assert said("rms_norm", some, rows=5, cols=7, call=False) is None


def test_all_of_a_wrong_slice_has_to_fit():
    """Nine in ten elements of each row are as if the weight were moved."""

    def fn(x, weight, *, eps=1e-6):
        y = rms(x, weight.roll(1), eps)
        y[:, ::10] = rms(x, weight.flip(0), eps)[:, ::10]
        return y

    assert said("rms_norm", fn, rows=5, cols=50) is None


def test_another_answer_has_to_be_apart_from_the_right_one():
    right = Expected(torch.ones(4, 6, dtype=torch.float64))
    bad = torch.ones(4, 6, dtype=torch.bool)
    case = plain_case(registry.contract("softmax"), "float32", "normal")
    near, far = right.answer + 1e-9, right.answer + 1
    assert reading._apart(Expected(far), right, bad, case)
    assert not reading._apart(Expected(near), right, bad, case)
    assert not reading._apart(Expected(far, extra=2.0), right, bad, case)
    assert not reading._apart(Expected(far), Expected(right.answer[0]), bad, case)


def test_what_explains_a_part_of_a_vector_explains_nothing():
    """The wrong elements are its slices."""
    case = plain_case(registry.contract("softmax"), "float32", "normal", size=dict(rows=3, cols=7))
    got = torch.arange(42.0).reshape(6, 7)
    other = Expected(got.double() * (torch.arange(6) > 3)[:, None] + 1e-9)
    bad = torch.zeros(6, 7, dtype=torch.bool)
    bad[4:, :3] = True
    axis, rows = reading._explained(other, got, bad, case)
    assert axis == 0 and rows.tolist() == [False] * 4 + [True] * 2
    of_vector = replace(other, answer=other.answer[:, 1])
    assert reading._explained(of_vector, got[:, 1], bad[:, 1], case) is None
    assert reading._explained(replace(other, answer=got[:, 1].double()), got[:, 1], bad[:, 1], case) == ()


def test_a_reading_that_another_output_of_the_same_rows_refutes_is_none():
    """A sum with one more key, of score and value 0: of the logarithm alone it is a length that is one more."""
    contract, case = of_case("attention_decode", B=2, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    assert reading.alike(contract, case, "o", "lse") and reading.alike(contract, case, "lse", "o")
    right = {name: one.answer for name, one in contract.expected(contract.build(case)).items()}
    more = reading._other_operand("lengths", lambda value: (value + 1).clamp_max(9))
    theirs = {name: reading._answer(contract, case, name, more).answer.float() for name in right}
    bad = {name: (theirs[name] - right[name]).abs() > 1e-3 for name in right}

    def contradicted(o, change=more):
        return reading._contradicted(contract, case, "lse", change, {"o": (o, bad["o"])})

    assert not contradicted(theirs["o"]) and contradicted((right["o"] * 0.9).float())
    of_scale = reading._other_parameter("scale", case.param["scale"])
    assert not contradicted((right["o"] * 0.9).float(), of_scale)  # which it leaves as it is
    backward, case = of_case("attention_backward", B=1, Hq=2, Hkv=2, Sq=5, Sk=5, D=8)
    assert not reading.alike(backward, case, "dq", "dk")


def test_a_reading_by_elements_that_nobody_may_use_is_none():
    """Where the cache holds NaN: of which one more key would have made NaN."""
    contract, case = of_case("attention_decode", B=2, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    more = reading._other_operand("lengths", lambda value: (value + 1).clamp_max(9))
    of_scale = reading._other_parameter("scale", 0.5)
    bad = torch.ones(2, 2, 1, 8, dtype=torch.bool)
    for got, change, unused in ((0.5, more, True), (torch.nan, more, False), (0.5, of_scale, False)):
        assert reading._of_unused(contract, case, "o", change, torch.full((2, 2, 1, 8), got), bad) == unused
    plain, case = of_case(rows=3, cols=7)
    wrong = torch.ones(3, 7, dtype=torch.bool)
    assert not reading._of_unused(plain, case, "y", reading._other_operand("x", torch.sin), torch.ones(3, 7), wrong)


def test_a_reading_that_is_not_apart_from_the_right_answer_is_none(monkeypatch):
    moved = norm(lambda x, w, eps: rms(x, w.roll(1), eps))
    assert "as if each cols of weight" in said("rms_norm", moved, rows=5, cols=7)
    monkeypatch.setattr(reading, "_apart", lambda *given: False)
    assert "as if" not in str(said("rms_norm", moved, rows=5, cols=7))


def test_another_row_is_not_named_where_the_answer_is_nothing():
    answer = torch.linspace(1, 9, 40, dtype=torch.float64).reshape(4, 10)
    case = plain_case(registry.contract("softmax"), "float32", "normal", size=dict(rows=4, cols=10))

    def relation(answer):
        got = answer.float()
        got[1] = got[2]
        bad = compare.compare(got, Expected(answer), torch.float32).bad
        return diagnosis.related(got, Expected(answer), case, bad, ("rows", "cols"), False)

    assert "the answer of another rows: that of 2" in relation(answer)
    answer[1] = 0
    assert relation(answer) is None or "another rows" not in relation(answer)


def test_time_and_work_are_limited(monkeypatch):
    moved = norm(lambda x, w, eps: rms(x, w.roll(1), eps))
    assert said("rms_norm", moved, rows=5, cols=7, seconds=-1) is None
    monkeypatch.setattr(reading, "WORK_LIMIT", 10)
    assert said("rms_norm", moved, rows=5, cols=7) is None


READ = "query heads read other heads of keys"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda h: h // 4, "2 reads 0, not 1, 3 reads 0, not 1, 4 reads 1, not 2, ..."),
        (lambda h: (h // 2 + h % 2) % 4, "1 reads 1, not 0, 3 reads 2, not 1, 5 reads 3, not 2, ..."),
    ],
)
def test_heads_of_keys(read, text):
    def fn(q, k, v, *, causal=False, scale=None):
        heads = [read(h) for h in range(q.shape[1])]
        return attention.flash(q, k[:, heads], v[:, heads], causal=causal, scale=scale)

    for output in ("o", "lse"):
        assert said("attention", fn, output, B=1, Hq=8, Hkv=4, Sq=5, Sk=9, D=16) == f"{READ}: {text}"


def test_heads_that_are_wrong_otherwise():
    def fn(q, k, v, *, causal=False, scale=None):
        o, lse = attention.flash(q, k, v, causal=causal, scale=scale)
        return torch.cat([o[:, :3], o[:, 3:].sin()], 1), lse

    assert said("attention", fn, "o", B=1, Hq=8, Hkv=4, Sq=5, Sk=9, D=16) is None


def told(op, fn, case, **options):
    contract = registry.contract(op)
    got, expected = called(contract, fn)(case), contract.expected(contract.build(case))
    verdicts = {
        name: compare.compare(got[name], expected[name], case.torch_dtype, diagnosis.exact(contract, case, name))
        for name in got
    }
    return "".join(
        diagnosis.diagnose(
            contract, case, got, expected, verdicts, seconds=20.0, call=called(contract, fn), **options
        ).values()
    )


def half_sums(x, weight, eps, always=False):
    """Statistics in bfloat16, in the dtype of x or always."""
    y = rms(x, weight, eps).float() * (1.004 if always or x.dtype is torch.bfloat16 else 1)
    return y.to(x.dtype)


def test_short_sums_are_not_said_of_what_is_wrong_in_float32():
    case = plain_case(registry.contract("rms_norm"), "bfloat16", "normal", size=dict(rows=5, cols=300))
    short = norm(half_sums)
    both = norm(lambda x, w, eps: half_sums(x, w, eps, always=True))
    assert "kept in bfloat16 explain" in told("rms_norm", short, case, mutants=False)
    assert "explain" not in told("rms_norm", both, case, mutants=False)


def test_one_element_off_is_no_short_sum():
    answer = torch.linspace(1, 9, 40, dtype=torch.float64).reshape(4, 10)
    parts = [(torch.full((4, 10), 5000.0, dtype=torch.float64), 3 * answer)]
    expected = Expected(answer, parts=parts)
    case = plain_case(registry.contract("softmax"), "bfloat16", "normal", size=dict(rows=4, cols=10))

    def hint(change):
        got = answer.bfloat16()
        change(got)
        verdict = compare.compare(got, expected, torch.bfloat16)
        assert verdict.bad is not None
        return diagnosis.short_sums(got, expected, case, verdict)

    signs = torch.where(torch.arange(40) % 3 == 0, -1.0, 1.0).reshape(4, 10)
    assert "kept in bfloat16 explain" in hint(lambda y: y.mul_((1 + 0.1 * signs).bfloat16()))
    assert hint(lambda y: y[2].select(0, 7).mul_(1.5)) is None


def test_a_mutant_that_other_values_refute_is_not_named(monkeypatch):
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=3, cols=33))
    drawn = contract.build(case).arguments["x"]

    def by_chance(x):
        return softmax(x) * (1.5 if torch.equal(x, drawn) else 1.25)

    mutant = Planted("softmax", "half_more", "half more", "scale", lambda: lambda x: softmax(x) * 1.5)
    monkeypatch.setattr(registry, "planted", lambda op: [mutant])
    assert "half_more" in told("softmax", lambda x: softmax(x) * 1.5, case)
    assert "half_more" not in told("softmax", by_chance, case)


def softmax(x):
    return torch.softmax(x.double(), -1).to(x.dtype)


def always(x):
    return softmax(x) * 1.5


def in_short_rows(x):
    return softmax(x) * (1.5 if x.shape[1] < 40 else 1)


@pytest.mark.parametrize(
    ("own", "general", "constant", "named"),
    [
        ([in_short_rows], [always], False, ["own0"]),
        ([always], [in_short_rows], False, ["general0"]),
        ([always], [always], False, ["own0"]),
        ([always], [always], True, []),
        ([], [always], False, []),
    ],
)
def test_mutants_that_are_wrong_where_the_kernel_is_right(own, general, constant, named):
    contract = registry.contract("softmax")
    short, long, wide = (
        plain_case(contract, dtype, "normal", size=dict(rows=3, cols=cols))
        for cols, dtype in ((33, "float32"), (65, "float32"), (65, "bfloat16"))
    )
    got = in_short_rows(contract.build(short).arguments["x"])
    verdict = compare.compare(got, contract.expected(contract.build(short))["y"], torch.float32)
    got = got.fill_(0) if constant else got
    mutants = [
        Planted("softmax", f"{kind}{i}", "x", "scale", lambda fn=fn: fn, generic=kind == "general")
        for kind, fns in (("own", own), ("general", general))
        for i, fn in enumerate(fns)
    ]
    everything = [mutant.name for mutant in mutants]

    def left(passed):
        return [mutant.name for mutant in diagnosis.not_refuted(contract, short, mutants, got, verdict, passed)]

    assert left([long]) == named
    assert left([]) == everything
    in_short = [f"{kind}0" for kind, fns in (("own", own), ("general", general)) if fns == [in_short_rows]]
    assert left([wide]) == (in_short or everything)  # another dtype tells several apart, and refutes none by itself


def test_a_factor_of_next_to_nothing_is_none():
    answer = torch.linspace(1, 9, 40, dtype=torch.float64).reshape(4, 10)
    expected, axes = Expected(answer, extra=answer * 1e-3), ("rows", "cols")
    case = plain_case(registry.contract("softmax"), "float32", "normal", size=dict(rows=4, cols=10))
    for factor, text in ((1e-2, "0.01 x the answer"), (1e-9, None)):
        got = (answer * factor).float()
        bad = compare.compare(got, expected, torch.float32).bad
        assert diagnosis.related(got, expected, case, bad, axes, False) == text


@pytest.mark.parametrize("number", [0.0, -float("inf"), float("inf"), float("nan")])
def test_what_is_wrong_has_one_answer(number):
    answer = torch.ones(3, 4, dtype=torch.float64)
    answer[1] = number
    bad = torch.zeros(3, 4, dtype=torch.bool)
    bad[1, 1:] = True
    said = diagnosis.where_alike(Expected(answer), torch.zeros(3, 4), bad)
    assert said == f" (where the answer is {'NaN' if number != number else f'{number:g}'})"
    bad[0, 0] = True
    assert diagnosis.where_alike(Expected(answer), torch.zeros(3, 4), bad) == ""


def judged(op, fn, level="quick", **options):
    report = check(op, fn, device="cpu", level=level, isolate="none", **options)
    assert not report.passed
    return [finding.diagnosis or "" for finding in report.failures if finding.check == "values"]


def test_an_earlier_answer_that_tells_nothing_is_none():
    """Zeros are the answer of many an earlier call."""
    zeros = judged("softmax", lambda x: torch.zeros_like(x), dtypes=["float32"])
    assert zeros and not any("earlier call" in each for each in zeros)
    answer = Expected(torch.tensor([0.0, 2.0, float("nan"), 3.0, 4.0, 2.0], dtype=torch.float64))
    assert causes.tells(answer, torch.tensor([True, True, True, True, True, False]))
    assert not causes.tells(answer, torch.tensor([True, True, True, True, False, True]))  # two numbers
    assert causes.tells(answer, torch.tensor([False, False, False, False, True, False]))  # all that there is to tell
    assert not causes.tells(answer, torch.tensor([True, False, True, False, False, False]))


def test_an_earlier_answer_is_refuted_by_wrong_values_of_no_earlier_call():
    contract = registry.contract("softmax")
    first, case = (plain_case(contract, "float32", "normal", seed, dict(rows=3, cols=33)) for seed in (0, 1))
    kept = contract.expected(contract.build(first))["y"]
    right = contract.expected(contract.build(case))["y"].answer.float()
    j = SimpleNamespace(contract=contract)
    refuted = {
        name: causes._refuted(j, case, "y", values, [None, kept])
        for name, values in dict(
            right={"y": right},
            kept={"y": kept.answer.float()},
            other={"y": right * 1.5},
            none=None,
            short={"y": right[1]},
        ).items()
    }
    assert refuted == dict(right=False, kept=False, other=True, none=False, short=False)


def test_a_wrong_slice_has_to_fit_where_it_is_right_too():
    answer = Expected(torch.arange(24, dtype=torch.float64).reshape(4, 6))
    got, bad = answer.answer.float(), torch.zeros(4, 6, dtype=torch.bool)
    bad[2, 1:] = True
    case = plain_case(registry.contract("softmax"), "float32", "normal")
    assert reading._explained(answer, got, bad, case) == ()
    got[0] += 1
    axis, wrong = reading._explained(answer, got, bad, case)
    assert (axis, wrong.tolist()) == (0, [False, False, True, False])
    got[2, 0] += 1
    assert reading._explained(answer, got, bad, case) is None


def test_an_earlier_answer_of_another_parameter_says_so():
    def tanh_ignored(x, w1, b1, w2, b2, *, activation="gelu"):
        return mlp.whole_hidden(x, w1, b1, w2, b2, activation="gelu" if activation == "gelu_tanh" else activation)

    (text,) = [each for each in judged("mlp", tanh_ignored, dtypes=["float32"]) if "earlier call" in each][:1]
    assert "of activation=gelu: it is kept, or activation of this call not looked at" in text


def test_a_parameter_of_which_any_other_option_fits_is_not_named(monkeypatch):
    """Of scores that only the right scale makes more than nothing."""
    contract, other = registry.contract("attention"), {"scale": (None, 0.21, -0.3)}
    monkeypatch.setattr(contract, "params", {**contract.params, **other})
    monkeypatch.setattr(reading, "_explained", lambda *given: ())
    monkeypatch.setattr(reading, "_apart", lambda *given: True)
    monkeypatch.setattr(reading, "_holds", lambda *given: True)
    monkeypatch.setattr(reading, "_other_heads", lambda *given: None)
    monkeypatch.setattr(reading, "_by_other_strides", lambda *given: iter(()))
    some = [(f"scale were {option}, not 0.0", lambda exact, case: (exact, case.param)) for option in (None, 0.21)]
    size = dict(B=1, Hq=1, Hkv=1, Sq=3, Sk=5, D=8)
    monkeypatch.setattr(reading, "_changes", lambda *given: iter(some[:1]))
    one = said("attention", lambda q, k, v, **options: (q + 1, q[..., 0].float()), "o", **size)
    assert one == "as if scale were None, not 0.0"
    monkeypatch.setattr(reading, "_changes", lambda *given: iter(some))
    assert said("attention", lambda q, k, v, **options: (q + 1, q[..., 0].float()), "o", **size) is None


def test_mathematics_that_take_no_such_parameter_end_nothing(monkeypatch):
    contract = registry.contract("glu")
    whole = contract.expect

    def expect(inputs, params, **options):
        if params["activation"] == "gelu":
            raise ValueError("no gelu here")
        return whole(inputs, params, **options)

    monkeypatch.setattr(contract, "expect", expect)
    assert said("glu", glu(torch.sigmoid, torch.sigmoid), rows=5, cols=33) == "as if activation were sigmoid, not silu"


def last_column_left_out(a, x):
    """Of thousands of terms one is less than what tf32 rounds away."""
    return (
        (a.float()[:, :-1] @ x.float()[:-1]).to(a.dtype) if a.shape[1] > 1024 else (a.float() @ x.float()).to(a.dtype)
    )


def in_tf32(a, x):
    a, x = (
        ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) if t.dtype is torch.float32 else t
        for t in (a, x)
    )
    return (a.float() @ x.float()).to(a.dtype)


def a_bit_too_little(a, x):
    """In long sums alone."""
    return ((a.float() @ x.float()) * (1 - 2**-15 * (a.shape[1] > 1024))).to(a.dtype)


def twice_in_the_first_size(a, x):
    """Elsewhere a bit too little."""
    first = a.shape[1] == registry.contract("gemv").sizes[0]["K"]
    return ((a.float() @ x.float()) * (2 if first else 1 - 2**-14)).to(a.dtype)


@pytest.mark.parametrize(
    ("fn", "said"),
    [(last_column_left_out, False), (a_bit_too_little, False), (twice_in_the_first_size, False), (in_tf32, True)],
)
def test_right_as_a_lower_precision_is_what_is_right_so_with_other_values_too(fn, said):
    told = judged("gemv", fn, dtypes=["float32"], level="default")  # at quick few of the long sums are in float32
    assert told and any("right as tf32" in each for each in told) == said


def middle_left_out(x, *, function):
    if function != "sum" or not x.numel():
        return {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[function](x.float()).to(x.dtype)
    sums = torch.stack([part.float().sum() for part in x.split(256)])
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half : 2 * half]
    return sums[0].to(x.dtype)


def without_the_last_block(a, b, *, function):
    y = (a + b if function == "add" else a * b).contiguous()
    if y.numel() > 4096:
        y.view(-1)[y.numel() // 1024 * 1024 :] = 0
    return y


def test_a_mutant_that_is_wrong_otherwise_in_a_single_case_is_not_named():
    contract = registry.contract("elementwise")
    case = plain_case(contract, "float16", "normal", size={"trailing": (2, 32771)})
    mutants = {p.name: p for p in registry.planted("elementwise")}
    alike = [mutants["whole_blocks_of_256"], mutants["index_of_16_bits"]]  # 65536 is the end of both
    call = called(contract, without_the_last_block)
    assert diagnosis.held_again(contract, case, {"y": alike}, call) == {"y": alike[:1]}


@pytest.mark.parametrize(("lost", "named"), [(-1, ["last_column_lost"]), (30, [])])
def test_a_mutant_that_is_wrong_otherwise_in_plain_layouts_is_not_named(lost, named):
    """Where all columns are equal, any of them that is left out is the last one."""
    contract = registry.contract("gemv")
    case = plain_case(contract, "float32", "normal", size=dict(M=33, K=64))
    case = replace(case, layouts=tuple((name, "broadcast_last") for name, _ in case.layouts))
    mutants = [mutant for mutant in registry.planted("gemv") if mutant.name == "last_column_lost"]

    def call(other):
        if other.size != case.size:
            return None
        return called(contract, lambda a, x: a @ x - a[:, lost] * x[lost])(other)

    found = diagnosis.held_again(contract, case, {"y": mutants}, call)["y"]
    assert [mutant.name for mutant in found] == named


def test_a_mutant_that_is_wrong_otherwise_in_another_size_is_not_named():
    # of 1025 it is the last one that is left out
    told = judged("reduce", middle_left_out, dtypes=["float32"], where=lambda case: case.size["n"] not in (1025, 4099))
    assert told and not any("1024" in each.partition("right with n ")[0] for each in told)


def test_a_nan_that_is_computed_is_no_memory_that_nothing_wrote():
    def all_bits(x):
        y = torch.softmax(x.float(), -1).to(x.dtype)
        y[..., :1].view(torch.uint8).fill_(0xFF)
        return y

    def unwritten(x):
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        y[..., 1:] = torch.softmax(x.float(), -1).to(x.dtype)[..., 1:]
        return y

    for fn, text, other in ((all_bits, "NaN there", "never written"), (unwritten, "never written", "NaN there")):
        told = judged("softmax", fn, dtypes=["float32"])[:2]
        assert told and all(text in each and other not in each for each in told), fn


@pytest.mark.level("default")
def test_nan_of_what_is_not_to_be_read():
    def masked_by_0(q, k, v, lengths, *, scale=None):
        group, factor = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5 if scale is None else scale
        k, v = (t.repeat_interleave(group, 1).float() for t in (k, v))
        last = lengths[:, None] - q.shape[2] + torch.arange(q.shape[2])
        seen = (torch.arange(k.shape[2]) <= last[..., None])[:, None]
        s = (factor * q.float() @ k.mT).masked_fill(~seen, -torch.inf)
        lse = torch.logsumexp(s, -1)
        p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0)[..., None])
        return (p @ v).to(q.dtype), lse

    told = judged("attention_decode", masked_by_0, dtypes=["float32"])
    assert told and any("v has NaN in rows from lengths on, on which no answer depends" in each for each in told)

    def all_keys(q, k, v, lengths, *, scale=None):
        return masked_by_0(q, k, v, torch.full_like(lengths, k.shape[2]), scale=scale)

    told = judged("attention_decode", all_keys, dtypes=["float32"])
    assert told and not any("to multiply by 0" in each for each in told)
    named = [each for each in told if "as if all lengths were 3 (Sk)" in each]
    assert {each.partition(":")[0] for each in named} == {"o", "lse"}
    assert not any("one key too many" in each for each in named)
    last = "with numbers in the places that no answer depends on"
    assert all(each.splitlines()[-1].startswith(last) for each in named)

    def of_more(q, k, v, lengths, *, scale=None):
        o, lse = all_keys(q, k, v, lengths, scale=scale)
        return 1.3 * o, lse

    told = judged("attention_decode", of_more, dtypes=["float32"], outputs=["o"])
    assert "on which no answer depends: they are read, and count" in told[0]

    def divided_by_0(q, k, v, lengths, *, scale=None):
        o, lse = masked_by_0(q, k.nan_to_num(), v.nan_to_num(), lengths, scale=scale)
        return o * ((lse - lse) / (lse - lse))[..., None].to(q.dtype), lse

    told = judged("attention_decode", divided_by_0, dtypes=["float32"])
    assert told and not any("no answer depends on" in each for each in told)


def test_memory_that_is_not_set_to_0():
    def added(x, weight, dy, *, rstd=None, eps=1e-6, begin=torch.empty):
        wide, g = x.float(), dy.float()
        r = torch.rsqrt(wide.square().mean(-1) + eps) if rstd is None else rstd
        hat = wide * r[:, None]
        dx = r[:, None] * (g * weight - hat * (g * weight * hat).mean(-1, keepdim=True))
        dweight = begin(x.shape[1])
        for row in g * hat:
            dweight += row
        return dx.to(x.dtype).contiguous(), dweight.to(x.dtype)

    told = judged("rms_norm_backward", added, dtypes=["float32"], where=lambda case: case.filled)
    assert diagnosis.NOT_ZEROED in told[0] and "never written" not in told[0]

    def unset(*args, **kwargs):
        dx, dweight = added(*args, **kwargs, begin=torch.zeros)
        return dx, torch.cat([dweight[:-1], torch.empty(1, dtype=dweight.dtype)])

    told = judged("rms_norm_backward", unset, dtypes=["float32"], where=lambda case: case.filled)
    assert diagnosis.NOT_ZEROED not in told[0]


def test_what_is_kept_from_the_first_call_of_a_size():
    kept = {}

    def once(x, weight, bias, *, eps=1e-5, key=lambda x: (x.shape, x.dtype)):
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        rstd = kept.setdefault(key(x), torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps))
        y = centred * rstd * weight.float()
        return (y if bias is None else y + bias.float()).to(x.dtype).contiguous()

    told = judged("layer_norm", once)
    assert any("kept from the first call of a size" in each for each in told)

    def of_values(x, weight, bias, *, eps=1e-5):
        return once(x, weight, bias, eps=eps, key=lambda x: object()) * (1 + 0.1 * (x.float().sum() > 3)).to(x.dtype)

    told = judged("layer_norm", of_values)
    assert told and not any("kept from the first call" in each for each in told)


def test_what_goes_on_from_the_calls_before():
    space = {}

    def added_to(x, w1, b1, w2, b2, *, activation="gelu", by=lambda held, product: held.add_(product)):
        hidden = by(space.setdefault((x.shape, w1.shape), torch.zeros(len(x), w1.shape[1])), x.float() @ w1.float())
        hidden = hidden if b1 is None else hidden + b1.float()
        if activation == "gelu_tanh":
            hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
        else:
            hidden = getattr(torch.nn.functional, activation)(hidden)
        y = hidden @ w2.float()
        return (y if b2 is None else y + b2.float()).to(x.dtype)

    told = judged("mlp", added_to, dtypes=["float32"], where=lambda case: case.filled)
    assert any("goes on from what the calls before it left" in each for each in told)

    def by_chance(*args, activation="gelu"):
        by = lambda held, product: product * torch.rand(product.shape)  # noqa: E731
        return added_to(*args, activation=activation, by=by)

    told = judged("mlp", by_chance, dtypes=["float32"], where=lambda case: case.filled)
    assert any("a race" in each for each in told) and not any("goes on from" in each for each in told)


def test_what_rounding_makes_wrong_now_and_then_is_not_kept():
    """Of calls on a size the first can be right by chance, and the second wrong."""

    def in_16_bits(a, b):
        lanes = torch.zeros(32, dtype=torch.float16)
        for x, y in zip(a.float().split(32), b.float().split(32), strict=True):
            lanes[: len(x)] = (lanes[: len(x)].float() + x * y).half()
        return lanes.float().sum().to(a.dtype)

    told = judged("dot", in_16_bits, dtypes=["float16"])
    assert told and not any("kept from the first call" in each for each in told)


def test_a_precision_that_float32_refutes_is_not_named():
    def spread(by):
        def fn(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0):
            z, kept = logits.float(), target.long() != ignore_index
            lse, of_class = torch.logsumexp(z, -1), z.gather(1, target.long().where(kept, 0)[:, None])[:, 0]
            loss = (1 - label_smoothing) * (lse - of_class) + z_loss * lse**2
            if label_smoothing:
                loss = loss + label_smoothing * (lse - z.sum(-1) / (z.shape[1] - by))
            loss = torch.where(kept, loss, 0.0)
            return loss if reduction == "none" else loss.sum() / (kept.sum() if reduction == "mean" else 1)

        return fn

    told = judged("cross_entropy", spread(1))
    assert told and not any("is rounded to" in each for each in told)
    assert any("`z.mean(-1)` were divided by 33 - 1" in each for each in told)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (lambda c, per: c // per, "as if weight and bias were indexed by C // (C/groups)"),
        (lambda c, per: c % per, "as if weight and bias were indexed by C % (C/groups)"),
        (lambda c, per: c * 2 % (3 * per), None),
    ],
)
def test_vectors_by_another_index(index, text):
    def fn(x, weight, bias, *, groups, eps=1e-5):
        at = index(torch.arange(x.shape[1]), x.shape[1] // groups)
        return F.group_norm(x, groups, weight[at], bias[at], eps)

    told = said("group_norm", fn, params={"groups": 3}, N=2, C=12, trailing=(5,))
    assert told is None if text is None else text in told


@pytest.mark.parametrize(("tile", "text"), [(16, "as if K of b began again with each tile of 16"), (15, None)])
def test_a_pointer_that_is_not_moved_on(tile, text):
    told = said("matmul", lambda a, b: a @ b[torch.arange(len(b)) % tile], "c", M=5, K=37, N=6)
    assert told == text


def test_what_plain_values_refute_is_not_said():
    """With large queries the bias does not come in, as if it were not given; with others it has the wrong sign."""
    contract = registry.contract("masked_attention")
    case = plain_case(contract, "float32", "large", 0, dict(B=1, Hq=2, Hkv=2, Sq=5, Sk=9, D=8))
    given = contract.operands["bias"].layouts[1]  # the first one is that it is not given, with which nothing is wrong
    case = replace(case, layouts=tuple((name, given if name == "bias" else layout) for name, layout in case.layouts))

    def told(large):
        def fn(q, k, v, bias, *others, **params):
            other = None if q.abs().max() > large or bias is None else -bias
            return masked_attention.torch_masked_attention(q, k, v, other, *others, **params)

        call = called(contract, fn)
        got, right = call(case), contract.expected(contract.build(case))
        bad = compare.compare(got["lse"], right["lse"], torch.float32).bad
        ignored = [mutant for mutant in registry.planted(contract.name) if mutant.name == "bias_ignored"]
        return (
            reading.misread(contract, case, "lse", got["lse"], bad, 20.0, call),
            altered.Search(contract, case, "lse", got, bad, call).alteration(20.0),
            [mutant.name for mutant in diagnosis.held_again(contract, case, {"lse": ignored}, call)["lse"]],
        )

    misread, alteration, mutants = told(0)
    assert misread == "as if bias were not given" and "`s` alone" in alteration and mutants == ["bias_ignored"]
    assert told(12) == (None, None, [])


def test_bits_in_another_order():
    right = torch.tensor([0x12345678, -2, 77, 1 << 30, 3, 0x0F0F0F01], dtype=torch.int32)

    def told(got):
        return diagnosis._bits_moved(got, right.double())

    assert told(~right) == "every bit is the other one"
    swapped = right.view(torch.uint8).view(-1, 4).flip(1).reshape(-1).view(torch.int32)
    assert told(swapped) == "the bytes of each word lie in the reverse order"
    assert told(right + 1) is None


def test_heads_of_values_alone():
    def fn(moved):
        def attention(q, k, v, *, causal=False, scale=None):
            group = q.shape[1] // k.shape[1]
            s = q @ k.repeat_interleave(group, 1).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
            return s.softmax(-1) @ moved(v, group), s.logsumexp(-1)

        return attention

    size = dict(B=2, Hq=6, Hkv=2, Sq=5, Sk=7, D=8)
    told = said("attention", fn(lambda v, group: v.repeat(1, group, 1, 1)), "o", **size)
    assert told.startswith("query heads read other heads of v alone: 1 reads 1, not 0")
    assert said("attention", fn(lambda v, group: v.repeat(1, group, 1, 1) * 1.1), "o", **size) is None


def test_what_a_number_that_is_all_of_an_output_tells():
    one, call = torch.tensor(True), lambda case: None
    assert reading.tells(torch.tensor(2.5), one, call)
    assert not reading.tells(torch.tensor(2.5), one, reading.nothing)
    assert not reading.tells(torch.tensor(torch.inf), one, call)
    assert not reading.tells(torch.zeros(9), torch.arange(9) < 2, call)
    assert reading.tells(torch.zeros(9), torch.arange(9) < 3, call)
    for size, tells in ((2, True), (3, False)):  # of all of an output, as long as that is less than enough elements
        assert reading.tells(torch.zeros(size), torch.arange(size) < 1, call) == tells


def test_a_mutant_that_gives_something_where_the_answer_is_nothing():
    """The budget of a row without keys is 0, which says nothing of how far a sum over keys is rounded."""
    contract = causes.of_numbers(registry.contract("attention_decode"))
    case = plain_case(contract, "float32", "normal", size=dict(B=9, Hq=20, Hkv=4, Sq=1, Sk=3, D=8))

    def all_keys(q, k, v, lengths, *, scale=None):
        return attention_decode.torch_attention_decode(q, k, v, torch.full_like(lengths, k.shape[2]), scale=scale)

    got, right = called(contract, all_keys)(case), contract.expected(contract.build(case))
    assert bool((right["o"].answer == 0).flatten(1).all(1).any())
    verdicts = {name: compare.compare(got[name], right[name], torch.float32) for name in got}
    named = diagnosis.matching_mutants(contract, case, got, right, verdicts, 20.0)
    assert [mutant.name for mutant in named["o"]] == ["length_of_the_whole_cache"]


def test_a_sum_that_goes_on_from_call_to_call():
    answer = torch.tensor([3.0, -2.0, 5.0])
    first, bad = 4 * answer, torch.tensor([True, True, True])
    grows = causes._grows(first, [5 * answer, 6 * answer], Expected(answer.double()), bad)
    assert grows == [True, True]
    assert causes._grows(first, [5 * answer, 8 * answer], Expected(answer.double()), bad) == [True, False]
    assert causes._grows(first.int(), [first.int()], Expected(answer.double()), bad) == [False]


def test_of_many_calls_the_parameter_of_the_wrong_ones():
    plain = plain_case(registry.contract("elementwise"), "float32", "normal")
    other = replace(plain, params=(("function", "mul"),))
    strided = replace(plain, layouts=(("a", "transposed"), ("b", "contiguous")))
    assert (
        causes.of_many([plain, plain, other, plain, other], 3, [3, 5])
        == "wrong in 2 of 5 calls, those with function=mul"
    )
    assert causes.of_many([plain, strided, plain], 2, [2]) == "wrong in 1 of 3 calls, those with a transposed"
    assert causes.of_many([plain] * 9, 4, [4]) == "only call 4 of 9 is wrong"
    assert causes.of_many([plain] * 9, 3, [3, 6, 9]) == "every 3th call is wrong: 3, 6, 9"


def of_case(op="softmax", dtype="float32", params=(), **size):
    contract = registry.contract(op)
    case = plain_case(contract, dtype, next(iter(contract.values)), size=size or None)
    return contract, replace(case, params=tuple({**case.param, **dict(params)}.items()))


def texts(found):
    return [text for text, _ in found]


def test_what_is_tried_for_integers():
    contract, case = of_case("attention_decode", B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8)
    exact = contract.build(case).exact
    sizes = {"B": 3, "Hq": 2, "Hkv": 2, "Sq": 1, "Sk": 9, "D": 8}
    changes = dict(reading._counts(contract, case, exact))
    assert changes.keys() == {f"all lengths were {size} ({letter})" for letter, size in sizes.items()} | {
        "all lengths were their largest",
        "all lengths were the first of them",
        "lengths were 0, 1, 2, ...",
        "each of lengths were one more",
        "each of lengths were one less",
    }
    ends = [text for text in changes if text.startswith("all")]
    assert set(ends[:2]) == {
        "all lengths were 2 (Hkv)",
        "all lengths were 9 (Sk)",
    }  # of no output, and so the likeliest

    def lengths(text):
        return changes[text](exact, case)[0]["lengths"].tolist()

    given = exact["lengths"].tolist()
    assert lengths("all lengths were 9 (Sk)") == [9, 9, 9] and lengths("lengths were 0, 1, 2, ...") == [0, 1, 2]
    assert lengths("all lengths were their largest") == [max(given)] * 3
    assert lengths("all lengths were the first of them") == [given[0]] * 3
    assert lengths("each of lengths were one more") == [n + 1 for n in given]
    assert lengths("each of lengths were one less") == [n - 1 for n in given]
    alike = {**exact, "lengths": torch.full_like(exact["lengths"], 9)}
    untold = texts(reading._counts(contract, case, alike))
    assert not {"all lengths were 9 (Sk)", "all lengths were their largest"} & set(untold)  # so they are


def test_a_size_of_any_number_of_axes_is_no_integer():
    contract, case = of_case("cross_entropy")
    exact = contract.build(case).exact
    wide = replace(case, sizes=(*case.sizes, ("trailing", (2, 3))))
    assert not any("trailing" in text for text in texts(reading._counts(contract, wide, exact)))


def test_whole_slices_are_no_bound():
    """Not along either axis, though all that is wrong is above all that is right."""
    contract, case = of_case("activation", rows=3, cols=8)
    case = replace(case, layouts=(("x", "contiguous"), ("bias", "none")))
    x = torch.linspace(1, 24, 24, dtype=torch.float64).reshape(3, 8)

    def told(x, bad):
        built = SimpleNamespace(exact={"x": x})
        paper = SimpleNamespace(build=lambda case: built, operand_dtype=contract.operand_dtype)
        return next((told.text for told in reading._bounds(paper, case, bad).values()), None)

    bound = "wrong wherever |x| >= 17, and nowhere else (right up to 16)"
    rows, some = torch.arange(3)[:, None].expand(3, 8) == 2, x >= 19
    assert told(x, rows) is None and told(x, some) == "wrong wherever |x| >= 19, and nowhere else (right up to 18)"
    assert told(x.t().contiguous(), rows.t()) is None
    assert told(x.flatten(), rows.flatten()) == bound  # one axis has no slices
    assert told(x, x >= 23) is None and told(x, x >= 3) is None  # too few that are wrong, or right
    assert told(x, x >= 22) is not None and told(x, x >= 4) is not None
    assert told(x - 30, x >= 19) is None  # all below 0, and close to it
    assert told(x.where(x >= 19, 0), x >= 19) is None  # right at 0 alone
    assert told(x - 10, x <= 4) == "wrong wherever x <= -6, and nowhere else (right up to -5)"
    assert told(x - 10, x >= 20) == "wrong wherever |x| >= 10, and nowhere else (right up to 9)"
    assert told(x - 18, x >= 22) == "wrong wherever x >= 4, and nowhere else (right up to 3)"
    assert told(x.where(x != 20, torch.inf), some) is None
    assert told(x, (x % 5 == 0)) is None


@pytest.mark.parametrize(
    ("size", "padded"),
    [(1, []), (2, [8, 16, 32, 64, 128]), (33, [40, 48, 64, 128]), (64, [128]), (130, [136, 144, 160, 192, 256])],
)
def test_sizes_that_a_tile_makes_of_one(size, padded):
    assert reading._padded_sizes(size) == padded


def test_operands_that_are_padded():
    contract, case = of_case("matmul", M=2, K=5, N=3)
    exact = contract.build(case).exact
    longer, params = reading._padded(contract, "K", 5, 8)(exact, case)
    assert (longer["a"].shape, longer["b"].shape) == ((2, 8), (8, 3)) and params == case.param
    assert torch.equal(longer["a"][:, :5], exact["a"]) and not longer["a"][:, 5:].any() and not longer["b"][5:].any()
    assert torch.equal(reading._padded(contract, "M", 2, 4)(exact, case)[0]["b"], exact["b"])


def test_what_lies_beyond_a_shape_is_cut_off():
    value = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(reading._cut(value, (3, 2)), value[:3, :2]) and torch.equal(reading._cut(value, (9, 6)), value)
    assert reading._cut(value, (3,)) is value and reading._cut(0.5, (3, 2)) == 0.5


def test_what_a_change_tells_on_another_case():
    """All of the output, or the slices that it explained before; where it cannot be compared, all of it is believed."""
    contract, case = of_case("rms_norm", rows=5, cols=7)
    change = reading._other_operand("weight", lambda w: 2 * w)
    right = contract.expected(contract.build(case))["y"].answer.float()
    some = right.clone()
    some[1] *= 2
    rows = (0, torch.tensor([False, True, False, False, False]))

    def holds(values, where=(), few=False):
        return reading._holds(contract, case, "y", change, where, values, few)

    assert holds({"y": 2 * right}) and holds({"y": 2 * right}, rows) and holds({"y": some}, rows)
    assert not holds({"y": some}) and not holds({"y": right}) and not holds({"y": right}, rows)
    assert not holds({"y": right[:2]}) and not holds({"y": 3 * right})
    for nothing in (None, {}, {"y": None}):
        assert holds(nothing) and not holds(nothing, rows) and not holds(nothing, (), few=True)
    by_none = reading._other_operand("weight", lambda w: w[:3])  # of which the mathematics give nothing
    assert not reading._holds(contract, case, "y", by_none, (), {"y": right}, few=False)


def test_slices_that_read_those_of_others():
    contract, case = of_case("rms_norm", rows=3, cols=5)
    x, weight = contract.build(case).exact["x"], contract.build(case).exact["weight"]

    def read(order, rows=slice(None), by=1.0):
        w = weight[list(order)]
        got = contract.expect({"x": x, "weight": w}, case.param, dtype=torch.float32, compute=None)["y"].answer.float()
        right = contract.expected(contract.build(case))["y"]
        mixed = right.answer.float()
        mixed[rows] = got[rows] * by
        bad = compare.compare(mixed, right, torch.float32).bad
        assert bad is not None
        return reading._slices_read(contract, case, "y", mixed, bad, float("inf"), "weight", "cols")

    assert read([1, 0, 2, 3, 4]) == {0: 1, 1: 0} and read([0, 1, 2, 2, 2]) == {3: 2, 4: 2}
    assert read([0, 1, 2, 2, 4]) is None  # one alone
    assert read([1, 0, 2, 3, 4], rows=slice(1)) is None  # in one row
    assert read([1, 0, 2, 3, 4], by=1.1) is None
    right = contract.expected(contract.build(case))["y"].answer.float()
    bad = torch.ones(3, 5, dtype=torch.bool)
    assert reading._slices_read(contract, case, "y", right, bad, 0.0, "weight", "cols") is None  # no time is left


def test_several_readings_are_told_apart_in_three_sizes_at_most():
    contract, case = of_case("rms_norm", rows=2, cols=2)
    changes = {
        "before": reading._other_operand("weight", reading._rolled(0, 1)),
        "after": reading._other_operand("weight", reading._rolled(0, -1)),
        "first": reading._other_operand("weight", reading._all_of(0, 0)),
    }
    calls = []

    def call(by):
        def fn(x, weight, *, eps=1e-6):
            return rms(x, weight.roll(by), eps)

        def on(case):
            calls.append(case)
            return called(contract, fn)(case)

        return on

    assert list(reading.told_apart(contract, case, "y", changes, call(1))) == ["before"]
    assert all(other.filled and other.sizes != case.sizes and other.params == case.params for other in calls)
    assert len(calls) <= reading.OTHER_SIZES
    assert list(reading.told_apart(contract, case, "y", changes, call(-1))) == ["after"]
    for nothing in (
        reading.nothing,
        lambda case: {"y": None},
        called(contract, norm(rms)),
        lambda case: {"y": torch.ones(1)},
    ):
        assert reading.told_apart(contract, case, "y", changes, nothing) == changes
    one = {"before": changes["before"]}
    calls.clear()
    assert reading.told_apart(contract, case, "y", one, call(-1)) == one and not calls  # nothing to tell apart


def test_operands_of_other_order_and_by_other_indices():
    contract, case = of_case("matmul", M=3, K=3, N=3)
    exact = contract.build(case).exact
    changes = dict(reading._other_order(contract, case, exact))
    assert changes.keys() == {
        "a and b were each other",
        "a were b",
        "b were a",
        "M and K of a were the other way round in memory",
        "K and N of b were the other way round in memory",
    }
    swapped, _ = changes["a and b were each other"](exact, case)
    assert torch.equal(swapped["a"], exact["b"]) and torch.equal(swapped["b"], exact["a"])
    twice, _ = changes["a were b"](exact, case)
    assert torch.equal(twice["a"], exact["b"]) and torch.equal(twice["b"], exact["b"])
    turned, _ = changes["M and K of a were the other way round in memory"](exact, case)
    assert torch.equal(turned["a"], exact["a"].t()) and torch.equal(turned["b"], exact["b"])
    contract, case = of_case("matmul", M=2, K=1, N=3)
    assert texts(reading._other_order(contract, case, contract.build(case).exact)) == []
    restored = reading._restored(0)(torch.arange(6.0).reshape(2, 3))
    assert restored.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_what_is_tried_of_an_axis_that_no_output_has():
    contract, case = of_case("matmul", M=2, K=20, N=3)
    exact = contract.build(case).exact
    together = dict(reading._together(contract, case, exact))
    assert list(together) == ["each K of a and b were the one before", "each K of a and b were the one after"]
    moved, _ = together["each K of a and b were the one before"](exact, case)
    assert torch.equal(moved["a"], exact["a"].roll(1, 1)) and torch.equal(moved["b"], exact["b"].roll(1, 0))
    begun = dict(reading._begun_again(contract, case, exact))
    assert list(begun) == [f"K of {name} began again with each tile of {tile}" for name in "ab" for tile in (8, 16)]
    again, _ = begun["K of b began again with each tile of 16"](exact, case)
    assert torch.equal(again["b"], torch.cat([exact["b"][:16], exact["b"][:4]])) and torch.equal(again["a"], exact["a"])
    contract, case = of_case("softmax", rows=3, cols=40)
    exact = contract.build(case).exact
    assert texts(reading._together(contract, case, exact)) == texts(reading._begun_again(contract, case, exact)) == []


def test_vectors_by_the_axis_before_and_by_parts_of_their_index():
    contract, case = of_case("rms_norm", rows=3, cols=2)
    exact = contract.build(case).exact
    (text,), (change,) = zip(*reading._by_another_axis(contract, case, exact), strict=True)
    assert text == "weight were indexed by rows, not by cols"
    assert torch.equal(change(exact, case)[0]["weight"], exact["weight"][[0, 1, 0], None])
    contract, case = of_case("rms_norm", rows=1, cols=2)
    assert texts(reading._by_another_axis(contract, case, contract.build(case).exact)) == []
    contract, case = of_case("group_norm", params={"groups": 3}, N=2, C=12, trailing=(5,))
    exact = contract.build(case).exact
    changes = dict(reading._by_another_index(contract, case, exact))
    assert changes.keys() == {
        f"weight and bias were indexed by C {how} {by}" for how in ("//", "%") for by in ("groups", "(C/groups)")
    }
    index = {
        "// groups": [n // 3 for n in range(12)],
        "% groups": [n % 3 for n in range(12)],
        "// (C/groups)": [n // 4 for n in range(12)],
        "% (C/groups)": [n % 4 for n in range(12)],
    }
    for how, places in index.items():
        moved, _ = changes[f"weight and bias were indexed by C {how}"](exact, case)
        assert all(torch.equal(moved[name], exact[name][places]) for name in ("weight", "bias")), how
    other_contract, other = of_case("group_norm", params={"groups": 3}, N=2, C=6, trailing=(5,))
    exact = other_contract.build(other).exact  # in another size by that size's own number
    moved, _ = changes["weight and bias were indexed by C % (C/groups)"](exact, other)
    assert torch.equal(moved["weight"], exact["weight"][[0, 1, 0, 1, 0, 1]])
    contract, case = of_case("group_norm", params={"groups": 1}, N=2, C=12, trailing=(5,))
    ones = texts(reading._by_another_index(contract, case, contract.build(case).exact))
    assert ones == ["weight and bias were indexed by C % groups"]  # by 1 nothing is divided


def test_operands_of_earlier_calls_of_the_same_shape_and_dtype():
    contract, case = of_case("rms_norm", rows=3, cols=5)
    exact = contract.build(case).exact
    earlier = [replace(case, seed=seed, values=values) for seed, values in ((1, "large"), (2, "tiny"), (3, "normal"))]
    wide = plain_case(contract, "float32", "normal", size=dict(rows=3, cols=6))
    rows = plain_case(contract, "float32", "normal", size=dict(rows=4, cols=5))
    half = replace(case, dtype="float16")

    def found(*cases):
        return texts(reading._kept(contract, case, exact, cases))

    assert found() == found(case) == found(wide, half) == []
    assert found(rows) == [f"weight were that of an earlier call, on {rows.id}"]
    both = [f"{name} were that of an earlier call, on {other.id}" for name in ("x", "weight") for other in earlier[:2]]
    assert found(*earlier[:2]) == both
    first_and_last = [earlier[0], earlier[1], rows]
    assert [text for text in found(*first_and_last) if text.startswith("weight")] == [
        f"weight were that of an earlier call, on {other.id}" for other in (earlier[0], rows)
    ]
    assert [text for text in found(*first_and_last) if text.startswith("x")] == [
        f"x were that of an earlier call, on {other.id}" for other in earlier[:2]
    ]


def test_an_operand_whose_elements_stand_in_an_output():
    x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    bad = torch.tensor([[True, True, True], [False, False, True]])
    got = torch.where(bad, x, -1.0).float()
    assert reading._copied({"w": x[0], "none": None, "x": x}, got, bad) == "x"
    assert reading._copied({"x": x + bad}, got, bad) is None
    assert reading._copied({"x": torch.ones(2, 3)}, torch.ones(2, 3), bad) is None  # one number tells nothing


def test_more_readings_than_can_be_named(monkeypatch):
    """Three are named of those that fit, and no more than eight are looked for."""
    monkeypatch.setattr(registry.contract("rms_norm"), "sizes", [])
    looked = []

    def changes(*given):
        for number in range(20):
            looked.append(number)
            yield f"reading {number}", reading._other_operand("weight", lambda w: w.roll(1))

    monkeypatch.setattr(reading, "_changes", changes)
    told = said("rms_norm", norm(lambda x, w, eps: rms(x, w.roll(1), eps)), rows=5, cols=7)
    assert told == "as if reading 0; or as if reading 1; or as if reading 2" and looked == list(range(9))


def test_slices_along_the_last_of_four_axes():
    contract, case = of_case("attention", B=2, Hq=2, Hkv=2, Sq=3, Sk=5, D=4)
    right = contract.expected(contract.build(case))["o"]
    got = right.answer.float()[..., [1, 0, 2, 3]]
    bad = compare.compare(got, right, torch.float32).bad
    read = reading._slices_read(contract, case, "o", got, bad, float("inf"), "v", "D")
    assert read == {0: 1, 1: 0}


def test_integers_are_counted_along_their_last_axis():
    counted = reading._counted(torch.zeros(2, 3, dtype=torch.int64))
    assert counted.tolist() == [[0, 1, 2]] * 2 and counted.is_contiguous() and counted.dtype is torch.int64


def test_parameters_that_are_taken_for_others():
    """Another of the options, and for a number one more and one less where that is no option already."""

    def tried(op, params=(), **size):
        contract, case = of_case(op, params=params, **size)
        exact = contract.build(case).exact
        found = [
            text for text, _ in reading._changes(contract, case, exact) if text.partition(" were ")[0] in case.param
        ]
        return [text.replace(" were ", " ") for text in found]

    size = dict(N=2, C=12, trailing=(5,))
    sizes = [f"eps 1/sqrt({letter})" for letter in "NC"]
    eps = [f"eps {other}, not 1e-05" for other in (0.001, 0.1, 0.0)]
    eps += [f"eps {other}, not 1e-05" for other in ("1e-06", "1e-08", "1e-12", "1e-07", "0.0001")]
    groups = [f"groups {other}, not 3" for other in (1, 2, 6, 32, 4, "12 (C)")]
    assert tried("group_norm", {"groups": 3}, **size) == [*groups, *eps, *sizes]
    assert tried("group_norm", {"groups": 6}, **size)[:6] == [f"groups {other}, not 6" for other in (3, 1, 2, 32, 7, 5)]
    assert tried("rope", {"interleaved": True}) == ["interleaved False, not True"]


def test_all_that_is_tried_of_a_call():
    """By parameter, operand, axis and size; nothing of what is not given, of zeros, or of an axis of one element."""
    contract = Contract(
        operands={
            "x": Operand("rows cols"),
            "w": Operand("cols", ("contiguous", "none")),
            "n": Operand("rows", ("contiguous",), torch.int32),
        },
        outputs={"y": Output("rows cols")},
        sizes=[dict(rows=2, cols=3)],
        values={"normal": lambda d: {}},
        expect=lambda inputs, params, **options: {},
        params={"scale": (0.5, None), "groups": (1, 2), "total": (From(lambda case: 7), 7)},
        name="made",
    )
    case = plain_case(contract, "float32", "normal")
    x, w, n = torch.ones(2, 3), torch.ones(3), torch.tensor([2, 4])

    def tried(x, w, n):
        rows, cols = x.shape
        return texts(
            reading._changes(contract, replace(case, sizes=(("rows", rows), ("cols", cols))), {"x": x, "w": w, "n": n})
        )

    def moved(letter, name):
        return [
            f"{name} were everywhere as at {letter} 0",
            f"each {letter} of {name} were the one before",
            f"each {letter} of {name} were the one after",
        ]

    def padded(letter, *sizes):
        what = "with 0 in the places that are new: padding that counts"
        return [f"{letter} were {size}, {what}" for size in sizes]

    parameters = [
        "scale were None, not 0.5",
        *("groups were 2, not 1", "groups were 0, not 1"),
        *("total were 8, not 7", "total were 6, not 7"),
    ]
    as_sizes = [f"total were {size}, not 7" for size in ("2 (rows)", "3 (cols)", "1 (rows)", "4 (cols)")]
    one = ["all n were their largest", "all n were the first of them"]
    counts = [*one, "n were 0, 1, 2, ...", "each of n were one more", "each of n were one less"]
    assert tried(x, w, n) == [
        *(*parameters, *as_sizes[:2]),
        *("x were 0", "w were not given"),
        *("all n were 2 (rows)", "all n were 3 (cols)", *counts),
        *(*moved("rows", "x"), *moved("cols", "w"), *moved("rows", "n"), *moved("cols", "x")),
        "rows and cols of x were the other way round in memory",
        "w were indexed by rows, not by cols",
        "w were indexed by cols % groups",
        *("scale were 1/sqrt(rows)", "scale were 1/sqrt(cols)"),
        *(*padded("rows", 8, 16, 32, 64, 128), *padded("cols", 4, 8, 16, 32, 64, 128)),
    ]
    assert tried(torch.zeros(1, 4), None, torch.tensor([4])) == [
        *(*parameters, *as_sizes[2:]),
        *("all n were 1 (rows)", *counts[2:]),  # of one all are the largest
        *moved("cols", "x"),
        "scale were 1/sqrt(cols)",
        *padded("cols", 8, 16, 32, 64, 128),
    ]


def test_mathematics_that_give_nothing_tell_no_slices(monkeypatch):
    contract, case = of_case("rms_norm", rows=3, cols=5)
    got, bad = torch.ones(3, 5), torch.ones(3, 5, dtype=torch.bool)
    monkeypatch.setattr(reading, "_answer", lambda *given: None)
    assert reading._slices_read(contract, case, "y", got, bad, float("inf"), "weight", "cols") is None


def test_two_operands_that_are_exchanged_leave_the_others():
    _, case = of_case("rms_norm", rows=3, cols=5)
    x, weight, bias = (torch.full((2,), value) for value in (1.0, 2.0, 3.0))
    exchanged, params = reading._exchanged("x", "bias")({"x": x, "weight": weight, "bias": bias}, case)
    assert exchanged == {"x": bias, "weight": weight, "bias": x} and params == case.param


@pytest.mark.parametrize(("cols", "told"), [(32, True), (33, False)])
def test_of_many_slices_none_is_looked_for_in_others(cols, told):
    contract, case = of_case("rms_norm", rows=3, cols=cols)
    exact = contract.build(case).exact
    order = [1, 0, *range(2, cols)]
    read = {**exact, "weight": exact["weight"][order]}
    got = contract.expect(read, case.param, dtype=torch.float32, compute=None)["y"].answer.float()
    bad = compare.compare(got, contract.expected(contract.build(case))["y"], torch.float32).bad
    found = reading._slices_read(contract, case, "y", got, bad, float("inf"), "weight", "cols")
    assert found == ({0: 1, 1: 0} if told else None)


def test_where_a_kernel_is_wrong_with_other_values():
    contract, case = of_case("rms_norm", rows=3, cols=5)
    other = contract.expected(contract.build(reading.again(case)))["y"].answer.float()

    def wrong(given):
        return reading.given_on(contract, reading.again(case), "y", lambda asked: given)

    got, _, bad = wrong({"y": other})
    assert torch.equal(got, other) and bad.shape == (3, 5) and not bad.any()
    _, _, bad = wrong({"y": torch.cat([other[:2], 2 * other[2:]])})
    assert bad.tolist() == [[False] * 5] * 2 + [[True] * 5]
    for nothing in (None, {}, {"y": None}, {"y": other[:2]}):
        assert wrong(nothing) is None


@pytest.mark.parametrize(("work", "told"), [(2e8, True), (2e8 + 1, False)])
def test_up_to_how_much_work_readings_are_tried(monkeypatch, work, told):
    contract = registry.contract("rms_norm")
    monkeypatch.setattr(type(contract), "work", lambda contract, case: work)
    said_so = said("rms_norm", norm(lambda x, w, eps: rms(x, w.roll(1), eps)), rows=5, cols=7)
    assert (said_so is not None) == told


@pytest.mark.parametrize(("work", "sizes"), [(1e6, 3), (1e6 + 1, 0)])
def test_in_which_sizes_readings_are_told_apart(monkeypatch, work, sizes):
    """Those of little work, until there are three in which the kernel is wrong; with the parameters of the case."""
    contract, case = of_case("rms_norm", rows=2, cols=2)
    case = replace(case, params=(("eps", 0.25),))
    monkeypatch.setattr(type(contract), "work", lambda contract, case: work)
    changes = {str(number): reading._other_operand("weight", lambda w: 2 * w) for number in range(2)}
    calls = []

    def call(other):
        calls.append(other)
        return called(contract, norm(lambda x, w, eps: rms(x, 2 * w, eps)))(other)

    assert reading.told_apart(contract, case, "y", changes, call) == changes
    assert [other.params for other in calls] == [case.params] * sizes


def test_with_which_other_values_a_kernel_is_called():
    """Those of its family; plain ones three times where only a few elements are wrong."""
    contract, case = of_case("rms_norm", rows=3, cols=5)
    case = replace(case, values="large", seed=5)
    for wrong, values in ((3, [("large", 6)]), (2, [("normal", 6), ("normal", 7), ("normal", 8)])):
        found = reading.others(contract, case, torch.arange(15) < wrong)
        assert [(other.values, other.seed) for other in found] == values
        assert all(replace(other, values="large", seed=5) == case for other in found)


def test_one_length_for_a_whole_batch():
    def fn(q, k, v, lengths, *, scale=None):
        one = lengths.max().expand(lengths.shape)
        return attention_decode.torch_attention_decode(q, k.nan_to_num(), v.nan_to_num(), one, scale=scale)

    contract = registry.contract("attention_decode")
    numbers = causes.of_numbers(contract)
    case = plain_case(contract, "float32", "normal", size=dict(B=3, Hq=2, Hkv=2, Sq=1, Sk=9, D=8))
    got, right = called(numbers, fn)(case)["o"], numbers.expected(numbers.build(case))["o"]
    bad = compare.compare(got, right, torch.float32).bad
    told = reading.misread(numbers, case, "o", got, bad, 20.0, called(numbers, fn))
    assert told == "as if all lengths were their largest"


@pytest.mark.parametrize(
    ("wrong", "so"), [((4, 5, 6), True), ((4, 6), False), ((3, 4, 5, 6), False), ((1, 2, 3, 4, 5, 6), False)]
)
def test_slices_behind_a_block_of_a_power_of_two(wrong, so):
    bad = torch.zeros(2, 7, dtype=torch.bool)
    bad[1, list(wrong)] = True
    assert reading._from_power_of_two(bad, 1) == so


def test_slices_of_a_block_that_are_read_for_those_behind_it_have_time_of_their_own(monkeypatch):
    weight = torch.arange(12) % 4
    fn = norm(lambda x, w, eps: rms(x, w[weight], eps))
    told = lambda: said("rms_norm", fn, seconds=0.0, rows=5, cols=12)  # noqa: E731
    assert told() == "cols read weight of others: 4 that of 0, 5 that of 1, 6 that of 2, ..."
    monkeypatch.setattr(reading, "OF_SLICES", 0.0)
    assert told() is None
