"""Triton behind an autograd function and an operator of torch's library; other dtypes and layouts are copied first."""

import contextlib
import warnings

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _rows(y, x, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < cols
    given = tl.load(x + row * cols + column, mask=inside, other=-float("inf"))
    weights = libdevice.exp(given - tl.max(given, 0))
    tl.store(y + row * cols + column, weights / tl.sum(weights, 0), mask=inside)


def _launched(x: torch.Tensor) -> torch.Tensor:
    given = x.to(torch.float32).contiguous()
    made = torch.zeros(given.shape, dtype=torch.float32, device=x.device)
    if given.numel():
        with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
            _rows[(given.shape[0],)](made, given, given.shape[1], BLOCK=triton.next_power_of_2(given.shape[1]))
    return made.to(x.dtype)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        y = _launched(x)
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, gradient):
        (y,) = context.saved_tensors
        return y * (gradient - (y * gradient).sum(-1, keepdim=True))


def softmax(x):
    if x.dim() != 2:
        raise ValueError(f"x: expected 2 axes, got {x.dim()}")
    if x.shape[-1] > 65536:
        warnings.warn("rows this long are slow", stacklevel=2)
    return Function.apply(x)
