"""Gradients of RMS norm. With r = 1 / sqrt(mean x^2 + eps), n = x * r, g = dy * weight:
dx = r * (g - n * mean(g * n)), dweight = sum over rows of dy * n.

looped: a launch for the statistics of every row, another for blocks of columns, so a row may have any length [hsu2024]
l2_resident: both in one launch, chunk of rows by chunk, so that the blocks of columns find x and dy in the L2 cache
  [gupta2012]
partials: a program holds a row in registers and sums dweight there over many rows, one part each [hsu2024]
atomics: the programs add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
staged: partials in Gluon, with the next row on its way to shared memory meanwhile, in pieces of any number [hsu2024]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.rms_norm_backward import checked_sizes, empty_outputs
from touchstone.backends.triton.lib.norms_backward import (
    NormBackward,
    launch_atomics,
    launch_l2_resident,
    launch_looped,
    launch_partials,
)
from touchstone.backends.triton.lib.norms_backward_staged import launch_staged
from touchstone.backends.variants import variant


@triton.jit
def _statistics(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    stats_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_dym,
    stride_dyn,
    stride_mean,
    stride_rstd,
    row,
    cols,
    eps,
    BLOCK: tl.constexpr,
):
    """Store rstd and mean(g * n) of one row. There is no mean: `mean_ptr` and `stride_mean` are None."""
    x_ptr += row * stride_xm
    dy_ptr += row * stride_dym
    stats_ptr += row * 2

    # A thread has eight neighbours of a tile and sums them at once: whole tiles of sums would fill its registers.
    tile = tl.arange(0, BLOCK // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    square = tl.zeros((BLOCK // 8,), tl.float32)
    dot = tl.zeros((BLOCK // 8,), tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=4):
        col = start + tile
        inside = col < cols
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0, eviction_policy="evict_last")
        w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0, eviction_policy="evict_last")
        dy = tl.load(dy_ptr + col.to(tl.int64) * stride_dyn, mask=inside, other=0.0, eviction_policy="evict_last")
        x = x.to(tl.float32)
        g = dy.to(tl.float32) * w.to(tl.float32)
        square += tl.sum(x * x, axis=1)
        dot += tl.sum(g * x, axis=1)
    rstd = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)
    if rstd_ptr is not None:
        rstd = tl.load(rstd_ptr + row * stride_rstd)
    tl.store(stats_ptr, rstd)
    tl.store(stats_ptr + 1, tl.sum(dot, axis=0) * rstd / cols)


@variant()
def looped(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx (rows, cols), dweight (cols,).

    Takes any number of columns; x and dy come from memory twice. Source: [hsu2024].
    """
    call = _checked(x, weight, dy, rstd, eps)
    launch_looped(call, _statistics)
    return call.dx, call.dweight


@variant()
def l2_resident(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx (rows, cols), dweight (cols,).

    Takes any number of columns; x and dy come from memory once, since the parts under way fit the L2 cache.
    Source: [gupta2012].
    """
    call = _checked(x, weight, dy, rstd, eps)
    launch_l2_resident(call, _statistics)
    return call.dx, call.dweight


@variant()
def partials(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx (rows, cols), dweight (cols,).

    Declines more than 8192 columns: the registers of one program. Source: [hsu2024].
    """
    call = _checked(x, weight, dy, rstd, eps)
    launch_partials(call)
    return call.dx, call.dweight


@variant(deterministic=False)
def atomics(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx (rows, cols), dweight (cols,).

    The order of the additions to dweight, and so its rounding, changes from call to call. Declines more than 8192
    columns: the registers of one program. Source: [apex2018].
    """
    call = _checked(x, weight, dy, rstd, eps)
    launch_atomics(call)
    return call.dx, call.dweight


@variant()
def staged(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx (rows, cols), dweight (cols,).

    Declines more than 32768 columns, 16384 of float32 (fewer where a program has less shared memory than on sm_90), and
    rows that 16 bytes at a time do not cover. Beyond 16384 (8192) a row is replaced piece by piece. Source: [hsu2024].
    """
    call = _checked(x, weight, dy, rstd, eps)
    launch_staged(call)
    return call.dx, call.dweight


def _checked(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, rstd: torch.Tensor | None, eps: float
) -> NormBackward:
    checked_sizes(x, weight, dy, rstd)
    return NormBackward(x, weight, dy, None, rstd, eps, *empty_outputs(x))
