"""flash: online softmax over tiles of k and v."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import PLAIN, block_d, default_tiles, load_tile
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=PLAIN)
def _flash_kernel(
    q_ptr,
    stride_qb,
    stride_qh,
    stride_qs,
    stride_qd,
    k_ptr,
    stride_kb,
    stride_kh,
    stride_ks,
    stride_kd,
    v_ptr,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_vd,
    o_ptr,
    lse_ptr,
    Hq,
    Hkv,
    Sq,
    Sk,
    D,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0).to(tl.int64) // tiles  # (batch, query head)
    q_ptr += pair // Hq * stride_qb + pair % Hq * stride_qh
    k_ptr += pair // Hq * stride_kb + pair % Hq // (Hq // Hkv) * stride_kh
    v_ptr += pair // Hq * stride_vb + pair % Hq // (Hq // Hkv) * stride_vh

    i = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    q_tile = load_tile(q_ptr, i, stride_qs, Sq, d, stride_qd, D)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k_tile = load_tile(k_ptr, j, stride_ks, Sk, d, stride_kd, D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
        visible = j[None, :] < Sk
        if CAUSAL:
            visible &= j[None, :] <= i[:, None] + Sk - Sq
        s = tl.where(visible, s, float("-inf"))

        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new)  # inf - inf is NaN: leave such rows unshifted
        p = tl.exp(s - base[:, None])
        alpha = tl.exp(m - base)
        l = l * alpha + tl.sum(p, 1)
        m = m_new
        v_tile = load_tile(v_ptr, j, stride_vs, Sk, d, stride_vd, D)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")

    l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
    inside = (i[:, None] < Sq) & (d[None, :] < D)
    tl.store(
        o_ptr + (pair * Sq + i[:, None]) * D + d[None, :], (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=inside
    )
    tl.store(lse_ptr + pair * Sq + i, m + tl.log(l), mask=i < Sq)


@variant()
def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq). Source: [dao2023flash2]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    tiles = default_tiles(q.dtype, D)
    _flash_kernel[(B * Hq * ceil_div(Sq, tiles["BLOCK_M"]),)](
        q,
        *q.stride(),
        k,
        *k.stride(),
        v,
        *v.stride(),
        o,
        lse,
        Hq,
        Hkv,
        Sq,
        Sk,
        D,
        scale_or_default(scale, D),
        CAUSAL=causal,
        BLOCK_D=block_d(D),
        **tiles,
    )
    return o, lse
