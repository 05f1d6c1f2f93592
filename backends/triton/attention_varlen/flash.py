"""flash: a program for each tile of the longest sequence, of each sequence and head."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_varlen import checked_sizes, empty_outputs, tiles_of
from touchstone.backends.triton.attention._launch import block_d, default_tiles
from touchstone.backends.triton.attention_varlen._tile import PLAIN, attend, sequence_at
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=["scale", *PLAIN])
def _flash_kernel(
    q_ptr, k_ptr, v_ptr, cu_q_ptr, cu_k_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, cu_strides, scale, B, Tq,
    Hq, Hkv, D, tiles, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64) // tiles  # (sequence, query head)
    b, h = pair // Hq, pair % Hq
    first_q, seq_q, first_k, seq_k = sequence_at(cu_q_ptr, cu_k_ptr, cu_strides, b, B, Tq)
    # Only the rows of no sequence may be more than there are tiles for: one round is all that a sequence has.
    for top in range(tl.program_id(0) % tiles * BLOCK_M, seq_q, tiles * BLOCK_M):
        attend(
            q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, first_q, seq_q, first_k, seq_k, top,
            h, scale, Tq, Hq, Hkv, D, CAUSAL, BLOCK_M, BLOCK_N, BLOCK_D
        )  # fmt: skip


@variant()
def flash(
    q, k, v, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_q, cu_k (B + 1,) -> o (Tq, Hq, D), lse (Hq, Tq) float32. Source:
    [dao2023flash2]."""
    Tq, Hq, D, _, Hkv, B = checked_sizes(q, k, v, cu_q, cu_k, max_q, max_k)
    o, lse = empty_outputs(q)
    if o.numel():
        config = default_tiles(q.dtype, D)
        tiles = tiles_of(max_q, config["BLOCK_M"])
        strides = (q.stride(), k.stride(), v.stride(), (cu_q.stride(0), cu_k.stride(0)))
        options = (scale_or_default(scale, D), B, Tq, Hq, Hkv, D, tiles)
        grid = (tiles * Hq * (B + 1),)
        _flash_kernel[grid](
            q, k, v, cu_q, cu_k, o, lse, *strides, *options, CAUSAL=causal, BLOCK_D=block_d(D), **config
        )
    return o, lse
