"""delta = Σ do·o and lse in units of log 2, for the variants that compute them first."""

import torch
import triton
import triton.language as tl

from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import LOG2E, block_d, load_tile
from touchstone.backends.triton.attention_backward._launch import PLAIN, load_lse
from touchstone.backends.triton.runtime.ready import prepared


@prepared
@triton.jit(do_not_specialize=PLAIN)
def _delta_kernel(
    o_ptr,
    stride_ob,
    stride_oh,
    stride_os,
    stride_od,
    lse_ptr,
    stride_lseb,
    stride_lseh,
    stride_lses,
    do_ptr,
    stride_dob,
    stride_doh,
    stride_dos,
    stride_dod,
    delta_ptr,
    lse2_ptr,
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
    o_tile = load_tile(o_ptr + batch * stride_ob + head * stride_oh, i, stride_os, Sq, d, stride_od, D)
    do_tile = load_tile(do_ptr + batch * stride_dob + head * stride_doh, i, stride_dos, Sq, d, stride_dod, D)
    lse_i = load_lse(lse_ptr + batch * stride_lseb + head * stride_lseh, i, stride_lses, Sq)
    tl.store(delta_ptr + pair * pitch + i, tl.sum(do_tile.to(tl.float32) * o_tile.to(tl.float32), 1), mask=i < Sq)
    tl.store(lse2_ptr + pair * pitch + i, lse_i * LOG2E, mask=i < Sq)


def launch_delta(
    o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor, multiple: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """delta and lse·log2 e in float32, +inf where lse was -inf: both (B, Hq, Sq rounded up to a multiple).

    What lies behind Sq is not written.
    """
    B, Hq, Sq, D = o.shape
    pitch = ceil_div(Sq, multiple) * multiple
    delta, lse2 = (torch.empty((B, Hq, pitch), dtype=torch.float32, device=o.device) for _ in range(2))
    if delta.numel():
        _delta_kernel[(B * Hq * ceil_div(Sq, 64),)](
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
