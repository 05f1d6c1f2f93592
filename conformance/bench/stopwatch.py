"""The judge's side of a timed process: it holds the clock, and while the clock does not run the process stands still.

The process is stopped while inputs are put into its memory, and the clock starts as it goes on. When it says that the
calls are made it is stopped again; the clock ends once every thread of it stands. Its outputs are then read where they
lie. So nothing can be worked out before the clock starts or after it ended, and no reading of a clock is believed that
the process could have touched.
"""

import contextlib
import itertools
import os
import pickle
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from touchstone.conformance.bench.calls import WORD, Prepare
from touchstone.conformance.bench.inputs import same_bits
from touchstone.conformance.isolation import wire
from touchstone.conformance.isolation.confined import Confined
from touchstone.conformance.isolation.limits import Limits, Watch, available_memory
from touchstone.conformance.isolation.processes import Child, Death, below
from touchstone.conformance.isolation.remote import received, wait_no_longer_than
from touchstone.conformance.isolation.sandbox import kernel as linux
from touchstone.conformance.isolation.shared import WINDOW, Shared, rounded
from touchstone.conformance.spec.checks import Check

STOP_SECONDS = 10.0  # for a process to stand still
RESTING_SECONDS = 5e-5  # of processor time that a process may seem to take while it stands still
EXIT_SECONDS = 0.2  # for a thread that has returned to be gone
PAGE = 1 << 16
PIECE = 1 << 28  # bytes that are read at once
_now = time.perf_counter

Values = Mapping[str, torch.Tensor | None]


class NotTimed(Exception):
    """The process ended, or was ended; the message says why."""


class Cheat(Exception):
    """What a timed process did that no honest one does."""


@dataclass(frozen=True)
class Taken:
    """What some calls took: seconds by the judge's clock, and of processor time; and what came of them."""

    wall: float
    processor: float
    answer: dict[str, Any]


