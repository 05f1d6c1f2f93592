"""wgmma: epilogue on the warpgroups of Hopper."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.cupy.lib.gemm import SQUARE, STRIP, by_warpgroups, ceil_div, processors
from touchstone.backends.cupy.matmul import wgmma as matmul
from touchstone.backends.cupy.runtime.hopper import TensorMap, along_last
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "wgmma.cu")


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
    _module.launch(
        "gated_mlp_wgmma",
        tiles.blocks,
        tiles.threads,
        TensorMap(left, SQUARE),
        TensorMap(gate, SQUARE),
        TensorMap(up, SQUARE),
        TensorMap(hidden, STRIP),
        hidden,
        M,
        H,
        D,
        dtype=x.dtype,
        shared=tiles.shared,
        arch="sm_90a",
        A_ALONG_K=a_along_k,
        B_ALONG_K=b_along_k,
        ACTIVATION=kind,
        **tiles.definitions,
    )
    return matmul(hidden, w_down)
