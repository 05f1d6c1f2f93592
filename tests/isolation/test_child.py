"""A child that makes a subject's calls: how it starts or does not, and what becomes of it when judging stops."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from touchstone.backends.storage import files
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.launching import MissingPackage
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import child
from touchstone.conformance.isolation.child import CallingChild
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.processes import Child, Death
from touchstone.conformance.isolation.remote import Died
from touchstone.conformance.isolation.shared import NoSharedMemory
from touchstone.conformance.isolation.travel import CannotTravel
from touchstone.conformance.spec.checks import Check


def fn(x):
    return torch.softmax(x, -1)


def subject(of=fn):
    return Subject("softmax", of, "fn", "user@cpu", "cpu")


class Starting:
    """A child that gives this answer at first, or raises it."""

    def __init__(self, answer, of=fn):
        self.answer, self.done = answer, []
        self.subject = SimpleNamespace(fn=of)
        self.remote = SimpleNamespace(ready=self.ready)
        self.watch = SimpleNamespace(begin=lambda: self.done.append("begun"))

    def ready(self, seconds):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def close(self):
        self.done.append("closed")


def test_a_child_that_has_the_function_is_watched_from_then_on():
    started = Starting({"ready": True})
    assert child._ready(started, "forked child", 300.0) is started and started.done == ["begun"]


FILE = FileFunction(Path("/a/mine.py"), "fn")
HANG, CRASH = Death(Check.HANG, "no answer after 300 s"), Death(Check.CRASH, "segmentation\nfault")


@pytest.mark.parametrize(
    ("answer", "of", "error", "said"),
    [
        ({"missing": "needs\ncupy"}, fn, MissingPackage, "fn: needs\n    | cupy"),
        ({"refused": "fn: no such\nname"}, fn, ValueError, "fn: no such\n    | name"),
        (
            {"failed": "KeyError: 3"},
            fn,
            CannotTravel,
            "cannot be imported in a fresh process: KeyError: 3; pass isolate=",
        ),
        (
            CRASH,
            fn,
            CannotTravel,
            "cannot be imported in a fresh process: segmentation\n    | fault; pass isolate='none'",
        ),
        (HANG, fn, CannotTravel, "was not imported in a fresh process within 300 s; pass isolate='none'"),
        ({"failed": "KeyError: 3"}, FILE, ValueError, "fn: /a/mine.py does not import: KeyError: 3"),
        (HANG, FILE, ValueError, "fn: /a/mine.py does not import within 300 s"),
        (KeyboardInterrupt(), fn, KeyboardInterrupt, ""),
    ],
)
def test_a_child_that_does_not_get_the_function_is_closed(answer, of, error, said):
    started = Starting(answer, of)
    with pytest.raises(error) as raised:
        child._ready(started, "fresh process", 300.0)
    assert type(raised.value) is error and said in str(raised.value) and started.done == ["closed"]


IMPORTING = {
    "sleeps": "import time\ntime.sleep(60)\n",
    "works": "while True:\n    pass\n",
    "waits_for_what_it_started": "import subprocess\nsubprocess.run(['sleep', '60'])\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", IMPORTING)
@pytest.mark.parametrize("untrusted", [False, True])
def test_an_import_has_a_limit_of_seconds(what, untrusted, tmp_path):
    """And no longer than four times as much where it gets no processor."""
    file = tmp_path / "mine.py"
    file.write_text(IMPORTING[what] + "\n\ndef fn(x):\n    return x\n")
    of = Subject("softmax", FileFunction(file, "fn"), "fn", "user@cpu", "cpu", untrusted=untrusted)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"mine\.py does not import within 0\.5 s$"):
        child.forked(of, [], seconds=0.5)
    assert 0.5 <= time.monotonic() - began < 30
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.slow
def test_a_fresh_process_has_it_too(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(IMPORTING["works"] + "\n\ndef fn(x):\n    return x\n")
    of = subject(FileFunction(file, "fn"))
    with pytest.raises(ValueError, match=r"mine\.py does not import within 4 s$"):
        child.calling(of, [], ("file", str(file), "fn"), seconds=4)


def test_a_fresh_process_that_dies_at_once_says_how(monkeypatch):
    """Before it is sent anything."""

    def dead(module):
        here, there = multiprocessing.Pipe()
        there.close()
        popen = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(1)"])
        made = Child(popen.pid, here, files.in_memory(), popen)
        until = time.monotonic() + 60
        while made.process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
            time.sleep(0.005)
        return made

    monkeypatch.setattr(child, "spawn", dead)
    with pytest.raises(CannotTravel, match="cannot be imported in a fresh process: the process ended with status 1"):
        child.calling(subject(), [], ("pickle", b""))


def test_each_way_is_tried_and_the_first_error_is_told(monkeypatch):
    tried = []

    def fails(subject, trials, way):
        tried.append(way)
        raise CannotTravel(f"not {way[0]}")

    monkeypatch.setattr(child, "ways", lambda fn, fresh_import: [("file",), ("pickle",)])
    monkeypatch.setattr(child, "calling", fails)
    with pytest.raises(CannotTravel, match="^not file$"):
        child.spawned(subject(), [], fresh_import=False)
    assert tried == [("file",), ("pickle",)]
    monkeypatch.setattr(child, "calling", lambda subject, trials, way: way if way == ("pickle",) else fails(0, 0, way))
    assert child.spawned(subject(), [], fresh_import=False) == ("pickle",)
    monkeypatch.setattr(child, "ways", lambda fn, fresh_import: [])
    with pytest.raises(CannotTravel, match="cannot be sent to another process"):
        child.spawned(subject(), [], fresh_import=False)


def test_a_machine_without_shared_memory_cannot_run_it(monkeypatch):
    def none():
        raise NoSharedMemory("no memory")

    monkeypatch.setattr(child, "Shared", none)
    with pytest.raises(CannotRun, match="^no memory$"):
        child.shared_memory()


def calling(closed):
    made = CallingChild.__new__(CallingChild)
    closing = lambda name: SimpleNamespace(close=lambda: closed.append(name), exited=lambda: 0)  # noqa: E731
    made.process, made.shared = closing("process"), closing("shared")
    made.subject, made.trials, made.judged = subject(), ["first", "second"], []
    made.remote = SimpleNamespace(begin=lambda limits, idle: closed.append((limits, idle)), spent=False)
    return made


def test_what_comes_of_judging_a_trial(monkeypatch):
    """The judge takes one thread meanwhile, and goes on with as many as before."""
    threads, seen, done = torch.get_num_threads(), [], []
    limits, death = Limits(seconds=3), Death(Check.CRASH, "gone")

    def judging(result):
        def outcome_of(subject, trial, here, executor):
            seen.append((trial, torch.get_num_threads()))
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(child, "outcome_of", outcome_of)

    torch.set_num_threads(threads + 2)
    try:
        made = calling(done)
        judging("an outcome")
        assert made.judge(1, limits, idle=2.0) == "an outcome" and made.judged == [1]
        judging(Died(death))
        assert made.judge(0, limits) is death and made.judged == [1]
        assert done == [(limits, 2.0), (limits, None)]
        judging(KeyboardInterrupt())
        with contextlib.suppress(KeyboardInterrupt):
            made.judge(0, limits)
        assert done[2:] == [(limits, None), "process", "shared"] and made.judged == [1]
        assert torch.get_num_threads() == threads + 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [("second", 1), ("first", 1), ("first", 1)]


def test_only_a_sandbox_has_something_to_note():
    assert calling([]).notes == []
    assert not calling([]).spent


@pytest.mark.parametrize(("code", "left"), [(None, 1), (0, 0)])
def test_what_a_kernels_process_leaves_is_ended_and_noted(monkeypatch, code, left):
    """But of one that has ended, which has no processes below it; nor one that is gone by then."""
    asked, done = [], []
    monkeypatch.setattr(child, "below", lambda pid: asked.append(pid) or [os.getpid(), 2**22 + 5])
    monkeypatch.setattr(child, "ended", lambda started: done.append([each.pid for each in started]) or len(started))
    made = calling(done)
    made.process.exited, made.process.process = lambda: code, SimpleNamespace(pid=7)
    assert made.notes == []
    made.close()
    assert asked == ([7] if left else []) and done == ["process", [os.getpid()] if left else [], "shared"]
    said = "processes that the kernel's had started, that were there after it, and were ended: 1"
    assert made.notes == [said] * left


@pytest.mark.parametrize("untrusted", [False, True])
def test_a_file_is_named_by_where_it_is(monkeypatch, tmp_path, untrusted):
    """A process that is confined has another current folder."""
    given = []

    def refuses(connecting, *rest):
        given.append(connecting)
        raise CannotRun("not today")

    monkeypatch.setattr(child, "confined" if untrusted else "fork", refuses)
    monkeypatch.setattr(child, "shared_memory", lambda: SimpleNamespace())
    monkeypatch.setattr(child, "execute", lambda connection, shared, subject: given.append(subject))
    monkeypatch.chdir(tmp_path)
    of = Subject("softmax", FileFunction(Path("mine.py"), "fn"), "fn", "user@cpu", "cpu", untrusted=untrusted)
    with pytest.raises(CannotRun):
        child.forked(of, [], child.execute)
    if not untrusted:
        given[0](None)  # what the fork runs
    assert given[-1].fn == FileFunction(tmp_path / "mine.py", "fn")
