"""mlp(x, w1, b1, w2, b2): act(x·w1 + b1)·w2 + b2 for x (M, D), w1 (D, H), w2 (H, N).

unfused: two products and an elementwise kernel after each, so the hidden tensor travels four times [vaswani2017]
epilogue: bias and activation act on the accumulators before they are stored; elementwise passes are gone [cublas2019]
tensorcore: the same epilogue on mma.sync, for 16-bit operands [cublas2019]
wgmma: the same epilogue on warpgroups, which multiply tiles that the copy engine brings [colfax2024]
"""

from collections.abc import Callable

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy import matmul
from touchstone.backends.cupy.lib.activations import NONE, number
from touchstone.backends.cupy.lib.gemm import (
    STRIP,
    Tiling,
    by_lanes,
    by_warpgroups,
    by_warps,
    mapped,
    processors,
    sixteen_bits,
)
from touchstone.backends.cupy.runtime.hopper import TensorMap
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_unfused = Module(__file__, "unfused.cu")
_epilogue = Module(__file__, "epilogue.cu")
_tensorcore = Module(__file__, "tensorcore.cu")
_wgmma = Module(__file__, "wgmma.cu")


@variant()
def unfused(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any sizes and strides.

    Source: [vaswani2017].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    hidden = matmul.warptiled(x, w1)
    _bias_act(hidden, b1, kind)
    y = matmul.warptiled(hidden, w2)
    _bias_act(y, b2, NONE)
    return y


@variant()
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
    hidden = _linear(_epilogue, by_lanes, x, w1, b1, number(activation))
    return _linear(_epilogue, by_lanes, hidden, w2, b2, NONE)


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Any strides. Declines float32.

    Source: [cublas2019].
    """
    shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    sixteen_bits(x.dtype)
    hidden = _linear(_tensorcore, by_warps, x, w1, b1, kind)
    return _linear(_tensorcore, by_warps, hidden, w2, b2, NONE)


@variant(needs="sm_90a", dtypes=HALF)
def wgmma(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """x (M, D), w1 (D, H), b1 (H,) or None, w2 (H, N), b2 (N,) or None; y (M, N). Of x, w1, w2 either axis contiguous.

    Declines float32, and of x, w1 and w2 what the copy engine does not take (no axis of stride 1, the other's not a
    multiple of 16 bytes, a start that is not 16-byte aligned). Source: [colfax2024].
    """
    M, _, H, N = shapes("M D, D H, H?, H N, N?", x=x, w1=w1, b1=b1, w2=w2, b2=b2)
    kind = number(activation)
    if x.dtype is torch.float32:
        raise Unsupported("float32; wgmma multiplies 16-bit operands, or float32 rounded to tf32")
    hidden = x.new_empty(M, ceil_div(H, 8) * 8)[:, :H]  # rows on 16 bytes
    _linear_by_warpgroups(x, w1, b1, kind, hidden, names=("x", "w1"))
    return _linear_by_warpgroups(hidden, w2, b2, NONE, x.new_empty(M, N), names=("hidden", "w2"))


def _bias_act(z: torch.Tensor, bias: torch.Tensor | None, activation: int) -> None:
    """z = act(z + bias) in place, for a contiguous z (rows, cols)."""
    if z.numel() and (bias is not None or activation != NONE):
        stride = 0 if bias is None else bias.stride(0)
        grid = ceil_div(z.numel(), 256)
        _unfused.launch("mlp_bias_act", grid, 256, z, bias, z.numel(), z.shape[1], stride, activation, dtype=z.dtype)


def _linear(
    module: Module,
    tiles_of: Callable[[int, int], Tiling],
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: int,
) -> torch.Tensor:
    """A new act(a·b + bias): (M, K), (K, N) and (N,) or None give (M, N), in the tiles that `tiles_of(M, N)` gives."""
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    if c.numel():
        tiles = tiles_of(M, N)
        operands = (a, b, bias, c, M, N, K, *a.stride(), *b.stride(), 0 if bias is None else bias.stride(0))
        config = {"dtype": a.dtype, "shared": tiles.shared, **tiles.definitions}
        module.launch("mlp_linear", tiles.blocks, tiles.threads, *operands, activation, **config)
    return c


def _linear_by_warpgroups(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    activation: int,
    c: torch.Tensor,
    names: tuple[str, str],
) -> torch.Tensor:
    """c = act(a·b + bias): (M, K), (K, N) and (N,) or None give (M, N), rows of c one pitch apart. `names` of a, b."""
    (M, K), N = a.shape, b.shape[1]
    if c.numel():
        maps, layouts = mapped(a, b, names)
        of_c = TensorMap(c, STRIP) if c.stride(0) % 8 == 0 else None
        tiles = by_warpgroups(M, N, processors(a.device))
        operands = (*maps, of_c, bias, c, M, N, K, c.stride(0), 0 if bias is None else bias.stride(0))
        config = {"dtype": a.dtype, "shared": tiles.shared, "arch": "sm_90a", **layouts, **tiles.definitions}
        _wgmma.launch("mlp_wgmma", tiles.blocks, tiles.threads, *operands, ACTIVATION=activation, **config)
    return c
