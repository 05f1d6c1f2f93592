"""Wrong kernels of online_softmax: a few blocks walk over the rows and merge (m, l) pairs by shuffles."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "online_softmax.cu")


def _block(x: torch.Tensor, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    lse = torch.empty((rows,), dtype=torch.float32, device=x.device)
    if rows:
        threads = min(32 * -(-max(cols, 1) // 32), 256 if fault == "warps" else 128)
        operands = (x, y, lse, rows, cols, *x.stride())
        _module.launch("online_softmax_block", min(rows, 4), threads, *operands, fault=fault, dtype=x.dtype)
    return y, lse


@known_good
def block(x):
    """a few blocks walk over the rows and merge pairs of maximum and sum"""
    return _block(x)


@mutant("rescale")
def sum_not_rescaled(x):
    """the running sum is not rescaled when the maximum grows"""
    return _block(x, "sum_not_rescaled")


@mutant("rescale")
def merge_not_rescaled(x):
    """lanes add their sums as they are, each relative to its own maximum"""
    return _block(x, "merge_not_rescaled")


@mutant("mask")
def maximum_from_zero(x):
    """the running maximum starts at 0 instead of -inf"""
    return _block(x, "maximum_from_zero")


@mutant("special")
def infinite_shift(x):
    """exp(-inf - (-inf)) makes a row that begins with -inf NaN"""
    return _block(x, "infinite_shift")


@mutant("race")
def lanes_left_out(x):
    """lanes without a column skip the shuffles, whose mask names all 32"""
    return _block(x, "lanes_left_out")


@mutant("race")
def no_barrier_before_result(x):
    """no barrier between the thread that writes the row's maximum and sum to shared memory and those that read them"""
    return _block(x, "no_barrier_before_result")


@mutant("race")
def lse_of_each_warp(x):
    """every warp writes the lse of its own columns to the same place"""
    return _block(x, "lse_of_each_warp")


@mutant("bounds")
def warps_overrun(x):
    """eight warps write their maxima and sums to shared arrays of four"""
    return _block(x, "warps")
