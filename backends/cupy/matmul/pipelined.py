"""pipelined: tensorcore with larger tiles, and a branch-free main loop in which nothing interrupts the MMAs."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.gemm import along_k, by_more_warps, sixteen_bits
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "pipelined.cu")


@variant(needs="sm_80", dtypes=HALF)
def pipelined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); of `a` and of `b` either axis may be the contiguous one.

    Declines float32, and operands that are not in whole, aligned pieces of 16 bytes. Source: [kerr2020].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    a_along_k, b_along_k = along_k("a", a, 1), along_k("b", b, 0)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_more_warps(M, N)
        _module.launch(
            "matmul_pipelined",
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
            shared=tiles.shared,
            LEFT_ALONG_K=a_along_k,
            RIGHT_ALONG_K=b_along_k,
            **tiles.definitions,
        )
    return c
