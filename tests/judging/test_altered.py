"""Which step of a reference a wrong kernel is said to do otherwise; and what is not said, since other values or another
output refute it."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.judging import altered, diagnosis, reading
from touchstone.conformance.judging.operations import Alteration
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference import _masks, _philox
from touchstone.reference.attention import torch_attention
from touchstone.reference.attention_decode import torch_attention_decode
from touchstone.reference.attention_decode_int4 import torch_attention_decode_int4
from touchstone.reference.cross_entropy import torch_cross_entropy
from touchstone.reference.masked_attention import torch_masked_attention
from touchstone.reference.merge_states import torch_merge_states
from touchstone.reference.rms_norm_backward import torch_rms_norm_backward
from touchstone.reference.rope import torch_rope
from touchstone.reference.softmax import torch_softmax


def called(contract, fn):
    return lambda case: contract.by_name(contract.call(fn, contract.build(case).arguments))


def said(
    op,
    fn,
    output="y",
    *,
    call=True,
    seconds=20.0,
    params=(),
    dtype="float32",
    values=None,
    of="alteration",
    passed=(),
    **size,
):
    """What a kernel is said to do otherwise in its call on a plain case."""
    contract = registry.contract(op)
    case = plain_case(contract, dtype, values or next(iter(contract.values)), size=size or contract.sizes[0])
    case = replace(case, params=tuple({**dict(case.params), **dict(params)}.items()))
    got, right = called(contract, fn)(case), contract.expected(contract.build(case))[output]
    bad = compare.compare(got[output], right, case.torch_dtype).bad
    assert bad is not None

    def further(case):
        try:
            return called(contract, fn)(case)
        except RuntimeError:  # a kernel need not take every size
            return None

    search = altered.Search(contract, case, output, got, bad, further if call else reading.nothing, passed)
    return getattr(search, of)(seconds)


def rms(statistic):
    return lambda x, weight, *, eps=1e-6: x * statistic(x, eps) * weight


def mean_of(x):
    return x.square().mean(-1, keepdim=True)


@pytest.mark.parametrize(
    ("statistic", "text"),
    [
        (lambda x, eps: 1 / (mean_of(x).sqrt() + eps), "were taken before the number is added"),
        (lambda x, eps: torch.rsqrt(mean_of(x)), "`x.square().mean(-1, keepdim=True) + eps` were without the term 0.1"),
        (lambda x, eps: torch.rsqrt(mean_of(x) - eps), "were with the other sign before 0.1"),
        (lambda x, eps: torch.rsqrt(mean_of(x) * 33 / 32 + eps), "were divided by 33 - 1"),
        (lambda x, eps: torch.rsqrt(mean_of(x) * 33 / 48 + eps), "were divided by 48"),
        (lambda x, eps: torch.rsqrt(mean_of(x) * 33 + eps), "were the sum, not the mean"),
        (
            lambda x, eps: torch.rsqrt(mean_of(x[:, :32]) * 32 / 33 + eps),
            "without the last 1 of 33, beyond whole tiles",
        ),
        (lambda x, eps: torch.rsqrt(mean_of(x).bfloat16().float() + eps), "were rounded to bfloat16"),
        (lambda x, eps: torch.rsqrt(mean_of(x) + eps) * 1.1, None),
        (lambda x, eps: torch.rsqrt(mean_of(x) * 33 / 31 + eps), None),
        (lambda x, eps: torch.rsqrt(mean_of(x[:, 1:]) * 32 / 33 + eps), None),
        (lambda x, eps: torch.rsqrt(mean_of(x) + eps / 2), "were with 0.05, half of 0.1, in its place"),
        (lambda x, eps: torch.rsqrt(mean_of(x) + eps / 3), None),
        (lambda x, eps: torch.rsqrt(mean_of(x[:, :8]) * 8 / 33 + eps), "of the first 8 of 33 alone"),
        (lambda x, eps: torch.rsqrt(mean_of(x[:, 24:]) * 9 / 33 + eps), None),
        (lambda x, eps: torch.rsqrt(mean_of(x[:, 28:]) * 5 / 33 + eps), None),
        (lambda x, eps: torch.rsqrt(mean_of(x[:, 32:]) * 1 / 33 + eps), "of the last tile alone, from 32 of 33 on"),
    ],
)
def test_a_step_of_a_norm(statistic, text):
    told = said("rms_norm", rms(statistic), rows=5, cols=33, params={"eps": 0.1})
    assert told is None if text is None else text in told
    assert told is None or ("rms_norm.py:" in told and "; or" not in told)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda row, col: col < 24, " in cols 0..23"),
        (lambda row, col: row == 2, " in rows 2"),
        (lambda row, col: row < 9, ""),
        (lambda row, col: col % 2 == 0, None),  # several parts
        (lambda row, col: (col < 24) & (col % 3 == 0), None),
    ],
)
def test_a_change_of_a_part_of_the_output(wrong, text):
    """An element that the one before is kept for: the last tile is right."""

    def fn(x, residual, weight, *, eps=1e-6):
        h = x + residual
        rows, cols = (torch.arange(size) for size in x.shape)
        return torch.where(wrong(rows[:, None], cols), x, h) * torch.rsqrt(mean_of(h) + eps) * weight, h

    told = said("add_rms_norm", fn, rows=5, cols=33)
    line = r"as if `x \* torch\.rsqrt\(.* \+ eps\)` were taken of `x`, not of `x \+ residual` \(.*:\d+\)"
    assert told is None if text is None else re.fullmatch(line + text, told)


def test_a_part_of_an_output_is_the_same_with_other_values():
    calls = []

    def fn(first):
        def of(x, residual, weight, *, eps=1e-6):
            calls.append(x)
            h = x + residual
            part = torch.arange(x.shape[1]) < (24 if len(calls) == 1 else first)
            return torch.where(part, x, h) * torch.rsqrt(mean_of(h) + eps) * weight, h

        calls.clear()
        return of

    assert said("add_rms_norm", fn(24), rows=5, cols=33).endswith(" in cols 0..23")
    assert said("add_rms_norm", fn(25), rows=5, cols=33) is None
    assert said("add_rms_norm", fn(23), rows=5, cols=33) is None


@pytest.mark.parametrize("number", [0.0, 7.0, math.nan, math.inf])
def test_one_number_in_a_part_of_an_output_tells_nothing(number):
    """The change that gives it everywhere is one of many."""
    case = plain_case(registry.contract("add_rms_norm"), "float32", "normal", size=dict(rows=5, cols=33))
    contract = registry.contract("add_rms_norm")
    expected = contract.expected(contract.build(case))
    got = {name: right.answer.float() for name, right in expected.items()}
    got["y"][:, :24] = number
    assert altered._Given(expected, got, case, "y").part() is None
    got["y"][0, 0] = 3.0
    assert (altered._Given(expected, got, case, "y").part() is None) == (not math.isfinite(number))


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (lambda i: i % 128 < 96, "were without the last 32 of each 128 of 300"),
        (lambda i: i % 128 < 32, "were of the first 32 of each 128 of 300 alone"),
        (lambda i: i % 128 < 33, None),
    ],
)
def test_lanes_that_are_lost(kept, text):
    def fn(x, weight, *, eps=1e-6):
        squares = x.square()[:, kept(torch.arange(x.shape[1]))].sum(-1, keepdim=True)
        return x * torch.rsqrt(squares / x.shape[1] + eps) * weight

    told = said("rms_norm", fn, rows=5, cols=300)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(("count", "text"), [(32, "without the last 8 of 40, beyond whole tiles"), (30, None)])
def test_a_softmax_and_its_lse_of_some_elements(count, text):
    """Each alone would leave the other output unexplained."""

    def fn(x):
        lse = torch.logsumexp(x[:, :count], -1)
        return (x - lse[:, None]).exp(), lse

    for output in ("y", "lse"):
        told = said("online_softmax", fn, output, rows=5, cols=40)
        assert told is None if text is None else f"each `softmax` and `logsumexp` of a line were {text}" in told


@pytest.mark.parametrize(
    ("split", "base", "text"),
    [
        (32, 2.0, "of splits of 32 by weights that are powers of e of logarithms to base 2 of their sums"),
        (64, 2.0, "of splits of 64 by weights that are powers of e of logarithms to base 2 of their sums"),
        (32, 10.0, None),
        (20, 2.0, None),
    ],
)
def test_a_softmax_that_is_merged_of_splits_in_two_bases(split, base, text):
    """In one output as in the other."""

    def fn(x):
        parts = x.double().split(split, 1)
        logs = torch.cat([part.logsumexp(1, keepdim=True) for part in parts], 1) / math.log(base)
        most = logs.amax(1, keepdim=True)
        weights = (logs - most).exp()
        total = weights.sum(1, keepdim=True)
        y = torch.cat([p.softmax(1) * w[:, None] for p, w in zip(parts, weights.T, strict=True)], 1) / total
        return y.float(), (most * math.log(base) + total.log())[:, 0].float()

    for output in ("y", "lse"):
        told = said("online_softmax", fn, output, rows=5, cols=140)
        assert told is None if text is None else told == f"as if the softmax were merged {text}"


def test_a_softmax_of_an_empty_sum():
    def fn(x):
        return torch.full_like(x, torch.inf), x.new_full((len(x),), -torch.inf)

    told = said("online_softmax", fn, rows=5, cols=40)
    assert "each `softmax` and `logsumexp` of a line were of an empty sum, without all 40" in told


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (slice(256), "`torch.dot(a, b)` were of the first 256 of 1025 terms alone"),
        (slice(1024, None), "were of the last tile of terms alone, from 1024 of 1025 on"),
        (slice(1000), None),
    ],
)
def test_an_output_of_one_element(chosen, text):
    fn = lambda a, b: a[chosen] @ b[chosen]  # noqa: E731
    told = said("dot", fn, n=1025)
    assert told is None if text is None else text in told
    assert said("dot", fn, call=False, n=1025) is None


@pytest.mark.parametrize(("times", "text"), [(2, "`h @ w2 + b2` were with `b2` twice"), (2.5, None)])
def test_a_term_twice(times, text):
    def fn(x, w1, b1, w2, b2, *, activation="gelu"):
        return torch.nn.functional.gelu(x @ w1 + b1) @ w2 + times * b2

    told = said("mlp", fn, M=5, D=7, H=9, N=6)
    assert told is None if text is None else text in told


def test_a_tensor_in_the_place_of_another_of_its_shape():
    def backward(of):
        def fn(x, weight, dy, *, rstd=None, eps=1e-6):
            r = torch.rsqrt(mean_of(x) + eps)
            hat, g = x * r, dy * weight
            other = of(x, hat, g)
            return r * (g - other * (g * other).mean(-1, keepdim=True)), (dy * hat).sum(0)

        return fn

    size = dict(rows=5, cols=33)
    told = said("rms_norm_backward", backward(lambda x, hat, g: x), "dx", **size)
    assert "as if `xhat` were `x` (reference/rms_norm_backward.py:" in told
    assert said("rms_norm_backward", backward(lambda x, hat, g: x * 1.1), "dx", **size) is None


def test_an_element_that_is_overwritten_before_it_is_read():
    def turned(x, c, s, half, by):
        y = x.clone()
        y[..., :half] = x[..., :half] * c - x[..., half : 2 * half] * s
        y[..., half : 2 * half] = x[..., half : 2 * half] * c + by * y[..., :half] * s
        return y

    def fn(by):
        return lambda q, k, cos, sin, positions, *, interleaved=False: tuple(
            turned(x, cos[positions.long()][:, None], sin[positions.long()][:, None], cos.shape[1], by) for x in (q, k)
        )

    told = said("rope", fn(1), "q_turned")
    assert "as if `x[..., first]` were `x[..., first] * c - x[..., second] * s` (reference/rope.py:" in told
    assert said("rope", fn(1.5), "q_turned") is None


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (lambda e, cols: e % 128, "the index into the random words began again with each tile of 128"),
        (lambda e, cols: e % cols, "the index into the random words began again with each row of 40 (cols)"),
        (lambda e, cols: 4 * e, "the first of four of the counter e"),
        (lambda e, cols: e // 4 * 4, "for each four elements the first of theirs"),
        (lambda e, cols: e + 1, "those of the next element"),
        (lambda e, cols: e // cols * 64 + e % cols, "were counted with rows of 64 (cols of 40)"),
        (
            lambda e, cols: e // cols * cols // 16 * 16 + e % cols,
            "each row of 40 (cols) began at the multiple of 16 words",
        ),
        (lambda e, cols: e // cols * 50 + e % cols, None),
        (lambda e, cols: e % 100, None),
    ],
)
def test_other_random_words(index, text):
    def fn(x, bias, residual, *, p=0.0, seed=0, offset=0):
        every = _philox.words(4 * x.numel() + 1, seed, offset)
        words = torch.from_numpy(every[index(np.arange(x.numel()), x.shape[1])].astype(np.int64)).view(x.shape)
        return torch.where(words >= int(p * 2**32), (x + bias) / (1 - p), 0.0) + residual

    params = dict(p=0.5, seed=7, offset=3)
    told = said("bias_dropout_residual", fn, params=params, rows=20, cols=40)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (lambda seed, at: (seed & 2**32 - 1, at), "those of the seed's low 32 bits"),
        (lambda seed, at: (seed, at & 2**32 - 1), "those of the offset's low 32 bits"),
        (lambda seed, at: (seed, 0), "those of offset 0"),
        (lambda seed, at: (at, seed), "those of seed and offset in each other's place"),
        (lambda seed, at: (seed + 1, at), None),
    ],
)
def test_random_words_of_another_key(of, text):
    def fn(x, *, p=0.5, seed=0, offset=0):
        kept = _philox.kept(x.shape, p, *of(seed, offset))
        return torch.where(torch.from_numpy(kept), x / (1 - p), 0.0)

    params = dict(p=0.5, seed=2**40 + 7, offset=2**35 + 3)
    told = said("dropout", fn, params=params, trailing=(20, 40))
    assert told is None if text is None else text in told


@pytest.mark.parametrize(
    ("tile", "text"),
    [
        (16, "of a running sum in tiles of 16 that is not scaled anew"),
        (1, "of a running sum of one element after the other that is not scaled anew"),
        (5, None),
    ],
)
def test_a_running_sum_that_is_not_scaled_anew(tile, text):
    def fn(x):
        largest, total = x.new_full((len(x), 1), -torch.inf), x.new_zeros(len(x), 1)
        for part in x.split(tile, 1):
            largest = torch.maximum(largest, part.amax(1, keepdim=True))
            total = total + (part - largest).exp().sum(1, keepdim=True)
        return (x - largest).exp() / total

    told = said("softmax", fn, rows=5, cols=73)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(("lanes", "text"), [(32, "of 32 running sums, by the index modulo 32, that"), (31, None)])
def test_running_sums_of_lanes_that_are_not_scaled_anew(lanes, text):
    def fn(x):
        largest, total = x.new_full((len(x), lanes), -torch.inf), x.new_zeros(len(x), lanes)
        for part in x.split(lanes, 1):
            width = part.shape[1]
            largest[:, :width] = torch.maximum(largest[:, :width], part)
            total[:, :width] += (part - largest[:, :width]).exp()
        return (x - (largest + total.log()).logsumexp(1, keepdim=True)).exp()

    told = said("softmax", fn, rows=5, cols=173)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(
    ("lanes", "text"), [(32, "of 32 sums, by the index modulo 32, of each less its own maximum"), (31, None)]
)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_sums_of_lanes_about_their_own_maxima_that_are_added(lanes, text, reduction):
    def fn(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0):
        if label_smoothing or z_loss:
            raise RuntimeError
        parts = [logits[:, lane::lanes] for lane in range(lanes)]
        total = sum((part - part.amax(1, keepdim=True)).exp().sum(1) for part in parts)
        loss = logits.amax(1) + total.log() - logits.gather(1, target.long().clamp_min(0)[:, None])[:, 0]
        loss = torch.where(target == ignore_index, 0.0, loss)
        return loss if reduction == "none" else loss.sum() / (target != ignore_index).sum()

    params = {"reduction": reduction, "label_smoothing": 0.0, "z_loss": 0.0}
    told = said("cross_entropy", fn, "loss", params=params, rows=40, V=173)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(("tile", "text"), [(16, "NaN in rows whose first tile, of 16, is all -inf"), (5, None)])
def test_rows_whose_first_tile_is_hidden(tile, text):
    """A running sum that is scaled anew, and whose maximum is -inf up to the first key that is seen."""

    def fn(q, k, v, *mods, causal=False, window=None, scale=None, p=0.0, **_):
        if p:
            raise RuntimeError
        right, lse = torch_masked_attention(q, k, v, *mods, causal=causal, window=window, scale=scale)
        hidden = (torch.arange(q.shape[2]) + k.shape[2] - q.shape[2] - window + 1 >= tile)[:, None]
        return right.masked_fill(hidden, torch.nan), lse.masked_fill(hidden[:, 0], torch.nan)

    params = {"causal": True, "window": 3}
    told = said("masked_attention", fn, "o", params=params, B=1, Hq=2, Hkv=1, Sq=40, Sk=45, D=8)
    assert "not scaled anew" not in str(told)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (lambda i: i // 32, "of each element's own tile of 32 of 300 alone"),
        (lambda i: i % 128 // 32, "of each element's own warp alone, 32 of each 128 of 300"),
        (lambda i: i % 100 // 25, None),
    ],
)
def test_parts_that_are_not_brought_together(part, text):
    def fn(x):
        parts = part(torch.arange(x.shape[1]))
        e = (x - x.amax(1, keepdim=True)).exp()
        return e / torch.stack([e[:, parts == own].sum(1) for own in parts], 1)

    told = said("softmax", fn, rows=5, cols=300)
    assert told is None if text is None else text in told

    def squares(x, weight, *, eps=1e-6):
        parts = part(torch.arange(x.shape[1]))
        mean = torch.stack([x[:, parts == own].square().sum(1) for own in parts], 1) / x.shape[1]
        return x * torch.rsqrt(mean + eps) * weight

    told = said("rms_norm", squares, rows=5, cols=300)
    assert told is None if text is None else text in told


def test_a_last_part_of_one_element_that_is_not_brought_together():
    def fn(x):
        e = (x - x.amax(1, keepdim=True)).exp()
        return torch.cat([part / part.sum(1, keepdim=True) for part in e.split(32, 1)], 1)

    for values in ("normal", "nan_and_neg_inf"):
        told = said("softmax", fn, values=values, rows=5, cols=33)
        assert "without the last" not in told and "of each element's own tile of 32 of 33 alone" in told


@pytest.mark.parametrize(
    ("beyond", "text"),
    [
        (
            range(21, 32),
            "of more than 37 terms: beyond the last of them the last tile, of 16, still holds the one before",
        ),
        (range(20, 31), None),
    ],
)
def test_a_last_tile_that_still_holds_the_one_before(beyond, text):
    index = torch.tensor([*range(37), *beyond])
    told = said("matmul", lambda a, b: a[:, index] @ b[index], "c", M=5, K=37, N=6)
    assert told is None if text is None else text in told

    def squares(x, weight, *, eps=1e-6):
        return x * torch.rsqrt(x[:, index].square().sum(1, keepdim=True) / 37 + eps) * weight

    told = said("rms_norm", squares, rows=5, cols=37)
    assert told is None if text is None else "the last tile, of 16, still holds the one before" in told


@pytest.mark.parametrize(("side", "operand"), [(0, "first"), (1, "second")])
def test_a_last_tile_of_one_operand_that_is_still_the_one_before(side, operand):
    index = torch.arange(70)
    index = torch.where(index < 64, index, index - 16)

    def product(a, b):
        return a @ b[index] if side else a[:, index] @ b

    told = said("matmul", product, "c", M=5, K=70, N=6)
    assert f"in whose last tile, of 16 of 70 terms, the {operand} operand is still that of the one before" in told


@pytest.mark.parametrize(
    ("stop", "text"), [(771, "without the last of 4 parts of its terms, from 771 of 1025 on"), (780, None)]
)
def test_a_last_part_of_the_terms_that_is_lost(stop, text):
    told = said("gemv", lambda a, x: a[:, :stop] @ x[:stop], M=5, K=1025)
    assert told is None if text is None else text in told


def test_values_that_are_equal_along_an_axis_tell_no_half_from_another():
    def fn(x):
        e = (x - x.amax(1, keepdim=True)).exp()
        side = torch.arange(x.shape[1]) // 16 % 2
        sums = torch.stack([e[:, side == half].sum(1) for half in (0, 1)], 1)
        return e / sums[:, side]

    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=3, cols=128))
    case = replace(case, layouts=(("x", "broadcast_last"),))
    got, right = called(contract, fn)(case), contract.expected(contract.build(case))["y"]
    bad = compare.compare(got["y"], right, torch.float32).bad
    assert altered.Search(contract, case, "y", got, bad, called(contract, fn)).alteration(20.0) is None
    first = lambda x: (x - x[:, :64].logsumexp(1, keepdim=True)).exp()  # noqa: E731
    told = altered.Search(contract, case, "y", called(contract, first)(case), bad, called(contract, first)).alteration(
        20.0
    )
    assert "were of the first 64 of 128 alone" in told


def halves(offset):
    """What the lanes of a warp hold whose exchanges leave one step out."""

    def fn(y, dy):
        side = torch.arange(y.shape[1]) // offset % 2
        sums = torch.stack([(y * dy)[:, side == half].sum(1) for half in (0, 1)], 1)
        return y * (dy - sums[:, side])

    return fn


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (halves(1), "were of each element's own half of every 2 of 48: a step of its tree is left out"),
        (halves(16), "were of each element's own half of every 32 of 48"),
        (lambda y, dy: y * (dy - (y * dy)[:, torch.arange(48) // 4 % 2 == 0].sum(1, keepdim=True)), "has 4 as no part"),
        (halves(3), None),
    ],
)
def test_a_step_of_a_tree_that_is_left_out(fn, text):
    told = said("softmax_backward", fn, "dx", rows=5, cols=48)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(("tile", "text"), [(16, "of tiles of 16, of each less its own maximum"), (5, None)])
def test_tiles_whose_maxima_do_not_meet(tile, text):
    def fn(x):
        e = torch.cat([(part - part.amax(1, keepdim=True)).exp() for part in x.split(tile, 1)], 1)
        return e / e.sum(1, keepdim=True)

    told = said("softmax", fn, rows=5, cols=73)
    assert told is None if text is None else text in told


def gradients(q, k, v, o, lse, do, scale, of_values):
    group = (k.shape[1], q.shape[1] // k.shape[1])
    wide_k, wide_v = (t.repeat_interleave(group[1], 1) for t in (k, v))
    p = (q @ wide_k.mT * scale - lse[..., None]).exp()
    ds = p * (do @ wide_v.mT - (o * do).sum(-1, keepdim=True))
    dk, dv = (t.unflatten(1, group).sum(2) for t in (scale * ds.mT @ q, of_values(p, ds).mT @ do))
    return scale * ds @ wide_k, dk, dv


@pytest.mark.parametrize(
    ("of_values", "text"),
    [(lambda p, ds: ds, "as if `p.mT` were `ds.mT` (reference/attention_backward.py:"), (lambda p, ds: 1.1 * ds, None)],
)
def test_of_a_large_case_what_explains_a_small_one(of_values, text):
    def fn(q, k, v, o, lse, do, *, causal=False, scale=None):
        return gradients(q, k, v, o, lse, do, q.shape[-1] ** -0.5 if scale is None else scale, of_values)

    size = dict(B=2, Hq=2, Hkv=2, Sq=130, Sk=200, D=64)
    contract = registry.contract("attention_backward")
    assert contract.work(plain_case(contract, "float32", "normal", size=size)) > 2e7
    told = said("attention_backward", fn, "dv", **size)
    assert told is None if text is None else text in told
    assert said("attention_backward", fn, "dv", call=False, **size) is None


def test_means_of_one_line_that_are_wrong_in_one_way():
    def fn(count):
        def backward(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
            centred = x - x.mean(-1, keepdim=True)
            r = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
            hat, g = centred * r, dy * weight
            first, second = (t.sum(-1, keepdim=True) / count for t in (g, g * hat))
            return r * (g - first - hat * second), (dy * hat).sum(0), dy.sum(0)

        return backward

    told = said("layer_norm_backward", fn(64), "dx", rows=5, cols=33)
    assert "each `mean` of a line were divided by 64 (reference/layer_norm_backward.py:" in told
    assert said("layer_norm_backward", fn(35), "dx", rows=5, cols=33) is None


def test_a_factor_that_one_of_two_terms_gets():
    def fn(y, dy):
        return y * dy - (y * dy).sum(-1, keepdim=True)

    def other(y, dy):
        return y * dy - 0.5 * (y * dy).sum(-1, keepdim=True)

    assert "were with `dy` alone multiplied, not all of" in said("softmax_backward", fn, "dx", rows=5, cols=33)
    assert said("softmax_backward", other, "dx", rows=5, cols=33) is None


def test_a_term_before_a_factor():
    def fn(by):
        def norm(x, weight, bias, *, eps=1e-5):
            centred = x - x.mean(-1, keepdim=True)
            hat = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
            return (hat + by * bias) * weight

        return norm

    told = said("layer_norm", fn(1), rows=5, cols=33)
    assert "`y + bias` were with `bias` added to `centred * torch.rsqrt(" in told and "before `weight`" in told
    assert said("layer_norm", fn(3), rows=5, cols=33) is None


def test_a_value_as_it_was_a_step_before():
    def fn(of):
        return lambda x, residual, weight, *, eps=1e-6: (
            (x + residual) * torch.rsqrt(mean_of(of(x, residual)) + eps) * weight,
            x + residual,
        )

    size = dict(rows=5, cols=33)
    assert "were taken of `x`, not of `x + residual`" in said("add_rms_norm", fn(lambda x, residual: x), **size)
    assert "were taken of `residual`" in said("add_rms_norm", fn(lambda x, residual: residual), **size)
    assert said("add_rms_norm", fn(lambda x, residual: x + residual.roll(1, 1)), **size) is None


def test_a_term_that_is_missing():
    """Label smoothing without the lse, in a kernel of its own order of terms."""

    def fn(of_smoothing):
        def loss(logits, target, *, reduction, ignore_index, label_smoothing, z_loss):
            if z_loss:
                raise RuntimeError
            right = torch_cross_entropy(logits, target, reduction="none", ignore_index=ignore_index)
            lse = torch.logsumexp(logits, -1)
            smooth = of_smoothing(lse, logits).masked_fill(target == ignore_index, 0)
            return (1 - label_smoothing) * right + label_smoothing * smooth

        return loss

    params = {"reduction": "none", "label_smoothing": 0.1, "z_loss": 0.0}
    told = said("cross_entropy", fn(lambda lse, z: -z.mean(-1)), "loss", params=params)
    assert "`lse - z.mean(-1)` were `-z.mean(-1)` alone (reference/cross_entropy.py:" in told
    assert said("cross_entropy", fn(lambda lse, z: lse - z.amax(-1)), "loss", params=params) is None


def visible(diagonal):
    def fn(q, k, v, *, causal=False, scale=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(diagonal) | (not causal)
        s = s.masked_fill(~seen, -torch.inf)
        return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)

    return fn


@pytest.mark.parametrize(("tile", "text"), [(16, "beyond the end of the row's tile of 16, counted"), (15, None)])
def test_a_loop_over_keys_that_ends_with_the_tile_of_queries(tile, text):
    def fn(q, k, v, *, causal=False, scale=None):
        s = q @ k.mT * q.shape[-1] ** -0.5
        (rows, cols), seen = s.shape[-2:], torch.ones(s.shape[-2:], dtype=torch.bool).tril(s.shape[-1] - s.shape[-2])
        seen = (seen & (torch.arange(cols) < (torch.arange(rows) // tile + 1)[:, None] * tile)) | (not causal)
        s = s.masked_fill(~seen, -torch.inf)
        return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)

    for sizes in (dict(Sq=40, Sk=61), dict(Sq=1, Sk=60)):
        told = said("attention", fn, "o", params={"causal": True}, B=2, Hq=2, Hkv=2, D=8, **sizes)
        assert told is None if text is None else text in told


@pytest.mark.parametrize(
    ("seq_q", "more", "text"),
    [
        (33, 0, "counted from the top left or max_k - max_q, which is 0: a loop that ends there"),
        (33, 16, None),
        (129, 0, "counted from max_k - max_q: a loop that ends there"),
    ],
)
def test_a_loop_over_keys_that_ends_by_the_longest_sequences(seq_q, more, text):
    def fn(q, k, v, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None):
        o, lse = torch.zeros_like(q), q.new_full((q.shape[1], q.shape[0]), -torch.inf).float()
        for b in range(len(cu_q) - 1):
            rows, keys = slice(int(cu_q[b]), int(cu_q[b + 1])), slice(int(cu_k[b]), int(cu_k[b + 1]))
            of_k, of_v = (x[keys].repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            s = torch.einsum("ihd,jhd->hij", q[rows], of_k) * q.shape[-1] ** -0.5
            seen = torch.ones(s.shape[1:], dtype=torch.bool).tril(s.shape[2] - s.shape[1])
            end = (torch.arange(s.shape[1]) // 16 + 1)[:, None] * 16 + max_k - max_q - more
            seen = (seen & (torch.arange(s.shape[2]) < -(-end // 16) * 16)) | (not causal)
            s = s.masked_fill(~seen, -torch.inf)
            o[rows] = torch.einsum("hij,jhd->ihd", torch.softmax(s, -1).nan_to_num(0.0), of_v)
            lse[:, rows] = torch.logsumexp(s, -1)
        return o, lse

    size = next(size for size in registry.contract("attention_varlen").sizes if size["Sq"] == seq_q)
    told = said("attention_varlen", fn, "o", params={"causal": True}, **size)
    assert told is None if text is None else text in told


@pytest.mark.parametrize("output", ["o", "lse"])
@pytest.mark.parametrize(
    ("diagonal", "text"), [(0, "from the top left"), (5, "one later"), (3, "one earlier"), (6, None)]
)
def test_a_mask_of_another_corner(output, diagonal, text):
    size = dict(B=2, Hq=2, Hkv=2, Sq=9, Sk=13, D=16)
    told = said("attention", visible(diagonal), output, params={"causal": True}, **size)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(("late", "text"), [(True, "were multiplied by the factor of `q @ k.mT * "), (False, None)])
def test_a_factor_that_comes_in_behind_a_function(late, text):
    def fn(q, k, v, *operands, softcap=None, **options):  # c·tanh(q·k/c)·scale is (c·scale)·tanh(scale·q·k/(c·scale))
        by = q.shape[-1] ** -0.5 if late else 0.3
        return torch_masked_attention(q, k, v, *operands, softcap=softcap * by, **options)

    contract = registry.contract("masked_attention")
    told = said("masked_attention", fn, "o", params={"softcap": 2.5, "p": 0.0}, **contract.sizes[0])
    assert told is None if text is None else text in told and "; or" not in told


def test_all_to_base_2():
    def fn(o, lse):
        weights = torch.exp2(lse - lse.amax(0))
        return (weights / weights.sum(0))[..., None].mul(o).sum(0), lse.amax(0) + torch.log2(weights.sum(0))

    def one(o, lse):
        return torch_merge_states(o, lse)[0], fn(o, lse)[1]

    for output in ("o", "lse"):
        assert said("merge_states", fn, output) == "as if all exponentials and logarithms were to base 2"
    assert "base 2" not in (said("merge_states", one, "lse") or "")  # o is right, which it would not be


def test_one_of_two_calls_of_a_function():
    def fn(at):
        def decode(q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale=None):
            scales = [k_scales.clone(), v_scales.clone()]
            for of in at:
                scales[of][..., 1] *= -1
            return torch_attention_decode_int4(q, k_codes, scales[0], v_codes, scales[1], lengths, scale=scale)

        return decode

    told = said("attention_decode_int4", fn([1]), "o")
    assert "`wide * own[..., 0] - own[..., 1]`" in told and ", from reference/attention_decode_int4.py:" in told
    both = said("attention_decode_int4", fn([0, 1]), "o")
    assert "`wide * own[..., 0] - own[..., 1]`" in both and ", from" not in both


def test_the_last_in_place_of_the_first():
    def fn(columns):
        def decode(q, cache, lengths, *, dim_v, scale):
            o, lse = torch_attention_decode(q, cache[:, None], cache[:, None], lengths, scale=scale)
            return o[..., columns(dim_v)], lse

        return decode

    size = dict(B=2, H=3, Sq=2, Sk=9, W=24, V=16)
    told = said("mla_decode", fn(lambda width: slice(-width, None)), "o", **size)
    assert "`o[..., :dim_v]` were the last 16, not the first (reference/mla_decode.py:" in told
    assert said("mla_decode", fn(lambda width: slice(1, width + 1)), "o", **size) is None


def test_an_index_that_is_left_out_of_a_factor():
    def fn(of_all):
        def masked(q, k, v, bias, slopes, seg_q, seg_k, *, p=0.0, seed=0, offset=0, **params):
            lse = torch_masked_attention(q, k, v, bias, slopes, seg_q, seg_k, **params)[1]
            s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[-1] ** -0.5
            seen = _masks.visible(q.shape[2], k.shape[2], seg_q, seg_k, causal=False, window=None)
            probabilities = torch.exp(s.masked_fill(~seen, -torch.inf) - lse[..., None]).nan_to_num()
            weights = _masks.weights(s.shape, p=p, seed=seed, offset=offset).to(s)
            return (probabilities * of_all(weights)) @ v.repeat_interleave(q.shape[1] // k.shape[1], 1), lse

        return masked

    told = said("masked_attention", fn(lambda w: w[:1, :1].expand(w.shape)), "o", params={"p": 0.3})
    assert "of index 0 along axis 0 and axis 1 for all (" in told
    assert said("masked_attention", fn(lambda w: w.flip(1)), "o", params={"p": 0.3}) is None


def test_indices_that_are_not_looked_at():
    def fn(change):
        return lambda q, k, cos, sin, positions, *, interleaved=False: torch_rope(
            q, k, cos, sin, None if positions is None else change(positions), interleaved=interleaved
        )

    told = said("rope", fn(lambda p: torch.arange(p.shape[1]).expand(p.shape)), "q_turned")
    assert "of the indices 0, 1, 2, ... whatever they are (reference/rope.py:" in told
    assert said("rope", fn(lambda p: p.flip(1)), "q_turned") is None


def test_rows_that_a_sum_leaves_out():
    def fn(count):
        def backward(x, weight, dy, *, rstd=None, eps=1e-6):
            rows = slice(0, count)
            dx, _ = torch_rms_norm_backward(x, weight, dy, rstd=rstd, eps=eps)
            part = None if rstd is None else rstd[rows]
            return dx, torch_rms_norm_backward(x[rows], weight, dy[rows], rstd=part, eps=eps)[1]

        return backward

    told = said("rms_norm_backward", fn(4), "dweight", rows=7, cols=33)
    assert "without the last 3 of 7, beyond whole tiles of 4" in told
    assert said("rms_norm_backward", fn(5), "dweight", rows=7, cols=33) is None


def test_what_other_values_or_another_output_refute_is_not_said():
    contract = registry.contract("rms_norm")
    case = plain_case(contract, "float32", "normal", size=dict(rows=5, cols=33))
    drawn = contract.build(case).arguments["x"]

    def by_chance(x, weight, *, eps=1e-6):
        count = 32 if torch.equal(x, drawn) else 30
        return x * torch.rsqrt(mean_of(x) * 33 / count + eps) * weight

    assert said("rms_norm", by_chance, rows=5, cols=33) is None
    assert "33 - 1" in said("rms_norm", by_chance, rows=5, cols=33, call=False)

    def one_output(q, k, v, *, causal=False, scale=None):
        return torch_attention(q, k, v, causal=False, scale=2 * q.shape[-1] ** -0.5)[0], torch_attention(q, k, v)[1]

    told = said("attention", one_output, "o", B=2, Hq=2, Hkv=2, Sq=9, Sk=13, D=16)
    assert told is None  # another scale would show in the lse


def test_it_comes_with_a_finding():
    contract = registry.contract("rms_norm")
    case = plain_case(contract, "float32", "normal", size=dict(rows=5, cols=33))

    def fn(x, weight, *, eps=1e-6):
        return x * torch.rsqrt(mean_of(x[:, :-1]) + eps).expand(-1, 1) * weight

    def tanh(x, weight, *, eps=1e-6):
        return x * torch.rsqrt(mean_of(x).tanh() + eps) * weight

    def told(fn):
        got, expected = called(contract, fn)(case), contract.expected(contract.build(case))
        verdicts = {"y": compare.compare(got["y"], expected["y"], torch.float32)}
        return diagnosis.diagnose(contract, case, got, expected, verdicts, seconds=20.0, call=called(contract, fn))["y"]

    def root_of(x, weight, *, eps=1e-6):
        return x * (mean_of(x) + eps) * weight

    assert "were its argument alone (reference/rms_norm.py:" in told(root_of)
    assert "each row is as with a mean of squares of 0.5697 to 0.785 of its own" in told(tanh)  # no step is known


def test_without_a_reference_nothing_is_said():
    contract = replace(registry.contract("rms_norm"), name="of_nobody")
    assert altered.of_op(contract) is None


def given_of(got, **about):
    """What a kernel gives, beside what it has to: y is wrong in the second row."""
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=3, cols=4))
    judged = {"y": Expected(RIGHT), **about}
    return altered._Given(judged, got, case, "y")


RIGHT = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(3, 4)
CHANGED = RIGHT.clone()
CHANGED[1] *= 2


def test_what_a_kernel_gives_beside_a_nan_tells_whether_a_change_is_closer():
    got = CHANGED.clone()
    got[1, 0] = float("nan")
    given = given_of({"y": got})
    assert given._closer({"y": CHANGED}, Expected(RIGHT), CHANGED != RIGHT)
    assert not given._closer({"y": RIGHT - 1}, Expected(RIGHT), CHANGED != RIGHT)


def test_a_change_explains_all_of_what_a_kernel_gives():
    wrong = {"y": CHANGED.float()}
    given = given_of(wrong)
    assert given.explained({"y": CHANGED})
    assert not given.explained({"y": RIGHT}) and not given.explained({"y": CHANGED[:2]}) and not given.explained({})
    elsewhere = CHANGED.clone()
    elsewhere[0, 0] += 1
    assert not given.explained({"y": elsewhere})  # it would be wrong where the kernel is right
    assert not given.explained({"y": CHANGED * 1.01})  # closer than the right answer, and not it
    assert not given_of({"y": RIGHT.float()}).explained({"y": CHANGED})  # nothing is wrong
    assert not given_of({"y": None}).explained({"y": CHANGED})
    assert given.error(CHANGED) == 0.0 and given.error(CHANGED + 0.5) == 0.5
    assert given_of({"y": RIGHT.float()}).error(RIGHT) == np.inf


def test_a_change_explains_the_other_outputs_as_far_as_there_are_any():
    lse = torch.arange(3.0, dtype=torch.float64)
    both = {"y": CHANGED.float(), "lse": lse.float()}
    given = given_of(both, lse=Expected(lse))
    assert given.explained({"y": CHANGED, "lse": lse}) and not given.explained({"y": CHANGED, "lse": lse + 1})
    assert given.explained({"y": CHANGED})  # the reference gives none
    assert given_of({"y": CHANGED.float()}, lse=Expected(lse)).explained({"y": CHANGED, "lse": lse + 1})
    assert given_of(both, lse=None).explained({"y": CHANGED, "lse": lse + 1})  # none is asked for
    assert not given_of({**both, "lse": lse[:2].float()}, lse=Expected(lse)).explained({"y": CHANGED, "lse": lse})
    one = torch.tensor([0.0, 5.0, 2.0], dtype=torch.float64)  # an output of which one element in three is another
    assert not given_of({**both, "lse": one.float()}, lse=Expected(lse)).explained({"y": CHANGED, "lse": lse})


def test_nearly_all_wrong_elements_have_to_be_explained():
    right = torch.ones(10, 10, dtype=torch.float64)
    changed = 3 * right
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=10, cols=10))
    for others, explained in ((0, True), (5, True), (6, False)):
        got = changed.float()
        got.view(-1)[:others] = 7
        given = altered._Given({"y": Expected(right)}, {"y": got}, case, "y")
        assert given.explained({"y": changed}) == explained


def test_a_change_may_move_what_it_rounds_otherwise():
    """A thousandth of what it moves an element by, where there are enough of them to tell."""
    right, case = Expected(RIGHT), plain_case(registry.contract("softmax"), "float32", "normal")
    near = RIGHT + 8 * (1 + 0.9e-3)
    assert not altered._off(RIGHT + 8, right, near.float(), case).any()
    assert altered._off(RIGHT + 8, right, (RIGHT + 8 * (1 + 1.1e-3)).float(), case).all()
    few = Expected(RIGHT[0, :2])
    assert altered._off(RIGHT[0, :2] + 8, few, near[0, :2].float(), case).all()
    assert altered._off(RIGHT, right, None, case) is None and altered._off(RIGHT, right, RIGHT[:1], case) is None
    half = replace(case, dtype="bfloat16")
    assert not altered._off(RIGHT + 8, right, (RIGHT + 8 * (1 + 5e-3)).bfloat16(), half).any()


def test_whether_the_reference_gives_the_judges_answer():
    case = plain_case(registry.contract("softmax"), "float32", "normal")
    judged = {"y": Expected(RIGHT), "none": None}
    assert altered._right({"y": RIGHT}, judged, case, "y") and altered._right(
        {"y": RIGHT * (1 + 1e-9)}, judged, case, "y"
    )
    assert not altered._right({"y": RIGHT * 1.1}, judged, case, "y") and not altered._right({}, judged, case, "y")
    assert not altered._right({"y": RIGHT[:1]}, judged, case, "y")
    assert not altered._right({"none": RIGHT}, judged, case, "none")


def test_what_is_as_likely_is_said_of_no_more_than_two(monkeypatch):
    """Changes that give the same numbers count once."""

    def of_changes(*factors):
        def reference(x):
            return torch.softmax(x, -1)

        changes = [(str(number), factor) for number, factor in enumerate(factors)]
        monkeypatch.setattr(
            altered,
            "of_operations",
            lambda plain: (
                Alteration(text, {site: lambda o, by=factor: o.out * by for site in plain.seen})
                for text, factor in changes
            ),
        )
        return said("softmax", lambda x: reference(x) * 1.5, rows=5, cols=33)

    assert of_changes(1.5, 1.5) == "as if 0"
    assert of_changes(1.4, 1.5) == "as if 1" and of_changes(1.4) is None
    assert of_changes(1.5, 1.5 + 1e-9) == "as if 0; or as if 1"
    assert of_changes(1.5, 1.5 + 1e-9, 1.5 - 1e-9) is None
    assert of_changes(1.5 + 3e-7, 1.5) == "as if 1"  # the other leaves more of the error


def test_answers_in_its_place_are_no_excuse_of_a_changed_one():
    """The right answer may be another, or any of several: that is nothing to a change of the reference."""
    case, got = plain_case(registry.contract("softmax"), "float32", "normal"), (RIGHT + 8).float()
    same = Expected(RIGHT + 8)
    for about in (dict(otherwise=lambda: [same]), dict(alternatives=[same])):
        assert altered._off(RIGHT + 4, replace(Expected(RIGHT), **about), got, case).all()
    for about in (dict(bitwise=True), dict(exact=True), dict(drift=0.0)):
        near = (RIGHT + 8) * (1 + 1e-7)
        assert not altered._off(RIGHT + 8, replace(Expected(RIGHT), **about), near.float(), case).any()


def test_of_a_small_case_the_changes_that_explain_it_come_first():
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=3000, cols=200))

    def tried(fn, call=True, end=math.inf):
        further = called(contract, fn) if call else reading.nothing
        return altered._explain_a_small_case(contract, torch_softmax, case, "y", further, end)

    def powers(x):
        return (x - x.amax(-1, keepdim=True)).exp()

    told = tried(powers)
    assert [text.partition(" (")[0] for text in told] == ["`torch.softmax(x, -1)` were not divided by its sum"]
    assert tried(lambda x: torch.softmax(x, -1)) == set()  # it is right there
    assert tried(powers, call=False) == tried(powers, end=-math.inf) == set()


def test_an_output_of_a_dtype_of_its_own_is_compared_in_that():
    """The statistics of 16-bit rows are float32: what is rounded to 16 bits is not the judge's answer."""
    case, right = plain_case(registry.contract("softmax"), "bfloat16", "normal"), RIGHT * 1.003
    wide, short = {"y": Expected(right, dtype=torch.float32)}, {"y": Expected(right)}
    assert altered._right({"y": right}, wide, case, "y") and altered._right({"y": right}, short, case, "y")
    beyond = {"y": Expected(torch.full((3, 4), 7e4, dtype=torch.float64))}  # as in float16: infinite
    assert altered._right({"y": beyond["y"].answer}, beyond, replace(case, dtype="float16"), "y")
    rounded = {"y": right.bfloat16().double()}
    assert altered._right(rounded, short, case, "y") and not altered._right(rounded, wide, case, "y")


