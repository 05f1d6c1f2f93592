"""What a call does to its scores, in registers, and what launchers pass for it.

An operand that is None is an array of zeros of stride 0: a bias and slopes of 0, and one segment for all.
"""

import math

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends.numba.attention._launch import strided
from touchstone.backends.numba.lib.philox import dropped_out, word_of
from touchstone.backends.signatures.masked_attention import Mods

LOW = np.float32(-math.inf)


@cuda.jit(device=True)
def masked_score(dot, bias, slopes, seg_q, seg_k, b, h, i, j, shift, numbers):
    """The score of query i and key j, which exist, from their product, and its slope in scale·q·k; `numbers` are scale,
    softcap, window, causal."""
    scale, softcap, window, causal = numbers
    apart = int64(i) + shift - int64(j)
    if abs(apart) >= window or (causal and apart < 0):
        return LOW, float32(0)
    zero = uint64(0)
    if seg_q[zero, b, uint64(i)] != seg_k[zero, b, uint64(j)]:
        return LOW, float32(0)
    s, bend = dot * scale, float32(1)
    if softcap > float32(0):
        bent = math.tanh(s / softcap)
        s, bend = softcap * bent, float32(1) - bent * bent
    s -= slopes[zero, h] * float32(abs(apart))
    return s + float32(bias[zero, b, h, uint64(i), uint64(j)]), bend


@cuda.jit(device=True)
def after_dropout(p, pair, i, j, seq_q, seq_k, rule):
    """p of query i and key j of one (batch, head); the index runs over (batch, heads, queries, keys)."""
    threshold, keep_scale, seed, offset = rule
    if threshold == 0:
        return p
    e = (uint64(pair) * uint64(seq_q) + uint64(i)) * uint64(seq_k) + uint64(j)
    return dropped_out(p, word_of(e, seed, offset), threshold, keep_scale)


def given(mods: Mods, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """bias, slopes, seg_q and seg_k of a kernel."""
    (B, Hq, Sq, _), Sk = q.shape, k.shape[2]
    operands = ((mods.bias, q.dtype, (B, Hq, Sq, Sk)), (mods.slopes, torch.float32, (Hq,)))
    operands += ((mods.seg_q, torch.int32, (B, Sq)), (mods.seg_k, torch.int32, (B, Sk)))
    return strided(
        *(torch.zeros((), dtype=dtype, device=q.device).expand(axes) if x is None else x for x, dtype, axes in operands)
    )


def numbers(mods: Mods) -> tuple[np.float32 | int | bool, ...]:
    """scale, softcap, window and causal of a kernel."""
    return np.float32(mods.scale), np.float32(mods.softcap), mods.window, mods.causal


def rule(mods: Mods) -> tuple[int | np.float32 | np.uint64, ...]:
    """Dropout's rule, of a kernel."""
    threshold, keep_scale, seed, offset = mods.dropout
    return threshold, np.float32(keep_scale), np.uint64(seed), np.uint64(offset)
