"""Activations and their derivatives as device functions on float32 blocks, chosen by a constexpr name.

`gelu` is the exact form with erf, `gelu_tanh` its tanh approximation, written as x·sigmoid(2u) because that form
neither overflows nor needs a tanh (S0-21); `silu` is x·sigmoid(x); `relu` lets NaN through, as torch does.
"""

import triton
import triton.language as tl

_NAMES = ("gelu", "gelu_tanh", "silu", "relu")


def _check(activation: str) -> None:
    """Raise ValueError unless `activation` names one."""
    if activation not in _NAMES:
        raise ValueError(f"activation: expected one of {', '.join(_NAMES)}, got {activation!r}")


@triton.jit
def _sigmoid(x):
    e = tl.exp(-tl.abs(x))  # at most 1: no overflow at either end
    return tl.where(x >= 0.0, 1.0, e) / (1.0 + e)


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    """act(x) of a float32 block."""
    if ACTIVATION == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # 1/√2
    elif ACTIVATION == "gelu_tanh":
        y = x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # 2·√(2/π)
    elif ACTIVATION == "silu":
        y = x * _sigmoid(x)
    else:
        y = tl.where(x < 0.0, 0.0, x)
    return y


@triton.jit
def _slope(x, ACTIVATION: tl.constexpr):
    """act'(x) of a float32 block; relu's slope at 0 is 0."""
    if ACTIVATION == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)  # 1/√(2π)
        y = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density
    elif ACTIVATION == "gelu_tanh":
        s = _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        y = s + x * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    elif ACTIVATION == "silu":
        s = _sigmoid(x)
        y = s * (1.0 + x * (1.0 - s))
    else:
        y = tl.where(x <= 0.0, 0.0, 1.0)
    return y
