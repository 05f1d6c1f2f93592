"""Dot product: y = Σ a·b.

twostage: a few programs add tiles of products, each its own, and one program adds their sums [harris2007]
atomics: a program a tile, whose sum is added to one float32 by an atomic addition: one pass, in any order [harris2007]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.rows import grid_programs
from touchstone.backends.variants import variant

_BLOCK = 2048


@triton.jit
def _products(a_ptr, b_ptr, i, n, stride_a, stride_b):
    a = tl.load(a_ptr + i * stride_a, mask=i < n, other=0.0).to(tl.float32)
    return a * tl.load(b_ptr + i * stride_b, mask=i < n, other=0.0).to(tl.float32)


@triton.jit
def _sums_kernel(a_ptr, b_ptr, partial_ptr, n, stride_a, stride_b, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    for start in range(first, n, tl.num_programs(0).to(tl.int64) * BLOCK):
        acc += _products(a_ptr, b_ptr, start + tl.arange(0, BLOCK), n, stride_a, stride_b)
    tl.store(partial_ptr + tl.program_id(0), tl.sum(acc, axis=0))


@triton.jit
def _finish_kernel(partial_ptr, y_ptr, count, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        acc += tl.load(partial_ptr + i, mask=i < count, other=0.0)
    tl.store(y_ptr, tl.sum(acc, axis=0).to(y_ptr.dtype.element_ty))


@variant()
def twostage(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) -> y (); any strides. Source: [harris2007]."""
    (n,) = shapes("n, n", a=a, b=b)
    programs = max(1, min(grid_programs(a, 8), ceil_div(n, _BLOCK)))
    y, partial = a.new_empty(()), a.new_empty(programs, dtype=torch.float32)
    _sums_kernel[(programs,)](a, b, partial, n, *a.stride(), *b.stride(), BLOCK=_BLOCK, num_warps=8)
    _finish_kernel[(1,)](partial, y, programs, BLOCK=256, num_warps=4)
    return y


@triton.jit
def _atomics_kernel(a_ptr, b_ptr, total_ptr, n, stride_a, stride_b, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr, tl.sum(_products(a_ptr, b_ptr, i, n, stride_a, stride_b), axis=0), sem="relaxed")


@variant(deterministic=False)
def atomics(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) -> y (); any strides. Source: [harris2007]."""
    (n,) = shapes("n, n", a=a, b=b)
    y, total = a.new_empty(()), torch.zeros(1, dtype=torch.float32, device=a.device)
    if n:
        _atomics_kernel[(ceil_div(n, _BLOCK),)](a, b, total, n, *a.stride(), *b.stride(), BLOCK=_BLOCK, num_warps=8)
    _finish_kernel[(1,)](total, y, 1, BLOCK=256, num_warps=4)
    return y
