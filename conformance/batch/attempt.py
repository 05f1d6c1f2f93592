"""One candidate judged in a fork of this process, which has imported torch and judges nothing itself.

So no candidate finds anything of another in memory, a judge that dies or hangs is replaced, and each verdict is that of
a `check` of its own.
"""

import contextlib
import functools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from touchstone.conformance.batch.candidates import Candidate, Settings
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.processes import Child, Death, serve
from touchstone.conformance.reporting.status import Status

PREFIX = "touchstone-judge-"  # of a folder's name
GRACE_SECONDS = 5.0  # for a judge that is told to end, to end its children
RETRIES = 1  # of a candidate whose judge died or took too long


@dataclass(frozen=True)
class Judged:
    """What came of a candidate. `report` as `Report.to_dict` gives it; `results`: rows of timings; `about`: what a
    record has of the machine that judged it."""

    status: Status
    report: dict[str, Any] | None = None
    reason: str | None = None
    seed: int | None = None
    seconds: float = 0.0
    results: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] | None = None


# a candidate, how it is judged, and a folder for what has to be written down
Judge = Callable[[Candidate, Settings, Path], Judged]


class Attempt:
    """The judging of one candidate, under way. `gpu`: the only one that it sees, None: no choice is made. Raises
    CannotRun where nothing can be written down."""

    def __init__(self, judge: Judge, candidate: Candidate, settings: Settings, gpu: str | None = None):
        self.candidate, self.gpu = candidate, gpu
        if settings.device == "cpu":  # CUDA does not survive a fork
            prepare(settings.device)
        self.began = time.monotonic()
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        except FileNotFoundError as error:
            raise CannotRun(f"there is no folder for temporary files: {error.strerror}") from None
        self.folder.chmod(0o755)  # a confined kernel has another user
        try:
            self.child: Child = fork(lambda connection: _body(connection, judge, candidate, settings, self))
            with contextlib.suppress(OSError):  # it is gone already, which its answer will be
                self.child.send(None)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def result(self, limit: float) -> Judged | str:
        """What came of it, or why nothing did; waits no longer than until `limit` seconds have passed."""
        try:
            if not self.child.connection.poll(max(0.0, limit - self.seconds)):
                return f"it was not judged within {limit:g} s"
            answer = self.child.answer()
        except Exception as error:
            return f"the judge raised {type(error).__name__}: {error}"
        finally:
            stop([self])
        if isinstance(answer, Death):
            return f"the process that judged it ended: {answer.message}"
        assert isinstance(answer, Judged)
        return answer


@functools.cache
def prepare(device: str) -> None:
    """Set this process up for a device, which imports the libraries of kernels: once, and not in each fork.

    Raises CannotRun where it is set up for another one, or a library is not in order."""
    for backend in map(registry.backend, registry.backends()):
        if backend.why_not(device) is None:
            try:
                backend.prepare(device)
            except RuntimeError as error:
                raise CannotRun(str(error)) from error


def stop(attempts: Iterable[Attempt]) -> None:
    """End them, and what they started; those that still judge are told to, and have a few seconds for it."""
    ending = list(attempts)
    try:
        for attempt in ending:
            if attempt.child.exited() is None:
                with contextlib.suppress(OSError):
                    os.kill(attempt.child.process.pid, signal.SIGINT)
        until = time.monotonic() + GRACE_SECONDS
        for attempt in ending:
            attempt.child.close(max(0.001, until - time.monotonic()))
    finally:
        for attempt in ending:
            attempt.child.close()
            shutil.rmtree(attempt.folder, ignore_errors=True)


def not_judged(reason: str) -> Judged:
    """Of a candidate whose judge did not answer, however often it was tried."""
    return Judged(Status.NOT_RUN, reason=reason)


def _body(connection: Connection, judge: Judge, candidate: Candidate, settings: Settings, attempt: Attempt) -> None:
    """In the fork. What the judge prints belongs to nobody."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if attempt.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = attempt.gpu
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    with contextlib.suppress(KeyboardInterrupt):
        serve(connection, lambda _: judge(candidate, settings, attempt.folder))