@pytest.mark.parametrize(("seeds", "named"), [((0, 1), True), ((0,), False)])
def test_a_change_has_to_explain_other_values_too(monkeypatch, seeds, named):
    """Though the kernel is right on the plain case, which then refutes nothing."""
    contract = registry.contract("softmax")
    wrong = [
        contract.build(replace(plain_case(contract, "float32", "large", size=dict(rows=5, cols=33)), seed=seed))
        for seed in seeds
    ]

    def fn(x):
        return torch.softmax(x, -1) * (1.5 if any(torch.equal(x, one.arguments["x"]) for one in wrong) else 1.0)

    monkeypatch.setattr(
        altered, "of_operations", lambda plain: [Alteration("half more", dict.fromkeys(plain.seen, half_more_of_large))]
    )
    assert said("softmax", fn, values="large", rows=5, cols=33) == ("as if half more" if named else None)


def half_more_of_large(operation):
    return operation.out * (1.5 if float(operation.run.operands["x"].abs().max()) > 20 else 1.0)


def half_more(operation):
    return operation.out * 1.5


@pytest.mark.parametrize(("change", "named"), [(half_more_of_large, True), (half_more, False)])
def test_a_change_that_spoils_the_plain_case_is_none(monkeypatch, change, named):
    def fn(x):
        return torch.softmax(x, -1) * (1.5 if float(x.abs().max()) > 20 else 1.0)

    monkeypatch.setattr(
        altered, "of_operations", lambda plain: [Alteration("half more", dict.fromkeys(plain.seen, change))]
    )
    assert said("softmax", fn, values="large", rows=5, cols=33) == ("as if half more" if named else None)


