"""fullrow: one launch; a block of queries keeps its whole rows of scores on chip."""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.attention._launch import PLAIN, block_d, load_tile
from touchstone.backends.variants import variant

# Elements of k, and of v after it, that one program takes on chip. A float32 `ieee` dot runs on the FMA pipes,
# unrolled,
# with its operands in registers: 16384 elements spill 7 KB per thread.
_HELD = {torch.float32: 8192, torch.float16: 32768, torch.bfloat16: 32768}


@triton.jit(do_not_specialize=PLAIN)
def _fullrow_kernel(
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
    j = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    q_tile = load_tile(q_ptr, i, stride_qs, Sq, d, stride_qd, D)
    k_tile = load_tile(k_ptr, j, stride_ks, Sk, d, stride_kd, D)
    s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
    visible = j[None, :] < Sk
    if CAUSAL:
        visible &= j[None, :] <= i[:, None] + Sk - Sq
    s = tl.where(visible, s, float("-inf"))

    m = tl.max(s, 1)
    base = tl.where(tl.abs(m) == float("inf"), 0.0, m)  # inf - inf is NaN: a row without finite maximum stays unshifted
    p = tl.exp(s - base[:, None])
    l = tl.sum(p, 1)
    l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
    v_tile = load_tile(v_ptr, j, stride_vs, Sk, d, stride_vd, D)
    acc = tl.dot(p.to(v_tile.dtype), v_tile, input_precision="ieee") / l[:, None]

    inside = (i[:, None] < Sq) & (d[None, :] < D)
    tl.store(o_ptr + (pair * Sq + i[:, None]) * D + d[None, :], acc.to(o_ptr.dtype.element_ty), mask=inside)
    tl.store(lse_ptr + pair * Sq + i, m + tl.log(l), mask=i < Sq)


@variant()
def fullrow(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines more keys than fit on chip: 512 of dimension 64 in 16 bits, 128 in float32. Source: [pearbiossom2026].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    held = _HELD[q.dtype] // block_d(D)
    if Sk > held:
        raise Unsupported(f"{Sk} keys of dimension {D}; one program holds {held}")
    if o.numel() == 0:
        return o, lse
    block_m = 16 if q.dtype is torch.float32 else 32
    _fullrow_kernel[(B * Hq * ceil_div(Sq, block_m),)](
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
        BLOCK_M=block_m,
        BLOCK_N=max(16, next_power_of_2(Sk)),
        BLOCK_D=block_d(D),
        num_warps=8,
    )
    return o, lse
