"""Judging in a child process: a crash, a hang or a memory blow-up of a kernel becomes a finding, and the run goes on.

A `Runner` judges the trials of one subject in a child that is used again for each trial until it dies; the next trial
then gets a new one. The child is forked from this process (CPU), so that lambdas, closures and stateful objects work,
or is a fresh interpreter that imports or unpickles the function (CUDA, which does not survive a fork).

Thread pools do not survive a fork either. Those of torch and of the OpenMP runtimes are told to use one thread; where
another one is behind a forked child's death, repeating its trials in a fresh process shows that, and nothing is held
against the kernel.
"""

import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import importlib.util
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import psutil
import torch

from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.opfile import load_op
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import call as verdict
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import PASSED, Outcome
from touchstone.conformance.judging.trials import Trial

if sys.platform != "win32":
    import resource

MODES = ("auto", "fork", "spawn", "none")
HANGS = 3  # after which a subject's other trials are not run
CRASHES = 20  # likewise, of fresh processes: each takes seconds to start
POLL_SECONDS = 0.05
IDLE_SECONDS = 5.0  # without processor time: then a forked child may be waiting for a thread that the fork left behind
START_SECONDS = 300.0  # for a fresh process to import the function, which may compile
PR_SET_PDEATHSIG = 1

_DOUBT = (
    " (in a forked child, where thread pools of the calling process are gone, and the function cannot be sent to "
    "a fresh "
    "process; isolate='none' tells whether that is why)"
)
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "killed by SIGKILL, as happens when the machine runs out of memory",
}


@dataclass(frozen=True)
class Limits:
    """What one trial may take: `seconds` of time and `bytes` of resident memory beyond what the child began with.

    The memory is never more than half of what is available when the child starts. Where the machine is busy, the time
    is processor time, up to four times `seconds` on the clock.
    """

    seconds: float = 60.0
    bytes: int = 4 << 30

    def __post_init__(self):
        for name in ("seconds", "bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")


