"""Wrong kernels of reduce: a program to a tile, and one program for the programs' results."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.reduce import checked
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.reduce import KERNELS as SHARED

_BLOCK = 64


@triton.jit
def _kept(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _over(x_ptr, i, n, stride_x, NUMBER: tl.constexpr, FAULT: tl.constexpr):
    """Over one tile; a minimum is that of the negatives, negated."""
    neutral: tl.constexpr = 0.0 if NUMBER == 0 or FAULT == "padding_is_0" else float("-inf")
    x = tl.load(x_ptr + i.to(tl.int64) * stride_x, mask=i < n, other=0.0).to(tl.float32)
    if NUMBER == 2:
        x = -x
    x = tl.where(i < n, x, neutral)
    if NUMBER == 0:
        return tl.sum(x, axis=0)
    elif NUMBER == 1:
        return tl.reduce(x, 0, _kept)
    else:
        return -tl.reduce(x, 0, _kept)


@triton.jit
def _tiles_kernel(x_ptr, partial_ptr, n, stride_x, NUMBER: tl.constexpr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    if FAULT == "tiles_overlap":
        first = tl.program_id(0) * (BLOCK - 1)
    value = _over(x_ptr, first + tl.arange(0, BLOCK), n, stride_x, NUMBER, FAULT)
    tl.store(partial_ptr + tl.program_id(0), value)


@triton.jit
def _finish_kernel(partial_ptr, y_ptr, count, NUMBER: tl.constexpr, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    if FAULT == "partials_of_one_tile":
        count = tl.minimum(count, 16)
    tl.store(y_ptr, _over(partial_ptr, tl.arange(0, BLOCK), count, 1, NUMBER, FAULT))


@triton.jit
def _atomic_kernel(x_ptr, total_ptr, n, stride_x, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    value = _over(x_ptr, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), n, stride_x, 0, FAULT)
    if FAULT == "added_in_place":
        tl.store(total_ptr, tl.load(total_ptr) + value)
    else:
        tl.atomic_add(total_ptr, value)


KERNELS = SHARED | {
    "tiles_overlap": Kernel("accumulator", "tiles begin one element before the last one's end"),
    "partials_of_one_tile": Kernel("tail", "of the programs' results only the first 16 are combined"),
}


def _tiles(x: torch.Tensor, *, function: str = "sum", fault: str = "none") -> torch.Tensor:
    number, n = checked(x, function), x.numel()
    programs = max(1, n // _BLOCK if fault == "last_block_lost" else triton.cdiv(n, _BLOCK))
    y, partial = x.new_empty(()), x.new_empty(programs, dtype=torch.float32)
    _tiles_kernel[(programs,)](x, partial, n, *x.stride(), NUMBER=number, FAULT=fault, BLOCK=_BLOCK)
    block = triton.next_power_of_2(programs)
    _finish_kernel[(1,)](partial, y, programs, NUMBER=number, FAULT=fault, BLOCK=block)
    return y


plant_kernels(globals(), _tiles, KERNELS, "padding_is_0", "last_block_lost", "tiles_overlap", "partials_of_one_tile")


def _atomic(x: torch.Tensor, *, function: str = "sum", fault: str = "none") -> torch.Tensor:
    if checked(x, function):
        return _tiles(x, function=function)
    y, total = x.new_empty(()), torch.zeros(1)
    _atomic_kernel[(max(1, triton.cdiv(x.numel(), _BLOCK)),)](
        x, total, x.numel(), *x.stride(), FAULT=fault, BLOCK=_BLOCK
    )
    _finish_kernel[(1,)](total, y, 1, NUMBER=0, FAULT=fault, BLOCK=1)
    return y


plant_kernels(globals(), _atomic, KERNELS, "added_in_place", deterministic=False)
