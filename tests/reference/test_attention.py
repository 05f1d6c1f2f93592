"""attention and attention_backward: against SDPA, autograd and finite differences; masks, groups and empty rows."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from touchstone.reference.attention import attention, explicit, flash1, flash2, split_keys, torch_attention
from touchstone.reference.attention_backward import attention_backward, torch_attention_backward
from touchstone.reference.masked_attention import masked_attention, torch_masked_attention
from touchstone.reference.softmax import softmax

FORMS = [attention, explicit, flash1, flash2, split_keys]
SHAPES = [(2, 4, 2, 5, 7, 3), (1, 6, 2, 4, 4, 8), (1, 3, 1, 9, 17, 5), (1, 1, 1, 1, 1, 1)]  # B, Hq, Hkv, Sq, Sk, D


def _operands(b, hq, hkv, sq, sk, d, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((b, hq, sq, d), (b, hkv, sk, d), (b, hkv, sk, d))]


def _torch(*arrays, grad=False):
    return [torch.from_numpy(a).requires_grad_(grad) for a in arrays]


@pytest.mark.parametrize("scale", [None, 0.37])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_is_sdpas(shape, causal, scale):
    q, k, v = _operands(*shape)
    mask = causal_lower_right(shape[3], shape[4]) if causal else None
    grouped = shape[1] != shape[2]
    want = functional.scaled_dot_product_attention(*_torch(q, k, v), attn_mask=mask, scale=scale, enable_gqa=grouped)
    np.testing.assert_allclose(attention(q, k, v, causal=causal, scale=scale)[0], want, atol=1e-12)
    np.testing.assert_allclose(torch_attention(*_torch(q, k, v), causal=causal, scale=scale)[0], want, atol=1e-12)


def test_causal_is_bottom_right_and_not_top_left():
    """The two conventions differ for Sq ≠ Sk and agree for Sq = Sk."""
    for sq, sk, same in ((3, 6, False), (5, 5, True), (6, 3, False)):
        q, k, v = _operands(1, 1, 1, sq, sk, 4, seed=sq)
        top_left = functional.scaled_dot_product_attention(*_torch(q, k, v), is_causal=True).numpy()
        difference = np.abs(attention(q, k, v, causal=True)[0] - top_left)
        assert (np.nanmax(difference) < 1e-12) == same


def test_visible_keys_by_one_hot_values():
    """v = I shows the probabilities: query i of 3 over 5 keys sees keys 0 to i + 2, all alike for q = 0."""
    p, lse = attention(np.zeros((1, 1, 3, 5)), np.zeros((1, 1, 5, 5)), np.eye(5)[None, None], causal=True)
    third, quarter, fifth = 1 / 3, 1 / 4, 1 / 5
    want = [[third] * 3 + [0] * 2, [quarter] * 4 + [0], [fifth] * 5]
    np.testing.assert_allclose(p[0, 0], want, rtol=1e-15)
    np.testing.assert_allclose(lse[0, 0], np.log([3, 4, 5]), rtol=1e-15)


def test_query_head_reads_the_key_head_of_its_group():
    """Hq = 6, Hkv = 2: heads 0 to 2 read key head 0 and 3 to 5 read 1; v says which was read."""
    q, k, _ = _operands(1, 6, 2, 2, 3, 4)
    v = np.broadcast_to(np.array([10.0, 20.0]).reshape(1, 2, 1, 1), (1, 2, 3, 4))
    np.testing.assert_allclose(attention(q, k, v)[0][0, :, 0, 0], [10] * 3 + [20] * 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", [*FORMS, torch_attention])
def test_rows_that_see_nothing_are_zero_and_lse_minus_inf(form):
    def call(*operands, **options):
        return [np.asarray(t) for t in form(*(_torch(*operands) if form is torch_attention else operands), **options)]

    q, k, v = _operands(1, 2, 1, 5, 2, 3)
    o, lse = call(q, k, v, causal=True)
    assert (o[:, :, :3] == 0).all()
    assert (lse[:, :, :3] == -np.inf).all()
    assert np.isfinite(lse[:, :, 3:]).all()
    assert (o[:, :, 3] == v[:, :, 0]).all()  # sees one key
    o, lse = call(q, k[:, :, :0], v[:, :, :0])
    assert (o == 0).all()
    assert (lse == -np.inf).all()
    k[..., 0] = -np.inf
    o, lse = call(np.abs(q), k, v)
    assert (o == 0).all()
    assert (lse == -np.inf).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_visible_score_of_inf_or_nan_makes_the_row_nan_as_in_sdpa(value):
    q, k, v = (np.abs(t) for t in _operands(1, 1, 1, 2, 3, 2))
    k[0, 0, 2, 0] = value
    for form, operands in ((attention, (q, k, v)), (torch_attention, _torch(q, k, v))):
        o, lse = (np.asarray(t) for t in form(*operands, causal=True))
        assert np.isfinite(o[0, 0, 0]).all()  # the key is hidden from query 0
        assert np.isnan(o[0, 0, 1]).all()
        np.testing.assert_array_equal(lse[0, 0, 1], value)


def test_hidden_keys_contribute_nothing():
    q, k, v = _operands(1, 1, 1, 3, 5, 4)
    want_o, want_lse = attention(q, k, v, causal=True)
    k[0, 0, 3:], v[0, 0, 3:] = 1e6, -1e6
    for form in FORMS:
        o, lse = form(q, k, v, causal=True)
        np.testing.assert_allclose(o[:, :, 0], want_o[:, :, 0], rtol=1e-13)
        np.testing.assert_allclose(lse[:, :, 0], want_lse[:, :, 0], rtol=1e-13)


def test_equal_scores_over_a_power_of_two_are_exact():
    v = np.random.default_rng(1).integers(0, 2, (1, 1, 64, 8)).astype(np.float64)
    q, k = np.zeros((1, 1, 3, 8)), np.random.default_rng(2).standard_normal((1, 1, 64, 8))
    want = np.broadcast_to(v.sum(axis=2, keepdims=True) / 64, (1, 1, 3, 8))
    assert (attention(q, k, v)[0] == want).all()
    assert (torch_attention(*_torch(q, k, v))[0].numpy() == want).all()


def test_softmax_of_each_block_alone_is_wrong():
    """Σ softmax(q·kᵀ of a block)·v, as [tosaki2025] has it; the blocks' lse makes them a whole [dao2023decoding]."""
    q, k, v = _operands(1, 1, 1, 16, 64, 8, seed=3)
    want, _ = attention(q, k, v, scale=1.0)
    parts = [(k[:, :, s : s + 16], v[:, :, s : s + 16]) for s in range(0, 64, 16)]
    summed = sum(softmax(q @ k_part.swapaxes(-1, -2)) @ v_part for k_part, v_part in parts)
    assert np.abs(summed - want).max() > 0.1
    assert np.abs(summed / len(parts) - want).max() > 0.1
    o, lse = attention(q, *parts[0], scale=1.0)
    for part in parts[1:]:
        o_part, lse_part = attention(q, *part, scale=1.0)
        weight = 1 / (1 + np.exp(lse_part - lse))[..., None]
        o, lse = weight * o + (1 - weight) * o_part, np.logaddexp(lse, lse_part)
    np.testing.assert_allclose(o, want, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (1, 2, 1, 7, 3, 4)])
