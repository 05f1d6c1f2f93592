"""wgmma: tiles that the copy engine brings, multiplied straight from shared memory by warpgroups of Hopper."""

import torch

from backends import Unsupported, shapes
from backends.cupy.gemm import ceil_div, processors
from backends.cupy.hopper import TensorMap, along_last
from backends.cupy.module import Module

_module = Module(__file__, "wgmma.cu")
_TILE_M, _DEPTH, _SQUARE, _STRIP = 128, 64, (64, 64), (16, 64)


def wgmma(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); of `a` and of `b` either axis may be the contiguous one.

    Declines float32, and operands that the copy engine does not take (no axis of stride 1, the other's not a multiple
    of 16 bytes, a start that is not 16-byte aligned). Source: S2-73.
    """
    M, _, N = shapes("M K, K N", a=a, b=b)
    wide = ceil_div(M, _TILE_M) * ceil_div(N, 256) >= processors(a.device) // 2
    return _multiply(a, b, **(dict(tile_n=256, stages=4) if wide else dict(tile_n=128, stages=6)))


def _multiply(
    a: torch.Tensor, b: torch.Tensor, tile_n: int, stages: int, cluster: int = 2, group: int = 8
) -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    if a.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    c = a.new_empty(M, N)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    left, a_along_k = along_last("a", a)
    right, b_along_k = along_last("b", b.t())
    clusters = ceil_div(M, cluster * _TILE_M) * ceil_div(N, tile_n)
    strips = 8 * 2 * _STRIP[0] * _STRIP[1]  # of eight warps, two each
    shared = (stages * (_TILE_M + tile_n) * _DEPTH + strips) * a.element_size() + 2 * stages * 8
    _module.launch(
        "matmul_wgmma", min(clusters, processors(a.device) // cluster) * cluster, 384,
        TensorMap(left, _SQUARE), TensorMap(right, _SQUARE), TensorMap(c, _STRIP) if N % 8 == 0 else None, c, M, N, K,
        dtype=a.dtype, shared=shared, arch="sm_90a", TILE_N=tile_n, STAGES=stages, CLUSTER=cluster, GROUP=group,
        A_ALONG_K=a_along_k, B_ALONG_K=b_along_k,
    )  # fmt: skip
    return c


wgmma.needs = "sm_90a"
wgmma.dtypes = ("float16", "bfloat16")
