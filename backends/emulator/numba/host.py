"""Numba's host functions without a driver: device memory is host memory with a copy in between."""

from typing import Any

import numpy as np

from touchstone.backends import cuda_face
from touchstone.backends.emulator.numba.packing import as_array


class DeviceArray(np.ndarray):
    """What `cuda.to_device` and `cuda.device_array` give here: a NumPy array with the two methods that copy."""

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """A copy, in `ary` if given."""
        if ary is None:
            return np.array(self, copy=True, subok=False)
        np.copyto(ary, self)
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Overwrite this array by `ary`."""
        np.copyto(self, ary)


class Stream:
    """Everything here is done when it returns."""

    handle = 0

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def auto_synchronize(self) -> "Stream":
        """A context manager."""
        return self

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def __bool__(self) -> bool:
        return False  # numba-cuda then takes the default stream

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
    """A copy of an array, or `to` overwritten by it; a tensor that lies on the GPU itself."""
    if to is not None:
        to.copy_to_device(obj)
        return to
    if cuda_face.answers() and hasattr(obj, "data_ptr") and not cuda_face.on_host(obj):
        found = as_array(obj)
        return found.view(DeviceArray) if isinstance(found, np.ndarray) else obj
    return np.array(obj, copy=True).view(DeviceArray)


def device_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0) -> Any:
    """Memory that holds no number yet: NaN in every float type."""
    made = np.empty(shape, dtype=dtype, order=order)  # type: ignore[call-overload]
    made.reshape(-1, order="A").view(np.uint8)[...] = 0xFF
    return made.view(DeviceArray)


def device_array_like(ary: Any, stream: Any = 0) -> Any:
    """As `device_array`, in the shape, dtype and order of `ary`."""
    order = (
        "F"
        if getattr(ary, "flags", None) is not None and ary.flags.f_contiguous and not ary.flags.c_contiguous
        else "C"
    )
    return device_array(ary.shape, ary.dtype, order=order)


def host_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", **flags: Any) -> Any:
    """Pinned, mapped and managed memory."""
    return device_array(shape, dtype, strides, order)


def synchronize() -> None:
    """Nothing is left to wait for."""


def install() -> None:
    """Put these in the place of numba.cuda's."""
    from numba import cuda

    cuda.to_device, cuda.device_array, cuda.device_array_like = to_device, device_array, device_array_like
    cuda.pinned_array = cuda.mapped_array = cuda.managed_array = host_array
    cuda.synchronize, cuda.stream, cuda.default_stream = synchronize, Stream, Stream
