"""CuPy arrays over the memory of torch tensors and back, for kernels written on CuPy arrays. No copies: DLPack."""

from contextlib import AbstractContextManager
from typing import Any

import cupy
import torch

DEVICE, TYPE = "cuda", "cupy.ndarray"


def why_not(dtype: torch.dtype) -> str | None:
    """None if CuPy has `dtype`, else a sentence that says what to do."""
    if dtype is torch.bfloat16 and int(cupy.__version__.split(".")[0]) < 14:
        return f"CuPy {cupy.__version__} has no bfloat16: install CuPy 14 or newer"
    return None


def to_array(tensor: torch.Tensor) -> cupy.ndarray:
    """The array over the memory of `tensor`, with its strides."""
    return cupy.from_dlpack(tensor)


def to_tensor(value: Any) -> torch.Tensor:
    """The tensor over the memory of `value`. TypeError or ValueError says what it is instead of a readable array."""
    if type(value) is not cupy.ndarray:
        raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}")
    if any(stride < 0 and n > 1 for n, stride in zip(value.shape, value.strides, strict=True)):
        raise ValueError(f"an array with negative strides {value.strides}; return cupy.ascontiguousarray of it")
    try:
        return torch.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ValueError(f"an array of dtype {value.dtype} that torch cannot read: {error}") from None


def calling() -> AbstractContextManager:
    """CuPy's current stream is torch's."""
    return cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
