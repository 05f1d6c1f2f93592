"""gluon: two warpgroups multiply what one warp has the copy engine bring; each stores while the next loads run
(Hopper)."""

import torch
import triton
from triton.experimental import gluon as tg
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from touchstone.backends import Unsupported, shapes
from touchstone.backends.triton.lib.gemm import descriptor, processors
from touchstone.backends.triton.lib.hopper import ROWS, barriers, copy_in, copy_out, swizzled
from touchstone.backends.variants import HALF, variant

_GROUPS = gl.constexpr(2)
_SIDE = gl.constexpr(64)  # columns of c that are staged at once: 128 bytes


@tg.jit
def _place(tile, M, N, GROUP_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """First row and column of a tile: down GROUP_M rows of tiles before right, so that those in flight share
    operands."""
    BLOCK_M: gl.constexpr = _GROUPS * ROWS
    tiles_m, tiles_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = gl.minimum(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


@tg.jit
def _produce(
    a_desc,
    b_desc,
    a,
    b,
    full,
    empty,
    M,
    N,
    K,
    tiles,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GROUP_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    STAGES: gl.constexpr = b.shape[0]
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = _place(tile, M, N, GROUP_M=GROUP_M, BLOCK_N=BLOCK_N)
        for k in range(0, K, BLOCK_K):
            stage = done % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), done // STAGES & 1 ^ 1)
            mbarrier.expect(ready, _GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            for each in gl.static_range(_GROUPS):
                row = m + each * ROWS
                if A_TRANSPOSED:
                    copy_in(a_desc, [k, row], ready, a.index(stage * _GROUPS + each))
                else:
                    copy_in(a_desc, [row, k], ready, a.index(stage * _GROUPS + each))
            if B_TRANSPOSED:
                copy_in(b_desc, [n, k], ready, b.index(stage))
            else:
                copy_in(b_desc, [k, n], ready, b.index(stage))
            done += 1


@tg.jit
def _halves(x, LAYOUT: gl.constexpr):
    """The left and the right half of the columns, without moving them between threads."""
    left, right = gl.split(gl.permute(x.reshape([x.shape[0], 2, x.shape[1] // 2]), (0, 2, 1)))
    return gl.convert_layout(left, LAYOUT), gl.convert_layout(right, LAYOUT)


@tg.jit
def _store(c_desc, c, part, m, n):
    tma.store_wait(1)  # of the two buffers the one to be written has been read
    c.store(part.to(c_desc.dtype))
    fence_async_shared()
    copy_out(c_desc, [m, n], c)


@tg.jit
def _consume(
    c_desc,
    a,
    b,
    c,
    full,
    empty,
    M,
    N,
    K,
    tiles,
    WHICH: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GROUP_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    STAGES: gl.constexpr = b.shape[0]
    WHOLE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N // 2, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _SIDE, 16])
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = _place(tile, M, N, GROUP_M=GROUP_M, BLOCK_N=BLOCK_N)
        m += WHICH * ROWS
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, WHOLE)
        for k in range(0, K, BLOCK_K):
            stage = done % STAGES
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            left, right = a.index(stage * _GROUPS + WHICH), b.index(stage)
            if A_TRANSPOSED:
                left = left.permute((1, 0))
            if B_TRANSPOSED:
                right = right.permute((1, 0))
            acc = warpgroup_mma(left, right, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index((done - 1) % STAGES), pred=k > 0)
            done += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((done - 1) % STAGES))
        even, odd = c.index(2 * WHICH), c.index(2 * WHICH + 1)
        left, right = _halves(acc, HALF)
        if BLOCK_N == 256:
            first, second = _halves(left, PART)
            third, fourth = _halves(right, PART)
            _store(c_desc, even, first, m, n)
            _store(c_desc, odd, second, m, n + _SIDE)
            _store(c_desc, even, third, m, n + 2 * _SIDE)
            _store(c_desc, odd, fourth, m, n + 3 * _SIDE)
        else:
            _store(c_desc, even, left, m, n)
            _store(c_desc, odd, right, m, n + _SIDE)
    tma.store_wait(0)


@tg.jit(do_not_specialize=["M", "N", "K", "tiles"])
def _gluon_kernel(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    tiles,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GROUP_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Longer than a screen: the parameters, and the arguments of the three partitions in the call that starts them,
    stand one to a line; what precedes that call is under 10 lines.
    """
    a = gl.allocate_shared_memory(
        a_desc.dtype, [STAGES * _GROUPS, a_desc.block_type.shape[0], a_desc.block_type.shape[1]], a_desc.layout
    )
    b = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES, b_desc.block_type.shape[0], b_desc.block_type.shape[1]], b_desc.layout
    )
    c = gl.allocate_shared_memory(c_desc.dtype, [2 * _GROUPS, ROWS, _SIDE], c_desc.layout)
    full, empty = barriers(STAGES, 1), barriers(STAGES, _GROUPS)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    c_desc,
                    a,
                    b,
                    c,
                    full,
                    empty,
                    M,
                    N,
                    K,
                    tiles,
                    0,
                    A_TRANSPOSED,
                    B_TRANSPOSED,
                    GROUP_M,
                    BLOCK_N,
                    BLOCK_K,
                ),
            ),
            (
                _consume,
                (
                    c_desc,
                    a,
                    b,
                    c,
                    full,
                    empty,
                    M,
                    N,
                    K,
                    tiles,
                    1,
                    A_TRANSPOSED,
                    B_TRANSPOSED,
                    GROUP_M,
                    BLOCK_N,
                    BLOCK_K,
                ),
            ),
            (
                _produce,
                (
                    a_desc,
                    b_desc,
                    a,
                    b,
                    full,
                    empty,
                    M,
                    N,
                    K,
                    tiles,
                    A_TRANSPOSED,
                    B_TRANSPOSED,
                    GROUP_M,
                    BLOCK_N,
                    BLOCK_K,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )


@variant(needs="sm_90a", dtypes=HALF)
def gluon(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); either axis of `a` and of `b` may be the contiguous one.

    Declines float32, and operands and results that a descriptor cannot describe (no axis of stride 1, rows not a
    multiple of 16 bytes apart, a start that is not 16-byte aligned). Source: [wright2024].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    if a.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    if K == 0:
        return c.zero_()
    config = _default(M, N, processors(a.device))
    a_desc, a_transposed = descriptor("a", a, ROWS.value, config["BLOCK_K"])
    b_desc, b_transposed = descriptor("b", b, config["BLOCK_K"], config["BLOCK_N"])
    c_desc, _ = descriptor("the result", c, ROWS.value, _SIDE.value)
    tiles = triton.cdiv(M, ROWS.value * _GROUPS.value) * triton.cdiv(N, config["BLOCK_N"])
    _gluon_kernel[(min(processors(a.device), tiles),)](
        swizzled(a_desc),
        swizzled(b_desc),
        swizzled(c_desc),
        M,
        N,
        K,
        tiles,
        A_TRANSPOSED=a_transposed,
        B_TRANSPOSED=b_transposed,
        **config,
    )
    return c


def _default(M: int, N: int, count: int) -> dict[str, int]:
    wide = triton.cdiv(M, 128) * triton.cdiv(N, 256) >= count // 2
    return dict(GROUP_M=16, BLOCK_N=256 if wide else 128, BLOCK_K=64, STAGES=4 if wide else 6, num_warps=4)
