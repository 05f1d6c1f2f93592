"""gridstride, shuffle, atomics, vectorised: as many elements a thread as it takes for a grid that runs at once."""

from typing import Any

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.combining import (
    block_combine,
    combine,
    key_of,
    of_key,
    of_thread,
    of_thread_in_vectors,
)
from touchstone.backends.numba.lib.vector_sums import resident_blocks, whole_vectors
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.reduce import checked, neutral_key
from touchstone.backends.variants import variant

_THREADS = 256


@cuda.jit
def _store(last, y):
    y[0] = last[0]


def stored(last: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A float32 rounded to the dtype of x."""
    y = x.new_empty(())
    launch(_store, 1, 1, last, y[None])
    return y


def _blocks(x: torch.Tensor, each: int = 1) -> int:
    return max(1, min(resident_blocks(x), -(-x.numel() // (_THREADS * each))))


def _twice(kernel: Any, x: torch.Tensor, function: str, *more: Any) -> torch.Tensor:
    """A grid that runs at once, and a block for its results."""
    number, blocks = np.int32(checked(x, function)), _blocks(x)
    results, last = x.new_empty(blocks, dtype=torch.float32), x.new_empty(1, dtype=torch.float32)
    launch(kernel, blocks, _THREADS, x, results, number, *more)
    launch(kernel, 1, _THREADS, results, last, number, *(False for _ in more))
    return stored(last, x)


@cuda.jit
def _gridstride(x, results, function):
    held, t = cuda.shared.array(_THREADS, float32), uint32(cuda.threadIdx.x)
    held[t] = of_thread(x, uint64(0), function)
    cuda.syncthreads()
    half = uint32(_THREADS // 2)
    while half > uint32(0):
        if t < half:
            held[t] = combine(held[t], held[t + half], function)
        cuda.syncthreads()
        half //= uint32(2)
    if t == uint32(0):
        results[cuda.blockIdx.x] = held[0]


@variant()
def gridstride(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _twice(_gridstride, x, function)


@cuda.jit
def _shuffle(x, results, function):
    value = block_combine(of_thread(x, uint64(0), function), function)
    if cuda.threadIdx.x == 0:
        results[cuda.blockIdx.x] = value


@variant(needs="shuffles")
def shuffle(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [luitjens2014]."""
    return _twice(_shuffle, x, function)


@cuda.jit
def _atomics(x, total, keys, function):
    # `total` has a float32 for a sum, and `keys` the key of an extreme, in the same memory.
    value = block_combine(of_thread(x, uint64(0), function), function)
    if cuda.threadIdx.x == 0:
        if function == 0:
            cuda.atomic.add(total, 0, value)
        elif function == 1:
            cuda.atomic.max(keys, 0, key_of(value, function))
        else:
            cuda.atomic.min(keys, 0, key_of(value, function))


@cuda.jit
def _store_total(total, keys, y, function):
    y[0] = total[0] if function == 0 else of_key(keys[0])


@variant(needs="shuffles", deterministic=False)
def atomics(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Sums in any order; extremes are the same in all. Source: [luitjens2014]."""
    number = checked(x, function)
    y, keys = x.new_empty(()), torch.full((1,), neutral_key(number), dtype=torch.int32, device=x.device)
    total = keys.view(torch.float32)
    launch(_atomics, _blocks(x), _THREADS, x, total, keys, np.int32(number))
    launch(_store_total, 1, 1, total, keys, y[None], np.int32(number))
    return y


@cuda.jit
def _vectorised(x, results, function, wide):
    value = block_combine(of_thread_in_vectors(x, wide, function), function)
    if cuda.threadIdx.x == 0:
        results[cuda.blockIdx.x] = value


@variant(needs="shuffles")
def vectorised(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride, but only neighbours on 16 bytes load as vectors. Source: [luitjens2013]."""
    checked(x, function)
    return _twice(_vectorised, x, function, whole_vectors(x))
