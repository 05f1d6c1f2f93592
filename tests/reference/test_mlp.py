"""matmul, mlp, mlp_backward, gated_mlp: against torch.nn, autograd and finite differences; sums in low precision."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from touchstone.reference._activations import NAMES, act, act_grad, torch_act, torch_act_grad
from touchstone.reference.gated_mlp import gated_mlp, torch_gated_mlp
from touchstone.reference.matmul import matmul, torch_matmul
from touchstone.reference.mlp import mlp, torch_mlp
from touchstone.reference.mlp_backward import mlp_backward, torch_mlp_backward

TORCH = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "mish": functional.mish,
    "elu": functional.elu,
    "hardswish": functional.hardswish,
    "hardshrink": functional.hardshrink,
    "identity": lambda x: 1 * x,
}
GRID = np.concatenate([np.linspace(-30, 30, 601), [1e-8, -1e-8, 800.0, -800.0]])


def _normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def _torch(*arrays, grad=False):
    return [torch.from_numpy(a).requires_grad_(grad) for a in arrays]


def _operands(m=5, d=4, h=9, n=3, seed=0):
    shapes = ((m, d), (d, h), (h,), (h, n), (n,))
    return [_normal(seed + i, *shape) for i, shape in enumerate(shapes)]


def test_activations_are_all_compared():
    assert set(TORCH) == set(NAMES)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_activation_and_derivative_are_torchs(name):
    x = torch.from_numpy(GRID).requires_grad_()
    y = TORCH[name](x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    for got in (act(GRID, name), torch_act(x, name).detach()):
        np.testing.assert_allclose(got, y.detach(), rtol=1e-12, atol=1e-14)
    for got in (act_grad(GRID, name), torch_act_grad(x, name).detach()):
        np.testing.assert_allclose(got, slope, rtol=1e-11, atol=1e-13)


def test_gelu_keeps_its_tail():
    """x·(1 + erf)/2 loses every digit below −9; Φ(−10) = 7.6198530241605e-24 by the tables."""
    for got in (act(np.array([-10.0]), "gelu")[0], torch_act(torch.tensor([-10.0]).double(), "gelu").item()):
        assert got == pytest.approx(-10 * 7.619853024160525e-24, rel=1e-12, abs=0)


def test_gelu_tanh_is_near_gelu_and_not_equal():
    """The tanh form of gelu [hendrycks2016] is at most 4.7e-4 from gelu on [−20, 20]."""
    x = np.linspace(-20, 20, 4001)
    apart = np.abs(act(x, "gelu") - act(x, "gelu_tanh")).max()
    assert 4e-4 < apart < 5e-4


def test_unknown_activation_names_the_argument():
    for call in (
        lambda: mlp(*_operands(), activation="swish"),
        lambda: torch_mlp(*_torch(*_operands()), activation="swish"),
        lambda: mlp_backward(*_operands(), _normal(9, 5, 3), activation="swish"),
        lambda: torch_mlp_backward(*_torch(*_operands(), _normal(9, 5, 3)), activation="swish"),
    ):
        with pytest.raises(ValueError, match=f"activation: expected one of {', '.join(NAMES)}, got 'swish'"):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_mlp_is_two_linears(name):
    x, w1, b1, w2, b2 = _operands()
    tx, tw1, tb1, tw2, tb2 = _torch(x, w1, b1, w2, b2)
    with_bias = functional.linear(TORCH[name](functional.linear(tx, tw1.T, tb1)), tw2.T, tb2)
    without = functional.linear(TORCH[name](functional.linear(tx, tw1.T)), tw2.T)
    np.testing.assert_allclose(mlp(x, w1, b1, w2, b2, activation=name), with_bias, atol=1e-12)
    np.testing.assert_allclose(mlp(x, w1, None, w2, None, activation=name), without, atol=1e-12)
    np.testing.assert_allclose(torch_mlp(tx, tw1, None, tw2, tb2, activation=name), without + tb2, atol=1e-12)


def test_default_activations_are_gelu_and_silu():
    x, w1, b1, w2, b2 = _operands()
    np.testing.assert_array_equal(mlp(x, w1, b1, w2, b2), mlp(x, w1, b1, w2, b2, activation="gelu"))
    np.testing.assert_array_equal(gated_mlp(x, w1, w1, w2), gated_mlp(x, w1, w1, w2, activation="silu"))
    assert np.abs(mlp(x, w1, b1, w2, b2) - mlp(x, w1, b1, w2, b2, activation="gelu_tanh")).max() > 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_gated_mlp_is_torchs(name):
    x, w_gate, _, w_down, _ = _operands()
    w_up = _normal(7, 4, 9)
    tx, tg, tu, td = _torch(x, w_gate, w_up, w_down)
    want = functional.linear(TORCH[name](functional.linear(tx, tg.T)) * functional.linear(tx, tu.T), td.T)
    np.testing.assert_allclose(gated_mlp(x, w_gate, w_up, w_down, activation=name), want, atol=1e-12)
    np.testing.assert_allclose(torch_gated_mlp(tx, tg, tu, td, activation=name), want, atol=1e-12)


@pytest.mark.parametrize("biases", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("name", NAMES)
def test_backward_is_autograds(name, biases):
    x, w1, b1, w2, b2 = _torch(*_operands(seed=10), grad=True)
    dy = torch.from_numpy(_normal(20, 5, 3))
    z = functional.linear(x, w1.T, b1 if biases[0] else None)
    y = functional.linear(TORCH[name](z), w2.T, b2 if biases[1] else None)
    want = torch.autograd.grad(y, (x, w1, b1, w2, b2), dy, allow_unused=True)
    operands = [
        t if t is None else t.detach() for t in (x, w1, b1 if biases[0] else None, w2, b2 if biases[1] else None)
    ]
    arrays = [t if t is None else t.numpy() for t in operands]
    for got in (mlp_backward(*arrays, dy.numpy(), activation=name), torch_mlp_backward(*operands, dy, activation=name)):
        for g, w in zip(got, want, strict=True):
            assert (g is None) == (w is None)
            if w is not None:
                np.testing.assert_allclose(g, w, atol=1e-11)


def test_relu_has_slope_zero_at_zero():
    one = np.ones((1, 1))
    dx, dw1, db1, dw2, db2 = mlp_backward(0 * one, one, np.zeros(1), one, np.zeros(1), one, activation="relu")
    assert (dx, dw1, db1, dw2, db2) == (0, 0, 0, 0, 1)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
def test_backward_is_the_finite_difference(name):
    operands, dy, step = _operands(2, 3, 4, 2, seed=30), _normal(40, 2, 2), 1e-6
    for which, gradient in enumerate(mlp_backward(*operands, dy, activation=name)):
        for index in np.ndindex(*gradient.shape):
            value = []
            for sign in (1, -1):
                moved = [t.copy() for t in operands]
                moved[which][index] += sign * step
                value.append((mlp(*moved, activation=name) * dy).sum())
            assert gradient[index] == pytest.approx((value[0] - value[1]) / (2 * step), abs=1e-7)


def test_gradcheck():
    operands = _torch(*_operands(2, 3, 4, 2, seed=50), grad=True)
    x, w1, _, w2, _ = operands
    for name in ("gelu", "gelu_tanh", "silu"):
        assert torch.autograd.gradcheck(lambda *t, name=name: torch_mlp(*t, activation=name), operands)
        assert torch.autograd.gradcheck(
            lambda x, g, u, d, name=name: torch_gated_mlp(x, g, u, d, activation=name), (x, w1, (w1 * 2).detach(), w2)
        )

    class Mlp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *operands):
            ctx.save_for_backward(*operands)
            return torch_mlp(*operands)

        @staticmethod
        def backward(ctx, dy):
            return torch_mlp_backward(*ctx.saved_tensors, dy)

    assert torch.autograd.gradcheck(Mlp.apply, operands)


def test_matmul_is_the_sum_of_its_definition():
    a, b = _normal(60, 3, 5), _normal(61, 5, 2)
    want = [[math.fsum(a[i, k] * b[k, j] for k in range(5)) for j in range(2)] for i in range(3)]
    np.testing.assert_allclose(matmul(a, b), want, rtol=1e-14)
    np.testing.assert_allclose(torch_matmul(*_torch(a, b)), want, rtol=1e-14)


def test_matmul_over_no_terms_is_zero():
    assert matmul(np.zeros((2, 0)), np.zeros((0, 3))).tolist() == [[0] * 3] * 2
    assert torch_matmul(torch.zeros(2, 0), torch.zeros(0, 3)).tolist() == [[0] * 3] * 2


def test_running_sum_in_float16_stalls():
    """0.1·0.1 summed one at a time in float16 stops at 32, where half a spacing is 0.0156."""
    terms = 1 << 15
    tenth = np.float16(0.1)
    running = np.add.accumulate(np.full(terms, tenth * tenth, np.float16), dtype=np.float16)
    assert running[-1] == running[terms // 2] == 32
    exact = matmul(np.full((1, terms), tenth), np.full((terms, 1), tenth)).item()
    assert exact == pytest.approx(terms * float(tenth) ** 2, rel=1e-12)
    assert exact > 300
