"""Tiles of 16-bit elements in shared memory and their fragments for mma.m16n8k16, for attention and its backward.

Operands are flat arrays with strides. Tiles are flat arrays of uint16; their rows are `width` elements, a multiple of
64. The 16-byte pieces of a row are permuted by the row, so that the eight rows of a matrix that ldmatrix reads touch
all banks: column col of row r lies at r·width + (col ^ r % 8 · 8).
"""

import functools

import torch
from numba import cuda, float32, uint16, uint32

from touchstone.backends import numba
from touchstone.backends.numba.lib.ptx import copy16, copy_bits, ldmatrix_x4, mma_m16n8k16

if not numba.simulated():
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    @intrinsic
    def pack2(typingctx, like, low, high):
        """Two float32 rounded to the type of `like`, an array of float16 or bfloat16, in one register. sm_80."""
        if not isinstance(like, types.Array) or like.dtype not in (types.float16, types.bfloat16):
            return None

        def lower(context, builder, signature, arguments):
            _, low, high = arguments
            kind = ir.FunctionType(ir.IntType(32), [low.type, high.type])
            code = f"cvt.rn.{'f16' if like.dtype == types.float16 else 'bf16'}x2.f32 $0, $1, $2;"
            return builder.call(ir.InlineAsm(kind, code, "=r,f,f"), [high, low])

        return types.uint32(like, types.float32, types.float32), lower

    @intrinsic
    def put2(typingctx, tile, at, word):
        """Two elements to tile[at] and tile[at + 1] by one access; `at` is even."""

        def lower(context, builder, signature, arguments):
            data = context.make_array(tile)(context, builder, arguments[0]).data
            builder.store(arguments[2], _as(builder, builder.gep(data, [arguments[1]]), ir.IntType(32)), align=4)

        return types.void(tile, types.intp, types.uint32), lower

    @intrinsic
    def put16(typingctx, x, at, tile, to):
        """16 bytes from tile[to] on to x[at] on by one access; both places are multiples of 16 bytes."""

        def lower(context, builder, signature, arguments):
            target, source = (
                _as(builder, builder.gep(context.make_array(kind)(context, builder, array).data, [index]), _LINE)
                for kind, array, index in ((x, *arguments[:2]), (tile, *arguments[2:]))
            )
            builder.store(builder.load(source, align=16), target, align=16)

        return types.void(x, types.intp, tile, types.intp), lower

    _LINE = ir.VectorType(ir.IntType(32), 4)

    def _as(builder, pointer, kind):
        return builder.bitcast(pointer, kind.as_pointer())


