"""The child's end: `enter` confines the process that calls it, and comes back in the one that may run a candidate.

The process that the parent started stays as a supervisor: it passes on what is printed, keeps the deadline, and ends
as the candidate ended, once nothing that the candidate started is left. With a PID namespace there is a second one,
its init, with which the kernel ends everything in it.
"""

import contextlib
import errno
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil

from touchstone.conformance.isolation.sandbox import kernel, mounts
from touchstone.conformance.isolation.sandbox.removal import remove
from touchstone.conformance.isolation.sandbox.settings import Measure, Settings

UNCONFINED = 97  # exit status of a child that could not be confined, and ran nothing
_CHUNK = 1 << 16
_NOBODY_ELSE = 0o077
_NAMESPACES = {Measure.PROCESSES, Measure.FILES, Measure.NETWORK}


class Failed(Exception):
    """A measure that was promised cannot be had here."""

    def __init__(self, measure: Measure | None, reason: str):
        super().__init__(reason)
        self.measure, self.reason = measure, reason


def enter(settings: Settings) -> None:
    """Confine this process before it runs code of a candidate. It has to have one thread.

    Comes back in another process, a descendant of this one; where a measure of the settings cannot be had, in none:
    the parent is told and everything ends with status `UNCONFINED`.
    """
    try:
        _confine(settings)
    except BaseException as error:
        measure = error.measure if isinstance(error, Failed) else None
        tell(settings, failed=measure, reason=str(error) or repr(error))
        os._exit(UNCONFINED)


def tell(settings: Settings, **what: Any) -> None:
    """A line for the parent."""
    with contextlib.suppress(OSError):
        os.write(settings.status, json.dumps(what).encode() + b"\n")


@contextlib.contextmanager
def _having(measure: Measure) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise Failed(measure, str(error)) from error


def _confine(settings: Settings) -> None:
    if Measure.LANDLOCK in settings.measures:
        with _having(Measure.LANDLOCK):  # while its files can still be read
            importlib.import_module("landlockpy")
    kernel.close_others((0, 1, 2, settings.status, settings.output, *settings.keep))
    os.umask(_NOBODY_ELSE)
    tasks = _tasks_of(settings)
    if settings.group is not None:
        with _having(Measure.MEMORY):
            Path(settings.group, "cgroup.procs").write_text(str(os.getpid()))
    printed, print_to = os.pipe()
    own = _NAMESPACES & settings.measures
    within = bool(own) and not kernel.administers()
    if within:
        with _having(min(own)):
            _user_namespace()
    if Measure.PROCESSES in settings.measures:
        with _having(Measure.PROCESSES):
            kernel.unshare(kernel.CLONE_NEWPID)
        ended, end_with = os.pipe()
        init = _fork()
        if init:
            tell(settings, init=init)
            _forget(settings, print_to, end_with)
            _mirror(_relay(settings, init, printed), ended)
        _forget(settings, ended, printed, keep=True)
        _separate(settings, within)
        child = _fork()
        if child:
            _forget(settings, print_to)
            _be_init(child, end_with)
        os.close(end_with)
    else:
        _separate(settings, within)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        child = _fork()
        if child:
            _forget(settings, print_to)
            status = _relay(settings, child, printed)
            end_all(settings)
            _end_like(status)
        os.close(printed)
    _restrict(settings, print_to, tasks)
    tell(settings, ready=True)
    os.close(settings.status)


