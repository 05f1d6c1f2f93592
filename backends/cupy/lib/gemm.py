"""What the launchers of matrix products share: the tile of a block and the number of blocks."""

import math
from functools import lru_cache
from typing import NamedTuple

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.runtime.clusters import at_once
from touchstone.backends.cupy.runtime.hopper import TensorMap, along_last
from touchstone.backends.devices import multiprocessors
from touchstone.backends.signatures.matmul import along_lines, spans
from touchstone.backends.sizes import ceil_div

SQUARE, STRIP = (64, 64), (16, 64)  # what the copy engine moves for wgmma.cuh: of operands, and of results
_CPU_PROCESSORS = 4  # of the GPU that the emulator pretends: few, so that a split of K is seen and costs little


class Tiling(NamedTuple):
    """`blocks` of `threads` threads that cover c, their dynamic shared memory in bytes, and the kernel's
    definitions."""

    blocks: int
    threads: int | tuple[int, int]
    shared: int
    definitions: dict[str, int]


def blocks(M: int, N: int, tile: int) -> int:
    """Square tiles that cover (M, N)."""
    return ceil_div(M, tile) * ceil_div(N, tile)


def processors(device: torch.device) -> int:
    """Multiprocessors of `device`."""
    if device.type != "cuda":
        return _CPU_PROCESSORS
    return multiprocessors(device)


