"""Reduction of a vector to one number: sum, maximum or minimum.

Blocks leave a result each, which the same kernel reduces again until there is one.

interleaved: a tree in shared memory, of threads whose number is a multiple of a power of two [harris2007]
strided: the same tree by neighbouring threads, so that whole warps have work or none [harris2007]
sequential: a tree of halves: neighbouring threads read neighbouring words, which are in different banks [harris2007]
firstadd: a thread combines two elements as it loads them: half the blocks, no thread idle at first [harris2007]
unrolled: the last six steps by one warp alone, without barriers of the block [harris2007]
gridstride: a thread combines as many elements as it takes for a grid that runs at once [harris2007]
shuffle: warps reduce in registers; one word a warp goes through shared memory, one barrier [luitjens2014]
atomics: blocks combine into one number by an atomic operation: one launch, and sums in any order [luitjens2014]
vectorised: a thread loads 16 bytes of neighbours at a time [luitjens2013]
"""

# isort: off
from touchstone.backends.numba.reduce.tree import interleaved, strided, sequential, firstadd, unrolled
from touchstone.backends.numba.reduce.many import gridstride, shuffle, atomics, vectorised
# isort: on

__all__ = [  # noqa: RUF022 - ladder order
    "interleaved",
    "strided",
    "sequential",
    "firstadd",
    "unrolled",
    "gridstride",
    "shuffle",
    "atomics",
    "vectorised",
]
