"""What a warp does with the scores of its rows, in registers as mma.m16n8k16 leaves them."""

import functools
import math

import numpy as np
from numba import cuda, float32

from touchstone.backends.numba.lib.ptx import exp2

_LOW = np.float32(-math.inf)
_ALL = 0xFFFFFFFF
_LAG = np.float32(8)  # float16 holds exp2 of it, and float32 as many of these as there are keys


@functools.cache
def softmax_for(T, S, W):
    """The device function for 16·T rows, scores with 8·S keys and o of 8·W columns."""

    @cuda.jit(device=True)
    def softmax(s, o, m, l, scale):
        """Scores become exp2(s·scale - m); sums and o so far are rescaled where m follows the maximum. scale >= 0.

        m is the maximum or up to _LAG less, so that most tiles rescale nothing.
        """
        alpha, moved = cuda.local.array((T, 2), float32), False
        for t in range(T):
            for h in range(2):
                top = _LOW
                for n in range(S):
                    top = max(top, max(s[t, n, 2 * h], s[t, n, 2 * h + 1]))
                top = max(top, cuda.shfl_xor_sync(_ALL, top, 1))
                top = max(top, cuda.shfl_xor_sync(_ALL, top, 2)) * scale
                old = m[t, h]
                m[t, h] = top if top - old > _LAG else old
                moved |= m[t, h] != old
                base = float32(0) if abs(m[t, h]) == -_LOW else m[t, h]  # inf - inf is NaN: such a row stays unshifted
                alpha[t, h] = exp2(old - base)
                total = float32(0)
                for n in range(S):
                    for e in range(2):
                        s[t, n, 2 * h + e] = exp2(cuda.fma(s[t, n, 2 * h + e], scale, -base))
                        total += s[t, n, 2 * h + e]
                l[t, h] = l[t, h] * alpha[t, h] + total  # of this thread's columns; four threads share a row
        if cuda.any_sync(_ALL, moved):
            for t in range(T):
                for n in range(W):
                    for e in range(4):
                        o[t, n, e] *= alpha[t, e // 2]

    return softmax
