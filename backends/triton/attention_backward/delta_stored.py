"""delta_stored: the dq kernel stores the delta it forms; the kernel for dk and dv loads it and needs no o."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import block_d, load_tile
from touchstone.backends.triton.attention_backward._launch import PLAIN, default_tiles, load_lse
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=PLAIN)
def _stored_dq_kernel(
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
    stride_ob,
    stride_oh,
    stride_os,
    stride_od,
    lse_ptr,
    stride_lseb,
    stride_lseh,
    stride_lses,
    do_ptr,
    stride_dob,
    stride_doh,
    stride_dos,
    stride_dod,
    dq_ptr,
    delta_ptr,
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
    """Longer than a screen: the parameters, most of them strides, stand one to a line; the rest is about 30 lines."""
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0).to(tl.int64) // tiles
    batch, head, head_kv = pair // Hq, pair % Hq, pair % Hq // (Hq // Hkv)
    k_ptr += batch * stride_kb + head_kv * stride_kh
    v_ptr += batch * stride_vb + head_kv * stride_vh

    i = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    q_tile = load_tile(q_ptr + batch * stride_qb + head * stride_qh, i, stride_qs, Sq, d, stride_qd, D)
    o_tile = load_tile(o_ptr + batch * stride_ob + head * stride_oh, i, stride_os, Sq, d, stride_od, D)
    do_tile = load_tile(do_ptr + batch * stride_dob + head * stride_doh, i, stride_dos, Sq, d, stride_dod, D)
    lse_i = load_lse(lse_ptr + batch * stride_lseb + head * stride_lseh, i, stride_lses, Sq)
    delta_i = tl.sum(do_tile.to(tl.float32) * o_tile.to(tl.float32), 1)
    tl.store(delta_ptr + pair * Sq + i, delta_i, mask=i < Sq)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, Sk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k_tile = load_tile(k_ptr, j, stride_ks, Sk, d, stride_kd, D)
        v_tile = load_tile(v_ptr, j, stride_vs, Sk, d, stride_vd, D)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
        visible = j[None, :] < Sk
        if CAUSAL:
            visible &= j[None, :] <= i[:, None] + Sk - Sq
        p = tl.exp(tl.where(visible, s, float("-inf")) - lse_i[:, None])
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta_i[:, None])
        acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")

    inside = (i[:, None] < Sq) & (d[None, :] < D)
    tl.store(dq_ptr + (pair * Sq + i[:, None]) * D + d[None, :], (acc * scale).to(dq_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=PLAIN)
def _stored_dkdv_kernel(
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
    lse_ptr,
    stride_lseb,
    stride_lseh,
    stride_lses,
    do_ptr,
    stride_dob,
    stride_doh,
    stride_dos,
    stride_dod,
    dk_ptr,
    dv_ptr,
    delta_ptr,
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
    tiles = tl.cdiv(Sk, BLOCK_N)
    pair = tl.program_id(0).to(tl.int64) // tiles
    batch, head_kv = pair // Hkv, pair % Hkv

    j = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    k_tile = load_tile(k_ptr + batch * stride_kb + head_kv * stride_kh, j, stride_ks, Sk, d, stride_kd, D)
    v_tile = load_tile(v_ptr + batch * stride_vb + head_kv * stride_vh, j, stride_vs, Sk, d, stride_vd, D)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for head in range(head_kv * (Hq // Hkv), (head_kv + 1) * (Hq // Hkv)):
        for start in range(0, Sq, BLOCK_M):
            i = start + tl.arange(0, BLOCK_M)
            q_tile = load_tile(q_ptr + batch * stride_qb + head * stride_qh, i, stride_qs, Sq, d, stride_qd, D)
            do_tile = load_tile(do_ptr + batch * stride_dob + head * stride_doh, i, stride_dos, Sq, d, stride_dod, D)
            lse_i = load_lse(lse_ptr + batch * stride_lseb + head * stride_lseh, i, stride_lses, Sq)
            delta_i = tl.load(delta_ptr + (batch * Hq + head) * Sq + i, mask=i < Sq, other=0.0)
            s = tl.dot(k_tile, q_tile.T, input_precision="ieee") * scale  # (BLOCK_N, BLOCK_M): already transposed
            visible = (j[:, None] < Sk) & (i[None, :] < Sq)
            if CAUSAL:
                visible &= j[:, None] <= i[None, :] + Sk - Sq
            p = tl.exp(tl.where(visible, s, float("-inf")) - lse_i[None, :])
            dv_acc = tl.dot(p.to(do_tile.dtype), do_tile, dv_acc, input_precision="ieee")
            dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
            ds = p * (dp - delta_i[None, :])
            dk_acc = tl.dot(ds.to(q_tile.dtype), q_tile, dk_acc, input_precision="ieee")

    inside = (j[:, None] < Sk) & (d[None, :] < D)
    offsets = (pair * Sk + j[:, None]) * D + d[None, :]
    tl.store(dk_ptr + offsets, (dk_acc * scale).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + offsets, dv_acc.to(dv_ptr.dtype.element_ty), mask=inside)


@variant(spills=3840)
def delta_stored(
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
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv. Source: [pearbiossom2026]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    dq, dk, dv = empty_outputs(q, k)
    tiles = default_tiles(q.dtype, D)
    own, step = tiles.pop("OWN"), tiles.pop("STEP")
    delta = torch.empty((B, Hq, Sq), dtype=torch.float32, device=q.device)
    qkv = (q, *q.stride(), k, *k.stride(), v, *v.stride())
    rest = (lse, *lse.stride(), do, *do.stride())
    sizes = (Hq, Hkv, Sq, Sk, D, scale_or_default(scale, D))
    if dq.numel():
        _stored_dq_kernel[(B * Hq * ceil_div(Sq, own),)](
            *qkv,
            o,
            *o.stride(),
            *rest,
            dq,
            delta,
            *sizes,
            CAUSAL=causal,
            BLOCK_M=own,
            BLOCK_N=step,
            BLOCK_D=block_d(D),
            **tiles,
        )
    if dk.numel():
        _stored_dkdv_kernel[(B * Hkv * ceil_div(Sk, own),)](
            *qkv, *rest, dk, dv, delta, *sizes, CAUSAL=causal, BLOCK_M=step, BLOCK_N=own, BLOCK_D=block_d(D), **tiles
        )
    return dq, dk, dv
