"""Reductions and scans by functions of one's own: one without a branch, and one that has one."""

import torch
import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def either(a, b):
    if a > b:
        return a
    return b


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def softmax_kernel(x, y, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK).to(tl.int64)
    inside = col < cols
    given = tl.load(x + row * row_stride + col * col_stride, mask=inside, other=-float("inf")).to(tl.float32)
    most = tl.reduce(given, 0, larger)
    if BLOCK <= 64:
        most = tl.reduce(given, 0, either)
    e = tl.exp(given - most)
    sums = tl.associative_scan(e, 0, add)
    total = tl.sum(tl.where(col == BLOCK - 1, sums, 0.0), 0)
    tl.store(y + row * cols + col, (e / total).to(y.dtype.element_ty), mask=inside)


def softmax(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(x.shape[1])
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], *x.stride(), BLOCK=block)
    return y
