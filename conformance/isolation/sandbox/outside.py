"""The judge's end: what a confined child gets, what it left, and its end with everything that it started."""

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from touchstone.backends.storage import artefacts, folders
from touchstone.conformance.discovery import registry
from touchstone.conformance.isolation.sandbox import inside, kernel
from touchstone.conformance.isolation.sandbox.removal import remove
from touchstone.conformance.isolation.sandbox.settings import ALL, DEFAULT, Limits, Measure, Settings

END_SECONDS = 10.0  # for killed processes to be gone
START_SECONDS = 30.0
GROUP_VARIABLE = "TOUCHSTONE_CGROUP"
USERS = range(61184, 65518, 2)  # systemd's for services that have no user; the odd ones are for what kills the even
PREFIX = "touchstone-sandbox-"  # of a folder's name
HELD = "held"  # a file in it, locked until its judge has ended
JUST_MADE = 10.0  # seconds in which that file may not be locked yet
WORLD_WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")

PASSED = (
    "PATH", "LANG", "LANGUAGE", "TZ", "TERM", "CC", "CXX", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH",
    "SOURCE_DATE_EPOCH", "COLUMNS",
)  # fmt: skip
PASSED_PREFIXES = (
    "LC_", "PYTHON", "CUDA_", "NVIDIA_", "TORCH_", "TORCHINDUCTOR_", "TOUCHSTONE_", "OMP_", "MKL_", "OPENBLAS_", "KMP_",
    *(f"{name.upper()}_" for name in registry.backends()),
)  # fmt: skip
# what else looks for a folder, below that of the caches
PRIVATE = {
    "TORCH_HOME": "torch", "MPLCONFIGDIR": "matplotlib", "XDG_CONFIG_HOME": "xdg_config", "XDG_DATA_HOME": "xdg_data",
    "XDG_STATE_HOME": "xdg_state", "XDG_RUNTIME_DIR": "xdg_runtime",
}  # fmt: skip

WITHOUT = {
    Measure.PROCESSES: "a process table of its own (a PID namespace): a kernel sees the machine's processes, and "
    "what it leaves running is searched for and killed",
    Measure.FILES: "a read-only view of the file system (a mount namespace): a kernel may write wherever its user may",
    Measure.NETWORK: "a network namespace",
    Measure.USER: "a user of its own: a kernel runs as the user who judges it",
    Measure.PRIVILEGES: "no_new_privs: a kernel may start programs that run as another user",
    Measure.SYSTEM_CALLS: "a filter of system calls: a kernel may use sockets, ptrace and namespaces as far as its "
    "user may",
    Measure.LANDLOCK: "Landlock, as a second lock on files, signals and connections",
    Measure.LIMITS: "limits on memory, processes and files",
    Measure.MEMORY: "a control group that limits the memory of all processes of a kernel together; the judge looks at "
    "it from time to time",
    Measure.SECRECY: "a judge that other processes of its user may not look into",
}


@dataclass(frozen=True)
class Plan:
    """The measures that a child is confined by, and why the others are not among them."""

    measures: frozenset[Measure]
    reasons: dict[Measure, str]


class NotConfined(RuntimeError):
    """A child could not be confined as its settings say, and has run nothing."""


