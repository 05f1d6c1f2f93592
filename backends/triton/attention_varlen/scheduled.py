"""scheduled: a list of the tiles that there are, and a program for each of them and each head."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_varlen import checked_sizes, empty_outputs, most_items
from touchstone.backends.triton.attention._launch import block_d, default_tiles
from touchstone.backends.triton.attention_varlen._tile import PLAIN, attend, sequence_at
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=PLAIN)
def _schedule_kernel(cu_q_ptr, items_ptr, stride_cu, B, Tq, most, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """Sequence b's place in the list, behind the tiles of those before it: b and the first query of each tile."""
    b = tl.program_id(0).to(tl.int64)
    place = tl.full((), 0, tl.int32)
    for start in range(0, b, CHUNK):
        other = start + tl.arange(0, CHUNK)
        first = tl.load(cu_q_ptr + other * stride_cu, mask=other < b, other=0)
        end = tl.load(cu_q_ptr + (other + 1) * stride_cu, mask=other < b, other=0)
        place += tl.sum((end - first + ROWS - 1) // ROWS)
    first = tl.load(cu_q_ptr + b * stride_cu)
    end = tl.where(b < B, tl.load(cu_q_ptr + (b + 1) * stride_cu, mask=b < B, other=0), Tq)
    for top in range(0, end - first, ROWS):
        tl.store(items_ptr + 2 * place, b.to(tl.int32))
        tl.store(items_ptr + 2 * place + 1, top)
        place += 1
    if b == B:  # the list has room for more
        for left in range(place, most):
            tl.store(items_ptr + 2 * left, -1)


@triton.jit(do_not_specialize=["scale", *PLAIN])
def _scheduled_kernel(
    q_ptr, k_ptr, v_ptr, cu_q_ptr, cu_k_ptr, items_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, cu_strides,
    scale, B, Tq, Hq, Hkv, D, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    item, h = tl.program_id(0) // Hq, (tl.program_id(0) % Hq).to(tl.int64)
    b = tl.load(items_ptr + 2 * item).to(tl.int64)
    if b >= 0:
        top = tl.load(items_ptr + 2 * item + 1)
        first_q, seq_q, first_k, seq_k = sequence_at(cu_q_ptr, cu_k_ptr, cu_strides, b, B, Tq)
        attend(
            q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, first_q, seq_q, first_k, seq_k, top,
            h, scale, Tq, Hq, Hkv, D, CAUSAL, BLOCK_M, BLOCK_N, BLOCK_D
        )  # fmt: skip


@variant()
def scheduled(
    q, k, v, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_q, cu_k (B + 1,) -> o (Tq, Hq, D), lse (Hq, Tq) float32. Source:
    [shah2024]."""
    Tq, Hq, D, _, Hkv, B = checked_sizes(q, k, v, cu_q, cu_k, max_q, max_k)
    o, lse = empty_outputs(q)
    if o.numel():
        config = default_tiles(q.dtype, D)
        rows = config["BLOCK_M"]
        most = most_items(Tq, B, rows)
        items = torch.empty((most, 2), dtype=torch.int32, device=q.device)
        _schedule_kernel[(B + 1,)](cu_q, items, cu_q.stride(0), B, Tq, most, ROWS=rows, CHUNK=128)
        strides = (q.stride(), k.stride(), v.stride(), (cu_q.stride(0), cu_k.stride(0)))
        options = (scale_or_default(scale, D), B, Tq, Hq, Hkv, D)
        _scheduled_kernel[(most * Hq,)](
            q, k, v, cu_q, cu_k, items, o, lse, *strides, *options, CAUSAL=causal, BLOCK_D=block_d(D), **config
        )
    return o, lse
