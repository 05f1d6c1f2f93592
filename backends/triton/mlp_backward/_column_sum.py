"""The gradient of a bias: the sum over the rows."""

import torch
import triton
import triton.language as tl

from touchstone.backends.sizes import ceil_div


@triton.jit
def _column_sum_kernel(
    x_ptr, sum_ptr, rows, cols, stride_xm, stride_xn, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr
):
    col = tl.program_id(0).to(tl.int64) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    acc = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for start in range(0, rows, BLOCK_ROWS):
        row = (start + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
        inside = (row[:, None] < rows) & (col[None, :] < cols)
        acc += tl.load(x_ptr + row[:, None] * stride_xm + col[None, :] * stride_xn, mask=inside, other=0.0)
    total = tl.sum(acc, axis=0)
    tl.store(sum_ptr + col, total.to(sum_ptr.dtype.element_ty), mask=col < cols)


def column_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the rows of x (rows, cols)."""
    rows, cols = x.shape
    total = x.new_empty(cols)
    if cols:
        grid = (ceil_div(cols, 32),)
        _column_sum_kernel[grid](x, total, rows, cols, *x.stride(), BLOCK_ROWS=64, BLOCK_COLS=32, num_warps=4)
    return total
