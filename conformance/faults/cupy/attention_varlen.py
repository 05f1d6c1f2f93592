"""Wrong kernels of attention_varlen: a block for each sequence and head, whose warps share the keys and values."""

import math

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_varlen import KERNELS as SHARED
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "attention_varlen.cu")

KERNELS = SHARED | {
    "tiles": Kernel("known-good", "a block for each sequence and head, whose warps share the keys and values"),
    "border_tile_whole": Kernel("causal", "a tile of keys whose first one is visible is not masked"),
    "no_barrier_before_scores": Kernel(
        "race", "no barrier between the loads of keys and their use", "UninitialisedShared"
    ),
    "no_barrier_before_next_keys": Kernel(
        "race", "keys are overwritten while other warps use them", "RaceCondition|values: "
    ),
}


def _blocks(q, k, v, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None, fault: str = "none"):
    spec = "Tq Hq D, Tk Hkv D, Tk Hkv D, N:int32, N:int32"
    Tq, Hq, D, Tk, Hkv, N = shapes(spec, q=q, k=k, v=v, cu_q=cu_q, cu_k=cu_k)
    if D > 128:
        raise Unsupported(f"head dimension {D}; a block holds 128")
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty((Hq, Tq), dtype=torch.float32)
    if o.numel():
        strides = (*q.stride(), *k.stride(), *v.stride(), cu_q.stride(0), cu_k.stride(0))
        options = (1 / math.sqrt(D) if scale is None else scale, N - 1, Tq, Tk, Hq, Hkv, D, causal)
        operands = (q, k, v, cu_q, cu_k, o, lse, *strides, *options)
        threads = 32 * max(1, min(4, (max_q + 1) // 2))
        _module.launch("attention_varlen_blocks", N * Hq, threads, *operands, fault=fault, dtype=q.dtype)
    return o, lse


plant_kernels(
    globals(),
    _blocks,
    KERNELS,
    "tiles",
    "next_sequence_seen",
    "causal_by_row",
    "offsets_of_q_for_k",
    "no_key_gives_nan",
    "rows_behind_left",
    "lse_by_rows",
    "heads_modulo",
    "border_tile_whole",
    "no_barrier_before_scores",
    "no_barrier_before_next_keys",
)
