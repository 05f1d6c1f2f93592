"""Wrong kernels of attention_varlen_backward: a warp for each row and head of dq, and for each of dk and dv."""

import math

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.attention_varlen_backward import KERNELS as SHARED
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "attention_varlen_backward.cu")

# a query that saw no key is nobody's: no program of this form reads its lse
KERNELS = {name: kernel for name, kernel in SHARED.items() if name != "empty_row_nan"}


def _rows(q, k, v, o, lse, do, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None, fault: str = "none"):
    spec = "Tq Hq D, Tk Hkv D, Tk Hkv D, Tq Hq D, Hq Tq:float32, Tq Hq D, N:int32, N:int32"
    Tq, Hq, D, Tk, Hkv, N = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do, cu_q=cu_q, cu_k=cu_k)
    if D > 128:
        raise Unsupported(f"head dimension {D}; a warp holds 128")
    dq, dk, dv = (torch.empty(x.shape, dtype=q.dtype) for x in (q, k, v))
    if Tq + Tk:
        operands = (q, k, v, o, lse, do, cu_q, cu_k)
        strides = [stride for x in operands for stride in x.stride()]
        options = (1 / math.sqrt(D) if scale is None else scale, N - 1, Tq, Tk, Hq, Hkv, D, causal)
        grid = Tq * Hq + Tk * Hkv
        arguments = (*operands, dq, dk, dv, *strides, *options)
        _module.launch("attention_varlen_backward_rows", grid, 32, *arguments, fault=fault, dtype=q.dtype)
    return dq, dk, dv


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "next_sequence_seen",
    "causal_by_row",
    "delta_left_out",
    "dk_not_scaled",
    "group_not_summed",
    "unseen_keys_left",
    "rows_behind_left",
    "lse_by_rows",
)
