"""Activations and their derivatives by number: `gelu` is the exact form with erf, `relu` lets NaN through."""

import math

import numpy as np
from numba import cuda

from touchstone.backends.signatures._activations import ACTIVATIONS, check_activation

NONE = 0
_GELU, _GELU_TANH, _SILU, _RELU, _SIGMOID, _QUICK_GELU, _MISH, _ELU, _HARDSWISH, _HARDSHRINK, _IDENTITY = range(
    1, 1 + len(ACTIVATIONS)
)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_RSQRT_2 = np.float32(math.sqrt(0.5))
_RSQRT_2PI = np.float32(1 / math.sqrt(2 * math.pi))
_TANH_SCALE = np.float32(2 * math.sqrt(2 / math.pi))  # twice, for 2 sigmoid(2 u) = 1 + tanh(u)
_QUICK, _TWO, _THREE, _SIXTH, _THIRD = (np.float32(x) for x in (1.702, 2, 3, 1 / 6, 1 / 3))
_TANH_CUBE, _TANH_SLOPE = np.float32(0.044715), np.float32(3 * 0.044715)


def number(activation: str) -> int:
    """The number of an activation. Raises ValueError unless `activation` names one."""
    return 1 + ACTIVATIONS.index(check_activation(activation))


@cuda.jit(device=True)
def sigmoid(x):
    e = math.exp(-abs(x))  # at most 1: no overflow at either end
    return (_ONE if x >= _ZERO else e) / (_ONE + e)


@cuda.jit(device=True)
def mish_parts(x):
    """a and b with tanh(log(1 + exp(x))) = a / (a + b): ((1 + e^x)² - 1) / ((1 + e^x)² + 1) over the larger of 1 and
    e^2x."""
    e = math.exp(-abs(x))
    if x >= _ZERO:
        return _ONE + _TWO * e, _TWO * e * e
    return e * (e + _TWO), _TWO


@cuda.jit(device=True)
def activate(x, activation):
    """An activation of a float32 by number; 0 is the identity too."""
    if activation == _GELU:
        return _HALF * x * (_ONE + math.erf(x * _RSQRT_2))
    if activation == _GELU_TANH:
        return x * sigmoid(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))
    if activation == _SILU:
        return x * sigmoid(x)
    if activation == _RELU:
        return _ZERO if x < _ZERO else x
    if activation == _SIGMOID:
        return sigmoid(x)
    if activation == _QUICK_GELU:
        return x * sigmoid(_QUICK * x)
    if activation == _MISH:
        above, beside = mish_parts(x)
        return x * (above / (above + beside))
    if activation == _ELU:
        return x if x > _ZERO else math.exp(x) - _ONE
    if activation == _HARDSWISH:
        if x <= -_THREE:
            return _ZERO
        return x if x >= _THREE else x * (x + _THREE) * _SIXTH
    if activation == _HARDSHRINK:
        return _ZERO if abs(x) <= _HALF else x
    return x


@cuda.jit(device=True)
def slope(x, activation):
    """The derivative of `activate`; relu's at 0 is 0."""
    if activation == _GELU:
        return _HALF * (_ONE + math.erf(x * _RSQRT_2)) + x * _RSQRT_2PI * math.exp(-_HALF * x * x)
    if activation == _GELU_TANH:
        s = sigmoid(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))
        return s + x * s * (_ONE - s) * _TANH_SCALE * (_ONE + _TANH_SLOPE * x * x)
    if activation == _SILU:
        s = sigmoid(x)
        return s * (_ONE + x * (_ONE - s))
    if activation == _RELU:
        return _ZERO if x <= _ZERO else _ONE
    if activation == _SIGMOID:
        s = sigmoid(x)
        return s * (_ONE - s)
    if activation == _QUICK_GELU:
        s = sigmoid(_QUICK * x)
        return s * (_ONE + _QUICK * x * (_ONE - s))
    if activation == _MISH:
        above, beside = mish_parts(x)
        whole = above + beside
        return above / whole + x * (beside / whole) * ((above + whole) / whole) * sigmoid(x)
    if activation == _ELU:
        return math.exp(x) if x <= _ZERO else _ONE
    if activation == _HARDSWISH:
        if x <= -_THREE:
            return _ZERO
        return x * _THIRD + _HALF if x < _THREE else _ONE
    if activation == _HARDSHRINK:
        return _ZERO if abs(x) <= _HALF else _ONE
    return _ONE
