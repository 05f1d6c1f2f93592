"""aligned: gluon with an operand first copied to rows that start at lines of the cache: where that takes less time, and
where a descriptor wants it (Hopper)."""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported, shapes
from touchstone.backends.signatures.matmul import LINE, along_lines
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import undescribed
from touchstone.backends.triton.matmul.gluon import gluon
from touchstone.backends.variants import HALF, variant


@triton.jit(do_not_specialize=["rows", "units", "stride_units", "height"])
def _rows_kernel(
    x_ptr,
    y_ptr,
    rows,
    units,
    stride_units,
    stride_c,
    height,
    width,
    stride_y,
    UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """y (height, width) is x (rows, units * UNIT), cut off or with 0 beyond it. UNIT is 8 where x can be read by 16
    bytes, else 1: the compiler has to know of multiples of 8 in order to move so many at a time."""
    across = tl.cdiv(width, BLOCK_C)
    r = (tl.program_id(0) // across).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    c = (tl.program_id(0) % across).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    inside = (r < rows) & (c < units * UNIT)
    x = tl.load(x_ptr + r * (stride_units * UNIT) + c * stride_c, mask=inside, other=0.0)
    tl.store(y_ptr + r * stride_y + c, x, mask=(r < height) & (c < width))


def _copy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y, whose last axis is contiguous, filled with x, cut off or with 0 beyond it."""
    (rows, cols), (height, width) = x.shape, y.shape
    by_16_bytes = x.stride(1) == 1 and x.stride(0) % 8 == cols % 8 == x.data_ptr() % 16 == 0
    unit = 8 if by_16_bytes else 1
    grid = (ceil_div(height, 8) * ceil_div(width, 512),)
    sizes = (rows, cols // unit, x.stride(0) // unit, x.stride(1), height, width, y.stride(0))
    _rows_kernel[grid](x, y, *sizes, UNIT=unit, BLOCK_R=8, BLOCK_C=512, num_warps=8)
    return y


def _in_lines(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) and 0 beyond it, to multiples of 8, with rows, or columns where those are contiguous in x, that
    start at lines."""
    if x.stride(0) == 1 != x.stride(1):
        return _in_lines(x.t()).t()
    rows, cols = (ceil_div(size, 8) * 8 for size in x.shape)
    return _copy(x, x.new_empty(rows, ceil_div(cols, LINE) * LINE))[:, :cols]


def _copied(a: torch.Tensor, b: torch.Tensor) -> tuple[bool, bool]:
    """Whether a product of `a` and `b` takes less time with a copy of each.

    What rows at lines save of an H200's products of 1000 to 10000 a side: 10 % those of a, 17 % those of b.
    """
    seconds = 2 * a.numel() * b.shape[1] / 650e12
    saved = [
        0.0 if along_lines(x) else share * seconds - (4e-6 + 4 * x.numel() / 3.5e12)
        for x, share in ((a, 0.1), (b, 0.17))
    ]
    return saved[0] > max(saved[1], 0), saved[1] >= max(saved[0], 1e-9)


@variant(needs="sm_90a", dtypes=HALF)
def aligned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Declines float32. Source: [wright2024].

    Rows that lie across lines are asked for twice; those of b, which fewer tiles share, cost more.
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    if a.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    if 0 in (M, K, N):
        return gluon(a, b)
    a_pays, b_pays = _copied(a, b)
    if a_pays or undescribed(a, "a"):
        a = _in_lines(a)[:M, :K]
    if b_pays or undescribed(b, "b") or N % 8:
        b = _in_lines(b)[:K]
    c = gluon(a, b)
    return c if c.shape[1] == N else _copy(c, c.new_empty(M, N))
