"""softmax, softmax_backward, online_softmax: against torch, autograd and finite differences; the documents' traces."""

import math

import numpy as np
import pytest
import torch

from touchstone.reference import online_softmax as online_module
from touchstone.reference.online_softmax import merged, online_softmax, tiled, torch_online_softmax
from touchstone.reference.softmax import online, softmax, three_pass, torch_softmax
from touchstone.reference.softmax_backward import softmax_backward, torch_softmax_backward

INF, NAN = np.inf, np.nan
TRACE = np.array([3.0, 2.0, 5.0, 1.0])  # the worked example of [jietal2025]


def _normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 0), (4, 17), (2, 1025)])
def test_softmax_is_torchs(shape):
    x = 10 * _normal(0, *shape)
    y, lse = online_softmax(x)
    np.testing.assert_allclose(softmax(x), torch.nn.functional.softmax(torch.from_numpy(x), -1), rtol=1e-12)
    np.testing.assert_allclose(y, torch.nn.functional.log_softmax(torch.from_numpy(x), -1).exp(), rtol=1e-11)
    np.testing.assert_allclose(lse, torch.logsumexp(torch.from_numpy(x), -1), rtol=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("row", "lse"),
    [
        ([-INF, -INF], -INF),
        ([INF, 1e4], INF),
        ([INF, INF], INF),
        ([INF, -INF], INF),
        ([NAN, 1.0], NAN),
        ([INF, NAN], NAN),
    ],
)
def test_rows_that_have_no_distribution_are_nan(row, lse):
    x = np.array([row, [0.0, 0.0]])
    for y in (softmax(x), torch_softmax(torch.from_numpy(x)).numpy(), online(x), three_pass(x), online_softmax(x)[0]):
        assert np.isnan(y[0]).all()
        assert (y[1] == 0.5).all()
    for _, got in (online_softmax(x), torch_online_softmax(torch.from_numpy(x)), tiled(x), merged(x)):
        np.testing.assert_array_equal(got[:1], [lse])


def test_partial_minus_inf_is_exactly_zero():
    y, lse = online_softmax(np.array([[-INF, 0.0, -INF, 0.0]]))
    assert y.tolist() == [[0, 0.5, 0, 0.5]]
    assert lse[0] == pytest.approx(math.log(2), rel=1e-15)


def test_properties():
    x = 30 * _normal(1, 6, 50)
    y = softmax(x)
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-13)
    np.testing.assert_allclose(softmax(x + 1000), y, rtol=1e-9)
    np.testing.assert_allclose(softmax(x[:, ::-1]), y[:, ::-1], rtol=1e-13)


def test_exact_answers():
    assert softmax(np.array([[1e300], [-7.0]])).tolist() == [[1], [1]]
    for form in (softmax, online, three_pass, lambda x: torch_softmax(torch.from_numpy(x)).numpy()):
        assert (form(np.full((2, 64), 12.5)) == 2.0**-6).all()


def test_trace_of_the_slides():
    """x = [3, 2, 5, 1]: the naive sum over the final maximum 5, then the online pairs (m, z) after every element."""
    np.testing.assert_allclose(
        softmax(TRACE[None])[0], np.exp([-2, -3, 0, -4]) / (math.exp(-2) + math.exp(-3) + 1 + math.exp(-4)), rtol=1e-14
    )
    e = math.exp
    pairs = [(3, 1), (3, 1 + e(-1)), (5, (1 + e(-1)) * e(-2) + 1), (5, (1 + e(-1)) * e(-2) + 1 + e(-4))]
    for seen, (m, z) in enumerate(pairs, start=1):
        _, lse = tiled(TRACE[None, :seen])
        assert lse[0] == pytest.approx(m + math.log(z), rel=1e-14)
        got_m, got_z = online_module._pair(TRACE[None, :seen])
        assert (got_m[0], got_z[0]) == pytest.approx((m, z), rel=1e-14)


