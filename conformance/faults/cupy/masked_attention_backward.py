"""Wrong kernels of masked_attention_backward: a block for each query, which adds to the sums of dk and dv."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.signatures.masked_attention import OPTIONAL, checked_mods
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.masked_attention_backward import KERNELS

_module = Faulty(__file__, "masked_attention_backward.cu")


def _rows(
    q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, *, causal=False, window=None, softcap=None, scale=None, p=0.0,
    seed=0, offset=0, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    spec = f"B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B Hq Sq D, B Hq Sq:float32, B Hq Sq D, {OPTIONAL}"
    given = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do, **given)
    if Sk > 256:
        raise Unsupported(f"{Sk} keys; a block holds the scores of 256")
    mods = checked_mods(q, k, *given.values(), causal, window, softcap, scale, p, seed, offset)
    dq = torch.empty(q.shape, dtype=q.dtype)
    dk, dv = (torch.zeros(k.shape) for _ in range(2))
    if dq.numel():
        strides = [x.stride() for x in (q, k, v, o, lse, do)]
        strides += [(0,) * n if x is None else x.stride() for x, n in zip(given.values(), (4, 1, 2, 2), strict=True)]
        numbers = (Hq, Hkv, Sq, Sk, D, int(causal), mods.scale, mods.softcap, mods.window, *mods.dropout)
        operands = (q, k, v, o, lse, do, *given.values(), dq, dk, dv, *(s for each in strides for s in each))
        _module.launch("masked_rows_backward", B * Hq * Sq, 64, *operands, *numbers, fault=fault, dtype=q.dtype)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "window_ignored",
    "window_one_more",
    "softcap_without_slope",
    "slope_of_head_0",
    "segments_by_query",
    "dropout_of_p_alone",
    "delta_missing",
    deterministic=False,
)
