"""Ends, hangs, and signals to the judge."""

import contextlib
import ctypes
import os
import signal
import sys
import time

from tests.referee.timed.honest import judge, softmax


def hangs(x):
    """Never returns.

    refused
    """
    while True:
        time.sleep(1)


def hangs_in_c(x):
    """Never returns, and holds the interpreter's lock.

    refused
    """
    ctypes.PyDLL(None).pause()


def aborts(x):
    """Aborts.

    refused
    """
    os.abort()


def leaves(x):
    """Ends its process, as if all were well.

    refused
    """
    os._exit(0)


def exits(x):
    """Raises SystemExit.

    refused
    """
    sys.exit(0)


def becomes_another(x):
    """Another program takes the place of its process.

    refused
    """
    os.execvp("sleep", ["sleep", "60"])


def stops_itself(x):
    """Stops its own process.

    refused
    """
    os.kill(os.getpid(), signal.SIGSTOP)
    return softmax(x)


def wakes_itself(x):
    """A process of its own lets it go on while it is stopped.

    refused
    """
    mine = os.getpid()
    if not globals().setdefault("_woken", []):
        globals()["_woken"].append(1)
        if os.fork() == 0:
            os.setsid()
            while os.getppid() == mine:
                os.kill(mine, signal.SIGCONT)
            os._exit(0)
    return softmax(x)


def kills_the_judge(x):
    """Kills its parent.

    untrusted, refused: Operation not permitted
    """
    os.kill(judge(), signal.SIGKILL)
    return softmax(x)


def stops_the_judge(x):
    """Stops its parent.

    untrusted, contained
    """
    with contextlib.suppress(OSError):
        os.kill(judge(), signal.SIGSTOP)
    return softmax(x)
