"""Group norm: the channels of a sample in groups, each normalised over its channels and all trailing axes; weight and
bias by channel.

onerow: one program holds a group in registers as a (channels, space) tile, so x is read once [wuhe2018]
looped: tiles of a group in three passes, mean, variance and write, so a group may have any size and strides [desai2024]
welford: mean and variance in one pass that merges the statistics of tiles, 2 reads instead of 3 [chan1979]
"""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.signatures.group_norm import checked_sizes
from touchstone.backends.sizes import next_power_of_2
from touchstone.backends.triton.lib.rows import warps
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize_on_alignment=["stride_w", "stride_b"])
def _onerow_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xn,
    stride_xc,
    stride_xs,
    stride_w,
    stride_b,
    groups,
    channels,
    space,
    eps,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) // groups
    first = tl.program_id(0).to(tl.int64) % groups * channels
    x_ptr += n * stride_xn + first * stride_xc
    y_ptr += tl.program_id(0).to(tl.int64) * channels * space

    c = tl.arange(0, BLOCK_C).to(tl.int64)[:, None]
    s = tl.arange(0, BLOCK_S).to(tl.int64)[None, :]
    inside = (c < channels) & (s < space)
    x = tl.load(x_ptr + c * stride_xc + s * stride_xs, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x) / (channels * space)
    centred = tl.where(inside, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred) / (channels * space) + eps)

    y = centred * rstd * tl.load(w_ptr + (first + c) * stride_w, mask=c < channels, other=0.0).to(tl.float32)
    if b_ptr is not None:
        y += tl.load(b_ptr + (first + c) * stride_b, mask=c < channels, other=0.0).to(tl.float32)
    tl.store(y_ptr + c * space + s, y, mask=inside)


@variant()
def onerow(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Declines tiles of more than 32768 elements, the registers of one program, and trailing axes that no single stride
    reaches. Source: [wuhe2018].
    """
    samples, channels = checked_sizes(x, weight, bias, groups)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sizes, strides = _merge(x.shape[2:], x.stride()[2:])
    if len(sizes) > 1:
        raise Unsupported(f"trailing strides {x.stride()[2:]} of sizes {tuple(x.shape[2:])}; one stride must do")
    block_c, block_s = next_power_of_2(channels // groups), next_power_of_2(sizes[0])
    if block_c * block_s > 32768:
        raise Unsupported(f"a tile of {block_c} x {block_s} elements; one program holds 32768")
    if y.numel():
        steps = (*x.stride()[:2], *strides, *weight.stride(), bias.stride(0) if bias is not None else 0)
        _onerow_kernel[(samples * groups,)](
            x,
            weight,
            bias,
            y,
            *steps,
            groups,
            channels // groups,
            sizes[0],
            eps,
            BLOCK_C=block_c,
            BLOCK_S=block_s,
            num_warps=warps(block_c * block_s),
        )
    return y


@triton.jit
def _offset(index, sizes, strides):
    """The offset of a group's index-th element; its axes have these sizes and strides, the last one runs fastest."""
    offset = tl.zeros_like(index).to(tl.int64)
    for axis in tl.static_range(len(sizes) - 1, 0, -1):
        offset += (index % sizes[axis]).to(tl.int64) * strides[axis]
        index = index // sizes[axis]
    return offset + index.to(tl.int64) * strides[0]


@triton.jit(do_not_specialize_on_alignment=["stride_w", "stride_b"])
def _looped_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xn,
    stride_xc,
    sizes,
    strides,
    stride_w,
    stride_b,
    groups,
    channels,
    space,
    count,
    eps,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) // groups
    first = tl.program_id(0).to(tl.int64) % groups * channels
    x_ptr += n * stride_xn + first * stride_xc
    y_ptr += tl.program_id(0).to(tl.int64) * count

    mean = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mean += tl.load(x_ptr + _offset(i, sizes, strides), mask=i < count, other=0.0).to(tl.float32)
    mean = tl.sum(mean, axis=0) / count

    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + _offset(i, sizes, strides), mask=i < count, other=0.0).to(tl.float32)
        centred = tl.where(i < count, x - mean, 0.0)
        square += centred * centred
    rstd = tl.rsqrt(tl.sum(square, axis=0) / count + eps)

    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < count
        c = first + i // space
        x = tl.load(x_ptr + _offset(i, sizes, strides), mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(w_ptr + c * stride_w, mask=inside, other=0.0).to(tl.float32)
        if b_ptr is not None:
            y += tl.load(b_ptr + c * stride_b, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + i, y, mask=inside)


@variant()
def looped(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Takes any size and strides; x is read three times. Source: [wuhe2018], [desai2024].
    """
    return _launch(_looped_kernel, x, weight, bias, groups, eps)


@triton.jit(do_not_specialize_on_alignment=["stride_w", "stride_b"])
def _welford_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    stride_xn,
    stride_xc,
    sizes,
    strides,
    stride_w,
    stride_b,
    groups,
    channels,
    space,
    count,
    eps,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) // groups
    first = tl.program_id(0).to(tl.int64) % groups * channels
    x_ptr += n * stride_xn + first * stride_xc
    y_ptr += tl.program_id(0).to(tl.int64) * count

    mean = tl.full((), 0.0, tl.float32)
    square = tl.full((), 0.0, tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + _offset(i, sizes, strides), mask=i < count, other=0.0).to(tl.float32)
        here = tl.minimum(count - start, BLOCK)
        tile_mean = tl.sum(x, axis=0) / here
        centred = tl.where(i < count, x - tile_mean, 0.0)
        # The first `start` elements have (mean, square); the `here` elements of this tile join them.
        delta = tile_mean - mean
        share = here / (start + here)
        mean += delta * share
        square += tl.sum(centred * centred, axis=0) + delta * delta * share * start
    rstd = tl.rsqrt(square / count + eps)

    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < count
        c = first + i // space
        x = tl.load(x_ptr + _offset(i, sizes, strides), mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(w_ptr + c * stride_w, mask=inside, other=0.0).to(tl.float32)
        if b_ptr is not None:
            y += tl.load(b_ptr + c * stride_b, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + i, y, mask=inside)


@variant()
def welford(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Takes any size and strides; x is read twice. Source: [chan1979].
    """
    return _launch(_welford_kernel, x, weight, bias, groups, eps)


def _merge(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The fewest axes that visit the same elements in the same order; at least one."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        elif size != 1:
            axes.append((size, stride))
    return tuple(size for size, _ in axes) or (1,), tuple(stride for _, stride in axes) or (1,)


def _launch(
    kernel, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int, eps: float
) -> torch.Tensor:
    samples, channels = checked_sizes(x, weight, bias, groups)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        space = math.prod(x.shape[2:])
        sizes, strides = _merge((channels // groups, *x.shape[2:]), x.stride()[1:])
        steps = (*x.stride()[:2], sizes, strides, *weight.stride(), bias.stride(0) if bias is not None else 0)
        count = channels // groups * space
        block = min(next_power_of_2(count), 8192)
        counts = (groups, channels // groups, space, count)
        kernel[(samples * groups,)](x, weight, bias, y, *steps, *counts, eps, BLOCK=block, num_warps=warps(block))
    return y
