"""naive, coalesced: one thread per element of c; then the order of the threads."""

import torch
from numba import cuda, float32, uintp

from touchstone.backends import shapes
from touchstone.backends.numba.lib.gemm import tile_grid
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant


@cuda.jit
def _naive(a, b, c, across):
    row = cuda.blockIdx.x // across * 32 + cuda.threadIdx.x
    col = cuda.blockIdx.x % across * 8 + cuda.threadIdx.y
    if row < c.shape[0] and col < c.shape[1]:
        total = float32(0)
        k = 0
        while k < a.shape[1]:
            total += float32(a[uintp(row), uintp(k)]) * float32(b[uintp(k), uintp(col)])
            k += 1
        c[uintp(row), uintp(col)] = total


@variant()
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides. Source: [boehm2022]."""
    M, _, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        launch(_naive, tile_grid(M, N, 32, 8), (32, 8), a, b, c, -(-N // 8))
    return c


@cuda.jit
def _coalesced(a, b, c, across):
    row = cuda.blockIdx.x // across * 8 + cuda.threadIdx.y
    col = cuda.blockIdx.x % across * 32 + cuda.threadIdx.x
    if row < c.shape[0] and col < c.shape[1]:
        total = float32(0)
        k = 0
        while k < a.shape[1]:
            total += float32(a[uintp(row), uintp(k)]) * float32(b[uintp(k), uintp(col)])
            k += 1
        c[uintp(row), uintp(col)] = total


@variant()
def coalesced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides. Source: [boehm2022]."""
    M, _, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        launch(_coalesced, tile_grid(M, N, 8, 32), (32, 8), a, b, c, -(-N // 32))
    return c
