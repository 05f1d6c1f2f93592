"""delta_first: delta (and lse in units of log 2) from a kernel of its own; causal tiles pruned; exp2."""

import math

import torch

from touchstone.backends.cupy.attention._launch import _block_d, _blocks
from touchstone.backends.cupy.attention_backward._delta import _launch_delta
from touchstone.backends.cupy.attention_backward._launch import _STEP, _own, _shared
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs

_module = Module(__file__, "delta_first.cu")


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
    block_d = _block_d(D)
    own, factor = _own(block_d), scale_or_default(scale, D)
    delta, lse2 = _launch_delta(o, lse, do)
    operands = (q, *q.stride(), k, *k.stride(), v, *v.stride(), do, *do.stride(), delta, lse2)
    sizes = (Hq, Hkv, Sq, Sk, D, factor, factor * math.log2(math.e), causal)
    config = dict(dtype=q.dtype, shared=_shared(block_d), BLOCK_D=block_d, OWN=own, STEP=_STEP)
    if dq.numel():
        _module.launch("first_dq", B * Hq * _blocks(Sq, own), 128, *operands, dq, *sizes, **config)
    if dk.numel():
        _module.launch("first_dkdv", B * Hkv * _blocks(Sk, own), 128, *operands, dk, dv, *sizes, **config)
    return dq, dk, dv
