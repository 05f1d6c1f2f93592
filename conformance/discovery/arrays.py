"""Kernels that work on the arrays of another library than torch: those of NumPy, or those that a backend brings along.

The judge's operands stay torch tensors. A kernel is handed views of their memory, with the same strides, so that
layouts, guard bands and writes to inputs are as real as for a kernel on tensors; what it returns becomes tensors over
its memory.
"""

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from touchstone.backends.protocol import Arrays
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.returned import kind_of
from touchstone.conformance.spec.words import expected_one_of

TENSORS, NUMPY = "torch", "numpy"


@dataclass(frozen=True)
class Unreadable:
    """Stands for a returned value that is no array of the kernel's library, or none that torch can look into."""

    what: str  # completes "expected a numpy.ndarray, got ..."


class _NumPy:
    DEVICE, TYPE = "cpu", "numpy.ndarray"

    def why_not(self, dtype: torch.dtype) -> str | None:
        if dtype is torch.bfloat16 and importlib.util.find_spec("ml_dtypes") is None:
            return "NumPy has bfloat16 through ml_dtypes only: pip install ml_dtypes"
        return None

    def to_array(self, tensor: torch.Tensor) -> np.ndarray:
        if tensor.dtype is torch.bfloat16:
            import ml_dtypes

            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    def to_tensor(self, value: Any) -> torch.Tensor:
        if isinstance(value, np.generic):
            value = np.asarray(value)  # what NumPy's reductions return in place of a 0-d array
        if type(value) is not np.ndarray:
            raise TypeError(kind_of(value))
        if any(stride < 0 and n > 1 for n, stride in zip(value.shape, value.strides, strict=True)):
            raise ValueError(f"an array with negative strides {value.strides}; return np.ascontiguousarray of it")
        if any(stride < 0 for stride in value.strides):  # of axes without a second element: torch refuses those too
            value = np.lib.stride_tricks.as_strided(value, strides=[abs(stride) for stride in value.strides])
        is_bfloat16 = value.dtype.name == "bfloat16"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            try:
                tensor = torch.from_numpy(value.view(np.int16) if is_bfloat16 else value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"an array of dtype {value.dtype} that torch cannot read: {error}") from None
        return tensor.view(torch.bfloat16) if is_bfloat16 else tensor

    def calling(self) -> AbstractContextManager:
        return nullcontext()


def libraries() -> tuple[str, ...]:
    """The names that `arrays` can have."""
    offered = [
        name for name in registry.backends() if (registry.ROOT / "backends" / name / "runtime" / "arrays.py").is_file()
    ]
    return (TENSORS, NUMPY, *offered)


@functools.cache
def library(name: str) -> Arrays:
    """The library `name`, not "torch". ValueError says what is missing."""
    if name not in libraries():
        raise ValueError(f"arrays: {expected_one_of(name, libraries(), repr)}")
    if name == NUMPY:
        return _NumPy()
    if reason := registry.backend(name).why_not("cuda"):
        raise ValueError(f"arrays: {name!r} cannot be used here: {reason}")
    module: Any = registry.backend_part(name, "arrays")
    return module


def device_of(name: str, device: str | None) -> str | None:
    """The device that `arrays=name` means, or `device` where it leaves the choice. ValueError where the two
    disagree."""
    if name == TENSORS:
        return device
    where = library(name).DEVICE
    if device not in (None, where):
        raise ValueError(
            f"arrays: {name!r} means device {where!r}, where its arrays lie, but {device!r} was asked for; drop one "
            "of the two"
        )
    return where


def lacks(name: str, dtypes: dict[str, torch.dtype]) -> str | None:
    """Why a kernel on arrays of `name` cannot be judged in one of `dtypes`, or None."""
    if name == TENSORS:
        return None
    for word, dtype in dtypes.items():
        if reason := library(name).why_not(dtype):
            rest = [other for other in dtypes if other != word]
            return f"arrays: {name!r} has no {word} here: {reason}; or call check(..., dtypes={rest!r})"
    return None


def type_name(name: str) -> str:
    """What a kernel on arrays of `name` returns, for messages."""
    return "torch.Tensor" if name == TENSORS else library(name).TYPE


def on_tensors(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`fn`, a kernel on arrays of the library `name`, as one on torch tensors.

    A returned value that is no such array becomes an `Unreadable`; None stays None.
    """
    if name == TENSORS:
        return fn
    found = library(name)

    def given(value: Any) -> Any:
        return found.to_array(value) if isinstance(value, torch.Tensor) else value

    def taken(value: Any) -> Any:
        if value is None:
            return None
        try:
            return found.to_tensor(value)
        except (TypeError, ValueError) as error:
            return Unreadable(str(error))

    @functools.wraps(fn, updated=())
    def call(*arguments: Any, **named: Any) -> Any:
        with found.calling():
            returned = fn(*map(given, arguments), **{key: given(value) for key, value in named.items()})
            if isinstance(returned, (tuple, list)):
                return tuple(map(taken, returned))
            return taken(returned)

    return call


def what(value: Any) -> str:
    """What a kernel returned where an array was expected, for messages."""
    return value.what if isinstance(value, Unreadable) else kind_of(value)