class Runner:
    """Judges `trials` of `subject` one after another in a child process; a context manager.

    `mode` is "fork", "spawn", "none" (in this process) or "auto": fork on the CPU, spawn on CUDA or where there is no
    fork, none where the function cannot be sent to a fresh process. `fresh_import` has a spawned child import the
    function's file anew. Without `confirm` the crash of a forked child counts as a finding without a second run in
    a fresh process.
    `notes` says what the reader of a report should know; `stopped` is the reason why the other trials are not to be
    run, or None.

    Raises ValueError where the function cannot start in the child that was asked for.
    """

    def __init__(
        self,
        subject: Subject,
        trials: Sequence[Trial],
        mode: str = "auto",
        *,
        limits: Limits = Limits(),
        fresh_import: bool = False,
        confirm: bool = True,
    ):
        if mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(map(repr, MODES))}, got {mode!r}")
        if mode == "fork" and subject.device == "cuda":
            raise ValueError(
                "isolate: 'fork' does not work with device 'cuda' (CUDA cannot be used in a forked child); use 'spawn'"
            )
        self.subject, self.trials, self.limits, self.fresh_import = subject, list(trials), limits, fresh_import
        self.notes: list[str] = []
        self.stopped: str | None = None
        self._modes: list[str] = []
        self._child: _Child | None = None
        self._hangs = self._crashes = 0
        self._fork_trusted = not confirm  # a fresh process has died as a forked one did, or could not be asked
        self._fork_untested = False  # the function cannot be sent to a fresh process
        self._start_first(mode)

    @property
    def mode(self) -> str:
        """ "fork", "spawn" or "none": where the next trial is judged."""
        return self._modes[-1]

    @property
    def how(self) -> str:
        """Where trials were judged, for a report."""
        words = {"fork": "forked child", "spawn": "fresh process", "none": "none"}
        return "isolation: " + ", then ".join(words[mode] for mode in self._modes)

    def outcome(self, index: int, following: int | None = None) -> Outcome:
        """Judge `trials[index]`. Errors of the judge itself are raised here.

        `following` is the index that will be asked for next: the child goes on to it without waiting.
        """
        if self.stopped:
            raise RuntimeError(f"{self.subject.name} is not judged any further: {self.stopped}")
        trial = self.trials[index]
        if self.mode == "none":
            return _judge(self.subject, trial, here=True)
        late = self._late_death()
        answer = self._ask(index, following)
        if isinstance(answer, _Death):
            outcome = Outcome(trial.id, trial.case.dtype, PASSED)
            doubt = _DOUBT if answer.check == "hang" and self._fork_untested else ""
            verdict.find(outcome, self.subject, trial, answer.check, answer.message + doubt)
            self._count(answer.check)
        else:
            outcome = answer
        if late:
            verdict.find(outcome, self.subject, trial, "crash", late)
            self._count("crash")
        return outcome

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def _start_first(self, mode: str) -> None:
        resolved = mode
        if mode == "auto" and os.name != "posix":
            resolved = "none"
            self.notes.append("not isolated, judged in the calling process: that takes Linux or macOS")
        elif mode == "auto":
            forks = self.subject.device == "cpu" and sys.platform == "linux" and not self.fresh_import
            resolved = "fork" if forks else "spawn"
        self._modes.append(resolved)
        try:
            self._start()
        except _CannotTravel as error:
            if mode != "auto":
                raise
            self._modes[-1] = "none"
            self.notes.append(f"not isolated, judged in the calling process: {error}")

    def _start(self) -> None:
        if self.mode == "fork":
            self._child = _fork(self.subject, self.trials)
        elif self.mode == "spawn":
            self._child = _spawn(self.subject, self.trials, self.fresh_import)

    def _late_death(self) -> str | None:
        """What to hold against the kernel when the child died between two trials."""
        child = self._child
        if child is None or child.asked or (code := child.exited()) is None:
            return None
        message = f"{_ending(code)}{child.place()}, after "
        self.close()
        return message + f"{self.trials[child.judged[-1]].id} had been judged" if child.judged else None

    def _ask(self, index: int, following: int | None, suspect: bool = True) -> "Outcome | _Death":
        """The answer of the child, or of a fresh process where the fork may be to blame for that of a forked one."""
        if self._child is None:
            self._start()
        child = self._child
        assert child is not None
        doubted = suspect and self.mode == "fork" and not self._fork_trusted
        answer = child.judge(index, self.limits, following, idle=IDLE_SECONDS if doubted else None)
        blamed = _blames_fork(answer) if isinstance(answer, Outcome) else answer.check in ("crash", "hang")
        if isinstance(answer, _Death):
            self.close()
        elif child.last:
            self.close()
            self._count("crash")
        if not (doubted and blamed):
            return answer
        self._fork_trusted = True
        elsewhere = self._repeat([*child.judged, index] if isinstance(answer, _Death) else child.judged)
        if isinstance(elsewhere, _Death):
            return elsewhere
        if elsewhere is not None:
            what = answer.message if isinstance(answer, _Death) else answer.findings[0].message
            self.notes.append(
                f"{what}: so in a forked child in {self.trials[index].id}, not in a fresh process, which judged "
                f"it and what "
                "followed (thread pools of the calling process do not survive a fork)"
            )
            return elsewhere
        if isinstance(answer, _Death) and answer.early:
            return self._ask(index, following, suspect=False)
        return answer

    def _repeat(self, indices: Sequence[int]) -> "Outcome | _Death | None":
        """Judge these again in a fresh process. None where that is not possible, or shows no more than the forked one.

        Else what the last of them gives, and, if that is an outcome, the fresh process is used from now on.
        """
        try:
            child = _spawn(self.subject, self.trials, self.fresh_import)
        except ValueError:
            self._fork_untested = True
            return None
        outcome = None
        try:
            for index in indices:
                answer = child.judge(index, self.limits)
                if isinstance(answer, _Death):
                    child.close()
                    return answer if index == indices[-1] else None
                if _blames_fork(answer):
                    child.close()
                    return None
                outcome = answer
        except BaseException:
            child.close()
            raise
        self.close()
        self._child = child
        self._modes.append("spawn")
        return outcome

    def _count(self, check: str) -> None:
        self._hangs += check == "hang"
        self._crashes += self.mode == "spawn" and check != "hang"
        if self._hangs >= HANGS:
            self.stopped = f"after {HANGS} hangs"
        elif self._crashes >= CRASHES:
            self.stopped = f"after {CRASHES} crashes"


