"""The side of the kernel: a process that makes the calls which the judge asks for, and judges nothing."""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from touchstone.conformance.discovery import arrays, importing, launching, registry
from touchstone.conformance.discovery.importing import FileFunction
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import guarded, processes, serve, tripwires, wire
from touchstone.conformance.isolation.confined import folders
from touchstone.conformance.isolation.hidden import Hidden, Host, Window
from touchstone.conformance.isolation.shared import ALIGNED, OUTPUTS, WINDOW, Shared, rounded
from touchstone.conformance.judging.executor import InProcess, ending_text, moving
from touchstone.conformance.spec.layouts import BufferView
from touchstone.conformance.spec.returned import said

NEAR = 1 << 20  # bytes: the rest of a storage no larger than this, or than three outputs, is told along with an output


def execute(connection: Connection, shared: Shared, subject: Subject) -> None:
    """Make the calls of `subject` that are asked for, until the judge hangs up; in a forked child."""
    _execute(connection, shared, lambda: opened(subject))


def main(connection: Connection) -> None:
    """In a fresh process: it is sent the shared memory, the op's file and the subject, as `serve.receive` takes it."""
    shared = Shared(reduction.recv_handle(connection))
    request: tuple[Path | None, tuple, bytes] = processes.request(connection)
    _execute(connection, shared, lambda: serve.receive(*request)[0])


def introduced(connection: Connection, shared: Shared, open_subject: Callable[[], Subject]) -> Subject | None:
    """The subject with its function, after the judge was told that it is there; None where it was told why not."""
    first: dict[str, Any] = {"ready": True}
    subject = None
    try:
        subject = open_subject()
        if not subject.own and (misfit := subject.contract.misfit(subject.fn)):
            first = {"refused": f"fn: {misfit}"}
    except launching.MissingPackage as error:
        first = {"missing": said(error)}
    except ValueError as error:
        first = {"refused": said(error)}
    except Exception as error:
        first = {"failed": f"{type(error).__name__}: {said(error)}"}
    processes.flush()
    connection.send_bytes(wire.reply(shared, 0, first))
    return subject if "ready" in first else None


def _execute(connection: Connection, shared: Shared, open_subject: Callable[[], Subject]) -> None:
    subject = introduced(connection, shared, open_subject)
    if subject is None:
        return
    calls = _Calls(shared, subject)
    while True:
        try:
            request = processes.request(connection)
        except (EOFError, OSError):
            return
        try:
            answer = calls.reread(request) if isinstance(request, wire.Reread) else calls.call(request)
        except Exception as error:
            answer = {"failed": "".join(traceback.format_exception(error))[-wire.SAID :]}
        processes.flush()
        connection.send_bytes(wire.reply(shared, request.nonce, answer))


def _on_device(subject: Subject) -> Subject:
    """The subject, in a forked process in which kernels run on its device."""
    if subject.device == "cuda":
        if torch.cuda._is_in_bad_fork():
            raise ValueError(
                "untrusted: CUDA was used in this process before, which a fork of it cannot; use one that did not, as "
                "`python -m touchstone check` does"
            )
        serve.prepare(subject.device)
    return subject


def opened(subject: Subject) -> Subject:
    """The subject with its function, which is imported here where it was named by its file, in a process that is set up
    for it."""
    if not subject.own:
        launching.expect(subject.device)
    if subject.untrusted:
        tripwires.set_up(subject.op, next(iter(folders(subject)), None))
    subject = _on_device(subject)
    if subject.untrusted:
        guarded.begin()
    if not isinstance(subject.fn, FileFunction):
        return subject
    if subject.untrusted:
        importing.without_bytecode(importing.root_of(subject.fn.path))
    try:
        fn = launching.opened(subject.fn.path, subject.fn.name, subject.arch, subject.fn.instead)
    except launching.MissingPackage:
        raise
    except ValueError as error:
        raise ValueError(f"fn: {error}") from error
    for backend in map(registry.backend, registry.backends()):
        backend.adopt(fn, subject.device)
    return replace(subject, fn=fn)


