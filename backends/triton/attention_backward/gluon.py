"""gluon: a program owns 128 keys, walks once over the queries that see them, and adds its dq to memory (Hopper).

Beyond D 128 it owns 64 keys: the registers hold dk and dv of no more.
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon as tg
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.tools.tensor_descriptor import TensorDescriptor

from touchstone.backends import Unsupported
from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs, pairs_together
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import LOG2E, block_d, head_descriptor
from touchstone.backends.triton.attention_backward._delta import launch_delta
from touchstone.backends.triton.attention_backward._launch import PLAIN
from touchstone.backends.triton.lib.gemm import processors
from touchstone.backends.triton.lib.hopper import barrier, barriers, copy_in, copy_out, plain_rows, swizzled
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.variants import HALF, variant


@tg.jit
def _walk(sizes, CAUSAL: gl.constexpr, KEYS: gl.constexpr, BLOCK_M: gl.constexpr):
    """batch, key head and first key of this program, its first tile of queries, their number in a head, and by how
    many it begins further on, so that programs do not add to the same dq at the same time.

    The (batch, key head) pairs are taken by groups; in a group the keys that most queries see come first.
    """
    _, Hkv, pairs, group, Sq, Sk = sizes
    of_keys = (Sk + KEYS - 1) // KEYS
    before = gl.program_id(0) // (group * of_keys) * group
    width = gl.minimum(group, pairs - before)
    within = gl.program_id(0) % (group * of_keys)
    pair, tile = before + within % width, within // width
    first = 0
    if CAUSAL:
        first = gl.maximum(tile * KEYS - (Sk - Sq), 0) // BLOCK_M
    tiles = gl.maximum((Sq + BLOCK_M - 1) // BLOCK_M - first, 0)
    return pair // Hkv, pair % Hkv, tile * KEYS, first, tiles, tile * tiles // of_keys


@tg.jit
def _produce(q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, memory, signals, sizes, CAUSAL: gl.constexpr):
    """Brings the program's keys and values, then the tiles of queries of each head."""
    k, v, q, do, lse, delta, _, _ = memory
    kv_full, q_full, do_full, empty = signals
    Hq, Hkv, _, _, _, _ = sizes
    STAGES: gl.constexpr = q.shape[0]
    BLOCK_M: gl.constexpr = q.shape[3]
    batch, head_kv, left, first, tiles, further = _walk(sizes, CAUSAL, k.shape[2], BLOCK_M)
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    copy_in(k_desc, [batch, head_kv, left, 0], kv_full, k)
    copy_in(v_desc, [batch, head_kv, left, 0], kv_full, v)
    head = head_kv * (Hq // Hkv)
    tile = first + further
    for step in range(tiles * (Hq // Hkv)):
        slot = step % STAGES
        start = tile * BLOCK_M
        mbarrier.wait(empty.index(slot), step // STAGES & 1 ^ 1)
        mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + lse_desc.block_type.nbytes)
        copy_in(q_desc, [batch, head, start, 0], q_full.index(slot), q.index(slot))
        copy_in(lse_desc, [batch * Hq + head, start], q_full.index(slot), lse.index(slot))
        mbarrier.expect(do_full.index(slot), do_desc.block_type.nbytes + delta_desc.block_type.nbytes)
        copy_in(do_desc, [batch, head, start, 0], do_full.index(slot), do.index(slot))
        copy_in(delta_desc, [batch * Hq + head, start], do_full.index(slot), delta.index(slot))
        tile, head = _next(tile, head, 1, first, tiles, further)


@tg.jit
def _next(tile, head, by, first, tiles, further):
    """The next tile of queries, and what of its head, which is `by` more where that is the next one."""
    tile += 1
    if tile == first + tiles:
        tile = first
    if tile == first + further:  # the head's last
        head += by
    return tile, head


@tg.jit
def _accumulate(acc, weights, step):
    """acc + weights * step, started; the weights are read from registers."""
    weights = gl.convert_layout(weights, gl.DotOperandLayout(0, acc.type.layout, 2))
    return warpgroup_mma(weights, step, acc, is_async=True)


@tg.jit
def _add(places, dq):
    """Add dq (BLOCK_M, BLOCK_D) to memory in the order of registers: four of a thread together, 512 bytes of a warp."""
    BLOCK_M: gl.constexpr = dq.shape[0]
    BLOCK_D: gl.constexpr = dq.shape[1]
    SPLIT: gl.constexpr = 128 // BLOCK_M
    # warp, half of its 16 rows, row; warpgroup, group of 8 columns, pair, number
    flat = dq.reshape([BLOCK_M // 16, 2, 8, SPLIT, BLOCK_D // 8 // SPLIT, 4, 2]).permute((3, 4, 0, 2, 5, 1, 6))
    flat = flat.reshape([BLOCK_M * BLOCK_D])
    gl.atomic_add(places + gl.arange(0, BLOCK_M * BLOCK_D, flat.type.layout), flat, sem="relaxed")


@tg.jit
def _consume(sums_ptr, dk_desc, dv_desc, memory, signals, sizes, scale, CAUSAL: gl.constexpr, BLOCK_D: gl.constexpr):
    """Two warpgroups: 64 of 128 keys each, and half of a tile's queries or of the columns in the product for dq.

    Longer than a screen: each wait counts the products under way around it, so that their order has to be seen.
    """
    k, v, q, do, lse, delta, staged, _ = memory
    kv_full, q_full, do_full, empty = signals
    Hq, Hkv, _, _, Sq, Sk = sizes
    STAGES: gl.constexpr = q.shape[0]
    KEYS: gl.constexpr = k.shape[2]
    BLOCK_M: gl.constexpr = q.shape[3]
    SPLIT: gl.constexpr = 128 // BLOCK_M
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_M, 16])
    K_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_D, 16])
    Q_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8 // SPLIT, SPLIT], [16, BLOCK_D // SPLIT, 16])
    QUERY: gl.constexpr = gl.SliceLayout(0, S_LAYOUT)
    batch, head_kv, left, first, tiles, further = _walk(sizes, CAUSAL, KEYS, BLOCK_M)
    j = left + gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT))
    k_tile = k.reshape([KEYS, BLOCK_D])
    v_tile = v.reshape([KEYS, BLOCK_D])
    dk = gl.zeros([KEYS, BLOCK_D], gl.float32, K_LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_D], gl.float32, K_LAYOUT)
    tile = first + further
    of_queries = (Sq + BLOCK_M - 1) // BLOCK_M
    row = (batch * Hq + head_kv * (Hq // Hkv)).to(gl.int64) * of_queries  # of tiles, the head's first

    mbarrier.wait(kv_full, 0)
    for step in range(tiles * (Hq // Hkv)):
        slot = step % STAGES
        q_tile = q.index(slot).reshape([BLOCK_M, BLOCK_D])
        do_tile = do.index(slot).reshape([BLOCK_M, BLOCK_D])
        mbarrier.wait(q_full.index(slot), step // STAGES & 1)
        mbarrier.wait(do_full.index(slot), step // STAGES & 1)
        # do * vᵀ is added to -delta: subtracted afterwards, delta would take registers beside p and dp
        delta_i = gl.expand_dims(delta.index(slot).reshape([BLOCK_M]).load(QUERY), 0)
        dp = (-delta_i).broadcast_to([KEYS, BLOCK_M])
        zeros = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
        s = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)
        dp = warpgroup_mma(v_tile, do_tile.permute((1, 0)), dp, is_async=True)
        lse_i = gl.expand_dims(lse.index(slot).reshape([BLOCK_M]).load(QUERY), 0)
        s = warpgroup_mma_wait(1, deps=[s])
        p = gl.exp2(s * (scale * LOG2E) - lse_i)
        start = tile * BLOCK_M
        border = (left + KEYS > Sk) | (start + BLOCK_M > Sq)
        if CAUSAL:
            border |= left + KEYS - 1 > start + Sk - Sq
        if border:
            i = start + gl.arange(0, BLOCK_M, QUERY)
            last = gl.where(i < Sq, Sk - 1, -1)
            if CAUSAL:
                last = gl.minimum(last, i + Sk - Sq)
            p = gl.where(gl.expand_dims(j, 1) <= gl.expand_dims(last, 0), p, 0.0)
        dv = _accumulate(dv, p.to(q.dtype), do_tile)
        dp = warpgroup_mma_wait(1, deps=[dp])
        ds = (p * dp).to(q.dtype)
        barrier()  # both warpgroups have read `staged`, and what the copy engine may now write over
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=step > 0)
        staged.store(ds)
        fence_async_shared()
        zeros = gl.zeros([BLOCK_M, BLOCK_D], gl.float32, Q_LAYOUT)
        dq = warpgroup_mma(staged.permute((1, 0)), k_tile, zeros, use_acc=False, is_async=True)
        dk = _accumulate(dk, ds, q_tile)
        places = sums_ptr + (row + tile) * (BLOCK_M * BLOCK_D)
        tile, row = _next(tile, row, of_queries, first, tiles, further)
        dv, dq = warpgroup_mma_wait(1, deps=[dv, dq])
        _add(places, dq)
        dk = warpgroup_mma_wait(0, deps=[dk])

    _finish(dk_desc, dv_desc, k, v, dk * scale, dv, [batch, head_kv, left, 0])


@tg.jit
def _consume_wide(
    sums_ptr, dk_desc, dv_desc, memory, signals, sizes, scale, CAUSAL: gl.constexpr, BLOCK_D: gl.constexpr
):
    """Two warpgroups: half of a tile's queries in the scores of 64 keys, half of the columns in all other products.

    So each needs the weights of both, which go through shared memory as ds does. Longer than a screen: as `_consume`.
    """
    k, v, q, do, lse, delta, staged, weights = memory
    kv_full, q_full, do_full, empty = signals
    Hq, Hkv, _, _, Sq, Sk = sizes
    STAGES: gl.constexpr = q.shape[0]
    KEYS: gl.constexpr = k.shape[2]
    BLOCK_M: gl.constexpr = q.shape[3]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_M // 2, 16])
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_D // 2, 16])
    QUERY: gl.constexpr = gl.SliceLayout(0, S_LAYOUT)
    batch, head_kv, left, first, tiles, further = _walk(sizes, CAUSAL, KEYS, BLOCK_M)
    j = left + gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT))
    k_tile = k.reshape([KEYS, BLOCK_D])
    v_tile = v.reshape([KEYS, BLOCK_D])
    dk = gl.zeros([KEYS, BLOCK_D], gl.float32, LAYOUT)
    dv = gl.zeros([KEYS, BLOCK_D], gl.float32, LAYOUT)
    tile = first + further
    of_queries = (Sq + BLOCK_M - 1) // BLOCK_M
    row = (batch * Hq + head_kv * (Hq // Hkv)).to(gl.int64) * of_queries  # of tiles, the head's first

    mbarrier.wait(kv_full, 0)
    for step in range(tiles * (Hq // Hkv)):
        slot = step % STAGES
        q_tile = q.index(slot).reshape([BLOCK_M, BLOCK_D])
        do_tile = do.index(slot).reshape([BLOCK_M, BLOCK_D])
        zeros = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
        mbarrier.wait(q_full.index(slot), step // STAGES & 1)
        s = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(do_full.index(slot), step // STAGES & 1)
        dp = warpgroup_mma(v_tile, do_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)
        lse_i = gl.expand_dims(lse.index(slot).reshape([BLOCK_M]).load(QUERY), 0)
        delta_i = gl.expand_dims(delta.index(slot).reshape([BLOCK_M]).load(QUERY), 0)
        s = warpgroup_mma_wait(1, deps=[s])
        p = gl.exp2(s * (scale * LOG2E) - lse_i)
        start = tile * BLOCK_M
        # as in `_consume`: in a function of both, ptxas spills 8 to 16 bytes more up to D 64
        border = (left + KEYS > Sk) | (start + BLOCK_M > Sq)
        if CAUSAL:
            border |= left + KEYS - 1 > start + Sk - Sq
        if border:
            i = start + gl.arange(0, BLOCK_M, QUERY)
            last = gl.where(i < Sq, Sk - 1, -1)
            if CAUSAL:
                last = gl.minimum(last, i + Sk - Sq)
            p = gl.where(gl.expand_dims(j, 1) <= gl.expand_dims(last, 0), p, 0.0)
        dp = warpgroup_mma_wait(0, deps=[dp])
        barrier()  # both warpgroups have read the weights before, and what the copy engine may now write over
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=step > 0)
        staged.store((p * (dp - delta_i)).to(q.dtype))
        weights.store(p.to(q.dtype))
        fence_async_shared()
        barrier()  # both have written theirs
        zeros = gl.zeros([BLOCK_M, BLOCK_D], gl.float32, LAYOUT)
        dq = warpgroup_mma(staged.permute((1, 0)), k_tile, zeros, use_acc=False, is_async=True)
        dk = warpgroup_mma(staged, q_tile, dk, is_async=True)
        dv = warpgroup_mma(weights, do_tile, dv, is_async=True)
        places = sums_ptr + (row + tile) * (BLOCK_M * BLOCK_D)
        tile, row = _next(tile, row, of_queries, first, tiles, further)
        dq = warpgroup_mma_wait(2, deps=[dq])
        _add(places, dq)
        dk, dv = warpgroup_mma_wait(0, deps=[dk, dv])

    _finish(dk_desc, dv_desc, k, v, dk * scale, dv, [batch, head_kv, left, 0])


@tg.jit
def _finish(dk_desc, dv_desc, k, v, dk, dv, place):
    """Stores a program's gradients, which are staged where its keys and values were."""
    barrier()  # the products have read k and v
    k.reshape(dk.shape).store(dk.to(k.dtype))
    v.reshape(dv.shape).store(dv.to(v.dtype))
    fence_async_shared()
    copy_out(dk_desc, place, k)
    copy_out(dv_desc, place, v)
    tma.store_wait(0)


@prepared
@tg.jit(do_not_specialize=[*PLAIN, "pairs", "group"])
def _gluon_kernel(
    q_desc,
    k_desc,
    v_desc,
    do_desc,
    lse_desc,
    delta_desc,
    sums_ptr,
    dk_desc,
    dv_desc,
    Hq,
    Hkv,
    pairs,
    group,
    Sq,
    Sk,
    scale,
    CAUSAL: gl.constexpr,
    BLOCK_D: gl.constexpr,
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
):
    KEYS: gl.constexpr = k_desc.block_type.shape[2]
    k = gl.allocate_shared_memory(k_desc.dtype, [1, 1, KEYS, BLOCK_D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [1, 1, KEYS, BLOCK_D], v_desc.layout)
    q = gl.allocate_shared_memory(q_desc.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], q_desc.layout)
    do = gl.allocate_shared_memory(do_desc.dtype, [STAGES, 1, 1, BLOCK_M, BLOCK_D], do_desc.layout)
    lse = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], lse_desc.layout)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], delta_desc.layout)
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    staged = gl.allocate_shared_memory(q_desc.dtype, [KEYS, BLOCK_M], SWIZZLED)
    weights = staged
    if KEYS == 64:
        weights = gl.allocate_shared_memory(q_desc.dtype, [KEYS, BLOCK_M], SWIZZLED)
    memory = (k, v, q, do, lse, delta, staged, weights)
    signals = (barriers(1, 1).index(0), barriers(STAGES, 1), barriers(STAGES, 1), barriers(STAGES, 1))
    fence_async_shared()
    sizes = (Hq, Hkv, pairs, group, Sq, Sk)
    gl.warp_specialize(
        [
            (
                _consume if KEYS == 128 else _consume_wide,
                (sums_ptr, dk_desc, dv_desc, memory, signals, sizes, scale, CAUSAL, BLOCK_D),
            ),
            (_produce, (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, memory, signals, sizes, CAUSAL)),
        ],
        [1],
        [24],
    )


@prepared
@triton.jit(do_not_specialize=PLAIN)
def _round_kernel(sums_ptr, dq_ptr, Sq, D, scale, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """dq of a tile of queries from its sums, which lie as `_add` leaves them."""
    tiles = tl.cdiv(Sq, BLOCK_M)
    number = tl.program_id(0).to(tl.int64)
    flat = tl.load(sums_ptr + number * (BLOCK_M * BLOCK_D) + tl.arange(0, BLOCK_M * BLOCK_D))
    SPLIT: tl.constexpr = 128 // BLOCK_M
    dq = flat.reshape(SPLIT, BLOCK_D // 8 // SPLIT, BLOCK_M // 16, 8, 4, 2, 2)
    dq = dq.permute(2, 5, 3, 0, 1, 4, 6).reshape(BLOCK_M, BLOCK_D) * scale
    i, d = number % tiles * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    places = dq_ptr + (number // tiles * Sq + i[:, None]) * D + d[None, :]
    tl.store(places, dq.to(dq_ptr.dtype.element_ty), mask=(i[:, None] < Sq) & (d[None, :] < D))


@variant(needs="sm_90a", dtypes=HALF, deterministic=False)  # the order of the additions to dq
def gluon(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv.

    Declines float32 and what a descriptor cannot describe: of q, k, v and do a last stride other than 1,
    another stride that is 0 or no multiple of 16 bytes, a start off 16-byte alignment; D times the element size that
    is no multiple of 16 bytes, since dk and dv are written through descriptors. Source: [shah2024].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    if q.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    dq, dk, dv = empty_outputs(q, k)
    if dq.numel() == 0 or dk.numel() == 0:  # no descriptor of an empty tensor
        return dq.zero_(), dk.zero_(), dv.zero_()
    rows, keys, width = 64 if D > 64 else 128, 128 if D <= 128 else 64, block_d(D)
    operands = [swizzled(head_descriptor(*each)) for each in ((q, "q", rows), (k, "k", keys), (v, "v", keys))]
    operands.append(swizzled(head_descriptor(do, "do", rows)))
    outputs = [swizzled(head_descriptor(*each)) for each in ((dk, "dk", keys), (dv, "dv", keys))]
    delta, lse2 = launch_delta(o, lse, do, multiple=4)  # rows of 16 bytes, as a descriptor wants them
    statistics = [plain_rows(TensorDescriptor(x, [B * Hq, Sq], [delta.shape[-1], 1], [1, rows])) for x in (lse2, delta)]
    tiles = B * Hq * ceil_div(Sq, rows)
    sums = torch.zeros((tiles, rows * width), dtype=torch.float32, device=q.device)
    scale = scale_or_default(scale, D)
    _gluon_kernel[(B * Hkv * ceil_div(Sk, keys),)](
        *operands,
        *statistics,
        sums,
        *outputs,
        Hq,
        Hkv,
        B * Hkv,
        pairs_together(q, k, causal, keys, width, processors(q.device)),
        Sq,
        Sk,
        scale,
        CAUSAL=causal,
        BLOCK_D=width,
        BLOCK_M=rows,
        STAGES=2,
        num_warps=8,
    )
    _round_kernel[(tiles,)](sums, dq, Sq, D, scale, BLOCK_D=width, BLOCK_M=rows, num_warps=8)
    return dq, dk, dv
