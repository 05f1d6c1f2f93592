"""A linear layer whose tiles the copy engine moves: each product of mlp's, gated_mlp's and mlp_backward's `tma`."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.activations import activate, activation_slope
from touchstone.backends.triton.lib.gemm import descriptor, persistent_programs
from touchstone.backends.triton.runtime.ready import prepared


@triton.jit
def _finish(
    acc, bias_ptr, slope_desc, factor_desc, c_desc, m, n, N, stride_bias, ACTIVATION: tl.constexpr, COLS: tl.constexpr
):
    if bias_ptr is not None:
        col = (n + tl.arange(0, COLS)).to(tl.int64)
        acc += tl.load(bias_ptr + col * stride_bias, mask=col < N, other=0.0).to(tl.float32)[None, :]
    if slope_desc is not None:
        slope_desc.store([m, n], activation_slope(acc, ACTIVATION).to(slope_desc.dtype))
    if ACTIVATION is not None:
        acc = activate(acc, ACTIVATION)
    if factor_desc is not None:
        acc *= factor_desc.load([m, n]).to(tl.float32)
    c_desc.store([m, n], acc.to(c_desc.dtype))


@prepared
@triton.jit
def _tma_linear_kernel(
    a_desc,
    b_desc,
    bias_ptr,
    slope_desc,
    factor_desc,
    c_desc,
    M,
    N,
    K,
    stride_bias,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        first = tile // (GROUP_M * tiles_n) * GROUP_M
        height = min(tiles_m - first, GROUP_M)
        within = tile % (GROUP_M * tiles_n)
        m = (first + within % height) * BLOCK_M
        n = within // height * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([k, m]).T if A_TRANSPOSED else a_desc.load([m, k])
            b = b_desc.load([n, k]).T if B_TRANSPOSED else b_desc.load([k, n])
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        # finished by halves: activating the whole tile at once spills, and half of it takes half the shared memory
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        half: tl.constexpr = BLOCK_N // 2
        _finish(left, bias_ptr, slope_desc, factor_desc, c_desc, m, n, N, stride_bias, ACTIVATION, half)
        _finish(right, bias_ptr, slope_desc, factor_desc, c_desc, m, n + half, N, stride_bias, ACTIVATION, half)


def tma_linear(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    c: torch.Tensor,
    activation: str | None,
    names: tuple[str, str, str],
    config: dict[str, int],
    factor: torch.Tensor | None = None,
    slope: torch.Tensor | None = None,
) -> Callable[[], None]:
    """The launch of c = act(a·b + bias)·factor, checked and ready: all products are checked before the first one runs.

    `factor` is contiguous and may be c itself; `slope`, contiguous too, receives act'(a·b + bias).
    """
    (M, K), N = a.shape, b.shape[1]
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    a_desc, a_transposed = descriptor(a, names[0], block_m, block_k)
    b_desc, b_transposed = descriptor(b, names[1], block_k, block_n)
    c_desc, _ = descriptor(c, names[2], block_m, block_n // 2)
    slope_desc, factor_desc = (
        None if t is None else descriptor(t, names[2], block_m, block_n // 2)[0] for t in (slope, factor)
    )
    grid = (min(persistent_programs(a.device, config["num_warps"]), ceil_div(M, block_m) * ceil_div(N, block_n)),)
    return lambda: _tma_linear_kernel[grid](
        a_desc,
        b_desc,
        bias,
        slope_desc,
        factor_desc,
        c_desc,
        M,
        N,
        K,
        0 if bias is None else bias.stride(0),
        A_TRANSPOSED=a_transposed,
        B_TRANSPOSED=b_transposed,
        ACTIVATION=activation,
        PRECISION="ieee",
        **config,
    )