def by_threads(M: int, N: int) -> Tiling:
    """Square tiles, 8 by 8 results a thread, 4 by 4 where c is so narrow that most of a large tile is padding."""
    tile, results = (128, 8) if min(M, N) > 64 else (32, 4)
    return Tiling(blocks(M, N, tile), (tile // results) ** 2, 0, {"TILE": tile, "RESULTS": results})


def by_lanes(M: int, N: int) -> Tiling:
    """For warptile.cuh: 8 by 16 results a thread, as many as registers hold; 4 by 4 where c is narrow."""
    tile, rows, cols = (128, 8, 16) if min(M, N) > 64 else (32, 4, 4)
    return _by_lanes(blocks(M, N, tile), tile, rows, cols)


def by_lane_pairs(M: int, N: int) -> Tiling:
    """For warptile.cuh with two (M, N) products side by side."""
    tile, rows, cols = (128, 8, 16) if min(M, N) > 64 else (64, 8, 8)
    return _by_lanes(blocks(M, 2 * N, tile), tile, rows, cols)


def _by_lanes(blocks: int, tile: int, rows: int, cols: int) -> Tiling:
    definitions = {"TILE_M": tile, "TILE_N": tile, "ROWS": rows, "COLS": cols}
    return Tiling(blocks, tile // rows * (tile // cols), 0, definitions)


def by_warps(M: int, N: int, together: int = 1) -> Tiling:
    """For mma.cuh with `together` (M, N) products side by side: four warps, three stages of 64 deep tiles."""
    tile = 128 if min(M, N) > 64 else 32
    return _by_warps(blocks(M, together * N, tile), tile, tile, depth=64, stages=3)


def by_more_warps(M: int, N: int) -> Tiling:
    """For mma.cuh: eight warps, twice as many rows as columns, four stages of 32 deep tiles."""
    tile_m, tile_n = (256, 128) if min(M, N) > 64 else (128, 64)
    return _by_warps(ceil_div(M, tile_m) * ceil_div(N, tile_n), tile_m, tile_n, depth=32, stages=4)


def _by_warps(blocks: int, tile_m: int, tile_n: int, depth: int, stages: int) -> Tiling:
    definitions = {"TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": depth, "STAGES": stages}
    return Tiling(blocks, tile_m // (tile_n // 2) * 64, stages * (tile_m + tile_n) * depth * 2, definitions)


def by_warpgroups(M: int, N: int, processors: int, together: int = 1) -> Tiling:
    """For wgmma.cuh: the columns of a tile with which all rounds of tiles take the least time.

    `together` operands b of one shape share a tile's columns. Operands and c are 16-bit.
    """
    tiles = ((128, 256), (128, 192), (128, 128)) if together == 1 else ((128, 256), (128, 128))
    return _fastest(M, N, processors, tiles, together, (_LOADED, _LOADED))


_TILES = (128, 256), (128, 192), (192, 192), (128, 128)


def by_more_warpgroups(a: torch.Tensor, b: torch.Tensor) -> Tiling:
    """For wgmma.cuh: the tile, of 128 or 192 rows, with which the product of `a` and `b` takes the least time."""
    per_row, per_column = (_LOADED if along_lines(x) else _LOADED_ACROSS for x in (a, b))
    return _fastest(a.shape[0], b.shape[1], processors(a.device), _TILES, 1, (per_row, per_column))


# What the copy of a row or column of 64 elements takes, in products: where it is a line of the L2 cache, and where it
# lies across two (H200: 2.2 and 3.1 ns, 0.022 ns). A step of k takes the longer of both, and a little more.
_LOADED, _LOADED_ACROSS = 100, 143


@lru_cache(maxsize=4096)  # 10 us for four tiles
def _fastest(
    M: int, N: int, processors: int, tiles: tuple[tuple[int, int], ...], together: int, loaded: tuple[int, int]
) -> Tiling:
    cluster = _cluster(M)

    def clusters(tile: tuple[int, int]) -> int:
        return ceil_div(M, cluster * tile[0]) * ceil_div(N, tile[1] // together)

    def time(tile: tuple[int, int]) -> float:
        m, n = tile
        copies = loaded[0] * m + loaded[1] * n / cluster
        step = (max(m * n, copies) + copies / 6) * (1 if m == 128 else 1.04)
        return ceil_div(clusters(tile), processors // cluster) * step

    tile = min(tiles, key=time)
    return _by_warpgroups(min(clusters(tile), processors // cluster), *tile, cluster)


def mapped(
    a: torch.Tensor, b: torch.Tensor, names: tuple[str, str]
) -> tuple[tuple[TensorMap | None, TensorMap | None], dict[str, bool]]:
    """What wgmma.cuh takes of a (M, K) and b (K, N): their maps, None where K is 0, and which axis of each is the
    contiguous one. Raises Unsupported, with one of `names`, for what the copy engine does not take."""
    if not a.shape[1]:
        return (None, None), {"A_ALONG_K": True, "B_ALONG_K": True}
    left, a_along_k = along_last(names[0], a)
    right, b_along_k = along_last(names[1], b.t())
    return (TensorMap(left, SQUARE), TensorMap(right, SQUARE)), {"A_ALONG_K": a_along_k, "B_ALONG_K": b_along_k}


class Spans(NamedTuple):
    """For streamk.cu: tiles cut along k into equal spans for `clusters` clusters of blocks, whose unfinished sums take
    `held` numbers, and are added by a grid of `adding` blocks."""

    tiling: Tiling
    clusters: int
    held: int
    adding: tuple[int, int]


def by_spans(M: int, N: int, K: int, device: torch.device) -> Spans | None:
    """Tiles of 128 columns for wgmma.cuh, None where cutting them along k would not pay."""
    cluster, tile_n = _cluster(M), 128
    tiles = ceil_div(M, cluster * 128) * ceil_div(N, tile_n)
    clusters = spans(tiles, ceil_div(K, 64), processors(device) // cluster, 64, device)
    if not clusters:
        return None
    tiling, held = _by_warpgroups(clusters, 128, tile_n, cluster), 2 * clusters * cluster * 128 * tile_n
    return Spans(tiling, clusters, held, (tiles * cluster, 128 // 8))


def _cluster(M: int) -> int:
    """Blocks of a cluster, which share b: two where c has rows for both."""
    return 2 if M > 128 else 1


def by_parts(M: int, N: int, K: int, a_along_k: bool, device: torch.device) -> Tiling | None:
    """For clusterk.cu: tiles whose k the blocks of a cluster share, None where wgmma.cu takes less time.

    Up to 64 rows are the short side of a tile, of which two blocks run at once; beyond, rows are cut into the fewest
    tiles of a size that hardly reaches beyond them.
    """
    places = processors(device)
    if M <= 64:
        return _of_few_rows(M, N, K, a_along_k, places)
    if _MOST_PIECES * _ROWS[-1] < M:
        return None
    at_most = tuple(places if parts < 3 else parts * at_once(device, parts) for parts in _PARTS)
    worth = 0.91 if device.type == "cuda" else math.inf  # of the pretended GPU, so that small products are cut too
    return _cut(M, N, K, a_along_k, places, at_most, worth)


_PARTS, _MOST_PIECES = (1, 2, 3, 4), 3
# Rows of a in a tile: squares of the copy engine, and 16 or 32 rows besides where they are copied at once.
_ROWS = (80, 96, 128, 144, 160, 192, 208, 224, 256)


@lru_cache(maxsize=4096)
def _of_few_rows(M: int, N: int, K: int, a_along_k: bool, places: int) -> Tiling:
    rows = next(rows for rows in (16, 32, 64) if rows >= (M if a_along_k else 64))
    tiles, steps = ceil_div(N, 128), max(ceil_div(K, 64), 1)
    parts = next((parts for parts in (1, 2, 4) if tiles * parts >= 0.7 * places), 8)
    while parts > steps:
        parts //= 2
    return _by_parts(tiles, parts, rows, {16: 6, 32: 5, 64: 4}[rows], swapped=True)


@lru_cache(maxsize=4096)
def _cut(M: int, N: int, K: int, a_along_k: bool, places: int, at_most: tuple[int, ...], worth: float) -> Tiling | None:
    steps = max(ceil_div(K, 64), 1)
    choices = [(n, parts, False) for n, parts in ((64, 2), (64, 3), (128, 2)) if 112 < M <= 128]
    for pieces in range(1, _MOST_PIECES + 1):
        n = next((n for n in _ROWS if n >= ceil_div(M, pieces) and (a_along_k or n % 64 == 0)), None)
        choices += [(n, parts, True) for parts in _PARTS if n]

    def pieces_and_tiles(n: int, swapped: bool) -> tuple[int, int]:
        """Of a, each of which reads all of b; and of the product."""
        return (ceil_div(M, n), ceil_div(M, n) * ceil_div(N, 128)) if swapped else (1, ceil_div(N, n))

    def time(choice: tuple[int, int, bool]) -> float:
        # Microseconds of an H200, fitted to 110 products of 72 to 512 rows: of the choices that this takes for the
        # fastest 90 % are within 4 % of what is. With fewer blocks the memory is not busy.
        n, parts, swapped = choice
        pieces, tiles = pieces_and_tiles(n, swapped)
        if parts > steps or not 0.45 * places <= parts * tiles <= at_most[parts - 1]:
            return math.inf
        step = max(2.5 * n, 110 + 2 * n) / 1000 * (0.95 + 0.05 * pieces)
        return 7 + ceil_div(steps, parts) * step + parts * n / 200

    best = min(choices, key=time)
    if time(best) == math.inf or time(best) > worth * _whole(M, N, steps, places):
        return None
    n, parts, swapped = best
    stages = min(9, 7 * 256 // (128 + n))  # in 224 KB
    return _by_parts(pieces_and_tiles(n, swapped)[1], parts, n, stages, swapped)


def _whole(M: int, N: int, steps: int, places: int) -> float:
    """Microseconds of an H200 that wgmma.cu takes for the product."""
    tile = _fastest(M, N, places, _TILES, 1, (_LOADED, _LOADED)).definitions
    m, n, cluster = tile["TILE_M"], tile["TILE_N"], tile["CLUSTER"]
    rounds = ceil_div(ceil_div(M, cluster * m) * ceil_div(N, n), places // cluster)
    return 7 + rounds * steps * 2.7 * n * m / 128 / 1000


def _by_parts(tiles: int, parts: int, tile_n: int, stages: int, swapped: bool) -> Tiling:
    tile = {"TILE_M": 128, "TILE_N": tile_n, "STAGES": stages, "CLUSTER": 1, "GROUP": 8}
    shared = stages * ((128 + tile_n) * 64 * 2 + 2 * 8)
    return Tiling(tiles * parts, 384, shared, {**tile, "PARTS": parts, "SWAPPED": swapped})


def _by_warpgroups(clusters: int, tile_m: int, tile_n: int, cluster: int) -> Tiling:
    stages, strips = 6 if tile_n == 128 else 4, 2 if tile_m == 128 else 1
    elements = stages * (tile_m + tile_n) * 64 + strips * tile_m * 64  # the ring, and strips for each warp's 16 rows
    definitions = {"TILE_M": tile_m, "TILE_N": tile_n, "STAGES": stages, "CLUSTER": cluster, "GROUP": 8}
    return Tiling(clusters * cluster, 128 + 2 * tile_m, elements * 2 + stages * 2 * 8, definitions)


def along_k(name: str, x: torch.Tensor, k_axis: int) -> bool:
    """Whether k is the axis of stride 1 of the matrix `x`, else the other one is.

    Raises Unsupported unless that axis is cut into whole pieces of 16 bytes that begin at multiples of 16 bytes.
    """
    piece = 16 // x.element_size()
    for axis in (k_axis, 1 - k_axis):
        whole = x.shape[axis] % piece == 0 and (x.stride(1 - axis) % piece == 0 or x.shape[1 - axis] == 1)
        if x.stride(axis) == 1 and whole and x.data_ptr() % 16 == 0:
            return axis == k_axis
    raise Unsupported(
        f"{name}: shape {tuple(x.shape)}, strides {x.stride()}, starts {x.data_ptr() % 16} bytes off 16; needs "
        f"an axis of "
        "stride 1 in whole, aligned pieces of 16 bytes"
    )


def sixteen_bits(dtype: torch.dtype) -> None:
    """Raise Unsupported for float32."""
    if dtype is torch.float32:
        raise Unsupported("float32; mma.sync multiplies 16-bit operands, or float32 rounded to tf32")
