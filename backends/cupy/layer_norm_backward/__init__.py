"""Gradients of layer norm. With r = 1 / sqrt(variance + eps), n = (x - mean) * r, g = dy * weight:
dx = r * (g - mean(g) - n * mean(g * n)), dweight = sum over rows of dy * n, dbias = sum over rows of dy.

naive: dx by one thread per row, dweight and dbias by one thread per column, both of any length [apex2018]
warp: dx by a warp that holds a row; the rows of 32 columns shared by the warps of a block [apex2018]
block: dx by one block per row, dweight and dbias by one thread per column, so both may have any length [apex2018]
partials: one launch for all: a block holds row after row and sums what it saw of them, one part each [apex2018]
atomics: the blocks add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
vectorised: partials in accesses of 16 bytes; the next row comes meanwhile, sums move to shared memory [apex2018]
staged: a block to a multiprocessor; rows wait in shared memory, copied there asynchronously stages ahead [apex2018]
cluster: the blocks of a cluster hold a longer row and tell one another its sums; teams of their threads take rows by
  turns, so that one computes while another waits [apex2018]
"""

import torch

from touchstone.backends.cupy.lib.norms import resident_grid, threads
from touchstone.backends.cupy.lib.norms_backward import staged_gradients, vectorised_gradients, vectorised_width
from touchstone.backends.cupy.lib.rows import WARP_COLS, at_most, warp_grid
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, Module
from touchstone.backends.signatures.layer_norm_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_scalar = Module(__file__, "scalar.cu")
_BLOCK_COLS = 8192  # what the registers of a block hold: `kept` in the kernels


@variant()
def naive(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Takes any number of columns; neighbouring threads read addresses one row apart. Source: [apex2018].
    """
    rows, cols = checked_sizes(x, weight, dy, mean, rstd)
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, mean, rstd, dx, statistics, *_strides(x, weight, dy, mean, rstd), rows, cols, eps)
        _naive.launch("layer_norm_backward_naive", -(-rows // 128), 128, *operands, dtype=x.dtype)
        columns = (x, dy, statistics, dweight, dbias, *x.stride(), *dy.stride(), rows, cols)
        _scalar.launch("layer_norm_backward_columns", -(-cols // 128), 128, *columns, dtype=x.dtype)
    return dx, dweight, dbias


@variant()
def warp(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 1024 columns: the registers of one warp. Source: [apex2018].
    """
    rows, cols = checked_sizes(x, weight, dy, mean, rstd)
    at_most(cols, WARP_COLS, "warp")
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, mean, rstd, dx, statistics, *_strides(x, weight, dy, mean, rstd), rows, cols, eps)
        _scalar.launch("layer_norm_backward_warp", *warp_grid(rows), *operands, dtype=x.dtype)
        columns = (x, dy, statistics, dweight, dbias, *x.stride(), *dy.stride(), rows, cols)
        _scalar.launch("layer_norm_backward_strips", -(-cols // 32), (32, min(rows, 32)), *columns, dtype=x.dtype)
    return dx, dweight, dbias


@variant()
def block(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Takes any number of columns; x and dy come from memory twice at least. Source: [apex2018].
    """
    rows, cols = checked_sizes(x, weight, dy, mean, rstd)
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, mean, rstd, dx, statistics, *_strides(x, weight, dy, mean, rstd), rows, cols, eps)
        across = threads(cols)
        _scalar.launch("layer_norm_backward_block", min(rows, GRID_LIMIT[0]), across, *operands, dtype=x.dtype)
        columns = (x, dy, statistics, dweight, dbias, *x.stride(), *dy.stride(), rows, cols)
        _scalar.launch("layer_norm_backward_columns", -(-cols // across), across, *columns, dtype=x.dtype)
    return dx, dweight, dbias


@variant()
def partials(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 8192 columns: the registers of one block. Source: [apex2018].
    """
    rows, cols = checked_sizes(x, weight, dy, mean, rstd)
    at_most(cols, _BLOCK_COLS, "block")
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        blocks, across = resident_grid(rows, cols, x)
        partial = torch.empty((2, blocks, cols), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, mean, rstd, dx, partial, *_strides(x, weight, dy, mean, rstd), rows, cols, eps)
        _scalar.launch("layer_norm_backward_partials", blocks, across, *operands, dtype=x.dtype)
        _reduce(partial, dweight, dbias)
    return dx, dweight, dbias


@variant(deterministic=False)
def atomics(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    The order of the additions to dweight and dbias, and so their rounding, changes from call to call. Declines more
    than 8192 columns: the registers of one block. Source: [apex2018].
    """
    rows, cols = checked_sizes(x, weight, dy, mean, rstd)
    at_most(cols, _BLOCK_COLS, "block")
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        blocks, across = resident_grid(rows, cols, x)
        total = torch.zeros((2, 1, cols), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, mean, rstd, dx, total, *_strides(x, weight, dy, mean, rstd), rows, cols, eps)
        _scalar.launch("layer_norm_backward_atomics", blocks, across, *operands, dtype=x.dtype)
        _reduce(total, dweight, dbias)
    return dx, dweight, dbias


@variant()
def vectorised(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 32768 columns, whose sums fill the registers and shared memory of one block, and more than 8192
    where rows are not contiguous and aligned to 16 bytes. Source: [apex2018].
    """
    checked_sizes(x, weight, dy, mean, rstd)
    dx, dweight, dbias = empty_outputs(x)
    length = vectorised_width(x, weight, dy, dx)
    if dx.numel():
        partial = vectorised_gradients(x, weight, dy, mean, rstd, dx, eps, centred=True, length=length)
        _reduce(partial, dweight, dbias)
    return dx, dweight, dbias


@variant()
def staged(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 16384 columns, 8192 of float32: the registers of one block. Source: [apex2018].
    """
    checked_sizes(x, weight, dy, mean, rstd)
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        _reduce(staged_gradients(x, weight, dy, mean, rstd, dx, eps, centred=True), dweight, dbias)
    return dx, dweight, dbias


@variant(needs="sm_90a")
def cluster(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 131072 columns, 65536 of float32: the registers of a cluster of eight blocks. Source: [apex2018].
    """
    checked_sizes(x, weight, dy, mean, rstd)
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        _reduce(staged_gradients(x, weight, dy, mean, rstd, dx, eps, centred=True, clusters=True), dweight, dbias)
    return dx, dweight, dbias


def _strides(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, mean: torch.Tensor | None, rstd: torch.Tensor | None
) -> tuple[int, ...]:
    return *x.stride(), *weight.stride(), *dy.stride(), *(0 if s is None else s.stride(0) for s in (mean, rstd))


def _reduce(partial: torch.Tensor, dweight: torch.Tensor, dbias: torch.Tensor) -> None:
    """Sum partial sums (2, parts, cols) over parts into dweight and dbias, always in the same order."""
    _, parts, cols = partial.shape
    _scalar.launch(
        "layer_norm_backward_reduce",
        -(-cols // 32),
        (32, min(parts, 32)),
        partial,
        dweight,
        dbias,
        parts,
        cols,
        dtype=dweight.dtype,
    )