def _user_namespace() -> None:
    """One in which this user has capabilities, over what is made in it."""
    user, group = os.geteuid(), os.getegid()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else the files below belong to root
    kernel.unshare(kernel.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def _fork() -> int:
    """A child that ends with this process, and that no other process may look into yet."""
    child = os.fork()
    if child == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return child


def _forget(settings: Settings, *descriptors: int, keep: bool = False) -> None:
    """What this process does not need; a supervisor must not hold the connection open after its child."""
    for descriptor in (*descriptors, *(() if keep else settings.keep)):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _separate(settings: Settings, within: bool) -> None:
    """Namespaces of files, network and of what processes talk through, for this process and what it starts; `within`
    one of users, which knows one user."""
    measures = settings.measures
    if settings.user is not None and within:
        raise Failed(Measure.USER, "takes CAP_SYS_ADMIN beside namespaces")
    if {Measure.PROCESSES, Measure.FILES} & measures:
        with _having(Measure.PROCESSES if Measure.PROCESSES in measures else Measure.FILES):
            kernel.unshare(kernel.CLONE_NEWNS)
            mounts.detach()
    if Measure.PROCESSES in measures:
        with _having(Measure.PROCESSES):
            mounts.own_proc()
            kernel.unshare(kernel.CLONE_NEWIPC)
    with _having(Measure.USER):
        if settings.user is not None:
            mounts.need_devices(settings.device)
            if Measure.FILES in measures:
                mounts.reveal(settings.readable)
    if Measure.FILES in measures:
        with _having(Measure.FILES):
            mounts.confine(settings)
    elif settings.user is not None:
        with _having(Measure.USER):
            for path in map(Path, settings.readable):
                if path.exists() and (closed := mounts.closed_to_others(path)) is not None:
                    raise PermissionError(errno.EACCES, f"other users may not read {closed}")
    if Measure.NETWORK in measures:
        with _having(Measure.NETWORK):
            kernel.unshare(kernel.CLONE_NEWNET)


def _relay(settings: Settings, child: int, printed: int) -> int:
    """Keep what is printed, up to a limit, until the child ends; kill it at its deadline. Its wait status."""
    _supervise(child)
    watched = os.pidfd_open(child)
    poll = select.poll()
    poll.register(printed, select.POLLIN)
    poll.register(watched, select.POLLIN)
    poll.register(settings.status, 0)  # an error there: the parent has closed its end, or is gone
    left, seconds = settings.limits.output, settings.limits.seconds
    until = None if seconds is None else time.monotonic() + seconds
    os.set_blocking(printed, False)
    orphaned = False
    while True:
        wait = None if until is None else max(0.0, until - time.monotonic()) * 1000
        ready = [descriptor for descriptor, _ in poll.poll(wait)]
        if settings.status in ready:
            poll.unregister(settings.status)
            os.kill(child, signal.SIGKILL)
            orphaned = True
        if not ready and until is not None:
            tell(settings, late=seconds)
            until = None
            os.kill(child, signal.SIGKILL)
        if printed in ready:
            left, more = _pass_on(settings, printed, left)
            if not more:
                poll.unregister(printed)
        if watched in ready:
            _pass_on(settings, printed, left, everything=True)
            status = os.waitpid(child, 0)[1]
            if orphaned:  # nobody else is left to clear up
                if Measure.PROCESSES not in settings.measures:
                    end_all(settings)
                with contextlib.suppress(OSError):
                    remove(settings.folder)
            return status


def _pass_on(settings: Settings, printed: int, left: int, everything: bool = False) -> tuple[int, bool]:
    """How many bytes may still be kept, and whether more can come. `everything` that is in the pipe by now."""
    for _ in range(64 if everything else 1):  # a pipe of the largest size that users may set has 16 chunks
        try:
            chunk = os.read(printed, _CHUNK)
        except BlockingIOError:
            return left, True
        if not chunk:
            return left, False
        if left > 0:
            with contextlib.suppress(OSError):
                os.write(settings.output, chunk[:left])
            if len(chunk) > left:
                tell(settings, cut=settings.limits.output)
        elif left == 0:
            tell(settings, cut=settings.limits.output)
        left = max(left - len(chunk), -1)
    return left, True


def _supervise(child: int) -> None:
    """From here on this process only waits; signals that ask for an end are for the child."""
    faulthandler.disable()
    gc.disable()
    for number in (signal.SIGABRT, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: os.kill(child, signum))


def _be_init(child: int, end_with: int) -> NoReturn:
    """Reap everything until the candidate's process has ended; the kernel kills the rest with this one."""
    _supervise(child)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            os.write(end_with, str(status).encode())
            os._exit(0)


def _mirror(status: int, ended: int) -> NoReturn:
    """End as the candidate did, of which init says how where it was not killed itself."""
    said = os.read(ended, 16) if not os.WIFSIGNALED(status) else b""
    _end_like(int(said) if said else status)


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else UNCONFINED)


def end_all(settings: Settings) -> None:
    """Kill what this process, a subreaper, has below it: first all is stopped, so that nothing new is started."""
    if settings.user is not None:
        end_user(settings.user)
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not end_tree(psutil.Process()):
            return


def end_tree(process: psutil.Process) -> int:
    """Kill the descendants of a process; how many there were."""
    below = process.children(recursive=True)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for descendant in below:
            with contextlib.suppress(psutil.Error):
                descendant.send_signal(number)
    return len(below)


def end_user(user: int) -> None:
    """Kill every process of a user in one call, which no fork can outrun; this process has to be root's.

    The killer's real id is the next one, which is nobody's either: the user could stop a process of its own.
    """
    killer = os.fork()
    if killer == 0:
        with contextlib.suppress(BaseException):
            _become(user + 1, user)
            if os.getresuid() == (user + 1, user, user + 1):  # as root it would be everybody
                os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(killer, 0)


