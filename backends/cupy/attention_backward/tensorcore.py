"""tensorcore: one kernel on mma.m16n8k16; dk and dv in registers, dq added up in float32 memory by atomics."""

import math

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.attention._launch import _aligned, _block_d, _blocks
from touchstone.backends.cupy.attention_backward._delta import _launch_delta
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "tensorcore.cu")

# For each padded head dimension: queries a tile, keys per block, warps that share 16 keys.
_TILES = {64: (64, 128, 1), 128: (64, 128, 1), 192: (32, 64, 2), 256: (32, 64, 2)}


@variant(needs="sm_80", dtypes=HALF, deterministic=False)  # the order of the additions to dq
def tensorcore(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv.

    Declines float32. Source: [dao2023flash2].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    dq, dk, dv = empty_outputs(q, k)
    block_d = _block_d(D)
    block_m, block_n, parts = _TILES[block_d]
    factor = scale_or_default(scale, D)
    sums = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    config = dict(
        dtype=q.dtype, BLOCK_D=block_d, BLOCK_M=block_m, BLOCK_N=block_n, COL_PARTS=parts, ALIGNED=_aligned(q, k, v, do)
    )
    if dk.numel():
        delta, lse2 = _launch_delta(o, lse, do)
        _module.launch(
            "attention_backward_tensorcore",
            B * Hkv * _blocks(Sk, block_n),
            2 * block_n * parts,
            q,
            *q.stride(),
            k,
            *k.stride(),
            v,
            *v.stride(),
            do,
            *do.stride(),
            delta,
            lse2,
            sums,
            dk,
            dv,
            Hq,
            Hkv,
            Sq,
            Sk,
            D,
            factor,
            factor * math.log2(math.e),
            causal,
            shared=4 * block_d * (block_n + 2 * block_m) + 2 * block_n * block_m + 16 * block_m,
            **config,
        )
    if dq.numel():
        _module.launch("round_dq", _blocks(dq.numel(), 256), 256, sums, dq, dq.numel(), factor, **config)
    return dq, dk, dv
