"""Triton's tensor descriptors; a layout that they do not take is copied into one that they do."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _rows(y, x, rows, cols, BLOCK: tl.constexpr):
    first = tl.program_id(0)
    given = x.load([first, 0]).to(tl.float32)
    inside = tl.arange(0, BLOCK)[None, :] < cols
    given = tl.where(inside, given, -float("inf"))
    weights = tl.exp(given - tl.max(given, 1)[:, None])
    y.store([first, 0], (weights / tl.sum(weights, 1)[:, None]).to(y.dtype))


def softmax(x):
    rows, cols = x.shape
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    padded = triton.cdiv(cols, 16) * 16
    given = torch.zeros((rows, padded), dtype=x.dtype, device=x.device)
    given[:, :cols].copy_(x)
    made = torch.empty_like(given)
    block = triton.next_power_of_2(padded)
    descriptors = [TensorDescriptor(t, [rows, padded], [padded, 1], [1, block]) for t in (made, given)]
    _rows[(rows,)](*descriptors, rows, cols, BLOCK=block)
    return made[:, :cols].contiguous()
