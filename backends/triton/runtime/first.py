"""First launches of compiled kernels without a launcher of Triton's.

Triton 3.6 has gcc compile C for each signature of a kernel, a quarter of a second on an H200's host, and a number that
is 1 makes another signature; Triton 3.7 does not. A kernel that is launched often gets its launcher later, which is
faster.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from touchstone.backends.prepared import Extent, Prepared
from touchstone.backends.triton.runtime import ready

FEW = 32  # launches of a compiled kernel that need no launcher of Triton's
_HOOKS = 4  # arguments of a launcher between the kernel and what the kernel takes: metadata twice, then hooks
_native: Any = None  # Triton's launcher, where First is in its place


def install() -> None:
    """Have this process's first launches of kernels made so, where Triton's take a C compiler."""
    from triton.backends.nvidia import driver

    global _native
    if _native is None and hasattr(driver, "make_launcher"):
        _native, driver.CudaLauncher = driver.CudaLauncher, First


class Unknown(Exception):
    """An argument that Triton has to look at."""


class First:
    """In the place of CudaLauncher, for one compiled kernel: Triton's own is made once it is needed."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._src, self._metadata, self._left = src, metadata, FEW
        self._thread = threading.get_ident()  # whose context has the kernel
        self._prepared: Prepared | None = None
        self._triton: Any = None
        try:
            self._configuration = ready.configuration(metadata)
            self._places, self._formats = ready.sent(ready.flat_kinds(src.signature.values()), metadata)
        except (AttributeError, KeyError, ready.NotReady):
            self._left = 0

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        if self._left and not ready.watched() and threading.get_ident() == self._thread:
            self._left -= 1
            if self._launch((x, y, z), stream, function, rest[_HOOKS:]):
                return
        self._of_triton()(x, y, z, stream, function, *rest)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._of_triton(), name)

    def _of_triton(self) -> Any:
        if self._triton is None:
            self._triton = _native(self._src, self._metadata)
        return self._triton

    def _launch(self, grid: Extent, stream: int, function: int, args: Sequence[Any]) -> bool:
        """Whether that could be done."""
        try:
            values = [_given(kind, value) for kind, value in _flat(self._src.signature.values(), args)]
            if set(map(type, grid)) != {int}:
                return False
            if 0 in grid:
                return True
            if self._prepared is None:
                self._prepared = ready.to_launch(function, self._formats)
        except (Unknown, ValueError, ready.NotReady):  # of other arguments than its signature tells
            return False
        if not ready.filled(self._prepared, self._places, values):
            return False
        block, shared, how = self._configuration
        self._prepared.launch(grid, block, shared, stream, *how)
        return True


def _flat(kinds: Iterable[Any], args: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """The arguments beside what Triton's signature says of them, in the order of `ready.flat_kinds`."""
    for kind, value in zip(kinds, args, strict=True):
        if isinstance(kind, tuple):
            yield "constexpr", None
            yield from _flat(kind, value)
        else:
            yield kind, value


def _given(kind: str, value: Any) -> Any:
    """What the driver is given of an argument, a descriptor as it is."""
    if kind == "constexpr":
        return None
    if kind.startswith("tensordesc"):
        known = isinstance(value.base, ready.Place) or getattr(value.base, "is_cuda", False)
    elif kind.startswith("*"):
        known = value is None or (isinstance(value, torch.Tensor) and value.is_cuda)
        value = value.data_ptr() if known and value is not None else 0
    else:
        known = type(value) in (int, float, bool)
    if not known:
        raise Unknown
    return value
