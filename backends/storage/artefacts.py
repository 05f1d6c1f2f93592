"""Compiled code that is kept: every artefact with a digest beside it, looked at before the artefact is used.

An artefact is a file of a name that says all of what it was made of. What is missing, cut short or altered is made
again; where the folder cannot be used or is full, in a temporary one. None of it says anything about a kernel: where
nothing can be kept anywhere, `NotRun` is raised.
"""

import contextlib
import errno
import functools
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from touchstone.backends import NotRun
from touchstone.backends.storage import files, folders

GIVEN = "TOUCHSTONE_GIVEN"  # a folder of artefacts for this process to read, and never to write
DIGEST = ".sha256"
SCRATCH = "scratch-"  # folders in which artefacts are made
DAY = 86400.0
LEFT_SECONDS = DAY  # after which a scratch folder belongs to a process that was killed
UNUSED_SECONDS = 60 * DAY  # after which an artefact is removed
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)  # of a folder
Made = TypeVar("Made")
_NAME = re.compile(r"[\w+-][\w.+-]*")
_FORMAT = b"touchstone artefact 1"


class Store:
    """Artefacts in one folder, `chosen` or, where that cannot be used, one that ends with this process."""

    def __init__(self, chosen: Callable[[], Path]) -> None:
        self._places = self._tried(chosen)
        self._refusals: list[str] = []
        self._folder: Path | None = None
        self._known: dict[Path, tuple[int, ...]] = {}  # verified in this process: the state of the file then

    @property
    def folder(self) -> Path:
        """Where artefacts are kept now; NotRun where there is no place for them."""
        if self._folder is None:
            self._move()
        assert self._folder is not None
        return self._folder

    @property
    def refusals(self) -> list[str]:
        """Why folders that would have come before `folder` are not used."""
        return list(self._refusals)

    def settle(self) -> None:
        """Choose the folder now, for this process and those that it forks: a temporary one would not outlive them."""
        with contextlib.suppress(NotRun):
            _ = self.folder

    def file(self, name: str, make: Callable[[Path], object]) -> Path:
        """The file of an artefact, which is what was kept under this name; if there is none, `make(path)` writes it.

        `make` is given a path in an empty folder for its own temporary files, and raises OSError where it finds no
        room: it is then called again for another place.
        """
        if not _NAME.fullmatch(name) or name.endswith(DIGEST):
            raise ValueError(f"name: expected letters, digits, '_', '-', '+' and '.', got {name!r}")
        if (path := self._given(name)) is not None:
            return path
        while True:
            folder = self.folder
            try:
                return self._made(folder / name, make)
            except OSError as error:
                self._leave(folder, error)

    def load(self, name: str) -> bytes | None:
        """The content of an artefact; None where there is none, or it is not what was kept."""
        try:
            path = self.folder / name
            with _opened(path) as file:
                data = file.read()
        except (OSError, NotRun):
            return None
        return data if _recorded(path) == _digest(name, io.BytesIO(data)) else None

    def keep(self, name: str, data: bytes) -> bool:
        """Keep `data` as an artefact; whether that could be done."""
        try:
            put(self.folder / name, data)
        except (OSError, NotRun):
            return False
        return True

    def put(self, name: str, data: bytes) -> Path:
        """Keep `data` as an artefact, in another folder where this one has no room; its file."""
        while True:
            folder = self.folder
            try:
                put(folder / name, data)
                return folder / name
            except OSError as error:
                self._leave(folder, error)

    def scratch(self, work: Callable[[Path], Made]) -> Made:
        """What `work(folder)` gives, in an empty folder that is removed then. Where `work` finds no room, which it
        raises as OSError, it is called again for another place."""
        while True:
            folder = self.folder
            try:
                with _scratch(folder) as made:
                    return work(made)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self._leave(folder, error)

    def _given(self, name: str) -> Path | None:
        """The file of an artefact that whoever started this process has given to it."""
        folder = os.environ.get(GIVEN)
        path = Path(folder, name) if folder else None
        return path if path is not None and self._right(path, (0,)) else None

    def _made(self, path: Path, make: Callable[[Path], object]) -> Path:
        if self._right(path):
            return path
        self._tell(path.parent)
        with files.alone(path):  # so that two do not compile the same; right without it, too
            if not self._right(path):
                with _scratch(path.parent) as scratch:
                    make(scratch / path.name)
                    _admit(scratch / path.name, path)
        return path

    def _right(self, path: Path, owners: Sequence[int] = ()) -> bool:
        """`verified(path, owners)`, looked at once as long as the file stays as it is."""
        try:
            about = os.lstat(path)
        except OSError:
            return False
        state = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        if self._known.get(path) != state:
            if not verified(path, owners):
                return False
            self._known[path] = state
        return True

    def _tried(self, chosen: Callable[[], Path]) -> Iterator[Path]:
        """Folders to keep artefacts in, the best first; why one is not used goes to `_refusals`."""
        try:
            folder = folders.executable(folders.secured(chosen()))
            _swept(folder)
            yield folder
        except OSError as error:
            self._refuse(error)
        for folder in folders.temporaries():
            try:
                yield folders.executable(folders.secured(folder))
            except OSError as error:
                self._refuse(error)

    def _move(self) -> None:
        self._folder = next(self._places, None)
        if self._folder is None:
            raise NotRun(f"there is no folder for compiled kernels: {'; '.join(self._refusals) or 'none can be made'}")

    def _tell(self, folder: Path) -> None:
        """Say why nothing is kept: once, whichever process that shares the folder is the first to fill it."""
        if self._refusals:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(folder / "told", os.O_CREAT | os.O_EXCL))
                print(
                    f"touchstone: {self._refusals[-1]}; compiled kernels are not kept, but go to {folder}",
                    file=sys.stderr,
                )

    def _leave(self, folder: Path, error: OSError) -> None:
        """Use another folder from now on, unless that has happened already."""
        if self._folder == folder:
            self._refuse(error, folder)
            self._folder = None

    def _refuse(self, error: OSError, folder: Path | None = None) -> None:
        why = str(error) if isinstance(error, folders.Refused) else f"{error.filename or folder}: {error.strerror}"
        self._refusals.append(why)


