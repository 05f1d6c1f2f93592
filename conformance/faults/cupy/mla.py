"""Wrong kernels of mla: a warp a query, which folds both projections in and keeps its latents in shared memory."""

import math

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.mla import KERNELS as SHARED

_module = Faulty(__file__, "mla.cu")

KERNELS = SHARED | {
    "only_rotary_part": Kernel("formula", "the scores of the rotary part take the place of the others"),
    "no_barrier_before_keys": Kernel(
        "race", "no barrier between the query's latents and the lanes that read them", "UninitialisedShared"
    ),
}


def _online(
    q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal=False, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    operands = dict(q_nope=q_nope, q_rope=q_rope, c=c, k_rope=k_rope, w_uk=w_uk, w_uv=w_uv)
    spec = "B H Sq Dn, B H Sq Dr, B Sk R, B Sk Dr, H R Dn, H R Dv"
    B, H, Sq, Dn, Dr, Sk, R, Dv = shapes(spec, **operands)
    if R > 512:
        raise Unsupported(f"{R} latents; a block holds 512")
    o, lse = torch.empty((B, H, Sq, Dv), dtype=q_nope.dtype), torch.empty((B, H, Sq), dtype=torch.float32)
    if o.numel():
        strides = [stride for x in operands.values() for stride in x.stride()]
        options = (1 / math.sqrt(Dn + Dr) if scale is None else scale, H, Sq, Sk, Dn, Dr, R, Dv, causal)
        given = scale is not None and fault == "scale_without_rotary"  # what is given is not wrong
        arguments = (*operands.values(), o, lse, *strides, *options)
        _module.launch("mla_online", B * H * Sq, 32, *arguments, fault="none" if given else fault, dtype=q_nope.dtype)
    return o, lse


plant_kernels(
    globals(),
    _online,
    KERNELS,
    "online",
    "no_rotary_part",
    "first_projection",
    "scale_without_rotary",
    "top_left",
    "not_rescaled",
    "last_key_lost",
    "only_rotary_part",
    "no_barrier_before_keys",
)