def test_trace_of_two_tiles_merged():
    """Tiles [3, 2] and [5, 1]: m* = max(3, 5), z* = z·exp(3 − 5) + z'."""
    left, right = online_module._pair(TRACE[None, :2]), online_module._pair(TRACE[None, 2:])
    assert (left[0][0], right[0][0]) == (3, 5)
    (m,), (z,) = online_module._merge(left, right)
    assert m == 5
    assert z == pytest.approx((1 + math.exp(-1)) * math.exp(-2) + (1 + math.exp(-4)), rel=1e-14)
    np.testing.assert_allclose(np.exp(TRACE - m) / z, softmax(TRACE[None])[0], rtol=1e-14)


def test_merging_pairs_is_associative_and_commutative():
    a, b, c = (online_module._pair(8 * _normal(seed, 5, 3)) for seed in (2, 3, 4))
    merge = online_module._merge
    np.testing.assert_allclose(merge(merge(a, b), c), merge(a, merge(b, c)), rtol=1e-14)
    np.testing.assert_array_equal(merge(a, b), merge(b, a))
    np.testing.assert_array_equal(merge(a, online_module._empty_pair(np.empty((5, 3)))), a)


@pytest.mark.parametrize("form", [softmax, online, three_pass, lambda x: tiled(x)[0], lambda x: merged(x)[0]])
def test_worked_example(form):
    """The worked example of [pearbiossom2026]."""
    np.testing.assert_allclose(form(np.array([[3.0, 1.0, 2.0]])), [[0.665, 0.090, 0.245]], atol=5e-4)


@pytest.mark.parametrize("form", [online, lambda x: tiled(x)[0], lambda x: merged(x)[0]])
def test_leading_tile_of_minus_inf_is_guarded(form):
    """The recurrence as published turns a row whose first tile is −inf into NaN; torch's answer is finite."""
    x = np.concatenate([np.full((2, 9), -INF), _normal(5, 2, 8)], axis=1)
    want = torch.softmax(torch.from_numpy(x), -1)
    m, z = np.full(2, -INF), np.zeros(2)
    with np.errstate(invalid="ignore"):
        for start in range(0, 17, 4):
            tile = x[:, start : start + 4]
            m_new = np.maximum(m, tile.max(axis=1))
            m, z = m_new, z * np.exp(m - m_new) + np.exp(tile - m_new[:, None]).sum(axis=1)
    assert np.isnan(np.exp(x - m[:, None]) / z[:, None]).all()
    np.testing.assert_allclose(form(x), want, rtol=1e-13)


def test_one_maximum_for_all_tiles_is_needed():
    """A sum over tiles of exp(x − the tile's own maximum) is not the denominator: rescaling is what makes it one."""
    x = np.arange(16.0)[None]
    own = sum(np.exp(x[:, s : s + 4] - x[:, s : s + 4].max()).sum() for s in range(0, 16, 4))
    assert abs(own - np.exp(online_softmax(x)[1][0] - 15)) > 1


@pytest.mark.parametrize("cols", [1, 2, 13, 64])
def test_backward_is_autograds(cols):
    x = torch.from_numpy(3 * _normal(6, 4, cols)).requires_grad_()
    dy = torch.from_numpy(_normal(7, 4, cols))
    y = torch_softmax(x)
    (want,) = torch.autograd.grad(y, x, dy)
    np.testing.assert_allclose(torch_softmax_backward(y.detach(), dy), want, atol=1e-14)
    np.testing.assert_allclose(softmax_backward(y.detach().numpy(), dy.numpy()), want, atol=1e-14)


def test_backward_is_the_finite_difference():
    x, dy, step = _normal(8, 3, 7), _normal(9, 3, 7), 1e-6
    dx = softmax_backward(softmax(x), dy)
    for i, j in np.ndindex(*x.shape):
        unit = np.zeros_like(x)
        unit[i, j] = step
        slope = ((softmax(x + unit) - softmax(x - unit)) * dy).sum() / (2 * step)
        assert dx[i, j] == pytest.approx(slope, abs=1e-8)


def test_gradcheck():
    x = torch.from_numpy(_normal(10, 3, 5)).requires_grad_()
    assert torch.autograd.gradcheck(torch_softmax, x)
    assert torch.autograd.gradcheck(torch_online_softmax, x)
    y, dy = torch_softmax(x).detach().requires_grad_(), torch.from_numpy(_normal(11, 3, 5)).requires_grad_()
    assert torch.autograd.gradcheck(torch_softmax_backward, (y, dy))
