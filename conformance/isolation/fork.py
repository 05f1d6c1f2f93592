"""A child forked from this process: it has every object of the parent, and none of its threads.

Thread pools do not survive a fork. Those of torch and of the OpenMP runtimes are told to use one thread.
"""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from touchstone.backends.storage import files
from touchstone.conformance.isolation.processes import Child, flush, open_children, settle


def fork(
    body: Callable[[Connection], None],
    confine: Callable[[tuple[int, ...]], None] | None = None,
    made: Callable[..., Child] = Child,
) -> Child:
    """A forked child that runs `body`, most often `execute`, and ends.

    `confine` is called in the child before that, with the descriptors that stay open; `made` makes the `Child`.
    """
    here, there = multiprocessing.Pipe()
    trace = files.in_memory()
    parent, dies_with_thread = os.getpid(), threading.current_thread() is threading.main_thread()
    flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, where the parent has threads
        pid = os.fork()
    if pid == 0:
        _run(body, confine, here, there, trace, parent if dies_with_thread else None)
    there.close()
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return made(pid, here, trace)


def _run(
    body: Callable[[Connection], None],
    confine: Callable[[tuple[int, ...]], None] | None,
    theirs: Connection,
    connection: Connection,
    trace: Any,
    parent: int | None,
) -> NoReturn:
    status = 1
    try:
        torch.set_num_threads(1)  # the parent's thread pools are dead here: the first parallel op would wait for them
        one_thread_each()
        if "torch._inductor.config" in sys.modules:  # whose compile workers answer to a thread of the parent
            sys.modules["torch._inductor.config"].compile_threads = 1  # type: ignore[attr-defined]
        gc.freeze()
        for end in (theirs, *(child.connection for child in open_children)):
            end.close()  # else that child would not notice that its parent is gone
        os.setpgid(0, 0)
        no_input = os.open(os.devnull, os.O_RDONLY)
        os.dup2(no_input, 0)
        os.close(no_input)
        settle(trace.fileno(), parent)
        if confine is not None:
            confine((connection.fileno(), trace.fileno()))
        body(connection)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def one_thread_each() -> None:
    """Tell every OpenMP runtime in this process to use one thread, for what this thread starts."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if re.search(r"/lib(gomp|i?omp)\d?[^/]*\.so", line)}
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_set_num_threads(1)
