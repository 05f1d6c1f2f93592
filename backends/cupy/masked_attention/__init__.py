"""masked_attention: attention under a causal mask, a window, segments, a bias, slopes, a soft-cap, with dropout of p.

naive: masked scores, softmax and product with v in three launches around a float32 score matrix [vaswani2017]
flash: online softmax over tiles of k and v, each score changed and masked in its thread's registers [dao2023flash2]
pruned: key tiles that causality and window hide are not visited [dong2024]
tensorcore: mma.m16n8k16, scores changed in its registers; tiles that segments hide are not visited either, and tiles
  that all queries see are not masked [dong2024]
"""

import torch

from touchstone.backends.cupy.lib.attention import padded_dimension, sweep_of
from touchstone.backends.cupy.lib.masks import given
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import empty_outputs
from touchstone.backends.signatures.masked_attention import checked_mods, checked_sizes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_naive = Module(__file__, "naive.cu")
_flash = Module(__file__, "flash.cu")
_tensorcore = Module(__file__, "tensorcore.cu")


@variant()
def naive(
    q,
    k,
    v,
    bias,
    slopes,
    seg_q,
    seg_k,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), bias (B, Hq, Sq, Sk), slopes (Hq,), seg_q (B, Sq), seg_k (B, Sk) -> o
    (B, Hq, Sq, D), lse (B, Hq, Sq); 4·B·Hq·Sq·Sk bytes. Source: [vaswani2017]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, bias, slopes, seg_q, seg_k)
    mods = checked_mods(q, k, bias, slopes, seg_q, seg_k, causal, window, softcap, scale, p, seed, offset)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    s, numbers = torch.empty((B, Hq, Sq, Sk), dtype=torch.float32, device=q.device), given(mods, q, k)
    if Sk:
        operands = (q, *q.stride(), k, *k.stride(), *numbers, s, s.numel(), Hkv, D)
        _naive.launch("masked_scores", ceil_div(s.numel(), 128), 128, *operands, dtype=q.dtype)
    _naive.launch("masked_softmax", ceil_div(lse.numel(), 32), 32, s, lse, lse.numel(), numbers[-1], dtype=q.dtype)
    operands = (s, v, *v.stride(), o, o.numel(), numbers[-1], Hkv, D)
    _naive.launch("masked_values", ceil_div(o.numel(), 128), 128, *operands, dtype=q.dtype)
    return o, lse


@variant()
def flash(
    q,
    k,
    v,
    bias,
    slopes,
    seg_q,
    seg_k,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), bias (B, Hq, Sq, Sk), slopes (Hq,), seg_q (B, Sq), seg_k (B, Sk) -> o
    (B, Hq, Sq, D), lse (B, Hq, Sq). Source: [dao2023flash2]."""
    checked_sizes(q, k, v, bias, slopes, seg_q, seg_k)
    mods = checked_mods(q, k, bias, slopes, seg_q, seg_k, causal, window, softcap, scale, p, seed, offset)
    return _by_tiles(q, k, v, given(mods, q, k), pruned=False)


@variant()
def pruned(
    q,
    k,
    v,
    bias,
    slopes,
    seg_q,
    seg_k,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), bias (B, Hq, Sq, Sk), slopes (Hq,), seg_q (B, Sq), seg_k (B, Sk) -> o
    (B, Hq, Sq, D), lse (B, Hq, Sq). Source: [dong2024]."""
    checked_sizes(q, k, v, bias, slopes, seg_q, seg_k)
    mods = checked_mods(q, k, bias, slopes, seg_q, seg_k, causal, window, softcap, scale, p, seed, offset)
    return _by_tiles(q, k, v, given(mods, q, k), pruned=True)


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    q,
    k,
    v,
    bias,
    slopes,
    seg_q,
    seg_k,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), bias (B, Hq, Sq, Sk), slopes (Hq,), seg_q (B, Sq), seg_k (B, Sk) -> o
    (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32. Source: [dong2024].
    """
    B, Hq, Sq, D, Hkv, _ = checked_sizes(q, k, v, bias, slopes, seg_q, seg_k)
    mods = checked_mods(q, k, bias, slopes, seg_q, seg_k, causal, window, softcap, scale, p, seed, offset)
    tiles = sweep_of(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel():
        edited = mods.drops or mods.softcap > 0 or bias is not None or slopes is not None
        operands = (q, *q.stride(), k, *k.stride(), v, *v.stride(), *given(mods, q, k), o, lse, Hkv, D)
        about = {"dtype": q.dtype, "shared": tiles.shared, "EDITED": edited, **tiles.definitions}
        _tensorcore.launch("masked_tensorcore", B * Hq * ceil_div(Sq, tiles.queries), tiles.threads, *operands, **about)
    return o, lse


def _by_tiles(q, k, v, numbers, *, pruned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One block for 64 queries of a head."""
    o, lse = empty_outputs(q)
    if o.numel():
        B, Hq, Sq, D = q.shape
        block_d = padded_dimension(D)
        grid, shared = B * Hq * ceil_div(Sq, 64), 4 * ((64 + 32) * (block_d + 4) + 64 * 33)
        operands = (q, *q.stride(), k, *k.stride(), v, *v.stride(), *numbers, o, lse, k.shape[1], D)
        about = {"dtype": q.dtype, "shared": shared, "BLOCK_D": block_d, "PRUNED": pruned}
        _flash.launch("masked_flash", grid, 128, *operands, **about)
    return o, lse