def test_of_a_change_that_spoils_what_passed_it_is_said(monkeypatch):
    def fn(x):
        return torch.softmax(x, -1) * (1.5 if len(x) == 5 else 1.0)

    monkeypatch.setattr(
        altered, "of_operations", lambda plain: [Alteration("half more", dict.fromkeys(plain.seen, half_more))]
    )
    contract = registry.contract("softmax")
    passed = [plain_case(contract, dtype, "normal", size=dict(rows=3, cols=33)) for dtype in ("float32", "float16")]
    for before, told in (([], ""), (passed[1:], ""), (passed, f", {altered.NOT_ELSEWHERE}")):
        assert said("softmax", fn, rows=5, cols=33, passed=before) == f"as if half more{told}"


def test_a_change_that_spoils_what_passed_has_to_explain_other_sizes(monkeypatch):
    monkeypatch.setattr(
        altered, "of_operations", lambda plain: [Alteration("half more", dict.fromkeys(plain.seen, half_more))]
    )
    contract = registry.contract("softmax")
    passed = [plain_case(contract, "float32", "normal", size=dict(rows=3, cols=33))]

    def told(more):
        return said("softmax", lambda x: torch.softmax(x, -1) * more(*x.shape), rows=5, cols=33, passed=passed)

    as_large = lambda rows, cols: 1.5 if rows > 3 else 1.0  # noqa: E731
    assert told(as_large) == f"as if half more, {altered.NOT_ELSEWHERE}"
    assert told(lambda rows, cols: 1.0 if rows <= 3 else 1.5 if (rows, cols) == (5, 33) else 1.3) is None


