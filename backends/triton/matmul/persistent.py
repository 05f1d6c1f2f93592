"""persistent: as many programs as multiprocessors, each looping over tiles."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import default_tile, options, persistent_programs
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _persistent_kernel(
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
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)  # of one tile
    mine = tl.cdiv(tiles_m * tiles_n - tl.program_id(0), tl.num_programs(0))
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    # one loop over the steps of all tiles, so that a tile's first loads are in flight while the tile before is stored
    for step in range(mine * steps):
        tile = tl.program_id(0) + step // steps * tl.num_programs(0)
        first = tile // (GROUP_M * tiles_n) * GROUP_M
        height = min(tiles_m - first, GROUP_M)
        within = tile % (GROUP_M * tiles_n)
        m = (first + within % height).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        n = (within // height).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = (step % steps * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64)
        a_rows = a_ptr + m[:, None] * stride_am
        b_cols = b_ptr + n[None, :] * stride_bn
        a = tl.load(a_rows + k[None, :] * stride_ak, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_cols + k[:, None] * stride_bk, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if step % steps == steps - 1:
            c = acc.to(c_ptr.dtype.element_ty)
            tl.store(c_ptr + m[:, None] * N + n[None, :], c, mask=(m[:, None] < M) & (n[None, :] < N))
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)


_SPACE = [
    options(*each)
    for each in [
        (64, 64, 64, 4, 4),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
        (128, 256, 64, 8, 4),
        (256, 128, 64, 8, 3),
        (128, 128, 16, 8, 3),
        (128, 64, 16, 4, 4),
    ]
]


@variant(space=_SPACE)
def persistent(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [triton2024]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    if K == 0:
        return c.zero_()
    config = pinned("matmul.persistent", a.dtype, (M, N, K), default_tile(a.dtype, M, N))
    tiles = ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"])
    grid = (min(persistent_programs(a.device, config["num_warps"]), tiles),)
    _persistent_kernel[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), PRECISION="ieee", **config)
    return c
