"""Philox4x32-10 by the element [salmon2011]: element e of a tensor, counted row by row in 64 bits, has word e & 3 of
the four that the counter (e >> 2, offset) gives under the key `seed`, low words first.

All numbers are uint64, so that a product of two words of 32 bits is whole: Numba has no multiplication that gives the
high half alone, and the compiler finds it in this one.
"""

from numba import cuda, float32, uint32, uint64

_LOW, _SHIFT = 0xFFFFFFFF, 32


@cuda.jit(device=True)
def philox(block, seed, offset):
    """The words of the elements 4·block to 4·block + 3: four uint32. All three are uint64."""
    c0, c1 = block & uint64(_LOW), block >> uint64(_SHIFT)
    c2, c3 = offset & uint64(_LOW), offset >> uint64(_SHIFT)
    k0, k1 = seed & uint64(_LOW), seed >> uint64(_SHIFT)
    for _ in range(10):
        first, second = c0 * uint64(0xD2511F53), c2 * uint64(0xCD9E8D57)
        c0, c1 = (second >> uint64(_SHIFT)) ^ c1 ^ k0, second & uint64(_LOW)
        c2, c3 = (first >> uint64(_SHIFT)) ^ c3 ^ k1, first & uint64(_LOW)
        k0, k1 = (k0 + uint64(0x9E3779B9)) & uint64(_LOW), (k1 + uint64(0xBB67AE85)) & uint64(_LOW)
    return uint32(c0), uint32(c1), uint32(c2), uint32(c3)


@cuda.jit(device=True)
def word_of(e, seed, offset):
    """The word of one element: three of the four that Philox makes go unused."""
    words = philox(e >> uint64(2), seed, offset)
    return words[e & uint64(3)]


@cuda.jit(device=True)
def dropped_out(value, word, threshold, scale):
    """value·scale, float32, where the word is `threshold` or more, else 0: a value may be NaN, so it is no product with
    a mask. A threshold of 2^32 keeps nothing."""
    return value * scale if word >= uint32(threshold) and threshold <= _LOW else float32(0)  # compared in 32 bits


@cuda.jit(device=True)
def element(x, e):
    """Element e, counted row by row, of an array of four axes, as float32."""
    n1, n2, n3 = uint64(x.shape[1]), uint64(x.shape[2]), uint64(x.shape[3])
    zero = uint64(0)
    if n1 * n2 * n3 == uint64(1):
        return float32(x[e, zero, zero, zero])
    row = e // n3
    return float32(x[row // n2 // n1, row // n2 % n1, row % n2, e % n3])
