"""Wrong kernels of attention_decode_int4: a block a query, whose warps take keys in turn and merge their parts."""

import math

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_decode_int4 import KERNELS as SHARED
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "attention_decode_int4.cu")

KERNELS = SHARED | {
    "no_barrier_before_weights": Kernel(
        "race", "no barrier between the warps' outputs and the warp that merges them", "UninitialisedShared"
    )
}


def _parts(
    q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    caches = {"k_codes": k_codes, "k_scales": k_scales, "v_codes": v_codes, "v_scales": v_scales}
    cache = "B Hkv Sk D/2:uint8, B Hkv Sk G 2"
    B, Hq, Sq, D, Hkv, Sk, G = shapes(f"B Hq Sq D, {cache}, {cache}, B:int32", q=q, **caches, lengths=lengths)
    if D > 128:
        raise Unsupported(f"head dimension {D}; a warp holds 128")
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        strides = (*q.stride(), *(stride for cache in caches.values() for stride in cache.stride()), lengths.stride(0))
        options = (1 / math.sqrt(D) if scale is None else scale, Hq, Hkv, Sq, Sk, D, G)
        operands = (q, *caches.values(), lengths, o, lse, *strides, *options)
        threads = 32 if Sk <= 8 else 128
        _module.launch("attention_decode_int4_parts", B * Hq * Sq, threads, *operands, fault=fault, dtype=q.dtype)
    return o, lse


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "parts",
    "one_key_too_many",
    "merged_unweighted",
    "heads_modulo",
    "nibbles_swapped",
    "no_shift",
    "next_group",
    "values_with_scales_of_keys",
    "no_barrier_before_weights",
)
