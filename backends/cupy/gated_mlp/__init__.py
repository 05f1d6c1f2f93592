"""gated_mlp(x, w_gate, w_up, w_down): (act(x·w_gate)·(x·w_up))·w_down; x (M, D), w_gate, w_up (D, H), w_down (H, N).

unfused: three products and an elementwise kernel between them [shazeer2020]
epilogue: a block multiplies columns of gate and of up side by side; they meet in its threads' registers [cutlass2022]
tensorcore: the same on mma.sync, for 16-bit operands [cutlass2022]
wgmma: the same on warpgroups; the tile's columns are half gate's and half up's, which meet in a thread [colfax2024]
"""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy import matmul
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.gemm import (
    SQUARE,
    STRIP,
    Tiling,
    by_lane_pairs,
    by_warpgroups,
    by_warps,
    processors,
    sixteen_bits,
)
from touchstone.backends.cupy.runtime.hopper import TensorMap, along_last
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_unfused = Module(__file__, "unfused.cu")
_epilogue = Module(__file__, "epilogue.cu")
_tensorcore = Module(__file__, "tensorcore.cu")
_wgmma = Module(__file__, "wgmma.cu")


@variant()
def unfused(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides. Source: [shazeer2020]."""
    shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    kind = number(activation)
    gate, up = matmul.warptiled(x, w_gate), matmul.warptiled(x, w_up)
    if gate.numel():
        grid = ceil_div(gate.numel(), 256)
        _unfused.launch("gated_mlp_act_mul", grid, 256, gate, up, gate.numel(), kind, dtype=gate.dtype)
    return matmul.warptiled(gate, w_down)


@variant()
def epilogue(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any sizes and strides. Source: [cutlass2022]."""
    M, _, H, _ = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    hidden = _hidden(_epilogue, by_lane_pairs(M, H), x, w_gate, w_up, number(activation))
    return matmul.warptiled(hidden, w_down)


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Any strides. Declines float32. See [cutlass2022]."""
    M, _, H, _ = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden = _hidden(_tensorcore, by_warps(M, H, together=2), x, w_gate, w_up, kind)
    return matmul.tensorcore(hidden, w_down)


@variant(needs="sm_90a", dtypes=HALF)
def wgmma(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """x (M, D), w_gate and w_up (D, H), w_down (H, N); y (M, N). Of each either axis contiguous, of w_gate and w_up the
    same.

    Declines float32, and what the copy engine does not take (no axis of stride 1, the other's not a multiple of 16
    bytes, a start that is not 16-byte aligned). Source: [colfax2024].
    """
    M, D, H, N = shapes("M D, D H, D H, H N", x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    kind = number(activation)
    if x.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    if 0 in (M, D, H, N):
        return x.new_zeros(M, N)
    left, a_along_k = along_last("x", x)
    gate, b_along_k = along_last("w_gate", w_gate.t())
    up, up_along_k = along_last("w_up", w_up.t())
    if up_along_k != b_along_k:
        raise Unsupported("w_up: the other axis is contiguous than of w_gate; they share a tile")
    hidden = x.new_empty(M, ceil_div(H, 8) * 8)[:, :H]  # rows on 16 bytes
    tiles = by_warpgroups(M, H, processors(x.device), together=2)
    maps = (TensorMap(left, SQUARE), TensorMap(gate, SQUARE), TensorMap(up, SQUARE), TensorMap(hidden, STRIP))
    config = {"A_ALONG_K": a_along_k, "B_ALONG_K": b_along_k, "ACTIVATION": kind, **tiles.definitions}
    _wgmma.launch(
        "gated_mlp_wgmma",
        tiles.blocks,
        tiles.threads,
        *maps,
        hidden,
        M,
        H,
        D,
        dtype=x.dtype,
        shared=tiles.shared,
        arch="sm_90a",
        **config,
    )
    return matmul.wgmma(hidden, w_down)


def _hidden(
    module: Module, tiles: Tiling, x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, activation: int
) -> torch.Tensor:
    """A new act(x·w_gate)·(x·w_up) (M, H)."""
    (M, D), H = x.shape, w_gate.shape[1]
    hidden = x.new_empty(M, H)
    if hidden.numel():
        strides = (*x.stride(), *w_gate.stride(), *w_up.stride())
        config = {"dtype": x.dtype, "shared": tiles.shared, **tiles.definitions}
        operands = (x, w_gate, w_up, hidden, M, H, D, *strides, activation)
        module.launch("gated_mlp_gate_up", tiles.blocks, tiles.threads, *operands, **config)
    return hidden
