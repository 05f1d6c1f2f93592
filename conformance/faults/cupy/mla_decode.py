"""Wrong kernels of mla_decode: a block for each query, whose warps take keys in turn and merge their parts."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.mla_decode import KERNELS as SHARED

_module = Faulty(__file__, "mla_decode.cu")

KERNELS = SHARED | {
    "depth_in_sixteens": Kernel(
        "tail", "the products take whole steps of 16 columns: the last, shorter one is left out"
    ),
    "no_barrier_before_weights": Kernel(
        "race", "no barrier between the warps' outputs and the warp that merges them", "UninitialisedShared"
    ),
}


def _parts(q, cache, lengths, *, dim_v, scale, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    B, H, Sq, W, Sk = shapes("B H Sq W, B Sk W, B:int32", q=q, cache=cache, lengths=lengths)
    if not 1 <= dim_v <= W:
        raise ValueError(f"dim_v: {dim_v}; expected 1 to {W}")
    if W > 576:
        raise Unsupported(f"rows of {W} columns; a warp holds 576")
    o, lse = torch.empty((B, H, Sq, dim_v), dtype=q.dtype), torch.empty((B, H, Sq), dtype=torch.float32)
    if o.numel():
        operands = (q, cache, lengths, o, lse, *q.stride(), *cache.stride(), lengths.stride(0))
        options = (scale, H, Sq, Sk, W, dim_v)
        threads = 32 if Sk <= 8 else 128
        _module.launch("mla_decode_parts", B * H * Sq, threads, *operands, *options, fault=fault, dtype=q.dtype)
    return o, lse


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "parts",
    "one_key_too_many",
    "merged_unweighted",
    "no_rotary_part",
    "values_of_the_last_columns",
    "first_length",
    "first_head",
    "depth_in_sixteens",
    "no_barrier_before_weights",
)
