"""masked_attention_backward: dq, dk, dv from the saved lse, the forward's masks and its dropout [dao2022flash].

delta_first: delta from a launch of its own; blocks own rows of dq, or of dk and dv for all query heads [dao2023flash2]
"""

import torch

from touchstone.backends.cupy.lib.attention import padded_dimension
from touchstone.backends.cupy.lib.masks import given
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention_backward import empty_outputs
from touchstone.backends.signatures.masked_attention import checked_mods
from touchstone.backends.signatures.masked_attention_backward import checked_sizes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import variant

_gradients = Module(__file__, "delta_first.cu")
_STEP = 16  # rows of the other sequence at a time


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
    (B, Sq), seg_k (B, Sk) -> dq, dk, dv. Source: [dao2023flash2]."""
    optional = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do, **optional)
    mods = checked_mods(q, k, *optional.values(), causal, window, softcap, scale, p, seed, offset)
    dq, dk, dv = empty_outputs(q, k)
    block_d = padded_dimension(D)
    own = 32 if block_d <= 128 else 16
    shared = 4 * (2 * (own + _STEP) * (block_d + 4) + 2 * own * (_STEP + 1))
    about = {"dtype": q.dtype, "shared": shared, "BLOCK_D": block_d, "OWN": own, "STEP": _STEP}
    delta, lse2 = (torch.empty((B, Hq, Sq), dtype=torch.float32, device=q.device) for _ in range(2))
    if rows := lse2.numel():
        operands = (o, *o.stride(), lse, *lse.stride(), do, *do.stride(), delta, lse2, rows, Hq, Sq, D)
        _gradients.launch("attention_delta", ceil_div(rows, 4), 128, *operands, **{**about, "shared": 0})
    operands = (q, *q.stride(), k, *k.stride(), v, *v.stride(), do, *do.stride(), delta, lse2, *given(mods, q, k))
    if dq.numel():
        _gradients.launch("masked_dq", B * Hq * ceil_div(Sq, own), 128, *operands, dq, Hkv, D, **about)
    if dk.numel():
        _gradients.launch("masked_dkdv", B * Hkv * ceil_div(Sk, own), 128, *operands, dk, dv, Hkv, D, **about)
    return dq, dk, dv
