"""The backwards of layer norm and RMS norm with rows on their way to shared memory while one is computed, in Gluon.

A program holds a row in pieces of 16 bytes a thread, so that its width need not be near a power of two. RMS norm is
layer norm without the mean and the bias: what only layer norm has stands under CENTRED.
"""

import torch
from triton.experimental import gluon as tg
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from touchstone.backends import Unsupported
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.norms_backward import NormBackward, add_parts
from touchstone.backends.triton.lib.rows import grid_programs
from touchstone.backends.triton.runtime.tuning import shared_limit


@tg.jit
def _columns(piece, THREADS: gl.constexpr, VECTOR: gl.constexpr):
    """The columns of a piece of a row, (threads, VECTOR)."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32, 1], [gl.num_warps(), 1], [1, 0])
    thread = gl.arange(0, THREADS, gl.SliceLayout(1, LAYOUT))[:, None]
    return (piece * THREADS + thread) * VECTOR + gl.arange(0, VECTOR, gl.SliceLayout(0, LAYOUT))[None, :]


@tg.jit
def _within(x, i: gl.constexpr, PIECES: gl.constexpr, vectors):
    """Piece i of x, with zeros beyond the end of the row, which only the last one reaches."""
    if i == PIECES - 1:
        x = gl.where(_columns(i, x.shape[0], x.shape[1]) // x.shape[1] < vectors, x, 0.0)
    return x


@tg.jit
def _pieces(
    dtype: gl.constexpr, PIECES: gl.constexpr, STAGES: gl.constexpr, THREADS: gl.constexpr, VECTOR: gl.constexpr
):
    """Shared memory for STAGES rows, each piece by itself: copies to two of them need no barrier in between."""
    memory = ()
    for _ in gl.static_range(PIECES):
        memory += (
            gl.allocate_shared_memory(dtype, [STAGES, THREADS, VECTOR], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])),
        )
    return memory


@tg.jit
def _send_for(x_ptr, dy_ptr, vectors_xm, vectors_dym, row, rows, vectors, xs, dys, i: gl.constexpr, stage):
    """Have piece i of a row copied to shared memory; zeros beyond its end and beyond the last row."""
    VECTOR: gl.constexpr = xs[i].shape[2]
    col = _columns(i, xs[i].shape[1], VECTOR)
    inside = row < rows
    if i == len(xs) - 1:
        inside = inside & (col // VECTOR < vectors)
    x_ptr += row * vectors_xm * VECTOR
    dy_ptr += row * vectors_dym * VECTOR
    async_copy.async_copy_global_to_shared(xs[i].index(stage), x_ptr + col, mask=inside)
    async_copy.async_copy_global_to_shared(dys[i].index(stage), dy_ptr + col, mask=inside)


@tg.jit
def _piece(memory, stage):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, memory.shape[2]], [32, 1], [gl.num_warps(), 1], [1, 0])
    return memory.index(stage).load(LAYOUT).to(gl.float32)


@tg.jit
def _send_for_one(ptr, stride, row, rows, memory, stage):
    """The same of a row's statistic, where it is given."""
    if ptr is not None:
        at = row + gl.arange(0, 1, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
        async_copy.async_copy_global_to_shared(memory.index(stage), ptr + at * stride, mask=at < rows)


@tg.jit
def _one(memory, stage):
    return gl.max(memory.index(stage).load(gl.BlockedLayout([1], [32], [gl.num_warps()], [0])), axis=0)


@tg.jit
def _added(square, shift, dot, square_too, shift_too, dot_too):
    return square + square_too, shift + shift_too, dot + dot_too


@tg.jit
def _joined(n, mean, square, shift, dot, n_too, mean_too, square_too, shift_too, dot_too):
    """Of two sets together: how many, the mean, and about it the sums of squares, of g, and of products with g."""
    part = n_too / gl.maximum(n + n_too, 1.0)
    away = mean_too - mean
    dot += dot_too + away * (shift_too - part * (shift + shift_too))
    return n + n_too, mean + away * part, square + square_too + away * away * (n * part), shift + shift_too, dot


@tg.jit
def _moments(xs, dys, ws, stage, mean, vectors, PIECEWISE: gl.constexpr, OWN: gl.constexpr):
    """Of a row, of which if PIECEWISE the pieces are still coming: the mean, and the sums of (x - mean)^2, of g, and of
    g * (x - mean); a thread sums about the given mean or, if OWN, about that of its own elements, so nothing cancels.
    """
    n = gl.sum(gl.zeros_like(_piece(xs[0], stage)), axis=1)
    square, shift, dot = n, n, n
    if OWN:
        one = gl.zeros_like(_piece(xs[0], stage)) + 1.0
        total = n
        for i in gl.static_range(len(xs)):
            if PIECEWISE:
                async_copy.wait_group(len(xs) - 1 - i)
            n += gl.sum(_within(one, i, len(xs), vectors), axis=1)
            total += gl.sum(_piece(xs[i], stage), axis=1)
        own = total / gl.maximum(n, 1.0)
    else:
        own = n + mean
    for i in gl.static_range(len(xs)):
        if PIECEWISE:
            async_copy.wait_group(len(xs) - 1 - i)
        g = _piece(dys[i], stage) * _piece(ws[i], 0)
        x = _within(_piece(xs[i], stage) - own[:, None], i, len(xs), vectors)
        square += gl.sum(x * x, axis=1)
        shift += gl.sum(g, axis=1)
        dot += gl.sum(g * x, axis=1)
    if OWN:
        n, mean, square, shift, dot = gl.reduce((n, own, square, shift, dot), 0, _joined)
    else:
        square, shift, dot = gl.reduce((square, shift, dot), 0, _added)
    return mean, square, shift, dot


@tg.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["stride_w", "stride_mean", "stride_rstd"])
def _staged_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    vectors_xm,
    stride_w,
    vectors_dym,
    stride_mean,
    stride_rstd,
    rows,
    vectors,
    eps,
    CENTRED: gl.constexpr,
    PIECES: gl.constexpr,
    THREADS: gl.constexpr,
    VECTOR: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Longer than a screen: the parameters stand one to a line, and what remains in one piece is the ring of stages,
    whose copies are sent for as the row that they replace has been read for the last time.
    """
    PIECEWISE: gl.constexpr = STAGES == 1  # a barrier before each piece is sent for, else one before each row
    # Rows are multiples of VECTOR long and apart: the compiler has to know it to copy 16 bytes at a time.
    cols = vectors * VECTOR
    dtype: gl.constexpr = x_ptr.dtype.element_ty
    program = gl.program_id(0).to(gl.int64)
    programs = gl.num_programs(0)
    ws = _pieces(dtype, PIECES, 1, THREADS, VECTOR)
    xs = _pieces(dtype, PIECES, STAGES, THREADS, VECTOR)
    dys = _pieces(dtype, PIECES, STAGES, THREADS, VECTOR)
    means = gl.allocate_shared_memory(gl.float32, [STAGES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    rstds = gl.allocate_shared_memory(gl.float32, [STAGES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    for stage in gl.static_range(STAGES):
        ahead = program + stage * programs
        _send_for_one(mean_ptr, stride_mean, ahead, rows, means, stage)
        _send_for_one(rstd_ptr, stride_rstd, ahead, rows, rstds, stage)
        for i in gl.static_range(PIECES):
            _send_for(x_ptr, dy_ptr, vectors_xm, vectors_dym, ahead, rows, vectors, xs, dys, i, stage)
            async_copy.commit_group()
    dweight, dbias = (), ()
    for i in gl.static_range(PIECES):
        col = _columns(i, THREADS, VECTOR)
        ws[i].index(0).store(gl.load(w_ptr + col.to(gl.int64) * stride_w, mask=col < cols, other=0.0))
        dweight += (gl.zeros_like(col).to(gl.float32),)
        dbias += (gl.zeros_like(col).to(gl.float32),)

    stage = 0
    for row in range(program, rows, programs):
        async_copy.wait_group(PIECES - 1 if PIECEWISE else (STAGES - 1) * PIECES)
        mean = 0.0
        if CENTRED and mean_ptr is not None:
            mean = _one(means, stage)
        mean, square, shift, dot = _moments(xs, dys, ws, stage, mean, vectors, PIECEWISE, CENTRED and mean_ptr is None)
        ahead = row + STAGES * programs
        if rstd_ptr is not None:
            rstd = _one(rstds, stage)
        else:
            rstd = gl.rsqrt(square / cols + eps)
        _send_for_one(mean_ptr, stride_mean, ahead, rows, means, stage)
        _send_for_one(rstd_ptr, stride_rstd, ahead, rows, rstds, stage)
        # dx = rstd * (g - mean(g) - normed * mean(g * normed)), of which the last two terms with rstd
        shift *= rstd / cols
        dot *= rstd * rstd / cols
        sums, biases = (), ()
        for i in gl.static_range(PIECES):
            col = _columns(i, THREADS, VECTOR)
            dy = _piece(dys[i], stage)
            normed = (_piece(xs[i], stage) - mean) * rstd
            dx = dy * _piece(ws[i], 0) * rstd - normed * dot
            sums += (dweight[i] + dy * normed,)
            if CENTRED:
                dx -= shift
                biases += (dbias[i] + dy,)
            inside = col // VECTOR < vectors if i == PIECES - 1 else True
            gl.store(dx_ptr + row * cols + col, dx.to(dtype), mask=inside)
            if PIECEWISE:
                _send_for(x_ptr, dy_ptr, vectors_xm, vectors_dym, ahead, rows, vectors, xs, dys, i, stage)
                async_copy.commit_group()
        dweight = sums
        if CENTRED:
            dbias = biases
        if not PIECEWISE:
            for i in gl.static_range(PIECES):
                _send_for(x_ptr, dy_ptr, vectors_xm, vectors_dym, ahead, rows, vectors, xs, dys, i, stage)
                async_copy.commit_group()
        stage = (stage + 1) % STAGES
    async_copy.wait_group(0)
    for i in gl.static_range(PIECES):
        col = _columns(i, THREADS, VECTOR)
        gl.store(dw_partial_ptr + program * cols + col, dweight[i], mask=col < cols)
        if CENTRED:
            gl.store(db_partial_ptr + program * cols + col, dbias[i], mask=col < cols)


def launch_staged(call: NormBackward) -> None:
    """A program's rows come to shared memory while the one before is computed; a part of the sums for each program.

    Declines rows that 16 bytes at a time do not cover: elements that are no neighbours, rows or beginnings off a
    multiple of 16 bytes; and more columns than a program holds: 16384, of RMS norm 32768, half of that of float32, or
    fewer where it has less than 160 or 192 KB of shared memory.
    """
    rows, cols = call.x.shape
    vector = 16 // call.x.element_size()
    if cols > (limit := (2048 if call.centred else 4096) * vector):
        raise Unsupported(f"{cols} columns; the sums of one program are of {limit}")
    for name, t in (("x", call.x), ("dy", call.dy)):
        if t.numel() and (t.stride(1) != 1 or t.stride(0) % vector or cols % vector or t.data_ptr() % 16):
            raise Unsupported(
                f"{name}: {cols} columns, strides {t.stride()}; rows have to begin and end at multiples of 16 bytes, "
                "their elements side by side"
            )
    if not call.x.numel():
        return
    warps = next((n for n in (4, 8) if cols <= n * 128 * vector), 16)
    pieces = ceil_div(cols, warps * 32 * vector)
    stages = _stages(call.x.device, warps * 512 * pieces)
    programs = min(rows, grid_programs(call.x, 16 // warps))
    partials = call.sums(programs)
    _staged_kernel[(programs,)](
        *(call.x, call.weight, call.dy, call.mean, call.rstd, call.dx, *partials),
        *(call.x.stride(0) // vector, call.weight.stride(0), call.dy.stride(0) // vector, *call.statistics_strides),
        *(rows, cols // vector, call.eps),
        CENTRED=call.centred,
        PIECES=pieces,
        THREADS=warps * 32,
        VECTOR=vector,
        STAGES=stages,
        num_warps=warps,
        maxnreg=128,
    )
    add_parts(*partials, call)


def _stages(device: torch.device, line: int) -> int:
    """Rows of x and dy in shared memory, of `line` bytes each, beside the weight: two, or one which the next row
    replaces piece by piece."""
    room = shared_limit(device)
    for stages in (2, 1):
        if (2 * stages + 1) * line + 1024 <= room:
            return stages
    raise Unsupported(f"rows of {line} bytes; of {3 * line + 1024} a program has {room}")
