"""attention_backward: dq, dk, dv from the saved lse, p = exp(scale·q·kᵀ - lse) rebuilt tile by tile [dao2022flash].

dv = pᵀ·do; ds = p·(do·vᵀ - delta) with delta = Σ do·o; dq = scale·ds·k; dk = scale·dsᵀ·q.

delta_inline: a kernel for dq and one for dk and dv; each forms delta from o and do where it needs it [dao2022flash]
delta_first: a kernel of its own for delta, then hidden tiles skipped, border tiles alone masked, exp2 [triton2022]
tensorcore: dk, dv and dq in one kernel on mma.m16n8k16, five products a tile, not seven; dq by atomics [dao2023flash2]
wgmma: the same walk on warpgroups, which read what the copy engine brings straight from shared memory [shah2024]
"""

import math

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.lib.attention import check_copyable, heads_together, padded_dimension, whole_pieces
from touchstone.backends.cupy.lib.gemm import processors
from touchstone.backends.cupy.lib.norms import resident
from touchstone.backends.cupy.runtime.hopper import TensorMap
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs, pairs_together
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_delta_inline = Module(__file__, "delta_inline.cu")
_delta_first = Module(__file__, "delta_first.cu")
_delta = Module(__file__, "delta.cu")
_tensorcore = Module(__file__, "tensorcore.cu")
_wgmma = Module(__file__, "wgmma.cu")

# delta_inline, delta_first: rows of the other sequence that a block works on at a time
_STEP = 16
# tensorcore, for each padded head dimension: queries per tile, keys per block, warps that share 16 keys
_TILES = {64: (64, 128, 1), 128: (64, 128, 1), 192: (32, 64, 2), 256: (32, 64, 2)}
# wgmma: tokens and dimensions of a head that one copy brings
_QUERIES, _KEYS = (1, 1, 64, 64), (1, 1, 128, 64)


