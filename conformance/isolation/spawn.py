"""A child that is a fresh interpreter, with this process's import path: it has nothing but what it is sent."""

import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection

from touchstone.backends.storage import files
from touchstone.conformance.discovery import importing, registry
from touchstone.conformance.isolation.processes import Child, settle


def spawn(module: str, environment: Mapping[str, str] = os.environ) -> Child:
    """A fresh process that runs `main(connection)` of a module, and ends."""
    here, there = multiprocessing.Pipe()
    trace = files.in_memory()
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
    descriptors = (there.fileno(), trace.fileno())
    with there:
        popen = subprocess.Popen(
            command(module, *descriptors, parent),
            env={**environment, "PYTHONPATH": import_path()},
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            process_group=0,
        )
    return Child(popen.pid, here, trace, popen)


def command(module: str, connection: int, trace: int, parent: int) -> list[str]:
    """Of such a process, which has both descriptors; `parent`: as `run` takes it."""
    started = [sys.executable, "-P", "-c", f"from {__name__} import run; run()"]
    return [*started, module, *map(str, (connection, trace, parent))]


def import_path() -> str:
    """Of this process, as PYTHONPATH has it."""
    folders = [str(registry.IMPORT_PATH), *(os.path.abspath(entry) for entry in [*sys.path, *importing.last])]
    return os.pathsep.join(folders)


def to_compile(backend: str) -> dict[str, str]:
    """The variables of a process in which kernels of a backend are compiled."""
    interpret = registry.backend(backend).CPU_VARIABLES
    return {name: value for name, value in os.environ.items() if name not in interpret}


def run() -> None:
    """In the fresh process: arguments are the module, the descriptors of connection and trace, the parent's id or 0."""
    module, *numbers = sys.argv[1:]
    connection, trace, parent = map(int, numbers)
    settle(trace, parent or None)
    importlib.import_module(module).main(Connection(connection))
