"""Activations and their derivatives by number: `gelu` is the exact form with erf, `relu` lets NaN through."""

import math

import numpy as np
from numba import cuda

from touchstone.backends.numba.lib.ptx import fast_divide, fast_exp, fast_exp2
from touchstone.backends.signatures._activations import ACTIVATIONS, check_activation

NONE = 0
_GELU, _GELU_TANH, _SILU, _RELU, _SIGMOID, _QUICK_GELU, _MISH, _ELU, _HARDSWISH, _HARDSHRINK, _IDENTITY = range(
    1, 1 + len(ACTIVATIONS)
)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_RSQRT_2PI = np.float32(1 / math.sqrt(2 * math.pi))
_TANH_SCALE = np.float32(2 * math.sqrt(2 / math.pi))  # twice, for 2 sigmoid(2 u) = 1 + tanh(u)
_QUICK, _TWO, _THREE, _SIXTH, _THIRD = (np.float32(x) for x in (1.702, 2, 3, 1 / 6, 1 / 3))
_P1, _P2, _P3, _P4 = (np.float32(x) for x in (-1.15110576, -0.459204912, -0.0525050275, 0.00707547087))
_P5, _P6, _P7, _P8 = (np.float32(x) for x in (-0.000145869388, -0.000182547898, 3.86208085e-05, -2.77205436e-06))
_TANH_CUBE, _TANH_SLOPE = np.float32(0.044715), np.float32(3 * 0.044715)


def number(activation: str) -> int:
    """The number of an activation. Raises ValueError unless `activation` names one."""
    return 1 + ACTIVATIONS.index(check_activation(activation))


@cuda.jit(device=True)
def sigmoid(x):
    e = fast_exp(-abs(x))  # at most 1: no overflow at either end
    return fast_divide(_ONE if x >= _ZERO else e, _ONE + e)


@cuda.jit(device=True)
def normal_cdf(x):
    """The normal distribution, wrong by 2e-7 at most, as 2^P(-|x|) or 1 less that: half the instructions of erf. P is
    the polynomial of backends/triton/lib/activations.py."""
    t = abs(x)
    p = _P8 * t + _P7
    p = p * t + _P6
    p = p * t + _P5
    p = p * t + _P4
    p = p * t + _P3
    p = p * t + _P2
    p = p * t + _P1
    tail = fast_exp2(p * t - _ONE)
    return tail if x < _ZERO else _ONE - tail


@cuda.jit(device=True)
def mish_parts(x):
    """a and b with tanh(log(1 + exp(x))) = a / (a + b): ((1 + e^x)² - 1) / ((1 + e^x)² + 1) over the larger of 1 and
    e^2x."""
    e = fast_exp(-abs(x))
    if x >= _ZERO:
        return _ONE + _TWO * e, _TWO * e * e
    return e * (e + _TWO), _TWO


@cuda.jit(device=True)
def _gelu(x):
    return x * normal_cdf(x)


@cuda.jit(device=True)
def _gelu_tanh(x):
    return x * sigmoid(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))


@cuda.jit(device=True)
def _silu(x):
    return x * sigmoid(x)


@cuda.jit(device=True)
def _relu(x):
    return _ZERO if x < _ZERO else x


@cuda.jit(device=True)
def _quick_gelu(x):
    return x * sigmoid(_QUICK * x)


@cuda.jit(device=True)
def _mish(x):
    above, beside = mish_parts(x)
    return x * fast_divide(above, above + beside)


@cuda.jit(device=True)
def _elu(x):
    return x if x > _ZERO else fast_exp(x) - _ONE


@cuda.jit(device=True)
def _hardswish(x):
    if x <= -_THREE:
        return _ZERO
    return x if x >= _THREE else x * (x + _THREE) * _SIXTH


@cuda.jit(device=True)
def _hardshrink(x):
    return _ZERO if abs(x) <= _HALF else x


@cuda.jit(device=True)
def activate(x, activation):
    """An activation of a float32 by number; 0 is the identity too."""
    if activation == _GELU:
        return _gelu(x)
    if activation == _GELU_TANH:
        return _gelu_tanh(x)
    if activation == _SILU:
        return _silu(x)
    if activation == _RELU:
        return _relu(x)
    if activation == _SIGMOID:
        return sigmoid(x)
    if activation == _QUICK_GELU:
        return _quick_gelu(x)
    if activation == _MISH:
        return _mish(x)
    if activation == _ELU:
        return _elu(x)
    if activation == _HARDSWISH:
        return _hardswish(x)
    if activation == _HARDSHRINK:
        return _hardshrink(x)
    return x


def _for_all(function):
    """`function` of the first `count` elements of a local array, in place."""

    @cuda.jit(device=True)
    def run(values, count):
        for i in range(count):
            values[i] = function(values[i])

    return run


_gelus, _gelu_tanhs, _silus, _relus, _sigmoids = map(_for_all, (_gelu, _gelu_tanh, _silu, _relu, sigmoid))
_quick_gelus, _mishes, _elus, _hardswishes = map(_for_all, (_quick_gelu, _mish, _elu, _hardswish))
_hardshrinks = _for_all(_hardshrink)


@cuda.jit(device=True)
def activate_all(values, count, activation):
    """`activate` of the first `count` elements of a local array, in place: one way through the branches for all."""
    if activation == _GELU:
        _gelus(values, count)
    elif activation == _GELU_TANH:
        _gelu_tanhs(values, count)
    elif activation == _SILU:
        _silus(values, count)
    elif activation == _RELU:
        _relus(values, count)
    elif activation == _SIGMOID:
        _sigmoids(values, count)
    elif activation == _QUICK_GELU:
        _quick_gelus(values, count)
    elif activation == _MISH:
        _mishes(values, count)
    elif activation == _ELU:
        _elus(values, count)
    elif activation == _HARDSWISH:
        _hardswishes(values, count)
    elif activation == _HARDSHRINK:
        _hardshrinks(values, count)


@cuda.jit(device=True)
def slope(x, activation):
    """The derivative of `activate`; relu's at 0 is 0."""
    if activation == _GELU:
        return normal_cdf(x) + x * _RSQRT_2PI * fast_exp(-_HALF * x * x)
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
        per = fast_divide(_ONE, above + beside)
        return above * per + x * (beside * per) * (above * per + _ONE) * sigmoid(x)
    if activation == _ELU:
        return fast_exp(x) if x <= _ZERO else _ONE
    if activation == _HARDSWISH:
        if x <= -_THREE:
            return _ZERO
        return x * _THIRD + _HALF if x < _THREE else _ONE
    if activation == _HARDSHRINK:
        return _ZERO if abs(x) <= _HALF else _ONE
    return _ONE
