"""Python in processes of their own, in an environment that the tests know: fresh ones, and forks of this one, which
have imported everything and start at once."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from touchstone.conformance.discovery import registry

QUICKER = {"PYTEST_ADDOPTS": "-p no:hypothesispytest"}  # whose report imports Hypothesis: 2 s of processor time
OWN = ("TRITON_", "NUMBA_", "CUPY_", "PYTEST_", "PYTHONPATH", "CHALK_")


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment without what a test run or a target has put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN)} | QUICKER | changes


def with_touchstone(**changes: str) -> dict[str, str]:
    """A clean environment in which `import touchstone` finds this clone's from any folder."""
    path = os.pathsep.join(filter(None, [str(registry.ROOT), os.environ.get("PYTHONPATH")]))
    return clean_environment(PYTHONPATH=path, OMP_NUM_THREADS="1", **changes)


def run_python(arguments: list[str], folder: Path, timeout: float = 300, **options) -> subprocess.CompletedProcess:
    """`python arguments` in `folder`; `environment`: additions to a clean one."""
    environment = clean_environment(**options.pop("environment", {}))
    return _run(arguments, folder, environment, timeout, **options)


def run_touchstone(
    arguments: list[str], folder: Path = registry.ROOT, timeout: float = 300, **options
) -> subprocess.CompletedProcess:
    """The same where `import touchstone` finds this clone's."""
    environment = with_touchstone(**options.pop("environment", {}))
    return _run(arguments, folder, environment, timeout, **options)


def output_of(code: str, folder: Path = registry.ROOT, **environment: str) -> str:
    """What `code` prints there; AssertionError with what it says if it fails."""
    done = run_touchstone(["-W", "ignore", "-c", code], folder, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def interpret(*arguments: str, **options) -> subprocess.CompletedProcess:
    """`python arguments` with Triton's interpreter."""
    return run_touchstone(["-W", "ignore", *arguments], environment={"TRITON_INTERPRET": "1"}, **options)


def _run(arguments, folder, environment, timeout, fresh=False, **options) -> subprocess.CompletedProcess:
    """In a fork of a process that has imported torch (tests/warm.py); in a process of its own with `fresh`, and where a
    fork could be told from one."""
    if not fresh and not options and _is_plain(arguments) and _at_start(environment) == _at_start(_warm_variables()):
        return _run_warm([str(each) for each in arguments], folder, environment, timeout)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )


# What Python, torch and the libraries that it brings look at when they start.
AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "TORCH", "MALLOC_", "CUDA_", "GLIBC_", "LANG", "LC_", "ASAN_")
LATER = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")  # what tests/warm.py does itself


def _is_plain(arguments) -> bool:
    rest = [str(each) for each in arguments]
    while rest[:1] == ["-W"]:
        del rest[:2]
    return bool(rest) and (rest[0] in ("-c", "-m") or not rest[0].startswith("-"))


def _warm_variables() -> dict[str, str]:
    return {name: value for name, value in with_touchstone().items() if name != "PYTHONPATH"}


def _at_start(environment: dict[str, str]) -> set[tuple[str, str]]:
    return {each for each in environment.items() if each[0].startswith(AT_START) and each[0] not in LATER}


@functools.cache
def _warm(worker: int) -> str:
    """The address of the process that imports torch for this one, started when first asked for."""
    address = f"\0touchstone-tests-{worker}-{time.monotonic_ns()}"  # of no file
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        subprocess.run(
            [sys.executable, "-P", str(registry.ROOT / "tests" / "warm.py"), str(listening.fileno()), str(worker)],
            env=_warm_variables(),
            stdin=subprocess.DEVNULL,
            pass_fds=(listening.fileno(),),
            check=True,
        )
    return address


def _run_warm(arguments, folder, environment, timeout) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as connection:
        out, err = Path(place, "out"), Path(place, "err")
        for path in (out, err):
            path.touch()
        connection.connect(_warm(os.getpid()))
        request = dict(arguments=arguments, folder=str(folder), environment=environment, seconds=timeout)
        connection.sendall((json.dumps({**request, "out": str(out), "err": str(err)}) + "\n").encode())
        answer = connection.makefile().read()
        texts = [path.read_text() for path in (out, err)]
    if not answer:
        raise RuntimeError("the process that starts programs has ended (tests/warm.py)")
    status = json.loads(answer)
    if status is None:
        raise subprocess.TimeoutExpired(arguments, timeout, *texts)
    return subprocess.CompletedProcess([sys.executable, *arguments], status, *texts)


class Fork:
    """A fork of this process that runs `body` in `folder`; what it returns is the exit status. What it prints goes to
    `out` and `err`. It takes Ctrl-C whatever this process does."""

    def __init__(self, body: Callable[[], int], folder: Path) -> None:
        self.out, self.err = folder / f"out-{time.monotonic_ns()}", folder / f"err-{time.monotonic_ns()}"
        for path in (self.out, self.err):
            path.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self.returncode: int | None = None
        if self.pid == 0:
            self._run(body, folder)

    def _run(self, body: Callable[[], int], folder: Path) -> None:
        status = 1
        try:
            os.chdir(folder)
            for number, path in ((1, self.out), (2, self.err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt):
                status = int(body())
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(status)

    def line(self, seconds: float = 60) -> str:
        """The first line that it prints."""
        until = time.monotonic() + seconds
        while "\n" not in (text := self.out.read_text()):
            assert time.monotonic() < until, self.err.read_text()
            time.sleep(0.01)
        return text.partition("\n")[0]

    def wait(self, seconds: float = 60) -> int:
        """The exit status, or less the signal that ended it."""
        until = time.monotonic() + seconds
        while self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                until += seconds
            else:
                time.sleep(0.01)
        return self.returncode


def fork_touchstone(arguments: list[str], folder: Path) -> Fork:
    """`python -m touchstone ARGUMENTS` in `folder`, in a fork."""
    from touchstone.conformance.cli import main

    return Fork(lambda: main(arguments), folder)


def in_a_fork(function: Callable[[], Any], folder: Path) -> Any:
    """What `function` returns, as JSON has it, of a fork, which it may change as it likes; AssertionError if it
    fails."""

    def body() -> int:
        print(json.dumps(function()))
        return 0

    made = Fork(body, folder)
    assert made.wait() == 0, made.err.read_text()
    return json.loads(made.out.read_text().splitlines()[-1])
