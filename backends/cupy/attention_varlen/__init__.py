"""Attention over sequences of various lengths, one after another: o = softmax(scale·q·kᵀ)·v and lse of each by itself.

flash: a block for each tile of the longest sequence, of each sequence and head; shorter ones end at once
  [dao2023flash2]
scheduled: a kernel lists the tiles that there are, and a block takes one of them: one long sequence among many short
  ones leaves no blocks idle [shah2024]
tensorcore: the same list, products on mma.m16n8k16; scores and o in registers, cp.async, border tiles alone masked,
  exp2 [dao2023flash2]
"""

import math
from typing import Any

import torch

from touchstone.backends.cupy.lib.attention import padded_dimension, sweep_of
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.attention import scale_or_default
from touchstone.backends.signatures.attention_varlen import checked_sizes, empty_outputs, most_items, tiles_of
from touchstone.backends.variants import HALF, variant

_flash = Module(__file__, "flash.cu")
_scheduled = Module(__file__, "scheduled.cu")
_tensorcore = Module(__file__, "tensorcore.cu")
_ROWS = 64  # queries of a tile


@variant()
def flash(
    q, k, v, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_q, cu_k (B + 1,) -> o (Tq, Hq, D), lse (Hq, Tq) float32. Source:
    [dao2023flash2]."""
    Tq, Hq, D, _, Hkv, B = checked_sizes(q, k, v, cu_q, cu_k, max_q, max_k)
    o, lse = empty_outputs(q)
    if o.numel():
        tiles = tiles_of(max_q, _ROWS)
        options = (B, Tq, Hq, Hkv, D, tiles, scale_or_default(scale, D), causal)
        grid = blocks(tiles * Hq * (B + 1))
        operands = _with_strides(q, k, v, cu_q, cu_k)
        _flash.launch("attention_varlen_flash", grid, 128, *operands, o, lse, *options, **_config(q))
    return o, lse


@variant()
def scheduled(
    q, k, v, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_q, cu_k (B + 1,) -> o (Tq, Hq, D), lse (Hq, Tq) float32. Source:
    [shah2024]."""
    Tq, Hq, D, _, Hkv, B = checked_sizes(q, k, v, cu_q, cu_k, max_q, max_k)
    o, lse = empty_outputs(q)
    if o.numel():
        most = most_items(Tq, B, _ROWS)
        items = torch.empty((most, 2), dtype=torch.int32, device=q.device)
        about = {"dtype": q.dtype, "BLOCK_D": padded_dimension(D)}
        _scheduled.launch("attention_varlen_schedule", B + 1, 32, *_with_strides(cu_q), items, B, Tq, most, **about)
        options = (B, Tq, Hq, Hkv, D, scale_or_default(scale, D), causal)
        operands = (*_with_strides(q, k, v, cu_q, cu_k), items)
        grid = blocks(most * Hq)
        _scheduled.launch("attention_varlen_scheduled", grid, 128, *operands, o, lse, *options, **_config(q))
    return o, lse


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    q, k, v, cu_q, cu_k, *, max_q: int, max_k: int, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, Hq, D), k, v (Tk, Hkv, D), cu_q, cu_k (B + 1,) -> o (Tq, Hq, D), lse (Hq, Tq) float32.

    Declines float32. Source: [dao2023flash2].
    """
    Tq, Hq, D, _, Hkv, B = checked_sizes(q, k, v, cu_q, cu_k, max_q, max_k)
    tiles = sweep_of(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel():
        most = most_items(Tq, B, tiles.queries)
        items = torch.empty((most, 2), dtype=torch.int32, device=q.device)
        about = {"dtype": q.dtype, **tiles.definitions}
        _tensorcore.launch("attention_varlen_schedule", B + 1, 32, *_with_strides(cu_q), items, B, Tq, most, **about)
        options = (B, Tq, Hq, Hkv, D, scale_or_default(scale, D) * math.log2(math.e), causal)
        operands = (*_with_strides(q, k, v, cu_q, cu_k), items, o, lse, *options)
        grid = blocks(most * Hq)
        about["shared"] = tiles.shared
        _tensorcore.launch("attention_varlen_tensorcore", grid, tiles.threads, *operands, **about)
    return o, lse


def _with_strides(*tensors: torch.Tensor) -> tuple[torch.Tensor | int, ...]:
    """Each tensor, followed by its strides."""
    return tuple(argument for x in tensors for argument in (x, *x.stride()))


def _config(q: torch.Tensor) -> dict[str, Any]:
    """The launch's keywords: a tile of queries, one of keys or values, and one of scores in shared memory."""
    block_d = padded_dimension(q.shape[2])
    return {"dtype": q.dtype, "shared": 4 * ((_ROWS + 32) * (block_d + 4) + _ROWS * 33), "BLOCK_D": block_d}
