"""Triton in a closure over a block size, launchers in a table by size, and a counter of programs that is kept."""

import torch
import triton
import triton.language as tl


def made(block):
    @triton.jit
    def kernel(y, x, done, rows, cols, row_stride, col_stride, BLOCK: tl.constexpr):
        row = tl.atomic_add(done, 1)
        while row < rows:
            column = tl.arange(0, BLOCK)
            at = x + row.to(tl.int64) * row_stride + column.to(tl.int64) * col_stride
            given = tl.load(at, mask=column < cols, other=-float("inf")).to(tl.float32)
            weights = tl.exp(given - tl.max(given, 0))
            value = weights / tl.sum(weights, 0)
            tl.store(y + row.to(tl.int64) * cols + column, value.to(y.dtype.element_ty), mask=column < cols)
            row = tl.atomic_add(done, 1)

    done = {}

    def launch(x):
        y = x.new_empty(x.shape)
        counter = done.setdefault(x.device, torch.zeros(1, dtype=torch.int32, device=x.device))
        counter.zero_()
        kernel[(4,)](y, x, counter, *x.shape, *x.stride(), BLOCK=block)
        return y

    return launch


_launchers: dict = {}


def softmax(x):
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(x.shape[1])
    if block not in _launchers:
        _launchers[block] = made(block)
    return _launchers[block](x)
