"""What may end the process that runs it, run in a fork of this one first."""

import contextlib
import faulthandler
import math
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

import torch

LONGEST_POLL = 0.02  # seconds

able = hasattr(os, "fork")


def forked(run: Callable[[int], object], seconds: float = math.inf) -> tuple[bytes, int | None]:
    """(what `run` wrote to the descriptor that it is given, the fork's exit status). What it prints is dropped, and
    what it raises says no more than a status of 1.

    A negative status is the signal that ended the fork; None: it was killed, since it wrote nothing for `seconds`.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with tempfile.TemporaryFile() as file:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, where this process has threads
            pid = os.fork()
        if pid == 0:
            _run(run, file.fileno())
        status = _awaited(pid, file.fileno(), seconds)
        file.seek(0)
        return file.read(), status


def _run(run: Callable[[int], object], written: int) -> NoReturn:
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        faulthandler.disable()  # it writes elsewhere
        torch.set_num_threads(1)  # the pool of the parent is dead here
        run(written)
        os._exit(0)
    finally:
        os._exit(1)


def _awaited(pid: int, written: int, seconds: float) -> int | None:
    """The exit status of a fork that goes on writing."""
    size, since, poll = 0, time.monotonic(), 0.001
    try:
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if (now := os.fstat(written).st_size) != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > seconds:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None
            time.sleep(poll)
            poll = min(1.5 * poll, LONGEST_POLL)
    except BaseException:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        raise
    return os.waitstatus_to_exitcode(ended[1])
