"""The side of the judge: an executor whose calls are made by another process, and whose outputs are copies.

Operands are copied into the shared memory before a call and back after it, so that what the kernel wrote is seen where
the judge's own buffers are. Outputs are copied out of it at once: what the other process does later changes nothing.
"""

import dataclasses
import pickle
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from touchstone.conformance.discovery.arrays import Unreadable
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import wire
from touchstone.conformance.isolation.limits import Limits, Watch
from touchstone.conformance.isolation.processes import Child, Death
from touchstone.conformance.isolation.reading import unneeded
from touchstone.conformance.isolation.shared import ALIGNED, OUTPUTS, WINDOW, Shared, rounded
from touchstone.conformance.judging.executor import PLAIN, Manner, Observed, Placed
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.layouts import NoRoom

BLOCKED_SECONDS = 5  # for the rest of a message, or for room to send one
OUTPUT_BYTES = 1 << 30  # at most, of the outputs of one call of unknown sizes
SPARE, TIMES = 1 << 26, 16  # bytes beyond so many times the sizes that outputs should have: more is not taken
SPARSE = 1 << 30  # bytes from which a buffer is not copied whole, if what was written of it is known
PAGE = 1 << 16  # beginnings of mappings; pages of 64 KiB are the largest in use


class Died(BaseException):
    """The other process ended, or was ended, in the middle of a trial."""

    def __init__(self, death: Death):
        super().__init__(death.message)
        self.death = death


class Ended(BaseException):
    """What the kernel raised would have ended its process; the message says what."""