class Sandbox:
    """A private folder and what confines one child, for a `with` statement; at its end all of it is gone.

    The child is forked or started by the caller and first calls `inside.enter(settings)`; the caller then calls
    `started`. `lacking` says in words what this machine cannot do, and `files` are copied into the folder, where the
    child may read them and another user's files stay closed. `readable` are folders that the child has to be able to
    read beside the interpreter and its packages.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        limits: Limits = DEFAULT,
        measures: Iterable[Measure] = ALL,
        readable: Sequence[str | Path] = (),
        group: str | Path | None = None,
        plan: "Plan | None" = None,
    ):
        if device not in ("cpu", "cuda"):
            raise ValueError(f"device: expected 'cpu' or 'cuda', got {device!r}")
        if (reason := why_not()) is not None:
            raise NotConfined(reason)
        self.device, self.limits = device, limits
        self.readable = tuple(sorted({*_interpreter(), *(os.path.abspath(path) for path in readable)}))
        self._parent_group = str(group) if group is not None else os.environ.get(GROUP_VARIABLE)
        self.plan = plan or offered(frozenset(measures), device, self.readable, self._parent_group)
        self.measures = self.plan.measures
        self.folder = self._group = ""
        self.pid: int | None = None
        self._init: int | None = None
        self._said: list[dict[str, Any]] = []
        self._unread = b""

    @property
    def lacking(self) -> list[str]:
        """What could not be had, most important first, each with the reason."""
        reasons = self.plan.reasons
        return [f"{WITHOUT[measure]} ({reasons[measure]})" for measure in Measure if measure in reasons]

    def __enter__(self) -> "Sandbox":
        _clear(tempfile.gettempdir())
        self.folder = tempfile.mkdtemp(prefix=PREFIX)
        os.chmod(self.folder, 0o755)
        self._held = os.open(os.path.join(self.folder, HELD), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        alone = Measure.PROCESSES in self.measures  # then another sandbox's processes are out of reach
        self.user = _free_user(alone) if Measure.USER in self.measures else None
        for name in ("home", "dev"):
            os.mkdir(os.path.join(self.folder, name), 0o700)
        self._status, self._their_status = os.pipe()
        os.set_blocking(self._status, False)
        self._output = tempfile.TemporaryFile()
        if Measure.MEMORY in self.measures and self._parent_group is not None:
            self._group = _new_group(self._parent_group, os.path.basename(self.folder), self.limits)
        if Measure.SECRECY in self.measures:
            _hide()
        self._subreaper = kernel.is_subreaper()
        if Measure.PROCESSES not in self.measures:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)  # what outlives its supervisor becomes this process's child
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def give(self, path: str | Path) -> Path:
        """Copy a file or a folder to where the child may read it, and not write; where it is then."""
        source = Path(path)
        target = Path(self.folder, source.name)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
        for found in (target, *target.rglob("*")):
            found.chmod(0o755 if found.is_dir() else 0o644)
        return target

    def settings(self, *keep: int) -> Settings:
        """For `inside.enter`; `keep` are descriptors that the child needs beside stdin, stdout and stderr."""
        return Settings(
            folder=self.folder,
            measures=self.measures,
            limits=self.limits,
            device=self.device,
            readable=tuple(sorted({*self.readable, self.folder})),
            covered=_covered(),
            user=self.user,
            group=self._group or None,
            environment=self.environment,
            keep=tuple(sorted(set(keep))),
            status=self._their_status,
            output=self._output.fileno(),
        )

    @property
    def given(self) -> Path:
        """Where the child looks for artefacts that it may read and not write, once `artefacts.give` put some there."""
        return Path(self.folder, "given")

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the child: what computing needs of this process's, and folders of its own."""
        home = os.path.join(self.folder, "home")
        passed = {
            name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)
        }
        caches = Path(home, "cache")
        own = {**folders.variables(caches), **{name: str(caches / folder) for name, folder in PRIVATE.items()}}
        own[artefacts.GIVEN] = str(self.given)
        temporary = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), os.path.join(home, "tmp"))
        return {**passed, **own, **temporary, "HOME": home, "USER": "kernel", "LOGNAME": "kernel"}

    def popen_arguments(self, *keep: int) -> dict[str, Any]:
        """For `subprocess.Popen` of a fresh process that is to call `enter`."""
        return {
            "env": self.environment,
            "stdin": subprocess.DEVNULL,
            "pass_fds": (*keep, self._their_status, self._output.fileno()),
            "process_group": 0,
        }

    def started(self, pid: int, seconds: float = START_SECONDS) -> None:
        """Wait until the child, forked or started as process `pid`, is confined. Raises NotConfined."""
        self.pid = pid
        os.close(self._their_status)
        self._their_status = -1
        until = time.monotonic() + seconds
        while not any("ready" in line for line in self._said):
            open_still = self._listen()
            failed = next((line for line in self._said if "failed" in line), None)
            if failed is not None:
                raise NotConfined(_failure(failed))
            if any("ready" in line for line in self._said):
                return
            if not open_still:
                raise NotConfined("the child ended before it was confined")
            if time.monotonic() > until:
                raise NotConfined(f"the child was not confined within {seconds:g} s")
            time.sleep(0.001)

    @property
    def failed(self) -> tuple[Measure | None, str] | None:
        """The measure that could not be had, and why."""
        for line in self._said:
            if "failed" in line:
                return (Measure(line["failed"]) if line["failed"] else None), line["reason"]
        return None

    @property
    def notes(self) -> list[str]:
        """What the supervisor did to the child, in words."""
        self._listen()
        found = []
        for line in self._said:
            if "late" in line:
                found.append(f"killed after {line['late']:g} s")
            if "cut" in line:
                found.append(f"printed more than {line['cut']} bytes; the rest is not kept")
        return list(dict.fromkeys(found))

    def output(self) -> str:
        """What the child has printed, up to the limit."""
        return os.pread(self._output.fileno(), self.limits.output, 0).decode(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """The candidate's process and what it has started, without its supervisors."""
        if self.pid is None:
            return []
        with contextlib.suppress(psutil.Error):
            self._listen()
            below = psutil.Process(self.pid).children(recursive=True)
            return [process for process in below if process.pid != self._init]
        return []

    def usage(self) -> tuple[float, int]:
        """Processor time in seconds and resident memory in bytes of all of them that live."""
        seconds, resident = 0.0, 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seconds += times.user + times.system
                resident += process.memory_info().rss
        return seconds, resident

    def kill(self) -> None:
        """End the child and everything that it has started; the supervisor ends too, and is the caller's to reap."""
        if self.pid is None:
            return
        self._listen()
        with contextlib.suppress(psutil.Error):
            supervisor = psutil.Process(self.pid)
            if supervisor.status() != psutil.STATUS_ZOMBIE:
                self._kill_below(supervisor)
        if self._init is not None:
            _wait_gone(self._init)
        if Measure.PROCESSES not in self.measures:
            self._kill_strays()

    def _kill_below(self, supervisor: psutil.Process) -> None:
        until = time.monotonic() + END_SECONDS
        while supervisor.is_running() and supervisor.status() != psutil.STATUS_ZOMBIE:
            if Measure.PROCESSES in self.measures:
                for init in supervisor.children() if self._init is None else [psutil.Process(self._init)]:
                    init.kill()  # and the kernel kills all that is in its namespace, before it is gone itself
            elif not inside.end_tree(supervisor):
                supervisor.resume()
            if time.monotonic() > until:
                supervisor.kill()
                return
            time.sleep(0.002)

    def _kill_strays(self) -> None:
        """What got away from its supervisor: by its user, or as a child of this process behind a filter more."""
        if self.user is not None:
            inside.end_user(self.user)
            return
        own = _filters(os.getpid())
        while strays := [p for p in psutil.Process().children() if p.pid != self.pid and _filters(p.pid) > own]:
            for stray in strays:
                inside.end_tree(stray)
                stray.kill()
                stray.wait(END_SECONDS)

    def close(self) -> None:
        """End all and remove the folder. Raises OSError where something of it stays."""
        if not self.folder:
            return
        self.kill()
        for descriptor in (self._status, self._their_status, self._held):
            if descriptor >= 0:
                os.close(descriptor)
        self._output.close()
        if not self._subreaper and Measure.PROCESSES not in self.measures:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)
        if Measure.SECRECY in self.measures:
            _show()
        if self._group:
            _remove_group(self._group)
        if self.user is not None and Measure.FILES not in self.measures:
            _sweep(self.user)
        folder, self.folder = self.folder, ""
        remove(folder)

    def _listen(self) -> bool:
        """Read what the child and its supervisors said; whether one of them may say more."""
        if not self.folder:
            return False
        while True:
            try:
                chunk = os.read(self._status, 1 << 16)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            self._said += [json.loads(line) for line in lines]
            self._init = next((line["init"] for line in self._said if "init" in line), self._init)


