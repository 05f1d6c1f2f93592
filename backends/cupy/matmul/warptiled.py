"""warptiled: the tile of a block is cut into tiles of warps."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.gemm import by_lanes
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "warptiled.cu")


def warptiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides, an axis of stride 1 on 16 bytes fastest [boehm2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_lanes(M, N)
        _module.launch(
            "matmul_warptiled",
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
