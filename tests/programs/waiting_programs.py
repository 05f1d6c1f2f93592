"""Kernels whose programs wait for each other; tests/triton/test_waiting.py runs this file with TRITON_INTERPRET=1.

It prints what each program raised, None if it held.
"""

import signal
import threading
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
ORDERS = [{"order": "forward"}, {"order": "reverse"}, *({"order": "shuffled", "seed": seed} for seed in range(2))]


def program(function):
    PROGRAMS.append(function)
    return function


def under_every_schedule(call: Callable[[], None]) -> None:
    for order in ORDERS:
        with interpreter.schedule(**order):
            call()
    with interpreter.races():
        call()


@triton.jit
def _locked_sum(x_ptr, sum_ptr, lock_ptr, count_ptr, BLOCK: tl.constexpr):
    group, i = tl.program_id(0) % 3, tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + i)
    while tl.atomic_cas(lock_ptr + group, 0, 1) == 1:
        pass
    count = tl.load(count_ptr + group)
    if count == 0:
        tl.atomic_xchg(count_ptr + group, 1)
    else:
        x += tl.load(sum_ptr + group * BLOCK + i)
    tl.store(sum_ptr + group * BLOCK + i, x)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr + group, 0)


@program
def a_lock_as_in_the_layer_norm_tutorial():
    x = torch.arange(12 * 8.0).view(12, 8)

    def call():
        total, locks = torch.empty(3, 8), torch.zeros(6, dtype=torch.int32)
        _locked_sum[(12,)](x, total, locks, locks[3:], BLOCK=8)
        assert torch.equal(total, x.view(4, 3, 8).sum(0))

    under_every_schedule(call)


