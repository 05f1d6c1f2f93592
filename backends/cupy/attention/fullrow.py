"""fullrow: one launch; a block keeps the whole rows of scores of four queries in shared memory."""

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.attention._launch import _blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default

_module = Module(__file__, "fullrow.cu")
_QUERIES = 4
_HELD = 48 * 1024 // 4 - 64  # floats: what a block has anywhere without asking for more


def fullrow(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines more keys than fit on chip: 3056 - D. Source: [pearbiossom2026].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    held = _HELD // _QUERIES - D
    if Sk > held:
        raise Unsupported(f"{Sk} keys of dimension {D}; one block holds the scores of {held}")
    if o.numel() == 0:
        return o, lse
    _module.launch(
        "attention_fullrow",
        B * Hq * _blocks(Sq, _QUERIES),
        32 * _QUERIES,
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
        shared=4 * _QUERIES * (D + Sk),
        QUERIES=_QUERIES,
    )
    return o, lse