def why_not() -> str | None:
    """None where a child can be confined at all, else a sentence."""
    if sys.platform != "linux":
        return f"not available on {sys.platform}: confining a kernel's process takes Linux"
    return None


def lacking(device: str = "cpu") -> list[str]:
    """What this machine cannot do to confine a kernel's process, in words; empty where it can do everything."""
    return [reason] if (reason := why_not()) is not None else Sandbox(device).lacking


def offered(wanted: frozenset[Measure], device: str, readable: tuple[str, ...], group: str | None) -> Plan:
    """Those of the measures that work here, found by confining a child that does nothing. Raises NotConfined."""
    plan = _tried(wanted, device, readable, group)
    return Plan(plan.measures, {**plan.reasons, **dict.fromkeys(ALL - wanted, "switched off")})


@functools.lru_cache(64)
def _tried(wanted: frozenset[Measure], device: str, readable: tuple[str, ...], group: str | None) -> Plan:
    reasons = {measure: why for measure in wanted if (why := _foreseen(measure, group)) is not None}
    while True:
        plan = Plan(wanted - set(reasons), dict(reasons))
        failed = _trial(plan, device, readable, group)
        if failed is None:
            return plan
        measure, reason = failed
        if measure not in plan.measures:
            raise NotConfined(f"no child can be confined here: {reason}")
        reasons[measure] = reason


