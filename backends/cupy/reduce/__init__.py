"""Reduction of a vector to one number: sum, maximum or minimum.

Blocks leave a result each, which the same kernel reduces again until there is one.

interleaved: a tree in shared memory, of threads whose number is a multiple of a power of two [harris2007]
strided: the same tree by neighbouring threads, so that whole warps have work or none [harris2007]
sequential: a tree of halves: neighbouring threads read neighbouring words, which are in different banks [harris2007]
firstadd: a thread combines two elements as it loads them: half the blocks, no thread idle at first [harris2007]
unrolled: the last six steps by one warp alone, without a loop and without barriers of the block [harris2007]
templated: all steps unrolled, as the block's size is known when the kernel is compiled [harris2007]
gridstride: a thread combines as many elements as it takes for a grid that runs at once [harris2007]
shuffle: warps reduce in registers; one word a warp goes through shared memory, one barrier [luitjens2014]
atomics: blocks combine into one number by an atomic operation: one launch, and sums in any order [luitjens2014]
vectorised: a thread loads 16 bytes of neighbours at a time [luitjens2013]
"""

from typing import Any

import torch

from touchstone.backends.cupy.lib.norms import resident, vector_width
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.reduce import checked, neutral_key
from touchstone.backends.variants import variant

_THREADS = 256
_tree = Module(__file__, "tree.cu")
_many = Module(__file__, "many.cu")


def _stored(last: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A float32 rounded to the dtype of x."""
    y = x.new_empty(())
    _many.launch("reduce_store", 1, 1, last, y, dtype=x.dtype)
    return y


def _climb(kernel: str, x: torch.Tensor, function: str, each: int) -> torch.Tensor:
    """Launch after launch, `each` elements to a block, until one is left."""
    number = checked(x, function)
    while True:
        blocks = max(1, -(-x.numel() // each))
        results = x.new_empty(blocks, dtype=torch.float32)
        _tree.launch(kernel, blocks, _THREADS, x, results, x.numel(), *x.stride(), number, dtype=x.dtype)
        if blocks == 1:
            return results
        x = results


@variant()
def interleaved(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _stored(_climb("reduce_interleaved", x, function, _THREADS), x)


@variant()
def strided(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _stored(_climb("reduce_strided", x, function, _THREADS), x)


@variant()
def sequential(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _stored(_climb("reduce_sequential", x, function, _THREADS), x)


@variant()
def firstadd(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _stored(_climb("reduce_firstadd", x, function, 2 * _THREADS), x)


@variant()
def unrolled(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _stored(_climb("reduce_unrolled", x, function, 2 * _THREADS), x)


@variant()
def templated(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _stored(_climb("reduce_templated", x, function, 2 * _THREADS), x)


def _twice(kernel: str, x: torch.Tensor, function: str, **definitions: Any) -> torch.Tensor:
    """A grid that runs at once, and a block for its results."""
    number, each = checked(x, function), int(definitions.get("VECTOR", 1))
    blocks = max(1, min(resident(x, 8), -(-x.numel() // (_THREADS * each))))
    results, last = x.new_empty(blocks, dtype=torch.float32), x.new_empty(1, dtype=torch.float32)
    _many.launch(kernel, blocks, _THREADS, x, results, x.numel(), *x.stride(), number, dtype=x.dtype, **definitions)
    definitions = dict.fromkeys(definitions, 1)
    _many.launch(kernel, 1, _THREADS, results, last, blocks, 1, number, dtype=torch.float32, **definitions)
    return _stored(last, x)


@variant()
def gridstride(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [harris2007]."""
    return _twice("reduce_gridstride", x, function)


@variant()
def shuffle(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Source: [luitjens2014]."""
    return _twice("reduce_shuffle", x, function)


@variant(deterministic=False)
def atomics(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride. Sums in any order; extremes are the same in all. Source: [luitjens2014]."""
    number = checked(x, function)
    y = x.new_empty(())
    total = torch.full((1,), neutral_key(number), dtype=torch.int32, device=x.device)
    blocks = max(1, min(resident(x, 8), -(-x.numel() // _THREADS)))
    _many.launch("reduce_atomics", blocks, _THREADS, x, total, x.numel(), *x.stride(), number, dtype=x.dtype)
    _many.launch("reduce_store_total", 1, 1, total, y, number, dtype=x.dtype)
    return y


@variant()
def vectorised(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """x (n,) -> y (); any stride, but only neighbours on 16 bytes load as vectors. Source: [luitjens2013]."""
    checked(x, function)
    length = vector_width(x[: x.numel() - x.numel() % (16 // x.element_size())])
    return _twice("reduce_vectorised", x, function, VECTOR=length)
