"""epilogue: bias and activation are applied where the product still is in registers."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.activations import activate
from touchstone.backends.triton.lib.gemm import default_tile, options
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _linear_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_bias,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
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
    m = (first + within % height).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (within // height).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    a_rows = a_ptr + m[:, None] * stride_am
    b_cols = b_ptr + n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a = tl.load(a_rows + k[None, :] * stride_ak, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_cols + k[:, None] * stride_bk, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + n * stride_bias, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION is not None:
        acc = activate(acc, ACTIVATION)
    c = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c, mask=(m[:, None] < M) & (n[None, :] < N))


def _linear(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None) -> torch.Tensor:
    """act(a·b + bias): (M, K), (K, N) and (N,) or None give (M, N)."""
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    if c.numel():
        config = pinned("mlp.epilogue", a.dtype, (M, N, K), default_tile(a.dtype, M, N))
        grid = (ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"]),)
        stride = 0 if bias is None else bias.stride(0)
        _linear_kernel[grid](
            a, b, bias, c, M, N, K, *a.stride(), *b.stride(), stride, ACTIVATION=activation, PRECISION="ieee", **config
        )
    return c


_SPACE = [
    options(*each)
    for each in [
        (16, 64, 128, 4, 4),
        (64, 64, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
        (256, 128, 64, 8, 3),
        (64, 64, 32, 4, 3),
        (128, 64, 16, 4, 4),
        (128, 128, 16, 8, 3),
    ]
]


@variant(space=_SPACE)
def epilogue(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any sizes and strides.

    Source: [cublas2019].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    check_activation(activation)
    hidden = _linear(x, w1, b1, activation)
    return _linear(hidden, w2, b2, None)
