"""Sums, maxima and minima: 0 is sum, 1 max, 2 min."""

import triton
import triton.language as tl


@triton.jit
def neutral(FUNCTION: tl.constexpr):
    """What changes nothing."""
    if FUNCTION == 0:
        value: tl.constexpr = 0.0
    elif FUNCTION == 1:
        value: tl.constexpr = float("-inf")
    else:
        value: tl.constexpr = float("inf")
    return value


@triton.jit
def _larger(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _smaller(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def combine(a, b, FUNCTION: tl.constexpr):
    """A NaN is kept, which tl.maximum and tl.minimum let go."""
    if FUNCTION == 0:
        return a + b
    elif FUNCTION == 1:
        return _larger(a, b)
    else:
        return _smaller(a, b)


@triton.jit
def reduced(x, FUNCTION: tl.constexpr, AXIS: tl.constexpr = 0):
    """Along one axis of a tile."""
    if FUNCTION == 0:
        return tl.sum(x, axis=AXIS)
    elif FUNCTION == 1:
        return tl.reduce(x, AXIS, _larger)
    else:
        return tl.reduce(x, AXIS, _smaller)
