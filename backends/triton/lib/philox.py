"""Philox4x32-10 by the element [salmon2011]: element e of a tensor, counted row by row in 64 bits, has word e & 3 of
the four that the counter (e >> 2, offset) gives under the key `seed`, low words first.

Products are taken whole, in 64 bits, by one instruction each, where `tl.philox` takes their halves by two.

Launchers name seed, offset and threshold in `do_not_specialize`: they are new with each call, and a kernel compiled
anew where they are 1 or a multiple of 16 would come at every few calls.
"""

import triton
import triton.language as tl

from touchstone.backends.triton.lib.pointwise import load


@triton.jit
def words_of(block, seed, offset):
    """The four words of the elements 4·block to 4·block + 3, each a uint32 tile; `block` int64."""
    stream = tl.zeros_like(block) + offset
    c0, c1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    c2, c3 = stream.to(tl.uint32), (stream >> 32).to(tl.uint32)
    key = tl.cast(seed, tl.uint64)
    for turn in tl.static_range(10):
        k0, k1 = key + turn * 0x9E3779B9, (key >> 32) + turn * 0xBB67AE85
        first, second = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (second >> 32).to(tl.uint32) ^ c1 ^ k0.to(tl.uint32), second.to(tl.uint32)
        c2, c3 = (first >> 32).to(tl.uint32) ^ c3 ^ k1.to(tl.uint32), first.to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def word_of(e, seed, offset):
    """The word of each element, uint32: a call of Philox for each, and three of its four words unused."""
    r0, r1, r2, r3 = words_of(e >> 2, seed, offset)
    place = e & 3
    return tl.where(place == 0, r0, tl.where(place == 1, r1, tl.where(place == 2, r2, r3)))


@triton.jit
def rows_of_words(r0, r1, r2, r3):
    """Four tiles of words as rows of four, the words of a block in each: they stay in the threads that made them, where
    a tile of one axis would go through shared memory."""
    return tl.reshape(tl.join(tl.join(r0, r2), tl.join(r1, r3)), [r0.shape[0], 4])


@triton.jit
def rows_of_elements(first, ROWS: tl.constexpr):
    """The numbers of the elements from `first` on in rows of four, as rows_of_words has their words."""
    return first + tl.arange(0, ROWS)[:, None] * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def kept(word, threshold):
    """Where the word is `threshold` or more: a comparison of 32 bits, though a threshold may be 2^32 and keep none."""
    return (word >= threshold.to(tl.uint32)) & (threshold <= 0xFFFFFFFF)


@triton.jit
def dropped_out(x, word, threshold, scale):
    """x·scale where the word is `threshold` or more, else 0: x may be NaN, so it is no product with a mask."""
    return tl.where(kept(word, threshold), x * scale, 0.0)


@triton.jit
def drop(x_ptr, y_ptr, x_at, y_at, inside, word, threshold, scale):
    """Dropout of the elements that are `inside` (None: of all), by the word of each."""
    tl.store(y_ptr + y_at, dropped_out(load(x_ptr + x_at, inside), word, threshold, scale), mask=inside)


@triton.jit
def place(e, n1, n2, n3, s0, s1, s2, s3):
    """Where element e of an operand of four axes lies; with inner sizes 1, which Triton knows when it compiles, at
    e·s0."""
    return e // n3 // n2 // n1 * s0 + e // n3 // n2 % n1 * s1 + e // n3 % n2 * s2 + e % n3 * s3
