"""float32 matrices in two tf32 pieces each, as tf32x3_presplit and tf32x3_gluon multiply them."""

import torch
import triton
import triton.language as tl

from touchstone.backends.sizes import ceil_div


@triton.jit
def _rounded(x):
    """x to 10 bits of mantissa, as the tensor cores read it; what would round to infinity is cut off instead."""
    bits = x.to(tl.int32, bitcast=True)
    near = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    cut = (bits & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x != x, x, tl.where(tl.abs(near) == float("inf"), cut, near))


@triton.jit
def _cut_kernel(x_ptr, pieces_ptr, R, C, pitch, stride_xr, stride_xc, BLOCK: tl.constexpr):
    """x (R, C) in two pieces: pieces (2, R, pitch), rows contiguous."""
    tiles = tl.cdiv(C, BLOCK)
    r = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    c = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (r < R) & (c < C)
    x = tl.load(x_ptr + r * stride_xr + c * stride_xc, mask=inside, other=0.0)
    large = _rounded(x)
    small = tl.where(tl.abs(x) < float("inf"), _rounded(x - large), 0.0)  # inf - inf is NaN
    tl.store(pieces_ptr + r * pitch + c, large, mask=inside)
    tl.store(pieces_ptr + (r + R) * pitch + c, small, mask=inside)


def cut(x: torch.Tensor) -> torch.Tensor:
    """The two pieces of x (R, C), (2, R, pitch); rows start on 16 bytes, as a descriptor wants them."""
    R, C = x.shape
    pieces = x.new_empty(2, R, ceil_div(C, 4) * 4)
    grid = (ceil_div(R, 64) * ceil_div(C, 64),)
    _cut_kernel[grid](x, pieces, R, C, pieces.shape[2], *x.stride(), BLOCK=64, num_warps=4)
    return pieces
