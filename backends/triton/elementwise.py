"""y = a + b or a·b of two tensors of one shape, whatever its rank.

naive: a program has 1024 elements and computes where each lies from four sizes and strides [tillet2019]
vectorised: where elements lie side by side in both, their numbers are their offsets: accesses of 16 bytes [xlite2025]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.elementwise import checked_output, in_four_axes
from touchstone.backends.triton.lib.pointwise import is_flat, load, programs
from touchstone.backends.variants import variant


@triton.jit
def _combine(a, b, FUNCTION: tl.constexpr):
    if FUNCTION == "add":
        return a.to(tl.float32) + b.to(tl.float32)
    return a.to(tl.float32) * b.to(tl.float32)


@triton.jit
def _offsets(i, n1, n2, n3, s0, s1, s2, s3):
    at = i % n3 * s3
    i = i // n3
    at += i % n2 * s2
    i = i // n2
    return at + i % n1 * s1 + i // n1 * s0


@triton.jit
def _naive_kernel(
    a_ptr,
    b_ptr,
    y_ptr,
    size,
    n1,
    n2,
    n3,
    a0,
    a1,
    a2,
    a3,
    b0,
    b1,
    b2,
    b3,
    y0,
    y1,
    y2,
    y3,
    FUNCTION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + _offsets(i, n1, n2, n3, a0, a1, a2, a3), mask=i < size, other=0.0)
    b = tl.load(b_ptr + _offsets(i, n1, n2, n3, b0, b1, b2, b3), mask=i < size, other=0.0)
    y = _combine(a, b, FUNCTION).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + _offsets(i, n1, n2, n3, y0, y1, y2, y3), y, mask=i < size)


@variant()
def naive(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """a and b of any one shape -> y of that shape. Any strides. Source: [tillet2019]."""
    y = checked_output(a, b, function)
    for first, second, out in in_four_axes(a, b, y) if y.numel() else ():
        strides = (*first.stride(), *second.stride(), *out.stride())
        operands = (first, second, out, out.numel(), *out.shape[1:], *strides)
        _naive_kernel[programs(out.numel(), 1024)](*operands, FUNCTION=function, BLOCK=1024)
    return y


@triton.jit
def _move(a_ptr, b_ptr, y_ptr, i, inside, FUNCTION: tl.constexpr):
    y = _combine(load(a_ptr + i, inside), load(b_ptr + i, inside), FUNCTION)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _vectorised_kernel(a_ptr, b_ptr, y_ptr, size, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        _move(a_ptr, b_ptr, y_ptr, i, None, FUNCTION)
    else:
        _move(a_ptr, b_ptr, y_ptr, i, i < size, FUNCTION)


@variant()
def vectorised(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """a and b of any one shape -> y of that shape. Any strides; where elements lie apart, as in `naive`.

    Source: [xlite2025].
    """
    y = checked_output(a, b, function)
    if not is_flat(a, b):
        return naive(a, b, function=function)
    if y.numel():
        grid = programs(y.numel(), 2048)
        _vectorised_kernel[grid](a, b, y, y.numel(), FUNCTION=function, BLOCK=2048, num_warps=8)
    return y
