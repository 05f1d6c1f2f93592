"""Softmax over the last axis: y = exp(x - max x) / sum exp(x - max x).

naive: one thread per row, three passes over x; neighbouring threads read addresses one row apart [milakov2018]
warp: one warp per row, which its lanes hold in registers; max and sum by shuffles, so x is read once [oneflow2021]
block: one block per row of any length, three coalesced passes; the warps' results meet in shared memory [oneflow2021]
vectorised: the block holds its row in registers and moves it 16 bytes at a time: one read, one write [oneflow2021]
staged: blocks that stay hold row after row, the next ones on their way to shared memory meanwhile [gupta2012]
cluster: a row in the shared memory of a cluster's blocks, whose warps tell one another what they found, and beside them
  those of other rows [guo2025]
online: max and sum in one pass by rescaling the sum whenever the max grows, so any row is read twice
  [milakov2018]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.norms import threads, vector_width
from touchstone.backends.cupy.lib.rows import WARP_COLS, at_most, blocks, in_registers, sharing, staying, warp_grid
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")
_staged = Module(__file__, "staged.cu")
_cluster = Module(__file__, "cluster.cu")
_online = Module(__file__, "online.cu")


@variant()
def naive(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read three times. Source: [milakov2018]."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        _scalar.launch("softmax_naive", -(-rows // 128), 128, x, y, rows, cols, *x.stride(), dtype=x.dtype)
    return y


@variant()
def warp(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols). Declines more than 1024 columns, what one warp holds. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols", x=x)
    at_most(cols, WARP_COLS, "warp")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        _scalar.launch("softmax_warp", *warp_grid(rows), x, y, rows, cols, *x.stride(), dtype=x.dtype)
    return y


@variant()
def block(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read three times. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        _scalar.launch("softmax_block", blocks(rows), threads(cols), x, y, cols, *x.stride(), dtype=x.dtype)
    return y


@variant()
def vectorised(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols).

    Declines more than 32768 columns, the registers of one block, and more than 16384 where rows neither begin at
    multiples of 16 bytes nor follow one another; those move an element at a time. Source: [oneflow2021].
    """
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    extent, definitions = in_registers(rows, cols, x, y)
    if y.numel():
        _vectorised.launch("softmax_vectorised", *extent, x, y, rows, cols, *x.stride(), dtype=x.dtype, **definitions)
    return y


@variant()
def staged(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols).

    Declines more than 65536 columns, 32768 of float32: the registers of one block. Source: [gupta2012].
    """
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    grid = staying(rows, cols, x, y)
    if y.numel():
        operands = (x, y, *x.stride(), rows, cols)
        _staged.launch("softmax_staged", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y


@variant(needs="sm_90a")
def cluster(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols).

    Declines more than 524288 columns, 262144 of float32: a cluster of eight blocks. Source: [guo2025].
    """
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    grid = sharing(rows, cols, x, y)
    if y.numel():
        operands = (x, y, *x.stride(), cols)
        _cluster.launch("softmax_cluster", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y


@variant()
def online(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read twice. Source: [milakov2018]."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        length = vector_width(x, y)
        size = threads(cols, each=2 * length, most=512)
        _online.launch("softmax_online", blocks(rows), size, x, y, cols, *x.stride(), int(length > 1), dtype=x.dtype)
    return y
