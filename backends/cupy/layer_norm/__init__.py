"""Layer norm over the last axis: y = (x - mean) / sqrt(variance + eps) * weight + bias, with the biased variance.

naive: one thread per row, three passes over x; neighbouring threads read addresses one row apart [baetal2016]
warp: a warp holds a row in registers, so x is read once and no barrier is needed [xlite2025]
block: a block reads a row three times, for mean, variance and result, so a row may have any length [baetal2016]
welford: mean and variance in one pass that merges the statistics of the threads, 2 reads instead of 3 [chan1979]
vectorised: as many threads as the row needs hold it, in accesses of 16 bytes where rows are aligned [xlite2025]
staged: blocks that stay hold row after row, the next ones on their way to shared memory meanwhile [gupta2012]
cluster: a row in the shared memory of a cluster's blocks, whose warps tell one another what they found, and beside them
  those of other rows [guo2025]
teams: clusters that stay, whose blocks keep what rows are multiplied by; teams of their threads take rows by turns
  [guo2025]
planes: such teams with each weight beside its bias, laid out so that rows that start anywhere find them [guo2025]
"""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.lib.norms import threads, vector_width
from touchstone.backends.cupy.lib.rows import (
    WARP_COLS,
    Grid,
    at_most,
    in_registers,
    in_teams,
    sharing,
    staying,
    warp_grid,
)
from touchstone.backends.cupy.runtime.clusters import at_once
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, Module
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")
_staged = Module(__file__, "staged.cu")
_cluster = Module(__file__, "cluster.cu")
_teams = Module(__file__, "teams.cu")
_planes = Module(__file__, "planes.cu")


@variant()
def naive(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols), any number of columns [baetal2016]."""
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias))
        _naive.launch("layer_norm_naive", -(-rows // 128), 128, *operands, rows, cols, eps, dtype=x.dtype)
    return y


@variant()
def warp(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 1024 columns: the registers of one warp. Source: [xlite2025].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    at_most(cols, WARP_COLS, "warp")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias))
        _scalar.launch("layer_norm_warp", *warp_grid(rows), *operands, rows, cols, eps, dtype=x.dtype)
    return y


@variant()
def block(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols), any number of columns [baetal2016]."""
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias))
        grid = min(rows, GRID_LIMIT[0])
        _scalar.launch("layer_norm_block", grid, threads(cols), *operands, rows, cols, eps, dtype=x.dtype)
    return y


@variant()
def welford(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols), any number of columns. See [chan1979]."""
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias))
        _scalar.launch("layer_norm_welford", rows, threads(cols), *operands, cols, eps, dtype=x.dtype)
    return y


@variant()
def vectorised(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 32768 columns, the registers of one block, and more than 16384 where rows neither begin at
    multiples of 16 bytes nor follow one another; those move an element at a time. Source: [xlite2025].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    extent, definitions = in_registers(rows, cols, x, weight, bias, y, across=512)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias))
        _vectorised.launch("layer_norm_vectorised", *extent, *operands, rows, cols, eps, dtype=x.dtype, **definitions)
    return y


@variant()
def staged(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 65536 columns, 32768 of float32: the registers of one block. Source: [gupta2012].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    grid = staying(rows, cols, x, weight, bias, y)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias), rows, cols, eps)
        _staged.launch("layer_norm_staged", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y


@variant(needs="sm_90a")
def cluster(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 524288 columns, 262144 of float32: a cluster of eight blocks. Source: [guo2025].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    grid = sharing(rows, cols, x, weight, bias, y)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias), cols, eps)
        _cluster.launch("layer_norm_cluster", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y


@variant(needs="sm_90a")
def teams(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 131072 columns, 65536 of float32, and rows that are no whole vectors of 16 bytes. Source:
    [guo2025].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    grid = in_teams(rows, cols, x, weight, bias)
    if y.numel():
        operands = (x, weight, bias, y, x.stride(0), *_strides(x, weight, bias)[2:], rows, cols, eps)
        _teams.launch("layer_norm_teams", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y


@variant(needs="sm_90a")
def planes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 131009 columns, 65505 of float32, and rows that neither begin at multiples of 16 bytes nor follow
    one another; short ones too, which may as well move an element at a time. Source: [guo2025].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    part, grid = _in_planes(rows, cols, x, y)
    if y.numel():
        operands = (x, weight, bias, y, x.stride(0), *_strides(x, weight, bias)[2:], rows, cols, part, eps)
        _planes.launch("layer_norm_planes", grid.blocks, grid.threads, *operands, dtype=x.dtype, **grid.options)
    return y


def _in_planes(rows: int, cols: int, x: torch.Tensor, y: torch.Tensor) -> tuple[int, Grid]:
    """The vectors of a row that a block holds, in whole lines of 128 bytes, and the grid: as `in_teams`."""
    lanes = 16 // x.element_size()
    shifted = vector_width(x, y) == 1
    if shifted and (cols <= 512 or x.stride() != (cols, 1) or x.data_ptr() % 16):
        raise Unsupported("rows that neither begin at multiples of 16 bytes nor follow one another from one on")
    extent = cols + 8 * lanes - 1 if shifted else cols  # with what is before the row in its first line
    cluster = 2
    while cluster < 8 and extent > cluster * 128 * 8 * lanes:
        cluster *= 2
    at_most(extent, cluster * 128 * 16 * lanes, f"cluster of {cluster} blocks")
    part = 8 * max(-(-extent // (8 * lanes * cluster)), 1)
    size = threads(part, 8, 128)
    vectors = -(-part // size)
    teams = 5 if vectors <= 8 else 4
    definitions = {"VECTORS": vectors, "CLUSTER": cluster, "THREADS": size, "TEAMS": teams, "SHIFTED": int(shifted)}
    options = {"shared": (teams * part + 2 * (part + 8)) * 16, "arch": "sm_90a", **definitions}
    return part, Grid(min(rows, at_once(x.device, cluster)) * cluster, (size, teams), options)


def _strides(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[int, ...]:
    return *x.stride(), *weight.stride(), bias.stride(0) if bias is not None else 0
