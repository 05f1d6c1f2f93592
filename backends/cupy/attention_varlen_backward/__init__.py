"""attention_varlen_backward: dq, dk, dv of sequences of various lengths, one after another, from the saved lse.

dv = pᵀ·do; ds = p·(do·vᵀ - delta) with delta = Σ do·o; dq = scale·ds·k; dk = scale·dsᵀ·q, in each sequence by itself.

delta_first: a kernel of its own for delta, then one for dq and one for dk and dv; hidden tiles skipped, exp2
  [triton2022]
"""

import math
from typing import Any

import torch

from touchstone.backends.cupy.lib.attention import padded_dimension
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import empty_outputs
from touchstone.backends.signatures.attention_varlen import tiles_of
from touchstone.backends.signatures.attention_varlen_backward import checked_sizes
from touchstone.backends.variants import variant

_delta = Module(__file__, "delta.cu")
_delta_first = Module(__file__, "delta_first.cu")
_STEP = 16  # rows of the other side that a block works on at a time


@variant()
def delta_first(
    q, k, v, o, lse, do, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (Tq, Hq, D), k, v (Tk, Hkv, D), lse (Hq, Tq), cu_q, cu_k (B + 1,) -> dq, dk, dv. Source:
    [triton2022]."""
    Tq, Hq, D, Tk, Hkv, B = checked_sizes(q, k, v, o, lse, do, cu_q, cu_k, max_q, max_k)
    dq, dk, dv = empty_outputs(q, k)
    own, config = _own_rows(D)
    delta, lse2 = (torch.empty((Hq, Tq), dtype=torch.float32, device=q.device) for _ in range(2))
    if dq.numel():
        operands = (*_with_strides(o, lse, do), delta, lse2, Tq, Hq, D)
        _delta.launch("attention_varlen_delta", blocks(-(-Hq * Tq // 4)), 128, *operands, dtype=q.dtype)
    operands = (*_with_strides(q, k, v, do, cu_q, cu_k), delta, lse2)
    factor = scale_or_default(scale, D)
    factors = (factor, factor * math.log2(math.e), causal)
    if dq.numel():
        tiles = tiles_of(max_q, own)
        sizes = (B, Tq, Hq, Hkv, D, tiles, *factors)
        _delta_first.launch(
            "varlen_dq", blocks(tiles * Hq * (B + 1)), 128, *operands, dq, *sizes, dtype=q.dtype, **config
        )
    if dk.numel():
        tiles = tiles_of(max_k, own)
        sizes = (B, Tq, Tk, Hq, Hkv, D, tiles, *factors)
        grid = blocks(tiles * Hkv * (B + 1))
        _delta_first.launch("varlen_dkdv", grid, 128, *operands, dk, dv, *sizes, dtype=q.dtype, **config)
    return dq, dk, dv


def _with_strides(*tensors: torch.Tensor) -> tuple[torch.Tensor | int, ...]:
    """Each tensor, followed by its strides."""
    return tuple(argument for x in tensors for argument in (x, *x.stride()))


def _own_rows(D: int) -> tuple[int, dict[str, Any]]:
    """Rows of a gradient that a block of 128 threads owns, and the launch's keywords: in shared memory are two tiles of
    own rows and two of the other side's, and two tiles of scores."""
    block_d = padded_dimension(D)
    own = 32 if block_d <= 128 else 16
    shared = 4 * (2 * (own + _STEP) * (block_d + 4) + 2 * own * (_STEP + 1))
    return own, {"shared": shared, "BLOCK_D": block_d, "OWN": own, "STEP": _STEP}
