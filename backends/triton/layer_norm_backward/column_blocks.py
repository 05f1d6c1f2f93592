"""looped and l2_resident: the statistics of the rows first, then blocks of columns."""

import torch
import triton
import triton.language as tl

from touchstone.backends.triton.layer_norm_backward._launch import (
    _check,
    _outputs,
    _reduce,
    _statistics_strides,
    _strides,
)
from touchstone.backends.triton.lib.rows import BEHIND, column_block_width, resident, rows_in_flight

# Arguments whose value (first list) or alignment would not improve the code.
_PLAIN = ["rows", "rows_each"]
_UNALIGNED = ["x_col", "w_col", "dy_col", "mean_row", "rstd_row"]


@triton.jit
def _statistics(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    stats_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    mean_row,
    rstd_row,
    row,
    cols,
    eps,
    BLOCK: tl.constexpr,
):
    """Store mean, rstd, mean(g) and mean(g * n) of one row, which is read once.

    Each thread sums distances from the mean of the first eight elements that it sees, its `pivot`: the moments about
    the row's mean follow from them without cancellation, since a thread's own mean is near.
    """
    x_ptr += row * x_row
    dy_ptr += row * dy_row
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
        x = tl.load(x_ptr + col.to(tl.int64) * x_col, mask=inside, other=0.0, eviction_policy="evict_last")
        w = tl.load(w_ptr + col.to(tl.int64) * w_col, mask=inside, other=0.0, eviction_policy="evict_last")
        dy = tl.load(dy_ptr + col.to(tl.int64) * dy_col, mask=inside, other=0.0, eviction_policy="evict_last")
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
        mean = tl.load(mean_ptr + row * mean_row)
    else:
        mean = tl.sum(total + count * pivot, axis=0) / cols
    away = pivot - mean
    square += away * (2.0 * total + count * away)
    rstd = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)
    if rstd_ptr is not None:
        rstd = tl.load(rstd_ptr + row * rstd_row)
    tl.store(stats_ptr, mean)
    tl.store(stats_ptr + 1, rstd)
    tl.store(stats_ptr + 2, tl.sum(shift, axis=0) / cols)
    tl.store(stats_ptr + 3, tl.sum(dot + away * shift, axis=0) * rstd / cols)


@triton.jit
def _column_block(
    x_ptr,
    w_ptr,
    dy_ptr,
    stats_ptr,
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    column_block,
    part,
    rows_each,
    rows,
    cols,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """dx of a block of columns in one part of the rows, and the part's sums for dweight and dbias."""
    col = (column_block * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)[None, :]
    w = tl.load(w_ptr + col * w_col, mask=col < cols, other=0.0).to(tl.float32)
    end = tl.minimum(rows, (part + 1) * rows_each)

    dweight = tl.zeros((BLOCK_C,), tl.float32)
    dbias = tl.zeros((BLOCK_C,), tl.float32)
    for start in tl.range(part * rows_each, end, BLOCK_R, num_stages=4):
        row = (start + tl.arange(0, BLOCK_R)).to(tl.int64)[:, None]
        inside = (row < end) & (col < cols)
        x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0, eviction_policy="evict_first")
        dy = tl.load(dy_ptr + row * dy_row + col * dy_col, mask=inside, other=0.0, eviction_policy="evict_first")
        mean = tl.load(stats_ptr + row * 4, mask=row < end, other=0.0)
        rstd = tl.load(stats_ptr + row * 4 + 1, mask=row < end, other=0.0)
        shift = tl.load(stats_ptr + row * 4 + 2, mask=row < end, other=0.0)
        dot = tl.load(stats_ptr + row * 4 + 3, mask=row < end, other=0.0)
        normed = (x.to(tl.float32) - mean) * rstd
        dx = rstd * (dy.to(tl.float32) * w - shift - normed * dot)
        tl.store(dx_ptr + row * cols + col, dx, mask=inside, eviction_policy="evict_first")
        dweight += tl.sum(dy.to(tl.float32) * normed, axis=0)
        dbias += tl.sum(dy.to(tl.float32), axis=0)
    part = part.to(tl.int64)
    tl.store(dw_partial_ptr + part * cols + col, dweight[None, :], mask=col < cols)
    tl.store(db_partial_ptr + part * cols + col, dbias[None, :], mask=col < cols)


@triton.jit(do_not_specialize_on_alignment=_UNALIGNED)
def _statistics_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    stats_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    mean_row,
    rstd_row,
    cols,
    eps,
    BLOCK: tl.constexpr,
):
    _statistics(
        x_ptr,
        w_ptr,
        dy_ptr,
        mean_ptr,
        rstd_ptr,
        stats_ptr,
        x_row,
        x_col,
        w_col,
        dy_row,
        dy_col,
        mean_row,
        rstd_row,
        tl.program_id(0).to(tl.int64),
        cols,
        eps,
        BLOCK,
    )


