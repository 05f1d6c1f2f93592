"""What the launchers of row-wise kernels share: grids and blocks for rows, by the way a row is held."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.lib.norms import resident, threads, vector_width
from touchstone.backends.cupy.runtime.clusters import at_once
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, shared_limit

_NARROW = 512  # columns of a row that may as well move an element at a time
_MOST = 8  # vectors of 16 bytes of a thread where rows wait in shared memory
_STATIC = 4096 + 64  # bytes of shared memory at most for what the warps of a row tell one another
WARP_COLS = 1024  # what the lanes of one warp hold, 32 columns each: `held` in the kernels


def at_most(cols: int, limit: int, what: str) -> None:
    """Decline more than `limit` columns, what one `what` holds."""
    if cols > limit:
        raise Unsupported(f"{cols} columns; one {what} holds {limit}")


def blocks(rows: int) -> int:
    """A grid of one block per row; declines more rows than a grid has blocks."""
    if rows > GRID_LIMIT[0]:
        raise Unsupported(f"{rows} rows; a grid has {GRID_LIMIT[0]} blocks")
    return rows


def warp_grid(rows: int) -> tuple[int, tuple[int, int]]:
    """Grid and block of one warp per row, four rows per block."""
    return -(-rows // 4), (32, 4)


def in_registers(
    rows: int, cols: int, *operands: torch.Tensor | None, vectors: int = 4, across: int = 1024
) -> tuple[tuple[int, tuple[int, int]], dict[str, int]]:
    """Grid and block, and the definitions, of a kernel that holds a row in the registers of its threads.

    A thread holds up to `vectors` accesses of 16 bytes, more only where `across` threads would not do: the fewer
    registers it takes, the more rows are on their way at a time. Rows that begin anywhere move in the same accesses
    (SHIFTED) as long as all matrices do so alike; else an element at a time. Declines more than 32768 columns, or 16384
    of these.
    """
    length = vector_width(*operands)
    shifted = length == 1 and cols > _NARROW and _shifted(operands)
    if shifted:
        length = 16 // next(x.element_size() for x in operands if x is not None)
    return _in_registers(rows, cols, length, shifted, vectors, across)


@lru_cache(maxsize=4096)
def _in_registers(
    rows: int, cols: int, length: int, shifted: bool, vectors: int, across: int
) -> tuple[tuple[int, tuple[int, int]], dict[str, int]]:
    extent = cols + length - 1 if shifted else cols
    if extent > (limit := 32768 if length > 1 else 16384):
        raise Unsupported(f"{cols} columns; one block holds {limit} in accesses of {length} elements")
    most = vectors * length if length > 1 else 16
    columns = min(most, next((held for held in (8, 16) if length > 1 and 32 * held >= extent), most))
    if columns * across < extent:
        columns *= 2
    while columns * 1024 < extent:
        columns *= 2
    size = threads(extent, columns, 1024)
    down = 4 if size == 32 else 1
    return (blocks(-(-rows // down)), (size, down)), {"COLUMNS": columns, "VECTOR": length, "SHIFTED": int(shifted)}


class Grid(NamedTuple):
    """A grid of `blocks` of `threads` threads, and the other options of their launch."""

    blocks: int
    threads: int | tuple[int, int]
    options: dict[str, Any]


def staying(rows: int, cols: int, *operands: torch.Tensor | None) -> Grid:
    """For staying_rows.cuh: a multiprocessor for each block, and a block for each row.

    Declines more columns than it holds: 65536 of 16 bits, 32768 of 32.
    """
    x = next(x for x in operands if x is not None)
    aligned = int(vector_width(*operands) > 1)
    return _staying(min(rows, resident(x, 1)), cols, 16 // x.element_size(), aligned, shared_limit(x.device))


@lru_cache(maxsize=4096)
def _staying(blocks: int, cols: int, lanes: int, aligned: int, limit: int) -> Grid:
    at_most(cols, 1024 * _MOST * lanes, "block")
    vectors = max(-(-cols // (1024 * lanes)), 1)
    size = threads(max(cols, 1), vectors * lanes, 1024)
    line = vectors * size * 16  # bytes of a row
    stages = max(1, min(4, (limit - 1024 - _STATIC) // line))
    definitions = {"VECTORS": vectors, "STAGES": stages, "CLUSTER": 1, "ALIGNED": aligned}
    return Grid(blocks, size, {"shared": stages * line, **definitions})


def sharing(rows: int, cols: int, *operands: torch.Tensor | None) -> Grid:
    """For shared_rows.cuh: a cluster of two to eight blocks for each row, several of them on a multiprocessor.

    Declines more columns than they hold: 524288 of 16 bits, 262144 of 32.
    """
    x = next(x for x in operands if x is not None)
    aligned = vector_width(*operands) > 1
    shifted = not aligned and cols > _NARROW and _shifted(operands)
    return _sharing(rows, cols, 16 // x.element_size(), int(aligned or shifted), int(shifted), shared_limit(x.device))


@lru_cache(maxsize=4096)
def _sharing(rows: int, cols: int, lanes: int, aligned: int, shifted: int, limit: int) -> Grid:
    if shifted:
        cols += lanes - 1  # those of the first vector that are before the row
    cluster = 2
    # 256 threads with 32 KB: more have to wait longer for one another, and fewer for the other blocks.
    while cluster < 8 and cols > cluster * 256 * _MOST * lanes:
        cluster *= 2
    at_most(cols, cluster * 1024 * _MOST * lanes, f"cluster of {cluster} blocks")
    part = max(-(-cols // cluster), 1)
    size = threads(part, _MOST * lanes, 1024)
    vectors = -(-part // (size * lanes))
    line = vectors * size * 16  # bytes of a row that a block holds
    beside = min(32, 2048 // size, (limit + 1024) // (line + _STATIC + 1024))
    definitions = {"VECTORS": vectors, "CLUSTER": cluster, "ALIGNED": aligned, "SHIFTED": shifted}
    definitions |= {"THREADS": size, "BESIDE": beside}
    return Grid(blocks(rows * cluster), size, {"shared": line, "arch": "sm_90a", **definitions})


def in_teams(rows: int, cols: int, x: torch.Tensor, *weights: torch.Tensor | None) -> Grid:
    """For team_rows.cuh: clusters of two to eight blocks, as many as run at once, which keep the weights.

    Declines more columns than they hold, 131072 of 16 bits or 65536 of 32, and rows that are not cut into aligned
    vectors of 16 bytes.
    """
    if vector_width(x) == 1:
        raise Unsupported("rows that are not cut into aligned vectors of 16 bytes, which the copy engine takes")
    lanes, across = 16 // x.element_size(), 128
    cluster = 2
    while cluster < 8 and cols > cluster * across * 8 * lanes:
        cluster *= 2
    at_most(cols, cluster * across * 16 * lanes, f"cluster of {cluster} blocks")
    part = max(-(-cols // cluster), 1)
    size = threads(part, 8 * lanes, across)
    vectors = -(-part // (size * lanes))
    line = vectors * size * 16  # bytes of a row that a block holds
    # Measured on an H200: 0.93 to 0.98 of a copy with these, mostly 0.8 to 0.9 with fewer than four or more than five.
    teams = 5 if vectors <= 8 else 4
    aligned = int(vector_width(*weights) > 1)
    whole = int(cols == cluster * vectors * size * lanes)
    definitions = {"VECTORS": vectors, "CLUSTER": cluster, "THREADS": size, "TEAMS": teams}
    definitions |= {"KEPT_ALIGNED": aligned, "WHOLE": whole}
    options = {"shared": (len(weights) + teams) * line, "arch": "sm_90a", **definitions}
    return Grid(min(rows, at_once(x.device, cluster)) * cluster, (size, teams), options)


def _shifted(operands: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether all rows of the matrices begin as far from a multiple of 16 bytes as those of a contiguous one."""
    for x in operands:
        if x is None or x.ndim == 1:
            continue
        apart = 0 if x.shape[0] == 1 else (x.stride(0) - x.shape[1]) * x.element_size()
        if x.stride(1) != 1 or x.data_ptr() % 16 or apart % 16:
            return False
    return True
