"""onekernel: the programs of delta_first's two gradient kernels in one launch."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import block_d, tuning_kind
from touchstone.backends.triton.attention_backward._delta import launch_delta
from touchstone.backends.triton.attention_backward._launch import PLAIN, default_pruned_tiles
from touchstone.backends.triton.attention_backward._pruned import dkdv_kernel, dq_kernel
from touchstone.backends.triton.attention_backward.delta_first import delta_first
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import attributes, variant


@triton.jit(do_not_specialize=PLAIN)
def _onekernel_kernel(
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
    do_ptr,
    stride_dob,
    stride_doh,
    stride_dos,
    stride_dod,
    delta_ptr,
    lse2_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    B,
    Hq,
    Hkv,
    Sq,
    Sk,
    D,
    scale,
    CAUSAL: tl.constexpr,
    OWN: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Longer than a screen: the parameters and the arguments of the calls of the two kernels stand one to a line; the
    rest is the branch between them.
    """
    key_programs = B * Hkv * tl.cdiv(Sk, OWN)
    if tl.program_id(0) < key_programs:
        dkdv_kernel(
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
            do_ptr,
            stride_dob,
            stride_doh,
            stride_dos,
            stride_dod,
            delta_ptr,
            lse2_ptr,
            dk_ptr,
            dv_ptr,
            Hq,
            Hkv,
            Sq,
            Sk,
            D,
            scale,
            CAUSAL=CAUSAL,
            BLOCK_M=STEP,
            BLOCK_N=OWN,
            BLOCK_D=BLOCK_D,
        )
    else:
        dq_kernel(
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
            do_ptr,
            stride_dob,
            stride_doh,
            stride_dos,
            stride_dod,
            delta_ptr,
            lse2_ptr,
            dq_ptr,
            Hq,
            Hkv,
            Sq,
            Sk,
            D,
            scale,
            key_programs,
            CAUSAL=CAUSAL,
            BLOCK_M=OWN,
            BLOCK_N=STEP,
            BLOCK_D=BLOCK_D,
        )


# spills: bfloat16, D 80 to 128, on sm_80: 128 own rows do not fit its registers; sm_90 stays under 512
@variant(spills=3968, space=attributes(delta_first).space)
def onekernel(
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
    config = pinned(
        f"attention_backward.{tuning_kind(D, causal)}.onekernel", q.dtype, (Sq, Sk), default_pruned_tiles(q, k, v, do)
    )
    delta, lse2 = launch_delta(o, lse, do)
    programs = B * Hkv * ceil_div(Sk, config["OWN"]) + B * Hq * ceil_div(Sq, config["OWN"])
    if programs:
        _onekernel_kernel[(programs,)](
            q,
            *q.stride(),
            k,
            *k.stride(),
            v,
            *v.stride(),
            do,
            *do.stride(),
            delta,
            lse2,
            dq,
            dk,
            dv,
            B,
            Hq,
            Hkv,
            Sq,
            Sk,
            D,
            scale_or_default(scale, D),
            CAUSAL=causal,
            BLOCK_D=block_d(D),
            **config,
        )
    return dq, dk, dv
