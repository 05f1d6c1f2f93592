"""delta_first: delta (and lse in units of log 2) from a kernel of its own; causal tiles pruned; exp2."""

import torch

from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import block_d, tuning_kind
from touchstone.backends.triton.attention_backward._delta import launch_delta
from touchstone.backends.triton.attention_backward._launch import default_pruned_tiles
from touchstone.backends.triton.attention_backward._pruned import dkdv_kernel, dq_kernel
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant

_SPACE = [
    dict(OWN=own, STEP=step, num_warps=warps, num_stages=stages)
    for own, step, warps, stages in [
        (128, 64, 8, 2),
        (128, 64, 8, 3),
        (128, 32, 8, 2),
        (128, 32, 8, 3),
        (64, 128, 8, 2),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 32, 4, 3),
        (64, 32, 8, 2),
        (64, 64, 8, 2),
        (32, 32, 4, 1),
        (32, 16, 4, 2),
    ]
]


@variant(spills=3840, space=_SPACE)
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
    config = dict(
        pinned(
            f"attention_backward.{tuning_kind(D, causal)}.delta_first",
            q.dtype,
            (Sq, Sk),
            default_pruned_tiles(q, k, v, do),
        )
    )
    own, step = config.pop("OWN"), config.pop("STEP")
    delta, lse2 = launch_delta(o, lse, do)
    operands = (q, *q.stride(), k, *k.stride(), v, *v.stride(), do, *do.stride(), delta, lse2)
    sizes = (Hq, Hkv, Sq, Sk, D, scale_or_default(scale, D))
    if dk.numel():
        dkdv_kernel[(B * Hkv * ceil_div(Sk, own),)](
            *operands, dk, dv, *sizes, CAUSAL=causal, BLOCK_M=step, BLOCK_N=own, BLOCK_D=block_d(D), **config
        )
    if dq.numel():
        dq_kernel[(B * Hq * ceil_div(Sq, own),)](
            *operands, dq, *sizes, 0, CAUSAL=causal, BLOCK_M=own, BLOCK_N=step, BLOCK_D=block_d(D), **config
        )
    return dq, dk, dv
