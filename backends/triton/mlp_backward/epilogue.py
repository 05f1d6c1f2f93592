"""epilogue: elementwise steps act on accumulators; column sums ride along with the weight gradients."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.activations import activate, activation_slope
from touchstone.backends.triton.lib.gemm import default_tile, options
from touchstone.backends.triton.matmul import tuned as matmul
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _activated_kernel(
    a_ptr,
    b_ptr,
    bias_ptr,
    z_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_bias,
    BACKWARD: tl.constexpr,
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
    inside = (m[:, None] < M) & (n[None, :] < N)
    z_tile = z_ptr + m[:, None] * N + n[None, :]
    if BACKWARD:  # a·b is the gradient of the hidden tensor
        acc *= activation_slope(tl.load(z_tile, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    else:
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + n * stride_bias, mask=n < N, other=0.0).to(tl.float32)[None, :]
        tl.store(z_tile, acc.to(z_ptr.dtype.element_ty), mask=inside)
        acc = activate(acc, ACTIVATION)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _weight_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    sum_ptr,
    M,
    N,
    K,
    stride_ak,
    stride_am,
    stride_bk,
    stride_bn,
    PRECISION: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """c = aᵀ·b for a (K, M) and b (K, N), and the sum of b over K in the programs of the first tile row."""
    tiles_m, tiles_n = tl.maximum(tl.cdiv(M, BLOCK_M), 1), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    tile_m = first + within % height
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (within // height).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    a_rows = a_ptr + m[:, None] * stride_am
    b_cols = b_ptr + n[None, :] * stride_bn
    if sum_ptr is not None:  # noqa: SIM102 - the compiler prunes on the first condition and branches on the second
        if tile_m == 0:  # a loop of its own: a second use of b below would take it out of the asynchronous pipeline
            total = tl.zeros((BLOCK_N,), tl.float32)
            for start in range(0, K, BLOCK_K):
                k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
                b = tl.load(b_cols + k[:, None] * stride_bk, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
                total += tl.sum(b.to(tl.float32), axis=0)
            tl.store(sum_ptr + n, total.to(sum_ptr.dtype.element_ty), mask=n < N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a = tl.load(a_rows + k[None, :] * stride_ak, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_cols + k[:, None] * stride_bk, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    c = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c, mask=(m[:, None] < M) & (n[None, :] < N))


def _activated(a, b, bias, z: torch.Tensor, activation: str, backward: bool) -> torch.Tensor:
    """act(a·b + bias), keeping the argument of act in z; or, backward, (a·b)·act'(z)."""
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    if c.numel():
        config = pinned("mlp_backward.epilogue", a.dtype, (M, N, K), default_tile(a.dtype, M, N))
        grid = (ceil_div(M, config["BLOCK_M"]) * ceil_div(N, config["BLOCK_N"]),)
        _activated_kernel[grid](
            a,
            b,
            bias,
            z,
            c,
            M,
            N,
            K,
            *a.stride(),
            *b.stride(),
            0 if bias is None else bias.stride(0),
            BACKWARD=backward,
            ACTIVATION=activation,
            PRECISION="ieee",
            **config,
        )
    return c


def _weight(a: torch.Tensor, b: torch.Tensor, with_sum: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """aᵀ·b (M, N) of a (K, M) and b (K, N), and the column sums of b (N,) if asked for."""
    (K, M), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    total = a.new_empty(N) if with_sum else None
    config = pinned("mlp_backward.epilogue", a.dtype, (M, N, K), default_tile(a.dtype, M, N))
    rows = max(ceil_div(M, config["BLOCK_M"]), 1 if with_sum else 0)
    grid = (rows * ceil_div(N, config["BLOCK_N"]),)
    if grid[0]:
        _weight_kernel[grid](a, b, c, total, M, N, K, *a.stride(), *b.stride(), PRECISION="ieee", **config)
    return c, total


_SPACE = [
    options(*each)
    for each in [
        (16, 64, 128, 4, 4),
        (64, 64, 64, 4, 4),
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
    dy: torch.Tensor,
    *,
    activation: str = "gelu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None, dy (M, N); dx, dw1, db1, dw2, db2.

    Any sizes and strides; db1 and db2 are None where the bias is. Source: [oneflow2022].
    """
    M, _, H, _ = shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    check_activation(activation)
    z = x.new_empty(M, H)
    hidden = _activated(x, w1, b1, z, activation, backward=False)
    dz = _activated(dy, w2.t(), None, z, activation, backward=True)
    dw2, db2 = _weight(hidden, dy, b2 is not None)
    dw1, db1 = _weight(x, dz, b1 is not None)
    return matmul(dz, w1.t()), dw1, db1, dw2, db2
