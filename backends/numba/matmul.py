"""matmul(a, b): (M, K) times (K, N), float32 accumulation, the result in the input dtype.

naive: a thread an element of c, a warp down a column of c: neighbouring threads read rows of a far apart (S3-01, B-01)
coalesced: the same with a warp along a row, so neighbours share a's element and read neighbours of b (S3-02, B-02)
tiled: a block's operands pass through shared memory, read from global memory once for 16 threads each (S3-03, B-03)
"""

import torch
from numba import cuda, float32

from backends import Unsupported, shapes
from backends.numba.launching import launch

_TILE = 16
_GRID_LIMIT = 65535  # of the second axis


def _output(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    rows, _, cols = shapes("M K, K N", a=a, b=b)
    return torch.empty((rows, cols), dtype=a.dtype, device=a.device), rows, cols


def _tiles(extent: int, tile: int, what: str) -> int:
    """How many tiles cover `extent`; declines more than the second axis of a grid has blocks."""
    if -(-extent // tile) > _GRID_LIMIT:
        raise Unsupported(f"{extent} {what}; a grid holds {_GRID_LIMIT * tile} along its second axis")
    return -(-extent // tile)


@cuda.jit
def _naive(a, b, c):
    row, col = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += float32(a[row, k]) * float32(b[k, col])
        c[row, col] = total


def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N). Declines N above 524280. Source: S3-01, B-01."""
    c, rows, cols = _output(a, b)
    if c.numel():
        launch(_naive, (-(-rows // 32), _tiles(cols, 8, "columns")), (32, 8), a, b, c)
    return c


@cuda.jit
def _coalesced(a, b, c):
    col, row = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += float32(a[row, k]) * float32(b[k, col])
        c[row, col] = total


def coalesced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N). Declines M above 524280. Source: S3-02, B-02."""
    c, rows, cols = _output(a, b)
    if c.numel():
        launch(_coalesced, (-(-cols // 32), _tiles(rows, 8, "rows")), (32, 8), a, b, c)
    return c


@cuda.jit
def _tiled(a, b, c, across):
    a_tile = cuda.shared.array((_TILE, _TILE), float32)
    b_tile = cuda.shared.array((_TILE, _TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    col = cuda.blockIdx.x % across * _TILE + x
    row = cuda.blockIdx.x // across * _TILE + y
    total = float32(0)
    for start in range(0, a.shape[1], _TILE):
        a_tile[y, x] = float32(a[row, start + x]) if row < c.shape[0] and start + x < a.shape[1] else float32(0)
        b_tile[y, x] = float32(b[start + y, col]) if start + y < b.shape[0] and col < c.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(_TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()  # before the next tiles overwrite these
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total


def tiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes. Source: S3-03, B-03."""
    c, rows, cols = _output(a, b)
    if c.numel():
        across = -(-cols // _TILE)
        launch(_tiled, across * -(-rows // _TILE), (_TILE, _TILE), a, b, c, across)
    return c
