"""Layer norm over the last axis: y = (x - mean) / sqrt(variance + eps) * weight + bias, with the biased variance.

onerow: one program holds a row in registers, so x is read once; the variance is the centred row's [baetal2016]
persistent: as many programs as run at once loop over the rows, weight and bias stay, the next rows come [gupta2012]
halfregs: a row in registers in its own 16 bits, converted three times, so that two programs overlap [nvidia2025]
tiles: a row as so many tiles in registers as it has columns for: no width is padded to a power of two [guo2025]
looped: tiles of a row in three passes, mean, variance and write, so a row may have any length [baetal2016]
welford: mean and variance in one pass that merges the statistics of tiles, 2 reads instead of 3 [chan1979]
l2_resident: as many programs as keep their rows in the L2 cache, which the second pass reads from [gupta2012]
pieces: whole 16-byte pieces of a row, and its edges apart: rows that start anywhere move 16 bytes at a time [gupta2012]
piecetiles: tiles of whole pieces in registers, the edges apart: such a row is read once [guo2025]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported, shapes
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib.rows import (
    check_pieces,
    grid_programs,
    halfregs_block,
    multiple,
    opaque,
    resident,
    row_unit,
    shifted,
    split,
    tiling,
    warps,
)
from touchstone.backends.variants import HALF, variant


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_w", "stride_b"])
def _onerow_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_b,
    cols,
    eps,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols

    col = tl.arange(0, BLOCK)
    inside = col < cols
    x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(inside, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)

    # x - mean once more, since keeping the masked block beside x takes up to half as many registers again
    y = (x - mean) * rstd * tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
    if b_ptr is not None:
        y += tl.load(b_ptr + col.to(tl.int64) * stride_b, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + col, y, mask=inside)


@variant()
def onerow(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 32768 columns: the registers of one program. Source: [baetal2016].
    """
    _, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    if cols > 32768:
        raise Unsupported(f"{cols} columns; one program holds 32768")
    return _launch(_onerow_kernel, x, weight, bias, eps, next_power_of_2(cols))


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["stride_xn", "stride_w", "stride_b"])
def _persistent_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_b,
    rows,
    cols,
    eps,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0)
    if b_ptr is not None:
        b = tl.load(b_ptr + col.to(tl.int64) * stride_b, mask=inside, other=0.0)
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(x_ptr + row * stride_xm + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(x, axis=0) / cols
        centred = tl.where(inside, x - mean, 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)

        y = centred * rstd * w.to(tl.float32)
        if b_ptr is not None:
            y += b.to(tl.float32)
        tl.store(y_ptr + row * cols + col, y, mask=inside)


@variant()
def persistent(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 16384 columns: the registers of one program. Source: [gupta2012], [baetal2016].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    if cols > 16384:
        raise Unsupported(f"{cols} columns; one program holds 16384 and their weight and bias")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        strides = (*x.stride(), *weight.stride(), bias.stride(0) if bias is not None else 0)
        block = next_power_of_2(cols)
        # Registers for 32 warps at once in 16 bits, for 16 in float32: programs of a second wave would double the time.
        programs = min(rows, grid_programs(x, max(64 // x.element_size() // warps(block), 1)))
        stages = 2 if block * x.element_size() > 32768 else 4
        _persistent_kernel[(programs,)](
            x,
            weight,
            bias,
            y,
            *strides,
            rows,
            cols,
            eps,
            BLOCK=block,
            UNIT=row_unit(x),
            STAGES=stages,
            num_warps=warps(block),
        )
    return y


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_w", "stride_b"])
def _halfregs_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_b,
    cols,
    eps,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols

    col = tl.arange(0, BLOCK)
    inside = col < cols
    x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0)
    mean = tl.sum(x.to(tl.float32), axis=0) / cols
    x = opaque(x)
    centred = tl.where(inside, x.to(tl.float32) - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)

    x = opaque(x)
    y = (x.to(tl.float32) - mean) * rstd
    y *= tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
    if b_ptr is not None:
        y += tl.load(b_ptr + col.to(tl.int64) * stride_b, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + col, y, mask=inside)


@variant(dtypes=HALF)
def halfregs(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines float32 and more than 32768 columns. A multiprocessor has registers for two programs of 32768 columns, one
    of which loads while the other computes (an H200, bfloat16: 0.85 of a copy's rate, in the same run 0.80 for
    `onerow`).
    Source: [nvidia2025].
    """
    _, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    block = halfregs_block(x)
    if block > 4096 and cols % 8:  # rows off 16 bytes come by element, which takes the registers of the second program
        return _launch(_halfregs_kernel, x, weight, bias, eps, block, num_warps=warps(block, 1024))
    each = 1024 if block <= 4096 else 4096  # 16 warps of 128 registers fill a multiprocessor
    return _launch(_halfregs_kernel, x, weight, bias, eps, block, num_warps=warps(block, each), maxnreg=128)


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_w", "stride_b"])
def _tiles_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_b,
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
    for i in tl.static_range(TILES):
        col = i * BLOCK + tl.arange(0, BLOCK)
        tiles += (tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=0.0),)
    mean = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TILES):
        mean += tiles[i].to(tl.float32)
    mean = tl.sum(mean, axis=0) / cols
    square = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TILES):
        centred = tl.where(i * BLOCK + tl.arange(0, BLOCK) < cols, tiles[i].to(tl.float32) - mean, 0.0)
        square += centred * centred
    rstd = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)

    for i in tl.static_range(TILES):
        col = i * BLOCK + tl.arange(0, BLOCK)
        inside = col < cols
        y = (tiles[i].to(tl.float32) - mean) * rstd
        y *= tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
        if b_ptr is not None:
            y += tl.load(b_ptr + col.to(tl.int64) * stride_b, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + col, y, mask=inside)


@variant()
def tiles(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines more than 32768 columns: the registers of one program. Source: [baetal2016], [guo2025].
    """
    _, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    if cols > 32768:
        raise Unsupported(f"{cols} columns; one program holds 32768")
    block, count, num_warps = tiling(cols)
    return _launch(_tiles_kernel, x, weight, bias, eps, block, TILES=count, num_warps=num_warps)


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_w", "stride_b"])
def _looped_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_b,
    cols,
    eps,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols

    mean = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        mean += tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=0.0).to(tl.float32)
    mean = tl.sum(mean, axis=0) / cols

    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=0.0).to(tl.float32)
        centred = tl.where(col < cols, x - mean, 0.0)
        square += centred * centred
    rstd = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)

    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
        if b_ptr is not None:
            y += tl.load(b_ptr + col.to(tl.int64) * stride_b, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + col, y, mask=inside)


@variant()
def looped(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Takes any number of columns; x is read three times. Source: [baetal2016].
    """
    _, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    return _launch(_looped_kernel, x, weight, bias, eps, min(next_power_of_2(cols), 4096))


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_w", "stride_b"])
def _welford_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_b,
    cols,
    eps,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols

    mean = tl.full((), 0.0, tl.float32)
    square = tl.full((), 0.0, tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=0.0).to(tl.float32)
        count = tl.minimum(cols - start, BLOCK)
        tile_mean = tl.sum(x, axis=0) / count
        centred = tl.where(col < cols, x - tile_mean, 0.0)
        # The first `start` columns have (mean, square); this tile's `count` columns join them.
        delta = tile_mean - mean
        share = count / (start + count)
        mean += delta * share
        square += tl.sum(centred * centred, axis=0) + delta * delta * share * start
    rstd = tl.rsqrt(square / cols + eps)

    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
        if b_ptr is not None:
            y += tl.load(b_ptr + col.to(tl.int64) * stride_b, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + col, y, mask=inside)


@variant()
def welford(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Takes any number of columns; x is read twice. Source: [chan1979].
    """
    _, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    return _launch(_welford_kernel, x, weight, bias, eps, min(next_power_of_2(cols), 4096))


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["stride_xn", "stride_w", "stride_b"])
def _l2_resident_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_w,
    stride_b,
    rows,
    cols,
    eps,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=1):
        mean = tl.full((), 0.0, tl.float32)
        square = tl.full((), 0.0, tl.float32)
        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)
            at = x_ptr + row * stride_xm + col.to(tl.int64) * stride_xn
            x = tl.load(at, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
            count = tl.minimum(cols - start, BLOCK)
            tile_mean = tl.sum(x, axis=0) / count
            centred = tl.where(col < cols, x - tile_mean, 0.0)
            # The first `start` columns have (mean, square); this tile's `count` columns join them.
            delta = tile_mean - mean
            share = count / (start + count)
            mean += delta * share
            square += tl.sum(centred * centred, axis=0) + delta * delta * share * start
        rstd = tl.rsqrt(square / cols + eps)

        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)
            inside = col < cols
            at = x_ptr + row * stride_xm + col.to(tl.int64) * stride_xn
            x = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            y = (x - mean) * rstd * tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
            if b_ptr is not None:
                y += tl.load(b_ptr + col.to(tl.int64) * stride_b, mask=inside, other=0.0).to(tl.float32)
            tl.store(y_ptr + row * cols + col, y, mask=inside, eviction_policy="evict_first")


