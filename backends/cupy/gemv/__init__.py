"""Matrix-vector product: y = a·x.

warp: a warp to a row, whose lanes add their products by shuffles [liu2021]
vectorised: a lane loads 16 bytes of a row and of x at a time [liu2021]
tworows: half a warp to a row of up to 16 columns, which would leave the other half idle [liu2021]
splitk: several blocks share a row, and another launch adds their sums: few rows fill the GPU too [hoque2024]
"""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.lib.norms import resident, threads, vector_width
from touchstone.backends.cupy.lib.rows import warp_grid
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, Module
from touchstone.backends.variants import variant

_module = Module(__file__, "gemv.cu")


@variant()
def warp(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,); any sizes and strides. Source: [liu2021]."""
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        _module.launch("gemv_warp", *warp_grid(M), a, x, y, M, K, *a.stride(), *x.stride(), dtype=a.dtype)
    return y


@variant()
def vectorised(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,); any sizes and strides, but only rows on 16 bytes load as vectors [liu2021]."""
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        whole = K - K % (16 // a.element_size())
        length = vector_width(a[:, :whole], x[:whole])
        operands = (a, x, y, M, K, *a.stride(), *x.stride())
        _module.launch("gemv_vectorised", *warp_grid(M), *operands, dtype=a.dtype, VECTOR=length)
    return y


@variant()
def tworows(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,). Declines more than 16 columns, half a warp's lanes. Source: [liu2021]."""
    M, K = shapes("M K, K", a=a, x=x)
    if K > 16:
        raise Unsupported(f"{K} columns; half a warp has 16 lanes")
    y = a.new_empty(M)
    if M:
        operands = (a, x, y, M, K, *a.stride(), *x.stride())
        _module.launch("gemv_tworows", -(-M // 8), (32, 4), *operands, dtype=a.dtype)
    return y


@variant()
def splitk(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,). Declines more than 2^31 - 1 rows, a grid's blocks. Source: [hoque2024]."""
    M, K = shapes("M K, K", a=a, x=x)
    if GRID_LIMIT[0] < M:
        raise Unsupported(f"{M} rows; a grid has {GRID_LIMIT[0]} blocks along x")
    y = a.new_empty(M)
    if M:
        # As many splits as fill the device, each of 1024 columns or more; few in the emulator.
        splits = max(1, min(-(-K // 1024), resident(a, 8) // M, GRID_LIMIT[1]))
        partials = a.new_empty((splits, M), dtype=torch.float32)
        operands = (a, x, partials, M, K, *a.stride(), *x.stride())
        _module.launch("gemv_splitk", (M, splits), threads(max(-(-K // splits), 1)), *operands, dtype=a.dtype)
        _module.launch("gemv_finish", -(-M // 128), 128, partials, y, M, splits, dtype=a.dtype)
    return y
