"""naive: two launches that meet in a float32 (B, Hq, Sq, Sk) matrix of masked scores."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import empty_outputs
from touchstone.backends.signatures.masked_attention import checked_mods, checked_sizes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import block_d, load_tile
from touchstone.backends.triton.masked_attention._mods import (
    PLAIN,
    changed,
    dropped,
    mod_strides,
    rescaled,
    seen,
    tiles,
)
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=PLAIN)
def _scores_kernel(
    q_ptr, k_ptr, bias_ptr, slopes_ptr, seg_q_ptr, seg_k_ptr, s_ptr, q_strides, k_strides, mod_strides,
    Hq, Hkv, Sq, Sk, D, scale, softcap, window, CAUSAL: tl.constexpr, CAPPED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(Sq, BLOCK_M), tl.cdiv(Sk, BLOCK_N)
    pair = tl.program_id(0).to(tl.int64) // (tiles_m * tiles_n)  # (batch, query head)
    tile, b, h = tl.program_id(0) % (tiles_m * tiles_n), pair // Hq, pair % Hq
    i = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    q_ptr += b * q_strides[0] + h * q_strides[1]
    k_ptr += b * k_strides[0] + h // (Hq // Hkv) * k_strides[1]
    q_tile = load_tile(q_ptr, i, q_strides[2], Sq, d, q_strides[3], D)
    k_tile = load_tile(k_ptr, j, k_strides[2], Sk, d, k_strides[3], D)
    s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
    s = changed(s, i, j, b, h, bias_ptr, slopes_ptr, mod_strides, softcap, Sq, Sk, CAPPED)
    visible = seen(i, j, b, seg_q_ptr, seg_k_ptr, mod_strides, window, Sq, Sk, CAUSAL)
    inside = (i[:, None] < Sq) & (j[None, :] < Sk)
    tl.store(s_ptr + (pair * Sq + i[:, None]) * Sk + j[None, :], tl.where(visible, s, float("-inf")), mask=inside)


@triton.jit(do_not_specialize=PLAIN)
def _values_kernel(
    s_ptr, v_ptr, o_ptr, lse_ptr, v_strides, Hq, Hkv, Sq, Sk, D, threshold, keep_scale, seed, offset,
    DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0).to(tl.int64) // tiles
    i, d = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    s_ptr += (pair * Sq + i[:, None]) * Sk
    v_ptr += pair // Hq * v_strides[0] + pair % Hq // (Hq // Hkv) * v_strides[1]
    m, l = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        inside = (i[:, None] < Sq) & (j[None, :] < Sk)
        p, m, alpha = rescaled(tl.load(s_ptr + j[None, :], mask=inside, other=float("-inf")), m)
        l = l * alpha + tl.sum(p, 1)
    base = tl.where(tl.abs(m) == float("inf"), 0.0, m)
    l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf

    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        inside = (i[:, None] < Sq) & (j[None, :] < Sk)
        s = tl.load(s_ptr + j[None, :], mask=inside, other=float("-inf"))
        p = tl.exp(s - base[:, None]) / l[:, None]
        if DROPS:
            p = dropped(p, i, j, pair, threshold, keep_scale, seed, offset, Sq, Sk)
        v_tile = load_tile(v_ptr, j, v_strides[2], Sk, d, v_strides[3], D)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
    inside = (i[:, None] < Sq) & (d[None, :] < D)
    tl.store(o_ptr + (pair * Sq + i[:, None]) * D + d[None, :], acc.to(o_ptr.dtype.element_ty), mask=inside)
    tl.store(lse_ptr + pair * Sq + i, m + tl.log(l), mask=i < Sq)


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
    s = torch.empty((B, Hq, Sq, Sk), dtype=torch.float32, device=q.device)
    about, sizes = tiles(q, mods) | {"BLOCK_D": block_d(D)}, (Hq, Hkv, Sq, Sk, D)
    tiles_m, tiles_n = ceil_div(Sq, about["BLOCK_M"]), ceil_div(Sk, about["BLOCK_N"])
    if Sk:
        strides = (q.stride(), k.stride(), mod_strides(mods))
        numbers = (mods.scale, mods.softcap, mods.window)
        flags = {"CAUSAL": mods.causal, "CAPPED": mods.softcap > 0}
        _scores_kernel[(B * Hq * tiles_m * tiles_n,)](
            q, k, bias, slopes, seg_q, seg_k, s, *strides, *sizes, *numbers, **flags, **about
        )
    about["num_warps"] = 8  # with 4 and 128 rows of scores a thread spills a kilobyte on sm_90
    _values_kernel[(B * Hq * tiles_m,)](s, v, o, lse, v.stride(), *sizes, *mods.dropout, DROPS=mods.drops, **about)
    return o, lse
