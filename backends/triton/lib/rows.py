"""What row-wise kernels share: warps for a block of columns, programs that run at once, rows that stay in registers in
16 bits or in the L2 cache, rows that start anywhere in whole pieces of 16 bytes."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib.gemm import processors


def row_unit(*matrices: torch.Tensor) -> int:
    """Of how many elements, 16 bytes at most, the rows of `matrices` and of a contiguous one of their shape start at
    multiples, for `multiple`.

    1 where all are multiples of 16, which the compiler knows: told so once more, it makes layer norm's `l2_resident`
    slower (H200, 65536 columns: 0.67 of a copy's rate in place of 0.77).
    """
    unit = math.gcd(16, matrices[0].shape[1], *(each.stride(0) for each in matrices))
    return 1 if unit == 16 else min(unit, 16 // matrices[0].element_size())


@triton.jit
def multiple(x, UNIT: tl.constexpr):
    """x, a multiple of UNIT, so that the compiler knows it. Of arguments it knows multiples of 16 alone, and elements
    move together where what they start at and end at is known to be a multiple of their number."""
    return x // UNIT * UNIT


def check_pieces(x: torch.Tensor) -> None:
    """Declines rows of `x` that have not the same whole pieces of 16 bytes as those of a contiguous matrix: `split`."""
    rows, cols = x.shape
    if x.numel() == 0:
        return
    if cols > 1 and x.stride(1) != 1:
        raise Unsupported(f"a row's elements are {x.stride(1)} apart; a whole piece is 16 bytes side by side")
    if rows > 1 and (x.stride(0) - cols) * x.element_size() % 16:
        raise Unsupported(
            f"rows of {cols} elements, {x.stride(0)} apart; those of a contiguous result start elsewhere in 16 bytes"
        )


@triton.jit
def split(start, cols, UNIT: tl.constexpr):
    """The parts of a row of `cols` columns from element `start` on: how many lie before the first whole piece of UNIT
    elements, how many in whole pieces, and, of the others at both ends, the columns and which of them there are.

    A row of a contiguous matrix has the same parts where `start` is the same modulo UNIT.
    """
    head = tl.minimum(-start & (UNIT - 1), cols).to(tl.int32)
    body = multiple(cols - head, UNIT)
    index = tl.arange(0, 2 * UNIT)
    edge = tl.where(index < UNIT, index, head + body + index - UNIT)
    return head, body, edge, tl.where(index < UNIT, index < head, edge < cols)


@triton.jit(do_not_specialize_on_alignment=["stride"])
def _shifted_kernel(vector_ptr, out_ptr, stride, pitch, cols, BLOCK: tl.constexpr):
    shift = tl.program_id(1)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols - shift
    value = tl.load(vector_ptr + (shift + col).to(tl.int64) * stride, mask=inside)
    tl.store(out_ptr + shift.to(tl.int64) * pitch + col, value, mask=inside)


def shifted(vector: torch.Tensor, unit: int) -> torch.Tensor:
    """`vector` (cols,) `unit` times, row i from element i on: what belongs to rows in pieces of `unit` elements, of
    which i come first, in whole pieces too. A row is a multiple of 16 elements long; what `vector` lacks is not set.
    """
    cols = vector.shape[0]
    out = torch.empty((unit, ceil_div(cols, 16) * 16), dtype=vector.dtype, device=vector.device)
    _shifted_kernel[(ceil_div(cols, 1024), unit)](vector, out, vector.stride(0), out.stride(0), cols, BLOCK=1024)
    return out


def warps(block: int, each: int = 512) -> int:
    """Warps for a block of columns, `each` to a warp; 512 columns of 16 bits are two 16-byte loads a lane."""
    return min(max(block // each, 1), 32)


def tiling(cols: int) -> tuple[int, int, int]:
    """Columns of a tile, how many tiles and how many warps, for a row in registers: six tiles at most, of 16 bytes a
    lane where elements have 16 bits."""
    num_warps = min(next_power_of_2(max(ceil_div(cols, 6 * 256), 1)), 16)
    return 256 * num_warps, ceil_div(cols, 256 * num_warps), num_warps


def grid_programs(x: torch.Tensor, each: int) -> int:
    """Programs of a grid that fills the device of `x` with `each` on a multiprocessor; a few in the interpreter."""
    return processors(x.device) * each if x.is_cuda else 3


def resident(
    x: torch.Tensor, under_way: int, num_warps: int, each: int, in_pieces: bool = False
) -> tuple[int, int, int]:
    """Columns of a tile, warps, and programs, for programs that read a row of `x` twice, the second time from the L2
    cache: `each` of `num_warps` warps on a multiprocessor, with `under_way` bytes of a row loaded at once.

    What is loaded at once hides the latency of memory. Rows whose elements come one by one would need a register or
    two for the address of each: their tiles are smaller. With `in_pieces` no row's do, wherever it starts.
    """
    if in_pieces or (x.stride(1) == 1 and math.gcd(x.stride(0), x.shape[1]) * x.element_size() % 16 == 0):
        block = under_way // x.element_size()
    else:
        block, num_warps, each = 4096, 8, 4
    block = max(min(next_power_of_2(x.shape[1]), block), 2)  # a pair of 16 bits, for `opaque`
    return block, num_warps, min(x.shape[0], grid_programs(x, each))


def halfregs_block(x: torch.Tensor) -> int:
    """The block of columns of a program that keeps rows of `x` in registers in 16 bits an element, for `opaque`.

    Declines float32 and more than 32768 columns.
    """
    if x.element_size() != 2:
        raise Unsupported(f"{x.dtype}; a row stays in registers in 16 bits an element")
    if x.shape[1] > 32768:
        raise Unsupported(f"{x.shape[1]} columns; one program holds 32768")
    return max(next_power_of_2(x.shape[1]), 2)  # a pair of 16 bits


@triton.jit
def opaque(x):
    """x, a tile of 16 bits, as a value that the compiler has not seen before; a tile of 32 bits is x itself.

    LLVM converts a tile to float32 once and keeps the result for later uses, in twice the registers. After this move,
    two elements at a time and not pure so that it stays in its place, the 16 bits are all there is: it has to convert
    again.
    """
    if x.dtype.primitive_bitwidth == 16:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
    return x
