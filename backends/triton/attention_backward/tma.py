"""tma: delta_first with every tile moved by the copy engine, one descriptor over (B, H, S, D) an operand."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import LOG2E, block_d, head_descriptor, tuning_kind
from touchstone.backends.triton.attention_backward._delta import launch_delta
from touchstone.backends.triton.attention_backward._launch import PLAIN
from touchstone.backends.triton.lib.gemm import roomy
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _dq_steps(
    acc,
    q_tile,
    do_tile,
    lse_i,
    delta_i,
    k_desc,
    v_desc,
    batch,
    head_kv,
    i,
    first,
    last,
    shift,
    Sk,
    scale2,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """dq / scale of the queries i, from the keys from `first` to `last`."""
    for start in range(first, last, BLOCK_N):
        k_tile = k_desc.load([batch, head_kv, start, 0]).reshape(BLOCK_N, BLOCK_D)
        v_tile = v_desc.load([batch, head_kv, start, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale2
        if MASKED:
            j = start + tl.arange(0, BLOCK_N)
            visible = j[None, :] < Sk
            if CAUSAL:
                visible &= j[None, :] <= i[:, None] + shift
            s = tl.where(visible, s, float("-inf"))
        p = tl.exp2(s - lse_i[:, None])
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta_i[:, None])
        acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")
    return acc


@prepared
@triton.jit(do_not_specialize=PLAIN)
def _tma_dq_kernel(
    q_desc,
    k_desc,
    v_desc,
    do_desc,
    delta_ptr,
    lse2_ptr,
    dq_desc,
    pitch,
    Hq,
    Hkv,
    Sq,
    Sk,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """dq of BLOCK_M queries; rows of delta and lse2 are `pitch` apart.

    Longer than a screen: the parameters and the arguments of the two calls of `_dq_steps` stand one to a line; the rest
    is under 30 lines.
    """
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0) // tiles
    batch, head, head_kv = pair // Hq, pair % Hq, pair % Hq // (Hq // Hkv)

    top = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_M  # causal: the queries that see most keys start first
    i = top + tl.arange(0, BLOCK_M)
    shift = Sk - Sq
    full, last = Sk // BLOCK_N * BLOCK_N, Sk  # keys up to `full` are visible to all of i, from `last` on to none
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(top + 1 + shift, 0) // BLOCK_N * BLOCK_N)
        last = tl.minimum(last, tl.maximum(top + BLOCK_M + shift, 0))

    q_tile = q_desc.load([batch, head, top, 0]).reshape(BLOCK_M, BLOCK_D)
    do_tile = do_desc.load([batch, head, top, 0]).reshape(BLOCK_M, BLOCK_D)
    lse_i = tl.load(lse2_ptr + pair.to(tl.int64) * pitch + i, mask=i < Sq, other=float("inf"))
    delta_i = tl.load(delta_ptr + pair.to(tl.int64) * pitch + i, mask=i < Sq, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    acc = _dq_steps(
        acc,
        q_tile,
        do_tile,
        lse_i,
        delta_i,
        k_desc,
        v_desc,
        batch,
        head_kv,
        i,
        0,
        full,
        shift,
        Sk,
        scale * LOG2E,
        MASKED=False,
        CAUSAL=CAUSAL,
        BLOCK_N=BLOCK_N,
        BLOCK_D=BLOCK_D,
    )
    acc = _dq_steps(
        acc,
        q_tile,
        do_tile,
        lse_i,
        delta_i,
        k_desc,
        v_desc,
        batch,
        head_kv,
        i,
        full,
        last,
        shift,
        Sk,
        scale * LOG2E,
        MASKED=True,
        CAUSAL=CAUSAL,
        BLOCK_N=BLOCK_N,
        BLOCK_D=BLOCK_D,
    )
    dq_desc.store([batch, head, top, 0], (acc * scale).to(dq_desc.dtype).reshape(1, 1, BLOCK_M, BLOCK_D))


@triton.jit
def _dkdv_steps(
    dk_acc,
    dv_acc,
    k_tile,
    v_tile,
    q_desc,
    do_desc,
    lse2_desc,
    delta_desc,
    batch,
    head,
    Hq,
    j,
    first,
    last,
    shift,
    Sq,
    scale2,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """dk / scale and dv of the keys j, from the queries from `first` to `last`.

    lse and delta lie along the columns here, 16 of each to a thread: loaded through pointers, and before the products,
    they take 32 copies a step and more registers than there are.
    """
    for start in range(first, last, BLOCK_M):
        q_tile = q_desc.load([batch, head, start, 0]).reshape(BLOCK_M, BLOCK_D)
        do_tile = do_desc.load([batch, head, start, 0]).reshape(BLOCK_M, BLOCK_D)
        s = tl.dot(k_tile, q_tile.T, input_precision="ieee") * scale2  # (BLOCK_N, BLOCK_M): already transposed
        lse_i = lse2_desc.load([batch * Hq + head, start]).reshape(BLOCK_M)
        if MASKED:
            i = start + tl.arange(0, BLOCK_M)
            visible = i[None, :] < Sq
            if CAUSAL:
                visible &= j[:, None] <= i[None, :] + shift
            s = tl.where(visible, s, float("-inf"))
        p = tl.exp2(s - lse_i[None, :])
        dv_acc = tl.dot(p.to(do_tile.dtype), do_tile, dv_acc, input_precision="ieee")
        dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
        delta_i = delta_desc.load([batch * Hq + head, start]).reshape(BLOCK_M)
        ds = p * (dp - delta_i[None, :])
        dk_acc = tl.dot(ds.to(q_tile.dtype), q_tile, dk_acc, input_precision="ieee")
    return dk_acc, dv_acc


@prepared
@triton.jit(do_not_specialize=PLAIN)
def _tma_dkdv_kernel(
    q_desc,
    k_desc,
    v_desc,
    do_desc,
    delta_desc,
    lse2_desc,
    dk_desc,
    dv_desc,
    Hq,
    Hkv,
    Sq,
    Sk,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """dk and dv of BLOCK_N keys. Rows past Sk hold garbage that stays in their rows and is clipped.

    Longer than a screen: the parameters and the arguments of the three calls of `_dkdv_steps` stand one to a line; the
    rest is under 30 lines.
    """
    tiles = tl.cdiv(Sk, BLOCK_N)
    pair = tl.program_id(0) // tiles
    batch, head_kv = pair // Hkv, pair % Hkv

    left = tl.program_id(0) % tiles * BLOCK_N
    j = left + tl.arange(0, BLOCK_N)
    shift = Sk - Sq
    first, full, tail = 0, 0, Sq // BLOCK_M * BLOCK_M  # queries before `first` see none of j, from `full` on all
    if CAUSAL:
        first = tl.maximum(left - shift, 0) // BLOCK_M * BLOCK_M
        full = tl.minimum(tl.cdiv(tl.maximum(left + BLOCK_N - 1 - shift, 0), BLOCK_M) * BLOCK_M, Sq)

    k_tile = k_desc.load([batch, head_kv, left, 0]).reshape(BLOCK_N, BLOCK_D)
    v_tile = v_desc.load([batch, head_kv, left, 0]).reshape(BLOCK_N, BLOCK_D)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for head in range(head_kv * (Hq // Hkv), (head_kv + 1) * (Hq // Hkv)):
        if CAUSAL:
            dk_acc, dv_acc = _dkdv_steps(
                dk_acc,
                dv_acc,
                k_tile,
                v_tile,
                q_desc,
                do_desc,
                lse2_desc,
                delta_desc,
                batch,
                head,
                Hq,
                j,
                first,
                full,
                shift,
                Sq,
                scale * LOG2E,
                MASKED=True,
                CAUSAL=CAUSAL,
                BLOCK_M=BLOCK_M,
                BLOCK_D=BLOCK_D,
            )
        dk_acc, dv_acc = _dkdv_steps(
            dk_acc,
            dv_acc,
            k_tile,
            v_tile,
            q_desc,
            do_desc,
            lse2_desc,
            delta_desc,
            batch,
            head,
            Hq,
            j,
            full,
            tail,
            shift,
            Sq,
            scale * LOG2E,
            MASKED=False,
            CAUSAL=CAUSAL,
            BLOCK_M=BLOCK_M,
            BLOCK_D=BLOCK_D,
        )
        dk_acc, dv_acc = _dkdv_steps(
            dk_acc,
            dv_acc,
            k_tile,
            v_tile,
            q_desc,
            do_desc,
            lse2_desc,
            delta_desc,
            batch,
            head,
            Hq,
            j,
            tl.maximum(full, tail),
            Sq,
            shift,
            Sq,
            scale * LOG2E,
            MASKED=True,
            CAUSAL=CAUSAL,
            BLOCK_M=BLOCK_M,
            BLOCK_D=BLOCK_D,
        )
    dk_desc.store([batch, head_kv, left, 0], (dk_acc * scale).to(dk_desc.dtype).reshape(1, 1, BLOCK_N, BLOCK_D))
    dv_desc.store([batch, head_kv, left, 0], dv_acc.to(dv_desc.dtype).reshape(1, 1, BLOCK_N, BLOCK_D))


def _options(keys: tuple[int, int, int, int], queries: tuple[int, int, int, int]) -> dict[str, int]:
    """Rows owned, rows a step, warps and stages of the kernel for dk and dv, and of the one for dq."""
    names = ("OWN", "STEP", "num_warps", "num_stages", "DQ_OWN", "DQ_STEP", "DQ_WARPS", "DQ_STAGES")
    return dict(zip(names, (*keys, *queries), strict=True))


_SPACE = [
    _options(keys, queries)
    for keys, queries in [
        ((64, 64, 4, 2), (128, 64, 8, 3)),
        ((64, 64, 4, 2), (64, 64, 4, 3)),
        ((64, 64, 4, 3), (64, 64, 4, 3)),
        ((64, 64, 4, 2), (64, 64, 4, 2)),
        ((64, 128, 4, 2), (64, 64, 4, 3)),
        ((128, 64, 8, 3), (128, 64, 8, 3)),
        ((128, 64, 8, 2), (128, 64, 8, 2)),
        ((64, 32, 4, 3), (128, 32, 8, 3)),
        ((64, 64, 8, 2), (64, 32, 4, 3)),
        ((64, 32, 8, 2), (64, 32, 8, 2)),
        ((32, 16, 8, 2), (32, 16, 8, 2)),
        ((16, 16, 8, 2), (16, 16, 8, 2)),
    ]
]


# spills: float32, D 129 to 256: rows of k and v in IEEE precision do not fit its registers
@variant(needs="sm_90", spills=1984, space=_SPACE)
def tma(
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

    Declines q, k, v or do that a descriptor cannot describe: a last stride other than 1, another stride that is 0 or no
    multiple of 16 bytes, a start off 16-byte alignment. Source: [pearbiossom2026].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    dq, dk, dv = empty_outputs(q, k)
    if dq.numel() == 0 or dk.numel() == 0:  # no descriptor of an empty tensor
        return dq.zero_(), dk.zero_(), dv.zero_()
    config = dict(pinned(f"attention_backward.{tuning_kind(D, causal)}.tma", q.dtype, (Sq, Sk), _default(q, causal)))
    dq_options = dict(num_warps=config.pop("DQ_WARPS"), num_stages=config.pop("DQ_STAGES"))
    own, step = config.pop("OWN"), config.pop("STEP")
    dq_own, dq_step = config.pop("DQ_OWN"), config.pop("DQ_STEP")
    keys = [head_descriptor(*operand) for operand in ((q, "q", step), (k, "k", own), (v, "v", own), (do, "do", step))]
    queries = [(q, "q", dq_own), (k, "k", dq_step), (v, "v", dq_step), (do, "do", dq_own)]
    delta, lse2 = launch_delta(o, lse, do, multiple=4)  # rows of 16 bytes, as a descriptor wants them
    pitch, scale = delta.shape[-1], scale_or_default(scale, D)
    rows = [TensorDescriptor(x, [B * Hq, Sq], [pitch, 1], [1, step]) for x in (delta, lse2)]
    _tma_dkdv_kernel[(B * Hkv * ceil_div(Sk, own),)](
        *keys,
        *rows,
        head_descriptor(dk, "dk", own),
        head_descriptor(dv, "dv", own),
        Hq,
        Hkv,
        Sq,
        Sk,
        scale,
        CAUSAL=causal,
        BLOCK_M=step,
        BLOCK_N=own,
        BLOCK_D=block_d(D),
        **config,
    )
    _tma_dq_kernel[(B * Hq * ceil_div(Sq, dq_own),)](
        *(head_descriptor(*operand) for operand in queries),
        delta,
        lse2,
        head_descriptor(dq, "dq", dq_own),
        pitch,
        Hq,
        Hkv,
        Sq,
        Sk,
        scale,
        CAUSAL=causal,
        BLOCK_M=dq_own,
        BLOCK_N=dq_step,
        BLOCK_D=block_d(D),
        **dq_options,
    )
    return dq, dk, dv


def _default(q: torch.Tensor, causal: bool) -> dict[str, int]:
    """The fastest of `space` on an H200 for D 64, 128 and 256.

    Programs of one warpgroup, two or three on a multiprocessor: the products of one hide the exponentials of another.
    Beyond D 128 dk and dv of 64 keys take the registers of two.
    """
    D = q.shape[-1]
    if q.dtype is torch.float32:
        return _options(*[(32 if D <= 64 else 16, 16, 8, 2)] * 2)
    if D <= 64:
        return _options((64, 128, 4, 2) if causal else (64, 64, 4, 3), (64, 64, 4, 3))
    if D <= 128:
        return _options((64, 64, 4, 2), (128, 64, 8, 3) if roomy(q.device) else (64, 64, 4, 2))
    return _options((64, 64, 8, 2), (64, 32, 4, 3)) if roomy(q.device) else _options(*[(64, 16, 8, 2)] * 2)
