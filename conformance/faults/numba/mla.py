"""Wrong kernels of mla: a warp a query, which folds both projections in and keeps its latents in shared memory."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.mla import KERNELS
from touchstone.conformance.faults.numba._launching import launch

_LOW, _NONE, _ALL = np.float32(-3e38), np.float32(-math.inf), 0xFFFFFFFF


class Fault(IntEnum):
    none = 0
    no_rotary_part = 1
    first_projection = 2
    scale_without_rotary = 3
    top_left = 4
    not_rescaled = 5
    last_key_lost = 6


@cuda.jit
def _online_kernel(q_nope, q_rope, c, k_rope, w_uk, w_uv, o, lse, scale, causal, fault):
    latent_q, latent_o = cuda.shared.array(512, float32), cuda.shared.array(512, float32)
    heads, queries, keys, latents = q_nope.shape[1], q_nope.shape[2], c.shape[1], c.shape[2]
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    b, h, i = row // (heads * queries), row // queries % heads, row % queries
    own = 0 if fault == Fault.first_projection else h
    if fault == Fault.scale_without_rotary:
        scale *= math.sqrt(float32(q_nope.shape[3] + q_rope.shape[3]) / float32(q_nope.shape[3]))
    for r in range(lane, latents, 32):
        sum = float32(0)
        for d in range(q_nope.shape[3]):
            sum += float32(q_nope[b, h, i, d]) * float32(w_uk[own, r, d])
        latent_q[r] = sum
        latent_o[r] = float32(0)
    cuda.syncthreads()
    last = keys
    if causal:
        last = min(keys, i + 1 if fault == Fault.top_left else i + keys - queries + 1)
    if fault == Fault.last_key_lost:
        last -= 1
    m, l = _LOW, float32(0)
    for j in range(last):
        s = float32(0)
        for r in range(lane, latents, 32):
            s += latent_q[r] * float32(c[b, j, r])
        if fault != Fault.no_rotary_part:
            for d in range(lane, q_rope.shape[3], 32):
                s += float32(q_rope[b, h, i, d]) * float32(k_rope[b, j, d])
        step = 16
        while step > 0:
            s += cuda.shfl_xor_sync(_ALL, s, step)
            step //= 2
        s *= scale
        larger = max(m, s)
        kept, p = math.exp(m - larger), math.exp(s - larger)
        l = l * kept + p
        if fault == Fault.not_rescaled:
            kept = float32(1)
        for r in range(lane, latents, 32):
            latent_o[r] = latent_o[r] * kept + p * float32(c[b, j, r])
        m = larger
    cuda.syncthreads()
    for e in range(lane, w_uv.shape[2], 32):
        sum = float32(0)
        for r in range(latents):
            sum += latent_o[r] * float32(w_uv[own, r, e])
        o[row, e] = sum / l if l > float32(0) else float32(0)
    if lane == 0:
        lse[row] = m + math.log(l) if l > float32(0) else _NONE


def _online(
    q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal=False, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    operands = dict(q_nope=q_nope, q_rope=q_rope, c=c, k_rope=k_rope, w_uk=w_uk, w_uv=w_uv)
    spec = "B H Sq Dn, B H Sq Dr, B Sk R, B Sk Dr, H R Dn, H R Dv"
    B, H, Sq, Dn, Dr, _, R, Dv = shapes(spec, **operands)
    if R > 512:
        raise Unsupported(f"{R} latents; a block holds 512")
    o, lse = torch.empty((B, H, Sq, Dv), dtype=q_nope.dtype), torch.empty((B, H, Sq), dtype=torch.float32)
    if o.numel():
        given = scale is not None and fault == "scale_without_rotary"  # what is given is not wrong
        factor = np.float32(1 / math.sqrt(Dn + Dr) if scale is None else scale)
        arguments = (*operands.values(), o.view(-1, Dv), lse.view(-1), factor, causal)
        launch(Fault, "none" if given else fault, _online_kernel, B * H * Sq, 32, *arguments)
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
)
