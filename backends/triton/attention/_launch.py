"""What the launchers of attention and of its backward share, and attention's tiles for every head dimension."""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from touchstone.backends import Unsupported
from touchstone.backends.sizes import next_power_of_2
from touchstone.backends.triton.runtime.ready import kept

# Sizes whose value or alignment would not improve the code: one compilation serves them all. Strides are not among
# them: a head that is not known to start on 16 bytes is loaded element by element and not pipelined.
PLAIN = ["Hq", "Hkv", "Sq", "Sk"]

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_tile(x_ptr, rows, stride_row, row_end, cols, stride_col, col_end):
    """x[rows, cols], zero from `row_end` (None: all rows exist) and `col_end` on.

    Offsets are 64-bit: a row stride may reach 2^26 and more.
    """
    offsets = rows.to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
    inside = cols[None, :] < col_end
    if row_end is not None:
        inside = inside & (rows[:, None] < row_end)
    return tl.load(x_ptr + offsets, mask=inside, other=0.0)


@cache
def block_d(D: int) -> int:
    """Head dimension padded to a power of two, and to 64 at least.

    Triton 3.6 for sm_90 reads shared memory out of bounds for 16-bit K tiles of 32 columns whose stride is not 1 (seen
    with D 17, 20 and 24: wrong values in `flash`, an illegal access in `pruned`); tiles of 64 columns are right.
    """
    return max(64, next_power_of_2(D))


def tuning_kind(D: int, causal: bool) -> str:
    """What a pinned configuration depends on besides dtype and sizes: a tile for one D may not fit on chip for
    another."""
    return f"{'causal' if causal else 'full'}{block_d(D)}"


@kept
def head_descriptor(x: torch.Tensor, name: str, rows: int) -> TensorDescriptor:
    """`x` (B, H, S, D) in tiles of `rows` and the whole, padded D; `name` is for errors."""
    D, size = x.shape[-1], x.element_size()
    dense = (D * size + 15) // 16 * 16 // size  # for axes of size 1, whose stride may be anything and is never used
    strides = [stride if n > 1 else dense for n, stride in zip(x.shape[:3], x.stride()[:3], strict=True)]
    if x.stride(3) != 1 and D > 1:
        raise Unsupported(f"{name}: stride {x.stride(3)} on the last axis; a tensor descriptor needs 1")
    for stride in strides:
        if stride == 0 or stride * size % 16:
            raise Unsupported(f"{name}: a stride of {stride * size} bytes; descriptors need a multiple of 16 above 0")
    if x.data_ptr() % 16:
        raise Unsupported(f"{name}: starts {x.data_ptr() % 16} bytes off; a tensor descriptor needs 16-byte alignment")
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, block_d(D)])


def default_tiles(dtype: torch.dtype, D: int) -> dict[str, int]:
    """Tiles that keep q, k, v and the accumulator on chip for any D; float32 `ieee` runs on the FMA pipes."""
    if dtype is torch.float32:
        if D <= 64:
            return dict(BLOCK_M=64, BLOCK_N=32, num_warps=8, num_stages=2)
        return dict(BLOCK_M=32, BLOCK_N=16, num_warps=8, num_stages=2)
    if D <= 64:
        return dict(BLOCK_M=128, BLOCK_N=64, num_warps=4, num_stages=3)
    if D <= 128:
        return dict(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=2)
    return dict(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)
