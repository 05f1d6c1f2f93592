"""flash: online softmax over tiles of k and v; every tile is masked."""

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
def _flash_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, slopes_ptr, seg_q_ptr, seg_k_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides,
    mod_strides, Hq, Hkv, Sq, Sk, D, scale, softcap, window, threshold, keep_scale, seed, offset,
    CAUSAL: tl.constexpr, CAPPED: tl.constexpr, DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr
):  # fmt: skip
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0).to(tl.int64) // tiles  # (batch, query head)
    b, h = pair // Hq, pair % Hq
    q_ptr += b * q_strides[0] + h * q_strides[1]
    k_ptr += b * k_strides[0] + h // (Hq // Hkv) * k_strides[1]
    v_ptr += b * v_strides[0] + h // (Hq // Hkv) * v_strides[1]

    i, d = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q_tile = load_tile(q_ptr, i, q_strides[2], Sq, d, q_strides[3], D)
    m, l = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k_tile = load_tile(k_ptr, j, k_strides[2], Sk, d, k_strides[3], D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
        s = changed(s, i, j, b, h, bias_ptr, slopes_ptr, mod_strides, softcap, Sq, Sk, CAPPED)
        visible = seen(i, j, b, seg_q_ptr, seg_k_ptr, mod_strides, window, Sq, Sk, CAUSAL)
        p, m, alpha = rescaled(tl.where(visible, s, float("-inf")), m)
        l = l * alpha + tl.sum(p, 1)
        if DROPS:
            p = dropped(p, i, j, pair, threshold, keep_scale, seed, offset, Sq, Sk)
        v_tile = load_tile(v_ptr, j, v_strides[2], Sk, d, v_strides[3], D)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")

    l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
    inside = (i[:, None] < Sq) & (d[None, :] < D)
    o = (acc / l[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + (pair * Sq + i[:, None]) * D + d[None, :], o, mask=inside)
    tl.store(lse_ptr + pair * Sq + i, m + tl.log(l), mask=i < Sq)


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
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, bias, slopes, seg_q, seg_k)
    mods = checked_mods(q, k, bias, slopes, seg_q, seg_k, causal, window, softcap, scale, p, seed, offset)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    about, sizes = tiles(q, mods), (Hq, Hkv, Sq, Sk, D)
    strides = (q.stride(), k.stride(), v.stride(), mod_strides(mods))
    numbers = (mods.scale, mods.softcap, mods.window, *mods.dropout)
    flags = {"CAUSAL": mods.causal, "CAPPED": mods.softcap > 0, "DROPS": mods.drops, "BLOCK_D": block_d(D)}
    _flash_kernel[(B * Hq * ceil_div(Sq, about["BLOCK_M"]),)](
        q, k, v, bias, slopes, seg_q, seg_k, o, lse, *strides, *sizes, *numbers, **flags, **about
    )
    return o, lse