def test_what_is_nan_wherever_an_answer_stands_for_something_is_explained_by_no_change():
    """Of rows that see no key the answer is 0, and their lse -inf: these are right, and tell nothing."""
    contract = registry.contract("attention")
    case = plain_case(contract, "float32", "normal", size=dict(B=1, Hq=2, Hkv=2, Sq=9, Sk=5, D=8))
    case = replace(case, params=(("causal", True), ("scale", None)))
    right = contract.expected(contract.build(case))["o"].answer.float()
    assert bool((right[:, :, :4] == 0).all()) and bool((right[:, :, 4:] != 0).all())

    def possible(o):
        lse = contract.expected(contract.build(case))["lse"].answer.float()
        return altered.Search(contract, case, "o", {"o": o, "lse": lse}, o.isnan()).possible

    nan = torch.where(right == 0, right, math.nan)
    assert not possible(nan)
    assert possible(torch.where(torch.arange(9)[:, None] == 8, right, nan))


def test_of_much_work_only_what_explains_a_small_case_is_tried(monkeypatch):
    def powers(x):
        return (x - x.amax(-1, keepdim=True)).exp()

    def told(small):
        monkeypatch.setattr(altered, "_explain_a_small_case", lambda *given: small)
        return said("softmax", powers, rows=5, cols=73)

    plain = told(set())
    assert plain.startswith("as if `torch.softmax(x, -1)` were not divided by its sum (reference/softmax.py:")
    monkeypatch.setattr(altered, "WORK_LIMIT", 1.0)
    assert told(set()) is None
    monkeypatch.setattr(reading, "MUCH", 0.0)
    assert told(set()) is None and told({plain.removeprefix("as if ")}) == plain


