"""The gradient of dropout_bitmask: dx = dy/(1 - p) where the element's bit is 1, else 0.

four: a program loads a word of bits once for 32 elements, and no Philox is called [oneflow2022drop]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures._dropout import axes
from touchstone.backends.signatures.dropout_bitmask_backward import checked_scale
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.philox import place
from touchstone.backends.variants import variant


@triton.jit
def _four_kernel(dy_ptr, bits_ptr, dx_ptr, size, n1, n2, n3, s0, s1, s2, s3, stride_bits, scale, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    w = first // 32 + tl.arange(0, BLOCK // 32)
    word = tl.load(bits_ptr + w * stride_bits, mask=w * 32 < size, other=0)
    kept = tl.reshape(word[:, None] >> tl.arange(0, 32)[None, :] & 1, [BLOCK])
    e = first + tl.arange(0, BLOCK)
    dy = tl.load(dy_ptr + place(e, n1, n2, n3, s0, s1, s2, s3), mask=e < size, other=0.0).to(tl.float32)
    tl.store(dx_ptr + e, tl.where(kept == 1, dy * scale, 0.0), mask=e < size)


@variant()
def four(dy: torch.Tensor, bits: torch.Tensor, *, p: float = 0.5) -> torch.Tensor:
    """dy of any shape and strides, four at most that do not merge; bits (ceil(n/32),) int32 -> dx of dy's shape.

    Source: [oneflow2022drop].
    """
    scale = checked_scale(dy, bits, p)
    dx = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
    if dx.numel():
        sizes, strides = axes(dy)
        steps = (*sizes[1:], *strides, *bits.stride())
        _four_kernel[(ceil_div(dy.numel(), 1024),)](dy, bits, dx, dy.numel(), *steps, scale, BLOCK=1024)
    return dx
