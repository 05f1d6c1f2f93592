"""A matrix product as Triton's tutorials write one: python tutorial_matmul.py."""

import torch
import triton
import triton.language as tl

from touchstone import check


@triton.jit
def _tile(a, b, c, M, N, K, a_row, a_col, b_row, b_col, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = (tl.program_id(0) * BM + tl.arange(0, BM)[:, None]).to(tl.int64)
    col = (tl.program_id(1) * BN + tl.arange(0, BN)[None, :]).to(tl.int64)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = (start + tl.arange(0, BK)).to(tl.int64)
        left = tl.load(a + row * a_row + k[None, :] * a_col, mask=(row < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * b_row + col * b_col, mask=(k[:, None] < K) & (col < N), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + row * N + col, total, mask=(row < M) & (col < N))


def matmul(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel():
        _tile[triton.cdiv(M, 64), triton.cdiv(N, 64)](a, b, c, M, N, K, *a.stride(), *b.stride(), BM=64, BN=64, BK=32)
    return c


print(check("matmul", matmul, device="cpu", level="quick", compute="tf32"))
