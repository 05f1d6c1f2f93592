"""The process server: what a child answers, how it ends in words, and that nothing of it is left."""

import ctypes
import io
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.fixed import changeable
from tests.processes import in_a_fork
from touchstone.conformance.isolation import processes
from touchstone.conformance.isolation.endings import ending, place
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.limits import Limits, Watch
from touchstone.conformance.isolation.processes import Child, Death, alive, flush, portable, request, serve, waited
from touchstone.conformance.isolation.spawn import spawn
from touchstone.conformance.judging import call
from touchstone.conformance.spec.checks import Check

SERVER = """
import os, signal
from touchstone.conformance.isolation.processes import serve

print("imported")


def main(connection):
    serve(connection, answer)


def answer(request):
    kind, value = request
    if kind == "variable":
        return os.environ.get(value), os.getpid()
    if kind == "raise":
        raise LookupError(value)
    os.kill(os.getpid(), value) if kind == "signal" else os._exit(value)
"""


@pytest.fixture
def served():
    """A function from what a forked child does with a request to that child."""
    started = []

    def start(answer, **options) -> Child:
        started.append(fork(lambda connection: serve(connection, answer, **options)))
        return started[-1]

    yield start
    for child in started:
        child.close()


def gone(pid: int, seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_child_answers_in_turn_and_keeps_its_state(served):
    kept = []
    child = served(lambda request: kept.append(request) or (list(kept), os.getpid()))
    assert child.ask("a") == (["a"], child.process.pid)
    child.send("b")
    child.send("c")
    assert child.answer()[0] == ["a", "b"] and child.answer()[0] == ["a", "b", "c"]
    assert kept == []


def test_a_child_that_is_silent_for_too_long_is_ended(served):
    child = served(time.sleep)
    assert child.ask(0.0, seconds=10) is None
    assert child.ask(60.0, seconds=0.3) == Death(Check.HANG, "no answer in 0.3 s")
    assert child.code == -signal.SIGKILL and gone(child.process.pid)


@pytest.mark.slow
def test_a_sign_of_life_gives_it_more_time():
    def body(connection):
        def slowly(times):
            for _ in range(times):
                time.sleep(0.3)
                alive(connection)
            return times

        serve(connection, slowly)

    child = fork(body)
    try:
        began = time.monotonic()
        assert child.ask(10, seconds=2.0) == 10
        assert time.monotonic() - began > 2.5
    finally:
        child.close()


ENDS = {
    "signal": (lambda: ctypes.string_at(0), r"segmentation fault at test_processes\.py:\d+, in <lambda>"),
    "abort": (os.abort, r"abort at test_processes\.py:\d+, in <lambda>"),
    "exit": (lambda: os._exit(3), "the process ended with status 3"),
    "kill": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        "killed by SIGKILL, as happens when the machine runs out of memory",
    ),
    "other": (lambda: os.kill(os.getpid(), signal.SIGUSR1), "ended by SIGUSR1"),
}


@pytest.mark.parametrize(("end", "sentence"), ENDS.values(), ids=list(ENDS))
def test_how_it_ended_is_a_sentence(end, sentence, served):
    child = served(lambda request: end())
    death = child.ask(None, seconds=30)
    assert death.check == Check.CRASH and not death.early
    assert re.fullmatch(sentence, death.message), death
    assert child.ask(None) == death  # and stays so
    assert gone(child.process.pid)


def test_an_exit_status_in_words():
    assert ending(0) == "the process ended with status 0"
    assert ending(-signal.SIGBUS) == "bus error"
    assert ending(-250) == "ended by signal 250"


@pytest.mark.slow
def test_memory_beyond_the_limit_ends_it(served):
    kept = []

    def grow(mebibytes):
        while len(kept) < mebibytes:
            kept.append(os.urandom(1 << 20))
        return len(kept)

    limits = Limits(seconds=60, bytes=64 << 20)
    child = served(grow)
    watch = Watch(child)
    child.send(8)
    assert watch.wait(limits) is None and child.answer() == 8
    child.send(1 << 20)
    death = watch.wait(limits)
    assert death.check == Check.MEMORY
    assert death.message.startswith("resident memory grew by 0.") and death.message.endswith("the limit is 0.06 GiB")
    assert gone(child.process.pid)


def test_an_error_travels_and_the_child_goes_on(served):
    def answer(request):
        if request == "error":
            raise LookupError("not here")
        if request == "own":

            class Own(Exception):
                pass

            raise Own("of a class that the parent cannot have")
        return request

    child = served(answer)
    with pytest.raises(LookupError, match="not here") as caught:
        child.ask("error")
    assert "in the child process:" in caught.value.__notes__[0] and "in answer" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="Own: of a class that the parent cannot have"):
        child.ask("own")
    assert child.ask("fine") == "fine"


