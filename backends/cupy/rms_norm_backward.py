"""Gradients of RMS norm. With r = 1 / sqrt(mean x^2 + eps), n = x * r, g = dy * weight:
dx = r * (g - n * mean(g * n)), dweight = sum over rows of dy * n.

block: dx by one block per row, dweight by one thread per column, so both may have any length [hsu2024]
warp: dx by a warp that holds a row; the rows of 32 columns shared by the warps of a block [hsu2024]
partials: one launch for both: a block holds row after row and sums what it saw of them, one part each [hsu2024]
atomics: the blocks add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
vectorised: partials in accesses of 16 bytes; the next row comes meanwhile, sums move to shared memory [hsu2024]
staged: a block to a multiprocessor; rows wait in shared memory, copied there asynchronously stages ahead [hsu2024]
cluster: the blocks of a cluster hold a longer row and read each other's sums in shared memory [hsu2024]
"""

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.lib.norms import GRID, registers_per_row, resident, threads, vector_width
from touchstone.backends.cupy.lib.norms_backward import gradients
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.rms_norm_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_module = Module(__file__, "rms_norm_backward.cu")
_vectorised = Module(__file__, "rms_norm_backward_vectorised.cu")


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
        _module.launch(
            "rms_norm_backward_block",
            min(rows, GRID),
            threads(cols),
            x,
            weight,
            dy,
            rstd,
            dx,
            statistics,
            *_strides(x, weight, dy, rstd),
            rows,
            cols,
            eps,
            dtype=x.dtype,
        )
        across = threads(cols)
        _module.launch(
            "rms_norm_backward_columns",
            -(-cols // across),
            across,
            x,
            dy,
            statistics,
            dweight,
            *x.stride(),
            *dy.stride(),
            rows,
            cols,
            dtype=x.dtype,
        )
    return dx, dweight


def warp(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 1024 columns: the registers of one warp. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    if cols > 1024:
        raise Unsupported(f"{cols} columns; one warp holds 1024")
    dx, dweight = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((rows,), dtype=torch.float32, device=x.device)
        _module.launch(
            "rms_norm_backward_warp",
            -(-rows // 4),
            (32, 4),
            x,
            weight,
            dy,
            rstd,
            dx,
            statistics,
            *_strides(x, weight, dy, rstd),
            rows,
            cols,
            eps,
            dtype=x.dtype,
        )
        _module.launch(
            "rms_norm_backward_strips",
            -(-cols // 32),
            (32, min(rows, 32)),
            x,
            dy,
            statistics,
            dweight,
            *x.stride(),
            *dy.stride(),
            rows,
            cols,
            dtype=x.dtype,
        )
    return dx, dweight


def partials(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 8192 columns: the registers of one block. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    if cols > 8192:
        raise Unsupported(f"{cols} columns; one block holds 8192")
    dx, dweight = empty_outputs(x)
    if dx.numel():
        blocks, across = _grid(x)
        partial = torch.empty((blocks, cols), dtype=torch.float32, device=x.device)
        _module.launch(
            "rms_norm_backward_partials",
            blocks,
            across,
            x,
            weight,
            dy,
            rstd,
            dx,
            partial,
            *_strides(x, weight, dy, rstd),
            rows,
            cols,
            eps,
            dtype=x.dtype,
        )
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
    if cols > 8192:
        raise Unsupported(f"{cols} columns; one block holds 8192")
    dx, dweight = empty_outputs(x)
    if dx.numel():
        blocks, across = _grid(x)
        total = torch.zeros((1, cols), dtype=torch.float32, device=x.device)
        _module.launch(
            "rms_norm_backward_atomics",
            blocks,
            across,
            x,
            weight,
            dy,
            rstd,
            dx,
            total,
            *_strides(x, weight, dy, rstd),
            rows,
            cols,
            eps,
            dtype=x.dtype,
        )
        _reduce(total, dweight)
    return dx, dweight


def vectorised(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 32768 columns, whose sums fill the registers and shared memory of one block, and more than 8192
    where rows are not contiguous and aligned to 16 bytes. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    length = vector_width(x, weight, dy, dx)
    if cols > (limit := 32768 if length > 1 else 8192):
        raise Unsupported(f"{cols} columns; one block holds {limit} in accesses of {length} elements")
    if dx.numel():
        columns, _ = registers_per_row(cols)
        blocks, across = _grid(x, columns)
        shared = 0 if columns == 8 and length > 1 else columns
        partial = torch.empty((blocks, cols), dtype=torch.float32, device=x.device)
        _vectorised.launch(
            "rms_norm_backward_vectorised",
            blocks,
            across,
            x,
            weight,
            dy,
            rstd,
            dx,
            partial,
            *_strides(x, weight, dy, rstd),
            rows,
            cols,
            eps,
            dtype=x.dtype,
            shared=4 * shared * across,
            COLUMNS=columns,
            RUN=length,
            SHARED=shared,
        )
        _reduce(partial, dweight)
    return dx, dweight


def staged(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 16384 columns, 8192 of float32: the registers of one block. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        _reduce(gradients(x, weight, dy, None, rstd, dx, eps, centred=False)[0], dweight)
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
        _reduce(gradients(x, weight, dy, None, rstd, dx, eps, centred=False, clusters=True)[0], dweight)
    return dx, dweight


def _strides(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, rstd: torch.Tensor | None) -> tuple[int, ...]:
    return *x.stride(), *weight.stride(), *dy.stride(), 0 if rstd is None else rstd.stride(0)


def _grid(x: torch.Tensor, columns: int = 8) -> tuple[int, int]:
    """Blocks, so many that a multiprocessor runs 1024 threads at once, and the threads of each."""
    across = threads(x.shape[1], columns, 1024)
    return min(x.shape[0], resident(x, 1024 // across)), across


def _reduce(partial: torch.Tensor, dweight: torch.Tensor) -> None:
    """Sum partial sums (parts, cols) over parts into dweight, always in the same order."""
    parts, cols = partial.shape
    _module.launch(
        "rms_norm_backward_reduce",
        -(-cols // 32),
        (32, min(parts, 32)),
        partial,
        dweight,
        parts,
        cols,
        dtype=dweight.dtype,
    )