def _become(real: int, effective: int) -> None:
    os.setgroups([])
    os.setresgid(effective, effective, effective)
    os.setresuid(real, effective, real)


def _tasks_of(settings: Settings) -> int:
    """How many threads this user has, where a limit counts them: not in a user namespace, nor where nobody else is."""
    if settings.user is not None or Measure.LIMITS not in settings.measures:
        return 0
    if _NAMESPACES & settings.measures and not kernel.administers():
        return 0
    tasks, user = 0, os.getuid()
    for process in psutil.process_iter(["uids", "num_threads"]):
        if process.info["uids"] and process.info["uids"].real == user:
            tasks += process.info["num_threads"] or 0
    return tasks


def _restrict(settings: Settings, print_to: int, tasks: int) -> None:
    """What holds for the candidate's process itself and cannot be taken back."""
    measures = settings.measures
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (print_to, 1), (print_to, 2)):
        os.dup2(source, target)
    for descriptor in {nothing, print_to, settings.output} - {0, 1, 2, *settings.keep}:
        os.close(descriptor)
    _fresh_streams()
    with _having(Measure.LIMITS):
        if Measure.LIMITS in measures:
            _limit(settings, tasks)
    if Measure.USER in measures and settings.user is not None:
        with _having(Measure.USER):
            kernel.forget_capabilities()
            _make_folders(settings)
            for folder, _, _ in os.walk(settings.home):  # whoever made them
                os.chown(folder, settings.user, settings.user)
            _become(settings.user, settings.user)
    with _having(Measure.PRIVILEGES):
        if Measure.PRIVILEGES in measures:
            kernel.forget_capabilities()
            kernel.drop_capabilities()
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user takes it back
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # its own /proc/self is its own again
    _make_folders(settings)
    os.environ.clear()
    os.environ.update(settings.environment)
    os.chdir(settings.home)
    if Measure.LANDLOCK in measures:
        with _having(Measure.LANDLOCK):
            _landlock(settings)
    if Measure.SYSTEM_CALLS in measures:
        with _having(Measure.SYSTEM_CALLS):
            kernel.install_filter(settings.device)


def _fresh_streams() -> None:
    """Those of a test or a notebook write to descriptors that are closed by now."""
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, errors="backslashreplace", closefd=False) for number in (1, 2))


def _make_folders(settings: Settings) -> None:
    """Those that variables name below the private one."""
    for folder in (settings.home, *settings.environment.values()):
        if folder.startswith(settings.home):
            os.makedirs(folder, exist_ok=True)


def _limit(settings: Settings, tasks: int) -> None:
    limits = settings.limits
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_FSIZE: limits.file,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: tasks + limits.processes,
        resource.RLIMIT_STACK: 64 << 20,
    }
    if settings.device != "cuda":
        wanted[resource.RLIMIT_DATA] = _private_memory() + limits.memory
    for kind, value in wanted.items():
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))


def _private_memory() -> int:
    """Bytes that RLIMIT_DATA counts in this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))


def _landlock(settings: Settings) -> None:
    """Reading everywhere, writing in the own folder and to devices; no signal and no TCP to what is outside."""
    from landlockpy import AccessFS, Ruleset, Scope

    reading = AccessFS.READ_FILE | AccessFS.READ_DIR | AccessFS.EXECUTE
    writing = AccessFS.WRITE_FILE | AccessFS.TRUNCATE
    with Ruleset(scoped=Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL) as rules:
        rules.allow_path("/", reading)
        rules.allow_path(settings.home, rules.handled_fs)
        if Measure.FILES in settings.measures:
            rules.allow_path(mounts.SHARED_MEMORY, rules.handled_fs & ~AccessFS.RESOLVE_UNIX)
        for place in mounts.GPU_WRITES if settings.device == "cuda" else ():
            rules.allow_path(place, reading | writing)
        names = [*mounts.DEVICES, *(mounts.GPU_DEVICES if settings.device == "cuda" else ())]
        for path in (path for name in names for path in Path("/dev").glob(name)):
            folder = stat.S_ISDIR(path.stat().st_mode)
            access = reading | writing | AccessFS.IOCTL_DEV
            rules.allow_path(path, access if folder else access & ~AccessFS.READ_DIR)
        rules.restrict(no_new_privs=Measure.PRIVILEGES not in settings.measures)