def verified(path: Path, owners: Sequence[int] = ()) -> bool:
    """Whether a file is an artefact as it was kept, by this user or one of `owners`."""
    try:
        with _opened(path, owners) as file:
            return _recorded(path, owners) == _digest(path.name, file)
    except OSError:
        return False


def give(paths: Sequence[Path], folder: Path) -> None:
    """Copy artefacts, each with its digest, to where others may read them: what `GIVEN` names in their processes.
    Raises OSError."""
    folder.mkdir()
    for path in paths:
        for each in (path, path.with_name(path.name + DIGEST)):
            shutil.copyfile(each, folder / each.name)
            os.chmod(folder / each.name, 0o644)
    folder.chmod(0o755)


def put(path: Path, data: bytes) -> None:
    """Keep `data` as an artefact in a folder that is there. Raises OSError."""
    with _scratch(path.parent) as scratch:
        (scratch / path.name).write_bytes(data)
        _admit(scratch / path.name, path)


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH, ignore_cleanup_errors=True) as made:
        yield Path(made)


def _admit(fresh: Path, path: Path) -> None:
    """Put a finished file under its name. Until its digest has followed, it is not used."""
    with open(fresh, "rb") as file:
        digest = _digest(path.name, file)
    told = fresh.with_name(fresh.name + DIGEST)
    told.write_text(digest + "\n")
    os.chmod(fresh, 0o700)
    os.chmod(told, 0o600)
    os.replace(fresh, path)
    os.replace(told, path.with_name(told.name))


def store() -> Store:
    """The store of this process, in the folder that `folders.chosen` names now."""
    try:
        return _store(folders.chosen())
    except folders.Refused as error:
        return _homeless(str(error))


def described() -> tuple[str, str]:
    """Where compiled kernels are kept, and why it is not where it should be; for `touchstone doctor`."""
    found = store()
    try:
        folder = str(found.folder)
    except NotRun as error:
        return "nowhere", str(error)
    return folder, "; ".join(found.refusals) or f"the emulator's; {folders.CHOICE} names another folder"


@functools.cache
def _store(folder: Path) -> Store:
    return Store(lambda: folder)


@functools.cache
def _homeless(why: str) -> Store:
    def refuse() -> Path:
        raise folders.Refused(why)

    return Store(refuse)


def _opened(path: Path, owners: Sequence[int] = ()) -> io.BufferedReader:
    """A plain file of this user, or one of `owners`, which nobody else may write to. Raises OSError."""
    file = files.opened(path, follow=False)
    about = os.fstat(file.fileno())
    if about.st_uid in (os.geteuid(), *owners) and not about.st_mode & 0o022:
        return file
    file.close()
    raise folders.Refused(f"{path} is not of this user alone")


def _recorded(path: Path, owners: Sequence[int] = ()) -> str:
    """The digest that was kept with an artefact; "" where there is none."""
    try:
        with _opened(path.with_name(path.name + DIGEST), owners) as file:
            return file.read(200).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _digest(name: str, content: io.BufferedReader | io.BytesIO) -> str:
    """Of an artefact's name and its content: of two artefacts that were swapped neither is right."""
    return hashlib.file_digest(content, lambda: hashlib.sha256(b"\0".join((_FORMAT, name.encode(), b"")))).hexdigest()


def _swept(folder: Path) -> None:
    """Once a day, remove what killed processes left behind, and what was not read for long."""
    now, marker = time.time(), folder / "swept"
    with contextlib.suppress(OSError):
        if now - marker.stat().st_mtime < DAY:
            return
    with contextlib.suppress(OSError):
        marker.touch(0o600)
        os.utime(marker)
        for entry in os.scandir(folder):
            about = entry.stat(follow_symlinks=False)
            used = max(about.st_atime, about.st_mtime)
            if entry.is_dir(follow_symlinks=False) and entry.name.startswith(SCRATCH) and now - used > LEFT_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.is_file(follow_symlinks=False) and now - used > UNUSED_SECONDS:
                with contextlib.suppress(OSError):
                    os.unlink(entry)
