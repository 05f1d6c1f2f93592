"""Group norm: the channels of a sample in groups, each normalised over its channels and all trailing axes; weight and
bias by channel.

naive: one thread per group, in three passes, mean, variance and write [wuhe2018]
warp: one warp per group, which its lanes hold in registers; mean and variance by shuffles, so x is read once [wuhe2018]
block: one block per group of any size and strides, in three passes, mean, variance and write [desai2024]
vectorised: the same passes 16 bytes at a time, the second and third from the L2 cache [oneflow2021]
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends import Unsupported
from touchstone.backends.numba.lib.reductions import (
    WARP_COLS,
    block_grid,
    block_sum,
    scale_and_shift,
    thread_grid,
    warp_grid,
    warp_sum,
)
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, pack, store_vector, unpacked
from touchstone.backends.numba.lib.vector_rows import LANES, are_rows_aligned
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.group_norm import checked_sizes
from touchstone.backends.variants import variant

_HELD = WARP_COLS // 32
_AXES = 4

# The kernels' x is (samples, groups, a, b, c, d): the axes of a group, the last one fastest, merged where that is
# possible and led by axes of size 1. weight and bias come as (samples, channels), every row the same; where there is no
# bias, `biased` is False. y is (groups of all samples, elements).


@cuda.jit(device=True)
def _element(x, sample, group, index):
    """The group's index-th element, as float32."""
    d, c, b = uint64(x.shape[5]), uint64(x.shape[4]), uint64(x.shape[3])
    if x.shape[4] == 1 and x.shape[3] == 1 and x.shape[2] == 1:
        return float32(x[sample, group, uint64(0), uint64(0), uint64(0), index])
    rest, last = index // d, index % d
    return float32(x[sample, group, rest // c // b, rest // c % b, rest % c, last])


@cuda.jit
def _naive(x, weight, bias, biased, y, space, eps):
    which, groups = uint64(cuda.grid(1)), uint64(x.shape[1])
    if which >= uint64(y.shape[0]):
        return
    sample, group, elements, count = which // groups, which % groups, uint64(y.shape[1]), float32(y.shape[1])
    first = group * (elements // space)
    mean, square = float32(0), float32(0)
    index = uint64(0)
    while index < elements:
        mean += _element(x, sample, group, index)
        index += uint64(1)
    mean /= count

    index = uint64(0)
    while index < elements:
        centred = _element(x, sample, group, index) - mean
        square += centred * centred
        index += uint64(1)
    rstd = float32(1) / math.sqrt(square / count + eps)

    index = uint64(0)
    while index < elements:
        channel = first + index // space
        shift = float32(bias[sample, channel]) if biased else float32(0)
        normed = (_element(x, sample, group, index) - mean) * rstd
        y[which, index] = normed * float32(weight[sample, channel]) + shift
        index += uint64(1)


@variant()
def naive(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Takes any size and strides, as far as the axes of a group merge into 4; x is read three times. Source: [wuhe2018].
    """
    every, space = _sizes(x, weight, bias, groups)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_naive, *thread_grid(every), *_operands(x, weight, bias, y, groups), np.uint64(space), np.float32(eps))
    return y


@cuda.jit
def _warp(x, weight, bias, biased, y, space, eps):
    # A block is 32 lanes by some groups; lane i holds the elements i, i + 32, ...
    held = cuda.local.array(_HELD, float32)
    which = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if which >= uint64(y.shape[0]):
        return  # a whole warp
    groups, elements, count = uint64(x.shape[1]), uint64(y.shape[1]), float32(y.shape[1])
    sample, group = which // groups, which % groups
    first = group * (elements // space)
    total, square = float32(0), float32(0)
    for i in range(_HELD):
        index = uint64(i * 32 + cuda.threadIdx.x)
        held[i] = _element(x, sample, group, index) if index < elements else float32(0)
        total += held[i]
    mean = warp_sum(total) / count

    for i in range(_HELD):
        held[i] -= mean
        if uint64(i * 32 + cuda.threadIdx.x) < elements:
            square += held[i] * held[i]
    rstd = float32(1) / math.sqrt(warp_sum(square) / count + eps)

    for i in range(_HELD):
        index = uint64(i * 32 + cuda.threadIdx.x)
        if index < elements:
            channel = first + uint64(uint32(index) // uint32(space))
            shift = float32(bias[sample, channel]) if biased else float32(0)
            y[which, index] = held[i] * rstd * float32(weight[sample, channel]) + shift


@variant(needs="shuffles")
def warp(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Declines groups of more than 1024 elements, what one warp holds. Source: [wuhe2018].
    """
    every, space = _sizes(x, weight, bias, groups)
    if (count := x.shape[1] // groups * space) > WARP_COLS:
        raise Unsupported(f"groups of {count} elements; one warp holds {WARP_COLS}")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_warp, *warp_grid(every), *_operands(x, weight, bias, y, groups), np.uint64(space), np.float32(eps))
    return y


@cuda.jit
def _block(x, weight, bias, biased, y, space, eps):
    which, groups = uint64(cuda.blockIdx.x), uint64(x.shape[1])
    sample, group, elements, count = which // groups, which % groups, uint64(y.shape[1]), float32(y.shape[1])
    start, step, first = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x), group * (elements // space)
    total, square = float32(0), float32(0)
    index = start
    while index < elements:
        total += _element(x, sample, group, index)
        index += step
    mean = block_sum(total) / count

    index = start
    while index < elements:
        centred = _element(x, sample, group, index) - mean
        square += centred * centred
        index += step
    rstd = float32(1) / math.sqrt(block_sum(square) / count + eps)

    index = start
    while index < elements:
        channel = first + index // space
        shift = float32(bias[sample, channel]) if biased else float32(0)
        normed = (_element(x, sample, group, index) - mean) * rstd
        y[which, index] = normed * float32(weight[sample, channel]) + shift
        index += step


@variant(needs="shuffles")
def block(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Takes any size and strides, as far as a group's axes merge into 4; x is read three times [wuhe2018] [desai2024].
    """
    every, space = _sizes(x, weight, bias, groups)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        operands = _operands(x, weight, bias, y, groups)
        launch(_block, *block_grid(every, y[0].numel() // groups), *operands, np.uint64(space), np.float32(eps))
    return y


@functools.cache
def _vectorised(wide):
    @cuda.jit
    def kernel(x, weight, bias, biased, y, space, eps):
        # x is (samples, groups, elements).
        words = cuda.local.array(4, uint32)
        out = cuda.local.array(LANES, float32)
        which, groups = uint64(cuda.blockIdx.x), uint64(x.shape[1])
        sample, group, elements, count = which // groups, which % groups, uint64(y.shape[1]), float32(y.shape[1])
        length, first = lanes_of(x), group * (elements // space)
        start, step = uint64(cuda.threadIdx.x * length), uint64(cuda.blockDim.x * length)
        total, square = float32(0), float32(0)
        index = start
        while index < elements:
            load_vector(x, (sample, group, index), words, 0, wide)
            for i in range(length):
                total += unpacked(words, i, x)
            index += step
        mean = block_sum(total) / count

        index = start
        while index < elements:
            load_vector(x, (sample, group, index), words, 0, wide)
            for i in range(length):
                centred = unpacked(words, i, x) - mean
                square += centred * centred if wide or index + uint64(i) < elements else float32(0)
            index += step
        rstd = float32(1) / math.sqrt(block_sum(square) / count + eps)

        index = start
        while index < elements:
            load_vector(x, (sample, group, index), words, 0, wide)
            channel, position = first + index // space, index % space
            scale = float32(weight[sample, channel])
            shift = float32(bias[sample, channel]) if biased else float32(0)
            for i in range(length):
                out[i] = (unpacked(words, i, x) - mean) * rstd * scale + shift
                position += uint64(1)
                # Not after the group's last element: behind the last channel there is no weight.
                if position == space and index + uint64(i + 1) < elements:
                    channel, position = channel + uint64(1), uint64(0)
                    scale = float32(weight[sample, channel])
                    shift = float32(bias[sample, channel]) if biased else float32(0)
            pack(out, words, 0, y)
            store_vector(words, 0, y, (which, index), wide)
            index += step

    return kernel


@variant(needs="shuffles")
def vectorised(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """x (N, C, *), weight (C,), bias (C,) or None, C a multiple of groups -> y (N, C, *).

    Declines groups that no single stride reaches; those that are not contiguous and aligned to 16 bytes are moved an
    element at a time. Source: [oneflow2021].
    """
    every, space = _sizes(x, weight, bias, groups)
    sizes = (x.shape[1] // groups, *x.shape[2:])
    if len(_merge(sizes, x.stride()[1:])[0]) > 1:
        raise Unsupported(f"strides {x.stride()[1:]} of sizes {sizes}; one stride must do")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        grouped, *others, written = _operands(x, weight, bias, y, groups)
        elements = grouped[:, :, 0, 0, 0]
        grid = block_grid(every, -(-math.prod(sizes) * x.element_size() // 16), 512)
        kernel = _vectorised(are_rows_aligned(elements) and are_rows_aligned(written))
        launch(kernel, *grid, elements, *others, written, np.uint64(space), np.float32(eps))
    return y


def _sizes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int) -> tuple[int, int]:
    """Groups of all samples, and positions of a channel, of checked operands."""
    samples, _ = checked_sizes(x, weight, bias, groups)
    return samples * groups, math.prod(x.shape[2:])


def _operands(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor, groups: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool, torch.Tensor]:
    """The kernels' x, weight, bias, `biased` and y."""
    samples, channels = x.shape[0], x.shape[1] // groups
    sizes, strides = _merge((channels, *x.shape[2:]), x.stride()[1:])
    if len(sizes) > _AXES:
        raise Unsupported(f"strides {x.stride()[1:]} of sizes {(channels, *x.shape[2:])}; they must merge into {_AXES}")
    rest = _AXES - len(sizes)
    apart = (samples, groups, *[1] * rest, *sizes), (x.stride(0), channels * x.stride(1), *[0] * rest, *strides)
    return x.as_strided(*apart), *scale_and_shift(weight, bias, samples), y.view(samples * groups, -1)


def _merge(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The fewest axes that visit the same elements in the same order; at least one."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        elif size != 1:
            axes.append((size, stride))
    return tuple(size for size, _ in axes) or (1,), tuple(stride for _, stride in axes) or (1,)
