"""streamk: tma whose last tiles are cut along K, so that all programs end together."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures.matmul import cut_along_k
from touchstone.backends.triton.lib.gemm import default_streamk_tile, descriptor, processors
from touchstone.backends.variants import variant


@triton.jit
def _place(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


@triton.jit
def _sums(
    a_desc, b_desc, m, n, first, last, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """A tile's sums over the steps `first` to `last` - 1 of K."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(first, last):
        k = step * BLOCK_K
        a = a_desc.load([k, m]).T if A_TRANSPOSED else a_desc.load([m, k])
        b = b_desc.load([n, k]).T if B_TRANSPOSED else b_desc.load([k, n])
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _store(c_desc, acc, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
    c_desc.store([m, n], left.to(c_desc.dtype))
    c_desc.store([m, n + BLOCK_N // 2], right.to(c_desc.dtype))


@triton.jit
def _begin(program, streamed, steps, programs):
    """The first step of a program's span of the streamed tiles, which are laid end to end."""
    return (program.to(tl.int64) * streamed * steps // programs).to(tl.int32)


@triton.jit
def _streamk_kernel(
    a_desc, b_desc, c_desc, partial_ptr, M, N, K, streamed, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    tiles_m, tiles_n, steps = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    program, programs = tl.program_id(0), tl.num_programs(0)
    at, end = _begin(program, streamed, steps, programs), _begin(program + 1, streamed, steps, programs)
    while at < end:
        m, n = _place(at // steps, tiles_m, tiles_n, GROUP_M, BLOCK_M, BLOCK_N)
        first = at % steps
        count = min(steps - first, end - at)
        acc = _sums(
            a_desc, b_desc, m, n, first, first + count, A_TRANSPOSED, B_TRANSPOSED, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K
        )  # fmt: skip
        if count == steps:
            _store(c_desc, acc, m, n, BLOCK_M, BLOCK_N)
        else:  # of a program one piece at most does not begin with its tile, and one does and is not finished
            rows, cols = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
            slot = (2 * program + (first == 0)).to(tl.int64) * BLOCK_M * BLOCK_N
            tl.store(partial_ptr + slot + rows[:, None] * BLOCK_N + cols, acc, mask=(m + rows < M)[:, None])
        at += count
    for tile in range(streamed + program, tiles_m * tiles_n, programs):
        m, n = _place(tile, tiles_m, tiles_n, GROUP_M, BLOCK_M, BLOCK_N)
        acc = _sums(a_desc, b_desc, m, n, 0, steps, A_TRANSPOSED, B_TRANSPOSED, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
        _store(c_desc, acc, m, n, BLOCK_M, BLOCK_N)


@triton.jit
def _add_pieces_kernel(
    partial_ptr, c_ptr, M, N, K, streamed, programs, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Adds the pieces of a streamed tile, in the order of K; program_id(1) counts ROWS rows of it."""
    tile, steps = tl.program_id(0), tl.cdiv(K, BLOCK_K)
    begin = tile * steps
    # who takes a step is the last program that begins no later
    first = ((begin + 1).to(tl.int64) * programs - 1) // (streamed * steps)
    last = ((begin + steps).to(tl.int64) * programs - 1) // (streamed * steps)
    if first < last:  # else one program had all of it
        m, n = _place(tile, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M, BLOCK_M, BLOCK_N)
        rows, cols = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_N)
        exists = (m + rows < M)[:, None] & (n + cols < N)
        acc = tl.zeros((ROWS, BLOCK_N), tl.float32)
        for program in range(first, last + 1):
            slot = 2 * program + (_begin(program, streamed, steps, programs) <= begin)
            acc += tl.load(partial_ptr + slot * BLOCK_M * BLOCK_N + rows[:, None] * BLOCK_N + cols, mask=exists)
        place = (m + rows).to(tl.int64)[:, None] * N + n + cols
        tl.store(c_ptr + place, acc.to(c_ptr.dtype.element_ty), mask=exists)


@variant(needs="sm_90")
def streamk(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); either axis of `a` and of `b` may be the contiguous one.

    Declines what `tma` declines. As [osama2023], with whole tiles where there are more of them than multiprocessors,
    and a second kernel in place of waiting programs.
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    if K == 0:
        return c.zero_()
    config = default_streamk_tile(a.dtype, M, N)
    a_desc, a_transposed = descriptor("a", a, config["BLOCK_M"], config["BLOCK_K"])
    b_desc, b_transposed = descriptor("b", b, config["BLOCK_K"], config["BLOCK_N"])
    c_desc, _ = descriptor("the result", c, config["BLOCK_M"], config["BLOCK_N"] // 2)
    tiles = triton.cdiv(M, config["BLOCK_M"]) * triton.cdiv(N, config["BLOCK_N"])
    steps = triton.cdiv(K, config["BLOCK_K"])
    programs = min(processors(a.device), max(tiles, tiles * steps // 4))
    streamed = cut_along_k(tiles, steps, programs)
    partial = a.new_empty(2 * programs * config["BLOCK_M"] * config["BLOCK_N"] if streamed else 0, dtype=torch.float32)
    layout = dict(A_TRANSPOSED=a_transposed, B_TRANSPOSED=b_transposed, PRECISION="ieee")
    _streamk_kernel[(programs,)](a_desc, b_desc, c_desc, partial, M, N, K, streamed, **layout, **config)
    if streamed:
        rows = min(16, config["BLOCK_M"])
        config = {**config, "num_warps": 4, "num_stages": 1}
        grid = (streamed, config["BLOCK_M"] // rows)
        _add_pieces_kernel[grid](partial, c, M, N, K, streamed, programs, ROWS=rows, **config)
    return c
