"""interleaved, strided, sequential, firstadd, unrolled: a tree over the threads of a block, in shared memory."""

from typing import Any

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.combining import combine, neutral
from touchstone.backends.numba.reduce.many import stored
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.reduce import checked
from touchstone.backends.variants import variant

_THREADS = 256


def _climb(kernel: Any, x: torch.Tensor, function: str, each: int = _THREADS) -> torch.Tensor:
    """Launch after launch, `each` elements to a block, until one is left; it is rounded to the dtype of x."""
    number, given = np.int32(checked(x, function)), x
    while True:
        blocks = max(1, -(-given.numel() // each))
        results = x.new_empty(blocks, dtype=torch.float32)
        launch(kernel, blocks, _THREADS, given, results, number)
        if blocks == 1:
            return stored(results, x)
        given = results


@cuda.jit(device=True)
def _loaded(x, i, function):
    return float32(x[i]) if i < uint64(x.shape[0]) else neutral(function)


@cuda.jit(device=True)
def _own(x, function):
    return _loaded(x, uint64(cuda.blockIdx.x) * uint64(_THREADS) + uint64(cuda.threadIdx.x), function)


@cuda.jit
def _interleaved(x, results, function):
    held, t = cuda.shared.array(_THREADS, float32), uint32(cuda.threadIdx.x)
    held[t] = _own(x, function)
    cuda.syncthreads()
    apart = uint32(1)
    while apart < uint32(_THREADS):
        if t % (uint32(2) * apart) == uint32(0):
            held[t] = combine(held[t], held[t + apart], function)
        cuda.syncthreads()  # the next step reads what other threads wrote
        apart *= uint32(2)
    if t == uint32(0):
        results[cuda.blockIdx.x] = held[0]


@variant()
def interleaved(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _climb(_interleaved, x, function)


@cuda.jit
def _strided(x, results, function):
    held, t = cuda.shared.array(_THREADS, float32), uint32(cuda.threadIdx.x)
    held[t] = _own(x, function)
    cuda.syncthreads()
    apart = uint32(1)
    while apart < uint32(_THREADS):
        place = uint32(2) * apart * t
        if place < uint32(_THREADS):
            held[place] = combine(held[place], held[place + apart], function)
        cuda.syncthreads()
        apart *= uint32(2)
    if t == uint32(0):
        results[cuda.blockIdx.x] = held[0]


@variant()
def strided(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _climb(_strided, x, function)


@cuda.jit(device=True)
def _fold(held, last, function):
    """The first half of the threads folds the second half's words onto its own, down to `last` words."""
    t, half = uint32(cuda.threadIdx.x), uint32(_THREADS // 2)
    while half > last:
        if t < half:
            held[t] = combine(held[t], held[t + half], function)
        cuda.syncthreads()
        half //= uint32(2)


@cuda.jit
def _sequential(x, results, function):
    held, t = cuda.shared.array(_THREADS, float32), uint32(cuda.threadIdx.x)
    held[t] = _own(x, function)
    cuda.syncthreads()
    _fold(held, uint32(0), function)
    if t == uint32(0):
        results[cuda.blockIdx.x] = held[0]


@variant()
def sequential(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _climb(_sequential, x, function)


@cuda.jit(device=True)
def _both(x, function):
    """Of two elements, a block's threads apart."""
    i = uint64(cuda.blockIdx.x) * uint64(2 * _THREADS) + uint64(cuda.threadIdx.x)
    return combine(_loaded(x, i, function), _loaded(x, i + uint64(_THREADS), function), function)


@cuda.jit
def _firstadd(x, results, function):
    held, t = cuda.shared.array(_THREADS, float32), uint32(cuda.threadIdx.x)
    held[t] = _both(x, function)
    cuda.syncthreads()
    _fold(held, uint32(0), function)
    if t == uint32(0):
        results[cuda.blockIdx.x] = held[0]


@variant()
def firstadd(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _climb(_firstadd, x, function, 2 * _THREADS)


@cuda.jit
def _unrolled(x, results, function):
    held, t = cuda.shared.array(_THREADS, float32), uint32(cuda.threadIdx.x)
    held[t] = _both(x, function)
    cuda.syncthreads()
    _fold(held, uint32(32), function)
    if t >= uint32(32):
        return
    for step in range(6):  # a constant: NVVM unrolls it
        value = combine(held[t], held[t + uint32(32 >> step)], function)
        cuda.syncwarp()  # all have read before any writes
        held[t] = value
        cuda.syncwarp()
    if t == uint32(0):
        results[cuda.blockIdx.x] = held[0]


@variant()
def unrolled(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _climb(_unrolled, x, function, 2 * _THREADS)
