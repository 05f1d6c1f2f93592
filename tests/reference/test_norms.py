"""The norms and their backwards: against torch.nn.functional, autograd, finite differences and each other."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from touchstone.reference.add_layer_norm import add_layer_norm, torch_add_layer_norm
from touchstone.reference.add_rms_norm import add_rms_norm, torch_add_rms_norm
from touchstone.reference.group_norm import group_norm, torch_group_norm
from touchstone.reference.layer_norm import chan, layer_norm, torch_layer_norm, welford
from touchstone.reference.layer_norm_backward import layer_norm_backward, torch_layer_norm_backward
from touchstone.reference.rms_norm import rms_norm, scaled, torch_rms_norm
from touchstone.reference.rms_norm_backward import rms_norm_backward, torch_rms_norm_backward

SHAPES = [(1, 1), (3, 2), (5, 37), (2, 130)]
EPS = [1e-5, 0.1]


def _normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def _torch(*arrays, grad=False):
    return [torch.from_numpy(a).requires_grad_(grad) for a in arrays]


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_and_rms_norm_are_torchs(shape, eps):
    x, w, b = 2 + _normal(0, *shape), _normal(1, shape[1]), _normal(2, shape[1])
    tx, tw, tb = _torch(x, w, b)
    np.testing.assert_allclose(
        layer_norm(x, w, b, eps=eps), functional.layer_norm(tx, tw.shape, tw, tb, eps), atol=1e-12
    )
    np.testing.assert_allclose(
        layer_norm(x, w, None, eps=eps), functional.layer_norm(tx, tw.shape, tw, None, eps), atol=1e-12
    )
    np.testing.assert_allclose(rms_norm(x, w, eps=eps), functional.rms_norm(tx, tw.shape, tw, eps), atol=1e-12)


def test_default_eps():
    x, w = np.array([[1e-3, -1e-3, 1e-3, -1e-3]]), np.ones(4)
    np.testing.assert_allclose(layer_norm(x, w, None), x / np.sqrt(1e-6 + 1e-5), rtol=1e-14)
    np.testing.assert_allclose(rms_norm(x, w), x / np.sqrt(1e-6 + 1e-6), rtol=1e-14)
    np.testing.assert_allclose(add_rms_norm(x, 0 * x, w)[0], rms_norm(x, w), rtol=1e-14)
    np.testing.assert_allclose(group_norm(x.reshape(1, 1, 4), w[:1], None, groups=1)[0], layer_norm(x, w, None))


@pytest.mark.parametrize("shape", [(2, 6, 5), (3, 6, 4, 3), (1, 6, 2, 3, 4)])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm_is_torchs(shape, groups):
    x, w, b = _normal(3, *shape), _normal(4, 6), _normal(5, 6)
    tx, tw, tb = _torch(x, w, b)
    for bias, tbias in ((b, tb), (None, None)):
        want = functional.group_norm(tx, groups, tw, tbias, 0.01)
        np.testing.assert_allclose(group_norm(x, w, bias, groups=groups, eps=0.01), want, atol=1e-12)
        np.testing.assert_allclose(torch_group_norm(tx, tw, tbias, groups=groups, eps=0.01), want, atol=1e-12)
    flat = functional.group_norm(tx[..., 0].reshape(len(x), -1), 1)  # no trailing axis
    np.testing.assert_allclose(
        group_norm(x[..., 0].reshape(len(x), -1), np.ones(flat.shape[1]), None, groups=1), flat, atol=1e-12
    )


def test_group_norm_of_one_group_per_channel_and_of_one_group():
    """Instance norm at one end, layer norm over everything at the other."""
    x, w, b = _normal(6, 2, 4, 9), _normal(7, 4), _normal(8, 4)
    want = functional.instance_norm(torch.from_numpy(x), weight=torch.from_numpy(w), bias=torch.from_numpy(b), eps=1e-5)
    np.testing.assert_allclose(group_norm(x, w, b, groups=4), want, atol=1e-12)
    whole = layer_norm(x.reshape(2, 36), np.repeat(w, 9), np.repeat(b, 9)).reshape(x.shape)
    np.testing.assert_allclose(group_norm(x, w, b, groups=1), whole, atol=1e-12)


def test_add_forms_return_y_then_h():
    x, r, w, b = _normal(9, 4, 11), _normal(10, 4, 11), _normal(11, 11), _normal(12, 11)
    tx, tr, tw, tb = _torch(x, r, w, b)
    for y, h in (add_layer_norm(x, r, w, b), torch_add_layer_norm(tx, tr, tw, tb)):
        np.testing.assert_array_equal(h, x + r)
        np.testing.assert_allclose(y, functional.layer_norm(tx + tr, (11,), tw, tb), atol=1e-12)
    for y, h in (add_rms_norm(x, r, w), torch_add_rms_norm(tx, tr, tw)):
        np.testing.assert_array_equal(h, x + r)
        np.testing.assert_allclose(y, functional.rms_norm(tx + tr, (11,), tw, 1e-6), atol=1e-12)


def test_worked_trace_of_a_blocked_add():
    """Six elements in blocks of four [jietal2025]; lanes 6 and 7 are masked and touch neither operand nor result."""
    x, y, block = np.arange(1.0, 7.0), np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]), 4
    z, masked = np.full(6, np.nan), []
    for start in range(0, 6, block):
        lanes = start + np.arange(block)
        inside = lanes < 6
        z[lanes[inside]] = x[lanes[inside]] + y[lanes[inside]]
        masked += lanes[~inside].tolist()
    assert masked == [6, 7]
    assert z.tolist() == [1, 3, 3, 5, 5, 7]
    np.testing.assert_array_equal(add_rms_norm(x[None], y[None], np.ones(6))[1], z[None])
    np.testing.assert_array_equal(torch_add_layer_norm(*_torch(x[None], y[None], y), None)[1], z[None])


def test_properties():
    x, w = _normal(13, 5, 40), np.ones(40)
    y = layer_norm(x, w, None, eps=0)
    np.testing.assert_allclose(y.mean(axis=1), 0, atol=1e-14)
    np.testing.assert_allclose(y.var(axis=1), 1, rtol=1e-13)
    np.testing.assert_allclose(layer_norm(7 * x + 3, w, None, eps=0), y, atol=1e-12)
    np.testing.assert_allclose((rms_norm(x, w, eps=0) ** 2).mean(axis=1), 1, rtol=1e-13)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_empty(shape):
    x, w = np.zeros(shape), np.ones(shape[1])
    assert layer_norm(x, w, w).shape == rms_norm(x, w).shape == shape
    dx, dw, db = layer_norm_backward(x, w, x)
    assert (dx.shape, dw.tolist(), db.tolist()) == (shape, [0] * shape[1], [0] * shape[1])
    dx, dw = rms_norm_backward(x, w, x)
    assert (dx.shape, dw.tolist()) == (shape, [0] * shape[1])


def test_one_pass_variance_loses_what_welford_keeps():
    """Offset 3000 in float32: E[x²] − E[x]² against Welford's M2 [welford1962] and Chan's merge [chan1979]."""
    x = (3000 + _normal(14, 1, 512)).astype(np.float32)
    true = x.astype(np.float64).var()
    one_pass = (x * x).mean(dtype=np.float32) - x.mean(dtype=np.float32) ** 2
    assert abs(one_pass - true) / true > 0.05
    mean, m2 = np.float32(0), np.float32(0)
    for n, value in enumerate(x[0], start=1):
        delta = value - mean
        mean += delta / np.float32(n)
        m2 += delta * (value - mean)
    assert abs(m2 / 512 - true) / true < 1e-3
    for form in (welford, chan):
        np.testing.assert_allclose(form(x, np.ones(512), None), layer_norm(x, np.ones(512), None), atol=1e-9)


@pytest.mark.filterwarnings("error")
def test_scaled_rms_norm_survives_squares_that_overflow():
    x = np.array([[3e200, 4e200]])
    np.testing.assert_allclose(scaled(x, np.ones(2)), [[3 / np.sqrt(12.5), 4 / np.sqrt(12.5)]], rtol=1e-14)


def _gradients(function, operands, dy):
    return torch.autograd.grad(function(*operands), operands, dy)


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_backwards_are_autograds(shape, eps):
    x, w, b, dy = 1 + _normal(15, *shape), _normal(16, shape[1]), _normal(17, shape[1]), _normal(18, *shape)
    tx, tw, tb = _torch(x, w, b, grad=True)
    want = _gradients(lambda x, w, b: functional.layer_norm(x, w.shape, w, b, eps), (tx, tw, tb), torch.from_numpy(dy))
    for g, t, a in zip(
        layer_norm_backward(x, w, dy, eps=eps), torch_layer_norm_backward(*_torch(x, w, dy), eps=eps), want, strict=True
    ):
        np.testing.assert_allclose(g, a, atol=1e-9)
        np.testing.assert_allclose(t, a, atol=1e-9)
    want = _gradients(lambda x, w: functional.rms_norm(x, w.shape, w, eps), (tx, tw), torch.from_numpy(dy))
    for g, t, a in zip(
        rms_norm_backward(x, w, dy, eps=eps), torch_rms_norm_backward(*_torch(x, w, dy), eps=eps), want, strict=True
    ):
        np.testing.assert_allclose(g, a, atol=1e-11)
        np.testing.assert_allclose(t, a, atol=1e-11)


def test_given_statistics_are_used():
    x, w, dy = _normal(19, 4, 9), _normal(20, 9), _normal(21, 4, 9)
    mean, rstd = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + 1e-5)
    for g, want in zip(layer_norm_backward(x, w, dy, mean=mean, rstd=rstd), layer_norm_backward(x, w, dy), strict=True):
        np.testing.assert_allclose(g, want, atol=1e-13)
    _, dw, _ = layer_norm_backward(x, w, dy, mean=mean - 1, rstd=2 * rstd)
    np.testing.assert_allclose(dw, (dy * (x - mean[:, None] + 1) * 2 * rstd[:, None]).sum(axis=0), atol=1e-13)
    _, dw = rms_norm_backward(x, w, dy, rstd=np.full(4, 0.5))
    np.testing.assert_allclose(dw, (dy * x / 2).sum(axis=0), atol=1e-13)


def _difference(function, operands, which, dy, step=1e-6):
    gradient = np.zeros(operands[which].shape)
    for index in np.ndindex(*gradient.shape):
        moved = [[t.copy() for t in operands] for _ in range(2)]
        moved[0][which][index] += step
        moved[1][which][index] -= step
        gradient[index] = ((function(*moved[0]) - function(*moved[1])) * dy).sum() / (2 * step)
    return gradient


def test_backwards_are_the_finite_differences():
    x, w, b, dy = _normal(22, 3, 5), _normal(23, 5), _normal(24, 5), _normal(25, 3, 5)
    for which, g in enumerate(layer_norm_backward(x, w, dy, eps=0.1)):
        slope = _difference(lambda *t: layer_norm(*t, eps=0.1), (x, w, b), which, dy)
        np.testing.assert_allclose(g, slope, atol=1e-8)
    for which, g in enumerate(rms_norm_backward(x, w, dy, eps=0.1)):
        slope = _difference(lambda *t: rms_norm(*t, eps=0.1), (x, w), which, dy)
        np.testing.assert_allclose(g, slope, atol=1e-8)


def test_gradcheck():
    x, w, b, r = _torch(_normal(26, 3, 4), _normal(27, 4), _normal(28, 4), _normal(29, 3, 4), grad=True)
    check = torch.autograd.gradcheck
    assert check(torch_layer_norm, (x, w, b))
    assert check(torch_rms_norm, (x, w))
    assert check(torch_add_layer_norm, (x, r, w, b))
    assert check(torch_add_rms_norm, (x, r, w))
    images = torch.from_numpy(_normal(30, 2, 4, 3)).requires_grad_()
    assert check(lambda x, w, b: torch_group_norm(x, w, b, groups=2), (images, w, b))

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, b):
            ctx.save_for_backward(x, w)
            return torch_layer_norm(x, w, b)

        @staticmethod
        def backward(ctx, dy):
            return torch_layer_norm_backward(*ctx.saved_tensors, dy)

    assert check(Norm.apply, (x, w, b))
