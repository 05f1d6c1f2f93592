"""resident: for few keys: a head's stay on chip, and a program walks over queries that it loads ahead."""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.attention._launch import LN2, LOG2E, PLAIN, block_d, head_descriptor, tuning_kind
from touchstone.backends.triton.lib.gemm import processors
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import HALF, variant

_HELD = 256  # keys


@prepared
@triton.jit(do_not_specialize=[*PLAIN, "span"])
def _resident_kernel(
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
    span,
    NEGATIVE: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A program takes `span` tiles of queries of one head, all of them against all keys."""
    tiles = tl.cdiv(Sq, BLOCK_M)
    spans = tl.cdiv(tiles, span)
    pair = tl.program_id(0) // spans  # (batch, query head)
    batch, head = pair // Hq, pair % Hq
    k_tile = k_desc.load([batch, head // (Hq // Hkv), 0, 0]).reshape(BLOCK_N, BLOCK_D)
    v_tile = v_desc.load([batch, head // (Hq // Hkv), 0, 0]).reshape(BLOCK_N, BLOCK_D)
    if NEGATIVE:
        k_tile = -k_tile
    j = tl.arange(0, BLOCK_N)

    first = tl.program_id(0) % spans * span
    for tile in tl.range(first, min(first + span, tiles), num_stages=STAGES):
        top = tile * BLOCK_M
        i = top + tl.arange(0, BLOCK_M)
        q_tile = q_desc.load([batch, head, top, 0]).reshape(BLOCK_M, BLOCK_D)
        s = tl.dot(q_tile, k_tile.T)
        visible = j[None, :] < Sk
        if CAUSAL:
            visible &= j[None, :] <= i[:, None] + Sk - Sq
        s = tl.where(visible, s * scale, float("-inf"))
        m = tl.max(s, 1)
        base = tl.where(tl.abs(m) == float("inf"), 0.0, m)  # inf - inf is NaN: leave such rows unshifted
        p = tl.exp2(s - base[:, None])
        l = tl.sum(p, 1)
        l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
        o_tile = (tl.dot(p.to(v_tile.dtype), v_tile) / l[:, None]).to(o_desc.dtype)
        o_desc.store([batch, head, top, 0], o_tile.reshape(1, 1, BLOCK_M, BLOCK_D))
        tl.store(lse_ptr + pair.to(tl.int64) * Sq + i, m * LN2 + tl.log(l), mask=i < Sq)


_SPACE = [
    dict(BLOCK_M=m, STAGES=stages, num_warps=warps, PROGRAMS=programs)
    for m, warps, stages, programs in [
        (64, 4, 3, 1),
        (64, 4, 3, 3),
        (64, 4, 3, 4),
        (64, 4, 1, 4),
        (128, 4, 3, 2),
        (128, 8, 3, 2),
        (128, 8, 2, 1),
    ]
]


@variant(needs="sm_90", dtypes=HALF, space=_SPACE)
def resident(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32, more than 256 keys, D > 128, and what a descriptor cannot describe: a last stride other than 1,
    another stride that is 0 or no multiple of 16 bytes (for o that is D times the element size), a start off 16-byte
    alignment. Source: [pearbiossom2026].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    if q.dtype is torch.float32:
        raise Unsupported("float32; its tiles of scores do not fit the registers")
    if Sk > _HELD or D > 128:
        raise Unsupported(f"{Sk} keys of dimension {D}; one program holds {_HELD} of dimension 128")
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    if Sk == 0:  # no descriptor of an empty tensor
        return o.zero_(), lse.fill_(float("-inf"))
    scale = scale_or_default(scale, D)
    config = {**pinned(f"attention.{tuning_kind(D, causal)}.resident", q.dtype, (Sq, Sk), _default(D))}
    block_m, block_n = config["BLOCK_M"], max(16, next_power_of_2(Sk))
    tiles = ceil_div(Sq, block_m)
    at_once = processors(q.device) * config.pop("PROGRAMS")
    span = ceil_div(tiles, min(tiles, max(1, at_once // (B * Hq))))
    _resident_kernel[(B * Hq * ceil_div(tiles, span),)](
        head_descriptor(q, "q", block_m),
        head_descriptor(k, "k", block_n),
        head_descriptor(v, "v", block_n),
        head_descriptor(o, "o", block_m),
        lse,
        Hq,
        Hkv,
        Sq,
        Sk,
        abs(scale) * LOG2E.value,
        span,
        NEGATIVE=scale < 0,
        CAUSAL=causal,
        BLOCK_N=block_n,
        BLOCK_D=block_d(D),
        **config,
    )
    return o, lse


def _default(D: int) -> dict[str, int]:
    """The fastest of `space` on an H200. PROGRAMS are those of a multiprocessor at once; up to D 64 one has 64 KB of
    shared memory."""
    return dict(BLOCK_M=64, STAGES=3, num_warps=4, PROGRAMS=2 if D <= 64 else 1)
