"""The child of a sandbox: what it is given to read, and that the sandbox ends with it."""

import functools
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

if sys.platform != "linux":
    pytest.skip("confining a process takes Linux", allow_module_level=True)

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import confined
from touchstone.conformance.isolation.confined import Confined
from touchstone.conformance.isolation.sandbox.outside import NotConfined


def here(x):
    return x


def subject(fn=here, device="cpu"):
    return Subject("softmax", fn, "fn", f"user@{device}", device)


def test_the_folder_of_a_function_is_to_be_read(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    named = FileFunction(tmp_path / "link" / "mine.py", "fn")
    assert confined.folders(subject(named)) == [tmp_path.resolve()]
    assert confined.folders(subject()) == [Path(__file__).resolve().parent]
    wrapped = functools.wraps(here)(lambda x: torch.clone(x))
    assert confined.folders(subject(wrapped)) == [Path(__file__).resolve().parent]
    assert confined.folders(subject(abs)) == confined.folders(subject(functools.partial(here))) == []


def test_what_backends_have_compiled_is_given(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import kernels\n")
    given, asked = [], []
    offered = {
        "ready": SimpleNamespace(ready=lambda text: asked.append(text) or {tmp_path / "b", tmp_path / "a"}),
        "none": SimpleNamespace(ready=lambda text: set()),
        "plain": SimpleNamespace(),
    }
    monkeypatch.setattr(registry, "backends", lambda: tuple(offered))
    monkeypatch.setattr(registry, "backend", offered.__getitem__)
    monkeypatch.setattr(confined.artefacts, "give", lambda paths, to: given.append((paths, to)))
    sandbox = SimpleNamespace(given=tmp_path / "given")
    mine = FileFunction(tmp_path / "mine.py", "fn")
    confined._give(sandbox, subject(mine))
    assert given == [([tmp_path / "a", tmp_path / "b"], tmp_path / "given")] and asked == ["import kernels\n"]
    given.clear()
    confined._give(sandbox, subject(mine, "cuda"))
    confined._give(sandbox, subject(abs))
    offered["ready"] = SimpleNamespace(ready=lambda text: set())
    confined._give(sandbox, subject(mine))
    (tmp_path / "mine.py").write_bytes(b"\xff")
    offered["ready"] = SimpleNamespace(ready=lambda text: {tmp_path / "a"})
    confined._give(sandbox, subject(mine))  # it is no text
    confined._give(sandbox, subject(FileFunction(tmp_path / "gone.py", "fn")))
    assert given == []


class Box:
    """A sandbox whose end is noted."""

    def __init__(self, fails=None):
        self.done, self.fails = [], fails
        self.found = [
            SimpleNamespace(pid=1, send_signal=self._signal),
            SimpleNamespace(pid=2, send_signal=self._signal),
        ]

    def _signal(self, number):
        self.done.append(number)
        raise psutil.NoSuchProcess(1)

    def __enter__(self):
        if self.fails is not None:
            raise self.fails

    def processes(self):
        return self.found

    def usage(self):
        return 1.5, 4096

    def kill(self):
        self.done.append("killed")

    def close(self):
        self.done.append("closed")

    def settings(self, *keep):
        return keep

    def started(self, pid):
        if self.fails is not None:
            raise self.fails


def test_a_confined_child_ends_with_its_sandbox(monkeypatch):
    box = Box()
    made = Confined.__new__(Confined)
    made.sandbox, made.code = box, None
    monkeypatch.setattr(confined.Child, "kill", lambda self: box.done.append("child killed"))
    monkeypatch.setattr(confined.Child, "close", lambda self, seconds=0.0: box.done.append(("child closed", seconds)))
    monkeypatch.setattr(Confined, "_reap", lambda self, seconds: box.done.append(("reaped", seconds)) or -6)
    assert made.usage() == (1.5, 4096) and made.waited() >= 0
    made.abort()
    assert box.done == [signal.SIGABRT] * 2 + [("reaped", confined.ABORT_SECONDS), "killed", "child killed"]
    assert made.code == -6
    box.done.clear()
    monkeypatch.setattr(Confined, "_reap", lambda self, seconds: (_ for _ in ()).throw(psutil.TimeoutExpired(seconds)))
    made.abort()  # it does not end by itself
    assert box.done == [signal.SIGABRT] * 2 + ["killed", "child killed"]
    box.done.clear()
    made.close(2.0)
    assert box.done == [("child closed", 2.0), "closed"]


@pytest.mark.parametrize("error", [NotConfined("no"), OSError("no")])
def test_a_machine_that_cannot_confine_does_not_run_it(monkeypatch, error):
    box = Box(error)
    monkeypatch.setattr(confined, "Sandbox", lambda device, readable: box)
    with pytest.raises(CannotRun, match="^untrusted: no$"):
        confined.confined(subject(), None, lambda connection: None)


@pytest.mark.parametrize(
    ("error", "told"), [(NotConfined("late"), CannotRun), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_child_that_was_not_confined_is_closed(monkeypatch, error, told):
    box, closed = Box(), []

    class Made(Confined):
        def __init__(self):
            self.process, self.sandbox = SimpleNamespace(pid=7), box

        def close(self, seconds=0.0):
            closed.append(1)

    monkeypatch.setattr(confined, "Sandbox", lambda device, readable: box)
    monkeypatch.setattr(confined, "fork", lambda body, confine, made: Made())
    shared = SimpleNamespace(descriptor=3)
    child = confined.confined(subject(abs), shared, None)
    assert child.sandbox is box and not closed
    box.started = lambda pid: (_ for _ in ()).throw(error)
    with pytest.raises(told):
        confined.confined(subject(abs), shared, None)
    assert closed == [1]


def test_what_goes_wrong_before_the_fork_closes_the_sandbox(monkeypatch):
    box = Box()
    monkeypatch.setattr(confined, "Sandbox", lambda device, readable: box)
    monkeypatch.setattr(confined, "_give", lambda sandbox, subject: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        confined.confined(subject(), None, None)
    assert box.done == ["closed"]
