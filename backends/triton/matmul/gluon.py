"""gluon: two or three warpgroups multiply what one warp has the copy engine bring; each stores while the next loads run
(Hopper).

A tile has 64 rows for each warpgroup. One of 192 columns is two accumulators beside each other, of 128 and of 64, since
the sides of tensors are powers of two; so is b, in shared memory."""

import torch
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
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import descriptor, fastest_tile, processors
from touchstone.backends.triton.lib.hopper import ROWS, barriers, copy_in, copy_out, place, room, swizzled
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.variants import HALF, variant

_SIDE = gl.constexpr(64)  # columns of c that are staged at once: 128 bytes
_DEPTH = gl.constexpr(64)  # of a step along K
_GROUP_M = gl.constexpr(16)  # rows of tiles that are visited together


@tg.jit
def _bring(desc, k, side, ready, memory, K_LAST: gl.constexpr):
    """A tile of an operand, whose rows of K are columns of its descriptor if K_LAST."""
    if K_LAST:
        copy_in(desc, [side, k], ready, memory)
    else:
        copy_in(desc, [k, side], ready, memory)


@tg.jit
def _produce(
    descs,
    memory,
    signals,
    sizes,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GROUPS: gl.constexpr,
    WIDE: gl.constexpr,
    NARROW: gl.constexpr,
):
    a_desc, b_desc, rest_desc, _ = descs
    a, b, rest, _ = memory
    full, empty = signals
    M, N, K, tiles = sizes
    STAGES: gl.constexpr = b.shape[0]
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = place(tile, M, N, GROUPS * ROWS, WIDE + NARROW, _GROUP_M)
        for k in range(0, K, _DEPTH):
            stage = done % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), done // STAGES & 1 ^ 1)
            copied: gl.constexpr = GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes
            mbarrier.expect(ready, copied + rest_desc.block_type.nbytes if NARROW else copied)
            for each in gl.static_range(GROUPS):
                _bring(a_desc, k, m + each * ROWS, ready, a.index(stage * GROUPS + each), not A_TRANSPOSED)
            _bring(b_desc, k, n, ready, b.index(stage), B_TRANSPOSED)
            if NARROW:
                _bring(rest_desc, k, n + WIDE, ready, rest.index(stage), B_TRANSPOSED)
            done += 1


@tg.jit
def _halves(x, LAYOUT: gl.constexpr):
    """The left and the right half of the columns, without moving them between threads."""
    left, right = gl.split(gl.permute(x.reshape([x.shape[0], 2, x.shape[1] // 2]), (0, 2, 1)))
    return gl.convert_layout(left, LAYOUT), gl.convert_layout(right, LAYOUT)


@tg.jit
def _store(c_desc, c, part, m, n, BUFFERS: gl.constexpr):
    tma.store_wait(BUFFERS - 1)  # the buffer that is to be written has been read
    c.store(part.to(c_desc.dtype))
    fence_async_shared()
    copy_out(c_desc, [m, n], c)


@tg.jit
def _consume(
    descs,
    memory,
    signals,
    sizes,
    WHICH: gl.constexpr,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GROUPS: gl.constexpr,
    WIDE: gl.constexpr,
    NARROW: gl.constexpr,
):
    """Longer than a screen: the parameters, and the stores of each width of a tile."""
    c_desc = descs[3]
    a, b, rest, c = memory
    full, empty = signals
    M, N, K, tiles = sizes
    STAGES: gl.constexpr = b.shape[0]
    BUFFERS: gl.constexpr = c.shape[0] // GROUPS
    WHOLE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 16])
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE // 2, 16])
    PART: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _SIDE, 16])
    even, odd = c.index(BUFFERS * WHICH), c.index(BUFFERS * WHICH + BUFFERS - 1)
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = place(tile, M, N, GROUPS * ROWS, WIDE + NARROW, _GROUP_M)
        m += WHICH * ROWS
        acc = gl.zeros([ROWS, WIDE], gl.float32, WHOLE)
        beside = gl.zeros([ROWS, _SIDE], gl.float32, PART)
        for k in range(0, K, _DEPTH):
            stage = done % STAGES
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            left = a.index(stage * GROUPS + WHICH)
            if A_TRANSPOSED:
                left = left.permute((1, 0))
            right = b.index(stage).permute((1, 0)) if B_TRANSPOSED else b.index(stage)
            acc = warpgroup_mma(left, right, acc, is_async=True)
            if NARROW:
                right = rest.index(stage).permute((1, 0)) if B_TRANSPOSED else rest.index(stage)
                beside = warpgroup_mma(left, right, beside, is_async=True)
                acc, beside = warpgroup_mma_wait(2, deps=[acc, beside])
            else:
                acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index((done - 1) % STAGES), pred=k > 0)
            done += 1
        if NARROW:
            acc, beside = warpgroup_mma_wait(0, deps=[acc, beside])
        else:
            acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((done - 1) % STAGES))
        left, right = _halves(acc, HALF)
        if WIDE == 256:
            first, second = _halves(left, PART)
            third, fourth = _halves(right, PART)
            _store(c_desc, even, first, m, n, BUFFERS)
            _store(c_desc, odd, second, m, n + _SIDE, BUFFERS)
            _store(c_desc, even, third, m, n + 2 * _SIDE, BUFFERS)
            _store(c_desc, odd, fourth, m, n + 3 * _SIDE, BUFFERS)
        else:
            _store(c_desc, even, left, m, n, BUFFERS)
            _store(c_desc, odd, right, m, n + _SIDE, BUFFERS)
        if NARROW:
            _store(c_desc, even, beside, m, n + WIDE, BUFFERS)
            even, odd = odd, even
    tma.store_wait(0)


