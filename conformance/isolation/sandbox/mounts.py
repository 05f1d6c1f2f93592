"""The file system as a confined child sees it, in a mount namespace of its own: all read-only but one folder.

Folders that another user may not enter, such as a home folder of root, are covered by an empty one which has only what
is needed from below: the interpreter, its packages, what the judge named.
"""

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from touchstone.conformance.isolation.sandbox.kernel import (
    MS_BIND,
    MS_MOVE,
    MS_NOATIME,
    MS_NODEV,
    MS_NODIRATIME,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_RELATIME,
    MS_REMOUNT,
    mount,
)
from touchstone.conformance.isolation.sandbox.settings import Settings

DEVICES = ("null", "zero", "full", "random", "urandom")
GPU_DEVICES = ("nvidia*", "dri", "infiniband", "char")
GPU_WRITES = ("/proc",)  # CUDA's driver does not start where its process cannot write to its own entry
SHARED_MEMORY = "/dev/shm"
_FLAGS = {
    "ro": MS_RDONLY,
    "nosuid": MS_NOSUID,
    "nodev": MS_NODEV,
    "noexec": MS_NOEXEC,
    "noatime": MS_NOATIME,
    "nodiratime": MS_NODIRATIME,
    "relatime": MS_RELATIME,
}
_UNREACHABLE = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EACCES)  # a mount that another one covers
_USED = stat.S_IROTH | stat.S_IWOTH
_FILES_PER_FOLDER = 100_000


def detach() -> None:
    """What is mounted from now on in this namespace is not seen outside it, nor the reverse."""
    mount("", "/", flags=MS_REC | MS_PRIVATE)


def own_proc() -> None:
    """/proc with the processes of this PID namespace only; the driver's entries are part of every one."""
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def confine(settings: Settings) -> None:
    """Everything read-only but `settings.home` and shared memory, which begin empty, have a size, and end with the
    namespace; in /dev only what computing takes, and nothing in what is covered. Raises OSError."""
    owner = "" if settings.user is None else f",uid={settings.user},gid={settings.user}"
    size = f"size={settings.limits.files},nr_inodes={_FILES_PER_FOLDER},mode=0700{owner}"
    mount("tmpfs", settings.home, "tmpfs", MS_NOSUID | MS_NODEV, size)
    for path in filter(os.path.isdir, settings.covered):
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=0755")
    _devices(settings)
    mount("tmpfs", SHARED_MEMORY, "tmpfs", MS_NOSUID | MS_NODEV, size)
    writable = (settings.home, SHARED_MEMORY, *(GPU_WRITES if settings.device == "cuda" else ()))
    for path, flags in _mounts():
        if path not in writable:
            _read_only(path, flags)
    if not os.statvfs("/").f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, "/ is still writable")


def need_devices(device: str) -> None:
    """Raises OSError where another user may not use a device of the GPU's driver."""
    for path in sorted(Path("/dev").glob("nvidia*")) if device == "cuda" else ():
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) and mode & _USED != _USED:
            raise OSError(errno.EACCES, f"other users may not use {path}")


def closed_to_others(path: Path) -> Path | None:
    """The topmost folder on the way to a path that other users may not enter; None where they may read the path."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    mode = path.stat().st_mode
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return None if mode & needed == needed else path


def reveal(paths: Sequence[str]) -> None:
    """Make these readable for others, in this namespace. Of a folder that is closed itself, what lies in it. Raises
    OSError where a module there is closed too: it keeps the mode that it has."""
    hidden: dict[Path, list[tuple[Path, int]]] = {}
    for path in _outermost(paths):
        closed = closed_to_others(path)
        if closed is not None:
            wanted = _within(path) if _closed_itself(path) else [path]
            hidden.setdefault(closed, []).extend((each, os.open(each, os.O_PATH)) for each in wanted)
    for closed, below in hidden.items():
        mount("tmpfs", str(closed), "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
        for path, descriptor in below:
            _bind(f"/proc/self/fd/{descriptor}", path)
            os.close(descriptor)
            if (closed := closed_to_others(path)) is not None:
                raise OSError(errno.EACCES, f"other users may not read {closed}")


def _closed_itself(path: Path) -> bool:
    needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    return path.stat().st_mode & needed != needed


def _within(folder: Path) -> list[Path]:
    """What lies in a folder that is closed to others, but for hidden files and what is closed as well. Raises OSError
    where Python might import one of these, or it is no folder."""
    if not folder.is_dir():
        raise OSError(errno.EACCES, f"other users may not read {folder}")
    found = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and path.exists()]
    closed = [path for path in found if _closed_itself(path)]
    for path in closed:
        if path.suffix in (".py", ".so") or (path / "__init__.py").exists():
            raise OSError(errno.EACCES, f"other users may not read {path}")
    return [path for path in found if path not in closed]


def _outermost(paths: Iterable[str]) -> list[Path]:
    """Without those that do not exist, or that others reach by way of another one; links as they are named, and where
    they lead."""
    named = sorted(
        {p for path in paths if os.path.exists(path) for p in (os.path.abspath(path), os.path.realpath(path))}
    )
    kept: list[Path] = []
    for path in map(Path, named):
        if not any(path.is_relative_to(other) and not _closed_between(other, path) for other in kept):
            kept.append(path)
    return kept


def _closed_between(above: Path, path: Path) -> bool:
    """Whether other users may not enter a folder below `above` on the way to a path."""
    between = [folder for folder in path.parents if folder != above and folder.is_relative_to(above)]
    return any(not folder.stat().st_mode & stat.S_IXOTH for folder in between)


def _bind(source: str, target: Path) -> None:
    old = os.umask(0o022)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(source):
            target.mkdir(exist_ok=True)
        else:
            target.touch()
    finally:
        os.umask(old)
    mount(source, str(target), flags=MS_BIND | MS_REC)


def _devices(settings: Settings) -> None:
    """A /dev of its own: no disk and no terminal is in it, and a GPU where that is asked for."""
    staging = Path(settings.folder, "dev")
    mount("tmpfs", str(staging), "tmpfs", MS_NOSUID, "size=1m,mode=0755")
    wanted = [Path("/dev", name) for name in DEVICES]
    if settings.device == "cuda":
        wanted += [path for pattern in GPU_DEVICES for path in sorted(Path("/dev").glob(pattern))]
    for path in wanted:
        if path.exists():
            _bind(str(path), staging / path.name)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (staging / name).symlink_to(f"/proc/self/{target}")
    (staging / "shm").mkdir()
    mount(str(staging), "/dev", flags=MS_MOVE)


def _mounts() -> list[tuple[str, int]]:
    """Where something is mounted in this namespace, and the flags that have to be kept."""
    found = []
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            place, options = line.split()[4:6]
            path = place.encode().decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
            found.append((path, sum(_FLAGS.get(option, 0) for option in options.split(","))))
    return found


def _read_only(path: str, flags: int) -> None:
    try:
        mount("", path, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | flags)
    except OSError as error:
        if error.errno not in _UNREACHABLE:
            raise