@triton.jit(do_not_specialize=_PLAIN, do_not_specialize_on_alignment=_UNALIGNED[:3])
def _column_blocks_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    stats_ptr,
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    rows_each,
    rows,
    cols,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    _column_block(
        x_ptr,
        w_ptr,
        dy_ptr,
        stats_ptr,
        dx_ptr,
        dw_partial_ptr,
        db_partial_ptr,
        x_row,
        x_col,
        w_col,
        dy_row,
        dy_col,
        tl.program_id(0),
        tl.program_id(1),
        rows_each,
        rows,
        cols,
        BLOCK_R,
        BLOCK_C,
    )


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
    rows, cols = _check(x, weight, dy, mean, rstd)
    dx, dweight, dbias = _outputs(x)
    if dx.numel():
        strides, width = _strides(x, weight, dy), column_block_width(x, weight, dy)
        stats = torch.empty((rows, 4), dtype=torch.float32, device=x.device)
        _statistics_kernel[(rows,)](
            x,
            weight,
            dy,
            mean,
            rstd,
            stats,
            *strides,
            *_statistics_strides(mean, rstd),
            cols,
            eps,
            BLOCK=4 * width,
            num_warps=4,
        )
        column_blocks = triton.cdiv(cols, width)
        rows_each = triton.cdiv(rows, max(1, min(triton.cdiv(rows, 4), resident(x, 4) // column_blocks)))
        parts = triton.cdiv(rows, rows_each)
        dw_partial, db_partial = (torch.empty((parts, cols), dtype=torch.float32, device=x.device) for _ in range(2))
        _column_blocks_kernel[(column_blocks, parts)](
            x,
            weight,
            dy,
            stats,
            dx,
            dw_partial,
            db_partial,
            *strides,
            rows_each,
            rows,
            cols,
            BLOCK_R=4,
            BLOCK_C=width,
            num_warps=4,
        )
        _reduce(dw_partial, db_partial, dweight, dbias)
    return dx, dweight, dbias


@triton.jit(do_not_specialize=[*_PLAIN, "tickets"], do_not_specialize_on_alignment=_UNALIGNED)
def _l2_resident_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    stats_ptr,
    done_ptr,
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    mean_row,
    rstd_row,
    tickets,
    rows_each,
    rows,
    cols,
    eps,
    BEHIND: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    # Jobs are taken in the order of their tickets: whatever a job waits for is finished, or under way in another
    # program.
    jobs = rows_each + tl.cdiv(cols, BLOCK_C)
    ticket = tl.atomic_add(done_ptr, 1)
    while ticket < tickets:
        part = ticket // jobs
        job = ticket % jobs
        if job < rows_each:
            row = part * rows_each + job
            if row < rows:
                _statistics(
                    x_ptr,
                    w_ptr,
                    dy_ptr,
                    mean_ptr,
                    rstd_ptr,
                    stats_ptr,
                    x_row,
                    x_col,
                    w_col,
                    dy_row,
                    dy_col,
                    mean_row,
                    rstd_row,
                    row.to(tl.int64),
                    cols,
                    eps,
                    BLOCK,
                )
                tl.debug_barrier()  # every thread's store precedes the release
                tl.atomic_add(done_ptr + 1 + part, 1, sem="release")
        elif part >= BEHIND:
            part -= BEHIND  # so many parts behind the statistics that those have had the time to finish
            while tl.atomic_add(done_ptr + 1 + part, 0, sem="acquire") < tl.minimum(rows_each, rows - part * rows_each):
                pass
            _column_block(
                x_ptr,
                w_ptr,
                dy_ptr,
                stats_ptr,
                dx_ptr,
                dw_partial_ptr,
                db_partial_ptr,
                x_row,
                x_col,
                w_col,
                dy_row,
                dy_col,
                job - rows_each,
                part,
                rows_each,
                rows,
                cols,
                BLOCK_R,
                BLOCK_C,
            )
        ticket = tl.atomic_add(done_ptr, 1)


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
    rows, cols = _check(x, weight, dy, mean, rstd)
    dx, dweight, dbias = _outputs(x)
    if dx.numel():
        strides = _strides(x, weight, dy)
        stats = torch.empty((rows, 4), dtype=torch.float32, device=x.device)
        rows_each, width = rows_in_flight(x), column_block_width(x, weight, dy)
        parts = triton.cdiv(rows, rows_each)
        tickets = (parts + BEHIND) * (rows_each + triton.cdiv(cols, width))
        done = torch.zeros((1 + parts,), dtype=torch.int32, device=x.device)
        dw_partial, db_partial = (torch.empty((parts, cols), dtype=torch.float32, device=x.device) for _ in range(2))
        _l2_resident_kernel[(min(tickets, resident(x, 3)),)](
            x,
            weight,
            dy,
            mean,
            rstd,
            stats,
            done,
            dx,
            dw_partial,
            db_partial,
            *strides,
            *_statistics_strides(mean, rstd),
            tickets,
            rows_each,
            rows,
            cols,
            eps,
            BEHIND=BEHIND,
            BLOCK=4 * width,
            BLOCK_R=4,
            BLOCK_C=width,
            num_warps=4,
        )
        _reduce(dw_partial, db_partial, dweight, dbias)
    return dx, dweight, dbias
