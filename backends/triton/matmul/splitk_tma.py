"""splitk_tma: tma whose tiles are cut along K into as many parts as there are multiprocessors for each. Of few rows the
product is made transposed."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import default_streamk_tile, descriptor, options, processors, roomy
from touchstone.backends.triton.matmul.splitk import add_partials_kernel
from touchstone.backends.triton.matmul.streamk import corner, streamk
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.variants import variant


@prepared
@triton.jit(do_not_specialize=["parts"])
def _splitk_tma_kernel(
    a_desc, b_desc, partial_ptr, M, N, K, parts, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    SWAPPED: tl.constexpr, PRECISION: tl.constexpr, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    tiles_m, tiles_n, steps = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    # One piece a program. Without the outer loop ptxas waits for each product before the next: 0.76 of cuBLAS, not 1.0.
    for piece in range(tl.program_id(0), tiles_m * tiles_n * parts, tl.num_programs(0)):
        m, n = corner(piece // parts, tiles_m, tiles_n, GROUP_M, BLOCK_M, BLOCK_N)
        part = piece % parts
        acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAPPED else (BLOCK_M, BLOCK_N), tl.float32)
        for step in range(part * steps // parts, (part + 1) * steps // parts):
            k = step * BLOCK_K
            a = a_desc.load([k, m]).T if A_TRANSPOSED else a_desc.load([m, k])
            b = b_desc.load([n, k]).T if B_TRANSPOSED else b_desc.load([k, n])
            if SWAPPED:
                acc = tl.dot(b.T, a.T, acc, input_precision=PRECISION)
            else:
                acc = tl.dot(a, b, acc, input_precision=PRECISION)
        tl.extra.cuda.gdc_launch_dependents()
        rows, cols = (m + tl.arange(0, BLOCK_M)).to(tl.int64), n + tl.arange(0, BLOCK_N)
        if SWAPPED:
            rows, cols = rows[None, :], cols[:, None]
        else:
            rows, cols = rows[:, None], cols[None, :]
        tl.store(partial_ptr + (part.to(tl.int64) * M + rows) * N + cols, acc, mask=(rows < M) & (cols < N))


@variant(needs="sm_90")
def splitk_tma(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); either axis of `a` and of `b` may be the contiguous one.

    Declines what `tma` declines. As [hoque2024] and [hoque2024tma], launched as [cuda2025pdl].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    config, parts = _cut(a, M, N, K)
    if parts < 2:
        return streamk(a, b)
    a_desc, a_transposed = descriptor(a, "a", config["BLOCK_M"], config["BLOCK_K"])
    b_desc, b_transposed = descriptor(b, "b", config["BLOCK_K"], config["BLOCK_N"])
    c, partial = a.new_empty(M, N), a.new_empty(parts, M, N, dtype=torch.float32)
    programs = _tiles(config, M, N) * parts
    swapped = config["BLOCK_M"] < 64  # the rows of a product of a warpgroup
    layout = dict(A_TRANSPOSED=a_transposed, B_TRANSPOSED=b_transposed, SWAPPED=swapped, PRECISION="ieee")
    _splitk_tma_kernel[(programs,)](a_desc, b_desc, partial, M, N, K, parts, **layout, **config)
    adding = dict(BLOCK=1024, DEPENDENT=True, num_warps=4, launch_pdl=True)
    add_partials_kernel[(ceil_div(M * N, 1024),)](partial, c, M * N, parts, **adding)
    return c


def _tiles(config: dict[str, int], M: int, N: int) -> int:
    return ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"])


def _cut(a: torch.Tensor, M: int, N: int, K: int) -> tuple[dict[str, int], int]:
    """Tiles, and the parts of each: of those that keep almost as many multiprocessors busy as any, nearest to two.

    One part leaves nobody to wait for the last loads, and the sums of many have to be written and read.
    """
    places, least = processors(a.device), 4 if a.device.type == "cuda" else 1  # steps of K, few on the pretended GPU
    if a.dtype is torch.float32 or not roomy(a.device):
        choices = [default_streamk_tile(a.dtype, M, N)]
    elif M <= 16:  # two programs to a multiprocessor, if with four parts or fewer
        config, tiles = options(16, 128, 128, 4, 3), ceil_div(M, 16) * ceil_div(N, 128)
        parts = max(min(2 * places // tiles, 4), places // tiles) if tiles else 0
        return config, min(parts, max(ceil_div(K, 128) // least, 1))
    elif M <= 64:
        choices = [options(64, 128, 128, 4, 4)]
    else:
        choices = [options(128, 64, 64, 4, 8), options(128, 128, 64, 8, 6), options(128, 256, 64, 8, 4)]
        choices = choices[: 2 if M <= 128 else 3]

    def parts(config: dict[str, int]) -> int:
        """None, 0, for more tiles than multiprocessors."""
        tiles = _tiles(config, M, N)
        return min(places // tiles, max(ceil_div(K, config["BLOCK_K"]) // least, 1)) if tiles else 0

    busy = max(_tiles(config, M, N) * parts(config) for config in choices)
    able = [config for config in choices if _tiles(config, M, N) * parts(config) >= 0.9 * busy]
    config = min(able, key=lambda config: abs(parts(config) - 2))
    return config, parts(config)
