"""What the launchers of masked attention and of its gradients share: a call's numbers as lib/masks.cuh has them."""

import numpy as np
import torch

from touchstone.backends.signatures.masked_attention import Mods

_WIDE = {"bias": 4, "slope": 1, "seg_q": 2, "seg_k": 2, "threshold": 1, "seed": 1, "offset": 1}
_NARROW = {"scale": "f4", "softcap": "f4", "keep_scale": "f4", "causal": "i4", "window": "i4", "heads": "i4"}
_NUMBERS = np.dtype(
    [*((name, "i8", (count,)) for name, count in _WIDE.items()), *_NARROW.items(), ("Sq", "i4"), ("Sk", "i4")]
)


def given(mods: Mods, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor | np.void | None, ...]:
    """The arguments bias, slopes, seg_q, seg_k and mods of a kernel."""
    operands = (mods.bias, mods.slopes, mods.seg_q, mods.seg_k)
    bias, slope, seg_q, seg_k = (
        (0,) * axes if x is None else x.stride() for x, axes in zip(operands, (4, 1, 2, 2), strict=True)
    )
    threshold, keep_scale, seed, offset = mods.dropout
    numbers = (mods.scale, mods.softcap, keep_scale, mods.causal, mods.window, q.shape[1], q.shape[2], k.shape[2])
    values = np.array((bias, slope, seg_q, seg_k, [threshold], [seed], [offset], *numbers), dtype=_NUMBERS)
    return (*operands, values[()])