def test_backward_is_autograds(shape, causal):
    q, k, v = _torch(*_operands(*shape, seed=4), grad=True)
    o, lse = torch_attention(q, k, v, causal=causal, scale=0.4)
    do = torch.from_numpy(_operands(*shape, seed=5)[0])
    want = torch.autograd.grad(o, (q, k, v), do)
    given = [t.detach() for t in (q, k, v, o, lse)]
    for w, g in zip(want, torch_attention_backward(*given, do, causal=causal, scale=0.4), strict=True):
        np.testing.assert_allclose(g, w, atol=1e-12)
    arrays = [t.numpy() for t in (*given, do)]
    for w, g in zip(want, attention_backward(*arrays, causal=causal, scale=0.4), strict=True):
        np.testing.assert_allclose(g, w, atol=1e-12)


def test_backward_is_sdpas():
    q, k, v = _torch(*_operands(2, 4, 2, 5, 7, 8, seed=6), grad=True)
    o = functional.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(5, 7), enable_gqa=True)
    do = torch.from_numpy(_operands(2, 4, 2, 5, 7, 8, seed=7)[0])
    want = torch.autograd.grad(o, (q, k, v), do)
    arrays = [t.detach().numpy() for t in (q, k, v)]
    for w, g in zip(want, attention_backward(*arrays, *attention(*arrays, causal=True), do, causal=True), strict=True):
        np.testing.assert_allclose(g, w, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_backward_is_the_finite_difference(causal):
    operands, step = _operands(1, 2, 1, 3, 4, 2, seed=8), 1e-6
    do = _operands(1, 2, 1, 3, 4, 2, seed=9)[0]
    gradients = attention_backward(*operands, *attention(*operands, causal=causal), do, causal=causal)
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(*gradient.shape):
            shifted = []
            for sign in (1, -1):
                moved = [t.copy() for t in operands]
                moved[which][index] += sign * step
                shifted.append((attention(*moved, causal=causal)[0] * do).sum())
            assert gradient[index] == pytest.approx((shifted[0] - shifted[1]) / (2 * step), abs=1e-8)


def test_gradcheck():
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            o, lse = torch_attention(q, k, v, causal=True)
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        def backward(ctx, do):
            return torch_attention_backward(*ctx.saved_tensors, do, causal=True)

    assert torch.autograd.gradcheck(Attention.apply, _torch(*_operands(1, 4, 2, 3, 4, 2, seed=10), grad=True))
    leading_empty = _torch(*_operands(1, 2, 1, 4, 2, 2, seed=11), grad=True)
    assert torch.autograd.gradcheck(Attention.apply, leading_empty)
    assert torch.autograd.gradcheck(lambda *t: torch_attention(*t, causal=True)[0], leading_empty)


@pytest.mark.filterwarnings("error")
def test_backward_uses_the_given_o_and_lse():
    """δ and p follow what was saved, not what a second forward would find; −inf in lse silences its row."""
    q, k, v = _operands(1, 1, 1, 2, 3, 2, seed=12)
    o, lse = attention(q, k, v)
    do = np.ones_like(q)
    dq, _, dv = attention_backward(q, k, v, o, lse, do)
    _, _, dv_half = attention_backward(q, k, v, o, lse + math.log(2), do)
    np.testing.assert_allclose(dv_half, dv / 2, rtol=1e-14)
    dq_shifted, _, dv_same = attention_backward(q, k, v, o + 1, lse, do)
    np.testing.assert_array_equal(dv_same, dv)
    p = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(2))
    np.testing.assert_allclose(dq_shifted, dq - 2 * p @ k / math.sqrt(2), atol=1e-14)
    silent = lse.copy()
    silent[0, 0, 1] = -np.inf
    got = attention_backward(q, k, v, o, silent, do)
    want = attention_backward(q[:, :, :1], k, v, o[:, :, :1], lse[:, :, :1], do[:, :, :1])
    assert (got[0][:, :, 1] == 0).all()
    for g, w in zip(got[1:], want[1:], strict=True):
        np.testing.assert_allclose(g, w, atol=1e-14)
    on_torch = torch_attention_backward(*_torch(q, k, v, o, silent, do))
    for g, w in zip(on_torch, got, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-14)


def test_backward_where_no_key_is_seen_is_zero():
    q, k, v = _operands(1, 2, 1, 3, 0, 4)
    dq, dk, dv = attention_backward(q, k, v, *attention(q, k, v), np.ones_like(q))
    assert dq.shape == q.shape
    assert (dq == 0).all()
    assert dk.shape == dv.shape == k.shape


@pytest.mark.parametrize("low", [-5e4, -1e30])
def test_scores_far_below_any_sentinel_are_weighed_as_any_others(low):
    """Equal scores: each key has as much, however low they are."""
    v = np.random.default_rng(0).standard_normal((1, 2, 5, 4))
    q, k = np.zeros((1, 2, 3, 4)), np.zeros((1, 2, 5, 4))
    bias = np.full((1, 2, 3, 5), low)
    wanted = np.broadcast_to(v.mean(2, keepdims=True), (1, 2, 3, 4))
    o, lse = masked_attention(q, k, v, bias, None, None, None)
    np.testing.assert_allclose(o, wanted, rtol=1e-12)
    found, theirs = torch_masked_attention(*(torch.from_numpy(x) for x in (q, k, v, bias)), None, None, None)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    np.testing.assert_allclose(theirs.numpy(), lse, rtol=1e-12)
