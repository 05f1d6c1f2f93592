"""Memory that is to a launcher what a GPU's is to its host: on the CPU, that of an untrusted kernel's tensors.

While no kernel runs, other numbers lie in the operands than the operands', drawn at random, and in what the library
allocates and copies. Kernels find their own numbers there, and so do the copies that the library makes. So whatever
works the answer out elsewhere, in the library, in another one, or in another process, and by whichever name it is
called, gets that of other numbers.

Memory that launchers decide by (integers, single numbers, arrays of their own) they may read until a kernel has
written to it. Of what kernels have written Python is given GIVEN numbers in a call.

All is done by NumPy, since a dispatch mode would take torch's calls for the launcher's.
"""

import contextlib
import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from touchstone import backends
from touchstone.backends import NotRun, Reached
from touchstone.conformance.isolation import guarded, tripwires
from touchstone.conformance.isolation.shared import WINDOW
from touchstone.conformance.judging.instruments import (
    COPIES,
    EMPTY,
    FILLED,
    FILLS,
    IN_ANOTHER_ORDER,
    READS,
    Moving,
    on_again,
    plain,
    python_of,
)

GIVEN = 64  # numbers: the sizes and counts that a launcher reads
ATTENDED = 0.2  # of the times when numbers are shown, by chance: the guard looks, and the author's Python is seen
OVERHEARD = 16  # times that numbers were shown and another thread ran, as one of a library's may that wakes at times
_OF_CONSTANTS = {"__init__", "__new__", "__post_init__", "__hash__"}  # what classes of constants may well have
_WRITES = {"copy_", "fill_"}  # to memory that is there
_MOVES = {"resize_"}  # all that a storage holds to other memory, where it grows
_KNOWN = COPIES | EMPTY | FILLED | FILLS | _MOVES  # what the library does to memory without computing
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Hidden:
    """The memory of one tensor: `here` is what the launcher has; `there` holds its numbers while others are here, else
    what was here when the last kernel began. `dtype`: None where the launcher may read it until a kernel writes."""

    def __init__(self, here: Bytes, there: Bytes, dtype: torch.dtype | None, draw: np.random.Generator) -> None:
        self._here, self._there, self._hides = here, there, dtype is not None
        self._item = 1 if dtype is None else dtype.itemsize
        self._drawn = np.zeros(len(here), np.uint8) if dtype is None else _drawn(dtype, len(here), draw)
        self.fill(there)

    def fill(self, numbers: Bytes) -> None:
        """Have these numbers be its own, which no kernel has written."""
        self._there[:] = numbers
        self._here[:] = self._drawn if self._hides else numbers
        self.secret, self.written = self._hides, False

    @property
    def span(self) -> range:
        """Its addresses."""
        return range(self._here.ctypes.data, self._here.ctypes.data + len(self._here))

    def show(self) -> None:
        """Have its numbers in the memory, and what the launcher has written there itself."""
        _refuse_others()
        self.gather()
        if self.secret:
            self._here[:] = self._there

    def hide(self, ran: bool = False) -> None:
        """Have other numbers there. `ran`: since it was shown, a kernel has run."""
        if ran and not self.written and not np.array_equal(self._here, self._there):
            if not self.secret:  # as before, so that memory does not tell whether a kernel wrote there
                self._drawn = self._there.copy()
            self.secret = self.written = True
        if self.secret:
            self._there[:] = self._here
            self._here[:] = self._drawn

    def gather(self) -> None:
        """Have its numbers be what the launcher has written over those that it saw."""
        if not self.secret:
            self._there[:] = self._here
            return
        written = self._here != self._drawn
        if written.any():
            whole = written[: len(written) // self._item * self._item].reshape(-1, self._item)
            whole[:] = whole.any(axis=1, keepdims=True)  # one byte in 256 that is written equals the drawn one
            self._there[written] = self._here[written]


def _refuse_others() -> None:
    """Raises PermissionError where what shows numbers is not called by this package."""
    if not tripwires.called_by_this_package(above=2):
        tripwires.note("has numbers shown while no kernel runs")
        raise PermissionError("numbers are shown to kernels")


class _Made(Hidden):
    """Memory that a launcher came by in this call; it stays as long as the call."""

    def __init__(self, owner: Any, start: int, size: int, dtype: torch.dtype | None, draw: np.random.Generator) -> None:
        self._owner = owner.untyped_storage() if isinstance(owner, torch.Tensor) else owner
        here = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
        super().__init__(here, here.copy(), dtype, draw)

    def is_there(self) -> bool:
        """Whether a storage has not been given other memory."""
        if not isinstance(self._owner, torch.UntypedStorage):
            return True
        begin, end = self._owner.data_ptr(), self._owner.data_ptr() + self._owner.nbytes()
        return begin <= self.span.start and self.span.stop <= end


class Others:
    """The threads of this process but the caller's: in how many of the times between `begin` and `end` some ran."""

    windows = 0  # of all calls

    def __init__(self) -> None:
        self._before: dict[str, str] = {}

    def begin(self) -> None:
        self._before = _runs_of_others() if _are_others() else {}

    def end(self) -> None:
        if self._before or _are_others():
            Others.windows += _runs_of_others() != self._before


_TASKS = "/proc/self/task"


def _are_others() -> bool:
    return os.stat(_TASKS).st_nlink > 3  # two, and one for each thread


def _runs_of_others() -> dict[str, str]:
    """What each other thread has run, by its number."""
    found = {}
    own = str(threading.get_native_id())
    for task in os.listdir(_TASKS):
        with contextlib.suppress(OSError):
            if task != own and (text := _text_of(f"{_TASKS}/{task}/schedstat")):
                found[task] = text
    return found


def _text_of(path: str) -> str:
    with open(path) as file:
        return file.read()


class Host(TorchDispatchMode):
    """Within: the numbers of `operands`, of what the library makes, and of what kernels write are shown while a kernel
    runs, and while the library copies a tensor or fills it. In the `end` those of what it made are shown."""

    def __init__(
        self,
        operands: Sequence[Hidden],
        draw: np.random.Generator,
        large: Sequence[range] = (),
        guard: guarded.Guard | None = None,
        moving: Moving | None = None,
        ends_later: bool = False,
    ) -> None:
        """`large`: the addresses of operands that are too large to be hidden. `ends_later`: `end` is called behind it,
        once no Python of the author's is to run any more."""
        super().__init__()
        self._ends_later = ends_later
        self._moving = moving
        self._guard = guard
        self._concealed = 0  # how many times over, within a launch
        self._operands, self._draw, self._large = operands, draw, large
        self._made: list[_Made] = []
        self._given = 0
        self._failed: str | None = None
        self._thread = threading.get_ident()
        self._others = Others()
        self._apart = contextlib.ExitStack()  # what holds while a kernel runs

    def __enter__(self):
        if self._attends():
            self._look()
        self._chosen = backends.chosen()
        backends.before_launch.append(self._begin)
        backends.failed_launch.append(self._fail)
        backends.after_launch.append(self._end)
        backends.strayed.append(self._stray)
        backends.on_constants.append(self._compiling)
        self._replaced = vars(torch.Tensor).get("tolist")
        torch.Tensor.tolist = _listed  # type: ignore[method-assign,assignment]
        _hosts.append(self)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        _hosts.remove(self)
        if self._replaced is None:
            del torch.Tensor.tolist  # which the class inherits
        else:
            torch.Tensor.tolist = self._replaced  # type: ignore[method-assign]
        backends.before_launch.remove(self._begin)
        backends.failed_launch.remove(self._fail)
        backends.after_launch.remove(self._end)
        backends.strayed.remove(self._stray)
        backends.on_constants.remove(self._compiling)
        if self._attends():
            self._look()
        if not self._ends_later:
            self.end()
            self.close()
        if (calls := backends.chosen() - self._chosen) > GIVEN:
            tripwires.note(f"has the numbers of its kernels decide about {calls} calls of Python's on constants")
        if self._others.windows > OVERHEARD:
            tripwires.note("has another thread run while its operands are shown")
        if self._failed is not None and error[0] is None:
            tripwires.note(f"goes on after a kernel of its own has failed: {self._failed}")

    def end(self) -> None:
        """Show the numbers of what was made, for good; until `close`, nothing of the author's is collected."""
        _refuse_others()
        self._apart.enter_context(backends.without_collection())
        for memory in self._kept():
            memory.show()

    def close(self) -> None:
        """Let be collected what nobody has any more: the outputs were read."""
        self._apart.close()

    def _kept(self) -> list[_Made]:
        self._made = [memory for memory in self._made if memory.is_there()]
        return self._made

    def _known(self) -> list[Hidden]:
        return [*self._operands, *self._kept()]

    def _spans(self) -> list[range]:
        return [*(memory.span for memory in self._known()), *self._large]

    def _begin(self, reached: Iterable[Reached]) -> None:
        if not tripwires.asked_by_this_package():
            tripwires.note("says that a kernel is launched where none is")
            raise PermissionError("launches are told by interpreters and emulators alone")
        for memory in reached:
            for begin, end in _apart_from((memory.start, memory.start + memory.bytes), self._spans()):
                self._made.append(_Made(memory.owner, begin, end - begin, None, self._draw))
        self._concealed = 0
        self._apart = contextlib.ExitStack()
        self._apart.enter_context(backends.without_collection())
        self._apart.enter_context(_unheard())
        self._apart.enter_context(torch._C.DisableTorchFunction())
        self._apart.enter_context(_disable_current_modes())
        self._apart.enter_context(self._attended())
        self._others.begin()
        self._show()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, NotRun):
            self._give(1)  # where and why it ended, by which numbers may have decided
        elif self._failed is None:
            self._failed = f"{type(error).__name__}: {error}"[:200]

    def _end(self) -> None:
        for memory in self._known():
            memory.hide(ran=True)
        self._others.end()
        self._apart.close()

    @contextlib.contextmanager
    def _attended(self) -> Iterator[None]:
        if not self._attends():
            yield
            return
        self._look()
        with guarded.unseeing(self._seen, self._reveal):
            yield

    def _seen(self, function: str) -> None:
        if not self._concealed and function not in _OF_CONSTANTS:
            tripwires.note(f"has {function} run where its operands are shown, and no kernel is")
        self._conceal()

    def _attends(self) -> bool:
        return self._guard is not None and self._draw.random() < ATTENDED

    def _look(self) -> None:
        if self._guard is not None:
            self._guard.look()

    @contextlib.contextmanager
    def _compiling(self) -> Iterator[None]:
        self._conceal()
        try:
            yield
        finally:
            self._reveal()

    def _conceal(self) -> None:
        """Hide the numbers for a while in which they are shown."""
        self._concealed += 1
        for memory in self._known() if self._concealed == 1 else ():
            memory.hide(ran=backends.kernel_running())

    def _reveal(self) -> None:
        _refuse_others()
        self._concealed -= 1
        if not self._concealed:
            self._show()

    def _stray(self, addresses: Any) -> None:
        inside = np.zeros(addresses.shape, bool)
        for span in self._spans():
            inside |= (span.start <= addresses) & (addresses < span.stop)
        if not inside.all():
            tripwires.note("has a kernel write to memory that no tensor of the call has")

    def _show(self) -> None:
        _refuse_others()
        for memory in self._known():
            memory.show()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, and with it triton, on the first call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func._schema.name.removeprefix("aten::"), kwargs or {}
        if threading.get_ident() != self._thread:
            tripwires.note("calls the library in another thread")
        if backends.kernel_running() or types:  # of a class of somebody's, which is asked next
            return func(*args, **given)
        if (body := python_of(func, args)) is not None:
            with on_again(self):
                return body(*args, **given)
        if name in READS and self._may_read(args[0]):
            with self._all_shown():
                return func(*args, **given)
        if name not in _KNOWN or (name in COPIES and "out" in given):
            if not func.is_view and name not in READS | {"set_"}:
                tripwires.note(f"has the library work: {name}")
            return func(*args, **given)
        if name in EMPTY | FILLED:
            made = func(*args, **given)
            self._take(made, False)
            return made
        tensors = [value for value in args if issubclass(type(value), torch.Tensor)]
        if not all(map(_is_memory, tensors)):
            return func(*args, **given)
        moves = name in _MOVES
        secret = (moves or name in COPIES | _WRITES) and any(self._is_secret(each, moves) for each in tensors)
        if name in _WRITES:
            self._take(args[0], False)
            for memory in self._over(args[0]) if secret else ():
                memory.secret = True
        with self._all_shown():
            made = func(*args, **given)
        self._take(made, secret, moves)
        if self._moving is not None and name in COPIES and self._moving.does(made, args[1 if name == "copy_" else 0]):
            tripwires.note(f"has the library work: {name}{IN_ANOTHER_ORDER}")
        return made

    @contextlib.contextmanager
    def _all_shown(self) -> Iterator[None]:
        with backends.without_collection(), self._attended():
            self._others.begin()
            self._show()
            try:
                yield
            finally:
                for memory in self._known():
                    memory.hide()
                self._others.end()

    def _over(self, tensor: Any, whole: bool = False) -> list[Hidden]:
        """The memory that a tensor, or the whole of its storage, lies in."""
        tensor = _as_plain(tensor)
        if tensor is None or not (tensor.numel() or whole):
            return []
        begin, end = _extent(tensor, whole)
        return [memory for memory in self._known() if memory.span.start < end and begin < memory.span.stop]

    def _is_secret(self, tensor: Any, whole: bool = False) -> bool:
        return any(memory.secret for memory in self._over(tensor, whole))

    def _may_read(self, tensor: Any) -> bool:
        """Whether Python is given the numbers of a tensor that kernels have written."""
        secret = [memory for memory in self._over(tensor) if memory.secret]
        if not secret or not all(memory.written for memory in secret):
            return False
        return self._give(tensor.numel() * max(1, tensor.element_size() // 8))

    def _give(self, numbers: int) -> bool:
        """Whether Python is given so many numbers more."""
        self._given += numbers
        if self._given > GIVEN:
            tripwires.note(f"reads more than {GIVEN} numbers of what its kernels have written, in one call")
        return self._given <= GIVEN

    def listed(self, tensor: torch.Tensor) -> Any:
        """`tensor.tolist()`."""
        if backends.kernel_running() or not self._may_read(tensor):
            return _tolist(tensor)
        with self._all_shown():
            return _tolist(tensor)

    def _take(self, tensor: Any, secret: bool, whole: bool = False) -> None:
        """From here on, know the memory of a tensor that the library has made, or the whole of its storage."""
        tensor = _as_plain(tensor)
        if tensor is None or not tensor.numel():
            return
        hides = secret or (tensor.is_floating_point() and tensor.numel() > 1)
        for start, stop in _apart_from(_extent(tensor, whole), self._spans()):
            dtype = tensor.dtype if hides else None
            self._made.append(_Made(tensor, start, stop - start, dtype, self._draw))


_hosts: list[Host] = []  # those that are on
_tolist = torch.Tensor.tolist


def _listed(tensor: torch.Tensor) -> Any:
    return _hosts[-1].listed(tensor)


class Window:
    """Memory for operands, at the offsets that they have in what is shared; the same addresses in each trial."""

    def __init__(self) -> None:
        self._mapping = mmap.mmap(-1, WINDOW, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        """`size` bytes from `offset`."""
        return torch.frombuffer(self._mapping, dtype=torch.uint8, count=size, offset=offset)


_BASE = torch._C.TensorBase  # of which a class of somebody's may say otherwise
_layout_of, _device_of, *_other_kinds = (
    vars(_BASE)[name].__get__ for name in ("layout", "device", "is_nested", "is_quantized")
)


def _is_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a strided view of memory."""
    with torch._C.DisableTorchFunction():
        return _layout_of(tensor) is torch.strided and not any(is_one(tensor) for is_one in _other_kinds)


def _as_plain(tensor: Any) -> torch.Tensor | None:
    """A tensor that lies in the processor's memory, without what its class makes of it."""
    if not issubclass(type(tensor), torch.Tensor) or not _is_memory(tensor):
        return None
    with torch._C.DisableTorchFunction():
        return plain(tensor) if _device_of(tensor).type == "cpu" else None


def _extent(tensor: torch.Tensor, whole: bool = False) -> tuple[int, int]:
    """The first address of a tensor, or of its storage, and that behind the last."""
    if whole:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _apart_from(stretch: tuple[int, int], known: Sequence[range]) -> list[tuple[int, int]]:
    """The parts of a stretch of addresses that lie in no known memory."""
    parts = [stretch] if stretch[0] < stretch[1] else []
    for span in known:
        cut = [((low, min(high, span.start)), (max(low, span.stop), high)) for low, high in parts]
        parts = [part for pair in cut for part in pair if part[0] < part[1]]
    return parts


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Within, what is printed goes nowhere: a launcher could read it."""
    streams = sys.stdout, sys.stderr
    kept = [(number, os.dup(number)) for number in (1, 2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for number, _ in kept:
            os.dup2(nothing, number)
        with open(nothing, "w", closefd=False) as sink:
            sys.stdout = sys.stderr = sink
            try:
                yield
            finally:
                sys.stdout, sys.stderr = streams
                _flush(None)
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
        os.close(nothing)


_flush = ctypes.CDLL(None).fflush


def _drawn(dtype: torch.dtype, size: int, draw: np.random.Generator) -> Bytes:
    """So many bytes of numbers: of a floating-point dtype as they come, of another zeros."""
    if not dtype.is_floating_point:
        return np.zeros(size, np.uint8)
    numbers = draw.standard_normal(-(-size // dtype.itemsize), dtype=np.float32)
    if dtype is torch.bfloat16:
        made: np.ndarray = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype in (torch.float16, torch.float32, torch.float64):
        made = numbers.astype(str(dtype).removeprefix("torch."))
    else:  # of 8 bits: no code below 64 is infinite or no number
        made = (numbers.view(np.uint32) & 63).astype(np.uint8)
    return made.view(np.uint8)[:size]
