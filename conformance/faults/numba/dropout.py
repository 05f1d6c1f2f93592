"""Wrong kernels of dropout: a thread for an element."""

from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int32, int64, uint32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.philox import element
from touchstone.backends.signatures._dropout import axes, checked
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.numba._launching import launch


class Fault(IntEnum):
    none = 0
    products_of_32_bits = 1
    key_carries = 2
    seed_of_32_bits = 3
    product_with_mask = 4
    tail_unguarded = 5


@cuda.jit(device=True)
def _product(a, b, fault):
    """The high and the low word of a product of two words."""
    low = uint32(a) * uint32(b) & uint32(0xFFFFFFFF)
    if fault == Fault.products_of_32_bits:
        return uint64(0), uint64(low)
    product = uint64(a) * uint64(b)
    return product >> uint64(32), product & uint64(0xFFFFFFFF)


@cuda.jit(device=True)
def _word(e, seed, offset, fault):
    block = e >> uint64(2)
    low = uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = block & low, block >> uint64(32), offset & low, offset >> uint64(32)
    k0, k1 = seed & low, seed >> uint64(32)
    if fault == Fault.seed_of_32_bits:
        k1 = uint64(0)
    for _ in range(10):
        high0, low0 = _product(c0, uint64(0xD2511F53), fault)
        high1, low1 = _product(c2, uint64(0xCD9E8D57), fault)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + uint64(0x9E3779B9), k1 + uint64(0xBB67AE85)
        if fault != Fault.key_carries:
            k0, k1 = k0 & low, k1 & low
    c0, c2 = c0 & low, c2 & low
    turn = e & uint64(3)
    return c0 if turn == uint64(0) else c1 if turn == uint64(1) else c2 if turn == uint64(2) else c3


@cuda.jit
def _alone_kernel(x, y, threshold, scale, seed, offset, fault):
    # x comes as four axes, y as one.
    e = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    if e >= uint64(y.shape[0]) and fault != Fault.tail_unguarded:
        return
    kept = int64(_word(e, uint64(seed), uint64(offset), fault)) >= threshold
    if fault == Fault.product_with_mask:
        y[e] = element(x, e) * scale * float32(int32(kept))
    else:
        y[e] = element(x, e) * scale if kept else float32(0)


KERNELS = {
    "alone": Kernel("known-good", "a thread for an element, products of 64 bits by a function of their own"),
    "products_of_32_bits": Kernel("overflow", "a product of two words is cut at 32 bits, and its high word is 0"),
    "key_carries": Kernel("overflow", "the key is kept in 64 bits, and what it carries comes into the words"),
    "seed_of_32_bits": Kernel("parameter", "the high word of the seed is dropped"),
    "product_with_mask": Kernel("special", "x is multiplied by the mask: NaN that is dropped stays NaN"),
    "tail_unguarded": Kernel("bounds", "all threads of the last block store", "OutOfBounds"),
}


def _alone(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0, fault: str = "none") -> torch.Tensor:
    shapes("...", x=x)
    threshold, scale, seed, offset = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if size := y.numel():
        operands = (x.as_strided(*axes(x)), y.view(-1), threshold, np.float32(scale), seed, offset)
        launch(Fault, fault, _alone_kernel, -(-size // 64), 64, *operands)
    return y


plant_kernels(
    globals(),
    _alone,
    KERNELS,
    "alone",
    "products_of_32_bits",
    "key_carries",
    "seed_of_32_bits",
    "product_with_mask",
    "tail_unguarded",
)