@variant()
def delta_inline(
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
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv. Source: [dao2022flash]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    dq, dk, dv = empty_outputs(q, k)
    own, config = _own_rows(q)
    operands = (*_with_strides(q, k, v, o), lse, *lse.stride(), do, *do.stride())
    sizes = (Hq, Hkv, Sq, Sk, D, scale_or_default(scale, D), causal)
    if dq.numel():
        _delta_inline.launch("inline_dq", B * Hq * ceil_div(Sq, own), 128, *operands, dq, *sizes, **config)
    if dk.numel():
        _delta_inline.launch("inline_dkdv", B * Hkv * ceil_div(Sk, own), 128, *operands, dk, dv, *sizes, **config)
    return dq, dk, dv


@variant()
def delta_first(
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
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv. Source: [triton2022]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    dq, dk, dv = empty_outputs(q, k)
    own, config = _own_rows(q)
    factor = scale_or_default(scale, D)
    delta, lse2 = _launch_delta(o, lse, do)
    operands = (*_with_strides(q, k, v, do), delta, lse2)
    sizes = (Hq, Hkv, Sq, Sk, D, factor, factor * math.log2(math.e), causal)
    if dq.numel():
        _delta_first.launch("first_dq", B * Hq * ceil_div(Sq, own), 128, *operands, dq, *sizes, **config)
    if dk.numel():
        _delta_first.launch("first_dkdv", B * Hkv * ceil_div(Sk, own), 128, *operands, dk, dv, *sizes, **config)
    return dq, dk, dv


@variant(needs="sm_80", dtypes=HALF, deterministic=False)  # the order of the additions to dq
def tensorcore(
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

    Declines float32. Source: [dao2023flash2].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    dq, dk, dv = empty_outputs(q, k)
    block_d, factor = padded_dimension(D), scale_or_default(scale, D)
    block_m, block_n, parts = _TILES[block_d]
    sums = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    tiles = {"BLOCK_D": block_d, "BLOCK_M": block_m, "BLOCK_N": block_n, "COL_PARTS": parts}
    config = {"dtype": q.dtype, "ALIGNED": whole_pieces(q, k, v, do), **tiles}
    if dk.numel():
        delta, lse2 = _launch_delta(o, lse, do)
        sizes = (Hq, Hkv, Sq, Sk, D, factor, factor * math.log2(math.e), causal)
        _tensorcore.launch(
            "attention_backward_tensorcore",
            B * Hkv * ceil_div(Sk, block_n),
            2 * block_n * parts,
            *_with_strides(q, k, v, do),
            *(delta, lse2, sums, dk, dv),
            *sizes,
            shared=4 * block_d * (block_n + 2 * block_m) + 2 * block_n * block_m + 16 * block_m,
            **config,
        )
    if dq.numel():
        _tensorcore.launch("round_dq", ceil_div(dq.numel(), 256), 256, sums, dq, dq.numel(), factor, **config)
    return dq, dk, dv


@variant(needs="sm_90a", dtypes=HALF, deterministic=False)  # the order of the additions to dq
def wgmma(
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

    Declines float32, D above 128, and q, k, v or do that the copy engine does not take (the last axis not of stride 1,
    another's not a multiple of 16 bytes, a start that is not 16-byte aligned). Source: [shah2024].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    if q.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies float16 and bfloat16")
    if D > 128:
        raise Unsupported(f"head dimension {D}; the registers of a warpgroup hold 128")
    dq, dk, dv = empty_outputs(q, k)
    if 0 in (dq.numel(), dk.numel()):
        return dq.zero_(), dk.zero_(), dv.zero_()
    check_copyable(q=q, k=k, v=v, do=do)
    block_d, stages, factor = padded_dimension(D), 2, scale_or_default(scale, D)
    tiles = B * Hq * ceil_div(Sq, 64)  # of queries
    sums = torch.zeros(tiles, 64, block_d, dtype=torch.float32, device=q.device)
    delta, lse2 = _launch_delta(o, lse, do)
    config = {"dtype": q.dtype, "arch": "sm_90a", "BLOCK_D": block_d, "STAGES": stages}
    walks, together = B * Hkv * ceil_div(Sk, 128), 1
    blocks = min(walks, resident(q, 1))
    if causal and Sk >= 4096:  # a block a walk: the GPU evens out long ones better, by 2 to 5 % on an H200
        blocks, together = walks, pairs_together(q, k, causal, 128, block_d, processors(q.device))
    elif causal:
        together = heads_together(blocks, B * Hkv, range(Sk, 0, -128), Sq, 64, 1.1)
    elements = block_d * 2 * (128 + stages * 64) + 2 * 128 * 64  # k and v, rings of q and do, two of ds
    _wgmma.launch(
        "attention_backward_wgmma",
        blocks,
        384,
        *(TensorMap(q, _QUERIES), TensorMap(k, _KEYS), TensorMap(v, _KEYS), TensorMap(do, _QUERIES)),
        *(delta, lse2, sums, dk, dv),
        *(walks, together, Hq, Hkv, Sq, Sk, D, factor, factor * math.log2(math.e), causal),
        shared=elements * 2 + stages * 2 * 64 * 4 + (2 + 2 * stages) * 8,
        **config,
    )
    _wgmma.launch("round_dq", 2 * tiles, 128, sums, dq, Sq, D, factor, **config)
    return dq, dk, dv


def _with_strides(*tensors: torch.Tensor) -> tuple[torch.Tensor | int, ...]:
    """Each tensor, followed by its strides."""
    return tuple(argument for x in tensors for argument in (x, *x.stride()))


def _own_rows(q: torch.Tensor) -> tuple[int, dict[str, object]]:
    """Rows of a gradient that a block of 128 threads owns, what fits in 99 KB of shared memory with its partners; and
    the launch's keywords.

    In shared memory are two tiles of own rows and two of the other sequence's, and two tiles of scores.
    """
    block_d = padded_dimension(q.shape[3])
    own = 32 if block_d <= 128 else 16
    shared = 4 * (2 * (own + _STEP) * (block_d + 4) + 2 * own * (_STEP + 1))
    return own, {"dtype": q.dtype, "shared": shared, "BLOCK_D": block_d, "OWN": own, "STEP": _STEP}


def _launch_delta(o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """delta = Σ do·o and lse·log2 e, both (B, Hq, Sq) in float32; lse is +inf where it was -inf."""
    B, Hq, Sq, D = o.shape
    delta, lse2 = (torch.empty((B, Hq, Sq), dtype=torch.float32, device=o.device) for _ in range(2))
    rows = delta.numel()
    if rows:
        operands = (*_with_strides(o, lse, do), delta, lse2, rows, Hq, Sq, D)
        _delta.launch("attention_delta", ceil_div(rows, 4), 128, *operands, dtype=o.dtype)
    return delta, lse2
