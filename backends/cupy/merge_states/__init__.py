"""Attention over parts of the keys merged into attention over all of them: o = Σ exp(lse_p − lse)·o_p and lse.

naive: a thread for each element, which goes through the parts with a running maximum and sum [milakov2018]
warp: a warp for each row: its lanes share the parts' weights, then lie along D [dao2023decoding]
vectorised: 16 bytes of a row to a thread, where rows are whole vectors of them; the maximum comes first [xlite2025]
"""

import torch

from touchstone.backends.cupy.lib.norms import vector_width
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.merge_states import checked
from touchstone.backends.variants import variant

_module = Module(__file__, "merge.cu")


@variant()
def naive(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32. Source: [milakov2018]."""
    (parts, rows, dim), (merged, of_all) = checked(o, lse)
    if rows:
        operands = (o, lse, merged, of_all, *o.stride(), *lse.stride(), parts, rows, dim)
        grid = blocks(-(-rows * max(dim, 1) // 128))
        _module.launch("merge_states_naive", grid, 128, *operands, dtype=o.dtype)
    return merged, of_all


@variant()
def warp(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32. Source: [dao2023decoding]."""
    (parts, rows, dim), (merged, of_all) = checked(o, lse)
    if rows:
        operands = (o, lse, merged, of_all, *o.stride(), *lse.stride(), parts, dim)
        _module.launch("merge_states_warp", blocks(rows), 32, *operands, dtype=o.dtype)
    return merged, of_all


@variant()
def vectorised(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32.

    Rows that are not whole 16-byte vectors are read an element at a time. Source: [xlite2025].
    """
    (parts, rows, dim), (merged, of_all) = checked(o, lse)
    if rows:
        length = 16 // o.element_size()
        vectors = max(-(-dim // length), 1)
        lanes = min(32, 1 << (vectors - 1).bit_length())  # threads to a row
        wide = int(dim > 0 and vector_width(o, merged) > 1)
        operands = (o, lse, merged, of_all, *o.stride(), *lse.stride(), parts, rows, dim)
        grid, block = blocks(-(-rows // (256 // lanes))), (lanes, 256 // lanes)
        _module.launch("merge_states_vectorised", grid, block, *operands, dtype=o.dtype, WIDE=wide)
    return merged, of_all
