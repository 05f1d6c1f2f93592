"""flash: online softmax over tiles of k and v, on CUDA cores."""

import torch

from touchstone.backends.cupy.attention._launch import _block_d, _blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default

_module = Module(__file__, "flash.cu")


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq). Source: [dao2023flash2]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    block_d = _block_d(D)
    _module.launch(
        "attention_flash",
        B * Hq * _blocks(Sq, 64),
        128,
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
        causal,
        dtype=q.dtype,
        shared=4 * ((64 + 32) * (block_d + 4) + 64 * 33),
        BLOCK_D=block_d,
    )
    return o, lse
