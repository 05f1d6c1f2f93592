"""An mbarrier as the interpreter has it: when a phase is complete, what is known then, and what it lacks."""

import pytest

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

from touchstone.backends.triton.runtime.interpreter import programs
from touchstone.backends.triton.runtime.interpreter.gluon.machine import Barrier, Strand
from touchstone.backends.triton.runtime.interpreter.gluon.shared import Event, joined
from touchstone.backends.triton.runtime.interpreter.registry import KernelError

NOTHING = {}, {}


def phases(barrier):
    """Which parities a wait would pass."""
    return [parity for parity in (0, 1) if barrier.passed(parity)]


def test_a_phase_is_complete_when_all_have_arrived():
    barrier = Barrier("b", 3)
    assert phases(barrier) == [1] and barrier.lacks() == "3 of 3 arrivals"  # the phase before the first
    barrier.arrive(NOTHING)
    assert phases(barrier) == [1] and barrier.lacks() == "2 of 3 arrivals"
    barrier.arrive(NOTHING, 2)
    assert phases(barrier) == [0] and barrier.lacks() == "3 of 3 arrivals"
    barrier.arrive(NOTHING, 3)
    assert phases(barrier) == [1]
    with pytest.raises(KernelError, match="4 arrivals at b, of which this phase takes 3 more"):
        barrier.arrive(NOTHING, 4)


def test_a_phase_waits_for_the_bytes_that_are_expected():
    barrier, event = Barrier("b", 1), Event()
    barrier.expect(96)
    barrier.arrive(NOTHING)
    assert phases(barrier) == [1] and barrier.lacks() == "96 bytes"
    barrier.receive(64, event)
    assert phases(barrier) == [1] and barrier.lacks() == "32 bytes"
    assert not event.known(barrier.released[0])
    barrier.receive(32, last := Event())
    assert phases(barrier) == [0]
    assert event.known(barrier.released[0]) and last.known(barrier.released[0])


def test_bytes_may_come_before_they_are_expected():
    barrier = Barrier("b", 2)
    barrier.receive(64, event := Event())
    barrier.arrive(NOTHING)
    assert barrier.lacks() == "1 of 2 arrivals and an expectation of 64 bytes that have come"
    barrier.expect(64)
    barrier.arrive(NOTHING)
    assert phases(barrier) == [0] and event.known(barrier.released[0])


def test_who_waits_knows_what_those_knew_who_arrived():
    barrier = Barrier("b", 2)
    barrier.arrive(({"one": 3, "two": 1}, {"one": 2}))
    assert barrier.released == NOTHING
    barrier.arrive(({"one": 1, "two": 5}, {"two": 4}))
    assert barrier.released == ({"one": 3, "two": 5, barrier: 1}, {"one": 2, "two": 4})
    barrier.arrive(({"one": 9}, {}), 2)
    assert barrier.released == ({"one": 9, "two": 5, barrier: 2}, {"one": 2, "two": 4})


def test_what_an_mbarrier_can_count():
    for count in (1, 2**20 - 1):
        assert Barrier("b", count).left == count
    for count in (0, -1, 2**20):
        with pytest.raises(KernelError, match=f"count has to be 1 to 1048575, not {count}"):
            Barrier("b", count)
    barrier = Barrier("b", 1)
    barrier.expect(2**20 - 1)
    with pytest.raises(KernelError, match="b counts 1048576 bytes; an mbarrier counts up to 1048575"):
        barrier.expect(1)
    barrier = Barrier("b", 1)
    barrier.receive(2**20 - 1, Event())
    with pytest.raises(KernelError, match="b counts -1048576 bytes"):
        barrier.receive(1, Event())


def test_what_a_partition_does_later_is_not_known_to_those_that_it_told():
    one = Strand(programs.Team(None), 0, 4)
    other = Strand(one.team, 1, 4, one)
    assert one.event.known(other.clock) and not other.event.known(one.clock)
    before = one.event
    known = one.release()
    assert before.known(known[0]) and not one.event.known(known[0]) and one.event.known(one.clock)
    other.acquire(known)
    assert before.known(other.clock) and not one.event.known(other.clock)
    copy = one.began("copy"), one.began("copy")
    assert not copy[0].known(one.clock)
    one.finished("copy", 1)
    assert copy[0].known(one.clock) and not copy[1].known(one.clock)
    one.finished("copy", 0)
    assert copy[1].known(one.clock)


def test_clocks_are_joined_by_the_later_of_each():
    clock = {"a": 1, "b": 5}
    joined(clock, {"a": 3, "b": 2, "c": 1})
    assert clock == {"a": 3, "b": 5, "c": 1}
    assert not Event().known({None: 99})
