"""Dropout: y = x/(1 - p) where Philox's word for the element is at least floor(p·2^32), else 0.

naive: Philox is called for every element, which takes one of the four words that it makes [salmon2011]
four: one call for four elements, with its words side by side: a quarter of the products [triton2021dropout]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._dropout import axes, checked
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.philox import (
    drop,
    dropped_out,
    place,
    rows_of_elements,
    rows_of_words,
    word_of,
    words_of,
)
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=["threshold", "seed", "offset"])
def _naive_kernel(x_ptr, y_ptr, size, n1, n2, n3, s0, s1, s2, s3, threshold, scale, seed, offset, BLOCK: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = word_of(e, seed, offset)
    x = tl.load(x_ptr + place(e, n1, n2, n3, s0, s1, s2, s3), mask=e < size, other=0.0).to(tl.float32)
    tl.store(y_ptr + e, dropped_out(x, word, threshold, scale), mask=e < size)


@variant()
def naive(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape and strides, four at most that do not merge -> y of its shape. Source: [salmon2011]."""
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        sizes, strides = axes(x)
        _naive_kernel[(ceil_div(x.numel(), 1024),)](x, y, x.numel(), *sizes[1:], *strides, *rule, BLOCK=1024)
    return y


@triton.jit(do_not_specialize=["threshold", "seed", "offset"])
def _four_kernel(x_ptr, y_ptr, size, n1, n2, n3, s0, s1, s2, s3, threshold, scale, seed, offset, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    r0, r1, r2, r3 = words_of(first // 4 + tl.arange(0, BLOCK // 4), seed, offset)
    word = rows_of_words(r0, r1, r2, r3)
    e = rows_of_elements(first, BLOCK // 4)
    at = place(e, n1, n2, n3, s0, s1, s2, s3)
    if first + BLOCK <= size:
        drop(x_ptr, y_ptr, at, e, None, word, threshold, scale)
    else:
        drop(x_ptr, y_ptr, at, e, e < size, word, threshold, scale)


@variant()
def four(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape and strides, four at most that do not merge -> y of its shape. Source: [triton2021dropout]."""
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        sizes, strides = axes(x)
        _four_kernel[(ceil_div(x.numel(), 1024),)](x, y, x.numel(), *sizes[1:], *strides, *rule, BLOCK=1024)
    return y
