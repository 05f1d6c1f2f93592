"""A process that has imported torch, and runs programs of Python in forks of itself, each as `python ARGUMENTS` would.

Importing torch takes a process seconds; here it is once for all that a worker of pytest starts (tests/processes.py). On
its socket each connection is a program: a request as JSON, then, when the program has ended, its exit status.
"""

import atexit
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import types
import warnings
from pathlib import Path


def serve(listening: socket.socket, worker: int) -> None:
    """Until the worker ends, of which this is no child: tests look at what children it has."""
    ended = os.pidfd_open(worker)
    if os.fork():
        os._exit(0)
    import torch  # noqa: F401 - imported by the programs

    folders = list(sys.path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while ended not in select.select([listening, ended], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            os.close(ended)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(connection, folders)
        connection.close()


def _answer(connection: socket.socket, folders: list[str]) -> None:
    """Start the program that is asked for, and tell its exit status; null where its limit of seconds ended it."""
    request = json.loads(connection.makefile().readline())
    until = time.monotonic() + request["seconds"]
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(request, folders)
    status = None
    while status is None:
        found, code = os.waitpid(pid, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        else:
            time.sleep(0.005)
    connection.sendall(json.dumps(status).encode())
    os._exit(0)


def _run(request: dict, folders: list[str]) -> None:
    status = 1
    try:
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        for descriptor, name in enumerate((os.devnull, request["out"], request["err"])):
            file = os.open(name, os.O_RDWR)
            os.dup2(file, descriptor)
            os.close(file)
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *folders]
        status = _status(lambda: _main(request["arguments"]))
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _main(arguments: list[str]) -> None:
    """What the interpreter does with its arguments, of which there are no others than these."""
    arguments = list(arguments)
    while arguments[:1] == ["-W"]:
        warnings.simplefilter(arguments[1])
        sys.warnoptions.append(arguments[1])
        del arguments[:2]
    kind = arguments.pop(0) if arguments[0] in ("-c", "-m") else "file"
    what, *rest = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__
    if kind == "-m":
        sys.argv[:] = ["-m", *rest]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(what, alter_argv=True)
        return
    sys.argv[:] = ["-c" if kind == "-c" else what, *rest]
    sys.path.insert(0, "" if kind == "-c" else str(Path(what).resolve().parent))
    if kind == "file":
        main.__file__ = os.path.abspath(what)
    text = what if kind == "-c" else Path(what).read_bytes()
    exec(compile(text, "<string>" if kind == "-c" else what, "exec"), vars(main))


def _status(body) -> int:
    try:
        body()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        place = error.__traceback__
        while place and place.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            place = place.tb_next
        sys.excepthook(type(error), error.with_traceback(place), place)
        return 1
    return 0


if __name__ == "__main__":
    descriptor, worker = map(int, sys.argv[1:])
    serve(socket.socket(fileno=descriptor), worker)
