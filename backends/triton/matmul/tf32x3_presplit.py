"""tf32x3_presplit: float32 operands cut beforehand into two tf32 pieces each, whose products three tensor-core steps
add up."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import options
from touchstone.backends.triton.matmul._pieces import cut
from touchstone.backends.triton.matmul.tensorfloat import tf32x3
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _presplit_kernel(
    a_desc,
    b_desc,
    c_ptr,
    M,
    N,
    K,
    one,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first = tile // (GROUP_M * tiles_n) * GROUP_M  # tile row that the group starts with; the last group may be lower
    height = min(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    m = (first + within % height) * BLOCK_M
    n = within // height * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    cross = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a_large = a_desc.load([0, m, k]).reshape(BLOCK_M, BLOCK_K)
        b_large = b_desc.load([0, n, k]).reshape(BLOCK_N, BLOCK_K).T
        a_small = a_desc.load([1, m, k]).reshape(BLOCK_M, BLOCK_K)
        b_small = b_desc.load([1, n, k]).reshape(BLOCK_N, BLOCK_K).T
        # The large product is added up outside the tensor cores, whose sums over a long K lose bits: inside, the error
        # at K = 4096 is 8 times that of cuBLAS. But for the factor the compiler would put the sum inside.
        large = tl.dot(a_large, b_large, input_precision="tf32")
        cross = tl.dot(a_small, b_large, cross, input_precision="tf32")
        cross = tl.dot(a_large, b_small, cross, input_precision="tf32")
        acc += large * one
    acc += tl.where(tl.abs(cross) < float("inf"), cross, 0.0)  # infinity times a small piece may be NaN
    row = m.to(tl.int64) + tl.arange(0, BLOCK_M)[:, None]
    col = n + tl.arange(0, BLOCK_N)[None, :]
    tl.store(c_ptr + row * N + col, acc, mask=(row < M) & (col < N))


_SPACE = [
    options(*each)
    for each in [
        (64, 128, 32, 4, 3),
        (128, 64, 32, 4, 4),
        (128, 128, 32, 8, 3),
        (128, 128, 32, 4, 3),
        (128, 128, 32, 8, 2),
        (128, 128, 32, 8, 3, 16),
        (128, 64, 32, 4, 2),
    ]
]


@variant(needs="sm_90", compute="tf32x3", space=_SPACE)
def tf32x3_presplit(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. float32 operands keep 21 bits of mantissa.

    Cut by a pass of their own, they come through the copy engine; `tf32x3` cuts every tile again for every tile of c.
    The pass also turns b, since tensor cores take no tf32 whose columns are contiguous. 16-bit operands lose nothing
    and go to `tf32x3`. Source: [ootomo2022].
    """
    M, K, N = shapes("M K, K N", a=a, b=b)
    if a.dtype is not torch.float32:
        return tf32x3(a, b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    if K == 0:
        return c.zero_()
    config = pinned("matmul.tf32x3_presplit", a.dtype, (M, N, K), options(128 if M > 64 else 64, 128, 32, 8, 3))
    a_desc = _described(cut(a), K, config["BLOCK_M"], config["BLOCK_K"])
    b_desc = _described(cut(b.t()), K, config["BLOCK_N"], config["BLOCK_K"])
    grid = (ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"]),)
    _presplit_kernel[grid](a_desc, b_desc, c, M, N, K, 1.0, **config)
    return c


def _described(pieces: torch.Tensor, C: int, rows: int, cols: int) -> TensorDescriptor:
    """`pieces` (2, R, pitch) of a matrix of C columns in tiles of (rows, cols)."""
    _, R, pitch = pieces.shape
    return TensorDescriptor(pieces, [2, R, C], [R * pitch, pitch, 1], [1, rows, cols])
