"""wgmma: tensorcore's walk on Hopper's warpgroups, queries brought by the copy engine."""

import math

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.attention._launch import _block_d, _blocks
from touchstone.backends.cupy.attention_backward._delta import _launch_delta
from touchstone.backends.cupy.runtime.hopper import TensorMap, aligned, taken
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "wgmma.cu")
_QUERIES, _KEYS = (1, 1, 64, 64), (1, 1, 128, 64)  # tokens and dimensions of a head that one copy brings


@variant(needs="sm_90a", dtypes=HALF, deterministic=False)  # the order of the additions to dq
def wgmma(
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

    Declines float32, D above 128, and q, k, v or do that the copy engine does not take (the last axis not of stride 1,
    another's not a multiple of 16 bytes, a start that is not 16-byte aligned). Source: [shah2024].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    if q.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies float16 and bfloat16")
    if D > 128:
        raise Unsupported(f"head dimension {D}; the registers of a warpgroup hold 128")
    dq, dk, dv = empty_outputs(q, k)
    if 0 in (dq.numel(), dk.numel()):
        return dq.zero_(), dk.zero_(), dv.zero_()
    for name, x in (("q", q), ("k", k), ("v", v), ("do", do)):
        aligned(name, x)
        if not taken(x):
            raise Unsupported(
                f"{name}: strides {x.stride()} of {x.element_size()} bytes; the copy engine needs 1 for the last axis "
                "and positive multiples of 16 bytes for the others"
            )
    block_d, stages, factor = _block_d(D), 2, scale_or_default(scale, D)
    tiles = B * Hq * _blocks(Sq, 64)  # of queries
    sums = torch.zeros(tiles, 64, block_d, dtype=torch.float32, device=q.device)
    delta, lse2 = _launch_delta(o, lse, do)
    config = dict(dtype=q.dtype, arch="sm_90a", BLOCK_D=block_d, STAGES=stages)
    elements = block_d * 2 * (128 + stages * 64) + 2 * 128 * 64  # k and v, rings of q and do, two of ds
    _module.launch(
        "attention_backward_wgmma",
        B * Hkv * _blocks(Sk, 128),
        384,
        TensorMap(q, _QUERIES),
        TensorMap(k, _KEYS),
        TensorMap(v, _KEYS),
        TensorMap(do, _QUERIES),
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
        shared=elements * 2 + stages * 2 * 64 * 4 + (1 + 2 * stages) * 8,
        **config,
    )
    _module.launch("round_dq", tiles * (block_d // 64), 128, sums, dq, Sq, D, factor, **config)
    return dq, dk, dv