def _foreseen(measure: Measure, group: str | None) -> str | None:
    """Why a measure needs no trial to fail."""
    if measure is Measure.USER and os.geteuid() != 0:
        return "takes root"
    if measure is Measure.MEMORY and group is None:
        return f"{GROUP_VARIABLE} does not name a control group in which this user may make others"
    if measure is Measure.LANDLOCK:
        if importlib.util.find_spec("landlockpy") is None:
            return 'pip install "touchstone-kernels[untrusted]"'
        import landlockpy

        return None if landlockpy.supported() else "the kernel does not have it"
    return None


def _trial(plan: Plan, device: str, readable: tuple[str, ...], group: str | None) -> tuple[Measure | None, str] | None:
    """Confine a child that does nothing: the measure that failed and why, None where all works."""
    try:
        with Sandbox(device, readable=readable, group=group, plan=plan) as sandbox:
            pid = os.fork()
            if pid == 0:
                inside.enter(sandbox.settings())
                os._exit(0)
            try:
                sandbox.started(pid)
            except NotConfined as error:
                return sandbox.failed or (None, str(error))
            finally:
                sandbox.kill()
                os.waitpid(pid, 0)
    except OSError as error:
        return Measure.MEMORY if Measure.MEMORY in plan.measures else None, str(error)
    return None


def _failure(line: dict[str, Any]) -> str:
    what = f"{line['failed']}: " if line["failed"] else ""
    return f"the child could not be confined: {what}{line['reason']}"


def _covered() -> tuple[str, ...]:
    """What is the judge's alone, as a user without one of its own could read it."""
    with contextlib.suppress(OSError):
        return (os.path.realpath(folders.state()),)
    return ()


def _interpreter() -> set[str]:
    """Folders that Python and Touchstone are read from."""
    roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(registry.IMPORT_PATH)}
    return {os.path.abspath(path) for path in (*roots, *sys.path) if path and os.path.isdir(path)}


def _free_user(shared: bool) -> int:
    """A user id that nobody has; unless it may be `shared` with another sandbox, no process runs as it either."""
    taken = set()
    if not shared:
        taken = {process.info["uids"].real for process in psutil.process_iter(["uids"]) if process.info["uids"]}
    for _ in USERS:
        user = secrets.choice(USERS)
        if user in taken:
            continue
        try:
            pwd.getpwuid(user)
        except KeyError:
            return user
    raise NotConfined(f"no user id between {USERS.start} and {USERS.stop - 1} is free")


_hidden = 0  # how many sandboxes want this process hidden
_was_dumpable: bool  # before the first of them
_hiding = threading.Lock()


def _hide() -> None:
    """Close this process's memory and environment to other processes of its user."""
    global _hidden, _was_dumpable
    with _hiding:
        if _hidden == 0:
            _was_dumpable = kernel.dumpable()
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        _hidden += 1


def _show() -> None:
    global _hidden
    with _hiding:
        _hidden -= 1
        if _hidden == 0 and _was_dumpable:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def _filters(pid: int) -> int:
    """Filters of system calls on a process, which it cannot take off."""
    with contextlib.suppress(OSError, StopIteration), open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Seccomp_filters:"))
    return 0


def _wait_gone(pid: int) -> None:
    """Until an init that was killed is gone, or waits to be reaped by a supervisor that is gone itself."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        until = time.monotonic() + END_SECONDS
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
            time.sleep(0.002)


def _new_group(parent: str, name: str, limits: Limits) -> str:
    """A control group below one that this user may divide; version 2, or a hierarchy of version 1. Raises OSError."""
    group = os.path.join(parent, name)
    os.mkdir(group)
    values = {"pids.max": limits.processes, "memory.max": limits.memory, "memory.limit_in_bytes": limits.memory}
    for file, value in values.items():
        if os.path.exists(os.path.join(group, file)):
            Path(group, file).write_text(str(value))
    return group


def _remove_group(group: str) -> None:
    until = time.monotonic() + END_SECONDS
    while True:
        try:
            os.rmdir(group)
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


@functools.cache
def _clear(place: str) -> None:
    """Once in a process: remove the folders of judges of this user that were killed between two steps."""
    for left in Path(place).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if left.lstat().st_uid != os.geteuid() or time.time() - left.lstat().st_mtime < JUST_MADE:
                continue
            with open(os.open(left / HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(str(left))


def _sweep(user: int) -> None:
    """Remove what a user that is nobody's has left where everybody may write."""
    for folder in {*WORLD_WRITABLE, tempfile.gettempdir()}:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                if entry.stat(follow_symlinks=False).st_uid == user:
                    remove(entry.path)