@prepared
@tg.jit(do_not_specialize=["M", "N", "K", "tiles"])
def _gluon_kernel(
    a_desc,
    b_desc,
    rest_desc,
    c_desc,
    M,
    N,
    K,
    tiles,
    A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GROUPS: gl.constexpr,
    WIDE: gl.constexpr,
    NARROW: gl.constexpr,
    STAGES: gl.constexpr,
    BUFFERS: gl.constexpr,
):
    """c in tiles of GROUPS * 64 rows and WIDE + NARROW columns."""
    a, b = room(a_desc, STAGES * GROUPS), room(b_desc, STAGES)
    rest = room(rest_desc, STAGES) if NARROW else b
    c = room(c_desc, BUFFERS * GROUPS)
    signals = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    fence_async_shared()
    descs, memory, sizes = (a_desc, b_desc, rest_desc, c_desc), (a, b, rest, c), (M, N, K, tiles)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (descs, memory, signals, sizes, 0, A_TRANSPOSED, B_TRANSPOSED, GROUPS, WIDE, NARROW)),
                (_consume, (descs, memory, signals, sizes, 1, A_TRANSPOSED, B_TRANSPOSED, GROUPS, WIDE, NARROW)),
                (_produce, (descs, memory, signals, sizes, A_TRANSPOSED, B_TRANSPOSED, GROUPS, WIDE, NARROW)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (descs, memory, signals, sizes, 0, A_TRANSPOSED, B_TRANSPOSED, GROUPS, WIDE, NARROW)),
                (_consume, (descs, memory, signals, sizes, 1, A_TRANSPOSED, B_TRANSPOSED, GROUPS, WIDE, NARROW)),
                (_consume, (descs, memory, signals, sizes, 2, A_TRANSPOSED, B_TRANSPOSED, GROUPS, WIDE, NARROW)),
                (_produce, (descs, memory, signals, sizes, A_TRANSPOSED, B_TRANSPOSED, GROUPS, WIDE, NARROW)),
            ],
            [4, 4, 1],
            [160, 160, 24],
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
    rows, cols = tile = fastest_tile(a, b, _TILES)
    config = _CONFIGS[tile]
    a_desc, a_transposed = descriptor(a, "a", ROWS.value, _DEPTH.value)
    b_desc, b_transposed = descriptor(b, "b", _DEPTH.value, config["WIDE"])
    rest_desc, _ = descriptor(b, "b", _DEPTH.value, _SIDE.value) if config["NARROW"] else (b_desc, None)
    c_desc, _ = descriptor(c, "the result", ROWS.value, _SIDE.value)
    tiles = ceil_div(M, rows) * ceil_div(N, cols)
    _gluon_kernel[(min(processors(a.device), tiles),)](
        *(swizzled(each) for each in (a_desc, b_desc, rest_desc, c_desc)),
        *(M, N, K, tiles),
        A_TRANSPOSED=a_transposed,
        B_TRANSPOSED=b_transposed,
        **config,
    )
    return c


def _config(groups: int, wide: int, narrow: int, stages: int, buffers: int) -> dict[str, int]:
    return dict(GROUPS=groups, WIDE=wide, NARROW=narrow, STAGES=stages, BUFFERS=buffers, num_warps=4)


_CONFIGS = {  # by rows and columns of a tile
    (128, 256): _config(2, 256, 0, stages=4, buffers=2),
    (128, 192): _config(2, 128, 64, stages=4, buffers=2),
    (192, 192): _config(3, 128, 64, stages=4, buffers=1),
    (128, 128): _config(2, 128, 0, stages=6, buffers=2),
}
_TILES = tuple(_CONFIGS)
