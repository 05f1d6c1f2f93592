"""Dropout that also returns one bit for each element, 1 where it is kept: y, and 32 bits to a word.

four: one call of Philox for four elements, and a program adds up its bits to words of 32 [oneflow2022drop]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._dropout import axes, checked, words_of
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.philox import drop, kept, place, rows_of_elements, rows_of_words
from touchstone.backends.triton.lib.philox import words_of as philox_words
from touchstone.backends.variants import variant


@triton.jit
def _bit(word, threshold, at: tl.constexpr):
    return kept(word, threshold).to(tl.uint32) << at


@triton.jit(do_not_specialize=["threshold", "seed", "offset"])
def _four_kernel(
    x_ptr, y_ptr, bits_ptr, size, n1, n2, n3, s0, s1, s2, s3, threshold, scale, seed, offset, BLOCK: tl.constexpr
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    r0, r1, r2, r3 = philox_words(first // 4 + tl.arange(0, BLOCK // 4), seed, offset)
    word = rows_of_words(r0, r1, r2, r3)
    e = rows_of_elements(first, BLOCK // 4)
    at = place(e, n1, n2, n3, s0, s1, s2, s3)
    if first + BLOCK <= size:
        drop(x_ptr, y_ptr, at, e, None, word, threshold, scale)
    else:
        drop(x_ptr, y_ptr, at, e, e < size, word, threshold, scale)

    # From the words before they are joined: their bits, four to a block, stay in the threads that made them.
    four = _bit(r0, threshold, 0) | _bit(r1, threshold, 1) | _bit(r2, threshold, 2) | _bit(r3, threshold, 3)
    left = tl.minimum(tl.maximum(size - (first + 4 * tl.arange(0, BLOCK // 4)), 0), 4)
    four &= ((1 << left) - 1).to(tl.uint32)
    fours = tl.reshape(four, [BLOCK // 32, 8]) << (4 * tl.arange(0, 8)).to(tl.uint32)[None, :]
    w = first // 32 + tl.arange(0, BLOCK // 32)
    tl.store(bits_ptr + w, tl.sum(fours, axis=1).to(tl.int32, bitcast=True), mask=w * 32 < size)


@variant()
def four(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x of any shape and strides, four at most that do not merge -> y of its shape, bits (ceil(n/32),) int32.

    Source: [oneflow2022drop].
    """
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bits = torch.empty(words_of(x), dtype=torch.int32, device=x.device)
    if y.numel():
        sizes, strides = axes(x)
        programs = ceil_div(x.numel(), 1024)
        _four_kernel[(programs,)](x, y, bits, x.numel(), *sizes[1:], *strides, *rule, BLOCK=1024)
    return y, bits
