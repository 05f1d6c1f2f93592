"""naive: scores, softmax and product with v, one thread per output, in three launches around a float32 score matrix."""

import torch

from touchstone.backends.cupy.attention._launch import _blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default

_module = Module(__file__, "naive.cu")


def naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq); 4·B·Hq·Sq·Sk bytes [vaswani2017]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    s = torch.empty((B, Hq, Sq, Sk), dtype=torch.float32, device=q.device)
    if Sk:
        _module.launch(
            "attention_scores",
            _blocks(s.numel(), 128),
            128,
            q,
            *q.stride(),
            k,
            *k.stride(),
            s,
            s.numel(),
            Hq,
            Hkv,
            Sq,
            Sk,
            D,
            scale_or_default(scale, D),
            causal,
            dtype=q.dtype,
        )
    rows = lse.numel()
    _module.launch("attention_softmax", _blocks(rows, 32), 32, s, lse, rows, Sk, dtype=q.dtype)
    _module.launch(
        "attention_values",
        _blocks(o.numel(), 128),
        128,
        s,
        v,
        *v.stride(),
        o,
        o.numel(),
        Hq,
        Hkv,
        Sq,
        Sk,
        D,
        dtype=q.dtype,
    )
    return o, lse
