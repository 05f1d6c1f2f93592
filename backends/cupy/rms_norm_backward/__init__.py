"""Gradients of RMS norm. With r = 1 / sqrt(mean x^2 + eps), n = x * r, g = dy * weight:
dx = r * (g - n * mean(g * n)), dweight = sum over rows of dy * n.

naive: dx by one thread per row, dweight by one thread per column, both of any length [hsu2024]
warp: dx by a warp that holds a row; the rows of 32 columns shared by the warps of a block [hsu2024]
block: dx by one block per row, dweight by one thread per column, so both may have any length [hsu2024]
partials: one launch for both: a block holds row after row and sums what it saw of them, one part each [hsu2024]
atomics: the blocks add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
vectorised: partials in accesses of 16 bytes; the next row comes meanwhile, sums move to shared memory [hsu2024]
staged: a block to a multiprocessor; rows wait in shared memory, copied there asynchronously stages ahead [hsu2024]
cluster: the blocks of a cluster hold a longer row and tell one another its sums; teams of their threads take rows by
  turns, so that one computes while another waits [hsu2024]
"""

import torch

from touchstone.backends.cupy.lib.norms import resident_grid, threads
from touchstone.backends.cupy.lib.norms_backward import staged_gradients, vectorised_gradients, vectorised_width
from touchstone.backends.cupy.lib.rows import WARP_COLS, at_most, warp_grid
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, Module
from touchstone.backends.signatures.rms_norm_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_scalar = Module(__file__, "scalar.cu")
_BLOCK_COLS = 8192  # what the registers of a block hold: `kept` in the kernels


@variant()
def naive(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Takes any number of columns; neighbouring threads read addresses one row apart. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((rows,), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, rstd, dx, statistics, *_strides(x, weight, dy, rstd), rows, cols, eps)
        _naive.launch("rms_norm_backward_naive", -(-rows // 128), 128, *operands, dtype=x.dtype)
        columns = (x, dy, statistics, dweight, *x.stride(), *dy.stride(), rows, cols)
        _scalar.launch("rms_norm_backward_columns", -(-cols // 128), 128, *columns, dtype=x.dtype)
    return dx, dweight


@variant()
def warp(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 1024 columns: the registers of one warp. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    at_most(cols, WARP_COLS, "warp")
    dx, dweight = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((rows,), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, rstd, dx, statistics, *_strides(x, weight, dy, rstd), rows, cols, eps)
        _scalar.launch("rms_norm_backward_warp", *warp_grid(rows), *operands, dtype=x.dtype)
        columns = (x, dy, statistics, dweight, *x.stride(), *dy.stride(), rows, cols)
        _scalar.launch("rms_norm_backward_strips", -(-cols // 32), (32, min(rows, 32)), *columns, dtype=x.dtype)
    return dx, dweight


@variant()
def block(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Takes any number of columns; x and dy come from memory twice at least. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((rows,), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, rstd, dx, statistics, *_strides(x, weight, dy, rstd), rows, cols, eps)
        across = threads(cols)
        _scalar.launch("rms_norm_backward_block", min(rows, GRID_LIMIT[0]), across, *operands, dtype=x.dtype)
        columns = (x, dy, statistics, dweight, *x.stride(), *dy.stride(), rows, cols)
        _scalar.launch("rms_norm_backward_columns", -(-cols // across), across, *columns, dtype=x.dtype)
    return dx, dweight


@variant()
def partials(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 8192 columns: the registers of one block. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    at_most(cols, _BLOCK_COLS, "block")
    dx, dweight = empty_outputs(x)
    if dx.numel():
        blocks, across = resident_grid(rows, cols, x)
        partial = torch.empty((blocks, cols), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, rstd, dx, partial, *_strides(x, weight, dy, rstd), rows, cols, eps)
        _scalar.launch("rms_norm_backward_partials", blocks, across, *operands, dtype=x.dtype)
        _reduce(partial, dweight)
    return dx, dweight


@variant(deterministic=False)
def atomics(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    The order of the additions to dweight, and so its rounding, changes from call to call. Declines more than 8192
    columns: the registers of one block. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    at_most(cols, _BLOCK_COLS, "block")
    dx, dweight = empty_outputs(x)
    if dx.numel():
        blocks, across = resident_grid(rows, cols, x)
        total = torch.zeros((1, cols), dtype=torch.float32, device=x.device)
        operands = (x, weight, dy, rstd, dx, total, *_strides(x, weight, dy, rstd), rows, cols, eps)
        _scalar.launch("rms_norm_backward_atomics", blocks, across, *operands, dtype=x.dtype)
        _reduce(total, dweight)
    return dx, dweight


@variant()
def vectorised(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 32768 columns, whose sums fill the registers and shared memory of one block, and more than 8192
    where rows are not contiguous and aligned to 16 bytes. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    length = vectorised_width(x, weight, dy, dx)
    if dx.numel():
        partial = vectorised_gradients(x, weight, dy, None, rstd, dx, eps, centred=False, length=length)
        _reduce(partial[0], dweight)
    return dx, dweight


@variant()
def staged(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 16384 columns, 8192 of float32: the registers of one block. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        _reduce(staged_gradients(x, weight, dy, None, rstd, dx, eps, centred=False)[0], dweight)
    return dx, dweight


@variant(needs="sm_90a")
def cluster(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 131072 columns, 65536 of float32: the registers of a cluster of eight blocks. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        _reduce(staged_gradients(x, weight, dy, None, rstd, dx, eps, centred=False, clusters=True)[0], dweight)
    return dx, dweight


def _strides(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, rstd: torch.Tensor | None) -> tuple[int, ...]:
    return *x.stride(), *weight.stride(), *dy.stride(), 0 if rstd is None else rstd.stride(0)


def _reduce(partial: torch.Tensor, dweight: torch.Tensor) -> None:
    """Sum partial sums (parts, cols) over parts into dweight, always in the same order."""
    parts, cols = partial.shape
    _scalar.launch(
        "rms_norm_backward_reduce",
        -(-cols // 32),
        (32, min(parts, 32)),
        partial,
        dweight,
        parts,
        cols,
        dtype=dweight.dtype,
    )
