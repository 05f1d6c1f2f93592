"""naive: three launches that meet in a float32 (B, Hq, Sq, Sk) matrix of scores."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import block_d, default_tiles, load_tile
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=["Hq", "Hkv", "Sq"])
def _scores_kernel(
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
    s_ptr,
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
    tiles_m, tiles_n = tl.cdiv(Sq, BLOCK_M), tl.cdiv(Sk, BLOCK_N)
    pair = tl.program_id(0).to(tl.int64) // (tiles_m * tiles_n)  # (batch, query head)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    q_ptr += pair // Hq * stride_qb + pair % Hq * stride_qh
    k_ptr += pair // Hq * stride_kb + pair % Hq // (Hq // Hkv) * stride_kh

    i = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    q_tile = load_tile(q_ptr, i, stride_qs, Sq, d, stride_qd, D)
    k_tile = load_tile(k_ptr, j, stride_ks, Sk, d, stride_kd, D)
    score = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
    if CAUSAL:
        score = tl.where(j[None, :] <= i[:, None] + Sk - Sq, score, float("-inf"))
    inside = (i[:, None] < Sq) & (j[None, :] < Sk)
    tl.store(s_ptr + (pair * Sq + i[:, None]) * Sk + j[None, :], score, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _softmax_kernel(s_ptr, lse_ptr, rows, Sk, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Scores to probabilities in place, and lse, over `rows` = B·Hq·Sq rows of Sk."""
    i = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    s_ptr += i[:, None] * Sk
    m = tl.full((BLOCK_M, BLOCK_N), float("-inf"), tl.float32)
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)[None, :]
        m = tl.maximum(m, tl.load(s_ptr + j, mask=(i[:, None] < rows) & (j < Sk), other=float("-inf")))
    m = tl.max(m, 1)
    base = tl.where(tl.abs(m) == float("inf"), 0.0, m)  # inf - inf is NaN: a row without finite maximum stays unshifted
    l = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)[None, :]
        score = tl.load(s_ptr + j, mask=(i[:, None] < rows) & (j < Sk), other=float("-inf"))
        l += tl.exp(score - base[:, None])
    l = tl.sum(l, 1)
    l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)[None, :]
        score = tl.load(s_ptr + j, mask=(i[:, None] < rows) & (j < Sk), other=float("-inf"))
        p = tl.exp(score - base[:, None]) / l[:, None]
        tl.store(s_ptr + j, p, mask=(i[:, None] < rows) & (j < Sk))
    tl.store(lse_ptr + i, m + tl.log(l), mask=i < rows)


@triton.jit(do_not_specialize=["Hq", "Hkv", "Sq"])
def _values_kernel(
    p_ptr,
    v_ptr,
    stride_vb,
    stride_vh,
    stride_vs,
    stride_vd,
    o_ptr,
    Hq,
    Hkv,
    Sq,
    Sk,
    D,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0).to(tl.int64) // tiles
    v_ptr += pair // Hq * stride_vb + pair % Hq // (Hq // Hkv) * stride_vh

    i = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        p_tile = load_tile(p_ptr + pair * Sq * Sk, i, Sk, Sq, j, 1, Sk)
        v_tile = load_tile(v_ptr, j, stride_vs, Sk, d, stride_vd, D)
        acc = tl.dot(p_tile.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
    inside = (i[:, None] < Sq) & (d[None, :] < D)
    tl.store(o_ptr + (pair * Sq + i[:, None]) * D + d[None, :], acc.to(o_ptr.dtype.element_ty), mask=inside)


@variant()
def naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq); 4·B·Hq·Sq·Sk bytes [vaswani2017]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    s = torch.empty((B, Hq, Sq, Sk), dtype=torch.float32, device=q.device)
    tiles = default_tiles(q.dtype, D)
    tiles_m, tiles_n = ceil_div(Sq, tiles["BLOCK_M"]), ceil_div(Sk, tiles["BLOCK_N"])
    if Sk:
        _scores_kernel[(B * Hq * tiles_m * tiles_n,)](
            q,
            *q.stride(),
            k,
            *k.stride(),
            s,
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
    rows = B * Hq * Sq
    _softmax_kernel[(ceil_div(rows, 16),)](s, lse, rows, Sk, BLOCK_M=16, BLOCK_N=256, num_warps=4)
    _values_kernel[(B * Hq * tiles_m,)](s, v, *v.stride(), o, Hq, Hkv, Sq, Sk, D, BLOCK_D=block_d(D), **tiles)
    return o, lse
