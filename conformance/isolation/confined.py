"""A forked child in a sandbox: what an untrusted kernel runs in."""

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from touchstone.backends.storage import artefacts, files
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.importing import LARGEST, FileFunction
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import spawn
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.processes import Child, waited
from touchstone.conformance.isolation.sandbox import inside
from touchstone.conformance.isolation.sandbox.outside import NotConfined, Sandbox
from touchstone.conformance.isolation.shared import Shared

ABORT_SECONDS = 1.0  # for a process to write where it was, and to end


class Confined(Child):
    """The child of a sandbox, which outlives none of it."""

    def __init__(
        self, pid: int, connection: Connection, trace: Any, popen: subprocess.Popen | None = None, *, sandbox: Sandbox
    ):
        super().__init__(pid, connection, trace, popen)
        self.sandbox = sandbox

    def usage(self) -> tuple[float, int]:
        """That of the kernel's process and of all that it has started."""
        return self.sandbox.usage()

    def waited(self) -> float:
        return waited(process.pid for process in self.sandbox.processes())

    def abort(self) -> None:
        for process in self.sandbox.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGABRT)
        with contextlib.suppress(psutil.TimeoutExpired):
            self.code = self._reap(ABORT_SECONDS)
        self.kill()

    def kill(self) -> None:
        self.sandbox.kill()
        super().kill()

    def close(self, seconds: float = 0.0) -> None:
        super().close(seconds)
        self.sandbox.close()


def confined(subject: Subject, shared: Shared | None, body: Callable[[Connection], None]) -> Confined:
    """A forked child that runs `body` confined, and has the `shared` memory. Raises CannotRun where this machine cannot
    confine one."""
    try:
        sandbox = Sandbox(subject.device, readable=folders(subject))
        sandbox.__enter__()
    except (NotConfined, OSError) as error:
        raise CannotRun(f"untrusted: {error}") from error

    try:
        _give(sandbox, subject)
    except BaseException:
        sandbox.close()
        raise

    def made(pid: int, connection: Connection, trace: Any) -> Confined:
        return Confined(pid, connection, trace, sandbox=sandbox)

    def confine(kept: tuple[int, ...]) -> None:
        inside.enter(sandbox.settings(*([] if shared is None else [shared.descriptor]), *kept))
        tempfile.tempdir = None  # that of the parent, which is asked for once

    child = fork(body, confine, made)
    assert isinstance(child, Confined)
    try:
        sandbox.started(child.process.pid)
    except NotConfined as error:
        child.close()
        raise CannotRun(f"untrusted: {error}") from error
    except BaseException:
        child.close()
        raise
    return child


def confined_to_compile(subject: Subject, module: str, backend: str) -> Confined:
    """A fresh interpreter, confined, that runs `main(connection)` of a module; kernels of a backend are compiled there.
    Raises CannotRun where this machine cannot confine one."""

    def body(connection: Connection) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (connection.fileno(), nowhere):
            os.set_inheritable(descriptor, True)
        environment = {**spawn.to_compile(backend), "PYTHONPATH": spawn.import_path()}
        os.execve(sys.executable, spawn.command(module, connection.fileno(), nowhere, 0), environment)

    return confined(subject, None, body)


def _give(sandbox: Sandbox, subject: Subject) -> None:
    """Copies of what backends have compiled of their own, which takes seconds. The child writes into none of them, nor
    into a cache that anybody else reads; where they cannot be had, it compiles for itself."""
    if subject.device == "cpu" and (file := _file(subject)) is not None:
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            text, backends = files.read(file, LARGEST).decode(), map(registry.backend, registry.backends())
            paths = {path for each in backends if hasattr(each, "ready") for path in each.ready(text)}
            if paths:
                artefacts.give(sorted(paths), sandbox.given)


def folders(subject: Subject) -> list[Path]:
    """The folders of the function's file, which its process has to be able to read."""
    file = _file(subject)
    return [] if file is None else [file.parent]


def _file(subject: Subject) -> Path | None:
    if isinstance(subject.fn, FileFunction):
        return subject.fn.path.resolve()
    with contextlib.suppress(TypeError, OSError):
        return Path(inspect.getfile(inspect.unwrap(subject.fn))).resolve()
    return None
