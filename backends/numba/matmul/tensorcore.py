"""tensorcore: 16-bit operands on the tensor cores, three stages of cp.async. The loop is lib/mma.py's."""

import torch

from touchstone.backends import shapes
from touchstone.backends.numba.lib import mma
from touchstone.backends.numba.lib.mma import sixteen_bits
from touchstone.backends.numba.lib.tensorcores import multiplied
from touchstone.backends.variants import HALF, variant


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K), b (K, N) -> c (M, N), any sizes and strides, an axis of stride 1 on 16 bytes fastest.

    Declines float32, which these instructions do not take. Source: [kerr2020].
    """
    shapes("M K, K N", a=a, b=b)
    sixteen_bits(a.dtype)
    return multiplied(mma, mma.multiply, a, b)
