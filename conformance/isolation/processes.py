"""A child process that answers requests, seen from both ends of the connection: its `Child`, and `serve`.

`fork` (conformance/isolation/fork.py) and `spawn` (conformance/isolation/spawn.py) start one. What is sent either way
is pickled. A child that dies is an answer as well, a `Death`; an exception in it is raised in the parent, with the
child's traceback as a note.
"""

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import psutil

from touchstone.backends.storage import files
from touchstone.conformance.isolation.endings import ending, place
from touchstone.conformance.spec.checks import Check

if sys.platform != "win32":
    import resource

POLL_SECONDS = 0.05
REAP_SECONDS = 5.0  # for a process that closed its connection, to end
LEFT_SECONDS = 0.5  # for what a process has started, to notice that it has ended
PR_SET_PDEATHSIG = 1
TOLD_BYTES = 1 << 20  # of a message at most


@dataclass(frozen=True)
class Death:
    """How a child ended: the `Check` of a finding (a crash, a hang, or memory) and a sentence.

    `early`: it was stopped on suspicion, within its limits.
    """

    check: Check
    message: str
    early: bool = False


class Child:
    """A child process, the connection to it, and the file that its faulthandler writes to.

    `code` is the exit status (negative: a signal's number) once that is known.
    """

    def __init__(self, pid: int, connection: Connection, trace: Any, popen: subprocess.Popen | None = None):
        self.connection, self.trace, self.popen = connection, trace, popen
        self.owner = os.getpid()
        self.process = psutil.Process(pid)
        self.code: int | None = None
        open_children.add(self)

    def ask(self, request: Any, seconds: float | None = None) -> Any:
        """Send a request; then as `answer`."""
        try:
            self.send(request)
        except OSError:
            return self.death()
        return self.answer(seconds)

    def send(self, request: Any) -> None:
        """Raises OSError where the child is gone."""
        self.connection.send(request)

    def answer(self, seconds: float | None = None) -> Any:
        """The next answer, or the `Death` of a child that ended, or that gave no sign of life for so many seconds and
        was ended. Raises what the child raised."""
        kind = "alive"
        try:
            while kind == "alive":
                if (death := self._silence(seconds)) is not None:
                    return death
                kind, value = self.connection.recv()
        except (EOFError, OSError):
            return self.death()
        if kind == "error":
            raise value
        return value

    def told(self, seconds: float, most: int = TOLD_BYTES) -> Any:
        """The next message as JSON, of a child that nobody has to trust, or the `Death` of one that ended, that sent
        none within so many seconds, or another one: nothing of it is unpickled."""
        try:
            if (death := self._silence(seconds)) is not None:
                return death
            return files.parsed(self.connection.recv_bytes(most))
        except ValueError as error:
            self.kill()
            return Death(Check.CRASH, f"a message that is not JSON: {type(error).__name__}")
        except (EOFError, OSError):
            return self.death()

    def _silence(self, seconds: float | None) -> Death | None:
        began = time.monotonic()
        while not self.connection.poll(POLL_SECONDS):
            if self.is_gone():
                return self.death()
            if seconds is not None and time.monotonic() - began >= seconds:
                self.kill()
                return Death(Check.HANG, f"no answer in {seconds:g} s")
        return None

    def is_gone(self) -> bool:
        """Whether it ended and left no answer."""
        return self.exited() is not None and not self.connection.poll(0)

    def death(self) -> Death:
        """Of a child that exited, or closed its connection and is exiting."""
        with contextlib.suppress(psutil.TimeoutExpired):
            self.code = self.code if self.code is not None else self._reap(REAP_SECONDS)
        if self.code is None:
            self.kill()
            return Death(Check.CRASH, "closed the connection to the judge")
        return Death(Check.CRASH, ending(self.code) + self.place())

    def exited(self) -> int | None:
        """The exit status, None while it runs."""
        if self.code is None:
            with contextlib.suppress(psutil.TimeoutExpired):
                self.code = self._reap(0)
        return self.code

    def _reap(self, seconds: float) -> int:
        code = self.process.wait(timeout=seconds)
        if self.popen is not None:
            self.popen.returncode = code
        return int(code or 0)

    def abort(self) -> None:
        """End it with the signal at which faulthandler writes where it was."""
        with contextlib.suppress(psutil.Error):
            self.process.send_signal(signal.SIGABRT)
        with contextlib.suppress(psutil.TimeoutExpired):
            self.code = self._reap(1.0)
        self.kill()

    def kill(self) -> None:
        """End it, and what it has started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.code is None:
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.code = self._reap(30.0)

    def usage(self) -> tuple[float, int]:
        """Processor time in seconds and resident memory in bytes."""
        try:
            times = self.process.cpu_times()
            return times.user + times.system, self.process.memory_info().rss
        except psutil.Error:
            return 0.0, 0

    def waited(self) -> float:
        """Seconds that it was ready to go on and other processes had the processors; 0 where Linux does not tell."""
        return waited([self.process.pid])

    def place(self) -> str:
        """Where in the user's Python faulthandler saw it end: " at file.py:3, in fn"; "" if it did not."""
        self.trace.seek(0)
        return place(self.trace.read().decode(errors="replace"))

    def close(self, seconds: float = 0.0) -> None:
        """Hang up, and end it where it has not ended by itself after so many seconds."""
        if self.owner != os.getpid() or self.trace.closed:  # a copy in a forked child, or closed before
            return
        self.connection.close()
        if seconds and self.code is None:
            with contextlib.suppress(psutil.TimeoutExpired):
                self.code = self._reap(seconds)
        self.kill()
        self.trace.close()
        open_children.discard(self)