def test_an_error_of_a_connection_in_the_child_is_no_death(served):
    """What the parent's own end raises means that the child is gone; the same error from the child does not."""
    child = served(lambda request: (_ for _ in ()).throw(BrokenPipeError("of the child's own")))
    with pytest.raises(BrokenPipeError, match="of the child's own"):
        child.ask(None)
    assert child.exited() is None


@pytest.mark.slow
def test_nothing_is_left_running(served):
    def helped(request):
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid

    before = len(os.listdir("/proc/self/fd"))
    child = served(helped)
    helper = child.ask(None)
    child.close()
    assert child.code is not None
    assert gone(helper) and gone(child.process.pid)
    assert len(os.listdir("/proc/self/fd")) == before
    child.close()  # has nothing to do


@pytest.mark.skipif(sys.platform != "linux", reason="a folder of Linux")
def test_a_child_reads_nothing_and_has_nothing_else_open_for_that(served):
    def empty():
        """How many descriptors but the first are of the device that is empty."""
        numbers = [number for number in os.listdir("/proc/self/fd") if number != "0"]
        return sum(os.path.realpath(f"/proc/self/fd/{number}") == os.devnull for number in numbers)

    here = empty()
    assert served(lambda request: (empty() - here, os.read(0, 1))).ask(None) == (0, b"")


def test_a_child_may_have_left_its_group_before_its_parent_gives_it_one(monkeypatch):
    real = os.setpgid

    def refuses(pid, group):
        if pid:
            raise PermissionError("it leads a session")
        real(pid, group)

    monkeypatch.setattr(os, "setpgid", refuses)
    child = fork(lambda connection: connection.send(("answer", os.getpgid(0))))
    assert child.answer(10) == child.process.pid
    child.close(seconds=10)


def test_why_a_child_that_fails_ends_is_printed(capfd):
    child = fork(lambda connection: {}["of its own"])
    child.close(seconds=10)
    assert child.code == 1 and "KeyError: 'of its own'" in capfd.readouterr().err


def test_a_child_may_end_by_itself(tmp_path):
    def body(connection):
        serve(connection, lambda request: request)
        (tmp_path / "put away").touch()

    child = fork(body)
    assert child.ask(1) == 1
    child.close(seconds=10)
    assert child.code == 0 and (tmp_path / "put away").exists()


@pytest.mark.parametrize("status", [0, 3])
def test_a_child_that_has_ended_is_known_to_be_gone(status):
    child = fork(lambda connection: os._exit(status))
    until = time.monotonic() + 10
    while child.exited() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert child.exited() == child.code == status
    child.close()


def test_a_child_that_does_not_end_by_itself_is_ended():
    child = fork(lambda connection: time.sleep(60))
    assert child in processes.open_children
    child.close(seconds=0.05)
    assert child.code == -signal.SIGKILL and child.trace.closed and child.connection.closed
    assert child not in processes.open_children


def test_a_younger_child_does_not_hold_the_connection_of_an_elder(served):
    """Else the elder would not notice that its parent hung up."""
    elder = served(lambda request: request)
    younger = served(lambda request: request)
    assert younger.ask(1) == 1
    elder.connection.close()
    assert gone(elder.process.pid)
    assert younger.ask(2) == 2


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "server_of_a_test.py").write_text(SERVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "server_of_a_test"


@pytest.mark.slow
def test_a_fresh_process_has_the_import_path_and_the_environment_that_it_is_given(server):
    child = spawn(server, {**os.environ, "SAID": "so"})
    try:
        said, pid = child.ask(("variable", "SAID"), seconds=60)
        assert said == "so" and pid == child.process.pid != os.getpid()
        with pytest.raises(LookupError, match="nothing"):
            child.ask(("raise", "nothing"), seconds=60)
    finally:
        child.close()
    assert gone(child.process.pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "message"),
    [(("exit", 5), "the process ended with status 5"), (("signal", signal.SIGFPE), "arithmetic exception")],
)
def test_a_fresh_process_dies_in_words_too(server, end, message):
    child = spawn(server)
    try:
        death = child.ask(end, seconds=60)
        assert death.check == Check.CRASH and death.message.startswith(message)
    finally:
        child.close()