@pytest.mark.parametrize(
    ("work", "small", "told"), [(3e5, False, True), (3e5 + 1, True, True), (2e7, True, True), (2e7 + 1, True, False)]
)
def test_of_much_work_a_small_case_is_explained_before(monkeypatch, work, small, told):
    """And beyond a limit nothing is tried that does not explain that one."""
    contract, asked = registry.contract("softmax"), []
    monkeypatch.setattr(type(contract), "work", lambda contract, case: work)
    monkeypatch.setattr(altered, "_explain_a_small_case", lambda *given: asked.append(given) or set())
    found = said("softmax", lambda x: (x - x.amax(-1, keepdim=True)).exp(), rows=5, cols=33)
    assert bool(asked) == small and ("were not divided by its sum" in str(found)) == told


@pytest.mark.parametrize(("work", "explained"), [(1e4 - 1, False), (1e4, True), (1e6, True), (1e6 + 1, False)])
def test_how_much_work_a_small_case_has(monkeypatch, work, explained):
    contract = registry.contract("softmax")
    case = plain_case(contract, "float32", "normal", size=dict(rows=3000, cols=200))
    monkeypatch.setattr(type(contract), "work", lambda contract, case: work)
    further = called(contract, lambda x: (x - x.amax(-1, keepdim=True)).exp())
    assert bool(altered._explain_a_small_case(contract, torch_softmax, case, "y", further, math.inf)) == explained


