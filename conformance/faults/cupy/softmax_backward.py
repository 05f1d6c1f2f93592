"""Wrong kernels of softmax_backward: half a warp per row."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "softmax_backward.cu")


def _halfwarp(y: torch.Tensor, dy: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    if dx.numel():
        grid = max(rows // 4, 1) if fault == "grid" else -(-rows // 4)
        strides = (*y.stride(), *dy.stride())
        operands = (y, dy, dx, rows, cols, *strides)
        _module.launch("softmax_backward_halfwarp", grid, 64, *operands, fault=fault, dtype=y.dtype)
    return dx


@known_good
def halfwarp(y, dy):
    """half a warp holds a row and sums by shuffles"""
    return _halfwarp(y, dy)


@mutant("race")
def mask_of_lower_half(y, dy):
    """the shuffles of the upper half of a warp name the lanes of the lower one"""
    return _halfwarp(y, dy, "mask_of_lower_half")


@mutant("race")
def mask_of_all(y, dy):
    """the shuffles name all lanes, of which those without a row have returned"""
    return _halfwarp(y, dy, "mask_of_all")


@mutant("race")
def step_across(y, dy):
    """the first step of the sum is 16: it reads the row of the other half of the warp"""
    return _halfwarp(y, dy, "step_across")


@mutant("formula")
def steps_short(y, dy):
    """the sum over 16 lanes begins with a step of 4: each lane has the sum of eight"""
    return _halfwarp(y, dy, "steps_short")


@mutant("tail")
def whole_steps(y, dy):
    """the sum leaves out columns beyond a multiple of 16"""
    return _halfwarp(y, dy, "whole_steps")


@mutant("bounds")
def load_unguarded(y, dy):
    """the loads of the sum do not ask whether the column is inside"""
    return _halfwarp(y, dy, "load_guard")


@mutant("strides")
def strides_of_y(y, dy):
    """dy is read with the strides of y"""
    return _halfwarp(y, dy, "strides_of_y")


@mutant("tail")
def grid_rounded_down(y, dy):
    """the grid counts whole blocks of four rows: the rows beyond are not written"""
    return _halfwarp(y, dy, "grid")
