"""delta_first: delta (and lse in units of log 2) from a kernel of its own; every tile is masked."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention_backward import empty_outputs
from touchstone.backends.signatures.masked_attention import checked_mods
from touchstone.backends.signatures.masked_attention_backward import checked_sizes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import LOG2E, block_d, load_tile
from touchstone.backends.triton.attention_backward._delta import launch_delta
from touchstone.backends.triton.masked_attention._mods import PLAIN, changed, dropped, mod_strides, seen, tanh
from touchstone.backends.variants import variant


@triton.jit
def _gradients(
    q_tile, k_tile, do_tile, v_tile, i, j, pair, delta_ptr, lse2_ptr, bias_ptr, slopes_ptr, seg_q_ptr, seg_k_ptr,
    mod_strides, Hq, Sq, Sk, scale, softcap, window, threshold, keep_scale, seed, offset, CAUSAL: tl.constexpr,
    CAPPED: tl.constexpr, DROPS: tl.constexpr
):  # fmt: skip
    """What the queries i multiply the values j by, and the gradients of their scores, without the scale."""
    b, h = pair // Hq, pair % Hq
    lse_i = tl.load(lse2_ptr + pair * Sq + i, mask=i < Sq, other=float("inf"))
    delta_i = tl.load(delta_ptr + pair * Sq + i, mask=i < Sq, other=0.0)
    dots = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale
    s = changed(dots, i, j, b, h, bias_ptr, slopes_ptr, mod_strides, softcap, Sq, Sk, CAPPED)
    visible = seen(i, j, b, seg_q_ptr, seg_k_ptr, mod_strides, window, Sq, Sk, CAUSAL)
    p = tl.exp2(tl.where(visible, s, float("-inf")) * LOG2E - lse_i[:, None])
    dp, weight = tl.dot(do_tile, v_tile.T, input_precision="ieee"), p
    if DROPS:
        dp = dropped(dp, i, j, pair, threshold, keep_scale, seed, offset, Sq, Sk)
        weight = dropped(p, i, j, pair, threshold, keep_scale, seed, offset, Sq, Sk)
    ds = p * (dp - delta_i[:, None])
    if CAPPED:
        bent = tanh(dots / softcap)
        ds *= 1 - bent * bent
    return weight, ds


@triton.jit(do_not_specialize=PLAIN)
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, bias_ptr, slopes_ptr, seg_q_ptr, seg_k_ptr, dq_ptr, q_strides,
    k_strides, v_strides, do_strides, mod_strides, Hq, Hkv, Sq, Sk, D, scale, softcap, window, threshold, keep_scale,
    seed, offset, CAUSAL: tl.constexpr, CAPPED: tl.constexpr, DROPS: tl.constexpr, OWN: tl.constexpr,
    STEP: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    tiles = tl.cdiv(Sq, OWN)
    pair = tl.program_id(0).to(tl.int64) // tiles
    b, h, reader = pair // Hq, pair % Hq, pair % Hq // (Hq // Hkv)
    i, d = tl.program_id(0) % tiles * OWN + tl.arange(0, OWN), tl.arange(0, BLOCK_D)
    k_ptr += b * k_strides[0] + reader * k_strides[1]
    v_ptr += b * v_strides[0] + reader * v_strides[1]
    q_tile = load_tile(q_ptr + b * q_strides[0] + h * q_strides[1], i, q_strides[2], Sq, d, q_strides[3], D)
    do_tile = load_tile(do_ptr + b * do_strides[0] + h * do_strides[1], i, do_strides[2], Sq, d, do_strides[3], D)
    acc = tl.zeros((OWN, BLOCK_D), tl.float32)
    for start in range(0, Sk, STEP):
        j = start + tl.arange(0, STEP)
        k_tile = load_tile(k_ptr, j, k_strides[2], Sk, d, k_strides[3], D)
        v_tile = load_tile(v_ptr, j, v_strides[2], Sk, d, v_strides[3], D)
        _, ds = _gradients(
            q_tile, k_tile, do_tile, v_tile, i, j, pair, delta_ptr, lse2_ptr, bias_ptr, slopes_ptr, seg_q_ptr,
            seg_k_ptr, mod_strides, Hq, Sq, Sk, scale, softcap, window, threshold, keep_scale, seed, offset,
            CAUSAL, CAPPED, DROPS
        )  # fmt: skip
        acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")
    inside = (i[:, None] < Sq) & (d[None, :] < D)
    dq = (acc * scale).to(dq_ptr.dtype.element_ty)
    tl.store(dq_ptr + (pair * Sq + i[:, None]) * D + d[None, :], dq, mask=inside)


@triton.jit(do_not_specialize=PLAIN)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, delta_ptr, lse2_ptr, bias_ptr, slopes_ptr, seg_q_ptr, seg_k_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, do_strides, mod_strides, Hq, Hkv, Sq, Sk, D, scale, softcap, window, threshold,
    keep_scale, seed, offset, CAUSAL: tl.constexpr, CAPPED: tl.constexpr, DROPS: tl.constexpr, OWN: tl.constexpr,
    STEP: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    tiles, group = tl.cdiv(Sk, OWN), Hq // Hkv
    of_keys = tl.program_id(0).to(tl.int64) // tiles  # (batch, key head)
    b, reader = of_keys // Hkv, of_keys % Hkv
    j, d = tl.program_id(0) % tiles * OWN + tl.arange(0, OWN), tl.arange(0, BLOCK_D)
    k_tile = load_tile(k_ptr + b * k_strides[0] + reader * k_strides[1], j, k_strides[2], Sk, d, k_strides[3], D)
    v_tile = load_tile(v_ptr + b * v_strides[0] + reader * v_strides[1], j, v_strides[2], Sk, d, v_strides[3], D)
    dk, dv = tl.zeros((OWN, BLOCK_D), tl.float32), tl.zeros((OWN, BLOCK_D), tl.float32)
    for member in range(0, group):
        h = reader * group + member
        q_head, do_head = q_ptr + b * q_strides[0] + h * q_strides[1], do_ptr + b * do_strides[0] + h * do_strides[1]
        for start in range(0, Sq, STEP):
            i = start + tl.arange(0, STEP)
            q_tile = load_tile(q_head, i, q_strides[2], Sq, d, q_strides[3], D)
            do_tile = load_tile(do_head, i, do_strides[2], Sq, d, do_strides[3], D)
            weight, ds = _gradients(
                q_tile, k_tile, do_tile, v_tile, i, j, b * Hq + h, delta_ptr, lse2_ptr, bias_ptr, slopes_ptr, seg_q_ptr,
                seg_k_ptr, mod_strides, Hq, Sq, Sk, scale, softcap, window, threshold, keep_scale, seed, offset,
                CAUSAL, CAPPED, DROPS
            )  # fmt: skip
            dv = tl.dot(weight.to(do_tile.dtype).T, do_tile, dv, input_precision="ieee")
            dk = tl.dot(ds.to(q_tile.dtype).T, q_tile, dk, input_precision="ieee")
    at = (of_keys * Sk + j[:, None]) * D + d[None, :]
    inside = (j[:, None] < Sk) & (d[None, :] < D)
    tl.store(dk_ptr + at, (dk * scale).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=inside)


@variant()
def delta_first(
    q,
    k,
    v,
    o,
    lse,
    do,
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq), bias (B, Hq, Sq, Sk), slopes (Hq,), seg_q
    (B, Sq), seg_k (B, Sk) -> dq, dk, dv. Source: [triton2022]."""
    optional = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do, **optional)
    mods = checked_mods(q, k, *optional.values(), causal, window, softcap, scale, p, seed, offset)
    dq, dk, dv = empty_outputs(q, k)
    about = _tiles(q) | {"CAUSAL": mods.causal, "CAPPED": mods.softcap > 0, "DROPS": mods.drops, "BLOCK_D": block_d(D)}
    operands = (q, k, v, do, *launch_delta(o, lse, do), *optional.values())
    strides = (q.stride(), k.stride(), v.stride(), do.stride(), mod_strides(mods))
    numbers = (Hq, Hkv, Sq, Sk, D, mods.scale, mods.softcap, mods.window, *mods.dropout)
    if dq.numel():
        _dq_kernel[(B * Hq * ceil_div(Sq, about["OWN"]),)](*operands, dq, *strides, *numbers, **about)
    if dk.numel():
        _dkdv_kernel[(B * Hkv * ceil_div(Sk, about["OWN"]),)](*operands, dk, dv, *strides, *numbers, **about)
    return dq, dk, dv


def _tiles(q: torch.Tensor) -> dict[str, int]:
    """A program owns OWN rows of a gradient and walks over the other sequence STEP rows at a time."""
    if q.dtype is torch.float32 or q.shape[-1] > 128:
        return dict(OWN=32, STEP=16, num_warps=8 if q.shape[-1] > 64 else 4, num_stages=1)
    return dict(OWN=64, STEP=32, num_warps=4 if q.shape[-1] <= 64 else 8, num_stages=2)
