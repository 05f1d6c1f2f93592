"""gluon: two or three warpgroups multiply what one warp has the copy engine bring; each stores while the next loads run
(Hopper).

A warpgroup has 64 or 128 rows of a tile. Its columns are one to three accumulators beside each other, since the sides
of tensors are powers of two (208 are 128, 64 and 16); so is b, in shared memory."""

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
from touchstone.backends.triton.lib.gemm import descriptor, processors
from touchstone.backends.triton.lib.hopper import barriers, copy_in, copy_out, place, room, swizzled
from touchstone.backends.triton.matmul._tiles import CONFIGS, fastest_tile
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.variants import HALF, variant

_SIDE = gl.constexpr(64)  # rows and columns of c that are staged at once: 128 bytes
_DEPTH = gl.constexpr(64)  # of a step along K
_GROUP_M = gl.constexpr(16)  # rows of tiles that are visited together


@tg.constexpr_function
def _before(widths, part):
    """Columns of a tile before its accumulator `part`."""
    return sum(widths[:part])


@tg.constexpr_function
def _layout(cols):
    """Of an accumulator of so many columns."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, cols, 16])


@tg.jit
def _bring(desc, k, side, ready, memory, K_LAST: gl.constexpr):
    """A tile of an operand, whose rows of K are columns of its descriptor if K_LAST."""
    if K_LAST:
        copy_in(desc, [side, k], ready, memory)
    else:
        copy_in(desc, [k, side], ready, memory)


@tg.jit
def _produce(
    descs, memory, signals, sizes, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr, ROWS: gl.constexpr,
    GROUPS: gl.constexpr, WIDTHS: gl.constexpr
):  # fmt: skip
    a_desc, b_descs = descs
    a, bs = memory
    full, empty = signals
    M, N, K, tiles = sizes
    STAGES: gl.constexpr = bs[0].shape[0]
    COLS: gl.constexpr = _before(WIDTHS, len(WIDTHS))
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = place(tile, M, N, GROUPS * ROWS, COLS, _GROUP_M)
        for k in range(0, K, _DEPTH):
            stage = done % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), done // STAGES & 1 ^ 1)
            mbarrier.expect(ready, 2 * _DEPTH * (GROUPS * ROWS + COLS))
            for each in gl.static_range(GROUPS):
                _bring(a_desc, k, m + each * ROWS, ready, a.index(stage * GROUPS + each), not A_TRANSPOSED)
            for part in gl.static_range(len(WIDTHS)):
                _bring(b_descs[part], k, n + _before(WIDTHS, part), ready, bs[part].index(stage), B_TRANSPOSED)
            done += 1


@tg.jit
def _halves(x, ACROSS: gl.constexpr):
    """The left and the right half of the columns if ACROSS, else the upper and the lower half of the rows, without
    moving them between threads."""
    if ACROSS:
        LAYOUT: gl.constexpr = _layout(x.shape[1] // 2)
        first, second = gl.split(gl.permute(x.reshape([x.shape[0], 2, x.shape[1] // 2]), (0, 2, 1)))
    else:
        LAYOUT: gl.constexpr = _layout(x.shape[1])
        first, second = gl.split(gl.permute(x.reshape([2, x.shape[0] // 2, x.shape[1]]), (1, 2, 0)))
    return gl.convert_layout(first, LAYOUT), gl.convert_layout(second, LAYOUT)


@tg.jit
def _store(out, c, x, m, n, AT: gl.constexpr):
    """x in pieces of 64 rows and columns, the first of which is the group's piece AT of the tile; where it has fewer
    columns, by each thread."""
    c_desc, c_ptr, M, N = out
    COLS: gl.constexpr = x.shape[1]
    BUFFERS: gl.constexpr = c.shape[0]
    if x.shape[0] > _SIDE or COLS > _SIDE:
        ACROSS: gl.constexpr = x.shape[0] == _SIDE
        first, second = _halves(x, ACROSS)
        _store(out, c, first, m, n, AT)
        down, right = (0, COLS // 2) if ACROSS else (_SIDE, 0)
        _store(out, c, second, m + down, n + right, AT + first.shape[0] * first.shape[1] // (_SIDE * _SIDE))
    elif COLS == _SIDE:
        tma.store_wait(BUFFERS - 1 if AT else 0)  # the buffer that is to be written has been read
        c.index(AT % BUFFERS).store(x.to(c_desc.dtype))
        fence_async_shared()
        copy_out(c_desc, [m, n], c.index(AT % BUFFERS))
    else:
        row = m + gl.arange(0, _SIDE, gl.SliceLayout(1, _layout(COLS)))[:, None]
        col = n + gl.arange(0, COLS, gl.SliceLayout(0, _layout(COLS)))[None, :]
        gl.store(c_ptr + row.to(gl.int64) * N + col, x.to(c_desc.dtype), mask=(row < M) & (col < N))


@tg.jit
def _part(memory, TRANSPOSED: gl.constexpr):
    if TRANSPOSED:
        memory = memory.permute((1, 0))
    return memory


@tg.jit
def _consume(
    out, memory, signals, sizes, WHICH: gl.constexpr, A_TRANSPOSED: gl.constexpr, B_TRANSPOSED: gl.constexpr,
    ROWS: gl.constexpr, GROUPS: gl.constexpr, WIDTHS: gl.constexpr
):  # fmt: skip
    a, bs, cs = memory
    full, empty = signals
    M, N, K, tiles = sizes
    STAGES: gl.constexpr = bs[0].shape[0]
    PARTS: gl.constexpr = len(WIDTHS)
    W0: gl.constexpr = WIDTHS[0]
    W1: gl.constexpr = WIDTHS[PARTS // 2]
    W2: gl.constexpr = WIDTHS[PARTS - 1]
    PIECES: gl.constexpr = ROWS // _SIDE  # of each 64 columns
    done = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = place(tile, M, N, GROUPS * ROWS, _before(WIDTHS, PARTS), _GROUP_M)
        m += WHICH * ROWS
        first = gl.zeros([ROWS, W0], gl.float32, _layout(W0))
        second = gl.zeros([ROWS, W1], gl.float32, _layout(W1))
        third = gl.zeros([ROWS, W2], gl.float32, _layout(W2))
        for k in range(0, K, _DEPTH):
            stage = done % STAGES
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            left = _part(a.index(stage * GROUPS + WHICH), A_TRANSPOSED)
            first = warpgroup_mma(left, _part(bs[0].index(stage), B_TRANSPOSED), first, is_async=True)
            if PARTS > 1:
                second = warpgroup_mma(left, _part(bs[1].index(stage), B_TRANSPOSED), second, is_async=True)
            if PARTS > 2:
                third = warpgroup_mma(left, _part(bs[2].index(stage), B_TRANSPOSED), third, is_async=True)
            first, second, third = _finished(first, second, third, PARTS, PARTS)
            mbarrier.arrive(empty.index((done - 1) % STAGES), pred=k > 0)
            done += 1
        first, second, third = _finished(first, second, third, PARTS, 0)
        mbarrier.arrive(empty.index((done - 1) % STAGES))
        _store(out, cs[WHICH], first, m, n, 0)
        if PARTS > 1:
            _store(out, cs[WHICH], second, m, n + W0, PIECES * W0 // _SIDE)
        if PARTS > 2:
            _store(out, cs[WHICH], third, m, n + W0 + W1, PIECES * (W0 + W1) // _SIDE)
    tma.store_wait(0)


@tg.jit
def _finished(first, second, third, PARTS: gl.constexpr, UNDER_WAY: gl.constexpr):
    """The accumulators once no more than so many products are under way."""
    if PARTS == 1:
        first = warpgroup_mma_wait(UNDER_WAY, deps=[first])
    elif PARTS == 2:
        first, second = warpgroup_mma_wait(UNDER_WAY, deps=[first, second])
    else:
        first, second, third = warpgroup_mma_wait(UNDER_WAY, deps=[first, second, third])
    return first, second, third


@prepared
@tg.jit(do_not_specialize=["M", "N", "K", "tiles"])
def _gluon_kernel(
    a_desc, b_desc, second_desc, third_desc, c_desc, c_ptr, M, N, K, tiles, A_TRANSPOSED: gl.constexpr,
    B_TRANSPOSED: gl.constexpr, ROWS: gl.constexpr, GROUPS: gl.constexpr, WIDTHS: gl.constexpr, STAGES: gl.constexpr,
    BUFFERS: gl.constexpr
):  # fmt: skip
    """c in tiles of GROUPS * ROWS rows and as many columns as WIDTHS together."""
    PARTS: gl.constexpr = len(WIDTHS)
    a, b = room(a_desc, STAGES * GROUPS), room(b_desc, STAGES)
    descs, bs = (a_desc, (b_desc,)), (b,)
    if PARTS > 1:
        descs, bs = (a_desc, (b_desc, second_desc)), (b, room(second_desc, STAGES))
    if PARTS > 2:
        descs, bs = (a_desc, (b_desc, second_desc, third_desc)), (bs[0], bs[1], room(third_desc, STAGES))
    cs = room(c_desc, BUFFERS), room(c_desc, BUFFERS)
    if GROUPS > 2:
        cs = cs[0], cs[1], room(c_desc, BUFFERS)
    signals = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    fence_async_shared()
    out, results, sizes = (c_desc, c_ptr, M, N), (a, bs, cs), (M, N, K, tiles)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (out, results, signals, sizes, 0, A_TRANSPOSED, B_TRANSPOSED, ROWS, GROUPS, WIDTHS)),
                (_consume, (out, results, signals, sizes, 1, A_TRANSPOSED, B_TRANSPOSED, ROWS, GROUPS, WIDTHS)),
                (_produce, (descs, (a, bs), signals, sizes, A_TRANSPOSED, B_TRANSPOSED, ROWS, GROUPS, WIDTHS)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (out, results, signals, sizes, 0, A_TRANSPOSED, B_TRANSPOSED, ROWS, GROUPS, WIDTHS)),
                (_consume, (out, results, signals, sizes, 1, A_TRANSPOSED, B_TRANSPOSED, ROWS, GROUPS, WIDTHS)),
                (_consume, (out, results, signals, sizes, 2, A_TRANSPOSED, B_TRANSPOSED, ROWS, GROUPS, WIDTHS)),
                (_produce, (descs, (a, bs), signals, sizes, A_TRANSPOSED, B_TRANSPOSED, ROWS, GROUPS, WIDTHS)),
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
    config = CONFIGS[fastest_tile(a, b)]
    rows, widths = config["ROWS"], config["WIDTHS"]
    a_desc, a_transposed = descriptor(a, "a", rows, _DEPTH.value)
    b_descs, (b_transposed, *_) = zip(*(descriptor(b, "b", _DEPTH.value, cols) for cols in widths), strict=True)
    c_desc, _ = descriptor(c, "the result", _SIDE.value, _SIDE.value)
    tiles = ceil_div(M, rows * config["GROUPS"]) * ceil_div(N, sum(widths))
    descs = (a_desc, *b_descs, *b_descs[:1] * (3 - len(b_descs)), c_desc)
    _gluon_kernel[(min(processors(a.device), tiles),)](
        *(swizzled(each, min(2 * each.block_shape[-1], 128)) for each in descs),
        *(c, M, N, K, tiles),
        A_TRANSPOSED=a_transposed,
        B_TRANSPOSED=b_transposed,
        num_warps=4,
        **config,
    )
    return c
