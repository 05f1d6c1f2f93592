"""delta = Σ do·o and lse in units of log 2, for the variants that compute them first."""

import torch
import triton
import triton.language as tl

from touchstone.backends.triton.attention._launch import LOG2E, block_d, load_tile
from touchstone.backends.triton.attention_backward._launch import PLAIN, load_lse


@triton.jit(do_not_specialize=PLAIN)
def _delta_kernel(
    o,
    o_batch,
    o_head,
    o_row,
    o_col,
    lse,
    lse_batch,
    lse_head,
    lse_row,
    do,
    do_batch,
    do_head,
    do_row,
    do_col,
    delta,
    lse2,
    pitch,
    Hq,
    Sq,
    D,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0).to(tl.int64) // tiles  # (batch, query head)
    batch, head = pair // Hq, pair % Hq
    i = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    o_tile = load_tile(o + batch * o_batch + head * o_head, i, o_row, Sq, d, o_col, D)
    do_tile = load_tile(do + batch * do_batch + head * do_head, i, do_row, Sq, d, do_col, D)
    lse_i = load_lse(lse + batch * lse_batch + head * lse_head, i, lse_row, Sq)
    tl.store(delta + pair * pitch + i, tl.sum(do_tile.to(tl.float32) * o_tile.to(tl.float32), 1), mask=i < Sq)
    tl.store(lse2 + pair * pitch + i, lse_i * LOG2E, mask=i < Sq)


def launch_delta(
    o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor, multiple: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """delta and lse·log2 e in float32, +inf where lse was -inf: both (B, Hq, Sq rounded up to a multiple).

    What lies behind Sq is not written.
    """
    B, Hq, Sq, D = o.shape
    pitch = triton.cdiv(Sq, multiple) * multiple
    delta, lse2 = (torch.empty((B, Hq, pitch), dtype=torch.float32, device=o.device) for _ in range(2))
    if delta.numel():
        _delta_kernel[(B * Hq * triton.cdiv(Sq, 64),)](
            o,
            *o.stride(),
            lse,
            *lse.stride(),
            do,
            *do.stride(),
            delta,
            lse2,
            pitch,
            Hq,
            Sq,
            D,
            BLOCK_M=64,
            BLOCK_D=block_d(D),
        )
    return delta, lse2
