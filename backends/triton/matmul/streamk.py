"""streamk: tma whose tiles are cut along K where they are fewer than the multiprocessors."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures.matmul import spans
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import default_streamk_tile, descriptor, processors
from touchstone.backends.triton.matmul.tma import tma
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.variants import variant


@triton.jit
def corner(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


@triton.jit
def _begin(program, tiles, steps, programs):
    """The first step of a program's span of the tiles, which are laid end to end."""
    return (program.to(tl.int64) * tiles * steps // programs).to(tl.int32)


@prepared
@triton.jit
def _streamk_kernel(
    a_desc, b_desc, c_desc, partial_ptr, M, N, K, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    tiles_m, tiles_n, steps = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    program, programs = tl.program_id(0), tl.num_programs(0)
    at = _begin(program, tiles_m * tiles_n, steps, programs)
    end = _begin(program + 1, tiles_m * tiles_n, steps, programs)
    while at < end:
        m, n = corner(at // steps, tiles_m, tiles_n, GROUP_M, BLOCK_M, BLOCK_N)
        first = at % steps
        count = min(steps - first, end - at)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(first, first + count):
            k = step * BLOCK_K
            a = a_desc.load([k, m]).T if A_TRANSPOSED else a_desc.load([m, k])
            b = b_desc.load([n, k]).T if B_TRANSPOSED else b_desc.load([k, n])
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if count == steps:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
            c_desc.store([m, n], left.to(c_desc.dtype))
            c_desc.store([m, n + BLOCK_N // 2], right.to(c_desc.dtype))
        else:  # of a program one piece at most does not begin with its tile, and one does and is not finished
            rows, cols = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
            kept = partial_ptr + (2 * program + (first == 0)).to(tl.int64) * BLOCK_M * BLOCK_N
            tl.store(kept + rows[:, None] * BLOCK_N + cols, acc, mask=(m + rows < M)[:, None])
        at += count


@prepared
@triton.jit
def _add_pieces_kernel(
    partial_ptr, c_ptr, M, N, K, programs, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Adds the pieces of a tile, in the order of K; program_id(1) counts ROWS rows of it."""
    tiles_m, tiles_n, steps = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    tile, tiles = tl.program_id(0), tiles_m * tiles_n
    begin = tile * steps
    # who takes a step is the last program that begins no later
    first = ((begin + 1).to(tl.int64) * programs - 1) // (tiles * steps)
    last = ((begin + steps).to(tl.int64) * programs - 1) // (tiles * steps)
    if first < last:  # else one program had all of it
        m, n = corner(tile, tiles_m, tiles_n, GROUP_M, BLOCK_M, BLOCK_N)
        rows, cols = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
        exists = (m + rows < M)[:, None] & (n + cols < N)
        acc = tl.zeros((ROWS, BLOCK_N), tl.float32)
        for program in range(first, last + 1):
            kept = partial_ptr + (2 * program + (_begin(program, tiles, steps, programs) <= begin)) * BLOCK_M * BLOCK_N
            acc += tl.load(kept + rows[:, None] * BLOCK_N + cols, mask=exists)
        place = (m + rows).to(tl.int64)[:, None] * N + n + cols
        tl.store(c_ptr + place, acc.to(c_ptr.dtype.element_ty), mask=exists)


@variant(needs="sm_90")
def streamk(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); either axis of `a` and of `b` may be the contiguous one.

    Declines what `tma` declines. As [osama2023], with a second kernel in place of waiting programs.
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    config = default_streamk_tile(a.dtype, M, N)
    tiles = ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"])
    programs = spans(tiles, ceil_div(K, config["BLOCK_K"]), processors(a.device), 16, a.device)
    if tiles == 0 or programs == 0:
        return tma(a, b)
    a_desc, a_transposed = descriptor(a, "a", config["BLOCK_M"], config["BLOCK_K"])
    b_desc, b_transposed = descriptor(b, "b", config["BLOCK_K"], config["BLOCK_N"])
    c = a.new_empty(M, N)
    c_desc, _ = descriptor(c, "the result", config["BLOCK_M"], config["BLOCK_N"] // 2)
    partial = a.new_empty(2 * programs * config["BLOCK_M"] * config["BLOCK_N"], dtype=torch.float32)
    layout = dict(A_TRANSPOSED=a_transposed, B_TRANSPOSED=b_transposed, PRECISION="ieee")
    _streamk_kernel[(programs,)](a_desc, b_desc, c_desc, partial, M, N, K, **layout, **config)
    rows = min(16, config["BLOCK_M"])
    config = {**config, "num_warps": 4, "num_stages": 1}
    _add_pieces_kernel[(tiles, config["BLOCK_M"] // rows)](partial, c, M, N, K, programs, ROWS=rows, **config)
    return c