@triton.jit
def _serial_splits(a_ptr, c_ptr, turn_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    tile, split, i = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    part = tl.zeros([BLOCK], tl.float32)
    for k in range(K):
        part += tl.load(a_ptr + ((tile * tl.num_programs(1) + split) * K + k) * BLOCK + i)
    while tl.atomic_add(turn_ptr + tile, 0, sem="acquire") != split:
        pass
    if split > 0:
        part = part * 0.5 + tl.load(c_ptr + tile * BLOCK + i)
    tl.store(c_ptr + tile * BLOCK + i, part)
    tl.atomic_add(turn_ptr + tile, 1, sem="release")


@program
def splits_that_add_in_turn():
    a = torch.arange(2 * 5 * 3 * 4.0).view(2, 5, 3, 4)

    def call():
        c, turns = torch.empty(2, 4), torch.zeros(2, dtype=torch.int32)
        _serial_splits[(2, 5)](a, c, turns, K=3, BLOCK=4)
        parts = a.sum(2)
        assert torch.equal(c, parts[:, 0] + 0.5 * parts[:, 1:].sum(1))

    under_every_schedule(call)


@triton.jit
def _look_back(x_ptr, y_ptr, prefix_ptr, flag_ptr, BLOCK: tl.constexpr):
    block, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.cumsum(tl.load(x_ptr + block * BLOCK + i), 0)
    before = 0.0
    if block > 0:
        flag = tl.load(flag_ptr + block - 1, volatile=True)
        while flag == 0:
            flag = tl.load(flag_ptr + block - 1, volatile=True)
        before = tl.load(prefix_ptr + block - 1)
    tl.store(prefix_ptr + block, before + tl.max(x, 0))
    tl.store(flag_ptr + block, 1)
    tl.store(y_ptr + block * BLOCK + i, x + before)


@program
def a_scan_that_looks_back_at_its_neighbour():
    x = torch.arange(10 * 4.0)

    def call():
        y, prefix, flags = torch.empty(40), torch.empty(10), torch.zeros(10, dtype=torch.int32)
        _look_back[(10,)](x, y, prefix, flags, BLOCK=4)
        assert torch.equal(y, x.cumsum(0))

    under_every_schedule(call)


@triton.jit
def _window(flag_ptr, out_ptr, N: tl.constexpr):
    block, i = tl.program_id(0), tl.arange(0, N)
    ready = tl.sum(tl.load(flag_ptr + i, mask=i < block, other=1, volatile=True), 0)
    while ready < N:
        ready = tl.sum(tl.load(flag_ptr + i, mask=i < block, other=1, volatile=True), 0)
    tl.store(out_ptr + block, tl.sum(tl.where(i < block, tl.load(out_ptr + i, mask=i < block, other=0), 0), 0) + 1)
    tl.store(flag_ptr + block, 1)


@program
def a_window_of_flags():
    for order in ORDERS:
        flags, out = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
        with interpreter.schedule(**order):
            _window[(8,)](flags, out, N=8)
        assert out.tolist() == [2**n for n in range(8)]


@triton.jit
def _barrier(count_ptr, times):
    tl.atomic_add(count_ptr, 1)
    while tl.atomic_add(count_ptr, 0) < times * tl.num_programs(0):
        pass


@triton.jit
def _rotate(x_ptr, y_ptr, count_ptr, STEPS: tl.constexpr):
    me, n = tl.program_id(0), tl.num_programs(0)
    for step in range(STEPS):
        tl.store(y_ptr + me, tl.load(x_ptr + (me + 1) % n) + 1)
        _barrier(count_ptr, 2 * step + 1)
        tl.store(x_ptr + me, tl.load(y_ptr + me))
        _barrier(count_ptr, 2 * step + 2)


@program
def a_barrier_of_the_whole_grid():
    def call():
        x, y, count = torch.arange(7.0), torch.empty(7), torch.zeros(1, dtype=torch.int32)
        _rotate[(7,)](x, y, count, STEPS=3)
        assert torch.equal(x, torch.arange(7.0).roll(-3) + 3)

    under_every_schedule(call)


@triton.jit
def _chain(flag_ptr, out_ptr, VOLATILE: tl.constexpr, COUNTED: tl.constexpr):
    me, n = tl.program_id(0), tl.num_programs(0)
    turns = 0
    if me < n - 1:
        while tl.load(flag_ptr + me + 1, volatile=VOLATILE) == 0:
            if COUNTED:
                turns += 1
    tl.store(out_ptr + me, tl.load(out_ptr + me + 1) + 1)
    tl.store(flag_ptr + me, 1)


@program
def programs_that_wait_for_a_later_one():
    for volatile in (True, False):
        flags, out = torch.zeros(80, dtype=torch.int32), torch.zeros(81, dtype=torch.int32)
        _chain[(80,)](flags, out, volatile, COUNTED=False)
        assert out.tolist() == list(range(80, -1, -1))


@program
def a_program_that_counts_while_it_waits():
    for order in ORDERS:
        flags, out = torch.zeros(6, dtype=torch.int32), torch.zeros(7, dtype=torch.int32)
        with interpreter.schedule(**order):
            _chain[(6,)](flags, out, VOLATILE=True, COUNTED=True)
        assert out.tolist() == [6, 5, 4, 3, 2, 1, 0]


@triton.jit
def _forever(flag_ptr, COUNTED: tl.constexpr):
    turns = 0
    if tl.program_id(0) != 1:
        while tl.atomic_cas(flag_ptr + tl.program_id(0), 0, 0) == 0:
            if COUNTED:
                turns += 1


@program
def a_deadlock_names_who_waits_where_and_for_what():
    for counted in (False, True):
        with pytest.raises(interpreter.Deadlock) as raised:
            _forever[(3,)](torch.zeros(3, dtype=torch.int32), counted)
        text = str(raised.value)
        assert text.startswith("_forever (waiting_programs.py:"), text
        for number in (0, 2):
            assert f"program ({number}, 0, 0) waits at line " in text, text
            assert f"of waiting_programs.py for flag_ptr[{number}] to change" in text, text
        assert "program (1, 0, 0) waits" not in text and text.endswith("no other program can run"), text


@triton.jit
def _crosswise(lock_ptr, count_ptr):
    me = tl.program_id(0)
    while tl.atomic_cas(lock_ptr + me, 0, 1) == 1:
        pass
    _barrier(count_ptr, 1)
    while tl.atomic_cas(lock_ptr + 1 - me, 0, 1) == 1:
        pass


@program
def two_locks_taken_crosswise():
    for order in ORDERS:
        with pytest.raises(interpreter.Deadlock), interpreter.schedule(**order):
            _crosswise[(2,)](torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))


