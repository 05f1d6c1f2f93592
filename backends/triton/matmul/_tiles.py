"""Tiles of gluon, and which of them takes the least time for a product."""

from functools import lru_cache
from math import gcd
from typing import Any

import torch

from touchstone.backends.devices import SHARED_LIMIT
from touchstone.backends.signatures.matmul import LINE
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import processors

Tile = tuple[int, int]  # rows and columns


def _config(groups: int, rows: int, *widths: int) -> dict[str, Any]:
    """Up to six stages, and a second piece of c for each of `groups` warpgroups where there is room besides.

    A warpgroup has `rows` rows and an accumulator for each of `widths`.
    """
    free = SHARED_LIMIT["sm_90"] - 1024  # barriers
    stage, piece = 2 * LINE * (groups * rows + sum(widths)), groups * 2 * 64 * 64
    stages = min((free - piece) // stage, 6)
    buffers = min((free - stages * stage) // piece, 2)
    return dict(GROUPS=groups, ROWS=rows, WIDTHS=widths, STAGES=stages, BUFFERS=buffers)


CONFIGS: dict[Tile, dict[str, Any]] = {
    (config["GROUPS"] * config["ROWS"], sum(config["WIDTHS"])): config
    for config in (
        _config(2, 64, 256),
        _config(2, 64, 128, 64),
        _config(2, 64, 128, 32),
        _config(2, 64, 128),
        _config(2, 64, 64),
        _config(3, 64, 128, 128),
        _config(3, 64, 128, 64, 16),
        _config(3, 64, 128, 64),
        _config(3, 64, 128),
        _config(2, 128, 128, 64),
        _config(2, 128, 128, 32),
        _config(2, 128, 128),
    )
}

# In products (H200, fitted to 450 times of 43 products by this module's tiles and others): what a step of k takes for a
# line of the L2 cache that a row of 64 elements lies in, and besides; and an element of c, once.
_LINE, _STEP, _ELEMENT = 64, 2000, 1.6
_LEAST = 0.3  # of the time that copies of all programs take: of fewer, which share the rate of the L2 cache


def fastest_tile(a: torch.Tensor, b: torch.Tensor) -> Tile:
    """The tile with which persistent programs take the least time for the product of `a` (M, K) and `b` (K, N) in 16
    bits."""
    (M, K), N = a.shape, b.shape[1]
    return _fastest(M, N, ceil_div(K, LINE), _lines(a), _lines(b), processors(a.device))


def _lines(x: torch.Tensor) -> float:
    """Of the L2 cache that 64 elements of a row of x lie in, on an average: one where rows begin at lines, else two."""
    pitch = max(x.stride()) if min(x.shape) > 1 else LINE
    return 2 - gcd(pitch, LINE) / LINE if x.data_ptr() % (2 * LINE) == 0 else 2


@lru_cache(maxsize=4096)
def _fastest(M: int, N: int, steps: int, a_lines: float, b_lines: float, count: int) -> Tile:
    def time(tile: Tile) -> float:
        (m, n), widths = tile, CONFIGS[tile]["WIDTHS"]
        # a narrow product waits for its rows of a from shared memory
        products = m * sum(max(width, 32 + width // 2) for width in widths)
        copies = _LINE * (a_lines * m + b_lines * n)

        def round_of(programs: int) -> float:
            return steps * (max(products, copies * max(programs / count, _LEAST)) + _STEP) + _ELEMENT * m * n

        rounds, rest = divmod(ceil_div(M, m) * ceil_div(N, n), count)
        return rounds * round_of(count) + (round_of(rest) if rest else 0)

    return min(CONFIGS, key=time)
