"""tiled: one thread per element of c, a block's operands through shared memory."""

import torch
from numba import cuda, float32, uintp

from touchstone.backends import shapes
from touchstone.backends.numba.lib.gemm import tile_grid
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant

_TILE = 16


@cuda.jit
def _tiled(a, b, c, across):
    a_tile = cuda.shared.array((_TILE, _TILE), float32)
    b_tile = cuda.shared.array((_TILE, _TILE), float32)
    x, y = cuda.threadIdx.x & 15, cuda.threadIdx.y & 15
    row = cuda.blockIdx.x // across * _TILE + y
    col = cuda.blockIdx.x % across * _TILE + x
    total = float32(0)
    start = 0
    while start < a.shape[1]:
        a_k, b_k = start + x, start + y
        inside = row < c.shape[0] and a_k < a.shape[1]
        a_tile[y, x] = float32(a[uintp(row), uintp(a_k)]) if inside else float32(0)
        inside = b_k < b.shape[0] and col < c.shape[1]
        b_tile[y, x] = float32(b[uintp(b_k), uintp(col)]) if inside else float32(0)
        cuda.syncthreads()
        for k in range(_TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()  # before the next tiles overwrite these
        start += _TILE
    if row < c.shape[0] and col < c.shape[1]:
        c[uintp(row), uintp(col)] = total


@variant()
def tiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides. Source: [boehm2022]."""
    M, _, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        launch(_tiled, tile_grid(M, N, _TILE, _TILE), (_TILE, _TILE), a, b, c, -(-N // _TILE))
    return c
