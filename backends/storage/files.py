"""Files that several processes write and read: replaced whole, one writer at a time, and read with a limit."""

import contextlib
import errno
import functools
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any

from filelock import FileLock

WAIT_SECONDS = 120.0  # for a lock: a process that was stopped holds its own for good
LARGEST = 256 << 20  # bytes of a record
DEEPEST = 100  # lists and objects of a record one inside another
_DEEP = "its lists and objects are nested too deeply"
ROOT = Path(__file__).resolve().parents[2]  # of the clone, or of the installed package


@functools.lru_cache(maxsize=4096)
def portable(path: str) -> str:
    """How a file is named in what is kept: one that belongs to Touchstone by its place below `ROOT`, so that what one
    clone compiles another finds; others as they are."""
    place = os.path.realpath(path)
    return os.path.relpath(place, ROOT) if place.startswith(f"{ROOT}/") else path


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Held by one process at a time, by a lock file beside `path`; the lock of a process that dies is free again.

    False where it cannot be had, or not within WAIT_SECONDS: what is done then must be right without it.
    """
    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=WAIT_SECONDS)
    except OSError:  # which filelock.Timeout is, too
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def in_memory() -> BufferedRandom:
    """A file without a name, to write and read, which needs neither a disk nor a folder, but where the system has no
    such memory: in the folder for temporary files then."""
    try:
        return open(os.memfd_create("touchstone"), "w+b")
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSYS:
            raise
        return tempfile.TemporaryFile()


def replace(path: str | Path, data: str | bytes, mode: int = 0o666, follow: bool = True) -> None:
    """Write a file in one step: who reads it meanwhile, or after a crash, finds what was there before or all of `data`.

    `mode`: of a new file, less the umask. Pipes and devices are written to as they are; of a symbolic link, what it
    names is replaced, or with `follow=False` the link. Raises OSError, and leaves nothing behind then.
    """
    raw = data.encode() if isinstance(data, str) else data
    target = Path(os.path.realpath(path) if follow else path)
    try:
        before = os.stat(target, follow_symlinks=False)
    except FileNotFoundError:
        before = None
    if before is not None and stat.S_ISLNK(before.st_mode):
        before = None
    if str(path).startswith(("/dev/", "/proc/")) or (before is not None and not stat.S_ISREG(before.st_mode)):
        with open(path, "wb") as file:
            file.write(raw)
        return
    fresh = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            if before is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def opened(path: str | Path, follow: bool = True) -> BufferedReader:
    """A plain file to read; a pipe or a device is not waited for, nor with `follow=False` a symbolic link followed.
    Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def read(path: str | Path, most: int = LARGEST, follow: bool = True) -> bytes:
    """The content of a plain file. Raises OSError, and ValueError where it has more than `most` bytes."""
    with opened(path, follow) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise ValueError(f"it has {size} bytes; {most} are read at most")
        return file.read(most + 1)


def read_json(path: str | Path, follow: bool = True) -> Any:
    """What a file of JSON holds. Raises OSError, and ValueError that says why it cannot be read."""
    return parsed(read(path, follow=follow))


def parsed(text: str | bytes) -> Any:
    """What a text from elsewhere holds, as JSON. ValueError where it is none, or is nested more than DEEPEST times:
    whatever goes through it later, as deep as itself, is to come to an end."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None
    level = [found]
    for _ in range(DEEPEST):
        level = [below for each in level for below in _inside(each) if isinstance(below, dict | list)]
    if level:
        raise ValueError(_DEEP)
    return found


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
