"""tiled2d, vectorised, doublebuffered: a thread keeps a square of c in registers; then how operands reach it."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.gemm import by_threads
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "registers.cu")


def tiled2d(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [volkov2010]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_threads(M, N)
        _module.launch(
            "matmul_tiled2d",
            tiles.blocks,
            tiles.threads,
            a,
            b,
            c,
            M,
            N,
            K,
            *a.stride(),
            *b.stride(),
            dtype=a.dtype,
            **tiles.definitions,
        )
    return c


def vectorised(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides, row-major ones on 16 bytes fastest. Source: [boehm2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_threads(M, N)
        _module.launch(
            "matmul_vectorised",
            tiles.blocks,
            tiles.threads,
            a,
            b,
            c,
            M,
            N,
            K,
            *a.stride(),
            *b.stride(),
            dtype=a.dtype,
            **tiles.definitions,
        )
    return c


def doublebuffered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides, row-major ones on 16 bytes fastest. Source: [boehm2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_threads(M, N)
        _module.launch(
            "matmul_doublebuffered",
            tiles.blocks,
            tiles.threads,
            a,
            b,
            c,
            M,
            N,
            K,
            *a.stride(),
            *b.stride(),
            dtype=a.dtype,
            **tiles.definitions,
        )
    return c
