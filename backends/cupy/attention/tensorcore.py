"""tensorcore: flash on mma.m16n8k16, scores and o in registers, cp.async, exp2 with the scale folded in."""

import math

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.attention._launch import _aligned, _block_d, _blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "tensorcore.cu")

# For each padded head dimension: warps, 16-row tiles of queries per warp, keys per tile.
_TILES = {64: (4, 2, 64), 128: (4, 2, 64), 192: (4, 1, 64), 256: (4, 1, 32)}


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32. Source: [dao2023flash2].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    block_d = _block_d(D)
    warps, row_tiles, block_n = _TILES[block_d]
    block_m = 16 * row_tiles * warps
    _module.launch(
        "attention_tensorcore",
        B * Hq * _blocks(Sq, block_m),
        32 * warps,
        q,
        *q.stride(),
        k,
        *k.stride(),
        v,
        *v.stride(),
        o,
        lse,
        Hq,
        Hkv,
        Sq,
        Sk,
        D,
        scale_or_default(scale, D) * math.log2(math.e),
        causal,
        dtype=q.dtype,
        shared=2 * block_d * (block_m + 2 * block_n),
        WARPS=warps,
        ROW_TILES=row_tiles,
        BLOCK_N=block_n,
        BLOCK_D=block_d,
        ALIGNED=_aligned(q, k, v),
    )
    return o, lse
