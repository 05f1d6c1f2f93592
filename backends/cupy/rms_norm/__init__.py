"""RMS norm over the last axis: y = x / sqrt(mean x^2 + eps) * weight.

naive: one thread per row, two passes over x; neighbouring threads read addresses one row apart [zhang2019]
warp: a warp holds a row in registers, so x is read once and no barrier is needed [xlite2025]
block: a block reads a row twice, for its mean square and for the result, so a row may have any length [zhang2019]
vectorised: as many threads as the row needs hold it, in accesses of 16 bytes where rows are aligned [xlite2025]
staged: blocks that stay hold row after row, the next ones on their way to shared memory meanwhile [gupta2012]
cluster: a row in the shared memory of a cluster's blocks, whose warps tell one another what they found, and beside them
  those of other rows [guo2025]
teams: clusters that stay, whose blocks keep what rows are multiplied by; teams of their threads take rows by turns
  [guo2025]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.norms import threads
from touchstone.backends.cupy.lib.rows import WARP_COLS, at_most, in_registers, in_teams, sharing, staying, warp_grid
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, Module
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")
_staged = Module(__file__, "staged.cu")
_cluster = Module(__file__, "cluster.cu")
_teams = Module(__file__, "teams.cu")


@variant()
def naive(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols), any number of columns; x·rstd stays float32 until
    multiplied by weight [hsu2024]. Source: [zhang2019]."""
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        operands = (x, weight, y, *x.stride(), *weight.stride())
        _naive.launch("rms_norm_naive", -(-rows // 128), 128, *operands, rows, cols, eps, dtype=x.dtype)
    return y


@variant()
def warp(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols).

    Declines more than 1024 columns: the registers of one warp. Source: [xlite2025].
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    at_most(cols, WARP_COLS, "warp")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        operands = (x, weight, y, *x.stride(), *weight.stride())
        _scalar.launch("rms_norm_warp", *warp_grid(rows), *operands, rows, cols, eps, dtype=x.dtype)
    return y


@variant()
def block(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols), any number of columns; x·rstd stays float32 until
    multiplied by weight [hsu2024]. Source: [zhang2019]."""
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        operands = (x, weight, y, *x.stride(), *weight.stride())
        grid = min(rows, GRID_LIMIT[0])
        _scalar.launch("rms_norm_block", grid, threads(cols), *operands, rows, cols, eps, dtype=x.dtype)
    return y


@variant()
def vectorised(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols).

    Declines more than 32768 columns, the registers of one block, and more than 16384 where rows neither begin at
    multiples of 16 bytes nor follow one another; those move an element at a time. Source: [xlite2025].
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    extent, definitions = in_registers(rows, cols, x, weight, y)
    if y.numel():
        operands = (x, weight, y, *x.stride(), *weight.stride())
        _vectorised.launch("rms_norm_vectorised", *extent, *operands, rows, cols, eps, dtype=x.dtype, **definitions)
    return y


@variant()
def staged(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols).

    Declines more than 65536 columns, 32768 of float32: the registers of one block. Source: [gupta2012].
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    grid = staying(rows, cols, x, weight, y)
    if y.numel():
        operands = (x, weight, y, *x.stride(), *weight.stride(), rows, cols, eps)
        _staged.launch("rms_norm_staged", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y


@variant(needs="sm_90a")
def cluster(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols).

    Declines more than 524288 columns, 262144 of float32: a cluster of eight blocks. Source: [guo2025].
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    grid = sharing(rows, cols, x, weight, y)
    if y.numel():
        operands = (x, weight, y, *x.stride(), *weight.stride(), cols, eps)
        _cluster.launch("rms_norm_cluster", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y


@variant(needs="sm_90a")
def teams(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols).

    Declines more than 131072 columns, 65536 of float32, and rows that are no whole vectors of 16 bytes. Source:
    [guo2025].
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    grid = in_teams(rows, cols, x, weight)
    if y.numel():
        operands = (x, weight, y, x.stride(0), weight.stride(0), rows, cols, eps)
        _teams.launch("rms_norm_teams", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y
