"""fused: one launch for the hidden layer's gradient, one for everything that follows from it."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.activations import activate, activation_slope
from touchstone.backends.triton.lib.gemm import default_tile, default_two_tiles, options
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _hidden_kernel(
    x_ptr,
    w1_ptr,
    b1_ptr,
    w2_ptr,
    dy_ptr,
    hidden_ptr,
    dz_ptr,
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
    stride_dym,
    stride_dyn,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_m, tiles_h = tl.cdiv(M, BLOCK_M), tl.cdiv(H, BLOCK_N)
    tile = tl.program_id(0)
    first = tile // (GROUP_M * tiles_h) * GROUP_M  # tile row that the group starts with; the last group may be lower
    height = min(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_h)
    m = (first + within % height).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    h = (within // height).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows, dy_rows = x_ptr + m[:, None] * stride_xm, dy_ptr + m[:, None] * stride_dym
    w1_cols, w2_cols = w1_ptr + h[None, :] * stride_w1h, w2_ptr + h[None, :] * stride_w2h
    z = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, D, BLOCK_K):
        d = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        x = tl.load(x_rows + d[None, :] * stride_xd, mask=(m[:, None] < M) & (d[None, :] < D), other=0.0)
        w1 = tl.load(w1_cols + d[:, None] * stride_w1d, mask=(d[:, None] < D) & (h[None, :] < H), other=0.0)
        z = tl.dot(x, w1, z, input_precision=PRECISION)
    if b1_ptr is not None:
        z += tl.load(b1_ptr + h * stride_b1, mask=h < H, other=0.0).to(tl.float32)[None, :]
    inside = (m[:, None] < M) & (h[None, :] < H)
    at = m[:, None] * H + h[None, :]
    tl.store(hidden_ptr + at, activate(z, ACTIVATION).to(hidden_ptr.dtype.element_ty), mask=inside)
    slope = activation_slope(z, ACTIVATION)
    dhidden = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, N, BLOCK_K):
        n = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        dy = tl.load(dy_rows + n[None, :] * stride_dyn, mask=(m[:, None] < M) & (n[None, :] < N), other=0.0)
        w2 = tl.load(w2_cols + n[:, None] * stride_w2n, mask=(n[:, None] < N) & (h[None, :] < H), other=0.0)
        dhidden = tl.dot(dy, w2, dhidden, input_precision=PRECISION)
    tl.store(dz_ptr + at, (dhidden * slope).to(dz_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _product(
    a_ptr,
    b_ptr,
    c_ptr,
    sum_ptr,
    tile,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    PRECISION: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Tile number `tile` of c = a·b, and with it, in the first tile row, the sum of b over K."""
    tiles_m, tiles_n = tl.maximum(tl.cdiv(M, BLOCK_M), 1), tl.cdiv(N, BLOCK_N)
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


@triton.jit
def _gradients_kernel(
    x_ptr,
    w1_ptr,
    dy_ptr,
    hidden_ptr,
    dz_ptr,
    dx_ptr,
    dw1_ptr,
    db1_ptr,
    dw2_ptr,
    db2_ptr,
    M,
    D,
    H,
    N,
    stride_xm,
    stride_xd,
    stride_w1d,
    stride_w1h,
    stride_dym,
    stride_dyn,
    PRECISION: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Longer than a screen: the parameters and the arguments of the three calls of `_product` stand one to a line; the
    rest chooses between them.
    """
    tile = tl.program_id(0)
    tiles_dw1 = tl.maximum(tl.cdiv(D, BLOCK_M), 1) * tl.cdiv(H, BLOCK_N)
    tiles_dw2 = tl.maximum(tl.cdiv(H, BLOCK_M), 1) * tl.cdiv(N, BLOCK_N)
    if tile < tiles_dw1:
        _product(
            x_ptr,
            dz_ptr,
            dw1_ptr,
            db1_ptr,
            tile,
            D,
            H,
            M,
            stride_xd,
            stride_xm,
            H,
            1,
            PRECISION,
            GROUP_M,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    elif tile < tiles_dw1 + tiles_dw2:
        _product(
            hidden_ptr,
            dy_ptr,
            dw2_ptr,
            db2_ptr,
            tile - tiles_dw1,
            H,
            N,
            M,
            1,
            H,
            stride_dym,
            stride_dyn,
            PRECISION,
            GROUP_M,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )
    else:
        _product(
            dz_ptr,
            w1_ptr,
            dx_ptr,
            None,
            tile - tiles_dw1 - tiles_dw2,
            M,
            D,
            H,
            H,
            1,
            stride_w1h,
            stride_w1d,
            PRECISION,
            GROUP_M,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
        )


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
def fused(
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
    M, D, H, N = shapes("M D, D H, H?, H N, N?, M N", x=x, w1=w1, b1=b1, w2=w2, b2=b2, dy=dy)
    check_activation(activation)
    hidden, dz = x.new_empty(M, H), x.new_empty(M, H)
    if hidden.numel():
        config = default_two_tiles(x.dtype, M, H)
        grid = (ceil_div(M, config["BLOCK_M"]) * ceil_div(H, config["BLOCK_N"]),)
        _hidden_kernel[grid](
            x,
            w1,
            b1,
            w2,
            dy,
            hidden,
            dz,
            M,
            D,
            H,
            N,
            *x.stride(),
            *w1.stride(),
            0 if b1 is None else b1.stride(0),
            *w2.stride(),
            *dy.stride(),
            ACTIVATION=activation,
            PRECISION="ieee",
            **config,
        )
    dx, dw1, dw2 = x.new_empty(M, D), x.new_empty(D, H), x.new_empty(H, N)
    db1 = None if b1 is None else x.new_empty(H)
    db2 = None if b2 is None else x.new_empty(N)
    config = pinned("mlp_backward.fused", x.dtype, (M, D, H, N), default_tile(x.dtype, D, H))
    rows, cols = config["BLOCK_M"], config["BLOCK_N"]
    tiles = max(ceil_div(D, rows), 1) * ceil_div(H, cols) + max(ceil_div(H, rows), 1) * ceil_div(N, cols)
    tiles += ceil_div(M, rows) * ceil_div(D, cols)
    if tiles:
        _gradients_kernel[(tiles,)](
            x,
            w1,
            dy,
            hidden,
            dz,
            dx,
            dw1,
            db1,
            dw2,
            db2,
            M,
            D,
            H,
            N,
            *x.stride(),
            *w1.stride(),
            *dy.stride(),
            PRECISION="ieee",
            **config,
        )
    return dx, dw1, db1, dw2, db2
