"""naive, grouped, tuned: one program per tile; then the order of the tiles; then their shape."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import default_tile, options
from touchstone.backends.triton.matmul._grouped import grouped_kernel
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _naive_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    m = (tile // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tile % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    a_rows = a_ptr + m[:, None] * stride_am
    b_cols = b_ptr + n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a = tl.load(a_rows + k[None, :] * stride_ak, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_cols + k[:, None] * stride_bk, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    c = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c, mask=(m[:, None] < M) & (n[None, :] < N))


@variant()
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [tillet2019]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    grid = (ceil_div(M, 128) * ceil_div(N, 128),)
    _naive_kernel[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        *a.stride(),
        *b.stride(),
        PRECISION="ieee",
        BLOCK_M=128,
        BLOCK_N=128,
        BLOCK_K=32,
        num_warps=8,
        num_stages=3,
    )
    return c


@variant()
def grouped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [triton2021]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    grid = (ceil_div(M, 128) * ceil_div(N, 128),)
    grouped_kernel[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        *a.stride(),
        *b.stride(),
        PRECISION="ieee",
        GROUP_M=8,
        BLOCK_M=128,
        BLOCK_N=128,
        BLOCK_K=32,
        num_warps=8,
        num_stages=3,
    )
    return c


_SPACE = [
    options(*each)
    for each in [
        (16, 64, 128, 4, 4),
        (64, 64, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
        (256, 128, 64, 8, 3),
        (64, 64, 32, 4, 3),
        (128, 64, 16, 4, 4),
        (128, 128, 16, 8, 3),
        (128, 128, 32, 8, 2),
        (128, 256, 16, 8, 3),
    ]
]


@variant(space=_SPACE, spills=1792)  # on sm_80, where neighbours of an operand lie apart
def tuned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    config = pinned("matmul.tuned", a.dtype, (M, N, K), default_tile(a.dtype, M, N))
    grid = (ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"]),)
    grouped_kernel[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), PRECISION="ieee", **config)
    return c
