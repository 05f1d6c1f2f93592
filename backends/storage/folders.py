"""Folders of this user alone: where compiled code is kept, and where it goes when nothing can be kept.

This is the one place that chooses a folder. `environment` gives another process folders of its own, also for the caches
of the libraries that kernels are written with.
"""

import atexit
import contextlib
import fcntl
import grp
import itertools
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CHOICE = "TOUCHSTONE_CACHE"
SHARED_MEMORY = "/dev/shm"
PREFIX = "touchstone-cache-"  # of a temporary folder's name
HELD = "held"  # a file in it, locked while a process uses the folder
USERS = (1 << 32) - 1  # that a machine has
JUST_MADE = 10.0  # seconds in which that file may not be locked yet
# Where libraries keep what they compile or load, below a folder; all but the first of them run what they find there.
LIBRARIES = {
    "XDG_CACHE_HOME": "xdg",
    "TRITON_HOME": "triton",
    "TRITON_CACHE_DIR": "triton/cache",
    "TRITON_DUMP_DIR": "triton/dump",
    "TRITON_OVERRIDE_DIR": "triton/override",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "PYTORCH_KERNEL_CACHE_PATH": "torch_kernels",
    "NUMBA_CACHE_DIR": "numba",
    "CUPY_CACHE_DIR": "cupy",
    "CUDA_CACHE_PATH": "cuda",
    "PYTHONPYCACHEPREFIX": "python",
}


class Refused(OSError):
    """A folder that is not used; the message says why."""


def environment(folder: str | Path) -> dict[str, str]:
    """Variables for a process that is to have caches of its own: Touchstone's and the libraries', below `folder`.

    `folder` is made, for this user alone. Raises OSError.
    """
    return variables(secured(Path(folder)))


def variables(base: Path) -> dict[str, str]:
    """The same for a folder that the process makes itself."""
    return {CHOICE: str(base / "touchstone"), **{name: str(base / below) for name, below in LIBRARIES.items()}}


def chosen() -> Path:
    """Where compiled code is to be kept: `TOUCHSTONE_CACHE`, else the user's cache folder. Raises Refused where the
    user has no home."""
    named = os.environ.get(CHOICE)
    if named:
        return Path(named).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
    except RuntimeError:
        raise Refused(f"there is no home folder; set HOME or {CHOICE}") from None
    return base.absolute() / "touchstone" / "emulator"


def state() -> Path:
    """Where what has to stay is kept, of this user alone. Raises Refused where the user has no home."""
    shared = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(shared) if os.path.isabs(shared) else Path.home() / ".local" / "state"
    except RuntimeError:
        raise Refused("there is no home folder; set HOME or XDG_STATE_HOME") from None
    return base.absolute() / "touchstone"


def nowhere() -> Path:
    """For a store of temporary folders alone."""
    raise Refused("what is kept here ends with the process")


def secured(path: Path) -> Path:
    """`owned(path)`, in a place where nobody else can put another folder under its name. Raises OSError."""
    owned(path)
    for above in Path(os.path.realpath(path)).parents:
        about = os.stat(above)
        if who := _replacing(about):
            raise Refused(
                f"{path} lies in {above}, where {who} may replace it (mode {stat.S_IMODE(about.st_mode):04o})"
            )
    return path


def _replacing(about: os.stat_result) -> str | None:
    """Who else may put something in the place of what lies in a folder; None: root alone. Its owner may whatever its
    mode is, also where the sticky bit keeps the others from it."""
    if about.st_uid not in (0, os.geteuid()) and about.st_uid != _unmapped():
        return _user(about.st_uid)
    if about.st_mode & stat.S_ISVTX:
        return None
    if about.st_mode & stat.S_IWOTH:
        return "everybody"
    if about.st_mode & stat.S_IWGRP and about.st_gid != 0 and not _is_private(about.st_gid):
        return f"group {about.st_gid}"
    return None


def _unmapped() -> int | None:
    """Whom files belong to, by their number, whose owner this user namespace does not have, root of the machine among
    them; None where every user has a number of its own."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        if sum(int(line.split()[2]) for line in lines) < USERS:
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return None


def _is_private(group: int) -> bool:
    """Whether a group is this user's alone: where each user has one, folders are often made for it to write too."""
    try:
        about, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # of which nothing is known but its number
        return group == os.geteuid()
    return about.gr_name == user and set(about.gr_mem) <= {user}


def owned(path: Path) -> Path:
    """`path` as a folder of this user alone, mode 0700, made if missing. Raises OSError; Refused where the folder is
    another user's, is a symbolic link, or others may write to it."""
    for missing in [path, *itertools.takewhile(lambda above: not above.exists(), path.parents)][::-1]:
        with contextlib.suppress(FileExistsError):
            os.mkdir(missing, 0o700)
    about = os.lstat(path)
    if stat.S_ISLNK(about.st_mode):
        raise Refused(f"{path} is a symbolic link; name the folder itself")
    if not stat.S_ISDIR(about.st_mode):
        raise Refused(f"{path} is not a folder")
    if about.st_uid != os.geteuid():
        raise Refused(f"{path} belongs to {_user(about.st_uid)}, not to {_user(os.geteuid())}")
    if about.st_mode & 0o022:
        raise Refused(f"others may write to {path} (mode {stat.S_IMODE(about.st_mode):04o}): empty it, then chmod 700")
    if about.st_mode & 0o077:
        os.chmod(path, 0o700)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise Refused(f"{path} cannot be written to")
    return path


def executable(path: Path) -> Path:
    """`path`, if code in it can be loaded; else Refused."""
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        raise Refused(f"{path} is on a file system from which nothing is run (noexec)")
    return path


def temporaries() -> Iterator[Path]:
    """New folders of this user alone, each in another place, gone when this process ends; none where none can be
    made. What processes that were killed left behind is removed."""
    places = []
    with contextlib.suppress(FileNotFoundError):
        places.append(tempfile.gettempdir())
    for place in dict.fromkeys([*places, SHARED_MEMORY]):
        try:
            for left in Path(place).glob(f"{PREFIX}*"):
                _remove_if_left(left)
            made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            held = os.open(made / HELD, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process and those forked from it have ended
        except OSError:
            continue
        atexit.register(_removed, made, os.getpid())
        yield made


def _removed(folder: Path, owner: int) -> None:
    """Remove a temporary folder, in the process that made it: forked ones use it as well."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    """Remove a temporary folder of this user that no process holds."""
    with contextlib.suppress(OSError):
        if folder.lstat().st_uid != os.geteuid():
            return
        with open(os.open(folder / HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > JUST_MADE:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
