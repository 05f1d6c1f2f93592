"""fused: all three products in one kernel, the hidden tensor in registers only."""

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
    gate_ptr,
    up_ptr,
    down_ptr,
    y_ptr,
    M,
    D,
    H,
    N,
    stride_xm,
    stride_xd,
    stride_gd,
    stride_gh,
    stride_ud,
    stride_uh,
    stride_dh,
    stride_dn,
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
    down_cols = down_ptr + n[None, :] * stride_dn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, H, BLOCK_H):
        h = (first + tl.arange(0, BLOCK_H)).to(tl.int64)
        gate = tl.zeros((BLOCK_M, BLOCK_H), tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_H), tl.float32)
        for start in range(0, D, BLOCK_D):
            d = (start + tl.arange(0, BLOCK_D)).to(tl.int64)
            inside = (d[:, None] < D) & (h[None, :] < H)
            x = tl.load(x_rows + d[None, :] * stride_xd, mask=(m[:, None] < M) & (d[None, :] < D), other=0.0)
            w_gate = tl.load(gate_ptr + d[:, None] * stride_gd + h[None, :] * stride_gh, mask=inside, other=0.0)
            w_up = tl.load(up_ptr + d[:, None] * stride_ud + h[None, :] * stride_uh, mask=inside, other=0.0)
            gate = tl.dot(x, w_gate, gate, input_precision=PRECISION)
            up = tl.dot(x, w_up, up, input_precision=PRECISION)
        hidden = (activate(gate, ACTIVATION) * up).to(down_ptr.dtype.element_ty)
        w_down = tl.load(down_cols + h[:, None] * stride_dh, mask=(h[:, None] < H) & (n[None, :] < N), other=0.0)
        acc = tl.dot(hidden, w_down, acc, input_precision=PRECISION)
    y = acc.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + m[:, None] * N + n[None, :], y, mask=(m[:, None] < M) & (n[None, :] < N))


@variant()
def fused(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides.

    Each tile of y makes its own hidden rows, so beyond N = 128 (float32: 64) gate and up are computed again for
    every tile of N columns: it pays for a narrow output only (docs/claims.md). Source: [muller2021].
    """
    M, D, H, N = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    check_activation(activation)
    y = x.new_empty(M, N)
    if y.numel() == 0:
        return y
    block_m = 16 if M <= 16 else 64
    block_k, widest = (32, 64) if x.dtype is torch.float32 else (64, 128)
    block_n = min(max(next_power_of_2(N), 64), widest)
    grid = (ceil_div(M, block_m) * ceil_div(N, block_n),)
    _fused_kernel[grid](
        x,
        w_gate,
        w_up,
        w_down,
        y,
        M,
        D,
        H,
        N,
        *x.stride(),
        *w_gate.stride(),
        *w_up.stride(),
        *w_down.stride(),
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
