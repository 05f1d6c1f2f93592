"""Group norm: the channels of a sample in groups, each normalised over its channels and all trailing axes; weight and
bias by channel.

naive: one thread per group, of any size and strides, three passes over x [wuhe2018]
warp: one warp per group, which its lanes hold in registers; mean and variance by shuffles, so x is read once [wuhe2018]
block: one block per group of any size and strides, in three passes, mean, variance and write [desai2024]
streamed: one stride, accesses of 16 bytes, four under way; passes two and three find x in L2 where it fits [desai2024]
vectorised: the block keeps its group in shared memory and moves 16 bytes at a time: one read, one write [oneflow2021]
"""

import math
from collections.abc import Sequence

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.lib.norms import threads, vector_width
from touchstone.backends.cupy.lib.rows import WARP_COLS, blocks, warp_grid
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, Module, shared_limit
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_streamed = Module(__file__, "streamed.cu")
_vectorised = Module(__file__, "vectorised.cu")
_AXES = 6  # Group::most in the kernels
_SUMS = 128  # bytes of shared memory that block_sum takes


@variant()
def naive(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Takes any size and strides, as far as a group's axes merge into 6; x is read three times. Source: [wuhe2018].
    """
    samples, channels, space = _check(x, weight, bias, groups)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    axes = _axes(x, channels)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias))
        grid = -(-samples * groups // 128)
        _scalar.launch(
            "group_norm_naive", grid, 128, *operands, samples, groups, channels, space, eps, *axes, dtype=x.dtype
        )
    return y


@variant()
def warp(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Declines groups of more than 1024 elements, what one warp holds. Source: [wuhe2018].
    """
    samples, channels, space = _check(x, weight, bias, groups)
    if channels * space > WARP_COLS:
        raise Unsupported(f"groups of {channels * space} elements; one warp holds {WARP_COLS}")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    axes = _axes(x, channels)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias))
        _scalar.launch(
            "group_norm_warp",
            *warp_grid(samples * groups),
            *operands,
            samples,
            groups,
            channels,
            space,
            eps,
            *axes,
            dtype=x.dtype,
        )
    return y


@variant()
def block(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Takes any size and strides, as far as a group's axes merge into 6; x is read three times [wuhe2018] [desai2024].
    """
    samples, channels, space = _check(x, weight, bias, groups)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    axes = _axes(x, channels)
    if y.numel():
        operands = (x, weight, bias, y, *_strides(x, weight, bias))
        grid, size = min(samples * groups, GRID_LIMIT[0]), threads(channels * space)
        _scalar.launch(
            "group_norm_block", grid, size, *operands, samples, groups, channels, space, eps, *axes, dtype=x.dtype
        )
    return y


@variant()
def streamed(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Takes any size; declines groups that no single stride reaches. Those that are not contiguous and aligned to 16 bytes
    move an element at a time. Source: [desai2024].
    """
    samples, channels, space = _check(x, weight, bias, groups)
    between = _one_stride(x, samples, groups, channels)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        length = vector_width(x.as_strided(*between), y.view(between[0]))
        operands = (x, weight, bias, y, *_strides(x, weight, bias), between[1][2])
        _streamed.launch(
            "group_norm_streamed",
            blocks(samples * groups),
            threads(channels * space, 16, 1024),
            *operands,
            groups,
            channels,
            space,
            eps,
            dtype=x.dtype,
            VECTOR=length,
        )
    return y


@variant()
def vectorised(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Declines groups beyond one block's shared memory, and groups that no single stride reaches; those that are not
    contiguous and aligned to 16 bytes move an element at a time. Source: [oneflow2021].
    """
    samples, channels, space = _check(x, weight, bias, groups)
    between, count = _one_stride(x, samples, groups, channels), channels * space
    held, limit = count * x.element_size(), shared_limit(x.device) - _SUMS
    if held > limit:
        raise Unsupported(f"groups of {count} elements; one block's shared memory holds {limit // x.element_size()}")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        length = vector_width(x.as_strided(*between), y.view(between[0]))
        operands = (x, weight, bias, y, *_strides(x, weight, bias), between[1][2])
        _vectorised.launch(
            "group_norm_vectorised",
            blocks(samples * groups),
            threads(count, 16, 1024),
            *operands,
            groups,
            channels,
            space,
            eps,
            dtype=x.dtype,
            shared=held,
            VECTOR=length,
        )
    return y


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int) -> tuple[int, int, int]:
    """Samples, channels of a group, and positions of a channel."""
    samples, channels = shapes("N C ..., C, C?", x=x, weight=weight, bias=bias)
    if groups < 1 or channels % groups:
        raise ValueError(f"groups: {channels} channels do not divide into {groups} groups")
    return samples, channels // groups, math.prod(x.shape[2:])


def _one_stride(
    x: torch.Tensor, samples: int, groups: int, channels: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Sizes and strides of x as (samples, groups, elements of a group); declines where those have no single stride."""
    sizes, strides = _merge((channels, *x.shape[2:]), x.stride()[1:])
    if len(sizes) > 1:
        raise Unsupported(f"strides {x.stride()[1:]} of sizes {(channels, *x.shape[2:])}; one stride must do")
    count = channels * math.prod(x.shape[2:])
    return (samples, groups, count), (x.stride(0), channels * x.stride(1), strides[0])


def _strides(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[int, ...]:
    return (*x.stride()[:2], *weight.stride(), bias.stride(0) if bias is not None else 0)


def _axes(x: torch.Tensor, channels: int) -> tuple[int, ...]:
    """The kernels' last arguments: how many axes a group has, their sizes and their strides."""
    sizes, strides = _merge((channels, *x.shape[2:]), x.stride()[1:])
    if len(sizes) > _AXES:
        raise Unsupported(f"strides {x.stride()[1:]} of sizes {(channels, *x.shape[2:])}; they must merge into {_AXES}")
    rest = _AXES - len(sizes)
    return len(sizes), *sizes, *[1] * rest, *strides, *[0] * rest


def _merge(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The fewest axes that visit the same elements in the same order; at least one."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        elif size != 1:
            axes.append((size, stride))
    return tuple(size for size, _ in axes) or (1,), tuple(stride for _, stride in axes) or (1,)
