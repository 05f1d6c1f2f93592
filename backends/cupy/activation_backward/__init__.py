"""Gradients of y = act(x + bias): dx = dy·act'(x + bias), dbias = its sum over rows.

naive: dx by one thread per element, dbias by one thread per column, which computes its column again [hendrycks2016]
partials: one pass for both: a block of 32 columns sums some rows of them, one part each, and another launch adds the
          parts [hsu2024]
vectorised: a lane has 16 bytes of a row, in one access where all rows are aligned, and the parts take rows in turns, so
            that blocks at work together read what lies together [xlite2025]
"""

import torch

from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.norms import resident, vector_width
from touchstone.backends.cupy.lib.pointwise import THREADS, blocks_for
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.activation_backward import Gradients, checked_outputs, parts_of
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_partials = Module(__file__, "partials.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def naive(x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu") -> Gradients:
    """x, dy (rows, cols), bias (cols,) or None -> dx (rows, cols), dbias (cols,) or None. Any sizes and strides.

    Source: [hendrycks2016].
    """
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        operands = (x, bias, dy, *x.stride(), 0 if bias is None else bias.stride(0), *dy.stride())
        sizes = (*x.shape, number(activation))
        blocks = blocks_for(dx.numel())
        _naive.launch("activation_backward_naive", blocks, THREADS, *operands, dx, *sizes, dtype=x.dtype)
        if dbias is not None:
            blocks = blocks_for(x.shape[1])
            _naive.launch("activation_backward_columns", blocks, THREADS, *operands, dbias, *sizes, dtype=x.dtype)
    return dx, dbias


@variant()
def partials(x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu") -> Gradients:
    """x, dy (rows, cols), bias (cols,) or None -> dx (rows, cols), dbias (cols,) or None. Any sizes and strides.

    Source: [hsu2024].
    """
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        rows, cols = x.shape
        parts, tiles = parts_of(rows), -(-cols // 32)
        partial = torch.empty((parts, cols), dtype=torch.float32, device=x.device)
        operands = (x, bias, dy, *x.stride(), 0 if bias is None else bias.stride(0), *dy.stride(), dx, partial)
        sizes = (rows, cols, parts, number(activation))
        _partials.launch("activation_backward_partials", parts * tiles, (32, 8), *operands, *sizes, dtype=x.dtype)
        if dbias is not None:
            sums = (partial, dbias, cols, parts)
            _partials.launch("activation_backward_sums", tiles, (32, 8), *sums, dtype=x.dtype)
    return dx, dbias


@variant()
def vectorised(x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu") -> Gradients:
    """x, dy (rows, cols), bias (cols,) or None -> dx (rows, cols), dbias (cols,) or None. Any sizes and strides.

    Source: [xlite2025].
    """
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        rows, cols = x.shape
        length = 16 // x.element_size()
        tiles = -(-cols // (32 * length))
        parts = parts_of(rows, max(1, resident(x, 5) // tiles), least=16)  # five blocks fit at once
        partial = torch.empty((parts, cols), dtype=torch.float32, device=x.device)
        operands = (x, bias, dy, *x.stride(), 0 if bias is None else bias.stride(0), *dy.stride(), dx, partial)
        wide = int(vector_width(x, dy, dx) > 1 and cols % length == 0)
        sizes = (rows, cols, parts, number(activation))
        kernel, grid = "activation_backward_vectorised", parts * tiles
        _vectorised.launch(kernel, grid, (32, 8), *operands, *sizes, dtype=x.dtype, WIDE=wide)
        if dbias is not None:
            sums = (partial, dbias, cols, parts)
            _partials.launch("activation_backward_sums", -(-cols // 32), (32, 8), *sums, dtype=x.dtype)
    return dx, dbias
