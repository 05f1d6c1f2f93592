"""tensorcore: a block for each tile of the list and each head, on tensor cores."""

import functools
import math

import numpy as np
import torch
from numba import cuda, int64, uint64

from touchstone.backends import Unsupported
from touchstone.backends.numba.attention._launch import padded_width, score_factor, strided
from touchstone.backends.numba.attention_varlen._tile import sequence_at
from touchstone.backends.numba.attention_varlen.scheduled import schedule
from touchstone.backends.numba.lib.attention_mma import are_heads_aligned
from touchstone.backends.numba.lib.attention_sweep import TILES, sweep_for
from touchstone.backends.numba.lib.gemm import flat
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_varlen import checked_sizes, empty_outputs, most_items
from touchstone.backends.variants import HALF, variant


@functools.cache
def _kernel(width):
    sweep = sweep_for(width)

    @cuda.jit(launch_bounds=128)
    def tensorcore(
        q, q_strides, k, k_strides, v, v_strides, cu_q, cu_k, items, out, lse, heads_kv, scale, causal, aligned
    ):  # scale carries log2 e
        total, heads, dim = out.shape[0], out.shape[1], out.shape[2]
        item, head = cuda.blockIdx.x // heads, cuda.blockIdx.x % heads
        b = int64(items[uint64(item), 0])
        if b >= 0:
            top, reader = int64(items[uint64(item), 1]), head // (heads // heads_kv)
            first_q, seq_q, first_k, seq_k = sequence_at(cu_q[0], cu_k[0], b, total)
            q_base = head * q_strides[1] + first_q * q_strides[2]
            k_base = reader * k_strides[1] + first_k * k_strides[2]
            v_base = reader * v_strides[1] + first_k * v_strides[2]
            sweep(
                q, q_base, q_strides, k, k_base, k_strides, v, v_base, v_strides, out, (first_q * heads + head) * dim,
                heads * dim, lse, head * total + first_q, top, seq_q, seq_k, dim, scale, causal, aligned,
            )  # fmt: skip

    return tensorcore


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    q, k, v, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_q, cu_k (B + 1,) -> o (Tq, Hq, D), lse (Hq, Tq) float32.

    Declines float32. Source: [dao2023flash2].
    """
    Tq, Hq, D, _, Hkv, B = checked_sizes(q, k, v, cu_q, cu_k, max_q, max_k)
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    o, lse = empty_outputs(q)
    if o.numel():
        width = padded_width(D)
        rows = 64 * TILES[width][0]
        most = most_items(Tq, B, rows)
        items = torch.empty((most, 2), dtype=torch.int32, device=q.device)
        offsets = strided(cu_q, cu_k)
        launch(schedule, checked_grid(B + 1), 32, offsets[0], items, Tq, rows)
        heads = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]  # (1, heads, tokens, D)
        operands = (part for x in heads for part in (flat(x), x.stride()))
        factor = score_factor(scale, D) * np.float32(math.log2(math.e))
        options = (Hkv, factor, causal, are_heads_aligned(*heads))
        launch(_kernel(width), checked_grid(most * Hq), 128, *operands, *offsets, items, o, lse.view(-1), *options)
    return o, lse