@pytest.mark.slow
def test_a_fresh_process_started_by_a_thread_outlives_that_thread(server):
    started = []

    def start():
        started.append(spawn(server))
        started[0].ask(("variable", "PATH"), seconds=60)  # it has settled by then

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    try:
        assert started[0].ask(("variable", "PATH"), seconds=60)[0] == os.environ["PATH"]
    finally:
        started[0].close()


TRACE = """Fatal Python error: Segmentation fault

Current thread 0x00007f0000000000 (most recent call first):
  File "{ctypes}", line 519 in string_at
{frames}
Thread 0x00007f0000000001 (most recent call first):
  File "/users/of/other.py", line 1 in elsewhere
"""


def traced(*frames: str) -> str:
    return place(TRACE.format(ctypes=ctypes.__file__, frames="".join(f'  File "{f}\n' for f in frames)))


def test_the_place_is_the_users_innermost_line():
    judge = f'{call.__file__}", line 60 in observe_call'
    user = '/users/of/kernels.py", line 8 in softmax'
    assert traced(user, judge) == " at kernels.py:8, in softmax"
    assert traced(judge, user) == f" at {Path(ctypes.__file__).name}:519, in string_at"  # the judge's own call
    mutant = f'{Path(call.__file__).parents[1] / "faults" / "softmax.py"}", line 12 in tail'
    assert traced(mutant, judge) == " at softmax.py:12, in tail"
    assert place("") == ""


def test_the_place_is_read_from_the_beginning_of_what_was_written():
    """However often."""
    text = 'Current thread 0x1 (most recent call first):\n  File "/users/of/kernels.py", line 8 in softmax\n'
    other = text.replace("Current thread", "Thread").replace("softmax", "other")
    child = SimpleNamespace(trace=io.BytesIO(f"{other}\n{text}".encode() + b"\xff"))
    assert [Child.place(child) for _ in range(2)] == [" at kernels.py:8, in softmax"] * 2
    alone = SimpleNamespace(trace=io.BytesIO(f'{text}\n  File "/a.py", line 1 in f\n'.encode()))
    assert Child.place(alone) == " at kernels.py:8, in softmax"


class Connection:
    """Gives requests in turn, and keeps what is sent."""

    def __init__(self, *requests):
        self.requests, self.sent = list(requests), []

    def recv(self):
        if not self.requests:
            raise EOFError
        return self.requests.pop(0)

    def recv_bytes(self):
        return pickle.dumps(self.recv())

    def send(self, what):
        self.sent.append(what)


def test_requests_are_answered_until_the_parent_hangs_up():
    connection = Connection(2, 0, 4)
    serve(connection, lambda request: 8 // request)
    (first, failed, last) = connection.sent
    assert (first, last) == (("answer", 4), ("answer", 2)) and failed[0] == "error"
    assert type(failed[1]) is ZeroDivisionError and "in the child process:" in failed[1].__notes__[0]
    alive(connection)
    assert connection.sent[-1] == ("alive", None) and request(Connection({"a": 1})) == {"a": 1}


class Unsendable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def test_errors_as_they_can_be_sent():
    sent = portable(KeyError("x"))
    assert type(sent) is KeyError and sent.args == ("x",) and "KeyError: 'x'" in sent.__notes__[0]
    other = portable(Unsendable(1, 2))
    assert type(other) is RuntimeError and str(other) == "Unsendable: 1 2" and len(other.__notes__) == 1


def test_how_long_processes_have_waited():
    own = waited([os.getpid()])
    assert 0 <= own <= waited([os.getpid(), os.getpid(), 2**22 + 7])  # one that is not there has not waited


def test_streams_that_do_not_flush_end_nothing(monkeypatch):
    flushed = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=lambda: 1 / 0))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(flush=lambda: flushed.append(1)))
    flush()
    assert flushed == [1]


def test_what_was_printed_before_a_fork_is_printed_once(tmp_path, monkeypatch):
    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        out.write("once\n")
        child = fork(lambda connection: flush())
        child.close(seconds=10)
    assert child.code == 0 and (tmp_path / "out").read_text() == "once\n"


def answering(*answers, code=None):
    """A child at the other end of a connection that gives these; `code`: the status with which it has ended."""
    given = Child.__new__(Child)
    left = list(answers)

    def recv():
        if not left:
            raise EOFError
        return left.pop(0)

    given.connection = SimpleNamespace(poll=lambda seconds=0: bool(left), recv=recv, send=lambda request: None)
    given.code, given.trace, given.ended = code, io.BytesIO(), []
    given.process = SimpleNamespace(pid=0)
    given.exited = lambda: given.code
    given.kill = lambda: given.ended.append("killed")
    return given


