"""Kernels made ready for launches: what can be known before a launch is worked out once, and a launch is one call of
CUDA's driver.

A compiler's own launch of a kernel looks at every argument anew, at several microseconds each. Here the arguments have
their places in memory, which the driver is told of once, and a launch writes them there (an H200's host: 2 us).
"""

import ctypes
import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

from touchstone.backends import replay

Extent = tuple[int, int, int]


class OfThread(threading.local):
    """The launches that a thread has made ready, by what tells them apart; None for those that cannot be."""

    def __init__(self) -> None:
        self.made: dict[Hashable, Any] = {}


class LaunchFailed(RuntimeError):
    """The driver refused a launch; the message has its name for the error."""


class Prepared:
    """A kernel that the driver has loaded, with a place in memory for each of its arguments.

    `function` is the driver's handle of it, for as long as its `owner` lives; `formats` has a letter of the module
    struct for each parameter, "P" for an address, or "128s" for one that is given as bytes. `watched` says whether
    somebody is to be told of launches. Of one thread: the driver reads the places while a launch is under way.
    """

    def __init__(
        self, function: int, formats: Sequence[str], owner: Any = None, watched: Callable[[], bool] = lambda: False
    ) -> None:
        self.addresses = tuple(each == "P" for each in formats)  # of the parameters, which are
        self.owner, self.watched = owner, watched
        self._values: Sequence[Any] = ()
        formats = ["Q" if each == "P" else each for each in formats]
        slots = [-(-struct.calcsize(each) // 8) * 8 for each in formats]  # the driver copies each from its own address
        self._layout = struct.Struct(
            "<" + "".join(_padded(each, size) for each, size in zip(formats, slots, strict=True))
        )
        self._places = ctypes.create_string_buffer(max(self._layout.size, 1))
        starts = [ctypes.addressof(self._places) + sum(slots[:i]) for i in range(len(slots))]
        self._addresses = (ctypes.c_void_p * max(len(slots), 1))(*starts)
        self._function = function

    def fill(self, values: Sequence[Any]) -> None:
        """Put the arguments in their places. struct.error or OverflowError where one is of another kind or too big."""
        self._layout.pack_into(self._places, 0, *values)
        self._values = values

    def filled(self) -> tuple[Any, ...]:
        """The arguments as they lie in their places."""
        return self._layout.unpack_from(self._places)

    def launch(
        self, grid: Extent, block: Extent, shared: int, stream: int, cooperative: bool = False, dependent: bool = False
    ) -> None:
        """Launch with the arguments that lie there, in the thread's current context. Raises LaunchFailed.

        A `dependent` one may start before the launch before it in the stream is done, for which its kernel waits.
        """
        replay.launched(self, self._values, (grid, block, shared, cooperative, dependent))
        driver = _driver()
        if dependent:
            config = Config(grid, block, shared, stream, ctypes.pointer(_DEPENDENT), 1)
            status = driver.extended(ctypes.byref(config), self._function, self._addresses, None)
        elif cooperative:
            status = driver.cooperative(self._function, *grid, *block, shared, stream, self._addresses)
        else:
            status = driver.launch(self._function, *grid, *block, shared, stream, self._addresses, None)
        if status:
            raise LaunchFailed(
                f"{driver.name(status)}: grid {grid}, blocks of {block}, {shared} bytes of shared memory"
            )


def letter(kind: str, size: int) -> str:
    """The module struct's for a number of 1, 2, 4 or 8 bytes; `kind` as NumPy has it, "i", "u" or "f" (not of 1)."""
    return {"i": "bhiq", "u": "BHIQ", "f": " efd"}[kind][size.bit_length() - 1]


def _padded(letter: str, size: int) -> str:
    return f"{letter}{size - struct.calcsize('<' + letter)}x"


class Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


_DEPENDENT = Attribute(6, 0, (ctypes.c_uint * 16)(1))  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Driver:
    def __init__(self) -> None:
        library = ctypes.CDLL("libcuda.so.1")
        number, pointer = ctypes.c_uint, ctypes.c_void_p
        self.launch = library.cuLaunchKernel
        self.launch.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]
        self.cooperative = library.cuLaunchCooperativeKernel
        self.cooperative.argtypes = [pointer, *[number] * 7, pointer, pointer]
        self.extended = library.cuLaunchKernelEx
        self.extended.argtypes = [pointer] * 4
        self._name = library.cuGetErrorName

    def name(self, status: int) -> str:
        found = ctypes.c_char_p()
        known = self._name(status, ctypes.byref(found)) == 0 and found.value
        return known.decode() if known else f"error {status}"


@lru_cache(maxsize=1)
def _driver() -> _Driver:
    return _Driver()
