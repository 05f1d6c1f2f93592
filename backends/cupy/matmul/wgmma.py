"""wgmma: tiles that the copy engine brings, multiplied straight from shared memory by warpgroups of Hopper."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.lib.gemm import SQUARE, STRIP, by_warpgroups, processors
from touchstone.backends.cupy.runtime.hopper import TensorMap, along_last
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "wgmma.cu")


@variant(needs="sm_90a", dtypes=HALF)
def wgmma(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); of `a` and of `b` either axis may be the contiguous one.

    Declines float32, and operands that the copy engine does not take (no axis of stride 1, the other's not a multiple
    of 16 bytes, a start that is not 16-byte aligned). Source: [colfax2024].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    if a.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    c = a.new_empty(M, N)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    left, a_along_k = along_last("a", a)
    right, b_along_k = along_last("b", b.t())
    tiles = by_warpgroups(M, N, processors(a.device))
    _module.launch(
        "matmul_wgmma",
        tiles.blocks,
        tiles.threads,
        TensorMap(left, SQUARE),
        TensorMap(right, SQUARE),
        TensorMap(c, STRIP) if N % 8 == 0 else None,
        c,
        M,
        N,
        K,
        dtype=a.dtype,
        shared=tiles.shared,
        arch="sm_90a",
        A_ALONG_K=a_along_k,
        B_ALONG_K=b_along_k,
        **tiles.definitions,
    )
    return c
