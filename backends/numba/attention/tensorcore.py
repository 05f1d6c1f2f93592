"""tensorcore: flash on mma.m16n8k16, scores and o in registers, cp.async, exp2 with the scale folded in."""

import functools
import math

import numpy as np
import torch
from numba import cuda

from touchstone.backends import Unsupported
from touchstone.backends.numba.attention._launch import padded_width, score_factor
from touchstone.backends.numba.lib.attention_mma import are_heads_aligned
from touchstone.backends.numba.lib.attention_sweep import TILES, sweep_for
from touchstone.backends.numba.lib.gemm import flat
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs
from touchstone.backends.variants import HALF, variant


@functools.cache
def _kernel(width):
    queries, sweep = 64 * TILES[width][0], sweep_for(width)

    @cuda.jit(launch_bounds=128)
    def tensorcore(
        q, q_strides, k, k_strides, v, v_strides, out, lse, heads_kv, seq_k, scale, causal, aligned
    ):  # scale carries log2 e
        heads, seq_q, dim = out.shape[1], out.shape[2], out.shape[3]
        tiles = (seq_q + queries - 1) // queries
        top, pair = (tiles - 1 - cuda.blockIdx.x % tiles) * queries, cuda.blockIdx.x // tiles  # most keys first
        batch, head = pair // heads, pair % heads
        head_kv = head // (heads // heads_kv)
        q_base = batch * q_strides[0] + head * q_strides[1]
        k_base = batch * k_strides[0] + head_kv * k_strides[1]
        v_base = batch * v_strides[0] + head_kv * v_strides[1]
        sweep(
            q, q_base, q_strides, k, k_base, k_strides, v, v_base, v_strides, out, pair * seq_q * dim, dim, lse,
            pair * seq_q, top, seq_q, seq_k, dim, scale, causal, aligned,
        )  # fmt: skip

    return tensorcore


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
    width = padded_width(D)
    operands = (part for x in (q, k, v) for part in (flat(x), x.stride()))
    factor = score_factor(scale, D) * np.float32(math.log2(math.e))
    grid = B * Hq * -(-Sq // (64 * TILES[width][0]))
    launch(_kernel(width), grid, 128, *operands, o, lse.view(-1), Hkv, Sk, factor, causal, are_heads_aligned(q, k, v))
    return o, lse
