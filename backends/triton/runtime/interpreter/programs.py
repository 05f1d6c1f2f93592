"""The programs of a grid: each runs to its end before the next one begins, but one that waits gives way.

A GPU runs programs at the same time, so a program can wait for another: for a lock, for a semaphore, for the partial
result of a neighbour. Here a program that reads the same memory again and again, and nothing changes there, stops
where it is, in a thread of its own, and others go on; one thread runs at any time. A program whose awaited memory has
changed goes on first, then one that has not begun. Where every program waits, and each is in the state in which it
waited before, none can ever go on: that is a `Deadlock`.

No limit of a GPU holds here: a program may wait for one that the GPU would not have begun yet.

A program can divide into partitions, which wait for one another (`divide`, `wait`). A partition is a `_Program` of the
same index. What its program's engines have begun (copies, `pending`) is finished as late as can be: when no partition
of it can go on. Where there is nothing left to finish either, that is a `Deadlock` at once.
"""

import collections
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone.backends.triton.runtime.interpreter.registry import Deadlock, place

Index = tuple[int, int, int]

POLLS = 4  # equal answers of an atomic or volatile read in a row, after which a program gives way
PLAIN_POLLS = 64  # of a plain load, where the program has not changed its state either
FRUITLESS = 500  # times that a program which counts its turns gives way in vain before it counts as stuck
SHOWN = 4  # programs that the message about a deadlock names
KEPT = 64  # places that a program is known to have read since it wrote


class _Read:
    """What a program has read at one place since it changed anything: the bytes, and how often in a row."""

    __slots__ = ("again", "bytes", "count", "name")

    def __init__(self, found: bytes, again: Callable[[], bytes], name: Callable[[], str]) -> None:
        self.bytes, self.again, self.name, self.count = found, again, name, 0


class Team:
    """What the partitions of a program have in common."""

    def __init__(self, first: "_Program") -> None:
        self.members = [first]
        self.pending: collections.deque[Callable[[], None]] = collections.deque()  # what engines have begun, in order
        self.state: Any = None  # of the language
        self.at_end: Callable[[], None] | None = None  # looks at what is left when the program has ended

    def finish_all(self) -> None:
        while self.finish_one():
            pass

    def finish_one(self) -> bool:
        """Let the engines finish what they began first; False where there is nothing."""
        if not self.pending:
            return False
        self.pending.popleft()()
        return True

    def stuck(self) -> bool:
        """Whether nothing but its own partitions could let a partition go on, and all of them wait."""
        return not self.pending and all(member.until is not None or member.ended for member in self.members)


class _Program:
    """A program that has begun, or one partition of it."""

    def __init__(self, index: Index, grid: "_Grid", body: Callable[[], Any] | None = None) -> None:
        self.index, self.grid = index, grid
        self.body = body  # of a partition that has not begun
        self.team: Team | None = None
        self.strand: Any = None  # of the language
        self.until: Callable[[], bool] | None = None  # what it waits for, unless for memory
        self.told: Callable[[], str] = str  # that, in words
        self.ended = False
        self.reads: dict[int, _Read] = {}  # by address
        self.state: Any = None  # in which it was when it gave way last
        self.fruitless = 0
        self.stuck = False  # it goes round in a circle until the memory it reads changes
        self.line = ""
        self.baton = threading.Lock()  # held by others while it waits
        self.baton.acquire()

    def progress(self) -> None:
        """It has changed memory, or has read something new."""
        if self.reads:
            self.reads.clear()
        self.state, self.fruitless, self.stuck = None, 0, False

    def sees_a_change(self) -> bool:
        if self.until is not None:
            return self.until()
        return any(read.again() != read.bytes for read in self.reads.values())

    def __str__(self) -> str:
        if self.until is not None:
            return f"program {self.index} waits at {self.line} {self.told()}"
        names = " and ".join(dict.fromkeys(read.name() for read in self.reads.values()))
        return f"program {self.index} waits at {self.line} for {names} to change"


_here: _Program | None = None  # the program that runs
prompt = False  # whether engines finish at once what they begin, and partitions begin before their program goes on


class _Stopped(BaseException):
    """Unwinds a program that waits while another one has failed."""


