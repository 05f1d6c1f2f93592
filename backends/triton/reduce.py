"""Reduction of a vector to one number: sum, maximum or minimum.

twostage: a program to some tiles, and another launch for the programs' results [harris2007]
atomics: a program to a tile, which combines into one number by an atomic operation: sums in any order [harris2007]
persistent: as many programs as run at once, of which the last to finish combines the results: one launch [gupta2012]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.reduce import checked, neutral_key
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.combining import combine, neutral, reduced
from touchstone.backends.triton.lib.rows import grid_programs
from touchstone.backends.variants import variant

_BLOCK = 1024
_TILES = 4  # of a program in the first of two stages


@triton.jit
def _over_tiles(x_ptr, first, last, apart, stride_x, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    """Over the tiles from `first` to `last`, so much `apart`. Whole ones without a mask: under one whose end is no
    multiple of 16, or may be none, every element is a load of its own."""
    acc = tl.full((BLOCK,), neutral(FUNCTION), tl.float32)
    whole = tl.maximum(tl.cdiv(last - first - BLOCK + 1, apart), 0)
    for tile in range(whole):
        i = first + tile * apart + tl.arange(0, BLOCK).to(tl.int64)
        acc = combine(acc, tl.load(x_ptr + i * stride_x).to(tl.float32), FUNCTION)
    rest = first + whole * apart
    if rest < last:
        i = rest + tl.arange(0, BLOCK).to(tl.int64)
        x = tl.load(x_ptr + i * stride_x, mask=i < last, other=neutral(FUNCTION)).to(tl.float32)
        acc = combine(acc, x, FUNCTION)
    return reduced(acc, FUNCTION)


@triton.jit
def _stage_kernel(x_ptr, out_ptr, n, stride_x, FUNCTION: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILES * BLOCK
    last = tl.minimum(first + TILES * BLOCK, n)
    value = _over_tiles(x_ptr, first, last, BLOCK, stride_x, FUNCTION, BLOCK)
    tl.store(out_ptr + tl.program_id(0), value.to(out_ptr.dtype.element_ty))


@triton.jit
def _last_stage_kernel(partial_ptr, y_ptr, count, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    value = _over_tiles(partial_ptr, 0, count, BLOCK, 1, FUNCTION, BLOCK)
    tl.store(y_ptr, value.to(y_ptr.dtype.element_ty))


@variant()
def twostage(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    number, n = checked(x, function), x.numel()
    programs = max(1, ceil_div(n, _TILES * _BLOCK))
    y, partial = x.new_empty(()), x.new_empty(programs, dtype=torch.float32)
    _stage_kernel[(programs,)](x, partial, n, *x.stride(), FUNCTION=number, TILES=_TILES, BLOCK=_BLOCK, num_warps=4)
    _last_stage_kernel[(1,)](partial, y, programs, FUNCTION=number, BLOCK=_BLOCK, num_warps=4)
    return y


@triton.jit
def _atomics_kernel(x_ptr, total_ptr, key_ptr, n, stride_x, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    value = _over_tiles(x_ptr, first, tl.minimum(first + BLOCK, n), BLOCK, stride_x, FUNCTION, BLOCK)
    if FUNCTION == 0:
        tl.atomic_add(total_ptr, value, sem="relaxed")
    else:
        # The order of keys is that of the numbers, with NaN beyond the infinity that wins.
        bits = value.to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        if FUNCTION == 1:
            tl.atomic_max(key_ptr, tl.where(value != value, 0x7FFFFFFF, key), sem="relaxed")
        else:
            tl.atomic_min(key_ptr, tl.where(value != value, -0x80000000, key), sem="relaxed")


@triton.jit
def _store_kernel(total_ptr, key_ptr, y_ptr, FUNCTION: tl.constexpr):
    if FUNCTION == 0:
        value = tl.load(total_ptr)
    else:
        key = tl.load(key_ptr)
        value = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)
    tl.store(y_ptr, value.to(y_ptr.dtype.element_ty))


@variant(deterministic=False)
def atomics(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Sums in any order; extremes are the same in all. Source: [harris2007]."""
    number, n = checked(x, function), x.numel()
    y, key = x.new_empty(()), torch.full((1,), neutral_key(number), dtype=torch.int32, device=x.device)
    total = key.view(torch.float32)
    if n:
        grid = (ceil_div(n, _BLOCK),)
        _atomics_kernel[grid](x, total, key, n, *x.stride(), FUNCTION=number, BLOCK=_BLOCK, num_warps=4)
    _store_kernel[(1,)](total, key, y, FUNCTION=number, num_warps=1)
    return y


@triton.jit(do_not_specialize=["n"])
def _persistent_kernel(x_ptr, partial_ptr, done_ptr, y_ptr, n, stride_x, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    programs = tl.num_programs(0)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    value = _over_tiles(x_ptr, first, n, programs.to(tl.int64) * BLOCK, stride_x, FUNCTION, BLOCK)
    tl.store(partial_ptr + tl.program_id(0), value)
    tl.debug_barrier()  # the result is stored before its program counts as done
    if tl.atomic_add(done_ptr, 1, sem="acq_rel") == programs - 1:
        value = _over_tiles(partial_ptr, 0, programs, BLOCK, 1, FUNCTION, BLOCK)
        tl.store(y_ptr, value.to(y_ptr.dtype.element_ty))


@variant()
def persistent(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. The results are combined in the same order in every run. Source: [gupta2012]."""
    number, n = checked(x, function), x.numel()
    programs = max(1, min(grid_programs(x, 16), ceil_div(n, _BLOCK)))  # as many threads as there can be
    y, partial = x.new_empty(()), x.new_empty(programs, dtype=torch.float32)
    done = torch.zeros(1, dtype=torch.int32, device=x.device)
    _persistent_kernel[(programs,)](x, partial, done, y, n, *x.stride(), FUNCTION=number, BLOCK=_BLOCK, num_warps=4)
    return y