def below(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found + [other for each in found for other in below(each)]


def ended(processes: Iterable[psutil.Process]) -> int:
    """End those that are still there after LEFT_SECONDS; how many there were."""
    left = 0
    stay = psutil.wait_procs(list(processes), timeout=LEFT_SECONDS)[1]
    for process in stay:
        with contextlib.suppress(psutil.Error):
            left += process.status() != psutil.STATUS_ZOMBIE
            process.kill()
    psutil.wait_procs(stay, timeout=LEFT_SECONDS)
    return left


def waited(processes: Iterable[int]) -> float:
    """Of the first threads of processes, all together."""
    seconds = 0.0
    for pid in processes:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/schedstat") as file:
            seconds += int(file.read().split()[1]) * 1e-9
    return seconds


open_children: "weakref.WeakSet[Child]" = weakref.WeakSet()  # of this process


def settle(trace: int, parent: int | None) -> None:
    """What a child does first. `trace`: the descriptor of the file for faulthandler; `parent`: the id of the process
    with which it ends, None where the thread that starts it may end before that process does."""
    faulthandler.enable(trace, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # out of memory, this process is the one to go
    if os.environ.get("PYTHONBREAKPOINT") != "0":
        sys.breakpointhook = _no_debugger
    if parent is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _no_debugger(*arguments, **options) -> NoReturn:
    raise RuntimeError(
        "breakpoint() reached in a child process, which has no terminal: pass isolate='none' "
        "(python -m touchstone check --isolate none, pytest -s)"
    )


def serve(connection: Connection, answer: Callable[[Any], Any]) -> None:
    """Answer requests until the parent hangs up."""
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            return
        kind, value = "answer", None
        try:
            value = answer(request)
        except Exception as error:
            kind, value = "error", portable(error)
        flush()
        connection.send((kind, value))


def request(connection: Connection) -> Any:
    """What the judge asks of its child: it wrote that itself. Raises EOFError or OSError once it is gone."""
    return pickle.loads(connection.recv_bytes())


def alive(connection: Connection) -> None:
    """Tell the parent that an answer is still being worked on."""
    connection.send(("alive", None))


def flush() -> None:
    """Standard output and error, whatever a test or a notebook made of them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def portable(error: Exception) -> Exception:
    """The error as it can be sent to another process, with the traceback from this one as a note."""
    note = "in the child process:\n" + "".join(traceback.format_exception(error))
    try:
        sent = pickle.loads(pickle.dumps(error))
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(note)
    return sent
