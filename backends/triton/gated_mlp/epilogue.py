"""epilogue: one program accumulates the same tile of gate and of up, and stores their gated product."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.activations import activate
from touchstone.backends.triton.lib.gemm import default_two_tiles, options
from touchstone.backends.triton.matmul import tuned as matmul
from touchstone.backends.triton.runtime.tuning import pinned
from touchstone.backends.variants import variant


@triton.jit
def _gate_up_kernel(
    x_ptr,
    gate_ptr,
    up_ptr,
    hidden_ptr,
    M,
    H,
    D,
    stride_xm,
    stride_xd,
    stride_gd,
    stride_gh,
    stride_ud,
    stride_uh,
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
    x_rows = x_ptr + m[:, None] * stride_xm
    gate_cols = gate_ptr + h[None, :] * stride_gh
    up_cols = up_ptr + h[None, :] * stride_uh
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, D, BLOCK_K):
        d = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        inside = (d[:, None] < D) & (h[None, :] < H)
        x = tl.load(x_rows + d[None, :] * stride_xd, mask=(m[:, None] < M) & (d[None, :] < D), other=0.0)
        w_gate = tl.load(gate_cols + d[:, None] * stride_gd, mask=inside, other=0.0)
        w_up = tl.load(up_cols + d[:, None] * stride_ud, mask=inside, other=0.0)
        gate = tl.dot(x, w_gate, gate, input_precision=PRECISION)
        up = tl.dot(x, w_up, up, input_precision=PRECISION)
    hidden = (activate(gate, ACTIVATION) * up).to(hidden_ptr.dtype.element_ty)
    tl.store(hidden_ptr + m[:, None] * H + h[None, :], hidden, mask=(m[:, None] < M) & (h[None, :] < H))


_SPACE = [
    options(*each)
    for each in [
        (16, 64, 64, 4, 4),
        (64, 64, 64, 4, 4),
        (64, 128, 64, 4, 3),
        (128, 64, 64, 4, 4),
        (128, 64, 64, 8, 4),
        (128, 128, 64, 8, 3),
        (128, 128, 32, 8, 4),
        (64, 64, 32, 8, 2),
        (128, 64, 16, 8, 3),
        (64, 64, 16, 4, 3),
    ]
]


@variant(space=_SPACE)
def epilogue(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides. Source: [cutlass2022]."""
    M, D, H, _ = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    check_activation(activation)
    hidden = x.new_empty(M, H)
    if hidden.numel():
        config = pinned("gated_mlp.epilogue", x.dtype, (M, H, D), default_two_tiles(x.dtype, M, H))
        grid = (ceil_div(M, config["BLOCK_M"]) * ceil_div(H, config["BLOCK_N"]),)
        _gate_up_kernel[grid](
            x,
            w_gate,
            w_up,
            hidden,
            M,
            H,
            D,
            *x.stride(),
            *w_gate.stride(),
            *w_up.stride(),
            ACTIVATION=activation,
            PRECISION="ieee",
            **config,
        )
    return matmul(hidden, w_down)
