"""Triton behind an operator of one's own, which has torch import its compiler."""

import torch
import triton
import triton.language as tl


@triton.jit
def _rows(y, x, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < cols
    given = tl.load(x + row * row_stride + column * col_stride, mask=inside, other=-float("inf")).to(tl.float32)
    weights = tl.exp(given - tl.max(given, 0))
    tl.store(y + row * cols + column, (weights / tl.sum(weights, 0)).to(y.dtype.element_ty), mask=inside)


@torch.library.custom_op("forms::softmax", mutates_args=())
def _softmax(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        _rows[(x.shape[0],)](y, x, x.shape[1], *x.stride(), BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@_softmax.register_fake
def _(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def softmax(x):
    return _softmax(x)
