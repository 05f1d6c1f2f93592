"""Wrong kernels of softmax: block reductions by shuffles, by halves of a buffer, and by atomics on shared memory."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "softmax.cu")


def _rows(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        threads = 32 * -(-cols // 32)
        if fault == "ragged":
            threads = min(cols, 255)
        elif fault != "threads":
            threads = min(threads, 256)
        blocks = min(rows, 4)
        _module.launch("softmax_rows", blocks, threads, x, y, rows, cols, *x.stride(), fault=fault, dtype=x.dtype)
    return y


@known_good
def rows(x):
    """a few blocks walk over the rows and reduce by shuffles"""
    return _rows(x)


@mutant("mask")
def fill_zero(x):
    """the maximum starts at 0 instead of -inf"""
    return _rows(x, "fill_zero")


@mutant("race")
def no_barrier_in_reduction(x):
    """no barrier between the warps' partial results and their reading"""
    return _rows(x, "no_barrier_in_reduction")


@mutant("race")
def reduction_buffer_reused(x):
    """no barrier after a reduction: the next one overwrites partial results that slower warps still read"""
    return _rows(x, "reused_buffer")


@mutant("unwritten")
def partials_of_absent_warps(x):
    """the reduction reads 32 partial results whatever the number of warps: those of absent ones were never written"""
    return _rows(x, "all_partials")


@mutant("shapes")
def block_of_all_columns(x):
    """the block has a thread for each column, more than 1024 for long rows: the launch fails"""
    return _rows(x, "threads")


@mutant("race")
def ragged_warp(x):
    """the block is no multiple of 32 threads: the last warp shuffles with lanes that do not exist"""
    return _rows(x, "ragged")


@mutant("offset")
def offset_int(x):
    """row times row stride is a product of two ints, which wraps"""
    return _rows(x, "int_row")


@mutant("overflow")
def maximum_of_a_warp(x):
    """each warp subtracts the maximum of its own columns"""
    return _rows(x, "maximum_of_warp")


@mutant("strides")
def column_stride_ignored(x):
    """the stride between columns is taken to be 1"""
    return _rows(x, "column_stride")


def _halves(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        threads = 64 if cols <= 64 else 128 if cols <= 128 else 256
        if fault == "three_warps":
            threads = 96
        _module.launch("softmax_halves", rows, threads, x, y, cols, *x.stride(), fault=fault, dtype=x.dtype)
    return y


@known_good
def halves(x):
    """a block reduces a buffer in shared memory by halves"""
    return _halves(x)


@mutant("race")
def warp_synchronous(x):
    """the last halves are added within a warp without __syncwarp"""
    return _halves(x, "warp_synchronous")


@mutant("shapes")
def block_no_power_of_two(x):
    """a block of 96 threads is reduced by halves, 96, 48, ..., 3, 1: a third of the sum is lost"""
    return _halves(x, "three_warps")


@mutant("bounds")
def store_unguarded(x):
    """every thread stores in every step: a row writes past its last column, the last row past the output"""
    return _halves(x, "store_guard")


def _shared(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        blocks = min(rows, 2)
        _module.launch("softmax_shared", blocks, 64, x, y, rows, cols, *x.stride(), fault=fault, dtype=x.dtype)
    return y


@mutant("accumulator", deterministic=False)
def stale_sum(x):
    """the sum in shared memory is not set to 0 for a block's next row"""
    return _shared(x, "stale_sum")
