"""naive, coalesced: a thread for each element of c; then the order of the threads."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.gemm import ceil_div
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "naive.cu")


def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        grid = ceil_div(M, 32) * ceil_div(N, 8)
        _module.launch("matmul_naive", grid, (32, 8), a, b, c, M, N, K, *a.stride(), *b.stride(), dtype=a.dtype)
    return c


def coalesced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        grid = ceil_div(M, 8) * ceil_div(N, 32)
        _module.launch("matmul_coalesced", grid, (32, 8), a, b, c, M, N, K, *a.stride(), *b.stride(), dtype=a.dtype)
    return c