@dataclass(frozen=True)
class _Death:
    """How a trial ended its process: a finding's `check` and message. `early`: stopped on suspicion, within the
    limits."""

    check: str
    message: str
    early: bool = False


class _CannotTravel(ValueError):
    """A fresh process cannot get the function; the message says why and what to do instead."""


class _Child:
    """A child process, the connection to it, and the file its faulthandler writes to."""

    def __init__(self, pid: int, connection: Connection, trace: Any, popen: subprocess.Popen | None = None):
        self.connection, self.trace, self.popen = connection, trace, popen
        self.owner = os.getpid()
        self.process = psutil.Process(pid)
        self.code: int | None = None
        self.asked: list[int] = []  # indices of trials that were sent and not answered yet
        self.judged: list[int] = []  # and of those that were answered
        self.last = False  # it said that it can judge no further trial
        self.helpers: dict[int, float] = {}  # processor time of what it has started, by process
        self.baseline = self.usage()[1]
        self.available = _available_memory()
        _children.add(self)

    def judge(
        self, index: int, limits: Limits, following: int | None = None, idle: float | None = None
    ) -> "Outcome | _Death":
        """Have a trial judged, and send the following one. With `idle`, also stop after so many seconds without
        processor time. Raises what the judge raised.
        """
        try:
            if not self.asked:
                self._send(index)
            if self.asked[0] != index:
                raise ValueError(f"index: expected {self.asked[0]}, announced as the following one, got {index}")
            if following is not None:
                with contextlib.suppress(OSError):  # it has died since; then there may still be an answer
                    self._send(following)
            death = self._wait(limits, idle)
            if death is not None:
                return death
            kind, value, self.last = self.connection.recv()
            self.asked.pop(0)
        except (EOFError, OSError):
            return self._death()
        except BaseException:
            self.close()
            raise
        if kind == "error":
            raise value
        self.judged.append(index)
        return value

    def _send(self, index: int) -> None:
        self.connection.send(index)
        self.asked.append(index)

    def _wait(self, limits: Limits, idle: float | None) -> _Death | None:
        """Until there is an answer (None), or the process has died or gone beyond its limits, and was ended."""
        began = moved = time.monotonic()
        if self.connection.poll(POLL_SECONDS):
            return None
        allowed = min(limits.bytes, self.available // 2)
        first = last = self.usage()[0]
        while not self.connection.poll(POLL_SECONDS):
            if self.exited() is not None and not self.connection.poll(0):
                return self._death()
            seconds, resident = self.usage()
            now = time.monotonic()
            if resident - self.baseline > allowed:
                self.kill()
                grown, most = (resident - self.baseline) / 2**30, allowed / 2**30
                return _Death("memory", f"resident memory grew by {grown:.2f} GiB; the limit is {most:.2f} GiB")
            if seconds > last:
                last, moved = seconds, now
            if _too_long(now - began, seconds - first, limits.seconds):
                self.abort()
                return _Death("hang", f"no answer after {now - began:.0f} s{self.place()}")
            if idle is not None and now - moved >= idle:
                if self.helped():
                    moved = now
                    continue
                self.abort()
                return _Death("hang", f"no answer and no processor time for {idle:.0f} s{self.place()}", early=True)
        return None

    def _death(self) -> _Death:
        """The `_Death` of a child that exited, or closed its pipe and is exiting."""
        with contextlib.suppress(psutil.TimeoutExpired):
            self.code = self.code if self.code is not None else self._reap(5.0)
        if self.code is None:
            self.kill()
            return _Death("crash", "closed the connection to the judge")
        return _Death("crash", _ending(self.code) + self.place())

    def exited(self) -> int | None:
        """The exit status (negative: a signal's number), None while it runs."""
        if self.code is None:
            with contextlib.suppress(psutil.TimeoutExpired):
                self.code = self._reap(0)
        return self.code

    def _reap(self, seconds: float) -> int:
        code = self.process.wait(timeout=seconds)
        if self.popen is not None:
            self.popen.returncode = code
        return int(code or 0)

    def usage(self) -> tuple[float, int]:
        """Processor time in seconds and resident memory in bytes."""
        try:
            times = self.process.cpu_times()
            return times.user + times.system, self.process.memory_info().rss
        except psutil.Error:
            return 0.0, 0

    def helped(self) -> bool:
        """Whether a process that it started, such as a compiler, has used processor time since the last call."""
        before, self.helpers = self.helpers, {}
        with contextlib.suppress(psutil.Error):
            for helper in self.process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    times = helper.cpu_times()
                    self.helpers[helper.pid] = times.user + times.system
        return any(seconds > before.get(pid, 0.0) for pid, seconds in self.helpers.items())

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

    def place(self) -> str:
        """The innermost line of the user's Python that faulthandler saw: " at file.py:3, in fn"; "" if there was
        none."""
        self.trace.seek(0)
        return _place(self.trace.read().decode(errors="replace"))

    def close(self) -> None:
        if self.owner != os.getpid() or self.trace.closed:  # a copy in a forked child, or closed before
            return
        self.connection.close()
        self.kill()
        self.trace.close()
        _children.discard(self)


_children: "weakref.WeakSet[_Child]" = weakref.WeakSet()


def _too_long(elapsed: float, processor: float, limit: float) -> bool:
    """Beyond the limit and stuck or at work all the time; a process that only waits for its turn gets four times as
    long."""
    return elapsed >= limit and (processor >= limit or processor < elapsed / 50 or elapsed >= 4 * limit)


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process ended with status {code}"
    with contextlib.suppress(ValueError):
        number = signal.Signals(-code)
        return _SIGNALS.get(number, f"ended by {number.name}")
    return f"ended by signal {-code}"


_JUDGE = str(registry.ROOT / "conformance") + os.sep  # its folders hold kernels: mutants
_LIBRARIES = (sysconfig.get_paths()["stdlib"] + os.sep, "<frozen ")


def _place(trace: str) -> str:
    threads = re.split(r"\n\s*\n", trace)
    current = next((thread for thread in threads if "Current thread" in thread), threads[0])
    frames = []
    for path, line, name in re.findall(r'^  File "(.+)", line (\d+) in (.+)$', current, re.MULTILINE):
        if path.startswith(_JUDGE) and os.sep not in path.removeprefix(_JUDGE):
            break
        frames.append((path, line, name))
    own = [frame for frame in frames if not frame[0].startswith(_LIBRARIES) and "-packages" + os.sep not in frame[0]]
    for path, line, name in own or frames:
        return f" at {os.path.basename(path)}:{line}, in {name}"
    return ""


def _blames_fork(outcome: Outcome) -> bool:
    """torch, among others, refuses in a forked child what it has begun in the parent, by an error that says so."""
    return any(finding.check == "raised" and re.search(r"\bfork", finding.message) for finding in outcome.findings)


def _available_memory() -> int:
    """Bytes that can be had without swapping, in this machine or control group."""
    found = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        found = min(found, most - used + (int(cached[1]) if cached else 0))
    return max(found, 0)


def _fork(subject: Subject, trials: list[Trial]) -> _Child:
    here, there = multiprocessing.Pipe()
    trace = tempfile.TemporaryFile()  # noqa: SIM115
    parent, dies_with_thread = os.getpid(), threading.current_thread() is threading.main_thread()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, where the parent has threads
        pid = os.fork()
    if pid == 0:
        _forked(subject, trials, here, there, trace, parent if dies_with_thread else None)
    there.close()
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return _Child(pid, here, trace)


def _forked(
    subject: Subject, trials: list[Trial], theirs: Connection, connection: Connection, trace: Any, parent: int | None
) -> NoReturn:
    status = 1
    try:
        torch.set_num_threads(1)  # the parent's thread pools are dead here: the first parallel op would wait for them
        _one_thread_each()
        if "torch._inductor.config" in sys.modules:  # whose compile workers answer to a thread of the parent
            sys.modules["torch._inductor.config"].compile_threads = 1  # type: ignore[attr-defined]
        gc.freeze()
        for end in (theirs, *(child.connection for child in _children)):
            end.close()  # else that child would not notice that its parent is gone
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        no_input = os.open(os.devnull, os.O_RDONLY)
        os.dup2(no_input, 0)
        os.close(no_input)
        _settle(trace.fileno(), parent)
        _serve(connection, subject, trials)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _one_thread_each() -> None:
    """Tell every OpenMP runtime in this process to use one thread, for what this thread starts."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if re.search(r"/lib(gomp|i?omp)\d?[^/]*\.so", line)}
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_set_num_threads(1)


def _spawn(subject: Subject, trials: list[Trial], fresh_import: bool) -> _Child:
    """A fresh process that has the function. Tries each way to send it; the first error is raised if none works."""
    first: Exception | None = None
    for way in _ways(subject.fn, fresh_import):
        try:
            return _spawn_with(subject, trials, way)
        except Exception as error:
            first = first or error
    if first is None:
        raise _CannotTravel(f"fn: {worker.describe(subject.fn)} cannot be sent to another process")
    raise first


def _ways(fn: Callable[..., Any], fresh_import: bool) -> Iterator[tuple]:
    """How a fresh process can get the function: ("file", path, name) or ("pickle", bytes)."""
    if fresh_import:
        yield ("file", *worker.source_of(fn, ", and its kernel was set up for the other device"))
        return
    if not _importable(fn) and (place := _file_and_name(fn)) is not None:
        yield ("file", *place)
    try:
        yield ("pickle", cloudpickle.dumps(fn))
    except Exception as error:
        raise _CannotTravel(
            f"fn: {worker.describe(fn)} cannot be sent to another process ({error}); define it at the top level "
            f"of a file, or "
            "pass isolate='none'"
        ) from error


def _importable(fn: Callable[..., Any]) -> bool:
    """Whether a fresh process finds the function by the names of its module and of itself: cloudpickle then sends
    those."""
    module = getattr(fn, "__module__", None)
    if module not in sys.modules or module == "__main__" or worker.PREFIX in module:
        return False
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
    return found and _at(sys.modules[module], getattr(fn, "__qualname__", "")) is fn


def _file_and_name(fn: Callable[..., Any]) -> tuple[str, str] | None:
    """The file at whose top level `fn` is found, and its name there; a compiled function has that of the original."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    path, name = getattr(module, "__file__", None), getattr(fn, "__qualname__", "")
    if path is None or not os.path.isfile(path):
        return None
    if _at(module, name) is not fn:
        name = next((name for name, value in vars(module).items() if value is fn), "")
    return (path, name) if name else None


def _at(module: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        module = getattr(module, part, None)
    return module


def _spawn_with(subject: Subject, trials: list[Trial], way: tuple) -> _Child:
    without = dataclasses.replace(subject, fn=None)  # type: ignore[arg-type]
    request = (registry.op_file(subject.op), way, cloudpickle.dumps((without, trials)))
    name = worker.describe(subject.fn)
    here, there = multiprocessing.Pipe()
    trace = tempfile.TemporaryFile()  # noqa: SIM115
    folders = [str(registry.IMPORT_PATH), *(os.path.abspath(entry) for entry in sys.path)]
    main_thread = threading.current_thread() is threading.main_thread()
    arguments = [there.fileno(), trace.fileno(), os.getpid() if main_thread else 0]
    with there:
        popen = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                "from touchstone.conformance.isolation.runner import main; main()",
                *map(str, arguments),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
            stdin=subprocess.DEVNULL,
            pass_fds=arguments[:2],
            process_group=0,
        )
    child = _Child(popen.pid, here, trace, popen)
    try:
        child.connection.send(request)
        began = time.monotonic()
        while not child.connection.poll(POLL_SECONDS):
            if child.exited() is not None and not child.connection.poll(0):
                raise EOFError
            if time.monotonic() - began > START_SECONDS:
                raise _CannotTravel(
                    f"fn: {name} was not imported in a fresh process within {START_SECONDS:.0f} s; pass isolate='none'"
                )
        error = child.connection.recv()
        child.baseline = child.usage()[1]
    except (EOFError, OSError):
        death = child._death()
        child.close()
        raise _CannotTravel(
            f"fn: {name} cannot be imported in a fresh process: {death.message}; pass isolate='none'"
        ) from None
    except BaseException:
        child.close()
        raise
    if error is not None:
        child.close()
        if isinstance(error, ValueError):
            raise error
        raise _CannotTravel(
            f"fn: {name} cannot be imported in a fresh process: {type(error).__name__}: {error}; pass isolate='none'"
        ) from error
    return child


def main() -> None:
    """A fresh process: arguments are the descriptors of the connection and of the trace, and the parent's id or 0."""
    descriptor, trace, parent = map(int, sys.argv[1:])
    connection = Connection(descriptor)
    _settle(trace, parent or None)
    request = connection.recv()
    try:
        subject, trials = _receive(*request)
    except Exception as error:
        connection.send(_portable(error))
        return
    connection.send(None)
    _serve(connection, subject, trials)


def _receive(op_file: Path | None, way: tuple, packed: bytes) -> tuple[Subject, list[Trial]]:
    if op_file is not None:
        load_op(op_file)
    subject, trials = cloudpickle.loads(packed)
    backends = [registry.backend(name) for name in registry.backends()]
    for backend in backends:
        if backend.why_not(subject.device) is None:
            backend.prepare(subject.device)
    kind, *rest = way
    fn = worker.load(*rest) if kind == "file" else cloudpickle.loads(*rest)
    for backend in backends:
        backend.adopt(fn, subject.device)
    return dataclasses.replace(subject, fn=fn), trials


def _settle(trace: int, parent: int | None) -> None:
    """What both kinds of children do first."""
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


def _serve(connection: Connection, subject: Subject, trials: list[Trial]) -> None:
    """Answer indices with (kind, outcome or error, whether it was the last) until the parent hangs up."""
    while True:
        try:
            index = connection.recv()
        except (EOFError, OSError):
            return
        answer: tuple[str, Any]
        try:
            answer = ("outcome", _judge(subject, trials[index]))
        except Exception as error:
            answer = ("error", _portable(error))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        last = bool(verdict.lost_context)
        connection.send((*answer, last))
        if last:
            return


def _judge(subject: Subject, trial: Trial, here: bool = False) -> Outcome:
    """`judge.run`; what the kernel raises to end the process is held against it. `here`: Ctrl-C ends the run."""
    try:
        return judge.run(subject, trial)
    except Exception:
        raise
    except BaseException as error:
        if here and isinstance(error, KeyboardInterrupt):
            raise
        outcome = Outcome(trial.id, trial.case.dtype, PASSED)
        what = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else verdict.error_text(error)
        verdict.find(outcome, subject, trial, "crash", f"{what} would have ended the process")
        return outcome


def _portable(error: Exception) -> Exception:
    """The error as it can be sent to another process, with the traceback from this one as a note."""
    note = "in the child process:\n" + "".join(traceback.format_exception(error))
    try:
        sent = pickle.loads(pickle.dumps(error))
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(note)
    return sent
