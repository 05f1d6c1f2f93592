"""tf32: float32 operands on the tensor cores. 16-bit operands lose nothing, and run faster in `tensorcore`."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.gemm import by_threads
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import variant

_module = Module(__file__, "tf32.cu")


@variant(needs="sm_80", compute="tf32")
def tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. float32 operands keep 10 bits of mantissa [xlite2025]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_threads(M, N)
        _module.launch(
            "matmul_tf32",
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
