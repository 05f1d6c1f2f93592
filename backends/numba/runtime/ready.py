"""Launches that are made ready: numba-cuda's own looks at the type and the fields of every argument anew, which takes
it 15 us a tensor (an H200's host).

The first launch of a kernel is numba-cuda's. What it gives the driver then is kept, for launches of the same sizes,
strides and types of numbers from the same thread: those only put addresses and numbers in their places.
"""

import ctypes
import struct
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from touchstone.backends.prepared import Extent, OfThread, Prepared, letter

_of_thread = OfThread()  # by their `signature`
MOST = 1024  # launches of a thread that are kept; then all are made anew
_NUMBERS = (int, bool, np.integer, float, np.float32)  # np.float16 is given as its bits


class Ready:
    """A launch but for the addresses of its tensors and its numbers."""

    def __init__(self, compiled: Any, grid: Extent, block: Extent, arguments: Sequence[Any], shared: int) -> None:
        """Of numba-cuda's kernel `compiled` for these arguments. Raises NotReady where it takes them in a way unknown
        here."""
        self._grid, self._block, self._shared = grid, block, shared
        self._cooperative = bool(compiled.cooperative)
        self._values: list[Any] = []  # as the driver takes them: an array is nine, say, its address the fifth
        self._places: list[tuple[int, int]] = []  # in `_values`, and of what argument
        formats: list[str] = []
        for number, (kind, value) in enumerate(zip(compiled.argument_types, arguments, strict=True)):
            begin, flat = len(self._values), []
            compiled._prepare_args(kind, value, 0, [], flat)
            if isinstance(value, torch.Tensor):
                if len(flat) != 5 + 2 * value.ndim or flat[4] != value.data_ptr() or set(map(type, flat)) != {int}:
                    raise NotReady
                self._places.append((begin + 4, number))
                formats += ["P" if i == 4 else "q" for i in range(len(flat))]
            elif len(flat) == 1 and isinstance(value, _NUMBERS):
                self._places.append((begin, number))
                formats.append(_letter(flat[0]))
            elif _is_fixed(value) and len(flat) == len(value):
                formats += map(_letter, flat)
                flat = [each.value for each in flat]
            else:
                raise NotReady
            self._values += flat
        function = int(compiled._codelibrary.get_cufunc().handle)
        self._prepared = Prepared(function, formats, compiled, watched)  # `compiled` unloads it when it goes

    def launch(self, arguments: Sequence[Any], index: int) -> bool:
        """Launch on GPU `index`, which is current; False where a number does not fit its type."""
        values = self._values
        for place, number in self._places:
            value = arguments[number]
            values[place] = value.data_ptr() if isinstance(value, torch.Tensor) else value
        try:
            self._prepared.fill(values)
        except (struct.error, OverflowError):
            return False
        stream = torch._C._cuda_getCurrentRawStream(index)
        self._prepared.launch(self._grid, self._block, self._shared, stream, self._cooperative)
        return True


class NotReady(Exception):
    """A launch that numba-cuda has to make each time."""


def watched() -> bool:
    """Whether somebody else takes numba-cuda's launches."""
    from numba.cuda.dispatcher import _Kernel

    return not _Kernel.launch.__module__.startswith("numba")


def made() -> dict[Hashable, Ready | None]:
    """The launches that this thread has made ready."""
    return _of_thread.made


def signature(kernel: Any, grid: Any, block: Any, arguments: Sequence[Any], shared: int, index: int) -> Hashable | None:
    """What a launch on GPU `index` has to have in common with another for numba-cuda to make the same of both; None
    where a tensor is elsewhere, or another GPU is the current one."""
    if torch._C._cuda_getDevice() != index:
        return None
    parts: list[Hashable] = [kernel, grid, block, shared, index]
    for each in arguments:
        if isinstance(each, torch.Tensor):
            if each.get_device() != index:
                return None
            parts += (each.dtype, each.shape, each.stride())
        else:
            parts.append(each if _is_fixed(each) else type(each))
    return tuple(parts)


def keep(key: Hashable, kernel: Any, grid: Any, block: Any, arguments: Sequence[Any], shared: int) -> None:
    """Make a launch ready that numba-cuda has just made."""
    from numba.cuda.errors import normalize_kernel_dimensions

    if len(_of_thread.made) >= MOST:
        _of_thread.made.clear()
    compiled = kernel.compile(tuple(map(kernel.typeof_pyval, arguments)))
    try:
        ready = (
            None if compiled.debug else Ready(compiled, *normalize_kernel_dimensions(grid, block), arguments, shared)
        )
    except (AttributeError, NotReady):  # of another release of numba-cuda
        ready = None
    _of_thread.made[key] = ready


def _is_fixed(value: Any) -> bool:
    """Whether it is a tuple of integers, such as strides, which are the same in each launch that is like another."""
    return isinstance(value, tuple) and all(type(each) is int for each in value)


def _letter(given: Any) -> str:
    """The letter of the module struct for a number that numba-cuda gives the driver."""
    if type(given) is bool:
        return "?"
    size = ctypes.sizeof(given) if isinstance(given, ctypes._SimpleCData) else 0
    if size not in (1, 2, 4, 8) or isinstance(given, ctypes.c_bool):
        raise NotReady
    floats = isinstance(given, ctypes.c_float | ctypes.c_double)
    return letter("f" if floats else "i" if type(given)(-1).value < 0 else "u", size)