def are_heads_aligned(*operands: torch.Tensor) -> bool:
    """Whether every head row of every operand is whole 16-byte pieces, one after another and on 16 bytes."""
    return all(
        x.stride(3) == 1
        and x.shape[3] * x.element_size() % 16 == 0
        and x.data_ptr() % 16 == 0
        and all(n == 1 or s * x.element_size() % 16 == 0 for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
        for x in operands
    )


@cuda.jit(device=True)
def load_tile(tile, rows, width, x, base, strides, first, end, dim, aligned, thread, threads):
    """`rows` rows of the head at x[base] from `first` on, zeros from row `end` and column `dim` on.

    Where `aligned` the copies are only started.
    """
    if aligned:  # eight threads per row: their pieces make a line of 128 bytes
        piece = thread % 8 * 8
        row = thread // 8
        while row < rows:
            at = base + (first + row) * strides[2] + piece
            to = row * width + (piece ^ row % 8 * 8)
            for col in range(0, width, 64):
                inside = first + row < end and col + piece < dim
                copy16(tile, to + col, x, at + col, 16 if inside else 0)  # 0: nothing is read
            row += threads // 8
    else:
        e = thread
        while e < rows * width:
            row, col = e // width, e % width
            to = row * width + (col ^ row % 8 * 8)
            if first + row < end and col < dim:
                copy_bits(tile, to, x, base + (first + row) * strides[2] + col * strides[3])
            else:
                tile[to] = uint16(0)
            e += threads


@cuda.jit(device=True)
def down(lane, width, row, col):
    """Where this lane's row of four matrices begins, for the a of (16 rows, 16 columns) of a tile from (row, col) on.

    Transposed they are, of a tile that holds the transpose, the b of two steps of 8 columns.
    """
    return (row + lane % 16) * width + ((lane // 16 ^ lane % 8) * 8 ^ col)


@cuda.jit(device=True)
def across(lane, width, row, col):
    """The same for the b of two steps of 8 columns from a tile whose rows are those columns; transposed, a."""
    return (row + lane // 16 * 8 + lane % 8) * width + ((lane // 8 % 2 ^ lane % 8) * 8 ^ col)


@cuda.jit(device=True)
def multiply(c, t, n, like, a, b0, b1):
    """c[t, n] (16, 8) += a[t] (16, 16) · b (16, 8)."""
    c[t, n, 0], c[t, n, 1], c[t, n, 2], c[t, n, 3] = mma_m16n8k16(
        like, a[t, 0], a[t, 1], a[t, 2], a[t, 3], b0, b1, c[t, n, 0], c[t, n, 1], c[t, n, 2], c[t, n, 3]
    )


@functools.cache
def products(T, S, W, width):
    """Two products of a warp with 16·T rows, from tiles of rows of `width` elements, in registers; `like` gives their
    type.

    scores: s (16·T, 8·S) = left rows from `row` on · rightᵀ. values: c (16·T, 8·W) += p (16·T, 8·S) · the columns of
    `right` from `col` on. The tile `right` begins at `at`.
    """

    @cuda.jit(device=True)
    def scores(s, left, right, like, row, lane, at=0):
        clear(s)
        a = cuda.local.array((T, 4), uint32)
        for d in range(0, width, 16):
            for t in range(T):
                a[t, 0], a[t, 1], a[t, 2], a[t, 3] = ldmatrix_x4(left, down(lane, width, row + 16 * t, d), 0)
            for n in range(0, S, 2):
                b0, b1, b2, b3 = ldmatrix_x4(right, at + across(lane, width, 8 * n, d), 0)
                for t in range(T):
                    multiply(s, t, n, like, a, b0, b1)
                    multiply(s, t, n + 1, like, a, b2, b3)

    @cuda.jit(device=True)
    def values(c, p, right, like, col, lane, at=0):
        a = cuda.local.array((T, 4), uint32)
        for j in range(0, S, 2):
            for t in range(T):
                for e in range(4):
                    n, h = j + e // 2, e % 2 * 2
                    a[t, e] = pack2(like, p[t, n, h], p[t, n, h + 1])
            for n in range(0, W, 2):
                b0, b1, b2, b3 = ldmatrix_x4(right, at + down(lane, width, 8 * j, col + 8 * n), 1)
                for t in range(T):
                    multiply(c, t, n, like, a, b0, b1)
                    multiply(c, t, n + 1, like, a, b2, b3)

    return scores, values


@cuda.jit(device=True)
def clear(c):
    """c = 0, the registers of a product."""
    for t in range(c.shape[0]):
        for n in range(c.shape[1]):
            for e in range(c.shape[2]):
                c[t, n, e] = float32(0)


@cuda.jit(device=True)
def put_row(tile, r, width, col, like, c, t, h, factor, lane):
    """Row r of a tile, from column `col` on, = row group + 8·h of c[t] times `factor`; each lane has its pairs."""
    for n in range(c.shape[1]):
        pair = pack2(like, c[t, n, 2 * h] * factor, c[t, n, 2 * h + 1] * factor)
        put2(tile, r * width + (col + 8 * n ^ r % 8 * 8) + lane % 4 * 2, pair)


@cuda.jit(device=True)
def store_rows(x, base, tile, width, first, rows, end, dim, thread, threads, step=0):
    """`rows` rows of a tile from `first` on to x[base], (end, dim), those within it; its rows are `step` elements
    apart, or contiguous."""
    step = step or dim
    if dim % 8 == 0:
        e = thread
        while e < rows * (width // 8):
            row, col = first + e // (width // 8), e % (width // 8) * 8
            if row < end and col < dim:
                put16(x, base + row * step + col, tile, row * width + (col ^ row % 8 * 8))
            e += threads
    else:
        e = thread
        while e < rows * width:
            row, col = first + e // width, e % width
            if row < end and col < dim:
                copy_bits(x, base + row * step + col, tile, row * width + (col ^ row % 8 * 8))
            e += threads
