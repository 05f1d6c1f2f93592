"""The backwards of layer norm and RMS norm: one schedule for both.

RMS norm is layer norm without the mean and the bias: what only layer norm has stands under CENTRED.

An op brings `statistics`, a device function that reads a row once and stores what its gradient needs, in float32: mean,
rstd, mean(g) and mean(g * n) if CENTRED, else rstd and mean(g * n), with n the normed row and g = dy * weight.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib.rows import grid_programs, multiple, row_unit, warps

_BEHIND = 4  # parts that the blocks of columns lag behind the statistics, so that they hit L2
# Arguments whose value (first list) or alignment would not improve the code.
_PLAIN = ["rows", "rows_each"]
_UNALIGNED = ["stride_xn", "stride_w", "stride_dyn"]
_UNALIGNED_STATISTICS = ["stride_mean", "stride_rstd"]


class NormBackward(NamedTuple):
    """A call's checked operands and its gradients, whose memory is fresh. RMS norm has neither `mean` nor `dbias`."""

    x: torch.Tensor  # (rows, cols)
    weight: torch.Tensor  # (cols,)
    dy: torch.Tensor  # (rows, cols)
    mean: torch.Tensor | None  # (rows,) float32; computed where it is not given
    rstd: torch.Tensor | None  # the same
    eps: float
    dx: torch.Tensor  # (rows, cols), contiguous
    dweight: torch.Tensor  # (cols,), contiguous
    dbias: torch.Tensor | None = None  # (cols,), contiguous

    @property
    def centred(self) -> bool:
        return self.dbias is not None

    @property
    def strides(self) -> tuple[int, ...]:
        return *self.x.stride(), *self.weight.stride(), *self.dy.stride()

    @property
    def statistics_strides(self) -> tuple[int | None, int]:
        """Of mean and rstd; None where the op has no mean: the compiled kernel does not have the parameter."""
        mean = (0 if self.mean is None else self.mean.stride(0)) if self.centred else None
        return mean, 0 if self.rstd is None else self.rstd.stride(0)

    def sums(self, parts: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Memory for the partial sums of dweight and dbias, (parts, cols) in float32."""
        shape = parts, self.x.shape[1]
        dw_partial = torch.empty(shape, dtype=torch.float32, device=self.x.device)
        return dw_partial, torch.empty_like(dw_partial) if self.centred else None


# Statistics first, then blocks of columns.


@triton.jit
def _column_block(
    x_ptr,
    w_ptr,
    dy_ptr,
    stats_ptr,
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_dym,
    stride_dyn,
    column_block,
    part,
    rows_each,
    rows,
    cols,
    CENTRED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """dx of a block of columns in one part of the rows, and the part's sums for dweight and dbias."""
    STATS: tl.constexpr = 4 if CENTRED else 2  # per row
    STAGES: tl.constexpr = 4 if CENTRED else 5
    col = (column_block * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)[None, :]
    w = tl.load(w_ptr + col * stride_w, mask=col < cols, other=0.0).to(tl.float32)
    end = tl.minimum(rows, (part + 1) * rows_each)

    dweight = tl.zeros((BLOCK_C,), tl.float32)
    dbias = tl.zeros((BLOCK_C,), tl.float32)
    for start in tl.range(part * rows_each, end, BLOCK_R, num_stages=STAGES):
        row = (start + tl.arange(0, BLOCK_R)).to(tl.int64)[:, None]
        inside = (row < end) & (col < cols)
        x = tl.load(x_ptr + row * stride_xm + col * stride_xn, mask=inside, other=0.0, eviction_policy="evict_first")
        dy = tl.load(
            dy_ptr + row * stride_dym + col * stride_dyn, mask=inside, other=0.0, eviction_policy="evict_first"
        )
        if CENTRED:
            mean = tl.load(stats_ptr + row * STATS, mask=row < end, other=0.0)
            rstd = tl.load(stats_ptr + row * STATS + 1, mask=row < end, other=0.0)
            shift = tl.load(stats_ptr + row * STATS + 2, mask=row < end, other=0.0)
            dot = tl.load(stats_ptr + row * STATS + 3, mask=row < end, other=0.0)
            centred = x.to(tl.float32) - mean
        else:
            rstd = tl.load(stats_ptr + row * STATS, mask=row < end, other=0.0)
            dot = tl.load(stats_ptr + row * STATS + 1, mask=row < end, other=0.0)
            centred = x.to(tl.float32)
        normed = centred * rstd
        g = dy.to(tl.float32) * w
        if CENTRED:
            g -= shift
        dx = rstd * (g - normed * dot)
        tl.store(dx_ptr + row * cols + col, dx, mask=inside, eviction_policy="evict_first")
        dweight += tl.sum(dy.to(tl.float32) * normed, axis=0)
        if CENTRED:
            dbias += tl.sum(dy.to(tl.float32), axis=0)
    part = part.to(tl.int64)
    tl.store(dw_partial_ptr + part * cols + col, dweight[None, :], mask=col < cols)
    if CENTRED:
        tl.store(db_partial_ptr + part * cols + col, dbias[None, :], mask=col < cols)


@triton.jit(do_not_specialize_on_alignment=[*_UNALIGNED, *_UNALIGNED_STATISTICS])
def _statistics_kernel(
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
    cols,
    eps,
    STATISTICS: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stride_xm, stride_dym, cols = multiple(stride_xm, UNIT), multiple(stride_dym, UNIT), multiple(cols, UNIT)
    STATISTICS(
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
        tl.program_id(0).to(tl.int64),
        cols,
        eps,
        BLOCK,
    )


@triton.jit(do_not_specialize=_PLAIN, do_not_specialize_on_alignment=_UNALIGNED)
def _column_blocks_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    stats_ptr,
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_dym,
    stride_dyn,
    rows_each,
    rows,
    cols,
    CENTRED: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    stride_xm, stride_dym, cols = multiple(stride_xm, UNIT), multiple(stride_dym, UNIT), multiple(cols, UNIT)
    _column_block(
        x_ptr,
        w_ptr,
        dy_ptr,
        stats_ptr,
        dx_ptr,
        dw_partial_ptr,
        db_partial_ptr,
        stride_xm,
        stride_xn,
        stride_w,
        stride_dym,
        stride_dyn,
        tl.program_id(0),
        tl.program_id(1),
        rows_each,
        rows,
        cols,
        CENTRED,
        BLOCK_R,
        BLOCK_C,
    )


def launch_looped(call: NormBackward, statistics: Any) -> None:
    """The statistics of every row, then blocks of columns: x and dy come from memory twice."""
    x, (rows, cols), strides = call.x, call.x.shape, call.strides
    if not x.numel():
        return
    width, unit = _column_block_width(x, call.weight, call.dy), row_unit(x, call.dy)
    stats = _empty_statistics(call)
    operands = (x, call.weight, call.dy, call.mean, call.rstd, stats, *strides, *call.statistics_strides)
    _statistics_kernel[(rows,)](
        *operands, cols, call.eps, STATISTICS=statistics, UNIT=unit, BLOCK=4 * width, num_warps=4
    )
    column_blocks = ceil_div(cols, width)
    rows_each = ceil_div(rows, max(1, min(ceil_div(rows, 4), grid_programs(x, 4) // column_blocks)))
    parts = ceil_div(rows, rows_each)
    partials = call.sums(parts)
    operands = (x, call.weight, call.dy, stats, call.dx, *partials, *strides)
    _column_blocks_kernel[(column_blocks, parts)](
        *operands, rows_each, rows, cols, CENTRED=call.centred, UNIT=unit, BLOCK_R=4, BLOCK_C=width, num_warps=4
    )
    add_parts(*partials, call)


@triton.jit(
    do_not_specialize=[*_PLAIN, "tickets"], do_not_specialize_on_alignment=[*_UNALIGNED, *_UNALIGNED_STATISTICS]
)
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
    stride_xm,
    stride_xn,
    stride_w,
    stride_dym,
    stride_dyn,
    stride_mean,
    stride_rstd,
    tickets,
    rows_each,
    rows,
    cols,
    eps,
    STATISTICS: tl.constexpr,
    CENTRED: tl.constexpr,
    BEHIND: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Longer than a screen: the parameters and the arguments of the calls of STATISTICS and `_column_block` stand one
    to a line; the rest, which takes jobs in their order, is under 20 lines.
    """
    stride_xm, stride_dym, cols = multiple(stride_xm, UNIT), multiple(stride_dym, UNIT), multiple(cols, UNIT)
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
                STATISTICS(
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
                stride_xm,
                stride_xn,
                stride_w,
                stride_dym,
                stride_dyn,
                job - rows_each,
                part,
                rows_each,
                rows,
                cols,
                CENTRED,
                BLOCK_R,
                BLOCK_C,
            )
        ticket = tl.atomic_add(done_ptr, 1)


def launch_l2_resident(call: NormBackward, statistics: Any) -> None:
    """Both in one launch, part of the rows by part: the parts under way fit the L2 cache."""
    x, (rows, cols) = call.x, call.x.shape
    if not x.numel():
        return
    rows_each, width = _rows_in_flight(x), _column_block_width(x, call.weight, call.dy)
    parts = ceil_div(rows, rows_each)
    tickets = (parts + _BEHIND) * (rows_each + ceil_div(cols, width))
    done = torch.zeros((1 + parts,), dtype=torch.int32, device=x.device)
    partials = call.sums(parts)
    operands = (x, call.weight, call.dy, call.mean, call.rstd, _empty_statistics(call), done, call.dx, *partials)
    _l2_resident_kernel[(min(tickets, grid_programs(x, 3)),)](
        *operands,
        *call.strides,
        *call.statistics_strides,
        tickets,
        rows_each,
        rows,
        cols,
        call.eps,
        STATISTICS=statistics,
        CENTRED=call.centred,
        BEHIND=_BEHIND,
        UNIT=row_unit(x, call.dy),
        BLOCK=4 * width,
        BLOCK_R=4,
        BLOCK_C=width,
        num_warps=4,
    )
    add_parts(*partials, call)


def _empty_statistics(call: NormBackward) -> torch.Tensor:
    shape = call.x.shape[0], 4 if call.centred else 2
    return torch.empty(shape, dtype=torch.float32, device=call.x.device)


def _column_block_width(*operands: torch.Tensor) -> int:
    """Columns to each row of a block of columns, a quarter of what a program reads at a time: fewer where no access
    moves several neighbours, since every element then has an address of its own in registers.
    """
    size = operands[0].element_size()
    wide = all(x.stride(-1) == 1 and not any(s * size % 16 for s in (*x.stride()[:-1], x.shape[-1])) for x in operands)
    return (2048 if wide else 512) // size


def _rows_in_flight(x: torch.Tensor) -> int:
    """Rows of a part: _BEHIND of them, of two matrices like `x`, take about 12 MB. A few in the interpreter."""
    return min(max((3 << 19) // (x.shape[1] * x.element_size()), 4), 64) if x.is_cuda else 4


@triton.jit(do_not_specialize=["parts"])
def _reduce_kernel(
    dw_partial_ptr, db_partial_ptr, dweight_ptr, dbias_ptr, parts, cols, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    col = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    dweight = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    dbias = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in tl.range(0, parts, BLOCK_P, num_stages=3):
        part = start + tl.arange(0, BLOCK_P)[:, None]
        inside = (part < parts) & (col < cols)
        dweight += tl.load(dw_partial_ptr + part.to(tl.int64) * cols + col, mask=inside, other=0.0)
        if dbias_ptr is not None:
            dbias += tl.load(db_partial_ptr + part.to(tl.int64) * cols + col, mask=inside, other=0.0)
    tl.store(dweight_ptr + col, tl.sum(dweight, axis=0)[None, :], mask=col < cols)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + col, tl.sum(dbias, axis=0)[None, :], mask=col < cols)


def add_parts(dw_partial: torch.Tensor, db_partial: torch.Tensor | None, call: NormBackward) -> None:
    """Sum partial sums (parts, cols) over parts into dweight and dbias, always in the same order."""
    parts, cols = dw_partial.shape
    _reduce_kernel[(ceil_div(cols, 16),)](
        dw_partial, db_partial, call.dweight, call.dbias, parts, cols, BLOCK_P=256, BLOCK_C=16, num_warps=8
    )


# A row in the registers of one program, which sums dweight and dbias over many rows.


@triton.jit
def _gradients_of_rows(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_dym,
    stride_dyn,
    stride_mean,
    stride_rstd,
    rows,
    cols,
    eps,
    CENTRED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx of every row of this program; returns its sums for dweight and dbias."""
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)

    dweight = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):
        x = tl.load(x_ptr + row * stride_xm + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * stride_dym + col.to(tl.int64) * stride_dyn, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            if mean_ptr is not None:
                mean = tl.load(mean_ptr + row * stride_mean)
            else:
                mean = tl.sum(x, axis=0) / cols
            x = tl.where(inside, x - mean, 0.0)
        if rstd_ptr is not None:
            rstd = tl.load(rstd_ptr + row * stride_rstd)
        else:
            rstd = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
        normed = x * rstd
        g = dy * w
        if CENTRED:
            shift = tl.sum(g, axis=0) / cols
        dot = tl.sum(g * normed, axis=0) / cols
        dx_row = dx_ptr + row * cols + col
        if CENTRED:
            g -= shift
        tl.store(dx_row, rstd * (g - normed * dot), mask=inside)
        dweight += dy * normed
        if CENTRED:
            dbias += dy
    return dweight, dbias


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=[*_UNALIGNED, *_UNALIGNED_STATISTICS])
def _partials_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_dym,
    stride_dyn,
    stride_mean,
    stride_rstd,
    rows,
    cols,
    eps,
    CENTRED: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stride_xm, stride_dym, cols = multiple(stride_xm, UNIT), multiple(stride_dym, UNIT), multiple(cols, UNIT)
    dweight, dbias = _gradients_of_rows(
        x_ptr,
        w_ptr,
        dy_ptr,
        mean_ptr,
        rstd_ptr,
        dx_ptr,
        stride_xm,
        stride_xn,
        stride_w,
        stride_dym,
        stride_dyn,
        stride_mean,
        stride_rstd,
        rows,
        cols,
        eps,
        CENTRED,
        BLOCK,
    )
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    tl.store(dw_partial_ptr + program * cols + col, dweight, mask=col < cols)
    if CENTRED:
        tl.store(db_partial_ptr + program * cols + col, dbias, mask=col < cols)


def launch_partials(call: NormBackward) -> None:
    """A part of the sums for each program, summed by a second launch. Declines more than 8192 columns."""
    rows, cols = call.x.shape
    if cols > 8192:
        raise Unsupported(f"{cols} columns; one program holds 8192")
    if not call.x.numel():
        return
    programs, block = _programs_and_block(call.x)
    partials = call.sums(programs)
    _partials_kernel[(programs,)](
        *(call.x, call.weight, call.dy, call.mean, call.rstd, call.dx, *partials),
        *(*call.strides, *call.statistics_strides),
        *(rows, cols, call.eps),
        CENTRED=call.centred,
        BLOCK=block,
        UNIT=row_unit(call.x, call.dy),
        num_warps=warps(block),
    )
    add_parts(*partials, call)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=[*_UNALIGNED, *_UNALIGNED_STATISTICS])
def _atomics_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_dym,
    stride_dyn,
    stride_mean,
    stride_rstd,
    rows,
    cols,
    eps,
    CENTRED: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stride_xm, stride_dym, cols = multiple(stride_xm, UNIT), multiple(stride_dym, UNIT), multiple(cols, UNIT)
    dweight, dbias = _gradients_of_rows(
        x_ptr,
        w_ptr,
        dy_ptr,
        mean_ptr,
        rstd_ptr,
        dx_ptr,
        stride_xm,
        stride_xn,
        stride_w,
        stride_dym,
        stride_dyn,
        stride_mean,
        stride_rstd,
        rows,
        cols,
        eps,
        CENTRED,
        BLOCK,
    )
    col = tl.arange(0, BLOCK)
    tl.atomic_add(dweight_ptr + col, dweight, mask=col < cols, sem="relaxed")
    if CENTRED:
        tl.atomic_add(dbias_ptr + col, dbias, mask=col < cols, sem="relaxed")


def launch_atomics(call: NormBackward) -> None:
    """The sums of all programs added to one row in float32: dweight and dbias themselves where those are float32.

    Declines more than 8192 columns.
    """
    rows, cols = call.x.shape
    if cols > 8192:
        raise Unsupported(f"{cols} columns; one program holds 8192")
    if not call.x.numel():
        return
    programs, block = _programs_and_block(call.x)
    in_place = call.x.dtype == torch.float32
    dw_sum, db_sum = (call.dweight, call.dbias) if in_place else call.sums(1)
    for zeroed in (dw_sum, db_sum):
        if zeroed is not None:
            zeroed.zero_()
    _atomics_kernel[(programs,)](
        *(call.x, call.weight, call.dy, call.mean, call.rstd, call.dx, dw_sum, db_sum),
        *(*call.strides, *call.statistics_strides),
        *(rows, cols, call.eps),
        CENTRED=call.centred,
        BLOCK=block,
        UNIT=row_unit(call.x, call.dy),
        num_warps=warps(block),
    )
    if not in_place:
        add_parts(dw_sum, db_sum, call)


def _programs_and_block(x: torch.Tensor) -> tuple[int, int]:
    """Programs, so many that a multiprocessor holds the sums of 8192 columns, and the block of columns of each."""
    block = next_power_of_2(x.shape[1])
    return min(x.shape[0], grid_programs(x, min(8192 // block, 16))), block
