"""splitk: several blocks share a tile of c, each with its own part of K."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.gemm import by_lanes, ceil_div, processors
from touchstone.backends.cupy.runtime.module import Module

_module = Module(__file__, "splitk.cu")


def splitk(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. As [hoque2024], with partials for atomics."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_lanes(M, N)
        wanted = ceil_div(2 * processors(a.device), tiles.blocks)  # two blocks per multiprocessor
        chunk = max(ceil_div(ceil_div(K, wanted), 64) * 64, 256)  # less would not pay for storing and adding a partial
        splits = max(ceil_div(K, chunk), 1)
        partial = a.new_empty(splits, M, N, dtype=torch.float32)
        _module.launch(
            "matmul_splitk",
            tiles.blocks * splits,
            tiles.threads,
            a,
            b,
            partial,
            M,
            N,
            K,
            chunk,
            *a.stride(),
            *b.stride(),
            dtype=a.dtype,
            **tiles.definitions,
        )
        _module.launch(
            "matmul_add_partials",
            ceil_div(M * N, 256),
            256,
            partial,
            c,
            M * N,
            splits,
            dtype=a.dtype,
            **tiles.definitions,
        )
    return c
