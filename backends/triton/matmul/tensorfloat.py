"""tf32, tf32x3: float32 operands on the tensor cores. 16-bit operands run there anyway and lose nothing."""

import torch

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.gemm import default_tile, options
from touchstone.backends.triton.matmul._grouped import grouped_kernel
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant

_SPACE = [
    options(*each)
    for each in [
        (64, 64, 32, 4, 3),
        (64, 128, 32, 4, 3),
        (128, 64, 32, 4, 4),
        (128, 128, 32, 4, 3),
        (128, 128, 32, 8, 3),
        (128, 128, 32, 8, 4),
        (128, 128, 64, 8, 2),
        (128, 256, 32, 8, 3),
    ]
]


@variant(compute="tf32", space=_SPACE, spills=1792)  # as tuned
def tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. float32 operands keep 10 bits of mantissa [xlite2025]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    config = pinned("matmul.tf32", a.dtype, (M, N, K), _default_tf32(a.dtype, M, N))
    grid = (ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"]),)
    grouped_kernel[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), PRECISION="tf32", **config)
    return c


@variant(compute="tf32x3", space=_SPACE, spills=1792)  # as tuned
def tf32x3(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) by (K, N) gives (M, N); any sizes and strides. float32 operands keep 21 bits of mantissa [ootomo2022]."""
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if M == 0 or N == 0:
        return c
    config = pinned("matmul.tf32x3", a.dtype, (M, N, K), _default_tf32x3(a.dtype, M, N))
    grid = (ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"]),)
    grouped_kernel[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), PRECISION="tf32x3", **config)
    return c


def _default_tf32(dtype: torch.dtype, M: int, N: int) -> dict[str, int]:
    return options(128 if M > 64 else 64, 128, 32, 8, 3) if dtype is torch.float32 else default_tile(dtype, M, N)


def _default_tf32x3(dtype: torch.dtype, M: int, N: int) -> dict[str, int]:
    """Narrower, since sm_80 spills at 128 columns; with 4 warps each cuts fewer operands again that others cut too."""
    if dtype is torch.float32:
        return options(128, 64, 32, 4, 4) if M > 64 else options(64, 64, 32, 8, 3)
    return default_tile(dtype, M, N)
