"""tma: persistent, with tiles moved by the copy engine through host tensor descriptors."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import (
    default_tma_tile,
    descriptor,
    options,
    persistent_programs,
    processors,
    roomy,
)
from touchstone.backends.triton.runtime.ready import prepared
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@prepared
@triton.jit
def _tma_kernel(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # flatten: the compiler makes one loop of the two, as `persistent` does by hand
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        first = tile // (GROUP_M * tiles_n) * GROUP_M
        height = min(tiles_m - first, GROUP_M)
        within = tile % (GROUP_M * tiles_n)
        m = (first + within % height) * BLOCK_M
        n = within // height * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([k, m]).T if A_TRANSPOSED else a_desc.load([m, k])
            b = b_desc.load([n, k]).T if B_TRANSPOSED else b_desc.load([k, n])
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        # stored by halves, which takes half the shared memory and leaves room for a fourth stage
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        c_desc.store([m, n], left.to(c_desc.dtype))
        c_desc.store([m, n + BLOCK_N // 2], right.to(c_desc.dtype))


_SPACE = [
    options(*each)
    for each in [
        (64, 64, 128, 4, 4),
        (64, 128, 128, 4, 3),
        (128, 128, 64, 4, 3),
        (128, 64, 64, 4, 4),
        (128, 64, 128, 4, 4),
        (128, 128, 64, 8, 4),
        (128, 128, 64, 8, 5),
        (128, 256, 64, 8, 3),
        (128, 256, 64, 8, 4),
        (128, 256, 64, 8, 4, 16),
        (256, 128, 64, 8, 4),
        (128, 128, 128, 8, 3),
        (128, 64, 16, 8, 3),
        (64, 64, 16, 4, 4),
    ]
]


@variant(needs="sm_90", space=_SPACE)
def tma(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); either axis of `a` and of `b` may be the contiguous one.

    Declines operands and results that a descriptor cannot describe (no axis of stride 1, rows not a multiple of
    16 bytes apart, a start that is not 16-byte aligned). Source: [hoque2024tma].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    if K == 0:
        return c.zero_()
    config = pinned("matmul.tma", a.dtype, (M, N, K), _default(a, M, N))
    a_desc, a_transposed = descriptor(a, "a", config["BLOCK_M"], config["BLOCK_K"])
    b_desc, b_transposed = descriptor(b, "b", config["BLOCK_K"], config["BLOCK_N"])
    c_desc, _ = descriptor(c, "the result", config["BLOCK_M"], config["BLOCK_N"] // 2)
    tiles = ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"])
    grid = (min(persistent_programs(a.device, config["num_warps"]), tiles),)
    _tma_kernel[grid](
        a_desc,
        b_desc,
        c_desc,
        M,
        N,
        K,
        A_TRANSPOSED=a_transposed,
        B_TRANSPOSED=b_transposed,
        PRECISION="ieee",
        **config,
    )
    return c


def _default(a: torch.Tensor, M: int, N: int) -> dict[str, int]:
    """Smaller products in the largest tiles of which there is one for almost every multiprocessor.

    A second round that few tiles take part in doubles the time: then smaller ones, of which two run at once.
    """
    if a.dtype is torch.float32 or M <= 64 or M * N > 2048 * 2048 or not roomy(a.device):
        return default_tma_tile(a.dtype, M, N)
    count = processors(a.device)
    square, narrow = ceil_div(M, 128) * ceil_div(N, 128), ceil_div(M, 128) * ceil_div(N, 64)
    if 0.9 * count <= square <= count or square > 1.5 * count:
        return options(128, 128, 64, 8, 5)
    if narrow > count:
        return options(128, 64, 64, 4, 4)
    return options(128 if narrow >= 0.9 * count else 64, 64, 128, 4, 4)
