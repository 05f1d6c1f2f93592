"""pipelined: larger tiles, and fragments ahead of their products. The loop is lib/pipeline.py's."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.numba.lib import pipeline
from touchstone.backends.numba.lib.mma import sixteen_bits
from touchstone.backends.numba.lib.tensorcores import multiplied
from touchstone.backends.variants import HALF, variant


@variant(needs="sm_80", dtypes=HALF)
def pipelined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), either axis of an operand contiguous.

    Declines float32, and operands that are not in whole pieces of 16 bytes. Source: [kerr2020].
    """
    shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    loop = pipeline.loop(a, b)
    if loop is None:
        raise Unsupported("rows or columns that are not whole pieces of 16 bytes")
    return multiplied(pipeline, loop, a, b)
