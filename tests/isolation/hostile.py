"""Hostile programs in a sandbox, each under a judge of its own that may be stopped, traced or killed.

`Run` is what became of one. The judge is forked from the test, and may first become an ordinary user, so that root sees
what others get. Programs find in their globals the process id of the judge and what the test hands them.
"""

import contextlib
import encodings.idna  # noqa: F401 - sockets ask for it
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import Any

import psutil

from touchstone.conformance.isolation.sandbox import inside, kernel, outside
from touchstone.conformance.isolation.sandbox.outside import Plan, Sandbox
from touchstone.conformance.isolation.sandbox.settings import ALL, DEFAULT, Limits, Measure

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ORDINARY = 60321 + WORKER  # no user of any machine, nor of another worker of pytest-xdist
MARK = f"hostile{WORKER:02}"  # the name that processes give themselves, to be found by
SECONDS = 40.0
GRACE = 5.0  # for what a judge that was killed has left to end
DONE = "did it"


_plans: dict[tuple, Plan] = {}  # what was found to work, by what was asked for


class JudgeEnded(AssertionError):
    """The judge was killed, or did not come to an end; with what was left then."""

    def __init__(self, survivors: list[int], left: list[str]):
        super().__init__(f"the judge did not come to an end, or was ended; left: {survivors} {left}")
        self.survivors, self.left = survivors, left


@dataclass
class Run:
    """How the process ended, what it printed, what the sandbox said, and what was left."""

    status: int
    output: str
    notes: list[str]
    lacking: list[str]
    measures: set[Measure]
    survivors: list[int]
    left: list[str]  # files of the judge's folder for temporary files
    ended: bool  # before the judge killed it
    running: list[int]  # what went on after it ended, before the judge looked for it
    kept: int  # bytes that are kept of what it printed
    started: float  # seconds from the fork until the process was confined

    @property
    def done(self) -> bool:
        return DONE in self.output


def run(
    program: str,
    measures=ALL,
    limits: Limits = DEFAULT,
    ordinary: bool = False,
    seconds: float = 0.0,
    user_reads: bool = True,
    keep: tuple[int, ...] = (),
    device: str = "cpu",
    group: str | None = None,
    judge_ends_after: float = SECONDS,
    **given: Any,
) -> Run:
    """What becomes of a program. `seconds`: let the sandbox end it then, else wait for its own end; `user_reads`:
    whether other users have to be able to read the interpreter; the judge is killed after
    `judge_ends_after`."""
    read, write = os.pipe()
    ordinary = ordinary and os.getuid() == 0
    key = (frozenset(measures), ordinary, user_reads, device, group)
    folder = tempfile.mkdtemp(prefix="judge-", dir="/tmp")
    os.chmod(folder, 0o755)
    if ordinary:
        os.chown(folder, ORDINARY, ORDINARY)
    sys.stdout.flush()
    sys.stderr.flush()
    judge = os.fork()
    if judge == 0:
        try:
            os.setpgid(0, 0)
            os.close(read)
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            if ordinary:
                become_ordinary()
            if not user_reads:
                outside._interpreter = set
            sandbox = Sandbox(device, limits=limits, measures=measures, group=group, plan=_plans.get(key))
            result = judged(program, sandbox, seconds, keep, given)
            os.write(write, json.dumps(result).encode())
        except BaseException:
            os.write(write, json.dumps({"error": traceback.format_exc()}).encode())
        finally:
            os._exit(0)
    os.close(write)
    said = b""
    until = time.monotonic() + judge_ends_after
    os.set_blocking(read, False)
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(read, 1 << 16)
            if not chunk:
                break
            said += chunk
        time.sleep(0.005)
    with contextlib.suppress(OSError):
        os.kill(judge, signal.SIGKILL)
    os.waitpid(judge, 0)
    os.close(read)
    until = time.monotonic() + (0 if said else GRACE)
    while ((survivors := marked()) or os.listdir(folder)) and time.monotonic() < until:
        time.sleep(0.01)
    left = os.listdir(folder)
    shutil.rmtree(folder)
    if not said:
        raise JudgeEnded(survivors, left)
    result = json.loads(said)
    assert "error" not in result, result["error"]
    result["measures"] = set(map(Measure, result["measures"]))
    reasons = {Measure(measure): reason for measure, reason in result.pop("reasons").items()}
    _plans[key] = Plan(frozenset(result["measures"]), reasons)
    return Run(**result, survivors=survivors, left=left)


def become_ordinary() -> None:
    """The user that most people are, without capabilities."""
    os.setgroups([])
    os.setresgid(ORDINARY, ORDINARY, ORDINARY)
    os.setresuid(ORDINARY, ORDINARY, ORDINARY)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    outside._tried.cache_clear()


def judged(program: str, sandbox: Sandbox, seconds: float, keep: tuple[int, ...], given: dict[str, Any]) -> dict:
    judge = os.getpid()
    with sandbox:
        began = time.perf_counter()
        child = os.fork()
        if child == 0:
            inside.enter(sandbox.settings(*keep))
            attack(program, judge, given)
        sandbox.started(child)
        started = time.perf_counter() - began
        until = time.monotonic() + (seconds or SECONDS - 10)
        ended, status = 0, 0
        while not ended and time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.002)
        by_itself, running = bool(ended), marked() if ended else []
        sandbox.kill()
        if not ended:
            ended, status = os.waitpid(child, 0)
        result = {
            "status": os.waitstatus_to_exitcode(status),
            "output": sandbox.output(),
            "notes": sandbox.notes,
            "lacking": sandbox.lacking,
            "measures": sorted(sandbox.measures),
            "reasons": sandbox.plan.reasons,
            "ended": by_itself,
            "running": running,
            "kept": os.fstat(sandbox._output.fileno()).st_size,
            "started": started,
        }
    return result


def attack(program: str, judge: int, given: dict[str, Any]) -> None:
    status = 0
    try:
        kernel._LIBC.prctl(15, MARK.encode(), 0, 0, 0)  # PR_SET_NAME
        exec(compile(program, "<hostile>", "exec"), {"JUDGE": judge, "DONE": DONE, **given})
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException as error:
        print(f"refused: {type(error).__name__}: {error}")
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(status)


def marked() -> list[int]:
    """Processes that carry the name of hostile ones, and are not waiting to be reaped."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        if process.info["name"] == MARK and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found
