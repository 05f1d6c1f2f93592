"""Wrong kernels of attention_decode: a block for each query, whose warps take keys in turn and merge their parts."""

import math

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_decode import KERNELS as SHARED
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "attention_decode.cu")

KERNELS = SHARED | {
    "mask_of_another_row": Kernel(
        "mask", "the rows of a key head go by head and then by query, and are masked as if it were the other way round"
    ),
    "no_barrier_before_weights": Kernel(
        "race", "no barrier between the warps' outputs and the warp that merges them", "UninitialisedShared"
    ),
}


def _parts(q, k, v, lengths, *, scale=None, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B:int32", q=q, k=k, v=v, lengths=lengths)
    if D > 128:
        raise Unsupported(f"head dimension {D}; a warp holds 128")
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        operands = (q, k, v, lengths, o, lse, *q.stride(), *k.stride(), *v.stride(), lengths.stride(0))
        options = (1 / math.sqrt(D) if scale is None else scale, Hq, Hkv, Sq, Sk, D)
        threads = 32 if Sk <= 8 else 128
        _module.launch("attention_decode_parts", B * Hq * Sq, threads, *operands, *options, fault=fault, dtype=q.dtype)
    return o, lse


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "parts",
    "one_key_too_many",
    "merged_unweighted",
    "heads_modulo",
    "first_length",
    "mask_of_another_row",
    "no_barrier_before_weights",
)
