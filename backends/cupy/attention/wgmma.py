"""wgmma: attention on Hopper's warpgroups, keys and values brought by the copy engine."""

import math

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.attention._launch import _block_d, _blocks
from touchstone.backends.cupy.runtime.hopper import TensorMap, aligned, taken
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "wgmma.cu")
_BOX = (1, 1, 128, 64)  # tokens and dimensions of a head that one copy brings


@variant(needs="sm_90a", dtypes=HALF)
def wgmma(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq).

    Declines float32, D above 128, a negative scale, and operands that the copy engine does not take (the last axis not
    of stride 1, another's not a multiple of 16 bytes, a start that is not 16-byte aligned). Source: [shah2024].
    """
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    if q.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies float16 and bfloat16")
    if D > 128:
        raise Unsupported(f"head dimension {D}; the registers of a warpgroup hold 128")
    if scale_or_default(scale, D) < 0:
        raise Unsupported(f"scale {scale}; the maximum of a row is taken before the scale, which may not be negative")
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    if Sk == 0:
        return o.zero_(), lse.fill_(-math.inf)
    for name, x in (("q", q), ("k", k), ("v", v)):
        aligned(name, x)
        if not taken(x):
            raise Unsupported(
                f"{name}: strides {x.stride()} of {x.element_size()} bytes; the copy engine needs 1 for the last axis "
                "and positive multiples of 16 bytes for the others"
            )
    block_d, stages = _block_d(D), 2
    tile = 128 * block_d * q.element_size()
    _module.launch(
        "attention_wgmma",
        B * Hq * _blocks(Sq, 128),
        384,
        TensorMap(q, _BOX),
        TensorMap(k, _BOX),
        TensorMap(v, _BOX),
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
        shared=(1 + 2 * stages) * tile + (1 + 4 * stages) * 8,
        arch="sm_90a",
        BLOCK_D=block_d,
        STAGES=stages,
    )
    return o, lse