class _Calls:
    """The calls of one subject, and the outputs that the judge still looks at."""

    def __init__(self, shared: Shared, subject: Subject) -> None:
        self.shared, self.subject, self.executor = shared, subject, InProcess(subject)
        self.given: dict[int, torch.Tensor] = {}  # arguments of this trial, by name
        self.held: dict[int, _Memory] = {}  # by token
        self.places: dict[wire.Slot, _Place] = {}  # of this trial
        self.tokens = 0
        on_cpu = self.executor.device == "cpu" and subject.arrays == "torch"
        self.window = Window() if subject.untrusted and not subject.allow_library and on_cpu else None
        self.draw = np.random.default_rng()

    def call(self, request: wire.Call) -> dict[str, Any]:
        try:
            return self._call(request)
        finally:
            if self.executor.host is not None:
                self.executor.host.close()

    def _call(self, request: wire.Call) -> dict[str, Any]:
        for token in request.released:
            self.held.pop(token, None)
        for name in set(self.given) - set(request.names):
            del self.given[name]
        if request.begins:
            self.given.clear()
            self.held.clear()
            self.shared.forget(clear=False)
            self.places.clear()
        try:
            places = [self._place(slot, _dtype(request, number)) for number, slot in enumerate(request.slots)]
        except torch.OutOfMemoryError as error:
            return {"no room": said(error).partition(". ")[0]}
        usual = request.manner.usual
        arguments = {name: self._argument(value, places, usual) for name, value in request.arguments.items()}
        placed = {name: BufferView(places[slot].bytes, places[slot].bytes) for name, slot in request.placed.items()}
        hidden = [place for place in places if isinstance(place, _Hidden)]
        large = [place.addresses for place in places if not isinstance(place, _Hidden)]
        if self.window is not None:
            how = moving(self.subject, arguments)
            self.executor.host = Host(hidden, self.draw, large, guarded.guard(), how, ends_later=True)
        try:
            seen = self.executor.call(arguments, request.manner, placed)
        except BaseException as error:
            return {"ended": ending_text(error)}
        finally:
            for each in hidden:
                each.tell()
        if seen.lost is None:
            for place in set(places).difference(hidden):
                place.tell()
        seen.cheats = tripwires.told()
        answer: dict[str, Any] = {"observed": wire.observed_to_json(seen), "memories": []}
        if isinstance(seen.values, str):
            return {**answer, "values": seen.values[: wire.SAID]}
        tensors = {name: value for name, value in seen.values.items() if type(value) is torch.Tensor}
        apart = {name: tensor for name, tensor in tensors.items() if self._inside(tensor, places) is None}
        sizes = {name: _extent(tensor) for name, tensor in apart.items()}
        while sum(sizes.values()) > request.most // 2:  # half, since memories are told in whole blocks
            largest = max(sizes, key=sizes.__getitem__)
            seen.values[largest] = arrays.Unreadable(f"a tensor that spans {sizes.pop(largest)} bytes")
            del tensors[largest]
        where = self._memory_of(tensors, places)
        answer["memories"] = self._written({memory[1] for memory, _ in where.values() if memory[0] == "held"})
        answer["values"] = {name: self._told(value, where.get(name)) for name, value in seen.values.items()}
        return answer

    def reread(self, request: wire.Reread) -> dict[str, Any]:
        return {"memories": self._written(set(request.tokens) & set(self.held))}

    def _place(self, slot: wire.Slot, dtype: torch.dtype | None) -> "_Place":
        """Where the kernel finds what the judge has put into a slot; `dtype`: of the numbers there, None for others."""
        shared = self.shared.bytes(slot.offset, slot.size)
        hidden = self.window is not None and 0 < slot.size <= WINDOW - slot.offset
        if self.executor.device == "cpu" and not hidden:
            return _Place(shared)
        if slot not in self.places and hidden:
            assert self.window is not None
            self.places[slot] = _Hidden(shared, self.window.bytes(slot.offset, slot.size), dtype, self.draw)
        elif slot not in self.places:
            self.places[slot] = _Mirror(shared, slot.part, self.executor.device)
        place = self.places[slot]
        place.fetch()
        return place

    def _argument(self, value: Any, places: Sequence["_Place"], usual: bool) -> Any:
        """The argument; the same tensor each time for one name, as long as the trial goes on. `usual`: as an allocation
        of its own has it, with nothing around it in its storage."""
        if not isinstance(value, wire.TensorAt):
            return value
        if value.name not in self.given:
            dtype = wire.DTYPES[value.dtype]
            place = places[value.slot]
            view = torch.empty(0, dtype=dtype, device=place.bytes.device)
            storage, at = place.bytes.untyped_storage(), value.at - place.begin
            if usual:
                storage, at = storage[at : at + value.extent], 0
            self.given[value.name] = view.set_(storage, at // dtype.itemsize, value.shape, value.strides)
        return self.given[value.name]

    def _told(self, value: Any, where: tuple[tuple[str, int], int] | None) -> Any:
        if value is None:
            return None
        if type(value) is not torch.Tensor:
            return {"other": arrays.what(value)[: wire.SAID]}
        if wire.name_of(value.dtype) not in wire.DTYPES:
            return {"other": f"a tensor of dtype {value.dtype}"}
        if where is None:
            return wire.tensor_to_json(value, None, 0)
        memory, at = where
        if at % value.element_size():
            return {"other": "a tensor at an address that is no multiple of its elements' size"}
        return wire.tensor_to_json(value, memory, at)

    @staticmethod
    def _inside(tensor: torch.Tensor, places: Sequence["_Place"]) -> int | None:
        """Which operand's memory a tensor lies in, if any."""
        begin = tensor.data_ptr()
        return next((i for i, place in enumerate(places) if tensor.numel() and begin in place.addresses), None)

    def _memory_of(
        self, tensors: Mapping[str, torch.Tensor], places: Sequence["_Place"]
    ) -> dict[str, tuple[tuple[str, int], int]]:
        """In which memory each tensor with elements lies, and how far from its beginning."""
        found: dict[str, tuple[tuple[str, int], int]] = {}
        new: list[_Memory] = []
        for name, tensor in tensors.items():
            if not tensor.numel():
                continue
            memory = _Memory.of(tensor)
            inside = self._inside(tensor, places)
            if inside is not None:
                place = places[inside]
                found[name] = ("slot", inside), tensor.data_ptr() - place.addresses.start + place.begin
                continue
            while (other := next((each for each in new if each.meets(memory)), None)) is not None:
                new.remove(other)
                memory = memory.joined(other)
            new.append(memory)
        for memory in new:
            token = next((token for token, each in self.held.items() if each.covers(memory)), None)
            if token is None:
                self.tokens += 1
                token = self.tokens
                self.held[token] = memory
            else:
                self.held[token].tensors += memory.tensors
        for name, tensor in tensors.items():
            if tensor.numel() and name not in found:
                token = next(t for t, each in self.held.items() if tensor.data_ptr() in range(each.begin, each.end))
                found[name] = ("held", token), tensor.data_ptr() - self.held[token].begin
        return found

    def _written(self, tokens: set[int]) -> list[dict[str, int]]:
        """Write what these memories hold into the shared memory, and say where."""
        total, told = 0, []
        for token in sorted(tokens):
            size = self.held[token].end - self.held[token].begin
            told.append({"token": token, "at": total, "size": size})
            total += rounded(size)
        room = self.shared.bytes(OUTPUTS, total)
        for each in told:
            room[each["at"] : each["at"] + each["size"]].copy_(self.held[each["token"]].bytes())
        return told


class _Place:
    """The memory of an operand: `bytes`, of which the first is the one numbered `begin` of the judge's buffer."""

    begin = 0

    def __init__(self, memory: torch.Tensor) -> None:
        self.bytes = memory

    @property
    def addresses(self) -> range:
        return range(self.bytes.data_ptr(), self.bytes.data_ptr() + self.bytes.numel())

    def fetch(self) -> None:
        """Have the memory hold what the judge has put there; here it is the judge's own."""

    def tell(self) -> None:
        """Have the judge see what the memory holds now; here it is the judge's own."""


class _Hidden(Hidden, _Place):
    """One that a launcher cannot read. During a call nothing of it is in the shared memory."""

    def __init__(
        self, shared: torch.Tensor, own: torch.Tensor, dtype: torch.dtype | None, draw: np.random.Generator
    ) -> None:
        _Place.__init__(self, own)
        self._shared = shared.numpy()
        Hidden.__init__(self, own.numpy(), self._shared.copy(), dtype, draw)

    def fetch(self) -> None:
        self.fill(self._shared)
        self._shared[:] = 0

    def tell(self) -> None:
        self.gather()
        self._shared[:] = self._there


class _Mirror(_Place):
    """That of a GPU: a copy of a slot, or of its part and what lies behind that."""

    def __init__(self, shared: torch.Tensor, part: wire.Part | None, device: str) -> None:
        self.shared, self.part = shared, part
        self.begin = 0 if part is None else part.at // ALIGNED * ALIGNED
        super().__init__(torch.empty(shared.numel() - self.begin, dtype=torch.uint8, device=device))

    def fetch(self) -> None:
        there, here = self._copied()
        here.copy_(there)

    def tell(self) -> None:
        there, here = self._copied()
        there.copy_(here)

    def _copied(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.part is None:
            return self.shared, self.bytes
        return self.part.of(self.shared), self.part.of(self.bytes, self.begin)


class _Memory:
    """A stretch of addresses, and the tensors that keep it alive."""

    def __init__(self, begin: int, end: int, tensors: list[torch.Tensor]) -> None:
        self.begin, self.end, self.tensors = begin, end, tensors

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_Memory":
        """That of a tensor with elements; the whole of a storage that is not much larger."""
        size, storage = _extent(tensor), tensor.untyped_storage()
        if storage.nbytes() <= max(4 * size, NEAR):
            return cls(storage.data_ptr(), storage.data_ptr() + storage.nbytes(), [tensor])
        return cls(tensor.data_ptr(), tensor.data_ptr() + size, [tensor])

    def meets(self, other: "_Memory") -> bool:
        return self.begin < other.end and other.begin < self.end

    def covers(self, other: "_Memory") -> bool:
        return self.begin <= other.begin and other.end <= self.end

    def joined(self, other: "_Memory") -> "_Memory":
        begin, end = min(self.begin, other.begin), max(self.end, other.end)
        return _Memory(begin, end, [*self.tensors, *other.tensors])

    def bytes(self) -> torch.Tensor:
        """What it holds now."""
        parts = []
        for tensor in self.tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() <= self.begin and self.end <= storage.data_ptr() + storage.nbytes():
                whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                return whole[self.begin - storage.data_ptr() : self.end - storage.data_ptr()]
            parts.append(storage)
        found = torch.zeros(self.end - self.begin, dtype=torch.uint8, device="cpu")
        for storage in parts:  # storages that overlap, made over one foreign memory
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            begin, end = max(self.begin, storage.data_ptr()), min(self.end, storage.data_ptr() + storage.nbytes())
            found[begin - self.begin : end - self.begin] = whole[begin - storage.data_ptr() : end - storage.data_ptr()]
        return found


def _dtype(request: wire.Call, number: int) -> torch.dtype | None:
    """Of the floating-point numbers in a slot, where nothing else is there. Single ones a launcher may read, as it may
    integers: both decide about launches."""
    given = [value for value in request.arguments.values() if isinstance(value, wire.TensorAt) and value.slot == number]
    dtypes = {wire.DTYPES[value.dtype] for value in given if math.prod(value.shape) > 1}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    return dtype if dtype is not None and dtype.is_floating_point else None


def _extent(tensor: torch.Tensor) -> int:
    """The bytes from its first element to the end of its last."""
    return wire.extent(tensor.shape, tensor.stride(), tensor.dtype)
