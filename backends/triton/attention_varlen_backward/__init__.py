"""attention_varlen_backward: dq, dk, dv of sequences of various lengths, one after another, from the saved lse.

dv = pᵀ·do; ds = p·(do·vᵀ - delta) with delta = Σ do·o; dq = scale·ds·k; dk = scale·dsᵀ·q, in each sequence by itself.

delta_first: a kernel of its own for delta, then one for dq and one for dk and dv; hidden tiles skipped, exp2
  [triton2022]
"""

import torch

from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_backward import empty_outputs
from touchstone.backends.signatures.attention_varlen import tiles_of
from touchstone.backends.signatures.attention_varlen_backward import checked_sizes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import block_d
from touchstone.backends.triton.attention_backward._launch import default_tiles
from touchstone.backends.triton.attention_varlen_backward._delta import delta_kernel
from touchstone.backends.triton.attention_varlen_backward._gradients import dkdv_kernel, dq_kernel
from touchstone.backends.variants import variant


@variant(spills=3840)
def delta_first(
    q, k, v, o, lse, do, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (Tq, Hq, D), k, v (Tk, Hkv, D), lse (Hq, Tq), cu_q, cu_k (B + 1,) -> dq, dk, dv. Source:
    [triton2022]."""
    Tq, Hq, D, Tk, Hkv, B = checked_sizes(q, k, v, o, lse, do, cu_q, cu_k, max_q, max_k)
    dq, dk, dv = empty_outputs(q, k)
    config, width = default_tiles(q.dtype, D), block_d(D)
    own, step = config.pop("OWN"), config.pop("STEP")
    delta, lse2 = (torch.empty((Hq, Tq), dtype=torch.float32, device=q.device) for _ in range(2))
    if dq.numel():
        strides = (o.stride(), lse.stride(), do.stride())
        grid = (Hq * ceil_div(Tq, 64),)
        delta_kernel[grid](o, lse, do, delta, lse2, *strides, Tq, Hq, D, BLOCK_M=64, BLOCK_D=width)
    strides = (q.stride(), k.stride(), v.stride(), do.stride(), (cu_q.stride(0), cu_k.stride(0)))
    operands = (q, k, v, do, delta, lse2, cu_q, cu_k)
    sizes = (scale_or_default(scale, D), B, Tq, Tk, Hq, Hkv, D)
    config |= dict(CAUSAL=causal, OWN=own, STEP=step, BLOCK_D=width)
    if dq.numel():
        tiles = tiles_of(max_q, own)
        dq_kernel[(tiles * Hq * (B + 1),)](*operands, dq, *strides, *sizes, tiles, **config)
    if dk.numel():
        tiles = tiles_of(max_k, own)
        dkdv_kernel[(tiles * Hkv * (B + 1),)](*operands, dk, dv, *strides, *sizes, tiles, **config)
    return dq, dk, dv
