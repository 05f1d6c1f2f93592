"""Softmax and its log-sum-exp, from one streaming pass for (m, l), the running max and the sum of exp(x - m).

online: one thread per row rescales l whenever m grows; a second pass writes y [milakov2018]
warp: one warp per row; every lane has its own (m, l), and shuffles merge the pairs at the end [milakov2018]
block: one block per row; the warps' pairs meet in shared memory, so a long row has many loads under way [milakov2018]
vectorised: 16-byte loads, and the row stays in registers between the passes: one read, one write [oneflow2021]
"""

import torch

from touchstone.backends.cupy.lib.norms import threads
from touchstone.backends.cupy.lib.rows import blocks, in_registers, warp_grid
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.online_softmax import empty_outputs
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def online(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [milakov2018]."""
    rows, cols, y, lse = empty_outputs(x)
    if y.numel():
        _scalar.launch("online_softmax_online", -(-rows // 128), 128, x, y, lse, rows, cols, *x.stride(), dtype=x.dtype)
    return y, lse


@variant()
def warp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [milakov2018]."""
    rows, cols, y, lse = empty_outputs(x)
    if y.numel():
        _scalar.launch("online_softmax_warp", *warp_grid(rows), x, y, lse, rows, cols, *x.stride(), dtype=x.dtype)
    return y, lse


@variant()
def block(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [milakov2018]."""
    rows, cols, y, lse = empty_outputs(x)
    if y.numel():
        size = threads(cols, each=2)
        _scalar.launch("online_softmax_block", blocks(rows), size, x, y, lse, cols, *x.stride(), dtype=x.dtype)
    return y, lse


@variant()
def vectorised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log.

    Declines more than 32768 columns, the registers of one block, and more than 16384 where rows neither begin at
    multiples of 16 bytes nor follow one another; those move an element at a time. Source: [oneflow2021].
    """
    rows, cols, y, lse = empty_outputs(x)
    extent, definitions = in_registers(rows, cols, x, y)
    if y.numel():
        _vectorised.launch(
            "online_softmax_vectorised", *extent, x, y, lse, rows, cols, *x.stride(), dtype=x.dtype, **definitions
        )
    return y, lse
