"""Budgets where addends repeat: float32 sums of many equal terms, one after another, are right in every op."""

import numpy as np
import pytest
import torch

from touchstone.conformance.contracts._bounds_dots import counted, multiplied, summed
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import compare

COUNTS = (37, 1025, 8209, 70001)
F32 = torch.float32


def added(terms, axis):
    """The float32 sum along an axis, one after another: NumPy's running sum."""
    running = np.cumsum(terms.float().numpy(), axis=axis, dtype=np.float32)
    return torch.from_numpy(np.ascontiguousarray(running.take(-1, axis)))


def full(*shape, value=0.1):
    return torch.full(shape, value, dtype=F32)


def matmul(n):
    a, b = full(3, n), full(n, 2, value=0.7)
    return {"a": a, "b": b}, {}, {"c": added(a[:, :, None] * b, 1)}


def softmax(n):
    x = full(2, n)
    e = torch.exp(x - 0.3)  # a bound above the maximum is subtracted, so that a term is not 1
    return {"x": x}, {}, {"y": e / added(e, 1)[:, None]}


def online_softmax(n):
    x = full(2, n)
    e = torch.exp(x - 0.3)
    return {"x": x}, {}, {"y": e / added(e, 1)[:, None], "lse": 0.3 + torch.log(added(e, 1))}


def softmax_backward(n):
    y, dy = full(2, n, value=1 / n), full(2, n, value=0.7)
    return {"y": y, "dy": dy}, {}, {"dx": y * (dy - added(y * dy, 1)[:, None])}


def rms_norm(n):
    x, weight = full(2, n), full(n, value=1.3)
    rstd = torch.rsqrt(added(x * x, 1) / n + 1e-6)
    return {"x": x, "weight": weight}, {"eps": 1e-6}, {"y": x * rstd[:, None] * weight}


def _alternating(n):
    """Rows that are alike, and a dy that is: every addend of a sum over rows is the same."""
    return torch.tensor([[-0.3, 0.9, 0.1]]).repeat(n, 1), full(3, value=1.3), full(n, 3)


def rms_norm_backward(n):
    x, weight, dy = _alternating(n)
    normalised = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6)
    given = {"x": x, "weight": weight, "dy": dy, "rstd": None}
    return given, {"eps": 1e-6}, {"dweight": added(dy * normalised, 0)}


def layer_norm_backward(n):
    x, weight, dy = _alternating(n)
    centred = x - x.mean(1, keepdim=True)
    normalised = centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-5)
    given = {"x": x, "weight": weight, "dy": dy, "mean": None, "rstd": None}
    return given, {"eps": 1e-5}, {"dweight": added(dy * normalised, 0), "dbias": added(dy, 0)}


def attention(n):
    q, k, v = torch.zeros(1, 1, 2, 4), full(1, 1, n, 4), full(1, 1, n, 4, value=0.7)
    p = full(n, value=1 / n)
    o = added(p[:, None] * v[0, 0], 0).expand(1, 1, 2, 4)
    lse = torch.log(added(full(n, value=0.9), 0) / 0.9).expand(1, 1, 2)
    return {"q": q, "k": k, "v": v}, {"causal": False, "scale": None}, {"o": o, "lse": lse}


def attention_backward(n):
    q, k, v = torch.zeros(1, 1, n, 4), full(1, 1, 2, 4), full(1, 1, 2, 4, value=0.7)
    do, o = full(1, 1, n, 4), v[:, :, :1].expand(1, 1, n, 4).contiguous()
    lse = full(1, 1, n, value=float(np.log(2.0)))
    p = torch.exp(-lse[0, 0])
    dv = added(p[:, None] * do[0, 0], 0).expand(1, 1, 2, 4)
    given = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "do": do}
    return given, {"causal": False, "scale": None}, {"dv": dv}


def mlp(n):
    x, w1, w2 = full(2, 3), full(3, n), full(n, 2, value=0.7)
    hidden = torch.relu(x @ w1)
    given = {"x": x, "w1": w1, "b1": None, "w2": w2, "b2": None}
    return given, {"activation": "relu"}, {"y": added(hidden[:, :, None] * w2, 1)}


def gated_mlp(n):
    x, w, w_down = full(2, 3), full(3, n), full(n, 2, value=0.7)
    hidden = torch.relu(x @ w) * (x @ w)
    given = {"x": x, "w_gate": w, "w_up": w, "w_down": w_down}
    return given, {"activation": "relu"}, {"y": added(hidden[:, :, None] * w_down, 1)}


def mlp_backward(n):
    x, w1, w2, dy = full(n, 2), full(2, 3), full(3, 2, value=0.7), full(n, 2, value=0.3)
    hidden, dz = torch.relu(x @ w1), dy @ w2.T
    given = {"x": x, "w1": w1, "b1": torch.zeros(3), "w2": w2, "b2": torch.zeros(2), "dy": dy}
    wanted = {
        "dw1": added(x[:, :, None] * dz[:, None], 0),
        "db1": added(dz, 0),
        "dw2": added(hidden[:, :, None] * dy[:, None], 0),
        "db2": added(dy, 0),
    }
    return given, {"activation": "relu"}, wanted


KERNELS = (
    matmul,
    softmax,
    online_softmax,
    softmax_backward,
    rms_norm,
    rms_norm_backward,
    layer_norm_backward,
    attention,
    attention_backward,
    mlp,
    gated_mlp,
    mlp_backward,
)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_equal_addends_may_be_added_one_after_another(kernel, count):
    given, params, outputs = kernel(count)
    exact = {name: None if value is None else value.double() for name, value in given.items()}
    expected = registry.contract(kernel.__name__).expect(exact, params, dtype=F32, compute=None)
    for name, got in outputs.items():
        verdict = compare.compare(got, expected[name], F32)
        assert verdict.ok and verdict.fraction < 0.9, f"{name}: {verdict.message}, {verdict.fraction:.2f} of the budget"


def test_only_addends_of_one_size_have_the_terms_of_equal_ones():
    count = 4096
    alike = torch.full((count,), 0.1, dtype=torch.float64)
    spread = alike * (1 + 0.01 * torch.linspace(-1, 1, count, dtype=torch.float64))
    masked = torch.where(torch.arange(count) % 2 == 0, alike, 0.0)
    assert summed(alike, 0) == (count / 8) ** 2
    assert summed(-alike, 0) == (count / 8) ** 2
    assert summed(spread, 0) == count
    assert summed(masked, 0) == (count / 16) ** 2
    assert summed(torch.zeros(count), 0) == count
    assert counted(10, torch.tensor(1.0), torch.tensor(0.1)) == 10  # of few the root is more


def test_products_are_alike_where_both_factors_are():
    left = torch.stack([torch.full((4096,), 0.1), torch.linspace(0.5, 1.5, 4096)]).double()
    right = torch.stack([torch.full((4096,), 0.7), torch.linspace(0.5, 1.5, 4096)], 1).double()
    assert multiplied(left, right).tolist() == [[(4096 / 8) ** 2, 4096], [4096, 4096]]
