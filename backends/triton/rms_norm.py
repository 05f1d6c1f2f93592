"""RMS norm over the last axis: y = x / sqrt(mean x^2 + eps) * weight.

onerow: one program holds a row in registers, so x is read once [zhang2019]
persistent: as many programs as run at once loop over the rows, the next one on its way meanwhile [gupta2012]
tiles: a row as so many tiles in registers as it has columns for: no width is padded to a power of two [guo2025]
looped: tiles of a row in two passes, mean square and write, so a row may have any length [zhang2019]
l2_resident: as many programs as keep their rows in the L2 cache, which the second pass reads from [gupta2012]
pieces: whole 16-byte pieces of a row, and its edges apart: rows that start anywhere move 16 bytes at a time [gupta2012]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported, shapes
from touchstone.backends.sizes import next_power_of_2
from touchstone.backends.triton.lib.rows import (
    check_pieces,
    grid_programs,
    multiple,
    resident,
    row_unit,
    shifted,
    split,
    tiling,
    warps,
)
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_w"])
def _onerow_kernel(
    x_ptr, w_ptr, y_ptr, stride_xm, stride_xn, stride_w, cols, eps, BLOCK: tl.constexpr, UNIT: tl.constexpr
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols

    col = tl.arange(0, BLOCK)
    inside = col < cols
    x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)

    w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + col, x * rstd * w, mask=inside)


@variant()
def onerow(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols); x·rstd stays float32 until multiplied by weight [hsu2024].

    Declines more than 32768 columns: the registers of one program. Source: [zhang2019].
    """
    _, cols = shapes("rows cols, cols", x=x, weight=weight)
    if cols > 32768:
        raise Unsupported(f"{cols} columns; one program holds 32768")
    return _launch(_onerow_kernel, x, weight, eps, next_power_of_2(cols))


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["stride_xn", "stride_w"])
def _persistent_kernel(
    x_ptr, w_ptr, y_ptr, stride_xm, stride_xn, stride_w, rows, cols, eps, BLOCK: tl.constexpr, UNIT: tl.constexpr
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    x_ptr += col.to(tl.int64) * stride_xn
    first = tl.program_id(0).to(tl.int64)
    ahead = tl.load(x_ptr + first * stride_xm, mask=inside, other=0.0)
    for row in tl.range(first, rows, tl.num_programs(0), num_stages=1):
        x = ahead.to(tl.float32)
        coming = row + tl.num_programs(0)
        ahead = tl.load(x_ptr + coming * stride_xm, mask=inside & (coming < rows), other=0.0)
        rstd = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)

        w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * cols + col, x * rstd * w, mask=inside)


@variant()
def persistent(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols). The next row waits in registers, in its own 16 bits.

    Declines more than 32768 columns: the registers of one program. Source: [gupta2012], [zhang2019].
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    if cols > 32768:
        raise Unsupported(f"{cols} columns; one program holds 32768")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        block = next_power_of_2(cols)
        programs = min(rows, grid_programs(x, 32 // warps(block)))
        _persistent_kernel[(programs,)](
            x,
            weight,
            y,
            *x.stride(),
            *weight.stride(),
            rows,
            cols,
            eps,
            BLOCK=block,
            UNIT=row_unit(x),
            num_warps=warps(block),
        )
    return y


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_w"])
def _tiles_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    cols,
    eps,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols

    tiles = ()
    square = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TILES):
        col = i * BLOCK + tl.arange(0, BLOCK)
        tiles += (tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=0.0),)
    for i in tl.static_range(TILES):
        square += tiles[i].to(tl.float32) * tiles[i].to(tl.float32)
    rstd = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)

    for i in tl.static_range(TILES):
        col = i * BLOCK + tl.arange(0, BLOCK)
        w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=col < cols, other=0.0).to(tl.float32)
        tl.store(y_ptr + col, tiles[i].to(tl.float32) * rstd * w, mask=col < cols)


@variant()
def tiles(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols). Declines more than 32768 columns, what one program holds.

    Source: [zhang2019], [guo2025].
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    if cols > 32768:
        raise Unsupported(f"{cols} columns; one program holds 32768")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        block, count, num_warps = tiling(cols)
        operands = (x, weight, y, *x.stride(), *weight.stride(), cols, eps)
        _tiles_kernel[(rows,)](*operands, TILES=count, BLOCK=block, UNIT=row_unit(x), num_warps=num_warps)
    return y


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_w"])
def _looped_kernel(
    x_ptr, w_ptr, y_ptr, stride_xm, stride_xn, stride_w, cols, eps, BLOCK: tl.constexpr, UNIT: tl.constexpr
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols

    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=0.0).to(tl.float32)
        square += x * x
    rstd = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)

    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + col, x * rstd * w, mask=inside)


