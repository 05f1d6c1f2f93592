"""splitk and splitk_pdl: several programs share a tile of C, each with its own part of K."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import processors
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.variants import variant


@prepared
@triton.jit(do_not_specialize=["chunk"])
def _splitk_kernel(
    a_ptr,
    b_ptr,
    partial_ptr,
    M,
    N,
    K,
    chunk,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * tiles_n
    tile = tl.program_id(0) % tiles
    split = tl.program_id(0) // tiles
    m = (tile // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tile % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    a_rows = a_ptr + m[:, None] * stride_am
    b_cols = b_ptr + n[None, :] * stride_bn
    first = split * chunk * BLOCK_K  # this split's part of K: `chunk` steps from here
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(first, min(first + chunk * BLOCK_K, K), BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a = tl.load(a_rows + k[None, :] * stride_ak, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_cols + k[:, None] * stride_bk, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()  # once every program is here, those that add begin, and wait
    partial_rows = partial_ptr + (split.to(tl.int64) * M + m[:, None]) * N
    tl.store(partial_rows + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


@prepared
@triton.jit(do_not_specialize=["splits"])
def add_partials_kernel(partial_ptr, c_ptr, size, splits, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()  # until the partials are there
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for _ in range(splits):  # a fixed order: the same bits in every run
        acc += tl.load(partial_ptr + i, mask=i < size, other=0.0)
        partial_ptr += size
    tl.store(c_ptr + i, acc.to(c_ptr.dtype.element_ty), mask=i < size)


@variant()
def splitk(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. As [hoque2024], with partials for atomics."""
    return _splitk(a, b, dependent=False)


@variant(needs="sm_90")
def splitk_pdl(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [cuda2025pdl]."""
    return _splitk(a, b, dependent=True)


def _splitk(a: torch.Tensor, b: torch.Tensor, dependent: bool) -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    block_m, warps = (16, 4) if M <= 16 else (64, 8)
    block_k = 32 if a.dtype is torch.float32 else 64
    tiles = ceil_div(M, block_m) * ceil_div(N, 64)
    steps = ceil_div(K, block_k)
    wanted = ceil_div(2 * processors(a.device), tiles)  # two programs per multiprocessor
    chunk = max(ceil_div(steps, wanted), 4)  # fewer steps would not pay for storing and adding a partial
    splits = max(ceil_div(steps, chunk), 1)
    partial = a.new_empty(splits, M, N, dtype=torch.float32)
    _splitk_kernel[(tiles * splits,)](
        a,
        b,
        partial,
        M,
        N,
        K,
        chunk,
        *a.stride(),
        *b.stride(),
        PRECISION="ieee",
        BLOCK_M=block_m,
        BLOCK_N=64,
        BLOCK_K=block_k,
        DEPENDENT=dependent,
        num_warps=warps,
        num_stages=4,
    )
    options = dict(BLOCK=1024, DEPENDENT=dependent, num_warps=4, launch_pdl=dependent)
    add_partials_kernel[(ceil_div(M * N, 1024),)](partial, c, M * N, splits, **options)
    return c