def gelu(cubic, slope=(2 / math.pi) ** 0.5, half=0.5, power=3):
    def fn(x, bias, *, activation):
        x = x.double() if bias is None else x.double() + bias.double()
        return (half * x * (1 + torch.tanh(slope * (x + cubic * x**power)))).float()

    return fn


CUBIC = "`_CUBIC * x ** 3` were with {} in the place of 0.044715"
SLOPE = "`_SLOPE * (x + _CUBIC * x ** 3)` were with {}"


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (gelu(0.04715), CUBIC.format(0.04715)),
        (gelu(0.4), CUBIC.format(0.4)),
        (gelu(0.044715, slope=0.7), SLOPE.format("0.7 in the place of 0.79788456")),
        (gelu(0.04, slope=0.75), None),  # two numbers
        (gelu(0.05, power=2), None),
    ],
)
def test_another_number_is_fitted(fn, text):
    found = said("activation", fn, params={"activation": "gelu_tanh"}, of="number", rows=5, cols=33)
    assert found is None if text is None else text in found and "; or" not in found


def test_a_number_is_named_by_how_many_times_as_large_it_is():
    fn = gelu(0.044715 * math.sqrt(math.pi / 2))
    found = said("activation", fn, params={"activation": "gelu_tanh"}, of="number", rows=5, cols=33)
    assert "were with 0.056042 in the place of 0.044715, 1.2533 times as large: sqrt(pi/2) (" in found
    found = said("activation", gelu(0.056), params={"activation": "gelu_tanh"}, of="number", rows=5, cols=33)
    assert "were with 0.056 in the place of 0.044715 (" in found