class _Grid:
    """The programs of one launch, and which of them goes on."""

    def __init__(self, order: Iterable[Index], body: Callable[[], Any]) -> None:
        self.order, self.body = iter(order), body
        self.waiting: list[_Program] = []
        self.threads: list[threading.Thread] = []
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """All programs, beginning in this thread. Raises what the first one that failed has raised."""
        self._work(next(self.order, None))
        if self.threads:
            try:
                self.done.wait()
            except BaseException as error:  # Ctrl-C
                self._stop(error)
            for thread in self.threads:
                thread.join(1.0)
        if self.error is not None:
            raise self.error

    def give_way(self, program: _Program) -> None:
        """Let others go on before `program` reads on. Raises Deadlock where nobody can."""
        chosen, fresh = self._next(program)
        if chosen is program:
            return
        self.waiting.append(program)
        if chosen is None:
            self._begin(fresh)
        else:
            self._resume(chosen)
        program.baton.acquire()
        if self.error is not None:
            raise _Stopped
        _enter(program)

    def _next(self, program: _Program | None) -> tuple[_Program | None, Index | None]:
        """Who goes on when `program` gives way, or has ended (None): a waiting program, or the index of one that
        begins now. Neither: all have ended."""
        while True:
            for waiting in self.waiting:
                if waiting.sees_a_change():
                    return waiting, None
            if program is not None and program.until is not None and program.until():
                return program, None
            teams = dict.fromkeys(one.team for one in (program, *self.waiting) if one is not None and one.team)
            if not any(team.finish_one() for team in teams):
                break
        for team in teams:
            if team.stuck():
                waits = "; ".join(str(member) for member in team.members if not member.ended)
                who = "all partitions wait: " if len(team.members) > 1 else ""
                raise Deadlock(f"deadlock: {who}{waits}")
        fresh = next(self.order, None)
        if fresh is not None:
            return None, fresh
        everyone = [one for one in (*self.waiting, program) if one is not None]
        able = [one for one in everyone if not one.stuck and one.until is None]
        if able:
            return able[0], None
        if stuck := [*([program] if program else []), *self.waiting]:
            told = "; ".join(map(str, stuck[:SHOWN]))
            more = f"; {len(stuck) - SHOWN} more programs wait" if len(stuck) > SHOWN else ""
            raise Deadlock(f"deadlock: {told}{more}; no other program can run")
        return None, None

    def _begin(self, index: Index | None) -> None:
        """Go on with a program that has not begun, in a new thread."""
        thread = threading.Thread(target=self._worker, args=(index,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _resume(self, program: _Program) -> None:
        self.waiting.remove(program)
        if program.body is None:
            program.baton.release()
            return
        thread = threading.Thread(target=self._partition, args=(program,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _partition(self, program: _Program) -> None:
        """A partition from its beginning to its end, then whoever can go on."""
        body, program.body, program.until = program.body, None, None
        try:
            if self.error is None and body is not None:
                _enter(program)
                with np.errstate(all="ignore"):
                    body()
                program.ended = True
                chosen, fresh = self._next(None)
                if chosen is None:
                    self._begin(fresh)
                else:
                    self._resume(chosen)
        except _Stopped:
            pass
        except BaseException as error:
            self._stop(error)

    def _worker(self, index: Index | None) -> None:
        with np.errstate(all="ignore"):
            self._work(index)

    def _work(self, index: Index | None) -> None:
        """Programs one after another from that of `index` on; then the turn of one that waits, or the end of all."""
        try:
            while index is not None and self.error is None:
                program = _Program(index, self)
                _enter(program)
                self.body()
                if program.team is not None and program.team.at_end is not None:
                    program.team.at_end()
                index = next(self.order, None)
            if self.error is None:
                chosen, _ = self._next(None)
                if chosen is None:
                    self.done.set()
                else:
                    self._resume(chosen)
        except _Stopped:
            pass
        except BaseException as error:
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        """The launch ends with `error`, and no other program goes on."""
        if self.error is None:
            self.error = error
        for program in self.waiting:
            if program.body is None:
                program.baton.release()
        self.waiting.clear()
        self.done.set()


def run(order: Iterable[Index], body: Callable[[], Any]) -> None:
    """Run `body()` once for each index of `order`, which it finds in the interpreter's builder."""
    global _here
    try:
        _Grid(order, body).run()
    finally:
        _here = None


def _enter(program: _Program) -> None:
    global _here
    _here = program
    stock.interpreter_builder.grid_idx = program.index


def team() -> Team:
    """That of the program that runs."""
    if _here is None:
        raise RuntimeError("no program runs")
    if _here.team is None:
        _here.team = Team(_here)
    return _here.team


def current() -> _Program | None:
    """The program, or the partition of one, that runs."""
    return _here


def wait(until: Callable[[], bool], told: Callable[[], str]) -> None:
    """Let others go on until a condition holds; `told` says in words for what ("for ..."). Raises Deadlock where that
    can never be."""
    program = _here
    if until() or program is None:
        return
    program.line = line()
    program.until, program.told = until, told
    program.grid.give_way(program)
    program.until = None


def divide(bodies: list[Callable[[], Any]], strands: list[Any]) -> list[_Program]:
    """The program that runs goes on beside one partition for each body. It waits for their ends by `wait`."""
    of = team()
    grid = of.members[0].grid
    made = [_Program(of.members[0].index, grid, body) for body in bodies]
    for each, strand in zip(made, strands, strict=True):
        each.team, each.strand, each.until = of, strand, _always
    of.members += made
    grid.waiting += reversed(made) if prompt else made
    if prompt:
        turn = iter((False,))
        wait(lambda: next(turn, True), str)
    return made


def divided() -> bool:
    """Whether the program that runs has more than one partition."""
    return _here is not None and _here.team is not None and sum(not each.ended for each in _here.team.members) > 1


def _always() -> bool:
    return True


def line() -> str:
    """The innermost line of the program that runs."""
    frame = sys._getframe()
    while (found := place(frame)) is None and frame.f_back is not None:
        frame = frame.f_back
    return found or "?"


def wrote() -> None:
    """The program that runs has changed memory."""
    if _here is not None and _here.reads:
        _here.progress()


def about_to_read(address: int, eager: bool) -> None:
    """The program that runs is about to read at `address`; where it has found the same there again and again, it
    gives way. `eager`: the read is an atomic or a volatile one."""
    program = _here
    read = program.reads.get(address) if program is not None else None
    if read is None or program is None or read.count < (POLLS if eager else PLAIN_POLLS):
        return
    state, program.line = _state()
    same = state == program.state
    program.state, program.fruitless = state, program.fruitless + 1
    for read in program.reads.values():
        read.count = 0
    if eager or same:
        program.stuck = same or program.fruitless >= FRUITLESS
        program.grid.give_way(program)


def has_read(address: int, found: bytes, again: Callable[[], bytes], name: Callable[[], str]) -> None:
    """The program that runs has read `found` at `address`. `again` reads what is there now, `name` names the place."""
    program = _here
    if program is None:
        return
    read = program.reads.get(address)
    if read is not None and read.bytes == found:
        read.count += 1
        return
    if read is not None or len(program.reads) >= KEPT:
        program.progress()
    program.reads[address] = _Read(found, again, name)


def _state() -> tuple[Any, str]:
    """Where the program that runs is, with the values of its variables, and its innermost line."""
    found, line, frame = [], "", sys._getframe()
    while frame is not None and frame.f_code is not _Grid._work.__code__:
        if (here := place(frame)) is not None:
            line = line or here
            values = tuple(map(_fingerprint, frame.f_locals.values()))
            found.append((frame.f_code, frame.f_lasti, values))
        frame = frame.f_back  # type: ignore[assignment]
    return found, line


def _fingerprint(value: Any) -> Any:
    """Equal for equal values of a kernel's variable."""
    if isinstance(value, tl.tensor):
        data = vars(value.handle).get("data")  # none while it is being computed
        return id(value.handle) if data is None else (data.shape, data.tobytes())
    if isinstance(value, tl.constexpr):
        return _fingerprint(value.value)
    if isinstance(value, tuple | list):
        return tuple(map(_fingerprint, value))
    return value if isinstance(value, int | float | str | None) else id(value)