class Remote:
    """Has `child` make the calls."""

    device = "cpu"

    def __init__(self, child: Child, shared: Shared, watch: Watch, subject: Subject) -> None:
        self.child, self.shared, self.watch, self.trusted = child, shared, watch, not subject.untrusted
        read = subject.fn.path if subject.untrusted and isinstance(subject.fn, FileFunction) else None
        self._unneeded = [] if read is None else unneeded(read)
        names = tuple(subject.contract.outputs)
        judged = tuple(name for name in names if subject.outputs is None or name in subject.outputs)
        self._names_of_outputs = (names, judged)
        self._held: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
        self._kept: list[np.ndarray] = []  # copies just made, until tensors over them are
        self._released: list[int] = []
        self.spent = False
        self._last = Observed()  # the call after which CUDA answered every other one with an error
        wait_no_longer_than(child.connection.fileno())

    def begin(self, limits: Limits, idle: float | None = None) -> None:
        """A new trial, which may take `limits`; with `idle`, a call ends after so many seconds without processor
        time."""
        self._taken, self._limits, self._idle = 0.0, limits, idle
        self._begins = True
        self._slots: dict[int, wire.Slot] = {}  # by the address of the judge's memory
        self._next, self._next_large = 0, WINDOW
        self._names: Any = WeakIdKeyDictionary()
        self._count = 0
        self._released.clear()
        self.shared.forget(clear=True)

    def call(
        self, arguments: Mapping[str, Any], manner: Manner = PLAIN, placed: Placed | None = None, debug: bool = False
    ) -> Observed:
        """One call; `debug` has no meaning here. After one that left CUDA in error it is not made, and raises what that
        one did. Raises `Died` and `Ended`."""
        if self.spent:
            return dataclasses.replace(self._last)
        try:
            return self._call(arguments, manner, placed or {})
        except wire.Malformed as error:
            raise self._forged(error) from None

    def _call(self, arguments: Mapping[str, Any], manner: Manner, placed: Placed) -> Observed:
        buffers = {name: each for name, each in placed.items() if each is not None}
        memories = _Memories()
        for each in buffers.values():
            memories.add(each.buffer, each.written)
        told = {name: self._told(value, memories) for name, value in arguments.items()}
        slots = tuple(self._slot(memory) for memory in memories.every)
        for memory, slot in zip(memories.every, slots, strict=True):
            memory.copy(self.shared.bytes(slot.offset, slot.size), slot.part, back=False)
        self._most = SPARE + TIMES * sum(manner.blocks) if manner.blocks else OUTPUT_BYTES
        request = wire.Call(
            secrets.randbits(63),
            self._most,
            self._begins,
            manner,
            told,
            {name: memories.number(each.buffer) for name, each in buffers.items()},
            slots,
            tuple(self._names.values()),
            tuple(self._released),
        )
        self._begins = False
        self._released.clear()
        content = self._answer(request)
        for memory, slot in zip(memories.every, slots, strict=True):
            memory.copy(self.shared.bytes(slot.offset, slot.size), slot.part, back=True)
        if "ended" in content:
            raise Ended(str(content["ended"])[: wire.SAID])
        seen = wire.observed_from_json(content.get("observed"))
        seen.cheats = [*self._unneeded, *seen.cheats]
        if seen.lost is not None:
            self.spent, self._last = True, Observed(raised=seen.raised, lost=seen.lost)
        self._read(content.get("memories"))
        values = content.get("values")
        if seen.raised is not None:
            return seen
        if isinstance(values, str):
            seen.values = values[: wire.SAID]
        elif isinstance(values, dict) and tuple(values) in self._names_of_outputs:
            seen.values = {name: self._value(value, memories) for name, value in values.items()}
            self._kept.clear()
        else:
            raise wire.Malformed("values that are not told as agreed on")
        return seen

    def reread(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have these outputs of earlier calls hold what their memory holds now."""
        tokens = tuple(self._held.keys())
        try:
            if tokens and tensors and not self.spent:
                self._most = sum(len(copy) + ALIGNED for copy in self._held.values())
                self._read(self._answer(wire.Reread(secrets.randbits(63), tokens)).get("memories"))
        except wire.Malformed as error:
            raise self._forged(error) from None
        finally:
            self._kept.clear()

    def ready(self, seconds: float) -> dict[str, Any] | Death:
        """The first reply, or the death of a process that gave none within so many seconds."""
        self.begin(Limits(seconds=seconds))
        try:
            death = self.watch.wait(self._limits)
            return death if death is not None else self._received(0)
        except (EOFError, OSError):
            return self.child.death()
        except wire.Malformed as error:
            return self._forged(error).death

    def _answer(self, request: wire.Call | wire.Reread) -> dict[str, Any]:
        began = time.monotonic()
        try:
            self.child.connection.send_bytes(pickle.dumps(request))
            death = self.watch.wait(self._limits, self._idle, self._taken)
            if death is not None:
                raise Died(death)
            self._taken += time.monotonic() - began
            content = self._received(request.nonce)
        except (EOFError, OSError):
            raise Died(self.child.death()) from None
        if "no room" in content:
            raise NoRoom(str(content["no room"])[: wire.SAID])
        if "failed" in content:
            what = f"the kernel's process could not make a call: {str(content['failed'])[: wire.SAID]}"
            if self.trusted:
                raise RuntimeError(what)
            self.child.kill()
            raise Died(Death(Check.CRASH, what))
        return content

    def _received(self, nonce: int) -> dict[str, Any]:
        return received(self.child, self.shared, nonce)

    def _forged(self, error: wire.Malformed) -> Died:
        self.child.kill()
        return Died(Death(Check.CRASH, f"the kernel's process broke the protocol of the judge: {error}"))

    def _told(self, value: Any, memories: "_Memories") -> Any:
        """An argument as the request has it."""
        if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return value
        if wire.name_of(value.dtype) not in wire.DTYPES:
            return value
        if value not in self._names:
            self._count += 1
            self._names[value] = self._count
        memories.add(value)
        at = int(value.storage_offset()) * value.element_size()
        return wire.TensorAt(
            self._names[value],
            memories.number(value),
            wire.name_of(value.dtype),
            tuple(value.shape),
            value.stride(),
            at,
        )

    def _slot(self, memory: "_Memory") -> wire.Slot:
        """Where this memory of the judge's is in the shared one; the same place as long as it lives."""
        known = self._slots.get(memory.address)
        if known is not None and known.size == memory.size and memory.size:
            return known
        if self._next + memory.size <= WINDOW:
            slot = wire.Slot(self._next, memory.size, memory.part)
            self._next += rounded(memory.size)
        else:
            slot = wire.Slot(self._next_large, memory.size, memory.part)
            self._next_large += rounded(memory.size, PAGE)
            if self._next_large > OUTPUTS:
                raise MemoryError(f"operands of more than {OUTPUTS} bytes in one trial")
        self._slots[memory.address] = slot
        return slot

    def _read(self, memories: Any) -> None:
        """Copy what the memories of outputs hold."""
        if not isinstance(memories, list):
            raise wire.Malformed("memories that are not told as agreed on")
        try:
            found = [(each["token"], each["at"], each["size"]) for each in memories]
        except (KeyError, TypeError):
            raise wire.Malformed("a memory that is not told as agreed on") from None
        if not all(type(number) is int and 0 <= number < 2**62 for each in found for number in each):
            raise wire.Malformed("a memory with impossible numbers")
        total = max((at + size for _, at, size in found), default=0)
        if total > self._most:
            raise wire.Malformed(f"outputs of {total} bytes, where {self._most} are more than enough")
        if not total:
            return
        room = self.shared.bytes(OUTPUTS, total).numpy()
        for token, at, size in found:
            copy = self._held.get(token)
            if copy is None or len(copy) != rounded(size, 16):
                copy = np.zeros(rounded(size, 16), dtype=np.uint8)
                self._held[token] = copy
                weakref.finalize(copy, self._released.append, token)
                self._kept.append(copy)  # until a tensor over it is made
            copy[:size] = room[at : at + size]

    def _value(self, content: Any, memories: "_Memories") -> Any:
        """An output as the judge takes it: a tensor over its own copy, or over its own operand."""
        if content is None:
            return None
        if isinstance(content, dict) and set(content) == {"other"}:
            return Unreadable(str(content["other"])[: wire.SAID])
        back = wire.tensor_from_json(content)
        if back.memory is None:
            if 0 not in back.shape:
                raise wire.Malformed("an output without memory")
            return torch.empty_strided(back.shape, back.strides, dtype=back.dtype)
        kind, number = back.memory
        if kind == "slot":
            if number >= len(memories.every):
                raise wire.Malformed("an output in an operand that there is not")
            storage = memories.every[number].storage
        else:
            copy = self._held.get(number)
            if copy is None:
                raise wire.Malformed("an output in memory that was not told")
            storage = torch.from_numpy(copy).untyped_storage()
        if back.at + back.extent > storage.nbytes():
            raise wire.Malformed("an output that is larger than its memory")
        if storage.data_ptr() % back.dtype.itemsize:
            raise wire.Malformed("an output at an odd address")
        return torch.empty(0, dtype=back.dtype).set_(storage, back.at // back.dtype.itemsize, back.shape, back.strides)


class _Memory:
    """A storage of the judge's. `written`: what of it is copied, where it is mapped and hardly touched."""

    def __init__(self, storage: torch.UntypedStorage, written: torch.Tensor | None) -> None:
        self.storage = storage
        self.address, self.size = storage.data_ptr(), storage.nbytes()
        self.part: wire.Part | None = None
        if written is not None and self.size >= SPARSE:
            at = int(written.storage_offset()) * written.element_size()
            self.part = wire.Part(wire.name_of(written.dtype), tuple(written.shape), written.stride(), at)

    def copy(self, shared: torch.Tensor, part: wire.Part | None, back: bool) -> None:
        """To the shared memory, or back: all of it, or the part."""
        if not self.size:
            return
        here, there = torch.empty(0, dtype=torch.uint8).set_(self.storage), shared
        if part is not None:
            here, there = part.of(here), part.of(there)
        if back:
            here, there = there, here
        there.copy_(here)


class _Memories:
    """The storages behind the operands and arguments of one call, each once."""

    def __init__(self) -> None:
        self.every: list[_Memory] = []
        self._numbers: dict[int, int] = {}

    def add(self, tensor: torch.Tensor, written: torch.Tensor | None = None) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr() or -1 - storage._cdata
        if address not in self._numbers:
            self._numbers[address] = len(self.every)
            self.every.append(_Memory(storage, written))

    def number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        return self._numbers[storage.data_ptr() or -1 - storage._cdata]


def received(child: Child, shared: Shared, nonce: int) -> dict[str, Any]:
    """The reply that a message announces. Malformed where it is none; EOFError where the child is gone."""
    try:
        message = child.connection.recv_bytes(2 * wire.ANNOUNCED.size)
    except (EOFError, ConnectionError):
        raise
    except OSError:
        raise wire.Malformed("a message that is too long, or that does not end") from None
    return wire.received(shared, nonce, message)


def wait_no_longer_than(descriptor: int, seconds: int = BLOCKED_SECONDS) -> None:
    """A message that its sender does not end, or does not take, is an error after so many seconds."""
    with socket.socket(fileno=socket.dup(descriptor)) as connection:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