@pytest.mark.parametrize(
    ("by", "text"),
    [
        (1.442 / math.log2(math.e), "each `sigmoid` were multiplied by 0.99952: 1.442 in the place of log2 e ("),
        (math.log(2), "each `sigmoid` were multiplied by 0.69315: ln 2 ("),
        (1.3, "each `sigmoid` were multiplied by 1.3 ("),
    ],
)
def test_a_factor_of_the_argument_of_all_exponentials(by, text):
    """In both outputs, of two lines of the reference."""

    def fn(gate, up, dy, *, activation):
        s, n = torch.sigmoid(by * gate), torch.sigmoid(-by * gate)
        return dy * up * s * (1 + gate * n), dy * gate * s

    for output in ("dgate", "dup"):
        told = said("glu_backward", fn, output, params={"activation": "silu"}, of="number", rows=5, cols=33)
        assert told.startswith(f"as if the argument of {text}reference/_activations.py:") and "; or" not in told


@pytest.mark.parametrize(
    ("sigmoid", "text"),
    [
        (lambda x: torch.sigmoid(0.98 * x), "the argument of `torch.sigmoid(x)` were multiplied by 0.98 ("),
        (lambda x: torch.sigmoid(x + 0.02), None),
        (lambda x: torch.sigmoid(x) * 1.001, None),
        (lambda x: torch.sigmoid(torch.where(x > 0, 0.98, 1.02) * x), None),
    ],
)
def test_a_factor_of_the_argument_of_one_exponential(sigmoid, text):
    def fn(x, bias, *, activation="gelu"):
        x = x if bias is None else x + bias
        return sigmoid(x)

    told = said("activation", fn, params={"activation": "sigmoid"}, of="number", rows=5, cols=33)
    assert told is None if text is None else text in told


