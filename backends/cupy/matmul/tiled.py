"""tiled, tiled1d: operands pass through shared memory; then a thread computes several elements of c."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.gemm import blocks
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "tiled.cu")


def tiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        grid = blocks(M, N, 32)
        _module.launch("matmul_tiled", grid, (32, 32), a, b, c, M, N, K, *a.stride(), *b.stride(), dtype=a.dtype)
    return c


def tiled1d(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        grid = blocks(M, N, 64)
        _module.launch("matmul_tiled1d", grid, 512, a, b, c, M, N, K, *a.stride(), *b.stride(), dtype=a.dtype)
    return c
