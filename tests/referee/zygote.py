"""A process that has torch, the command line of Touchstone and the libraries of kernels, set up for the CPU as every
command begins, and runs one command after another in forks of itself.

Each line of its input is a request, each line of its output the answer. A command starts as `python -m touchstone`
does: in its folder, with its environment, in a session of its own, as the main thread of a process that nothing else
uses. What outlives a command becomes a child of this process, which tells of it and ends it.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 1.0  # for what is ending already


def serve() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    from touchstone.conformance import check  # noqa: F401 - imported by the commands
    from touchstone.conformance.batch.attempt import prepare
    from touchstone.conformance.bench import apart, records  # noqa: F401 - likewise
    from touchstone.conformance.cli import main

    prepare("cpu")
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in requests:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            requests.close()
            _run(request, main)
        print(json.dumps(_watched(pid, request["seconds"])), file=answers, flush=True)


def _run(request: dict, main) -> None:
    status = 1
    try:
        os.setsid()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        for descriptor, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
            file = os.open(name, os.O_RDWR | os.O_CREAT)
            os.dup2(file, descriptor)
            os.close(file)
        os.closerange(3, 256)
        sys.path[0] = request["folder"]
        sys.argv = ["touchstone", *request["arguments"]]
        try:
            status = main(request["arguments"])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _watched(pid: int, seconds: float) -> dict:
    began = time.monotonic()
    status, late = None, False
    while status is None:
        found, code = os.waitpid(pid, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() - began > seconds:
            late = True
            os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        else:
            time.sleep(0.01)
    took = time.monotonic() - began
    left = _running()
    until = time.monotonic() + GRACE_SECONDS
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = _running()
    if late:
        left = []  # the judge was ended from here, with no chance to end anything
    while processes := _children():
        for process in processes:
            os.kill(process, signal.SIGKILL)
        for process in processes:
            os.waitpid(process, 0)
    return {"status": status, "late": late, "seconds": took, "left": left}


def _running() -> list[str]:
    """The command lines of this process's descendants, without those that have ended."""
    found = []
    for process in _children():
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":
                os.waitpid(process, os.WNOHANG)
            else:
                found.append(f"{process} ({state})")
        except OSError:
            pass
    return found


def _children() -> list[int]:
    return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


if __name__ == "__main__":
    serve()