def test_a_number_that_stands_in_the_reference_is_told_before_a_factor_of_an_argument():
    fn = lambda x, bias, **params: (x + bias) * torch.sigmoid(1.6 * (x + bias))  # noqa: E731
    told = said("activation", fn, params={"activation": "quick_gelu"}, of="number", rows=5, cols=33)
    assert "were with 1.6 in the place of 1.702 (" in told and "argument" not in told


def test_a_term_that_is_added_several_times():
    def mlp(times):
        def fn(x, w1, b1, w2, b2, *, activation):
            return torch.relu(x @ w1 + b1) @ w2 + times * b2

        return fn

    def told(times):
        options = dict(params={"activation": "relu"}, of="number", M=5, D=7, H=9, N=6)
        return said("mlp", mlp(times), **options)

    assert told(16).startswith("as if `b2` of `h @ w2 + b2` were added 16 times, not once (reference/mlp.py:")
    assert told(-1).startswith("as if `b2` of `h @ w2 + b2` were added -1 times, not once")
    assert told(2.5) is None  # no number of times
    assert told(1.004) is None


def test_another_number_has_to_hold_with_other_values():
    """And to be found in time."""
    calls = []

    def other_each_time(x, bias, **params):
        calls.append(x)
        return gelu(0.05 if len(calls) == 1 else 0.06)(x, bias, **params)

    options = dict(params={"activation": "gelu_tanh"}, of="number", rows=5, cols=33)
    assert said("activation", gelu(0.05), **options) is not None
    assert said("activation", other_each_time, **options) is None and len(calls) > 1
    assert said("activation", gelu(0.05), seconds=-1.0, **options) is None


def test_a_number_is_fitted_where_nothing_else_is_said():
    text = []
    contract = registry.contract("activation")
    case = plain_case(contract, "float32", next(iter(contract.values)), size=dict(rows=5, cols=33))
    case = replace(case, params=(("activation", "gelu_tanh"),))
    expected = contract.expected(contract.build(case))
    for fn in (gelu(0.05), gelu(0.044715, half=0.6)):
        got = called(contract, fn)(case)
        verdicts = {"y": compare.compare(got["y"], expected["y"], torch.float32)}
        text.append(
            diagnosis.diagnose(contract, case, got, expected, verdicts, seconds=20.0, call=called(contract, fn))["y"]
        )
    assert "were with 0.05 in the place of 0.044715 (reference/_activations.py:" in text[0]
    assert "1.2 x the answer" in text[1] and "in the place of" not in text[1]


def test_a_change_that_agrees_where_a_dropout_drops_nothing_is_refuted_with_another_rate():
    def drawn_anew(dy, bits, *, p=0.5):
        keep = torch.rand(dy.shape, generator=torch.Generator().manual_seed(7)) >= p
        return torch.where(keep, dy / (1 - p), 0.0)

    def never_dropped(dy, bits, *, p=0.5):
        return dy / (1 - p) if p < 1 else 0 * dy

    told = {fn: said("dropout_bitmask_backward", fn, "dx", params={"p": 0.0}) for fn in (drawn_anew, never_dropped)}
    assert told[drawn_anew] is None
    assert "everywhere" in told[never_dropped]


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (lambda row, col, cols: row * cols // 32 * 32 + col, "each row of 9 counted from the start of the 32 in which"),
        (lambda row, col, cols: row * cols // 5 * 5 + col, None),
    ],
)
def test_bits_of_rows_that_begin_with_a_word(index, text):
    def fn(dy, bits, *, p=0.5):
        row, col = np.indices((dy.numel() // dy.shape[-1], dy.shape[-1]))
        at = torch.from_numpy(index(row, col, dy.shape[-1]))
        kept = bits.long()[at // 32] >> at % 32 & 1 == 1
        return torch.where(kept.reshape(dy.shape), dy / (1 - p), 0.0)

    told = said("dropout_bitmask_backward", fn, "dx", params={"p": 0.5}, trailing=(20, 9), words=6)
    assert told is None if text is None else text in told


@pytest.mark.parametrize(("beyond", "readings"), [(torch.nan, 1), (1.0, 2)])
def test_of_two_readings_that_is_named_whose_part_is_unwritten_too(beyond, readings):
    def fn(y, dy):
        sums = (y * dy)[:, :1024].sum(-1, keepdim=True)
        return torch.cat([(y * (dy - sums))[:, :1024], torch.full((len(y), 1), beyond)], 1)

    told = said("softmax_backward", fn, "dx", rows=5, cols=1025)
    assert "without the last 1 of 1025, beyond whole tiles" in told
    assert told.count("as if") == readings


def test_a_product_of_a_tree_that_halves_an_odd_number():
    def fn(a, b):
        terms, size = (a * b).double(), len(a)
        while size > 1:
            size //= 2
            terms = terms[:size] + terms[size : 2 * size]
        return terms[0].to(a.dtype)

    told = said("dot", fn, n=160)
    assert "were without 32 of 160 terms: what a tree over 160 threads loses where it halves an odd number" in told


def test_a_number_that_each_size_has_another_of_is_no_constant(monkeypatch):
    def fn(x, bias, *, activation):
        return gelu(0.0112 * len(x))(x, bias, activation=activation)

    options = dict(params={"activation": "gelu_tanh"}, of="number", rows=5, cols=33)
    assert said("activation", fn, **options) is None
    monkeypatch.setattr(altered.Search, "wrong_sizes", [])
    assert "with 0.056 in the place of 0.044715" in said("activation", fn, **options)