class Stopwatch:
    """A process that makes calls, its memory, and the clock.

    Raises NotTimed once the process is gone or went beyond its limits, and Cheat.
    """

    def __init__(self, child: Child, shared: Shared, watch: Watch, limits: Limits) -> None:
        self.child, self.shared, self.watch, self.limits = child, shared, watch, limits
        self.pid, self._spared = _of_kernel(child)
        self.changed: list[str] = []  # hooks and settings that its calls left changed, as it says itself
        self.wrong: str | None = None  # what is wrong with outputs beside their values, likewise
        self.emulated = False
        self._threads = 1 << 30  # of the process before its first timed call
        self._alone = False
        self._rested = 0.0  # processor seconds when it was last seen to stand still
        self._views: list[dict[str, torch.Tensor]] = []
        self._seeds: Sequence[int] = ()
        self._most = min(limits.bytes, available_memory() // 2)
        self._allowed = self._usage() + self._most
        wait_no_longer_than(child.connection.fileno())
        self._memory = -1
        with contextlib.suppress(OSError):
            self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        self._views.clear()
        if self._memory >= 0:
            os.close(self._memory)
        self.child.close()
        self.shared.close()

    def lay_out(self, example: Values, params: Sequence[Mapping[str, Any]], seeds: Sequence[int] = ()) -> None:
        """Divide the memory among calls with these parameters and operands like those of `example`. `seeds` are told
        when the clock starts, and LATER stands for them in the parameters."""
        self._seeds = seeds
        slots, told = _laid_out(example, len(params))
        self._views = [
            {n: at.over(self.shared.bytes(slots[at.slot].offset, slots[at.slot].size)) for n, at in each.items()}
            for each in told
        ]
        absent = {n: None for n, tensor in example.items() if tensor is None}
        arguments = tuple({**{n: (absent | a)[n] for n in example}, **p} for a, p in zip(told, params, strict=True))
        self._layout = tuple(slots), arguments

    def prepare(self, name: str, alone: bool = False) -> dict[str, Any]:
        """Have calls of `name` made ready, on the memory that was laid out; `alone`: the process can start no other
        from then on, where the machine has a means."""
        if not alone or self._alone or not linux.can_stay_alone():
            return self._prepared(Prepare(secrets.randbits(63), name, *self._layout))
        before = self._filters()
        answer = self._prepared(Prepare(secrets.randbits(63), name, *self._layout, alone=True))
        if self._filters() <= before:
            raise Cheat("its process does not give up starting others")
        self._alone = True
        return answer

    def ask(self) -> None:
        """Have it say what its last calls left changed. A thread that timed calls left running is a Cheat."""
        self._prepared(Prepare(secrets.randbits(63), "", (), ()))
        until = time.monotonic() + EXIT_SECONDS
        while (left := self._traces()[0] > self._threads) and time.monotonic() < until:
            time.sleep(0.001)
        if left:
            raise Cheat("a timed call left a thread running")

    def put(self, values: Sequence[Values]) -> None:
        """Write the operands of the calls; the process is stopped for it."""
        self._stop()
        self._rest()
        for views, each in zip(self._views, values, strict=True):
            for name, view in views.items():
                view.copy_(_there(each[name]))

    def time(self, alone: bool = False) -> Taken:
        """Have the prepared calls made; the process is left stopped. With `alone`, starting a thread that stays, or a
        process, is a Cheat."""
        self._stop()
        self._resting()
        nonce, before = secrets.randbits(63), self._traces()
        if alone:
            self._threads = min(self._threads, before[0])
        self.child.connection.send_bytes(b"".join(each.to_bytes(WORD, "little") for each in (nonce, *self._seeds)))
        processor, begin = self._processor_seconds(), _now()
        self._signal(signal.SIGCONT)
        self._wait()
        self._stop()
        wall, processor = _now() - begin, self._processor_seconds() - processor
        self._rest()
        answer = self._received(nonce)
        if alone and (self._traces()[1] > before[1] or self.others()):
            raise Cheat("a timed call started a process")
        return Taken(wall, processor, answer)

    def outputs(self, addresses: Any, sizes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[list[Any]]:
        """Copies of the outputs at the addresses that an answer names, by call; None where it names none.

        Raises Cheat where they lie in memory that others can write, or over one another.
        """
        count = len(self._views)
        if self._memory < 0:
            raise NotTimed("the memory of its process cannot be read from here")
        rows = addresses if isinstance(addresses, list) and len(addresses) == count else None
        if rows is None or not all(isinstance(row, list) and len(row) <= wire.LISTED for row in rows):
            raise self._forged("outputs that are not told as agreed on")
        rows = [[*row, *[0] * len(sizes)][: len(sizes)] for row in rows]  # what is too much or too few is told next
        if not all(type(at) is int and 0 <= at < 1 << 56 for row in rows for at in row):
            raise self._forged("an output at an impossible address")
        found, taken = [], []
        private = self._private()
        for row in rows:
            found.append([self._copy(at, *about) if at else None for at, about in zip(row, sizes, strict=True)])
            extents = [(at, at + t.nbytes) for at, t in zip(row, found[-1], strict=True) if t is not None and t.nbytes]
            for begin, end in extents:
                if not any(low <= begin and end <= high for low, high in private):
                    raise Cheat("an output lies in memory that is not its process's alone")
            taken += extents
        taken.sort()
        if any(end > begin for (_, end), (begin, _) in itertools.pairwise(taken)):
            raise Cheat("an output lies in the memory of another call's output: not computed into memory of its own")
        self._resting()
        return found

    def altered(self, values: Sequence[Values]) -> list[str]:
        """The operands that no longer hold what was put there."""
        return [
            name
            for views, each in zip(self._views, values, strict=True)
            for name, view in views.items()
            if not same_bits(view, _there(each[name]))
        ]

    def others(self) -> list[int]:
        """Processes beside its own that it has started and that are there still."""
        return [pid for pid in self._processes() if pid != self.pid]

    # the process

    def _prepared(self, request: Prepare) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        try:
            self.child.connection.send_bytes(pickle.dumps(request))
        except OSError:
            raise self._dead() from None
        self._wait()
        if self._usage() > self._allowed:
            self.child.kill()
            raise NotTimed(f"its memory grew by more than {self._most / 2**30:.2f} GiB")
        answer = self._received(request.nonce)
        changed, wrong = answer.get("changed"), answer.get("wrong")
        if not isinstance(changed, list) or not isinstance(wrong, str | None):
            raise self._forged("a reply that is not as agreed on")
        self.wrong = self.wrong or (wrong[: wire.SAID] if wrong else None)
        self.changed += [str(each)[: wire.SAID] for each in changed[: wire.LISTED]]
        self.emulated = answer.get("emulated") is True
        return answer

    def _wait(self) -> None:
        try:
            death = self.watch.wait(self.limits)
        except OSError:
            raise self._dead() from None
        if death is not None:
            raise self._started() or NotTimed(death.message)

    def _received(self, nonce: int) -> dict[str, Any]:
        try:
            return received(self.child, self.shared, nonce)
        except (EOFError, OSError):
            raise self._dead() from None
        except wire.Malformed as error:
            raise self._forged(str(error)) from None

    def _dead(self) -> NotTimed | Cheat:
        self._signal(signal.SIGCONT)
        death: Death = self.child.death()
        return self._started() or NotTimed(death.message if death.check is Check.CRASH else str(death.check))

    def _started(self) -> Cheat | None:
        """What it did if it has ended for starting a process."""
        started = self._alone and self.child.exited() == -signal.SIGSYS
        return Cheat("a timed call started a process") if started else None

    def _forged(self, what: str) -> NotTimed:
        self.child.kill()
        return NotTimed(f"its process broke the protocol of the judge: {what}")

    def _usage(self) -> int:
        return self.child.usage()[1]

    def _processor_seconds(self) -> float:
        """Processor time of all threads that it has or had, by the system's clock of that process."""
        try:
            return time.clock_gettime(~self.pid << 3 | 2)
        except OSError:
            raise self._dead() from None

    def _processes(self) -> list[int]:
        return [pid for pid in (self.child.process.pid, *below(self.child.process.pid)) if pid not in self._spared]

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._processes():
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _stop(self) -> None:
        self._signal(signal.SIGSTOP)
        until = time.monotonic() + STOP_SECONDS
        while not self._stands():
            if self.child.exited() is not None:
                raise self._dead()
            if time.monotonic() > until:
                self.child.kill()
                raise NotTimed(f"its process did not stand still within {STOP_SECONDS:.0f} s")
            self._signal(signal.SIGSTOP)  # also what was started since

    def _stands(self) -> bool:
        """Whether every thread of every process of it is stopped, or has ended."""
        return all(state in "TtZX" for pid in self._processes() for state in _states(pid))

    def _rest(self) -> None:
        """Wait until the process takes no more processor time, having been stopped: a thread is said to be stopped a
        little before it is."""
        self._rested, before = self._processor_seconds(), -1.0
        until = time.monotonic() + STOP_SECONDS
        while self._rested != before and time.monotonic() < until:
            self._rested, before = self._processor_seconds(), self._rested

    def _resting(self) -> None:
        """Raises Cheat where it has worked since. A timer of its own, say, may have let it go on."""
        if not self._stands() or self._processor_seconds() - self._rested > RESTING_SECONDS:
            raise Cheat("its process went on while it was stopped")

    def _filters(self) -> int:
        try:
            return linux.filters(self.pid) or 0
        except OSError:
            raise self._dead() from None

    def _traces(self) -> tuple[int, int]:
        """Threads of the process, and pages that ended children of it have touched: what starting either leaves."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            return int(fields[17]), int(fields[8])
        raise self._dead()

    def _private(self) -> list[tuple[int, int]]:
        """Ranges of its addresses that no other process can write: mapped privately, from no file."""
        found: list[tuple[int, int]] = []
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/maps") as maps:
            for line in maps:
                span, rights, _, _, inode, *_ = line.split()
                begin, end = (int(number, 16) for number in span.split("-"))
                if rights[3] != "p" or inode != "0":
                    continue
                if found and found[-1][1] == begin:
                    found[-1] = found[-1][0], end
                else:
                    found.append((begin, end))
        return found

    def _copy(self, address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty(shape, dtype=dtype)
        into: Any = made.reshape(-1).view(torch.uint8).numpy()
        at = 0
        while at < made.nbytes:
            try:
                read = os.preadv(self._memory, [memoryview(into[at : at + PIECE])], address + at)
            except OSError:
                read = 0
            if not read:
                raise Cheat("an output lies where its process has no memory")
            at += read
        return made


def _of_kernel(child: Child) -> tuple[int, set[int]]:
    """The process that makes the calls, and those above it that are the sandbox's."""
    if not isinstance(child, Confined):
        return child.process.pid, set()
    pid = min(child.sandbox.processes(), key=lambda each: each.create_time(), default=child.process).pid
    above = {child.process.pid, *below(child.process.pid)} - {pid, *below(pid)}
    return pid, above


def _states(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat") as file:
                yield file.read().rpartition(")")[2].split()[0]


def _laid_out(example: Values, count: int) -> tuple[list[wire.Slot], list[dict[str, wire.TensorAt]]]:
    """Memory for `count` copies of these operands: slots, and where each operand lies in them."""
    slots: list[wire.Slot] = []
    told: list[dict[str, wire.TensorAt]] = []
    window, large = 0, WINDOW
    for _ in range(count):
        told.append({})
        for name, tensor in example.items():
            if tensor is None:
                continue
            size = tensor.untyped_storage().nbytes()
            if window + size <= WINDOW:
                slots.append(wire.Slot(window, size))
                window += rounded(size)
            else:
                slots.append(wire.Slot(large, size))
                large += rounded(size, PAGE)
            at = int(tensor.storage_offset()) * tensor.element_size()
            about = (wire.name_of(tensor.dtype), tuple(tensor.shape), tensor.stride(), at)
            told[-1][name] = wire.TensorAt(len(slots), len(slots) - 1, *about)
    return slots, told


def _there(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor


@contextlib.contextmanager
def orphans() -> Iterator[list[int]]:
    """Within: what outlives a process below this one becomes a child of this one. At the end the list has those that
    did, which are ended."""
    found: list[int] = []
    known, was = set(below(os.getpid())), linux.is_subreaper()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield found
    finally:
        found += collect(known)
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, int(was))


def collect(known: set[int]) -> list[int]:
    """End what has become a child of this process beside the `known`; their ids, also of those that had ended."""
    found: list[int] = []
    while left := [pid for pid in below(os.getpid()) if pid not in known and pid not in found]:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
        found += left
    return found