@variant()
def l2_resident(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols), any number of columns.

    On an H200, bfloat16, 0.76 of a copy's rate at 65536 columns and 0.71 at 131072, where `welford` has 0.60 and 0.59:
    weight and bias come from the cache as often as x does.
    Source: [chan1979], [gupta2012].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        block, num_warps, programs = _resident(x)
        operands = (x, weight, bias, y, *x.stride(), *weight.stride(), bias.stride(0) if bias is not None else 0)
        _l2_resident_kernel[(programs,)](*operands, rows, cols, eps, BLOCK=block, UNIT=row_unit(x), num_warps=num_warps)
    return y


@triton.jit(do_not_specialize=["rows"])
def _pieces_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, stride_xm, stride_wm, rows, cols, eps, BLOCK: tl.constexpr, UNIT: tl.constexpr
):
    PIECE: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=1):
        head, body, edge, outside = split(row * stride_xm, cols, UNIT)
        x_body = x_ptr + multiple(row * stride_xm + head, UNIT)
        y_body = y_ptr + multiple(row * cols + head, UNIT)
        # on their way during the first pass, converted behind it, and in registers for the second
        edges = tl.load(x_ptr + row * stride_xm + edge, mask=outside, other=0.0)
        w_edges = tl.load(w_ptr + edge, mask=outside, other=0.0)
        if b_ptr is not None:
            b_edges = tl.load(b_ptr + edge, mask=outside, other=0.0)

        mean = tl.full((), 0.0, tl.float32)
        square = tl.full((), 0.0, tl.float32)
        for start in range(0, body, BLOCK):
            col = start + tl.arange(0, BLOCK)
            x = tl.load(x_body + col, mask=col < body, other=0.0, eviction_policy="evict_last").to(tl.float32)
            count = tl.minimum(body - start, BLOCK)
            tile_mean = tl.sum(x, axis=0) / count
            centred = tl.where(col < body, x - tile_mean, 0.0)
            # The body's first `start` columns have (mean, square); this tile's `count` columns join them.
            delta = tile_mean - mean
            share = count / (start + count)
            mean += delta * share
            square += tl.sum(centred * centred, axis=0) + delta * delta * share * start
        # The body has (mean, square); the edges join it, of which there may be none.
        edges = edges.to(tl.float32)
        edge_mean = tl.sum(edges, axis=0) / tl.maximum(cols - body, 1)
        centred = tl.where(outside, edges - edge_mean, 0.0)
        delta = edge_mean - mean
        share = (cols - body) / cols
        mean += delta * share
        square += tl.sum(centred * centred, axis=0) + delta * delta * share * body
        rstd = tl.rsqrt(square / cols + eps)

        y_edges = (edges - mean) * rstd * w_edges.to(tl.float32)
        if b_ptr is not None:
            y_edges += b_edges.to(tl.float32)
        tl.store(y_ptr + row * cols + edge, y_edges, mask=outside)
        for start in range(0, body, BLOCK):
            col = start + tl.arange(0, BLOCK)
            inside = col < body
            x = tl.load(x_body + col, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            at = (head % PIECE).to(tl.int64) * stride_wm + multiple(head, PIECE) + col
            y = (x - mean) * rstd * tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
            if b_ptr is not None:
                y += tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(y_body + col, y, mask=inside, eviction_policy="evict_first")


@variant()
def pieces(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols), any number of columns, as `l2_resident`.

    Declines rows whose elements lie apart, and rows of x and y that start at different places in 16 bytes. Launches
    before it copy weight and bias for each place, so that they have pieces too. Source: [chan1979], [gupta2012].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    check_pieces(x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        block, num_warps, programs = _resident(x, in_pieces=True)
        unit = 128 // x.element_size()  # a line of the caches, where rows of x and y start alike in it
        if (x.stride(0) - cols) % unit:
            unit = 16 // x.element_size()
        programs = programs // unit * unit or programs  # so many that each one's rows start at one place in a unit
        weights = shifted(weight, 16 // x.element_size())
        biases = shifted(bias, 16 // x.element_size()) if bias is not None else None
        operands = (x, weights, biases, y, x.stride(0), weights.stride(0), rows, cols, eps)
        _pieces_kernel[(programs,)](*operands, BLOCK=block, UNIT=unit, num_warps=num_warps)
    return y


@triton.jit
def _piecetiles_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, stride_xm, stride_wm, cols, eps, TILES: tl.constexpr, BLOCK: tl.constexpr
):
    PIECE: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    row = tl.program_id(0).to(tl.int64)
    head, body, edge, outside = split(row * stride_xm, cols, PIECE)
    x_body = x_ptr + multiple(row * stride_xm + head, PIECE)
    y_body = y_ptr + multiple(row * cols + head, PIECE)
    w_body = w_ptr + head.to(tl.int64) * stride_wm
    if b_ptr is not None:
        b_body = b_ptr + head.to(tl.int64) * stride_wm

    tiles = ()
    for i in tl.static_range(TILES):
        col = i * BLOCK + tl.arange(0, BLOCK)
        tiles += (tl.load(x_body + col, mask=col < body, other=0.0),)
    edges = tl.load(x_ptr + row * stride_xm + edge, mask=outside, other=0.0).to(tl.float32)
    w_edges = tl.load(w_ptr + edge, mask=outside, other=0.0).to(tl.float32)
    if b_ptr is not None:
        b_edges = tl.load(b_ptr + edge, mask=outside, other=0.0).to(tl.float32)

    mean = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TILES):
        mean += tiles[i].to(tl.float32)
    mean = (tl.sum(mean, axis=0) + tl.sum(edges, axis=0)) / cols
    square = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(TILES):
        centred = tl.where(i * BLOCK + tl.arange(0, BLOCK) < body, tiles[i].to(tl.float32) - mean, 0.0)
        square += centred * centred
    centred = tl.where(outside, edges - mean, 0.0)
    rstd = tl.rsqrt((tl.sum(square, axis=0) + tl.sum(centred * centred, axis=0)) / cols + eps)

    y = centred * rstd * w_edges
    if b_ptr is not None:
        y += b_edges
    tl.store(y_ptr + row * cols + edge, y, mask=outside)
    for i in tl.static_range(TILES):
        col = i * BLOCK + tl.arange(0, BLOCK)
        inside = col < body
        y = (tiles[i].to(tl.float32) - mean) * rstd
        y *= tl.load(w_body + col, mask=inside, other=0.0).to(tl.float32)
        if b_ptr is not None:
            y += tl.load(b_body + col, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_body + col, y, mask=inside)


@variant()
def piecetiles(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5) -> torch.Tensor:
    """x (rows, cols), weight (cols,), bias (cols,) or None -> y (rows, cols).

    Declines what `pieces` does, and more than 24576 columns, 12288 of float32: the registers of one program. Source:
    [guo2025], [gupta2012].
    """
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    check_pieces(x)
    piece = 16 // x.element_size()
    block = 256 * piece  # a piece to a thread
    if cols > 12 * block:
        raise Unsupported(f"{cols} columns; one program holds {12 * block}")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        weights = shifted(weight, piece)
        biases = shifted(bias, piece) if bias is not None else None
        operands = (x, weights, biases, y, x.stride(0), weights.stride(0), cols, eps)
        _piecetiles_kernel[(rows,)](*operands, TILES=ceil_div(cols, block), BLOCK=block, num_warps=8)
    return y


def _resident(x: torch.Tensor, in_pieces: bool = False) -> tuple[int, int, int]:
    if x.element_size() == 4:
        return resident(x, 131072, num_warps=16, each=1, in_pieces=in_pieces)
    if in_pieces:  # 0.58 to 0.69 of a copy's rate on an H200 from 20481 to 100003 columns, 0.40 to 0.57 as below
        return resident(x, 16384, num_warps=8, each=4, in_pieces=True)
    if x.shape[1] <= 65536:  # two rows a multiprocessor are 34 MB of cache, as is one of twice the columns
        return resident(x, 32768, num_warps=16, each=2)
    return resident(x, 65536, num_warps=32, each=1)


def _launch(
    kernel, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, block: int, **options: int
) -> torch.Tensor:
    rows, cols = x.shape
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        strides = (*x.stride(), *weight.stride(), bias.stride(0) if bias is not None else 0)
        each = 512 if block <= 4096 else 1024  # fewer warps wait for one another in the two sums
        options = {"num_warps": warps(block, each), **options}
        kernel[(rows,)](x, weight, bias, y, *strides, cols, eps, BLOCK=block, UNIT=row_unit(x), **options)
    return y
