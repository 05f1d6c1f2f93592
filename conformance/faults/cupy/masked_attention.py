"""Wrong kernels of masked_attention: a block for each query, whose threads share its scores."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.signatures.masked_attention import OPTIONAL, checked_mods
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.masked_attention import KERNELS as SHARED

_module = Faulty(__file__, "masked_attention.cu")

KERNELS = SHARED | {
    "segment_of_tile": Kernel("mask", "the first key of a tile of 16 says for all of them in which segment they are"),
    "no_barrier_before_sum": Kernel(
        "race", "no barrier between the threads' scores and their maximum", "UninitialisedShared"
    ),
}


def _rows(
    q, k, v, bias, slopes, seg_q, seg_k, *, causal=False, window=None, softcap=None, scale=None, p=0.0, seed=0,
    offset=0, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    spec = f"B Hq Sq D, B Hkv Sk D, B Hkv Sk D, {OPTIONAL}"
    given = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, **given)
    if Sk > 256:
        raise Unsupported(f"{Sk} keys; a block holds the scores of 256")
    mods = checked_mods(q, k, *given.values(), causal, window, softcap, scale, p, seed, offset)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        strides = [x.stride() for x in (q, k, v)]
        strides += [(0,) * n if x is None else x.stride() for x, n in zip(given.values(), (4, 1, 2, 2), strict=True)]
        numbers = (Hq, Hkv, Sq, Sk, D, int(causal), mods.scale, mods.softcap, mods.window, *mods.dropout)
        operands = (q, k, v, *given.values(), o, lse, *(s for each in strides for s in each))
        _module.launch("masked_rows", B * Hq * Sq, 64, *operands, *numbers, fault=fault, dtype=q.dtype)
    return o, lse


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "window_one_more",
    "window_top_left",
    "slope_of_head_0",
    "softcap_last",
    "segments_by_query",
    "dropout_by_key",
    "dropout_in_lse",
    "segment_of_tile",
    "no_barrier_before_sum",
)
