"""matmul(a, b): (M, K) times (K, N), float32 accumulation, the result in the input dtype.

naive: one thread per element of c, a warp down a column of c: neighbouring threads read distant rows of a [boehm2022]
coalesced: the same with a warp along a row, so neighbours share a's element and read neighbours of b [boehm2022]
tiled: a block's operands pass through shared memory, read from global memory once for 32 threads each [boehm2022]
tiled1d: a thread keeps eight results of a column, so one word of b from shared memory serves eight products [boehm2022]
tiled2d: eight by eight results a thread: sixteen words from shared memory serve 64 products [volkov2010]
vectorised: 16-byte loads from global memory and from shared memory, where a is stored transposed [boehm2022]
doublebuffered: the next tiles load while these are multiplied, with two buffers and one barrier a step [boehm2022]
warptiled: lanes of a warp close together, so they read fewer words; fast loads for transposed operands too [boehm2022]
tensorcore: mma.sync on 16-bit operands that cp.async brings, three stages deep, through ldmatrix [kerr2020]
pipelined: larger tiles, and a branch-free main loop in which nothing interrupts the MMAs: operands in pieces of 16
  bytes only [kerr2020]
splitk: K is cut between blocks and a second kernel adds their float32 partials, for few tiles with a long K [hoque2024]
wgmma: a warpgroup's products from shared memory, filled by the copy engine and one warpgroup's thread [colfax2024]
aligned: wgmma; operands that the copy engine does not take are first copied to rows that start at lines [colfax2024]
streamk: wgmma; tiles that are fewer than the multiprocessors are laid end to end along k and cut into equal spans, and
  a second kernel adds the pieces [osama2023]
clusterk: wgmma for few rows; the blocks of a cluster cut a tile's k and add their sums through each other's shared
  memory, so that no second kernel has to be launched [hoque2024]
tf32: warptiled's tiles on the tensor cores, float32 operands rounded to tf32 [xlite2025]
"""

from collections.abc import Callable

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.lib.gemm import (
    SQUARE,
    STRIP,
    Tiling,
    along_k,
    blocks,
    by_lanes,
    by_more_warpgroups,
    by_more_warps,
    by_parts,
    by_spans,
    by_threads,
    by_warps,
    mapped,
    processors,
    sixteen_bits,
)
from touchstone.backends.cupy.runtime.hopper import TensorMap, along_last, taken
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.matmul import LINE
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_naive = Module(__file__, "naive.cu")
_tiled = Module(__file__, "tiled.cu")
_registers = Module(__file__, "registers.cu")
_warptiled = Module(__file__, "warptiled.cu")
_tensorcore = Module(__file__, "tensorcore.cu")
_pipelined = Module(__file__, "pipelined.cu")
_splitk = Module(__file__, "splitk.cu")
_wgmma = Module(__file__, "wgmma.cu")
_aligned = Module(__file__, "aligned.cu")
_streamk = Module(__file__, "streamk.cu")
_clusterk = Module(__file__, "clusterk.cu")
_tf32 = Module(__file__, "tf32.cu")


@variant()
def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    shapes("M K, K N", a=a, b=b)
    return _product(_naive, "matmul_naive", a, b, lambda M, N: Tiling(ceil_div(M, 32) * ceil_div(N, 8), (32, 8), 0, {}))


@variant()
def coalesced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    shapes("M K, K N", a=a, b=b)
    return _product(
        _naive, "matmul_coalesced", a, b, lambda M, N: Tiling(ceil_div(M, 8) * ceil_div(N, 32), (32, 8), 0, {})
    )


@variant()
def tiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    shapes("M K, K N", a=a, b=b)
    return _product(_tiled, "matmul_tiled", a, b, lambda M, N: Tiling(blocks(M, N, 32), (32, 32), 0, {}))


