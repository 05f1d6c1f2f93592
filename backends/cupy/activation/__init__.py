"""y = act(x + bias), element by element; bias may be None.

uncoalesced: neighbouring threads have neighbouring rows, so that a warp touches 32 lines of memory at once [boehm2022]
naive: neighbouring threads have neighbouring columns [boehm2022]
vectorised: eight neighbours of 16 bits or four of 32 to a thread, in accesses of 16 bytes where all is aligned
            [xlite2025]
approximate: the same with the GPU's own tanh for every sigmoid, two instructions for about ten [cuda2025]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.pointwise import THREADS, blocks_for, in_lines
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def uncoalesced(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides. Source: [boehm2022]."""
    return _one_element_each("activation_uncoalesced", x, bias, activation)


@variant()
def naive(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides. Source: [boehm2022]."""
    return _one_element_each("activation_naive", x, bias, activation)


@variant()
def vectorised(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides. Source: [xlite2025]."""
    return _in_vectors(x, bias, activation, approximate=0)


@variant(compute="approximate", needs="sm_75")
def approximate(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides.

    Of gelu_tanh, silu, quick_gelu and sigmoid; the others are as in `vectorised`. Source: [cuda2025].
    """
    return _in_vectors(x, bias, activation, approximate=1)


def _one_element_each(kernel: str, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    rows, cols = shapes("rows cols, cols?", x=x, bias=bias)
    kind = number(activation)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        operands = (x, bias, y, *x.stride(), 0 if bias is None else bias.stride(0), rows, cols, kind)
        _naive.launch(kernel, blocks_for(y.numel()), THREADS, *operands, dtype=x.dtype)
    return y


def _in_vectors(x: torch.Tensor, bias: torch.Tensor | None, activation: str, approximate: int) -> torch.Tensor:
    rows, cols = shapes("rows cols, cols?", x=x, bias=bias)
    kind = number(activation)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        lines = in_lines(x, y)
        operands = (x, bias, y, *lines.strides[:2], 0 if bias is None else bias.stride(0))
        wide_bias = bias is not None and cols % (16 // x.element_size()) == 0 and in_lines(bias[None]).wide
        sizes = (lines.rows, lines.cols, cols, int(lines.wide), int(wide_bias), kind, approximate)
        _vectorised.launch("activation_vectorised", lines.blocks, THREADS, *operands, *sizes, dtype=x.dtype)
    return y
