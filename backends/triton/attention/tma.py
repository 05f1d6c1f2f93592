"""tma: pruned with k, v, q and o moved by the copy engine, one descriptor over (B, H, S, D) an operand."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import LN2, LOG2E, PLAIN, block_d, head_descriptor, tuning_kind
from touchstone.backends.triton.lib.gemm import roomy
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _attend(
    acc,
    m,
    l,
    q_tile,
    k_desc,
    v_desc,
    batch,
    head,
    i,
    first,
    last,
    shift,
    Sk,
    scale,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The queries i against the keys from `first` to `last`. `scale` is not negative and carries log2 e."""
    for start in range(first, last, BLOCK_N):
        k_tile = k_desc.load([batch, head, start, 0]).reshape(BLOCK_N, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        if MASKED:
            j = start + tl.arange(0, BLOCK_N)
            visible = j[None, :] < Sk
            if CAUSAL:
                visible &= j[None, :] <= i[:, None] + shift
            s = tl.where(visible, s * scale, float("-inf"))
            m_new = tl.maximum(m, tl.max(s, 1))
        else:
            m_new = tl.maximum(m, tl.max(s, 1) * scale)
            s = s * scale  # feeds only the subtraction below: one fused multiply-add
        base = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new)  # inf - inf is NaN: leave such rows unshifted
        p = tl.exp2(s - base[:, None])
        alpha = tl.exp2(m - base)
        l = l * alpha + tl.sum(p, 1)
        m = m_new
        v_tile = v_desc.load([batch, head, start, 0]).reshape(BLOCK_N, BLOCK_D)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")
    return acc, m, l


@prepared
@triton.jit(do_not_specialize=PLAIN)
def _tma_kernel(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse_ptr,
    Hq,
    Hkv,
    Sq,
    Sk,
    scale,
    NEGATIVE: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Longer than a screen: the parameters and the arguments of the two calls of `_attend` stand one to a line; the
    rest is under 30 lines.
    """
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0) // tiles  # (batch, query head)
    batch, head = pair // Hq, pair % Hq
    head_kv = head // (Hq // Hkv)

    top = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_M  # causal: the queries that see most keys start first
    i = top + tl.arange(0, BLOCK_M)
    shift = Sk - Sq
    full, last = Sk // BLOCK_N * BLOCK_N, Sk  # keys up to `full` are visible to all of i, from `last` on to none
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(top + 1 + shift, 0) // BLOCK_N * BLOCK_N)
        last = tl.minimum(last, tl.maximum(top + BLOCK_M + shift, 0))

    q_tile = q_desc.load([batch, head, top, 0]).reshape(BLOCK_M, BLOCK_D)
    if NEGATIVE:
        q_tile = -q_tile
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    acc, m, l = _attend(
        acc,
        m,
        l,
        q_tile,
        k_desc,
        v_desc,
        batch,
        head_kv,
        i,
        0,
        full,
        shift,
        Sk,
        scale,
        MASKED=False,
        CAUSAL=CAUSAL,
        BLOCK_N=BLOCK_N,
        BLOCK_D=BLOCK_D,
    )
    acc, m, l = _attend(
        acc,
        m,
        l,
        q_tile,
        k_desc,
        v_desc,
        batch,
        head_kv,
        i,
        full,
        last,
        shift,
        Sk,
        scale,
        MASKED=True,
        CAUSAL=CAUSAL,
        BLOCK_N=BLOCK_N,
        BLOCK_D=BLOCK_D,
    )

    l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
    o_tile = (acc / l[:, None]).to(o_desc.dtype)
    o_desc.store([batch, head, top, 0], o_tile.reshape(1, 1, BLOCK_M, BLOCK_D))
    tl.store(lse_ptr + pair.to(tl.int64) * Sq + i, m * LN2 + tl.log(l), mask=i < Sq)


_SPACE = [
    dict(BLOCK_M=m, BLOCK_N=n, num_warps=warps, num_stages=stages)
    for m, n, warps, stages in [
        (128, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 64, 4, 2),
        (64, 128, 4, 2),
        (64, 128, 4, 3),
        (128, 128, 4, 3),
        (128, 64, 8, 3),
        (128, 128, 8, 3),
        (64, 32, 4, 3),
        (64, 32, 4, 2),
        (64, 16, 8, 2),
        (16, 16, 8, 2),
    ]
]


@variant(needs="sm_90", space=_SPACE)
def tma(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines what a descriptor cannot describe: a last stride other than 1, another stride that is 0 or no multiple of
    16 bytes (for o that is D times the element size), a start off 16-byte alignment. Source: [pearbiossom2026].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    if Sk == 0:  # no descriptor of an empty tensor
        return o.zero_(), lse.fill_(float("-inf"))
    scale = scale_or_default(scale, D)
    config = pinned(f"attention.{tuning_kind(D, causal)}.tma", q.dtype, (Sq, Sk), _default(q, Sk, causal))
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    q_desc, k_desc, v_desc = (
        head_descriptor(q, "q", block_m),
        head_descriptor(k, "k", block_n),
        head_descriptor(v, "v", block_n),
    )
    _tma_kernel[(B * Hq * ceil_div(Sq, block_m),)](
        q_desc,
        k_desc,
        v_desc,
        head_descriptor(o, "o", block_m),
        lse,
        Hq,
        Hkv,
        Sq,
        Sk,
        abs(scale) * LOG2E.value,
        NEGATIVE=scale < 0,
        CAUSAL=causal,
        BLOCK_D=block_d(D),
        **config,
    )
    return o, lse


def _default(q: torch.Tensor, Sk: int, causal: bool) -> dict[str, int]:
    """The fastest of `space` on an H200 for D 64 and 128.

    Programs of one warpgroup, two or three on a multiprocessor: the products of one hide the exponentials of another,
    which the warpgroups of a single program do not. Few keys in small tiles, of whose last less is empty: 1.1 to 1.4
    times as fast with 32 to 100 keys.
    """
    D = q.shape[-1]
    if q.dtype is torch.float32:
        return dict(BLOCK_M=64 if D <= 64 else 16, BLOCK_N=16, num_warps=8, num_stages=2)
    half_empty = 0 < Sk % 64 <= 32  # the last tile of 64 keys
    if (D <= 64 and Sk <= 512) or (Sk <= 128 and D <= 128 and half_empty):
        return dict(BLOCK_M=64, BLOCK_N=32 if Sk <= 128 and half_empty else 64, num_warps=4, num_stages=2)
    if D <= 64:
        return dict(BLOCK_M=64, BLOCK_N=128, num_warps=4, num_stages=2)
    if D <= 128 and causal:  # lower tiles leave less work to the border
        return dict(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3 if roomy(q.device) else 2)
    if D <= 128:
        return dict(BLOCK_M=128, BLOCK_N=64, num_warps=4, num_stages=2)
    return dict(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)
