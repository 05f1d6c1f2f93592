"""tensorcore: 16-bit operands on the tensor cores, through a pipeline of asynchronous copies."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.gemm import by_warps, sixteen_bits
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "tensorcore.cu")


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides, an axis of stride 1 on 16 bytes fastest.

    Declines float32, which these instructions do not take. Source: [kerr2020].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_warps(M, N)
        _module.launch(
            "matmul_tensorcore",
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
            **tiles.definitions,
        )
    return c
