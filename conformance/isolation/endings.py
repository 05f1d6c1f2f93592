"""How a process ended, in words: the exit status or the signal, and the line at which faulthandler saw it."""

import contextlib
import os
import re
import signal
import sysconfig
from pathlib import Path

SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "killed by SIGKILL, as happens when the machine runs out of memory",
}
_CONFORMANCE = str(Path(__file__).parents[1]) + os.sep
_FAULTS = _CONFORMANCE + "faults" + os.sep  # kernels, though they are in the judge's folder
_LIBRARIES = (sysconfig.get_paths()["stdlib"] + os.sep, "<frozen ")


def ending(code: int) -> str:
    """What an exit status (negative: a signal's number) means."""
    if code >= 0:
        return f"the process ended with status {code}"
    with contextlib.suppress(ValueError):
        number = signal.Signals(-code)
        return SIGNALS.get(number, f"ended by {number.name}")
    return f"ended by signal {-code}"


def place(trace: str) -> str:
    """The innermost line of the user's Python in what faulthandler wrote: " at file.py:3, in fn".

    The innermost line of a library where the user's code is not on the stack; "" if there is none.
    """
    threads = re.split(r"\n\s*\n", trace)
    current = next((thread for thread in threads if "Current thread" in thread), threads[0])
    frames = []
    for path, line, name in re.findall(r'^  File "(.+)", line (\d+) in (.+)$', current, re.MULTILINE):
        if path.startswith(_CONFORMANCE) and not path.startswith(_FAULTS):
            break
        frames.append((path, line, name))
    own = [frame for frame in frames if not frame[0].startswith(_LIBRARIES) and "-packages" + os.sep not in frame[0]]
    for path, line, name in own or frames:
        return f" at {os.path.basename(path)}:{line}, in {name}"
    return ""
