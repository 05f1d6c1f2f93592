"""Descriptors of Hopper's copy engine (CUtensorMap), as CUDA's driver encodes them."""

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

BYTES = 128
MOST = 256  # addresses for which a descriptor is kept encoded
# of cuda.h: CU_TENSOR_MAP_L2_PROMOTION_L2_128B and _256B, the least that a miss brings to the L2 cache
PROMOTION_128B, PROMOTION_256B = 2, 3


class Encoded(bytes):
    """A descriptor of memory at `address`."""

    address: int
    _how: tuple[Any, ...]
    _elsewhere: "dict[int, Encoded]"

    def at(self, address: int) -> "Encoded":
        """The same of memory at another address."""
        found = self._elsewhere.get(address)
        if found is None:
            dtype, *how = self._how
            if len(self._elsewhere) >= MOST:
                self._elsewhere.clear()
            found = self._elsewhere[address] = encoded(dtype, address, *how)
        return found


def encoded(
    dtype: int,
    address: int,
    sizes: Sequence[int],
    pitches: Sequence[int],
    box: Sequence[int],
    swizzle: int,
    promotion: int,
) -> Encoded:
    """The descriptor of a tensor of `sizes`, the contiguous axis first, at `address`.

    `pitches` are the bytes from element to element along the other axes; `box` is what is copied at once; `dtype`,
    `swizzle` and `promotion` are numbers of cuda.h (CUtensorMapDataType and so on). What lies outside of the tensor
    reads as zero. Raises RuntimeError with the driver's number for its error.
    """
    rank = len(sizes)
    space = ctypes.create_string_buffer(BYTES + 64)
    place = ctypes.addressof(space) + -ctypes.addressof(space) % 64
    status = _encoder()(
        place,
        dtype,
        rank,
        address,
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*pitches),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,
        swizzle,
        promotion,
        0,
    )
    if status:
        where = f"{sizes} elements of type {dtype} at {address:#x}, {pitches} bytes apart, in boxes of {box}"
        raise RuntimeError(f"cuTensorMapEncodeTiled: error {status} for {where}")
    made = Encoded(ctypes.string_at(place, BYTES))
    made.address, made._elsewhere = address, {}
    made._how = dtype, sizes, pitches, box, swizzle, promotion
    return made


@lru_cache
def _encoder() -> Callable[..., int]:
    encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    pointer, number = ctypes.c_void_p, ctypes.c_int
    encode.argtypes = [pointer, number, ctypes.c_uint32, pointer, *[pointer] * 4, *[number] * 4]
    return encode