def test_signs_of_life_are_no_answers():
    assert answering(("alive", None), ("alive", None), ("answer", 7)).ask(1) == 7
    with pytest.raises(KeyError):
        answering(("alive", None), ("error", KeyError("x"))).answer()


def test_a_silent_child_is_ended_or_is_gone(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(processes.time, "monotonic", lambda: float(next(clock)))
    silent = answering()
    assert silent.answer(3.0) == Death(Check.HANG, "no answer in 3 s") and silent.ended == ["killed"]
    gone = answering(code=3)
    gone.connection.recv = lambda: pytest.fail("waits for who holds the connection still")
    assert gone.is_gone() and gone.answer() == Death(Check.CRASH, "the process ended with status 3")
    last = answering(("answer", 5), code=0)
    assert not last.is_gone() and last.answer() == 5  # it said so before it ended
    refusing = answering(code=1)
    refusing.connection.send = lambda request: (_ for _ in ()).throw(BrokenPipeError())
    assert refusing.ask(1).message == "the process ended with status 1"


def test_a_child_that_hangs_up_and_goes_on_is_killed(monkeypatch):
    stays = answering()

    def reap(seconds):
        raise psutil.TimeoutExpired(seconds)

    stays._reap = reap
    assert stays.death() == Death(Check.CRASH, "closed the connection to the judge") and stays.ended == ["killed"]


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("code", [None, -6])
def test_a_child_that_is_aborted_is_killed_where_that_does_not_end_it(gone, code):
    stays, signals = answering(), []

    def send(number):
        signals.append(number)
        if gone:
            raise psutil.NoSuchProcess(0)

    def reap(seconds):
        assert seconds > 0
        if code is None:
            raise psutil.TimeoutExpired(seconds)
        return code

    stays.process, stays._reap = SimpleNamespace(pid=0, send_signal=send), reap
    stays.abort()
    assert signals == [signal.SIGABRT] and stays.code == code and stays.ended == ["killed"]


def test_processes_that_are_left_are_counted_and_ended(monkeypatch):
    """But those that have ended by then, or wait for somebody to hear of it."""
    waits, killed = [], []

    class Left:
        def __init__(self, state):
            self.state = state

        def status(self):
            if self.state == "gone":
                raise psutil.NoSuchProcess(7)
            return self.state

        def kill(self):
            killed.append(self.state)

    def wait_procs(some, timeout):
        waits.append((list(some), timeout))
        return [], waits[0][0][1:]

    monkeypatch.setattr(processes.psutil, "wait_procs", wait_procs)
    every = [
        Left(state) for state in ("ended in time", "gone", psutil.STATUS_ZOMBIE, psutil.STATUS_SLEEPING, "running")
    ]
    assert processes.ended(iter(every)) == 2 and killed[-2:] == [psutil.STATUS_SLEEPING, "running"]
    assert waits == [(every, processes.LEFT_SECONDS), (every[1:], processes.LEFT_SECONDS)]


def test_a_child_that_cannot_say_that_it_is_the_one_to_go_is_settled_all_the_same(monkeypatch, tmp_path):
    """Where /proc is not to be written."""

    def refuses(path, *mode):
        raise PermissionError(path)

    def settled():
        with open(tmp_path / "trace", "w") as trace:
            monkeypatch.setattr(processes, "open", refuses, raising=False)
            processes.settle(trace.fileno(), None)
        return sys.breakpointhook is processes._no_debugger

    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    assert in_a_fork(settled, tmp_path) is True


@pytest.mark.skipif(sys.platform != "linux", reason="a file of Linux")
def test_out_of_memory_a_child_is_the_one_to_go(tmp_path):
    def settled():
        with open(tmp_path / "trace", "w") as trace:
            processes.settle(trace.fileno(), None)
        return Path("/proc/self/oom_score_adj").read_text()

    assert in_a_fork(settled, tmp_path).strip() == "1000"


@pytest.mark.parametrize("variable", [None, "0"])
def test_a_debugger_has_no_terminal(monkeypatch, tmp_path, variable):
    def settled():
        if variable is not None:
            os.environ["PYTHONBREAKPOINT"] = variable
        before = sys.breakpointhook
        with open(tmp_path / "trace", "w") as trace:
            processes.settle(trace.fileno(), None)
        return [sys.breakpointhook is before, resource.getrlimit(resource.RLIMIT_CORE)[0]]

    assert in_a_fork(settled, tmp_path) == [variable is not None, 0]
    with pytest.raises(RuntimeError, match="no terminal: pass isolate='none'"):
        processes._no_debugger()


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Death) == []
