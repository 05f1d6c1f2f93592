"""Memory that the judge and the process of a kernel share: operands one way, the bytes of outputs and replies the
other.

It is one file without a name, far larger than anything in it; only what is touched takes memory. Nobody can make it
smaller, so that a mapping of it stays readable whatever the other process does.
"""

import fcntl
import mmap
import os
import tempfile

import torch

ALIGNED = 512  # bytes: no less than what cudaMalloc gives
WINDOW = 1 << 26  # from 0: operands of ordinary size, mapped once
OUTPUTS = 1 << 40  # up to here: operands that the window has no room for; from here: outputs
REPLY = 1 << 43
REPLY_BYTES = 1 << 20
SIZE = REPLY + REPLY_BYTES
MADV_REMOVE = getattr(mmap, "MADV_REMOVE", None)


class NoSharedMemory(OSError):
    """This machine does not let two processes share memory as judging needs it."""


class Shared:
    """The shared file, in one of the two processes. `descriptor`: the file that the other one has made."""

    def __init__(self, descriptor: int | None = None) -> None:
        try:
            self.descriptor = _made() if descriptor is None else descriptor
            self._window = self._map(0, WINDOW)
        except (OSError, ValueError) as error:
            raise NoSharedMemory(f"no memory can be shared with another process here: {error}") from error
        self._mapped: dict[int, tuple[mmap.mmap, int]] = {}  # beyond the window, by offset: the mapping and its size

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        """`size` bytes from `offset`, as a tensor of bytes with a storage of its own."""
        if offset + size <= WINDOW:
            return _tensor(self._window, size, offset)
        mapping, known = self._mapped.get(offset, (None, -1))
        if mapping is None or known < size:
            mapping, known = self._map(offset, size), size
            self._mapped[offset] = mapping, known
        return _tensor(mapping, size, 0)

    def forget(self, clear: bool) -> None:
        """Unmap what lies beyond the window, once no tensor over it is left; `clear`: give its memory back too."""
        for mapping, _ in self._mapped.values():
            if clear and MADV_REMOVE is not None:
                mapping.madvise(MADV_REMOVE)
        self._mapped.clear()

    def close(self) -> None:
        """Close the file; what tensors still lie over stays mapped."""
        self._mapped.clear()
        self.__dict__.pop("_window", None)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _map(self, offset: int, size: int) -> mmap.mmap:
        return mmap.mmap(self.descriptor, max(size, 1), offset=offset)


def _tensor(mapping: mmap.mmap, size: int, offset: int) -> torch.Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(mapping, dtype=torch.uint8, count=size, offset=offset)


def _made() -> int:
    if not hasattr(os, "memfd_create"):  # macOS
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), SIZE)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("touchstone", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def rounded(size: int, to: int = ALIGNED) -> int:
    return -(-size // to) * to
