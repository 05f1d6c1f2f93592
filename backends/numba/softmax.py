"""Softmax over the last axis: y = exp(x - max x) / sum exp(x - max x).

naive: one thread a row, three passes over x; neighbouring threads read addresses a row apart (S3-16.1)
warp: one warp a row, which its lanes hold in registers; max and sum by shuffles, so x is read once (S2-19)
block: one block a row of any length, three coalesced passes; the warps' results meet in shared memory (S2-21)
online: max and sum in one pass by rescaling the sum whenever the max grows, so a row of any length is read twice (S3-16.2)
"""

import math

import numpy as np
import torch
from numba import cuda, float32, int64

from backends import shapes
from backends.numba.launching import launch
from backends.numba.rows import WARP_COLS, at_most, block_max, block_sum, blocks, threads, warp_grid, warp_max, warp_sum

_HELD = WARP_COLS // 32
_LOW = np.float32(-math.inf)


@cuda.jit
def _naive(x, y):
    row = cuda.grid(1)
    if row >= x.shape[0]:
        return
    # max keeps a number beside a NaN and exp does not: a NaN, a +inf (inf - inf) and a row of -inf all reach the sum as NaN.
    m = _LOW
    for col in range(x.shape[1]):
        m = max(m, float32(x[row, col]))
    l = float32(0)
    for col in range(x.shape[1]):
        l += math.exp(float32(x[row, col]) - m)
    for col in range(x.shape[1]):
        y[row, col] = math.exp(float32(x[row, col]) - m) / l


def naive(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read three times. Source: S3-16.1."""
    rows, _ = shapes("rows cols", x=x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_naive, blocks(-(-rows // 128)), 128, x, y)
    return y


@cuda.jit
def _warp(x, y):
    # A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
    row = int64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y
    if row >= x.shape[0]:
        return
    held = cuda.local.array(_HELD, float32)
    m = _LOW
    for i in range(_HELD):
        col = i * 32 + cuda.threadIdx.x
        held[i] = float32(x[row, col]) if col < x.shape[1] else _LOW
        m = max(m, held[i])
    m = warp_max(m)

    l = float32(0)
    for i in range(_HELD):
        held[i] = math.exp(held[i] - m)
        l += held[i]
    l = warp_sum(l)

    for i in range(_HELD):
        col = i * 32 + cuda.threadIdx.x
        if col < x.shape[1]:
            y[row, col] = held[i] / l


def warp(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols). Declines more than 1024 columns, what one warp holds. Source: S2-19."""
    rows, cols = shapes("rows cols", x=x)
    at_most(cols, WARP_COLS, "warp")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_warp, *warp_grid(rows), x, y)
    return y


warp.needs = "shuffles"


@cuda.jit
def _block(x, y):
    row = cuda.blockIdx.x
    m = _LOW
    for col in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        m = max(m, float32(x[row, col]))
    m = block_max(m)

    l = float32(0)
    for col in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        l += math.exp(float32(x[row, col]) - m)
    l = block_sum(l)

    for col in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        y[row, col] = math.exp(float32(x[row, col]) - m) / l


def block(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read three times. Source: S2-21."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_block, blocks(rows), threads(cols), x, y)
    return y


block.needs = "shuffles"


@cuda.jit
def _online(x, y):
    row = cuda.blockIdx.x
    m, l = _LOW, float32(0)
    for col in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        value = float32(x[row, col])
        above = max(m, value)
        # Nothing but -inf so far: l stays 0, and a NaN still enters it.
        shift = float32(0) if above == _LOW else above
        l = l * math.exp(m - shift) + math.exp(value - shift)
        m = above
    top = block_max(m)
    shift = float32(0) if top == _LOW else top
    l = block_sum(l * math.exp(m - shift))

    for col in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        y[row, col] = math.exp(float32(x[row, col]) - top) / l


def online(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read twice. Source: S3-16.2, S0-13, E-19."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_online, blocks(rows), threads(cols), x, y)
    return y


online.needs = "shuffles"