@variant()
def tiled1d(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [boehm2022]."""
    shapes("M K, K N", a=a, b=b)
    return _product(_tiled, "matmul_tiled1d", a, b, lambda M, N: Tiling(blocks(M, N, 64), 512, 0, {}))


@variant()
def tiled2d(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Source: [volkov2010]."""
    shapes("M K, K N", a=a, b=b)
    return _product(_registers, "matmul_tiled2d", a, b, by_threads)


@variant()
def vectorised(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides, row-major ones on 16 bytes fastest. Source: [boehm2022]."""
    shapes("M K, K N", a=a, b=b)
    return _product(_registers, "matmul_vectorised", a, b, by_threads)


@variant()
def doublebuffered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides, row-major ones on 16 bytes fastest. Source: [boehm2022]."""
    shapes("M K, K N", a=a, b=b)
    return _product(_registers, "matmul_doublebuffered", a, b, by_threads)


@variant()
def warptiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides, an axis of stride 1 on 16 bytes fastest [boehm2022]."""
    shapes("M K, K N", a=a, b=b)
    return _product(_warptiled, "matmul_warptiled", a, b, by_lanes)


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides, an axis of stride 1 on 16 bytes fastest.

    Declines float32, which these instructions do not take. Source: [kerr2020].
    """
    shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    return _product(_tensorcore, "matmul_tensorcore", a, b, by_warps)


@variant(needs="sm_80", dtypes=HALF)
def pipelined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); of `a` and of `b` either axis may be the contiguous one.

    Declines float32, and operands that are not in whole, aligned pieces of 16 bytes. Source: [kerr2020].
    """
    shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    layouts = {"LEFT_ALONG_K": along_k("a", a, 1), "RIGHT_ALONG_K": along_k("b", b, 0)}
    return _product(_pipelined, "matmul_pipelined", a, b, by_more_warps, **layouts)


@variant()
def splitk(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. As [hoque2024], with partials for atomics."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        tiles = by_lanes(M, N)
        wanted = ceil_div(2 * processors(a.device), tiles.blocks)  # two blocks per multiprocessor
        chunk = max(ceil_div(ceil_div(K, wanted), 64) * 64, 256)  # less would not pay for storing and adding a partial
        splits = max(ceil_div(K, chunk), 1)
        partial = a.new_empty(splits, M, N, dtype=torch.float32)
        operands = (a, b, partial, M, N, K, chunk, *a.stride(), *b.stride())
        config = {"dtype": a.dtype, **tiles.definitions}
        _splitk.launch("matmul_splitk", tiles.blocks * splits, tiles.threads, *operands, **config)
        _splitk.launch("matmul_add_partials", ceil_div(M * N, 256), 256, partial, c, M * N, splits, **config)
    return c


@variant(needs="sm_90a", dtypes=HALF)
def wgmma(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); of `a` and of `b` either axis may be the contiguous one.

    Declines float32, and operands that the copy engine does not take (no axis of stride 1, the other's not a multiple
    of 16 bytes, a start that is not 16-byte aligned). Source: [colfax2024].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    if a.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    c = a.new_empty(M, N)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    maps, layouts = mapped(a, b, ("a", "b"))
    of_c = TensorMap(c, STRIP) if N % 8 == 0 else None
    tiles = by_more_warpgroups(a, b)
    config = {**layouts, **tiles.definitions}
    _wgmma.launch(
        "matmul_wgmma",
        tiles.blocks,
        tiles.threads,
        *maps,
        of_c,
        c,
        M,
        N,
        K,
        dtype=a.dtype,
        shared=tiles.shared,
        arch="sm_90a",
        **config,
    )
    return c


@variant(needs="sm_90a", dtypes=HALF)
def aligned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. Declines float32. Source: [colfax2024]."""
    shapes("M K, K N", a=a, b=b)
    if a.dtype is torch.float32 or not (a.numel() and b.numel()):
        return wgmma(a, b)
    return wgmma(*(x if _taken(x) else _in_lines(x) for x in (a, b)))


def _taken(x: torch.Tensor) -> bool:
    return x.data_ptr() % 16 == 0 and (taken(x) or taken(x.t()))


def _in_lines(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) with rows, or columns where those are contiguous in x, that start at lines."""
    if x.stride(0) == 1 != x.stride(1):
        return _in_lines(x.t()).t()
    rows, cols = x.shape
    y = x.new_empty(rows, ceil_div(cols, LINE) * LINE)
    sizes = (rows, cols, *x.stride(), y.stride(0))
    _aligned.launch("matmul_in_lines", rows * ceil_div(cols, 2048), 256, x, y, *sizes, dtype=x.dtype)
    return y[:, :cols]


@variant(needs="sm_90a", dtypes=HALF)
def streamk(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); of `a` and of `b` either axis may be the contiguous one.

    Declines what `wgmma` declines. As [osama2023], with a second kernel in place of waiting blocks.
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    cut = by_spans(M, N, K, a.device)
    if a.dtype is torch.float32 or cut is None:
        return wgmma(a, b)
    c = a.new_empty(M, N)
    maps, layouts = mapped(a, b, ("a", "b"))
    of_c = TensorMap(c, STRIP) if N % 8 == 0 else None
    partial, tiles = a.new_empty(cut.held, dtype=torch.float32), cut.tiling
    config = {"dtype": a.dtype, "arch": "sm_90a", **layouts, **tiles.definitions}
    operands = (*maps, of_c, c, partial, M, N, K)
    _streamk.launch("matmul_streamk", tiles.blocks, tiles.threads, *operands, shared=tiles.shared, **config)
    _streamk.launch("matmul_add_pieces", cut.adding, 256, partial, c, M, N, K, cut.clusters, **config)
    return c


@variant(needs="sm_90a", dtypes=HALF)
def clusterk(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); of `a` and of `b` either axis may be the contiguous one.

    Declines what `wgmma` declines. As [hoque2024], with the memory of a cluster for atomics.
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    if a.dtype is torch.float32 or 0 in (M, N, K):
        return wgmma(a, b)
    left, a_along_k = along_last("a", a)
    right, b_along_k = along_last("b", b.t())
    tiles = by_parts(M, N, K, a_along_k, a.device)
    if tiles is None:
        return streamk(a, b)
    c = a.new_empty(M, N)
    along, maps = (a_along_k, b_along_k), (TensorMap(left, SQUARE), TensorMap(right, SQUARE))
    if tiles.definitions["SWAPPED"]:
        rows = tiles.definitions["TILE_N"]
        narrow = TensorMap(left, SQUARE if rows % 64 == 0 else (rows, 64))
        along, maps = (b_along_k, a_along_k), (TensorMap(right, SQUARE), narrow)
    config = {"dtype": a.dtype, "arch": "sm_90a", "A_ALONG_K": along[0], "B_ALONG_K": along[1], **tiles.definitions}
    _clusterk.launch("matmul_clusterk", tiles.blocks, tiles.threads, *maps, c, M, N, K, shared=tiles.shared, **config)
    return c


@variant(needs="sm_80", compute="tf32")
def tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. float32 operands keep 10 bits of mantissa [xlite2025].

    16-bit operands lose nothing, and are multiplied faster by `tensorcore`.
    """
    shapes("M K, K N", a=a, b=b)
    return _product(_tf32, "matmul_tf32", a, b, by_threads)


def _product(
    module: Module,
    kernel: str,
    a: torch.Tensor,
    b: torch.Tensor,
    tiles_of: Callable[[int, int], Tiling],
    **definitions: int,
) -> torch.Tensor:
    """A new c = a·b (M, N), by one launch of `kernel` with the tiles that `tiles_of(M, N)` gives."""
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    if c.numel():
        tiles = tiles_of(M, N)
        operands = (a, b, c, M, N, K, *a.stride(), *b.stride())
        config = {"dtype": a.dtype, "shared": tiles.shared, **definitions, **tiles.definitions}
        module.launch(kernel, tiles.blocks, tiles.threads, *operands, **config)
    return c
