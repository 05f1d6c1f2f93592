"""The watch over a child, by children that use time and memory as a script has it."""

from types import SimpleNamespace

import psutil
import pytest

from tests.fixed import changeable
from touchstone.conformance.isolation import limits
from touchstone.conformance.isolation.limits import Limits, Watch
from touchstone.conformance.isolation.processes import Death
from touchstone.conformance.spec.checks import Check

MIB = 1 << 20


class Child:
    """Each time it is looked at, one second later, it has used what the script's next entry says: processor time,
    memory and seconds of waiting for a processor; "answers" at the end, or "gone"."""

    def __init__(self, clock, *script):
        self.clock, self.script = clock, list(script)
        self.now, self.ended = (0.0, 0, 0.0), []
        self.connection = self.process = self

    def poll(self, seconds):
        self.clock[0] += 1
        if not self.script or self.script[0] == "gone":
            return not self.script
        self.now = self.script.pop(0)
        return self.now == "answers"

    def usage(self):
        return self.now[:2]

    def waited(self):
        return self.now[2]

    def is_gone(self):
        return bool(self.script) and self.script[0] == "gone"

    def death(self):
        return Death(Check.CRASH, "gone")

    def place(self):
        return " at mine.py:3, in fn"

    def kill(self):
        self.ended.append("killed")

    def abort(self):
        self.ended.append("aborted")

    def children(self, recursive):
        return []


@pytest.fixture
def watched(monkeypatch):
    """What comes of waiting for a child, and how it was ended."""
    clock = [100.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(limits, "available_memory", lambda: 1000 * MIB)

    def of(*script, allowed=None, before=0.0, idle=None, helper=None):
        child = Child(clock, *script)
        if helper is not None:
            child.children = helper
        watch = Watch(child)
        death = watch.wait(allowed or Limits(seconds=10, bytes=100 * MIB), idle, before)
        return death, child.ended

    return of


def at_work(seconds, memory=0):
    return [(float(n), memory, 0.0) for n in range(seconds)]


def test_an_answer_in_time_is_no_death(watched):
    assert watched("answers") == (None, [])
    assert watched(*at_work(5), "answers") == (None, [])


def test_a_child_that_is_gone(watched):
    assert watched(*at_work(2), "gone") == (Death(Check.CRASH, "gone"), [])


@pytest.mark.parametrize(("megabytes", "dies"), [(100, False), (101, True)])
def test_memory_beyond_the_limit(watched, megabytes, dies):
    death, ended = watched(*at_work(2), (3.0, megabytes * MIB, 0.0), "answers")
    assert (death is not None) == dies and ended == (["killed"] if dies else [])
    if dies:
        assert death == Death(Check.MEMORY, "resident memory grew by 0.10 GiB; the limit is 0.10 GiB")


def test_no_more_memory_than_half_of_what_is_free(watched):
    death, _ = watched((1.0, 0, 0.0), (2.0, 501 * MIB, 0.0), "answers", allowed=Limits(bytes=900 * MIB))
    assert death == Death(Check.MEMORY, "resident memory grew by 0.49 GiB; the limit is 0.49 GiB")
    assert watched((1.0, 0, 0.0), (2.0, 499 * MIB, 0.0), "answers", allowed=Limits(bytes=900 * MIB))[0] is None


def test_time_beyond_the_limit(watched):
    death, ended = watched(*at_work(30))
    assert death == Death(Check.HANG, "no answer after 11 s at mine.py:3, in fn") and ended == ["aborted"]
    death, _ = watched(*at_work(30), before=8.0)
    assert death.message.startswith("no answer after 10 s") or death.message.startswith("no answer after 11 s")


def test_who_waits_for_a_processor_gets_more_time(watched):
    """Half of the time at work, and half kept from it."""
    slow = [(n / 2, 0, n / 2) for n in range(60)]
    death, _ = watched(*slow)
    assert int(death.message.split()[3]) in range(20, 23)
    starved = [(n / 20, 0, 0.9 * n) for n in range(60)]
    assert int(watched(*starved)[0].message.split()[3]) in range(40, 43)


def test_without_processor_time_a_fork_is_suspected(watched):
    stuck = [*at_work(3), *[(2.0, 0, 0.0)] * 40]
    death, ended = watched(*stuck, idle=4.0, allowed=Limits(seconds=1000))
    assert death == Death(Check.HANG, "no answer and no processor time for 4 s at mine.py:3, in fn", early=True)
    assert ended == ["aborted"]
    assert watched(*at_work(20), "answers", idle=4.0, allowed=Limits(seconds=1000))[0] is None


def test_a_compiler_that_works_for_it_is_no_idleness(watched):
    """As long as that takes processor time itself."""
    times = iter([1.0, 2.0, 2.0, 2.0])

    def compiler(recursive):
        used = next(times)
        return [SimpleNamespace(pid=7, cpu_times=lambda: SimpleNamespace(user=used / 2, system=used / 2))]

    stuck = [(0.0, 0, 0.0)] * 40
    death, _ = watched(*stuck, idle=4.0, allowed=Limits(seconds=1000), helper=compiler)
    assert death.early and next(times) == 2.0  # asked three times: it worked, it worked, it did not


def test_a_helper_that_ends_meanwhile(watched):
    def gone():
        raise psutil.NoSuchProcess(7)

    def helper(recursive):
        return [SimpleNamespace(pid=7, cpu_times=gone)]

    used = iter([1.0, 2.0, 2.0])

    def with_another(recursive):
        return [*helper(True), SimpleNamespace(pid=8, cpu_times=lambda: SimpleNamespace(user=next(used), system=0.0))]

    for children in (helper, lambda recursive: gone(), with_another):
        stuck = [(0.0, 0, 0.0)] * 40
        assert watched(*stuck, idle=4.0, allowed=Limits(seconds=1000), helper=children)[0].early
    assert list(used) == []  # the other one was asked for until it worked no more


def test_memory_of_a_control_group(monkeypatch, tmp_path):
    monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr(limits, "Path", lambda name: tmp_path)
    assert limits.available_memory() == 1000  # there is none
    files = {"memory.max": "900", "memory.current": "500", "memory.stat": "anon 3\ninactive_file 100\nfile 7\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert limits.available_memory() == 500  # the limit, less what is used, but what can be dropped
    (tmp_path / "memory.stat").write_text("anon 3\n")
    assert limits.available_memory() == 400
    (tmp_path / "memory.current").write_text("1200")
    assert limits.available_memory() == 0
    (tmp_path / "memory.max").write_text("max")
    assert limits.available_memory() == 1000


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Limits) == []
