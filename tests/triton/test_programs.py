"""The programs of a grid: which of them goes on when one waits, what waiting is, and where none can ever go on."""

import threading

import numpy as np
import pytest

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone.backends.triton.runtime.interpreter import programs
from touchstone.backends.triton.runtime.interpreter.registry import Deadlock


def tensor(*values, dtype=np.float32):
    return tl.tensor(stock.TensorHandle(np.array(values, dtype), tl.float32), tl.float32)


def test_equal_values_of_variables_have_one_fingerprint_and_others_have_others():
    """Those of a loop that waits are new objects at every turn."""

    def values():
        one = tensor(1.0)
        return [
            *(one, tensor(2.0), tensor(1.0, 1.0), tensor(1.0, dtype=np.float16), (one, 1), (one, 2), [], ((), 1)),
            *(((one,), 1), 1, 2, 1.5, "1", None, tl.constexpr(7), tl.constexpr((one, 7))),
        ]

    first, second = (list(map(programs._fingerprint, values())) for _ in range(2))
    assert first == second and len(set(first)) == len(first)
    assert programs._fingerprint(tl.constexpr(7)) == programs._fingerprint(7)
    assert programs._fingerprint([1, [2]]) == programs._fingerprint((1, (2,)))
    known = object()
    assert programs._fingerprint(known) == programs._fingerprint(known) != programs._fingerprint(object())
    computed = tensor(1.0)
    del computed.handle.data  # as while it is being computed
    assert programs._fingerprint(computed) == programs._fingerprint(computed) != programs._fingerprint(tensor(1.0))


class Cell:
    """A number in memory, read and written as kernels do."""

    def __init__(self, value=0, address=100):
        self.value, self.address, self.asked = value, address, 0

    def read(self, eager=True):
        programs.about_to_read(self.address, eager)
        self.asked, found = self.asked + 1, self.value
        programs.has_read(self.address, bytes([found]), lambda: bytes([self.value]), lambda: f"cell {self.address}")
        return found

    def write(self, value):
        programs.wrote()
        self.value = value


def run(body, count=3):
    """What the programs said, in order; each is given its number and the function to say something by."""
    said = []
    order = [(number, 0, 0) for number in range(count)]
    programs.run(order, lambda: body(stock.interpreter_builder.grid_idx[0], said.append))
    return said


def test_programs_run_one_after_another_where_none_waits():
    assert run(lambda n, say: say((n, programs.current().index))) == [(n, (n, 0, 0)) for n in range(3)]
    assert programs.current() is None and run(lambda n, say: say(n), 0) == []

    def fails(n, say):
        say(n)
        if n == 1:
            raise ZeroDivisionError

    said = []
    with pytest.raises(ZeroDivisionError):
        programs.run([(n, 0, 0) for n in range(3)], lambda: fails(stock.interpreter_builder.grid_idx[0], said.append))
    assert said == [0, 1] and programs.current() is None


def test_a_program_that_waits_goes_on_once_what_it_reads_has_changed():
    cell = Cell()

    def body(n, say):
        say(f"{n} begins")
        while n == 0 and cell.read() != 2:
            pass
        cell.write(n)
        say(f"{n} ends")

    assert run(body) == ["0 begins", "1 begins", "1 ends", "2 begins", "2 ends", "0 ends"]
    assert 3 < cell.asked < 30 and threading.active_count() < 20


def test_those_that_wait_go_on_before_others_begin_and_in_the_order_of_their_waiting():
    cell = Cell()

    def body(n, say):
        say(f"{n} begins")
        while n < 3 and cell.read() == 0:
            pass
        if n == 3:
            cell.write(1)
        say(f"{n} ends")

    ends = ["3 ends", "0 ends", "1 ends", "2 ends", "4 begins", "4 ends"]
    found = run(body, 5)
    assert found[:4] == [f"{n} begins" for n in range(4)]
    assert found[4:] in (ends, [ends[0], *ends[4:], *ends[1:4]])


def test_programs_hand_a_turn_round():
    turn = Cell()

    def body(n, say):
        for lap in range(3):
            while turn.read() != lap * 3 + (2 - n):
                pass
            say((lap, n))
            turn.write(turn.value + 1)

    assert run(body) == [(lap, n) for lap in range(3) for n in (2, 1, 0)]


def test_where_all_wait_for_ever_each_is_named_with_what_it_waits_for():
    cells = [Cell(address=100 + n) for n in range(6)]

    def body(n, say):
        while cells[n].read() == cells[(n + 1) % 6].read() == 0:
            pass

    line = body.__code__.co_firstlineno + 1
    with pytest.raises(Deadlock) as caught:
        run(body, 6)
    said = str(caught.value)
    assert said.startswith("deadlock: program (5, 0, 0) waits at line ") and said.endswith("no other program can run")
    assert "for cell 105 and cell 100 to change; program (0, 0, 0) waits" in said and "; 2 more programs wait; " in said
    assert said.count("waits at line") == programs.SHOWN and f"line {line} of test_programs.py" not in said
    with pytest.raises(Deadlock) as caught:
        run(body, 1)
    assert "more programs" not in str(caught.value) and programs.current() is None


def test_a_program_that_counts_its_turns_is_stuck_too_but_not_soon():
    cell, turns = Cell(), []

    def body(n, say):
        while cell.read() == 0:
            turns.append(len(turns))
            count = len(turns)  # another state each time
        del count

    with pytest.raises(Deadlock):
        run(body, 1)
    assert programs.FRUITLESS < len(turns) < 20 * programs.FRUITLESS


