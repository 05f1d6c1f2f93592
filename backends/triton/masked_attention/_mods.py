"""What a call does to its scores, in registers, and what launchers pass for it."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.masked_attention import Mods
from touchstone.backends.triton.attention._launch import LOG2E, default_tiles
from touchstone.backends.triton.attention._launch import PLAIN as SIZES
from touchstone.backends.triton.lib.philox import dropped_out, word_of

# Numbers whose value or alignment would not improve the code, some of them new with each call
PLAIN = [*SIZES, "scale", "softcap", "window", "threshold", "keep_scale", "seed", "offset"]


@triton.jit
def tanh(x):
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def changed(s, i, j, b, h, bias_ptr, slopes_ptr, strides, softcap, Sq, Sk, CAPPED: tl.constexpr):
    """Scaled products of queries i and keys j under soft-cap, slope and bias; `strides` as `mod_strides` gives them."""
    if CAPPED:
        s = softcap * tanh(s * (1 / softcap))  # one division a program
    if slopes_ptr is not None:
        apart = tl.abs(i[:, None] + (Sk - Sq) - j[None, :])
        s -= tl.load(slopes_ptr + h * strides[4]) * apart.to(tl.float32)
    if bias_ptr is not None:
        rows, cols = i.to(tl.int64)[:, None] * strides[2], j.to(tl.int64)[None, :] * strides[3]
        inside = (i[:, None] < Sq) & (j[None, :] < Sk)
        bias_ptr += b * strides[0] + h * strides[1]
        s += tl.load(bias_ptr + rows + cols, mask=inside, other=0.0).to(tl.float32)
    return s


@triton.jit
def seen(i, j, b, seg_q_ptr, seg_k_ptr, strides, window, Sq, Sk, CAUSAL: tl.constexpr):
    """Which of the keys j each of the queries i sees; `window` counts a query's own key."""
    apart = i[:, None] + (Sk - Sq) - j[None, :]
    found = (j[None, :] < Sk) & (tl.abs(apart) < window)
    if CAUSAL:
        found &= apart >= 0
    if seg_q_ptr is not None:
        of_q = tl.load(seg_q_ptr + b * strides[5] + i.to(tl.int64) * strides[6], mask=i < Sq, other=0)
        of_k = tl.load(seg_k_ptr + b * strides[7] + j.to(tl.int64) * strides[8], mask=j < Sk, other=0)
        found &= of_q[:, None] == of_k[None, :]
    return found


@triton.jit
def dropped(p, i, j, pair, threshold, keep_scale, seed, offset, Sq, Sk):
    """p of the queries i and keys j of one (batch, head), `pair`, after dropout."""
    e = (pair * Sq + i.to(tl.int64)[:, None]) * Sk + j[None, :]
    return dropped_out(p, word_of(e, seed, offset), threshold, keep_scale)


@triton.jit
def rescaled(s, m):
    """Of a tile of scores and the maxima so far: exp(s − maximum), the new maxima, and what older sums are multiplied
    by."""
    m_new = tl.maximum(m, tl.max(s, 1))
    base = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new * LOG2E)  # inf - inf is NaN: leave such rows unshifted
    return tl.exp2(s * LOG2E - base[:, None]), m_new, tl.exp2(m * LOG2E - base)


def mod_strides(mods: Mods) -> tuple[int, ...]:
    """Four strides of bias, one of slopes, two of each segment operand; zeros for what is None."""
    named = ((mods.bias, 4), (mods.slopes, 1), (mods.seg_q, 2), (mods.seg_k, 2))
    return tuple(s for x, axes in named for s in ((0,) * axes if x is None else x.stride()))


def tiles(q: torch.Tensor, mods: Mods) -> dict[str, int]:
    """attention's; smaller ones where masks, a bias or random numbers need registers too."""
    if q.dtype is not torch.float32 and (mods.bias is not None or mods.drops):
        return dict(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)
    if q.dtype is not torch.float32 and (64 < q.shape[-1] <= 128 or (mods.seg_q is not None and q.shape[-1] <= 64)):
        return dict(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=3)
    return default_tiles(q.dtype, q.shape[-1])
