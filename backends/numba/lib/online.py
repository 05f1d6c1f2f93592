"""The running maximum m of a row and the sum l of exp(x - m), from one pass over x."""

import math

import numpy as np
from numba import cuda, float32

from touchstone.backends.numba.lib.reductions import row_max, row_sum, warp_max, warp_sum

_LOW, _HIGH, _NAN = np.float32(-math.inf), np.float32(math.inf), np.float32(math.nan)


@cuda.jit(device=True)
def shift(m):
    """What is subtracted in place of m: x - m is NaN where both are infinite.

    Leading columns of -inf would poison l, and a +inf would make its lse NaN. So l is the sum of exp(x - shift(m)).
    """
    return float32(0) if abs(m) == _HIGH else m


@cuda.jit(device=True)
def fold(m, l, value):
    """(m, l) with one more column; `max` drops a NaN, which then is in l."""
    above = max(m, value)
    return above, l * math.exp(m - shift(above)) + math.exp(value - shift(above))


@cuda.jit(device=True)
def warp_merge(m, l):
    """The (m, l) of the 32 lanes, in every lane."""
    top = warp_max(m)
    return top, warp_sum(l * math.exp(m - shift(top)))


@cuda.jit(device=True)
def row_merge(m, l):
    """The (m, l) of the blockDim.x threads of a row. Rows of one warp share a block along y and meet no barrier."""
    top = row_max(m)
    return top, row_sum(l * math.exp(m - shift(top)))


@cuda.jit(device=True)
def denominator(m, l):
    """torch.softmax of a row with +inf is NaN; of a row of -inf it is 0 / 0, which is NaN without help."""
    return _NAN if m == _HIGH else l


@cuda.jit(device=True)
def log_sum(m, l):
    """The log-sum-exp of a row, -inf where all of it is -inf."""
    return shift(m) + math.log(l) if l != float32(0) else _LOW
