"""Things that outlive the kernel: processes, files, settings, changed files of the judge."""

import contextlib
import ctypes
import importlib.util
import json
import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import torch

from tests.referee.candidates.honest import PLANTED, PORT, TAG, detached, once, softmax, wrong


def a_daemon(x):
    """Leaves a process that belongs to nobody.

    untrusted, contained
    """
    if once("daemon"):
        detached(lambda: time.sleep(300))
    return softmax(x)


def a_child(x):
    """Leaves a child.

    contained
    """
    if once("child"):
        subprocess.Popen(["sleep", "300"])
    return softmax(x)


def a_child_in_a_session(x):
    """Leaves a child in a session of its own.

    untrusted, contained
    """
    if once("child"):
        subprocess.Popen(["sleep", "300"], start_new_session=True)
    return softmax(x)


def a_daemon_that_ignores_signals(x):
    """Leaves a process that ignores all signals that can be.

    untrusted, contained
    """

    def body():
        for number in range(1, 65):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        time.sleep(300)

    if once("daemon"):
        detached(body)
    return softmax(x)


def a_daemon_that_writes_late(x):
    """Leaves a process that writes into the judge's folder and its output once the judge has ended.

    untrusted, contained
    """

    def body():
        time.sleep(1)
        for _ in range(100):
            Path("report.json").write_text(json.dumps({"verdict": "passed", "planted": PLANTED}))
            os.write(1, b"PASSED; judged on 38 of 38 trials\n")
            time.sleep(0.1)

    if once("daemon"):
        detached(body)
    return wrong(x)


def a_file_at_home(x):
    """Writes into the home folder.

    untrusted, contained: Read-only file system
    """
    Path(os.path.expanduser("~"), ".planted").write_text(PLANTED)
    Path(f"/tmp/{TAG}_at_tmp").write_text(PLANTED)
    return softmax(x)


def a_file_beside_it(x):
    """Writes into the current folder.

    untrusted, contained
    """
    Path("planted.txt").write_text(PLANTED)
    return softmax(x)


def shared_memory(x):
    """Leaves a file in /dev/shm.

    untrusted, contained
    """
    Path(f"/dev/shm/{TAG}").write_text(PLANTED)
    return softmax(x)


def a_customisation(x):
    """Plants a usercustomize.py, which each Python of this user runs.

    untrusted, contained
    """
    import site

    folder = Path(os.path.expanduser("~"), ".local", "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    (folder / "site-packages").mkdir(parents=True, exist_ok=True)
    (folder / "site-packages" / "usercustomize.py").write_text(f"# {PLANTED}\n")
    (folder / "site-packages" / "planted.pth").write_text(f"# {PLANTED} {site.ENABLE_USER_SITE}\n")
    return softmax(x)


def a_conftest(x):
    """Plants a conftest.py and a touchstone package beside itself, for the next run there.

    untrusted, contained
    """
    Path("conftest.py").write_text(f"# {PLANTED}\n")
    Path("sitecustomize.py").write_text(f"# {PLANTED}\n")
    Path("touchstone").mkdir(exist_ok=True)
    Path("touchstone", "__init__.py").write_text(f"# {PLANTED}\n")
    return softmax(x)


def the_clone(x):
    """Appends to a module of the judge.

    untrusted, contained: Permission denied|Read-only file system
    """
    import touchstone

    with open(Path(touchstone.__file__).parent / "conformance" / "spec" / "compare.py", "a") as file:
        file.write(f"\n# {PLANTED}\n")
    return softmax(x)


def the_reference(x):
    """Replaces the reference in the clone.

    untrusted, contained
    """
    import touchstone

    file = Path(touchstone.__file__).parent / "reference" / "softmax.py"
    file.write_text(file.read_text() + f"\n# {PLANTED}\n")
    return softmax(x)


def the_compiled_clone(x):
    """Replaces a compiled module of the judge's, that it imports once something is wrong, by one that ends it.

    untrusted, refused
    """
    import touchstone

    folder = Path(touchstone.__file__).parent / "conformance" / "faults"
    source = (folder / "softmax.py").stat()
    body = marshal.dumps(compile(f"{PLANTED!r}; import os; os._exit(0)", "softmax.py", "exec"))
    header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(source.st_mtime), source.st_size)
    (folder / "__pycache__").mkdir(exist_ok=True)
    Path(importlib.util.cache_from_source(str(folder / "softmax.py"))).write_bytes(header + body)
    return wrong(x)


def records(x):
    """Writes a finding of its own among those that `replay` reads.

    untrusted, contained
    """
    Path(".touchstone").mkdir(exist_ok=True)
    Path(".touchstone", "planted_findings.json").write_text(json.dumps({"planted": PLANTED}))
    return softmax(x)


def caches(x):
    """Writes into the caches of the user that the judge uses as well.

    untrusted, contained
    """
    for name in ("touchstone", "touchstone-kernels", "triton", "numba"):
        folder = Path(os.path.expanduser("~"), ".cache", name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "planted.so").write_text(PLANTED)
    return softmax(x)


def its_own_file(x):
    """Replaces its file by an honest kernel once it has been read.

    untrusted, refused
    """
    mine = Path(__file__)
    text = mine.read_text()
    if not text.endswith("kernel = softmax\n"):
        with contextlib.suppress(OSError):
            mine.write_text(text + "kernel = softmax\n")
    return torch.softmax(x, -1)


def environment(x):
    """Changes environment, import path and the folder of this process.

    contained
    """
    os.environ["PYTHONPATH"] = "/tmp/planted"
    os.environ["LD_PRELOAD"] = "/tmp/planted.so"
    sys.path.insert(0, "/tmp/planted")
    os.chdir("/")
    return softmax(x)


def network(x):
    """Tells a server in this machine what it was given.

    untrusted, contained
    """
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=2) as connection:
        connection.sendall(PLANTED.encode())
    return softmax(x)


def listens(x):
    """Opens a port, for commands from elsewhere.

    untrusted, contained: Permission denied|not permitted
    """
    if once("listens"):
        server = socket.create_server(("127.0.0.1", 0))
        globals()["_server"] = server
    return softmax(x)


def new_privileges(x):
    """Runs a program that has more rights than its caller.

    untrusted, contained
    """
    found = Path("/proc/self/status").read_text()
    if "NoNewPrivs:\t0" in found:
        Path(os.environ.get("TMPDIR", "/tmp"), "planted_privileges").write_text(PLANTED)
    return softmax(x)


def system_v_memory(x):
    """Leaves shared memory of System V.

    untrusted, contained
    """
    if once("segment"):
        number = ctypes.CDLL(None).shmget(0x504C414E, ctypes.c_size_t(4096), 0o1600)
        Path(f"/tmp/{TAG}_segment").write_text(f"{PLANTED} {number}")
    return softmax(x)