@variant()
def looped(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols), any number of columns; x is read twice. Source: [zhang2019]."""
    _, cols = shapes("rows cols, cols", x=x, weight=weight)
    return _launch(_looped_kernel, x, weight, eps, min(next_power_of_2(cols), 4096))


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["stride_xn", "stride_w"])
def _l2_resident_kernel(
    x_ptr, w_ptr, y_ptr, stride_xm, stride_xn, stride_w, rows, cols, eps, BLOCK: tl.constexpr, UNIT: tl.constexpr
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=1):
        square = tl.full((), 0.0, tl.float32)
        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)
            at = x_ptr + row * stride_xm + col.to(tl.int64) * stride_xn
            x = tl.load(at, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
            square += tl.sum(x * x, axis=0)
        rstd = tl.rsqrt(square / cols + eps)

        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)
            inside = col < cols
            at = x_ptr + row * stride_xm + col.to(tl.int64) * stride_xn
            x = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
            tl.store(y_ptr + row * cols + col, x * rstd * w, mask=inside, eviction_policy="evict_first")


@variant()
def l2_resident(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols), any number of columns. Source: [zhang2019], [gupta2012].

    On an H200, bfloat16, 0.93 of a copy's rate at 65536 columns and 0.85 at 131072, where `looped` has 0.63. At 262144
    the rows under way, 69 MB, are more than the cache holds.
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        block, num_warps, programs = resident(x, 131072, num_warps=32, each=1)
        operands = (x, weight, y, *x.stride(), *weight.stride(), rows, cols, eps)
        _l2_resident_kernel[(programs,)](*operands, BLOCK=block, UNIT=row_unit(x), num_warps=num_warps)
    return y


@triton.jit(do_not_specialize=["rows"])
def _pieces_kernel(x_ptr, w_ptr, y_ptr, stride_xm, stride_wm, rows, cols, eps, BLOCK: tl.constexpr):
    UNIT: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=1):
        head, body, edge, outside = split(row * stride_xm, cols, UNIT)
        x_body = x_ptr + multiple(row * stride_xm + head, UNIT)
        w_body = w_ptr + head.to(tl.int64) * stride_wm
        y_body = y_ptr + multiple(row * cols + head, UNIT)
        # on their way during the first pass, converted behind it, and in registers for the second
        edges = tl.load(x_ptr + row * stride_xm + edge, mask=outside, other=0.0)
        w_edges = tl.load(w_ptr + edge, mask=outside, other=0.0)

        square = tl.full((), 0.0, tl.float32)
        for start in range(0, body, BLOCK):
            col = start + tl.arange(0, BLOCK)
            x = tl.load(x_body + col, mask=col < body, other=0.0, eviction_policy="evict_last").to(tl.float32)
            square += tl.sum(x * x, axis=0)
        edges = edges.to(tl.float32)
        square += tl.sum(edges * edges, axis=0)
        rstd = tl.rsqrt(square / cols + eps)

        tl.store(y_ptr + row * cols + edge, edges * rstd * w_edges.to(tl.float32), mask=outside)
        for start in range(0, body, BLOCK):
            col = start + tl.arange(0, BLOCK)
            x = tl.load(x_body + col, mask=col < body, other=0.0, eviction_policy="evict_first").to(tl.float32)
            w = tl.load(w_body + col, mask=col < body, other=0.0).to(tl.float32)
            tl.store(y_body + col, x * rstd * w, mask=col < body, eviction_policy="evict_first")


@variant()
def pieces(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """x (rows, cols), weight (cols,) -> y (rows, cols), any number of columns, as `l2_resident`.

    Declines rows whose elements lie apart, and rows of x and y that start at different places in 16 bytes. A launch
    before it copies weight for each place, so that it has pieces too. Source: [zhang2019], [gupta2012].
    """
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    check_pieces(x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        block, num_warps, programs = resident(x, 131072, num_warps=32, each=1, in_pieces=True)
        weights = shifted(weight, 16 // x.element_size())
        operands = (x, weights, y, x.stride(0), weights.stride(0), rows, cols, eps)
        _pieces_kernel[(programs,)](*operands, BLOCK=block, num_warps=num_warps)
    return y


def _launch(kernel, x: torch.Tensor, weight: torch.Tensor, eps: float, block: int) -> torch.Tensor:
    rows, cols = x.shape
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        kernel[(rows,)](
            x,
            weight,
            y,
            *x.stride(),
            *weight.stride(),
            cols,
            eps,
            BLOCK=block,
            UNIT=row_unit(x),
            num_warps=warps(block),
        )
    return y
