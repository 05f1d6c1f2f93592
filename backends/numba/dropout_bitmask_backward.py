"""The gradient of dropout_bitmask: dx = dy/(1 - p) where the element's bit is 1, else 0.

naive: a thread for each element looks at its bit, and no Philox is called [oneflow2022drop]
vectorised: the same for 16 bytes of dy in one access, four elements of it or eight [xlite2025]
"""

import numpy as np
import torch
from numba import cuda, float32, int32, uint32, uint64

from touchstone.backends.numba.lib.philox import element
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, pack, store_vector, unpacked
from touchstone.backends.numba.lib.vector_rows import LANES
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures._dropout import axes, in_one_run
from touchstone.backends.signatures.dropout_bitmask_backward import checked_scale
from touchstone.backends.variants import variant


@cuda.jit
def _naive(dy, bits, dx, scale):
    # dy comes as four axes, dx as one.
    e = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    if e < uint64(dx.shape[0]):
        kept = bits[e >> uint64(5)] >> int32(e & uint64(31)) & int32(1)
        dx[e] = element(dy, e) * scale if kept == int32(1) else float32(0)


@variant()
def naive(dy: torch.Tensor, bits: torch.Tensor, *, p: float = 0.5) -> torch.Tensor:
    """dy of any shape and strides, four at most that do not merge; bits (ceil(n/32),) int32 -> dx of dy's shape.

    Source: [oneflow2022drop].
    """
    scale = checked_scale(dy, bits, p)
    dx = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
    if size := dx.numel():
        operands = (dy.as_strided(*axes(dy)), bits, dx.view(-1), np.float32(scale))
        launch(_naive, checked_grid(-(-size // 256)), 256, *operands)
    return dx


@cuda.jit
def _vectorised(dy, bits, dx, scale):
    words, values = cuda.local.array(4, uint32), cuda.local.array(LANES, float32)
    length, size = uint64(lanes_of(dy)), uint64(dy.shape[0])
    first = (uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)) * length
    if first >= size:
        return
    whole = first + length <= size  # else the last vector, element by element
    load_vector(dy, first, words, 0, whole)
    kept = bits[first >> uint64(5)] >> int32(first & uint64(31))
    for i in range(lanes_of(dy)):
        values[i] = unpacked(words, i, dy) * scale if kept >> int32(i) & int32(1) else float32(0)
    pack(values, words, 0, dx)
    store_vector(words, 0, dx, first, whole)


@variant()
def vectorised(dy: torch.Tensor, bits: torch.Tensor, *, p: float = 0.5) -> torch.Tensor:
    """dy of any shape, bits (ceil(n/32),) int32 -> dx of dy's shape.

    Declines dy that is not contiguous from a multiple of 16 bytes on. Source: [xlite2025].
    """
    scale = checked_scale(dy, bits, p)
    dx = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
    in_one_run(dy)
    if size := dx.numel():
        grid = checked_grid(-(-size * dy.element_size() // (256 * 16)))
        launch(_vectorised, grid, 256, dy.view(-1), bits, dx.view(-1), np.float32(scale))
    return dx
