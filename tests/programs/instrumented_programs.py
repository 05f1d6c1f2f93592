"""Kernels under the interpreter's instruments; test_triton_instruments.py runs this file with TRITON_INTERPRET=1.

It prints what each program raised, None if it held.
"""

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from tests.programs import report
from touchstone.backends import triton as backend

backend.prepare("cpu")
from touchstone.backends.triton.runtime import interpreter  # noqa: E402

PROGRAMS: list[Callable[[], None]] = []


def program(function):
    PROGRAMS.append(function)
    return function


@triton.jit
def _number(out_ptr, count_ptr):
    x, y = tl.program_id(0), tl.program_id(1)
    place = tl.atomic_add(count_ptr, 1)
    tl.store(out_ptr + place, x * tl.num_programs(1) + y)


def _order(**kwargs) -> list[int]:
    out, count = torch.full((12,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with interpreter.schedule(**kwargs):
        _number[(4, 3)](out, count)
    return out.tolist()


@program
def schedules_run_every_program_once_in_their_order():
    assert _order(order="forward") == list(range(12))
    assert _order(order="reverse") == list(range(11, -1, -1))
    shuffled = _order(order="shuffled", seed=1)
    assert sorted(shuffled) == list(range(12)) and shuffled != list(range(12))
    assert shuffled == _order(order="shuffled", seed=1) != _order(order="shuffled", seed=2)


@program
def a_schedule_ends_with_its_context():
    with pytest.raises(ZeroDivisionError), interpreter.schedule("reverse"):
        raise ZeroDivisionError
    out, count = torch.full((12,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    _number[(4, 3)](out, count)
    assert out.tolist() == list(range(12))


@program
def an_unknown_order_is_refused():
    expected = "order: expected one of 'forward', 'reverse', 'shuffled', got 'sideways'"
    with pytest.raises(ValueError, match=expected), interpreter.schedule("sideways"):
        pass


@triton.jit
def _add(x_ptr, sum_ptr, HOW: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + i)
    if HOW == "atomic":
        tl.atomic_add(sum_ptr + i, x)
    elif HOW == "plain":
        tl.store(sum_ptr + i, tl.load(sum_ptr + i) + x)
    elif HOW == "first stores":
        if tl.program_id(0) == 0:
            tl.store(sum_ptr + i, x)
        else:
            tl.atomic_add(sum_ptr + i, x)
    elif HOW == "constant":
        tl.store(sum_ptr + i, i.to(tl.float32))
    else:
        tl.store(sum_ptr + i, x)


def _sums(how: str) -> torch.Tensor:
    x, sums = torch.arange(12.0).reshape(3, 4), torch.zeros(4)
    _add[(3,)](x, sums, HOW=how, BLOCK=4)
    return sums


def _race(how: str, *parts: str) -> None:
    with pytest.raises(interpreter.RaceCondition) as caught, interpreter.races():
        _sums(how)
    for part in ("_add: programs race for sum_ptr[0]: program (0, 0, 0) ", "and nothing orders the two", *parts):
        assert part in str(caught.value), caught.value


@program
def plain_updates_race_although_their_result_is_right():
    assert torch.equal(_sums("plain"), _sums("atomic"))
    _race("plain", "program (0, 0, 0) stores (line", "program (1, 0, 0) loads (line", "of instrumented_programs.py)")


@program
def a_store_races_with_atomics_and_with_another_value():
    _race("first stores", "stores", "program (1, 0, 0) updates atomically")
    _race("store", "program (1, 0, 0) stores")


@program
def atomics_and_equal_values_do_not_race():
    with interpreter.races():
        assert _sums("atomic").tolist() == [12.0, 15.0, 18.0, 21.0]
        assert _sums("constant").tolist() == [0.0, 1.0, 2.0, 3.0]


@program
def a_conflict_across_launches_is_none():
    y, sums = torch.zeros(3, 10), torch.zeros(4)
    with interpreter.races():
        _fill[(3, 3)](y, 10, BLOCK=4)
        _add[(3,)](y, sums, HOW="atomic", BLOCK=4)
    assert sums.tolist() == [3.0] * 4


@program
def races_end_with_their_context():
    with interpreter.races():
        pass
    _sums("plain")


@triton.jit
def _last_sums(
    x_ptr,
    part_ptr,
    count_ptr,
    sum_ptr,
    SEM: tl.constexpr,
    ATOMIC: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program stores a partial sum, or adds it to all of them; the one that counts last adds them."""
    program, part = tl.program_id(0), tl.arange(0, PARTS)
    x = tl.sum(tl.load(x_ptr + program * BLOCK + tl.arange(0, BLOCK)))
    if ATOMIC:
        tl.atomic_add(part_ptr + part, tl.where(part == program, x, 0.0), sem="relaxed")
    else:
        tl.store(part_ptr + program, x)
    if tl.atomic_add(count_ptr, 1, sem=SEM) == PARTS - 1:
        tl.store(sum_ptr, tl.sum(tl.load(part_ptr + part)))


def _counted(sem: str, atomic: bool = False) -> float:
    x, parts, count, total = torch.arange(16.0), torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    _last_sums[(4,)](x, parts, count, total, SEM=sem, ATOMIC=atomic, PARTS=4, BLOCK=4)
    return total.item()


@program
def a_counter_that_releases_and_acquires_orders_programs():
    for order in interpreter.instruments.ORDERS:
        for atomic in (False, True):
            with interpreter.races(), interpreter.schedule(order):
                assert _counted("acq_rel", atomic) == 120.0


@program
def a_counter_that_does_not_both_release_and_acquire_orders_nothing():
    for sem in ("relaxed", "acquire", "release"):
        with pytest.raises(interpreter.RaceCondition, match="race for part_ptr.0.: program"), interpreter.races():
            _counted(sem)


@triton.jit
def _late(y_ptr, flag_ptr, LATE: tl.constexpr, RELEASED: tl.constexpr, ACQUIRED: tl.constexpr):
    if tl.program_id(0) == 0:
        if not LATE:
            tl.store(y_ptr, 1.0)
        tl.atomic_add(flag_ptr + tl.arange(0, RELEASED), 1)
        if LATE:
            tl.store(y_ptr, 1.0)
    else:
        tl.atomic_add(flag_ptr + tl.arange(0, ACQUIRED), 1)
        tl.store(y_ptr + 1, tl.load(y_ptr))


@program
def what_follows_a_release_is_not_ordered_by_it_and_a_tile_of_atomics_orders_nothing():
    def run(late: bool, released: int, acquired: int) -> None:
        with interpreter.races():
            _late[(2,)](torch.zeros(2), torch.zeros(4, dtype=torch.int32), late, released, acquired)

    run(False, 1, 1)
    for arguments in [(True, 1, 1), (False, 4, 1), (False, 1, 4), (False, 4, 4)]:
        with pytest.raises(interpreter.RaceCondition):
            run(*arguments)


@triton.jit
def _locked(x_ptr, sum_ptr, lock_ptr, UNLOCK: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + i)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(sum_ptr + i, tl.load(sum_ptr + i) + x)
    if UNLOCK == "store":
        tl.store(lock_ptr, 0)
    else:
        tl.atomic_xchg(lock_ptr, 0, sem=UNLOCK)


@program
def a_lock_orders_programs():
    for unlock in ("release", "store"):
        x, sums, lock = torch.arange(12.0), torch.zeros(4), torch.zeros(1, dtype=torch.int32)
        with interpreter.races():
            _locked[(3,)](x, sums, lock, UNLOCK=unlock, BLOCK=4)
        assert sums.tolist() == [12.0, 15.0, 18.0, 21.0]


@triton.jit
def _flagged(x_ptr, y_ptr, flag_ptr, VOLATILE: tl.constexpr):
    if tl.program_id(0) == 0:
        tl.store(y_ptr, tl.load(x_ptr) + 1)
        tl.store(flag_ptr, 1)
    else:
        while tl.load(flag_ptr, volatile=VOLATILE) == 0:
            pass
        tl.store(y_ptr + 1, tl.load(y_ptr) + 1)


@program
def a_volatile_flag_orders_programs_and_a_plain_one_does_not():
    x, y, flag = torch.ones(1), torch.zeros(2), torch.zeros(1, dtype=torch.int32)
    with interpreter.races():
        _flagged[(2,)](x, y, flag, VOLATILE=True)
    assert y.tolist() == [2.0, 3.0]
    with pytest.raises(interpreter.RaceCondition), interpreter.races():
        _flagged[(2,)](x, y, flag, VOLATILE=False)


@triton.jit
def _reversed(x_ptr, rows, cols, x_row, x_col, BLOCK: tl.constexpr):
    """Overwrites x by its rows in reverse: each program reads what another writes."""
    col = tl.arange(0, BLOCK)
    here, there = tl.program_id(0), rows - 1 - tl.program_id(0)
    x = tl.load(x_ptr + here * x_row + col * x_col, mask=col < cols)
    tl.store(x_ptr + there * x_row + col * x_col, x, mask=col < cols)


@program
def a_load_races_with_a_later_store_and_the_element_is_named():
    x = torch.arange(30.0).reshape(6, 5)[::2, 1:4]
    with pytest.raises(interpreter.RaceCondition) as caught, interpreter.races():
        _reversed[(3,)](x, 3, 3, *x.stride(), BLOCK=4)
    assert "x_ptr[0, 0]: program (0, 0, 0) loads (line" in str(caught.value)
    assert "program (2, 0, 0) stores" in str(caught.value)


@triton.jit
def _mark(y_ptr, offset):
    tl.store(y_ptr + offset, tl.program_id(0).to(tl.float32))


@program
def an_element_is_named_by_its_index_where_strides_tell():
    for y, offset, name in [
        (torch.zeros(3, 4), 6, r"y_ptr\[1, 2\]"),
        (torch.zeros(3, 4).t(), 6, r"y_ptr\[2, 1\]"),
        (torch.zeros(3, 10)[:, ::3], 13, r"y_ptr\[1, 1\]"),
        (torch.zeros(3, 10)[:, ::3], 5, "y_ptr at element offset 5"),
    ]:
        with pytest.raises(interpreter.RaceCondition, match=f"race for {name}: "), interpreter.races():
            _mark[(2,)](y, offset)


@triton.jit
def _fill(y_ptr, cols, BLOCK: tl.constexpr):
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + tl.program_id(0) * cols + col, 1.0, mask=col < cols)


@program
def writers_name_program_and_line():
    y, other = torch.zeros(3, 10), torch.zeros(4)
    with interpreter.writers() as writers:
        _fill[(2, 3)](y, 10, BLOCK=4)
    line = _fill.fn.__code__.co_firstlineno
    assert writers.of(y[1, 5].data_ptr()) == f"program (1, 1, 0), line {line + 3} of instrumented_programs.py"
    assert writers.of(y[1, 9].data_ptr() + 3) == f"program (1, 2, 0), line {line + 3} of instrumented_programs.py"
    assert writers.of(y[2, 0].data_ptr()) is None  # not written
    assert writers.of(other.data_ptr()) is None
    with interpreter.writers() as writers:
        _fill[(2, 3)](y, 10, BLOCK=4)
        with interpreter.schedule("reverse"):
            sums = torch.zeros(4)
            _add[(3,)](torch.ones(12), sums, HOW="atomic", BLOCK=4)
    assert str(writers.of(sums[2].data_ptr())).startswith("program (0, 0, 0), line ")  # the last one


@program
def writers_see_nothing_outside_their_context():
    y = torch.zeros(3, 10)
    with interpreter.writers() as writers:
        pass
    _fill[(2, 3)](y, 10, BLOCK=4)
    assert writers.of(y.data_ptr()) is None


@program
def the_backend_offers_them_where_kernels_are_interpreted():
    assert backend.writers("cuda") is None and backend.instruments("cuda") == {}
    with backend.writers("cpu") as writers:
        y = _sums("store")
    assert writers.of(y.data_ptr()).startswith("program (2, 0, 0), line ")
    offered = backend.instruments("cpu")
    assert list(offered) == ["programs in reverse", "programs shuffled", "races"]
    with offered["programs in reverse"]():
        assert _sums("store").tolist() == [0.0, 1.0, 2.0, 3.0]
    for instrument in offered.values():
        with instrument():
            assert _sums("atomic").tolist() == [12.0, 15.0, 18.0, 21.0]
    with pytest.raises(interpreter.RaceCondition), offered["races"]():
        _sums("store")


if __name__ == "__main__":
    report(PROGRAMS)
