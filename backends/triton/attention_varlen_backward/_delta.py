"""delta = Σ do·o and lse in units of log 2, for every row of every head, whatever its sequence."""

import triton
import triton.language as tl

from touchstone.backends.triton.attention._launch import LOG2E, load_tile
from touchstone.backends.triton.attention_backward._launch import load_lse
from touchstone.backends.triton.attention_varlen._tile import PLAIN


@triton.jit(do_not_specialize=PLAIN)
def delta_kernel(
    o_ptr, lse_ptr, do_ptr, delta_ptr, lse2_ptr, o_strides, lse_strides, do_strides, Tq, Hq, D, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr
):  # fmt: skip
    """Both (Hq, Tq) in float32; lse is +inf where it was -inf."""
    tiles = tl.cdiv(Tq, BLOCK_M)
    head = tl.program_id(0).to(tl.int64) // tiles
    i, d = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    o_tile = load_tile(o_ptr + head * o_strides[1], i, o_strides[0], Tq, d, o_strides[2], D)
    do_tile = load_tile(do_ptr + head * do_strides[1], i, do_strides[0], Tq, d, do_strides[2], D)
    lse_i = load_lse(lse_ptr + head * lse_strides[0], i, lse_strides[1], Tq)
    tl.store(delta_ptr + head * Tq + i, tl.sum(do_tile.to(tl.float32) * o_tile.to(tl.float32), 1), mask=i < Tq)
    tl.store(lse2_ptr + head * Tq + i, lse_i * LOG2E, mask=i < Tq)