@triton.jit
def _poll_often(x_ptr, out_ptr, n):
    total = 0.0
    for _ in range(n):
        total += tl.load(x_ptr)
    turns = 0
    while (tl.load(x_ptr, volatile=True) < 2.0) & (turns < n):
        turns += 1
    tl.store(out_ptr + tl.program_id(0), total + turns)


@program
def reading_one_place_many_times_is_no_deadlock():
    out = torch.empty(3)
    _poll_often[(3,)](torch.ones(1), out, 300)
    assert out.tolist() == [600.0] * 3


@triton.jit
def _looks_and_writes(flag_ptr, x_ptr, ticket_ptr, n, BY: tl.constexpr):
    begin = tl.atomic_add(ticket_ptr, 1)
    for turn in range(n):
        tl.load(flag_ptr, volatile=True)
        if BY == "store":
            tl.store(x_ptr + tl.program_id(0), turn)
        elif BY == "atomic":
            tl.atomic_add(x_ptr + tl.program_id(0), 1)
        else:
            tl.atomic_add(x_ptr + tl.program_id(0) + 3 * tl.arange(0, 2), 1)
    end = tl.atomic_add(ticket_ptr, 1)
    tl.store(x_ptr + tl.program_id(0), end - begin)


@program
def a_program_that_writes_between_its_reads_does_not_wait():
    for by in ("store", "atomic", "atomics"):
        apart, flag, ticket = (torch.zeros(n, dtype=torch.int32) for n in (6, 1, 1))
        _looks_and_writes[(3,)](flag, apart, ticket, 20, by)
        assert apart[:3].tolist() == [1, 1, 1]  # no other program went on in between


@triton.jit
def _fails(flag_ptr, x_ptr):
    if tl.program_id(0) < 2:
        while tl.load(flag_ptr, volatile=True) == 0:
            pass
    elif tl.program_id(0) == 2:
        tl.load(x_ptr + 5)
    tl.store(flag_ptr, 1)


@program
def an_error_of_one_program_ends_those_that_wait():
    with pytest.raises(interpreter.OutOfBounds, match=r"^_fails \(.*\), program \(2, 0, 0\): load"):
        _fails[(4,)](torch.zeros(1, dtype=torch.int32), torch.zeros(5))
    flag = torch.zeros(1, dtype=torch.int32)
    _fails[(4,)](flag, torch.zeros(6))  # and the next launch is not disturbed
    assert flag.item() == 1


@triton.jit
def _hands_over(flag_ptr):
    me = tl.program_id(0)
    if me == 1:
        tl.store(flag_ptr, 1)
    while tl.load(flag_ptr + me, volatile=True) == 0:
        pass
    tl.store(flag_ptr + 1, 1)
    while (tl.load(flag_ptr + 2, volatile=True) == 0) & (me == 1):
        pass


@program
def ctrl_c_ends_a_launch_whose_programs_wait():
    """Where the program that began first waits, and where it has ended and its thread waits for the others."""
    asked = interpreter.programs.about_to_read
    for kernel, last in ((_fails, 0), (_hands_over, 2)):
        flags = torch.zeros(3, dtype=torch.int32)

        def reading(address: int, eager: bool, at: int = flags[last].data_ptr()) -> None:
            if address == at and threading.current_thread() is not threading.main_thread():
                interpreter.programs.about_to_read = asked  # once
                threading.Event().wait(0.1)  # until the first thread waits
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                threading.Event().wait(0.1)
            asked(address, eager)

        interpreter.programs.about_to_read = reading
        try:
            with pytest.raises(KeyboardInterrupt):
                kernel[(2,)](flags, *([flags] if kernel is _fails else []))
        finally:
            interpreter.programs.about_to_read = asked


if __name__ == "__main__":
    report(PROGRAMS)
