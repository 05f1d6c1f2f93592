"""Dot product: y = Σ a·b.

shuffle: a thread adds many products a grid apart, a warp its threads' sums by shuffles; one block adds those of the
  blocks [luitjens2014]
vectorised: a thread loads 16 bytes of neighbours at a time [luitjens2013]
"""

import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.reductions import block_sum, warp_sum
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, unpacked
from touchstone.backends.numba.lib.vector_sums import grid_of, whole_vectors
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant


@cuda.jit
def _shuffle(a, b, partials):
    n, step = uint64(a.shape[0]), uint64(cuda.gridDim.x) * uint64(cuda.blockDim.x)
    i = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    total = float32(0)
    while i < n:
        total += float32(a[i]) * float32(b[i])
        i += step
    total = block_sum(total)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = total


@cuda.jit
def _finish(partials, y):
    # One warp.
    total, i = float32(0), uint32(cuda.threadIdx.x)
    while i < uint32(partials.shape[0]):
        total += partials[i]
        i += uint32(32)
    total = warp_sum(total)
    if cuda.threadIdx.x == 0:
        y[0] = total


@variant(needs="shuffles")
def shuffle(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) -> y (); any strides. Source: [luitjens2014]."""
    shapes("n, n", a=a, b=b)
    blocks, across = grid_of(a, 1)
    y, partials = a.new_empty(()), a.new_empty(blocks, dtype=torch.float32)
    launch(_shuffle, blocks, across, a, b, partials)
    launch(_finish, 1, 32, partials, y[None])
    return y


@cuda.jit
def _vectorised(a, b, partials, wide):
    # Whole vectors first, in one access each where `wide`; then the elements that are left.
    x, y = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
    length, n = uint64(lanes_of(a)), uint64(a.shape[0])
    rest = n // length * length
    first = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    step = uint64(cuda.gridDim.x) * uint64(cuda.blockDim.x)
    total, i = float32(0), first * length
    while i < rest:
        load_vector(a, i, x, 0, wide)
        load_vector(b, i, y, 0, wide)
        for lane in range(lanes_of(a)):
            total += unpacked(x, lane, a) * unpacked(y, lane, b)
        i += step * length
    i = rest + first
    while i < n:
        total += float32(a[i]) * float32(b[i])
        i += step
    total = block_sum(total)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = total


@variant(needs="shuffles")
def vectorised(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) -> y (); any strides, but only neighbours on 16 bytes move as vectors. Source: [luitjens2013]."""
    shapes("n, n", a=a, b=b)
    blocks, across = grid_of(a, 16 // a.element_size())
    y, partials = a.new_empty(()), a.new_empty(blocks, dtype=torch.float32)
    launch(_vectorised, blocks, across, a, b, partials, whole_vectors(a, b))
    launch(_finish, 1, 32, partials, y[None])
    return y
