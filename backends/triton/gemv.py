"""Matrix-vector product: y = a·x.

naive: a program to some rows, over whose columns it walks in tiles; its rows are summed last [tillet2019]
splitk: several programs share a group of rows, and another launch adds their sums: few rows fill the GPU too
  [hoque2024]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.rows import grid_programs
from touchstone.backends.variants import variant


@triton.jit
def _row_sums(
    a_ptr, x_ptr, row, first, last, M, stride_am, stride_ak, stride_x, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr
):
    """The products of the columns from `first` to `last`, of BLOCK_M rows, in float32."""
    acc = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for start in range(first, last, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K).to(tl.int64)
        inside = k < last
        a = tl.load(
            a_ptr + row[:, None] * stride_am + k[None, :] * stride_ak,
            mask=(row[:, None] < M) & inside[None, :],
            other=0.0,
        )
        x = tl.load(x_ptr + k * stride_x, mask=inside, other=0.0)
        acc += a.to(tl.float32) * x.to(tl.float32)[None, :]
    return tl.sum(acc, axis=1)


@triton.jit
def _naive_kernel(
    a_ptr, x_ptr, y_ptr, M, K, stride_am, stride_ak, stride_x, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    y = _row_sums(a_ptr, x_ptr, row, 0, K, M, stride_am, stride_ak, stride_x, BLOCK_M, BLOCK_K)
    tl.store(y_ptr + row, y, mask=row < M)


@variant()
def naive(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,); any sizes and strides. Source: [tillet2019]."""
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        grid = (ceil_div(M, 4),)
        _naive_kernel[grid](a, x, y, M, K, *a.stride(), *x.stride(), BLOCK_M=4, BLOCK_K=512, num_warps=4)
    return y


@triton.jit(do_not_specialize=["each"])
def _splitk_kernel(
    a_ptr, x_ptr, partial_ptr, M, K, each, stride_am, stride_ak, stride_x, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    # In whole tiles: that `first` is a multiple of one lets Triton load 16 bytes at once.
    first = tl.program_id(1).to(tl.int64) * each * BLOCK_K
    last = tl.minimum(first + each * BLOCK_K, K)
    y = _row_sums(a_ptr, x_ptr, row, first, last, M, stride_am, stride_ak, stride_x, BLOCK_M, BLOCK_K)
    tl.store(partial_ptr + tl.program_id(1).to(tl.int64) * M + row, y, mask=row < M)


@triton.jit(do_not_specialize=["splits"])
def _finish_kernel(partial_ptr, y_ptr, M, splits, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for _ in range(splits):  # a fixed order: the same bits in every run
        acc += tl.load(partial_ptr + row, mask=row < M, other=0.0)
        partial_ptr += M
    tl.store(y_ptr + row, acc, mask=row < M)


@variant()
def splitk(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,); any sizes and strides. Source: [hoque2024]."""
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        groups = ceil_div(M, 4)
        tiles = max(ceil_div(K, 512), 1)
        each = ceil_div(tiles, max(1, min(tiles, grid_programs(a, 8) // groups, 65535)))  # tiles of a program
        splits = ceil_div(tiles, each)
        partial = a.new_empty((splits, M), dtype=torch.float32)
        strides = (*a.stride(), *x.stride())
        _splitk_kernel[(groups, splits)](a, x, partial, M, K, each, *strides, BLOCK_M=4, BLOCK_K=512, num_warps=4)
        _finish_kernel[(ceil_div(M, 128),)](partial, y, M, splits, BLOCK=128, num_warps=4)
    return y
