"""tf32x3_gluon: a warp has the copy engine bring the two pieces of each operand; two warpgroups multiply, and add up
outside the tensor cores while further products run (Hopper)."""

import torch
from triton.experimental import gluon as tg
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.tools.tensor_descriptor import TensorDescriptor

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import processors
from touchstone.backends.triton.lib.hopper import ROWS, barriers, copy_in, place, room, swizzled
from touchstone.backends.triton.matmul._pieces import cut
from touchstone.backends.triton.matmul.tensorfloat import tf32x3
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.variants import variant

_GROUPS = gl.constexpr(2)  # warpgroups that multiply, each 64 rows of a tile
_COLS = gl.constexpr(128)  # of a tile
_DEPTH = gl.constexpr(32)  # of a step along K: 128 bytes
_STAGES = gl.constexpr(3)
_GROUP_M = gl.constexpr(8)  # rows of tiles that are visited together


@tg.jit
def _produce(descs, memory, signals, sizes):
    """Of every tile and step the large pieces, then the small, which lie M and N rows below them."""
    a_desc, b_desc = descs
    a, b = memory
    full, empty = signals
    M, N, K, tiles = sizes
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = place(tile, M, N, _GROUPS * ROWS, _COLS, _GROUP_M)
        for k in range(0, K, _DEPTH):
            stage = done % _STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), done // _STAGES & 1 ^ 1)
            mbarrier.expect(ready, 2 * (_GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes))
            for piece in gl.static_range(2):
                for each in gl.static_range(_GROUPS):
                    rows = a.index((2 * stage + piece) * _GROUPS + each)
                    copy_in(a_desc, [piece * M + m + each * ROWS, k], ready, rows)
                copy_in(b_desc, [piece * N + n, k], ready, b.index(2 * stage + piece))
            done += 1


@tg.jit
def _consume(c_ptr, memory, signals, sizes, WHICH: gl.constexpr):
    a, b = memory
    full, empty = signals
    M, N, K, tiles = sizes
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _COLS, 8])
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    col = gl.arange(0, _COLS, gl.SliceLayout(0, LAYOUT))
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = place(tile, M, N, _GROUPS * ROWS, _COLS, _GROUP_M)
        acc = gl.zeros([ROWS, _COLS], gl.float32, LAYOUT)
        large = gl.zeros([ROWS, _COLS], gl.float32, LAYOUT)
        cross = gl.zeros([ROWS, _COLS], gl.float32, LAYOUT)
        for k in range(0, K, _DEPTH):
            stage = done % _STAGES
            mbarrier.wait(full.index(stage), done // _STAGES & 1)
            a_large, b_large = a.index(2 * stage * _GROUPS + WHICH), b.index(2 * stage).permute((1, 0))
            a_small, b_small = a.index((2 * stage + 1) * _GROUPS + WHICH), b.index(2 * stage + 1).permute((1, 0))
            # float32 is read as tf32 by default; Triton 3.7 fails where `precision` says so
            large = warpgroup_mma(a_large, b_large, large, use_acc=False, is_async=True)
            cross = warpgroup_mma(a_small, b_large, cross, is_async=True)
            cross = warpgroup_mma(a_large, b_small, cross, is_async=True)
            large, cross = warpgroup_mma_wait(2, deps=[large, cross])
            mbarrier.arrive(empty.index((done - 1) % _STAGES), pred=k > 0)
            acc += large  # outside the tensor cores, whose sums over a long K lose bits
            done += 1
        cross = warpgroup_mma_wait(0, deps=[cross])
        mbarrier.arrive(empty.index((done - 1) % _STAGES))
        acc += gl.where(gl.abs(cross) < float("inf"), cross, 0.0)  # infinity times a small piece may be NaN
        r, c = (m + WHICH * ROWS + row)[:, None], (n + col)[None, :]
        gl.store(c_ptr + r.to(gl.int64) * N + c, acc, mask=(r < M) & (c < N))


@prepared
@tg.jit(do_not_specialize=["M", "N", "K", "tiles"])
def _tf32x3_kernel(a_desc, b_desc, c_ptr, M, N, K, tiles):
    """c (M, N), contiguous, in tiles of _GROUPS * 64 rows and _COLS columns; of a (2M, K) and b (2N, K) the lower half
    is what rounding the upper half took away."""
    memory = room(a_desc, 2 * _STAGES * _GROUPS), room(b_desc, 2 * _STAGES)
    signals = barriers(_STAGES, 1), barriers(_STAGES, _GROUPS)
    fence_async_shared()
    descs, sizes = (a_desc, b_desc), (M, N, K, tiles)
    gl.warp_specialize(
        [
            (_consume, (c_ptr, memory, signals, sizes, 0)),
            (_consume, (c_ptr, memory, signals, sizes, 1)),
            (_produce, (descs, memory, signals, sizes)),
        ],
        [4, 1],
        [240, 24],
    )


@variant(needs="sm_90a", compute="tf32x3")
def tf32x3_gluon(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. float32 operands keep 21 bits of mantissa.

    16-bit operands lose nothing and go to `tf32x3`. Source: [ootomo2022], [wright2024].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    if a.dtype is not torch.float32:
        return tf32x3(a, b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    if K == 0:
        return c.zero_()
    tiles = ceil_div(M, _GROUPS.value * ROWS.value) * ceil_div(N, _COLS.value)
    a_desc, b_desc = _stacked(cut(a), K, ROWS.value), _stacked(cut(b.t()), K, _COLS.value)
    _tf32x3_kernel[(min(processors(a.device), tiles),)](
        swizzled(a_desc), swizzled(b_desc), c, M, N, K, tiles, num_warps=4
    )
    return c


def _stacked(pieces: torch.Tensor, C: int, rows: int) -> TensorDescriptor:
    """`pieces` (2, R, pitch) of a matrix of C columns as one of 2R rows. A tile at the end of the large pieces has rows
    of the small ones, for rows or columns of c that are not stored."""
    _, R, pitch = pieces.shape
    return TensorDescriptor(pieces, [2 * R, C], [pitch, 1], [rows, _DEPTH.value])
