"""tma: epilogue, with tiles moved by the copy engine and programs that stay for several tiles."""

import torch
import triton
import triton.language as tl

from backends import Unsupported, shapes
from backends.triton.activations import _activate, _check
from backends.triton.gemm import descriptor, options, resident
from backends.triton.matmul import tma as matmul
from backends.triton.tuning import pinned


@triton.jit
def _tma_gate_up_kernel(
    x_desc, gate_desc, up_desc, hidden_desc, M, H, D,
    X_TRANSPOSED: tl.constexpr, GATE_TRANSPOSED: tl.constexpr, UP_TRANSPOSED: tl.constexpr,
    ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_h = tl.cdiv(M, BLOCK_M), tl.cdiv(H, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_h, tl.num_programs(0), flatten=True):
        first = tile // (GROUP_M * tiles_h) * GROUP_M
        height = min(tiles_m - first, GROUP_M)
        within = tile % (GROUP_M * tiles_h)
        m = (first + within % height) * BLOCK_M
        h = within // height * BLOCK_N
        gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for d in range(0, D, BLOCK_K):
            x = x_desc.load([d, m]).T if X_TRANSPOSED else x_desc.load([m, d])
            w_gate = gate_desc.load([h, d]).T if GATE_TRANSPOSED else gate_desc.load([d, h])
            w_up = up_desc.load([h, d]).T if UP_TRANSPOSED else up_desc.load([d, h])
            gate = tl.dot(x, w_gate, gate, input_precision=PRECISION)
            up = tl.dot(x, w_up, up, input_precision=PRECISION)
        hidden_desc.store([m, h], (_activate(gate, ACTIVATION) * up).to(hidden_desc.dtype))


def tma(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N).

    Declines what a descriptor cannot describe (no axis of stride 1, rows not a multiple of 16 bytes apart, a start
    that is not 16-byte aligned) and D or H of 0. Source: S2-70.
    """
    M, D, H, N = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    _check(activation)
    if M == 0 or N == 0:
        return x.new_empty(M, N)
    if D == 0 or H == 0:
        raise Unsupported(f"D = {D}, H = {H}; a tensor descriptor describes no empty matrix")
    hidden = x.new_empty(M, H)
    config = pinned("gated_mlp.tma", x.dtype, (M, H, D), _default(x.dtype, M))
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    x_desc, x_transposed = descriptor("x", x, block_m, block_k)
    gate_desc, gate_transposed = descriptor("w_gate", w_gate, block_k, block_n)
    up_desc, up_transposed = descriptor("w_up", w_up, block_k, block_n)
    hidden_desc, _ = descriptor("the hidden tensor", hidden, block_m, block_n)
    descriptor("w_down", w_down, 16, 16)  # what the second product will decline, it declines before the first runs
    descriptor("the result", x.new_empty(1, N), 16, 16)
    grid = (min(resident(x.device, config["num_warps"]), triton.cdiv(M, block_m) * triton.cdiv(H, block_n)),)
    _tma_gate_up_kernel[grid](
        x_desc, gate_desc, up_desc, hidden_desc, M, H, D,
        X_TRANSPOSED=x_transposed, GATE_TRANSPOSED=gate_transposed, UP_TRANSPOSED=up_transposed,
        ACTIVATION=activation, PRECISION="ieee", **config,
    )  # fmt: skip
    return matmul(hidden, w_down)


def _default(dtype: torch.dtype, M: int) -> dict[str, int]:
    if dtype is torch.float32:
        return options(64, 64, 16, 8, 3)
    return options(64, 64, 64, 4, 4) if M <= 64 else options(128, 128, 64, 8, 3)


tma.needs = "sm_90"
tma.space = [
    options(*each)
    for each in [
        (64, 64, 64, 4, 4), (64, 128, 64, 4, 4), (128, 64, 64, 8, 4), (128, 128, 64, 8, 3), (128, 128, 64, 8, 4),
        (128, 128, 64, 8, 3, 16), (128, 128, 32, 8, 4), (64, 64, 16, 8, 3),
    ]
]  # fmt: skip
