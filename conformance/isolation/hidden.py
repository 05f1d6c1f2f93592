"""Memory that is to a launcher what a GPU's is to its host: on the CPU, that of an untrusted kernel's tensors.

While no kernel runs, other numbers lie in the operands than the operands', drawn at random, and in what the library
allocates and copies. Kernels find their own numbers there, and so do the copies that the library makes. So whatever
works the answer out elsewhere, in the library, in another one, or in another process, and by whichever name it is
called, gets that of other numbers.

All is done by NumPy, since a dispatch mode would take torch's calls for the launcher's.
"""

import contextlib
import ctypes
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from touchstone import backends
from touchstone.conformance.isolation.shared import WINDOW
from touchstone.conformance.judging.instruments import COPIES, EMPTY, FILLED, FILLS

_KNOWN = COPIES | EMPTY | FILLED | FILLS | {"resize_"}  # what the library does to memory without computing
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Hidden:
    """The memory of one tensor: `here` is what the launcher has, `there` holds its numbers meanwhile."""

    def __init__(self, here: Bytes, there: Bytes, dtype: torch.dtype, draw: np.random.Generator) -> None:
        self._here, self._there, self._drawn = here, there, _drawn(dtype, len(here), draw)
        self._here[:] = self._drawn

    @property
    def span(self) -> range:
        """Its addresses."""
        return range(self._here.ctypes.data, self._here.ctypes.data + len(self._here))

    def show(self) -> None:
        """Have its numbers in the memory, and what the launcher has written there itself."""
        self.gather()
        self._here[:] = self._there

    def hide(self) -> None:
        """Have other numbers there."""
        self._there[:] = self._here
        self._here[:] = self._drawn

    def gather(self) -> None:
        """Have its numbers be what the launcher has written over those that it saw."""
        written = self._here != self._drawn
        if written.any():
            self._there[written] = self._here[written]


class _Made(Hidden):
    """That of a tensor which the library has made in this call; it stays as long as the call."""

    def __init__(self, tensor: torch.Tensor, size: int, draw: np.random.Generator) -> None:
        self._storage = tensor.untyped_storage()
        here = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data_ptr()))
        super().__init__(here, here.copy(), tensor.dtype, draw)

    def is_there(self) -> bool:
        """Whether the storage has not been given other memory."""
        begin, end = self._storage.data_ptr(), self._storage.data_ptr() + self._storage.nbytes()
        return begin <= self.span.start and self.span.stop <= end


class Host(TorchDispatchMode):
    """Within: the numbers of `operands`, and of what the library makes, are shown while a kernel runs, and while the
    library copies a tensor or fills it. In the end those of what it made are shown."""

    def __init__(self, operands: Sequence[Hidden], draw: np.random.Generator) -> None:
        super().__init__()
        self._operands, self._draw = operands, draw
        self._made: list[_Made] = []

    def __enter__(self):
        backends.before_launch.append(self._show)
        backends.after_launch.append(self._hide)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        backends.before_launch.remove(self._show)
        backends.after_launch.remove(self._hide)
        for memory in self._kept():
            memory.show()

    def _kept(self) -> list[_Made]:
        self._made = [memory for memory in self._made if memory.is_there()]
        return self._made

    def _show(self) -> None:
        for memory in (*self._operands, *self._kept()):
            memory.show()

    def _hide(self) -> None:
        for memory in (*self._operands, *self._kept()):
            memory.hide()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, and with it triton, on the first call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if backends.kernel_running() or name not in _KNOWN:
            return func(*args, **(kwargs or {}))
        with self._all_shown():
            made = func(*args, **(kwargs or {}))
        self._take(made)
        return made

    @contextlib.contextmanager
    def _all_shown(self) -> Iterator[None]:
        self._show()
        try:
            yield
        finally:
            self._hide()

    def _take(self, tensor: Any) -> None:
        """From here on, hide the numbers of a tensor that the library has made."""
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return
        if not tensor.is_floating_point() or tensor.numel() < 2:
            return
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.element_size()
        begin, end = tensor.data_ptr(), tensor.data_ptr() + size
        if all(end <= other.span.start or other.span.stop <= begin for other in (*self._operands, *self._kept())):
            self._made.append(_Made(tensor, size, self._draw))


class Window:
    """Memory for operands, at the offsets that they have in what is shared; the same addresses in each trial."""

    def __init__(self) -> None:
        self._mapping = mmap.mmap(-1, WINDOW)

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        """`size` bytes from `offset`."""
        return torch.frombuffer(self._mapping, dtype=torch.uint8, count=size, offset=offset)


def _drawn(dtype: torch.dtype, size: int, draw: np.random.Generator) -> Bytes:
    """So many bytes of numbers of a floating-point dtype."""
    numbers = draw.standard_normal(-(-size // dtype.itemsize), dtype=np.float32)
    if dtype is torch.bfloat16:
        made: np.ndarray = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype in (torch.float16, torch.float32, torch.float64):
        made = numbers.astype(str(dtype).removeprefix("torch."))
    else:  # of 8 bits: no code below 64 is infinite or no number
        made = (numbers.view(np.uint32) & 63).astype(np.uint8)
    return made.view(np.uint8)[:size]