def test_plain_reads_are_waiting_where_nothing_else_happens():
    cell = Cell()

    def waits(n, say):
        while n == 0 and cell.read(eager=False) == 0:
            pass
        cell.write(1)

    run(waits, 2)
    assert cell.asked > programs.PLAIN_POLLS
    cell, read = Cell(), []

    def sums(n, say):  # a loop over one element, which is no waiting
        for _ in range(20 * programs.PLAIN_POLLS):
            read.append(cell.read(eager=False) + len(read))
            count = len(read)
        say((n, count))

    assert run(sums, 2) == [(n, 20 * (n + 1) * programs.PLAIN_POLLS) for n in range(2)]


def test_what_a_program_writes_or_reads_anew_is_progress():
    flag, other = Cell(), Cell(address=200)

    def writes(n, say):
        for count in range(50):
            flag.read()
            other.write(count)
        say(n)

    assert run(writes, 2) == [0, 1]  # one after the other: none waited

    def counts(n, say):
        for _ in range(50):
            flag.value = flag.read() + 1
        say(n)

    assert run(counts, 2) == [0, 1]


def test_a_condition_is_waited_for_and_named():
    done = []

    def body(n, say):
        programs.wait(lambda: True, str)
        programs.wait(lambda: n != 0 or 2 in done, lambda: "for the third")
        done.append(n)

    run(body)
    assert done == [1, 2, 0]
    programs.wait(lambda: False, str)  # where no program runs, nobody waits
    with pytest.raises(
        Deadlock, match=r"^deadlock: program \(0, 0, 0\) waits at line \d+ of test_programs.py for godot; no"
    ):
        run(lambda n, say: programs.wait(lambda: False, lambda: "for godot"), 1)


def test_engines_finish_what_they_began_in_order_and_as_late_as_can_be():
    def body(n, say):
        team = programs.team()
        assert programs.team() is team and team.members == [programs.current()] and not programs.divided()
        arrived = []
        for each in range(4):
            team.pending.append(lambda each=each: (say(f"copy {each}"), arrived.append(each)))
        say("goes on")
        programs.wait(lambda: 1 in arrived, str)
        say("has two")
        assert arrived == [0, 1]
        team.at_end = lambda: (team.finish_all(), say(f"ends with {arrived}"))

    assert run(body, 1) == ["goes on", "copy 0", "copy 1", "has two", "copy 2", "copy 3", "ends with [0, 1, 2, 3]"]
    with pytest.raises(RuntimeError, match="^no program runs$"):
        programs.team()


@pytest.mark.parametrize("prompt", [False, True])
def test_partitions_run_beside_their_program(monkeypatch, prompt):
    monkeypatch.setattr(programs, "prompt", prompt)

    def body(n, say):
        handed = []

        def partition(name, after):
            def run():
                assert programs.current().strand == name and programs.current().index == (n, 0, 0)
                assert programs.divided()
                programs.wait(lambda: after is None or after in handed, lambda: f"for {after}")
                say(f"{name} runs")
                handed.append(name)

            return run

        made = programs.divide([partition("a", "b"), partition("b", "main"), partition("c", None)], ["a", "b", "c"])
        assert programs.divided() and len(programs.team().members) == 4
        say("main goes on")
        handed.append("main")
        programs.wait(lambda: all(each.ended for each in made), str)
        assert not programs.divided()
        say("main ends")

    first = ["c runs", "main goes on"] if prompt else ["main goes on"]
    found = run(body, 2)
    assert found == found[: len(found) // 2] * 2 and found[: len(first)] == first
    assert found[len(found) // 2 - 1] == "main ends" and sorted(found[: len(found) // 2]) == sorted(
        ["main goes on", "main ends", "a runs", "b runs", "c runs"]
    )
    assert found.index("b runs") < found.index("a runs")


def test_partitions_that_wait_for_one_another_are_named():
    def body(n, say):
        def partition():
            programs.wait(lambda: False, lambda: "for the program")

        made = programs.divide([partition, lambda: None], [None, None])
        programs.wait(lambda: all(each.ended for each in made), lambda: "for the partitions")

    with pytest.raises(Deadlock) as caught:
        run(body, 2)
    said = str(caught.value)
    assert said.startswith("deadlock: all partitions wait: program (0, 0, 0) waits at line ")
    assert "for the partitions; program (0, 0, 0) waits at" in said and said.endswith("for the program")


def test_an_error_in_a_partition_or_beside_one_that_waits_ends_the_launch():
    for where in range(3):

        def body(n, say, where=where):
            def partition():
                if where == 0:
                    raise ZeroDivisionError
                programs.wait(lambda: False, str)

            if n == 0:
                made = programs.divide([partition], [None])
                programs.wait(lambda: made[0].ended or where == 1, str)
                if where == 1:
                    raise ZeroDivisionError
            programs.wait(lambda: n == 1, str)
            raise ZeroDivisionError

        with pytest.raises((ZeroDivisionError, Deadlock) if where == 2 else ZeroDivisionError):
            run(body, 2)
        assert programs.current() is None


def test_no_more_places_are_kept_than_it_takes():
    def body(n, say):
        cells = [Cell(address=each) for each in range(3 * programs.KEPT)]
        for cell in cells:
            cell.read()
            assert len(programs.current().reads) <= programs.KEPT
        say(len(programs.current().reads))
        Cell(address=5000).write(1)
        assert not programs.current().reads

    assert 0 < run(body, 1)[0] <= programs.KEPT


def test_a_line_is_of_the_innermost_file_that_is_not_the_interpreters():
    assert programs.line().endswith("of test_programs.py")
