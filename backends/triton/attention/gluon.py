"""gluon: warpgroups with 64 queries each, fed by one warp that has the copy engine bring keys and values (Hopper)."""

import math
from functools import lru_cache

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

from touchstone.backends import Unsupported
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import LN2, LOG2E, PLAIN, block_d, head_descriptor
from touchstone.backends.triton.lib.gemm import processors
from touchstone.backends.triton.lib.hopper import ROWS, barriers, copy_in, copy_out, swizzled
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.variants import HALF, variant

_L2 = 8 << 20  # bytes of keys and values that programs share at a time: 16 << 20 costs 1 % at 4096 keys, 32 << 20 4 %


@tg.jit
def _place(number, sizes, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """batch, query head, key head, first query and number of key blocks of a tile.

    The (batch, head) pairs are taken by groups whose keys and values fit into L2; in a group the queries that see most
    keys come first.
    """
    Hq, Hkv, pairs, group, Sq, Sk = sizes
    tiles = (Sq + BLOCK_M - 1) // BLOCK_M
    first = number // (group * tiles) * group
    width = gl.minimum(group, pairs - first)
    within = number % (group * tiles)
    pair = first + within % width
    top = (tiles - 1 - within // width) * BLOCK_M
    last = Sk  # from this key on none is visible
    if CAUSAL:
        last = gl.minimum(Sk, top + BLOCK_M + Sk - Sq)
    blocks = gl.maximum((last + BLOCK_N - 1) // BLOCK_N, 1)  # queries that see nothing get one hidden block
    return pair // Hq, pair % Hq, pair % Hq // (Hq // Hkv), top, blocks


@tg.jit
def _give(numbers, full, empty, turn, number):
    """Tell the other warps which tile this turn is for."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    mbarrier.wait(empty.index(turn % 2), turn // 2 & 1 ^ 1)
    numbers.index(turn % 2).store(gl.full([1], 0, gl.int32, LAYOUT) + number)
    mbarrier.arrive(full.index(turn % 2))


@tg.jit
def _take(numbers, full, empty, turn):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    mbarrier.wait(full.index(turn % 2), turn // 2 & 1)
    number = gl.max(numbers.index(turn % 2).load(LAYOUT), 0)
    mbarrier.arrive(empty.index(turn % 2))
    return number


@tg.jit
def _load(desc, place, x, slot, full):
    mbarrier.expect(full.index(slot), desc.block_type.nbytes)
    copy_in(desc, place, full.index(slot), x.index(slot))


@tg.jit
def _produce(
    q_desc,
    k_desc,
    v_desc,
    counter,
    q,
    k,
    v,
    numbers,
    signals,
    sizes,
    CAUSAL: gl.constexpr,
    BLOCK_N: gl.constexpr,
    GROUPS: gl.constexpr,
):
    """Fills the rings of key and value blocks, from the last visible block of a tile to its first."""
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    STAGES: gl.constexpr = k.shape[0]
    n_full, n_empty, q_full, q_empty, k_full, k_empty, v_full, v_empty, _ = signals
    _, _, pairs, _, Sq, _ = sizes
    count = pairs * ((Sq + BLOCK_M - 1) // BLOCK_M)
    number = gl.program_id(0)
    turn = 0
    done = 0
    while number < count:
        _give(numbers, n_full, n_empty, turn, number)
        batch, head, head_kv, top, blocks = _place(number, sizes, CAUSAL=CAUSAL, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N)
        for step in range(blocks):
            slot = done % STAGES
            parity = done // STAGES & 1 ^ 1
            start = (blocks - 1 - step) * BLOCK_N
            mbarrier.wait(k_empty.index(slot), parity)
            _load(k_desc, [batch, head_kv, start, 0], k, slot, k_full)
            if step == 0:
                for each in gl.static_range(GROUPS):
                    mbarrier.wait(q_empty.index(each), turn & 1 ^ 1)
                    _load(q_desc, [batch, head, top + each * ROWS, 0], q, each, q_full)
            mbarrier.wait(v_empty.index(slot), parity)
            _load(v_desc, [batch, head_kv, start, 0], v, slot, v_full)
            done += 1
        number += gl.num_programs(0)
        if CAUSAL:  # tiles differ in length: who is through with one takes the next that nobody has
            number = gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed")
        turn += 1
    _give(numbers, n_full, n_empty, turn, count)


@tg.jit
def _scores(q, k, slot, LAYOUT: gl.constexpr):
    """q * kᵀ, started."""
    BLOCK_N: gl.constexpr = k.shape[3]
    BLOCK_D: gl.constexpr = k.shape[4]
    keys = k.index(slot).reshape([BLOCK_N, BLOCK_D]).permute((1, 0))
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
    return warpgroup_mma(q, keys, zeros, use_acc=False, is_async=True)


@tg.jit
def _values(acc, p, v, slot):
    """acc + p * v, started. `p` comes from `_pack`."""
    BLOCK_N: gl.constexpr = v.shape[3]
    BLOCK_D: gl.constexpr = v.shape[4]
    even = p.to(gl.int16).to(v.dtype, bitcast=True)
    odd = (p >> 16).to(gl.int16).to(v.dtype, bitcast=True)
    weights = gl.convert_layout(gl.join(even, odd).reshape([ROWS, BLOCK_N]), gl.DotOperandLayout(0, acc.type.layout, 2))
    return warpgroup_mma(weights, v.index(slot).reshape([BLOCK_N, BLOCK_D]), acc, is_async=True)


@tg.jit
def _pack(p, dtype: gl.constexpr):
    """Neighbours in a row, rounded, as one number of 32 bits: carried around a loop, each of 16 would take a register
    and two instructions."""
    even, odd = gl.split(p.reshape([p.shape[0], p.shape[1] // 2, 2]))
    ROUND: gl.constexpr = "cvt.rn.f16x2.f32 $0, $2, $1;" if dtype == gl.float16 else "cvt.rn.bf16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(ROUND, "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1)


@tg.jit
def _rescaled(acc, alpha):
    return acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout)), 1)


@tg.jit
def _columns(x):
    """`x` (rows, columns) as (rows, columns // 8, 8): the middle axis lies in the registers of one thread."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 8])


@tg.jit
def _softmax(s, m, l, start, limit, scale, MASKED: gl.constexpr, NEGATIVE: gl.constexpr):
    """Weights exp2(s * scale - m) under the new maxima, these, the sums, and what o so far has to be scaled by.

    `scale` is not negative and carries log2 e; keys from `limit` of their row on are hidden. The sums are left in
    eight columns, as they lie in the threads.
    """
    if NEGATIVE:
        s = -s
    if MASKED:
        j = start + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        s = gl.where(gl.expand_dims(j, 0) < gl.expand_dims(limit, 1), s * scale, float("-inf"))
        m_new = gl.maximum(m, gl.convert_layout(gl.max(gl.max(_columns(s), 1), 1), m.type.layout))
    else:
        m_new = gl.maximum(m, gl.convert_layout(gl.max(gl.max(_columns(s), 1), 1), m.type.layout) * scale)
        s = s * scale  # feeds only the subtraction below: one fused multiply-add
    base = gl.where(gl.abs(m_new) == float("inf"), 0.0, m_new)  # inf - inf is NaN: leave such rows unshifted
    p = gl.exp2(s - gl.expand_dims(base, 1))
    alpha = gl.exp2(m - base)
    return p, m_new, _rescaled(l, alpha) + gl.convert_layout(gl.sum(_columns(p), 1), l.type.layout), alpha


@tg.jit
def _step(
    state,
    q,
    k,
    v,
    signals,
    done,
    last,
    order,
    start,
    limit,
    scale,
    WHICH: gl.constexpr,
    MASKED: gl.constexpr,
    NEGATIVE: gl.constexpr,
):
    """The scores of block `done` are formed, and become weights, while the weights of the block before are used.

    Warpgroups start their products in turns, so that one's exponentials run under another's products.
    """
    acc, p, m, l, alpha = state
    _, _, _, _, k_full, k_empty, v_full, v_empty, turns = signals
    STAGES: gl.constexpr = k.shape[0]
    GROUPS: gl.constexpr = turns.shape[0]
    S_LAYOUT: gl.constexpr = m.type.layout.parent
    slot = done % STAGES
    before = (done - 1) % STAGES
    mbarrier.wait(turns.index(WHICH), order & 1)
    s = _scores(q, k, slot, S_LAYOUT)
    acc = _rescaled(acc, alpha)
    mbarrier.wait(v_full.index(before), (done - 1) // STAGES & 1)
    acc = _values(acc, p, v, before)
    mbarrier.arrive(turns.index((WHICH + 1) % GROUPS))
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(slot))
    p, m, l, alpha = _softmax(s, m, l, start, limit, scale, MASKED=MASKED, NEGATIVE=NEGATIVE)
    # Waiting for the next keys here keeps the assembler from moving the wait below before the exponentials.
    mbarrier.wait(k_full.index((done + 1) % STAGES), (done + 1) // STAGES & 1, pred=not last)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index(before))
    return acc, _pack(p, v.dtype), m, l, alpha  # packed before, they would be where the product still reads


@tg.jit
def _consume(
    o_desc,
    lse_ptr,
    queries,
    k,
    v,
    outputs,
    numbers,
    signals,
    sizes,
    scale,
    WHICH: gl.constexpr,
    CAUSAL: gl.constexpr,
    NEGATIVE: gl.constexpr,
    GROUPS: gl.constexpr,
):
    """One warpgroup: 64 queries against the key blocks of each tile.

    Longer than a screen: `_step` is the loop's body, and what stands around it waits for barriers that it shares.
    """
    STAGES: gl.constexpr = k.shape[0]
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = k.shape[3]
    BLOCK_D: gl.constexpr = k.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    L_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    n_full, n_empty, q_full, q_empty, k_full, k_empty, v_full, v_empty, _ = signals
    Hq, _, pairs, _, Sq, Sk = sizes
    q = queries.index(WHICH).reshape([ROWS, BLOCK_D])
    staged = outputs.index(WHICH)
    count = pairs * ((Sq + BLOCK_M - 1) // BLOCK_M)
    turn = 0
    done = 0  # blocks of keys; the first of a tile is no step
    order = 1 if WHICH == 0 else 0  # of this group's steps, as a parity: the first group's first step waits for nobody
    number = _take(numbers, n_full, n_empty, turn)
    while number < count:
        batch, head, _, top, blocks = _place(number, sizes, CAUSAL=CAUSAL, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N)
        top += WHICH * ROWS
        i = top + gl.arange(0, ROWS, ROW)
        limit = gl.full([ROWS], 0, gl.int32, ROW) + Sk
        full = Sk // BLOCK_N  # blocks that are visible to all of i
        if CAUSAL:
            limit = gl.minimum(limit, i + 1 + Sk - Sq)
            full = gl.minimum(full, gl.maximum(top + 1 + Sk - Sq, 0) // BLOCK_N)
        m = gl.full([ROWS], float("-inf"), gl.float32, ROW)
        l = gl.zeros([ROWS, 8], gl.float32, L_LAYOUT)
        acc = gl.zeros([ROWS, BLOCK_D], gl.float32, O_LAYOUT)

        mbarrier.wait(q_full.index(WHICH), turn & 1)
        mbarrier.wait(k_full.index(done % STAGES), done // STAGES & 1)
        s = warpgroup_mma_wait(0, deps=[_scores(q, k, done % STAGES, S_LAYOUT)])
        mbarrier.arrive(k_empty.index(done % STAGES))
        p, m, l, alpha = _softmax(s, m, l, (blocks - 1) * BLOCK_N, limit, scale, MASKED=True, NEGATIVE=NEGATIVE)
        state = (acc, _pack(p, v.dtype), m, l, alpha)
        done += 1
        border = gl.minimum(full, blocks - 1)
        mbarrier.wait(k_full.index(done % STAGES), done // STAGES & 1, pred=blocks > 1)
        for block in range(blocks - 2, border - 1, -1):
            state = _step(
                state,
                q,
                k,
                v,
                signals,
                done,
                block == 0,
                order,
                block * BLOCK_N,
                limit,
                scale,
                WHICH=WHICH,
                MASKED=True,
                NEGATIVE=NEGATIVE,
            )
            done += 1
            order += 1
        for block in range(border - 1, -1, -1):
            state = _step(
                state,
                q,
                k,
                v,
                signals,
                done,
                block == 0,
                order,
                0,
                limit,
                scale,
                WHICH=WHICH,
                MASKED=False,
                NEGATIVE=NEGATIVE,
            )
            done += 1
            order += 1
        acc, p, m, l, alpha = state
        if BLOCK_D <= 128:
            mbarrier.arrive(q_empty.index(WHICH))
        mbarrier.wait(v_full.index((done - 1) % STAGES), (done - 1) // STAGES & 1)
        acc = warpgroup_mma_wait(0, deps=[_values(_rescaled(acc, alpha), p, v, (done - 1) % STAGES)])
        mbarrier.arrive(v_empty.index((done - 1) % STAGES))

        l = gl.convert_layout(gl.sum(l, 1), ROW)
        l = gl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
        tma.store_wait(0)  # what was staged before is out
        staged.reshape([ROWS, BLOCK_D]).store(_rescaled(acc, 1.0 / l).to(o_desc.dtype))
        fence_async_shared()
        copy_out(o_desc, [batch, head, top, 0], staged)
        if BLOCK_D > 128:  # o was staged where the queries were
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index(WHICH))
        gl.store(lse_ptr + (batch * Hq + head).to(gl.int64) * Sq + i, m * LN2 + gl.log(l), mask=i < Sq)
        turn += 1
        number = _take(numbers, n_full, n_empty, turn)
    tma.store_wait(0)


@prepared
@tg.jit(do_not_specialize=[*PLAIN, "pairs", "group"])
def _gluon_kernel(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse_ptr,
    counter,
    Hq,
    Hkv,
    pairs,
    group,
    Sq,
    Sk,
    scale,
    NEGATIVE: gl.constexpr,
    CAUSAL: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_D: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Longer than a screen: the parameters stand one to a line, and each number of warpgroups has its partitions."""
    q = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, BLOCK_D], q_desc.layout)
    o = q
    if BLOCK_D <= 128:  # there is room to fetch the next queries while o is stored
        o = gl.allocate_shared_memory(q_desc.dtype, [GROUPS, 1, 1, ROWS, BLOCK_D], o_desc.layout)
    k = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], k_desc.layout)
    v = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BLOCK_N, BLOCK_D], v_desc.layout)
    n = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    signals = (
        barriers(2, 1),
        barriers(2, GROUPS),
        barriers(GROUPS, 1),
        barriers(GROUPS, 1),
        barriers(STAGES, 1),
        barriers(STAGES, GROUPS),
        barriers(STAGES, 1),
        barriers(STAGES, GROUPS),
        barriers(GROUPS, 1),
    )
    fence_async_shared()
    sizes = (Hq, Hkv, pairs, group, Sq, Sk)
    if GROUPS == 3:
        gl.warp_specialize(
            [
                (_consume, (o_desc, lse_ptr, q, k, v, o, n, signals, sizes, scale, 0, CAUSAL, NEGATIVE, GROUPS)),
                (_consume, (o_desc, lse_ptr, q, k, v, o, n, signals, sizes, scale, 1, CAUSAL, NEGATIVE, GROUPS)),
                (_consume, (o_desc, lse_ptr, q, k, v, o, n, signals, sizes, scale, 2, CAUSAL, NEGATIVE, GROUPS)),
                (_produce, (q_desc, k_desc, v_desc, counter, q, k, v, n, signals, sizes, CAUSAL, BLOCK_N, GROUPS)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
    elif GROUPS == 1:
        gl.warp_specialize(
            [
                (_consume, (o_desc, lse_ptr, q, k, v, o, n, signals, sizes, scale, 0, CAUSAL, NEGATIVE, GROUPS)),
                (_produce, (q_desc, k_desc, v_desc, counter, q, k, v, n, signals, sizes, CAUSAL, BLOCK_N, GROUPS)),
            ],
            [1],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (o_desc, lse_ptr, q, k, v, o, n, signals, sizes, scale, 0, CAUSAL, NEGATIVE, GROUPS)),
                (_consume, (o_desc, lse_ptr, q, k, v, o, n, signals, sizes, scale, 1, CAUSAL, NEGATIVE, GROUPS)),
                (_produce, (q_desc, k_desc, v_desc, counter, q, k, v, n, signals, sizes, CAUSAL, BLOCK_N, GROUPS)),
            ],
            [4, 1],
            [240, 24],
        )


@variant(needs="sm_90a", dtypes=HALF)
def gluon(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32 and what a descriptor cannot describe: a last stride other than 1, another stride that is 0 or no
    multiple of 16 bytes (for o that is D times the element size), a start off 16-byte alignment. Source: [shah2024].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    if q.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    if Sk == 0:  # no descriptor of an empty tensor
        return o.zero_(), lse.fill_(float("-inf"))
    scale = scale_or_default(scale, D)
    pairs = B * Hq
    config, share = _config(D, causal, pairs, Sq, Sk, processors(q.device))
    rows, block_n = ROWS.value, config["BLOCK_N"]
    tiles = ceil_div(Sq, rows * config["GROUPS"])
    # causal: twice as many heads at a time, as there have to be short tiles enough to even out the long ones
    group = max(1, _L2 * (1 + causal) // (4 * Sk * D)) * (Hq // Hkv)
    programs = min(pairs * tiles, processors(q.device) * share)
    counter = (torch.zeros if causal else torch.empty)(1, dtype=torch.int32, device=q.device)
    q_desc, k_desc, v_desc = (
        head_descriptor(q, "q", rows),
        head_descriptor(k, "k", block_n),
        head_descriptor(v, "v", block_n),
    )
    _gluon_kernel[(programs,)](
        swizzled(q_desc),
        swizzled(k_desc),
        swizzled(v_desc),
        swizzled(head_descriptor(o, "o", rows)),
        lse,
        counter,
        Hq,
        Hkv,
        pairs,
        group,
        Sq,
        Sk,
        abs(scale) * LOG2E.value,
        NEGATIVE=scale < 0,
        CAUSAL=causal,
        BLOCK_D=block_d(D),
        **config,
    )
    return o, lse


_THREE = dict(BLOCK_N=128, GROUPS=3, STAGES=4, num_warps=4)
_ALONE = dict(BLOCK_N=128, GROUPS=1, STAGES=2, num_warps=4, maxnreg=128)
_ALONE_NARROW = dict(BLOCK_N=64, GROUPS=1, STAGES=3, num_warps=4, maxnreg=80)


@lru_cache(maxsize=4096)
def _config(D: int, causal: bool, pairs: int, Sq: int, Sk: int, count: int) -> tuple[dict[str, int], int]:
    """Constexprs and options, and programs of a multiprocessor.

    Up to D 64 one warpgroup may have a program, two or three of which share a multiprocessor: each begins and ends its
    tiles by itself, and the last round of tiles has less to wait for. Three in one program share the keys. The time of
    each is by an H200's, 256 to 10000 of both.
    """
    if D > 64:
        return dict(BLOCK_N=128 if D <= 128 else 64, GROUPS=2, STAGES=2, num_warps=4), 1
    rounds = [pairs * ceil_div(Sq, 192) / count, pairs * ceil_div(Sq, 64) / (2 * count)]
    keys = [Sk + 200.0, Sk + 70.0]  # what a tile takes besides, in keys
    if causal:  # tiles are shared out as they come; half of the keys, and what the border makes needless
        rounds, keys = [each + 0.5 for each in rounds], [Sk / 2 + 360, Sk / 2 + 166]
    else:
        rounds = [math.ceil(each) for each in rounds]
    if 192 * rounds[0] * keys[0] < 1.076 * 128 * rounds[1] * keys[1]:
        return _THREE, 1
    narrow = Sk <= (2048 if causal else 768) and pairs * ceil_div(Sq, 64) > 2 * count
    return (_ALONE_NARROW, 3) if narrow else (_ALONE, 2)
