"""fused: both products in one kernel, the hidden tensor in registers only."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib.activations import activate
from touchstone.backends.variants import variant


@triton.jit
def _fused_kernel(
    x_ptr,
    w1_ptr,
    b1_ptr,
    w2_ptr,
    b2_ptr,
    y_ptr,
    M,
    D,
    H,
    N,
    stride_xm,
    stride_xd,
    stride_w1d,
    stride_w1h,
    stride_b1,
    stride_w2h,
    stride_w2n,
    stride_b2,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    m = (tile // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tile % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows = x_ptr + m[:, None] * stride_xm
    w2_cols = w2_ptr + n[None, :] * stride_w2n
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, H, BLOCK_H):
        h = (first + tl.arange(0, BLOCK_H)).to(tl.int64)
        w1_cols = w1_ptr + h[None, :] * stride_w1h
        z = tl.zeros((BLOCK_M, BLOCK_H), tl.float32)
        for start in range(0, D, BLOCK_D):
            d = (start + tl.arange(0, BLOCK_D)).to(tl.int64)
            x = tl.load(x_rows + d[None, :] * stride_xd, mask=(m[:, None] < M) & (d[None, :] < D), other=0.0)
            w1 = tl.load(w1_cols + d[:, None] * stride_w1d, mask=(d[:, None] < D) & (h[None, :] < H), other=0.0)
            z = tl.dot(x, w1, z, input_precision=PRECISION)
        if b1_ptr is not None:
            z += tl.load(b1_ptr + h * stride_b1, mask=h < H, other=0.0).to(tl.float32)[None, :]
        hidden = activate(z, ACTIVATION).to(w2_ptr.dtype.element_ty)  # act(0) = 0 beyond column H
        w2 = tl.load(w2_cols + h[:, None] * stride_w2h, mask=(h[:, None] < H) & (n[None, :] < N), other=0.0)
        acc = tl.dot(hidden, w2, acc, input_precision=PRECISION)
    if b2_ptr is not None:
        acc += tl.load(b2_ptr + n * stride_b2, mask=n < N, other=0.0).to(tl.float32)[None, :]
    y = acc.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + m[:, None] * N + n[None, :], y, mask=(m[:, None] < M) & (n[None, :] < N))


@variant()
def fused(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any sizes and strides.

    Each tile of y makes its own hidden rows, so beyond N = 256 (float32: 64) the first product is done again for
    every tile of N columns: it pays for a narrow output only (docs/claims.md). Source: [muller2021].
    """
    M, D, H, N = shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    check_activation(activation)
    y = x.new_empty(M, N)
    if y.numel() == 0:
        return y
    block_m = 16 if M <= 16 else 64
    block_k, widest = (32, 64) if x.dtype is torch.float32 else (64, 256)
    block_n = min(max(next_power_of_2(N), 64), widest)
    strides = (0 if b is None else b.stride(0) for b in (b1, b2))
    grid = (ceil_div(M, block_m) * ceil_div(N, block_n),)
    _fused_kernel[grid](
        x,
        w1,
        b1,
        w2,
        b2,
        y,
        M,
        D,
        H,
        N,
        *x.stride(),
        *w1.stride(),
        next(strides),
        *w2.stride(),
        next(strides),
        ACTIVATION=activation,
        PRECISION="ieee",
        BLOCK_M=block_m,
        BLOCK_D=block_k,
        BLOCK_H=64,
        BLOCK_N=block_n,
        num_warps=8,
        num_stages=3,
    )
    return y
