"""Gradients of layer norm. With r = 1 / sqrt(variance + eps), n = (x - mean) * r, g = dy * weight:
dx = r * (g - mean(g) - n * mean(g * n)), dweight = sum over rows of dy * n, dbias = sum over rows of dy.

looped: a launch for the statistics of every row, another for blocks of columns, so a row may have any length [apex2018]
l2_resident: both in one launch, chunk of rows by chunk, so that the blocks of columns find x and dy in the L2 cache
  [gupta2012]
partials: a program holds a row in registers and sums dweight and dbias there over many rows, one part each [apex2018]
atomics: the programs add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
staged: partials in Gluon, with the next row on its way to shared memory meanwhile, in pieces of any number [hsu2024]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.layer_norm_backward import checked_sizes, empty_outputs
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
    """Store mean, rstd, mean(g) and mean(g * n) of one row, which is read once.

    Each thread sums distances from the mean of the first eight elements that it sees, its `pivot`: the moments about
    the row's mean follow from them without cancellation, since a thread's own mean is near.
    """
    x_ptr += row * stride_xm
    dy_ptr += row * stride_dym
    stats_ptr += row * 4

    # A thread has eight neighbours of a tile and sums them at once: whole tiles of sums would fill its registers.
    group = tl.arange(0, BLOCK // 8) * 8
    tile = group[:, None] + tl.arange(0, 8)[None, :]
    pivot = tl.zeros((BLOCK // 8,), tl.float32)
    total = tl.zeros((BLOCK // 8,), tl.float32)
    square = tl.zeros((BLOCK // 8,), tl.float32)
    shift = tl.zeros((BLOCK // 8,), tl.float32)
    dot = tl.zeros((BLOCK // 8,), tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=3):
        col = start + tile
        inside = col < cols
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0, eviction_policy="evict_last")
        w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0, eviction_policy="evict_last")
        dy = tl.load(dy_ptr + col.to(tl.int64) * stride_dyn, mask=inside, other=0.0, eviction_policy="evict_last")
        x = x.to(tl.float32)
        g = dy.to(tl.float32) * w.to(tl.float32)
        if start == 0:
            pivot = tl.sum(x, axis=1) / tl.minimum(tl.maximum(cols - group, 1), 8)
        x = tl.where(inside, x - pivot[:, None], 0.0)
        total += tl.sum(x, axis=1)
        square += tl.sum(x * x, axis=1)
        shift += tl.sum(g, axis=1)
        dot += tl.sum(g * x, axis=1)

    count = cols // BLOCK * 8 + tl.minimum(tl.maximum(cols % BLOCK - group, 0), 8)
    if mean_ptr is not None:
        mean = tl.load(mean_ptr + row * stride_mean)
    else:
        mean = tl.sum(total + count * pivot, axis=0) / cols
    away = pivot - mean
    square += away * (2.0 * total + count * away)
    rstd = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)
    if rstd_ptr is not None:
        rstd = tl.load(rstd_ptr + row * stride_rstd)
    tl.store(stats_ptr, mean)
    tl.store(stats_ptr + 1, rstd)
    tl.store(stats_ptr + 2, tl.sum(shift, axis=0) / cols)
    tl.store(stats_ptr + 3, tl.sum(dot + away * shift, axis=0) * rstd / cols)


@variant()
def looped(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Takes any number of columns; x and dy come from memory twice. Source: [apex2018].
    """
    call = _checked(x, weight, dy, mean, rstd, eps)
    launch_looped(call, _statistics)
    return call.dx, call.dweight, call.dbias


@variant()
def l2_resident(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Takes any number of columns; x and dy come from memory once, since the parts under way fit the L2 cache.
    Source: [gupta2012].
    """
    call = _checked(x, weight, dy, mean, rstd, eps)
    launch_l2_resident(call, _statistics)
    return call.dx, call.dweight, call.dbias


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

    Declines more than 8192 columns: the registers of one program. Source: [apex2018].
    """
    call = _checked(x, weight, dy, mean, rstd, eps)
    launch_partials(call)
    return call.dx, call.dweight, call.dbias


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
    than 8192 columns: the registers of one program. Source: [apex2018].
    """
    call = _checked(x, weight, dy, mean, rstd, eps)
    launch_atomics(call)
    return call.dx, call.dweight, call.dbias


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

    Declines more than 16384 columns, 8192 of float32 (fewer where a program has less shared memory than on sm_90), and
    rows that 16 bytes at a time do not cover. Source: [hsu2024].
    """
    call = _checked(x, weight, dy, mean, rstd, eps)
    launch_staged(call)
    return call.dx, call.dweight, call.dbias


def _checked(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    mean: torch.Tensor | None,
    rstd: torch.Tensor | None,
    eps: float,
) -> NormBackward:
    checked_sizes(x, weight, dy, mean, rstd)
    return NormBackward(x, weight, dy, mean, rstd, eps, *empty_outputs(x))
