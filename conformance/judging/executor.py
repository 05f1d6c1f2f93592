"""One call of a kernel as it is made in the process that has the kernel, and what is seen of it from there.

An `Executor` makes the calls that judging asks for. `InProcess` makes them in this process; the one of
conformance/isolation has a child make them, by an `InProcess` there, so that the process that judges never runs the
kernel's code. What is seen from within the kernel's process can only add findings: values are judged elsewhere.
"""

import contextlib
import math
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from touchstone import backends
from touchstone.backends import NotRun, cuda_face
from touchstone.conformance.discovery import importing, launching, registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.spec.layouts import BufferView
from touchstone.conformance.spec.returned import said

CANNOT_RUN = (NotRun, ImportError)  # what a kernel raises that cannot be executed here, right or wrong
DECLINES, CANNOT, RAISES = "declines", "cannot be run here", "raises"
NEEDS_GRADIENTS = "does not require grad"  # what autograd says of a tensor computed while gradients were off
SLEEP_CYCLES = 20_000_000  # about 10 ms, for which the stream of a late call holds its inputs back

_ROOTS = {str(path.parents[2]) for path in (Path(__file__), Path(__file__).resolve())}  # the package, and the clone
_MACHINERY = re.compile(  # files that judge or run kernels, and those of Python's own library
    rf"(?:{'|'.join(map(re.escape, sorted(_ROOTS)))})/"
    r"(?:conformance/(?!faults/)|backends/(?:emulator/|cuda_face/|\w+/runtime/|\w+\.py$))"
    rf"|{re.escape(sysconfig.get_paths()['stdlib'])}/(?!.*-packages/)|<frozen "
)
_PACKAGES = "-packages/"

Placed = Mapping[str, BufferView | None]

lost_context: list[str] = []  # how this process got to where CUDA answers every call with an error


@dataclass(frozen=True)
class Manner:
    """How a call is made: in which memory, under which instruments."""

    poison: int | None = None  # the byte that fresh memory holds
    blocks: tuple[int, ...] = ()  # the sizes in bytes of the outputs
    watched: bool = False  # under `instruments.Watch`, where the function can be watched
    state: bool = False  # whether all global state is compared before and after; settings are in each call
    generators: bool = True  # and with it random generators and the environment
    conspicuous: tuple[str, ...] | None = ()  # where what is undefined is not as on GPUs; None: everywhere
    instrument: tuple[str, str] | None = None  # a backend, and the name of one of its instruments
    element: tuple[str, tuple[int, ...]] | None = None  # an output and an index: say who wrote it
    usual: bool = False  # as in a program that infers: no gradients, and operands that are all of their storages
    late: bool = False  # on a stream of its own, on which the inputs arrive late
    replayed: bool = False  # captured as a CUDA graph, of which the replay gives the outputs
    anew: int = 0  # of the kernel whose file is imported once more for calls with this number; 0: of the one there is


PLAIN = Manner()


@dataclass(frozen=True)
class Raised:
    """What a call raised in the place of returning."""

    kind: str  # DECLINES, CANNOT or RAISES
    types: tuple[str, ...]  # the names of the error's classes, its own first
    said: str  # its message
    text: str  # its type and message, and where it was raised


@dataclass
class Observed:
    """What came of one call."""

    values: dict[str, Any] | str = field(default_factory=dict)  # by output; a sentence where it is too much or too few
    raised: Raised | None = None
    displaced: bool = False  # it raised because its kernels were set up for another device before
    lost: str | None = None  # the error that CUDA answers every further call of the kernel's process with
    launched: list[str] = field(default_factory=list)  # the engines on which kernels were launched here
    on_host: list[str] = field(default_factory=list)  # outputs that lie on the CPU beside a GPU, or would
    settings: list[str] = field(default_factory=list)  # global state that was left changed
    consumed: list[str] = field(default_factory=list)  # what else of its process was changed
    asked: list[str] = field(default_factory=list)  # what the launcher has asked of CUDA so far
    undefined: dict[str, str] = field(default_factory=dict)  # what was undefined, by place
    watched: bool = False  # the call was watched, which can make a call fail
    broken: list[str] = field(default_factory=list)  # writes beside allocations, one sentence each
    library: list[str] = field(default_factory=list)  # library calls, apart from allocation, fills and views
    guarded: bool = False  # all outputs lie between guard bands
    writer: str | None = None  # who wrote the element that was asked about
    unexplained: dict[str, str] = field(default_factory=dict)  # outputs whose values no kernel gave, and why
    cheats: list[str] = field(default_factory=list)  # what an untrusted kernel has done so far that is not allowed

    @property
    def returned(self) -> bool:
        return self.raised is None


class Executor(Protocol):
    """Makes calls of one subject."""

    device: str  # where the operands of a call are to be placed

    @property
    def spent(self) -> bool:
        """Whether no further call can be made: CUDA would answer it with an error."""

    def call(
        self, arguments: Mapping[str, Any], manner: Manner = PLAIN, placed: Placed | None = None, debug: bool = False
    ) -> Observed:
        """Call the kernel. `placed`: the buffers of the operands. With `debug` exceptions are let through."""

    def reread(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have these outputs of earlier calls hold what their memory holds now."""


class Hiding(contextlib.AbstractContextManager, Protocol):
    """Hides numbers from a launcher."""

    def end(self) -> None:
        """Show them: what is called from here on is none of the kernel's author's."""

    def close(self) -> None:
        """The outputs were read."""


class InProcess:
    """Makes the calls in this process."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.device = subject, subject.device
        self.watchable = not launching.compiled(subject.fn)
        self.host: Hiding | None = None  # around the next call, innermost
        self._graph: torch.cuda.CUDAGraph | None = None  # in whose memory the outputs of its replay lie
        self._imported: tuple[int, Subject] = 0, subject  # the latest one that was imported anew

    @property
    def spent(self) -> bool:
        return bool(lost_context)

    def _called(self, arguments: Mapping[str, Any], manner: Manner) -> Any:
        """What the function returns; one that asks autograd for its answer is called with gradients on."""
        subject = self._anew(manner.anew) if manner.anew else self.subject
        try:
            return subject.call(arguments)
        except RuntimeError as error:
            if not manner.usual or NEEDS_GRADIENTS not in said(error):
                raise
        with torch.enable_grad():
            return subject.call(arguments)

    def _anew(self, number: int) -> Subject:
        """The kernel of its file imported once more, in which nothing is left of earlier calls. ImportError where that
        was not imported by its path."""
        if self._imported[0] != number:
            self._imported = number, replace(self.subject, fn=importing.once_more(self.subject.fn))
        return self._imported[1]

    def _replayed(self, arguments: Mapping[str, Any]) -> Any:
        """What a replay of the call returns, captured after a call that compiles. The outputs hold no answer before."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.subject.call(arguments)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            returned = self.subject.call(arguments)
        for tensor in _tensors(returned):
            tensor.fill_(math.nan if tensor.is_floating_point() else probe.PATTERNS[1])
        self._graph.replay()
        return returned

    def call(
        self, arguments: Mapping[str, Any], manner: Manner = PLAIN, placed: Placed | None = None, debug: bool = False
    ) -> Observed:
        subject, seen = self.subject, Observed()
        state = probe.State(random=manner.state and manner.generators)
        watch = probe.Watch(moving(subject, arguments)) if manner.watched and self.watchable else None
        launches = backends.launches()
        try:
            with contextlib.ExitStack() as stack:
                met = stack.enter_context(settled(subject, manner.conspicuous))
                if manner.usual:
                    stack.enter_context(torch.no_grad())
                writers = [stack.enter_context(w) for w in self._writers()] if manner.element is not None else []
                if manner.poison is not None:
                    stack.enter_context(probe.poison(manner.poison, subject.device, manner.blocks))
                for within in (
                    self._instrument(manner.instrument),
                    _late(placed or {}) if manner.late else None,
                    watch,
                    self.host,
                ):
                    if within is not None:
                        stack.enter_context(within)
                try:
                    returned = self._replayed(arguments) if manner.replayed else self._called(arguments, manner)
                finally:
                    seen.undefined = met()
                if subject.device == "cuda":
                    torch.cuda.synchronize()
                seen.values = subject.contract.by_name(returned, subject.outputs)
                if manner.element is not None and isinstance(seen.values, dict):
                    copies = watch.copies if watch is not None else ()
                    seen.writer = _writer(writers, copies, seen.values, *manner.element)
        except Exception as error:
            seen.raised = _raised(error, subject.device)
            if debug and seen.raised.kind == RAISES:
                raise
            seen.displaced = not subject.own and launching.displaced(error, subject.device)
            seen.lost = _lost(subject.device)
        finally:
            try:
                seen.settings, seen.consumed = state.changes()  # asks what may be of the author's
            finally:
                if self.host is not None:
                    self.host.end()
        seen.launched = sorted(backends.launches() - launches)
        seen.asked = sorted(subject.asked)
        if watch is not None:
            seen.watched, seen.broken, seen.library = True, watch.broken(), sorted(watch.library)
        if isinstance(seen.values, dict):
            tensors = {name: value for name, value in seen.values.items() if isinstance(value, torch.Tensor)}
            seen.on_host = [name for name, tensor in tensors.items() if self._on_host(tensor, seen)]
            filled = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
            seen.guarded = watch is not None and all(map(watch.reached, filled.values()))
            if watch is not None and subject.untrusted and subject.arrays == "torch":
                told = {name: watch.unexplained(tensor) for name, tensor in filled.items()}
                seen.unexplained = {name: why for name, why in told.items() if why is not None}
        return seen

    def reread(self, tensors: Sequence[torch.Tensor]) -> None:
        """Nothing has to be done: these tensors are what the kernel returned."""

    def _on_host(self, tensor: torch.Tensor, seen: Observed) -> bool:
        if self.device == "cuda":
            return tensor.device.type == "cpu"
        return bool(seen.launched) and cuda_face.on_host(tensor)

    def _writers(self) -> list[Any]:
        """The contexts that tell who wrote an element: `writers(device)`, an optional part of the backend protocol."""
        backends = map(registry.backend, registry.behind(self.subject.target))
        offered = [getattr(backend, "writers", None) for backend in backends]
        found = [watch(self.subject.device) for watch in offered if watch is not None]
        return [context for context in found if context is not None]

    def _instrument(self, which: tuple[str, str] | None) -> Any:
        if which is None:
            return None
        backend, name = which
        offered: Any = registry.backend(backend)
        return offered.instruments(self.subject.device)[name]()


def moving(subject: Subject, arguments: Mapping[str, Any]) -> "probe.Moving | None":
    """What tells the library's copies that do a call's work, where all of it is to move elements."""
    return probe.Moving(_tensors(list(arguments.values()))) if subject.contract.moves else None


def _lost(device: str) -> str | None:
    """What CUDA says after an error where it says so from then on, None where it still works."""
    if device != "cuda":
        return None
    try:
        torch.cuda.synchronize()
    except Exception as error:
        lost_context.append(said(error).partition("\n")[0])
        return lost_context[-1]
    return None


def instruments_of(subject: Subject, engines: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """What is offered to watch kernels with that were launched on these engines: a backend, its engine, the names of
    its instruments. Two languages on one engine have the same ones, which come once."""
    left = set(engines)
    for backend in registry.behind(subject.target) if left else ():
        module: Any = registry.backend(backend)
        engine = getattr(module, "ENGINE", None)
        if engine in left and (names := list(module.instruments(subject.device))):
            left.discard(engine)
            yield backend, engine, names


def reached(fn: Callable[..., Any], device: str) -> list[Any]:
    """The backends whose kernels, set up for `device`, a user's function reaches."""
    other = "cuda" if device == "cpu" else "cpu"
    return [backend for backend in map(registry.backend, registry.backends()) if backend.reimport(fn, other)]


@contextlib.contextmanager
def settled(subject: Subject, conspicuous: Sequence[str] | None) -> Iterator[Callable[[], dict[str, str]]]:
    """Within: what is undefined is as on GPUs, but at the `conspicuous` places (None: everywhere). Gives a function
    that tells what was undefined so far, by place."""
    with contextlib.ExitStack() as stack:
        found = []
        for backend in registry.behind(subject.target):
            offered = getattr(registry.backend(backend), "undefined", None)
            context = offered(subject.device, conspicuous) if offered is not None else None
            if context is not None:
                found.append(stack.enter_context(context))
        yield lambda: {place: what for each in found for place, what in each.items()}


@contextlib.contextmanager
def _late(placed: Placed) -> Iterator[None]:
    """Within: another stream is current, and the inputs arrive on it late: work on any other stream reads what was
    there before."""
    buffers = [each.buffer for each in placed.values() if each is not None]
    arrived = [buffer.clone() for buffer in buffers]
    for buffer in buffers:
        buffer.fill_(probe.PATTERNS[1])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        for buffer, values in zip(buffers, arrived, strict=True):
            buffer.copy_(values)
        yield
    stream.synchronize()


def _tensors(returned: Any) -> list[torch.Tensor]:
    several = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [one for one in several if isinstance(one, torch.Tensor)]


def _raised(error: Exception, device: str) -> Raised:
    kind, text = RAISES, said(error)
    if isinstance(error, NotImplementedError):
        kind = DECLINES
    elif isinstance(error, CANNOT_RUN):
        kind = CANNOT
    elif missing := launching.cannot(error, device):
        kind, text = CANNOT, missing
    names = tuple(cls.__name__ for cls in type(error).__mro__)
    return Raised(kind, names, text, error_text(error))


def error_text(error: BaseException) -> str:
    """The type and message of an error, and the file and line of the kernel that it came from, if the message names
    none."""
    frame = _innermost(traceback.extract_tb(error.__traceback__))
    text = said(error).strip() or "no message"
    where = ""
    if frame is not None and not re.search(r"\w\.\w+:\d", text):
        where = f" ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})"
    return f"{type(error).__name__}: {text}{where}"


def _innermost(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """The innermost frame of the kernel's author: of no library, Cython's among them, whose files have no folder here,
    and of nothing here that judges or runs kernels.

    Of a kernel that is itself a library's, the innermost frame of the file that was called; else that of all.
    """
    theirs = [frame for frame in frames if not _MACHINERY.match(frame.filename)]
    own = [frame for frame in theirs if _PACKAGES not in frame.filename and not frame.filename.endswith(".pyx")]
    called = [frame for frame in theirs if frame.filename == theirs[0].filename]
    return next(reversed(own or called or frames), None)


def ending_text(error: BaseException) -> str:
    """What a kernel raised that ends a process: "sys.exit(3)", else as `error_text`."""
    return f"sys.exit({said(error.code, repr)})" if isinstance(error, SystemExit) else error_text(error)


def _writer(
    writers: Sequence[Any],
    copies: Sequence[tuple[torch.Tensor, torch.Tensor]],
    values: Mapping[str, Any],
    output: str,
    index: Sequence[int],
) -> str | None:
    """Who wrote an element of an output, or what it was copied from by one of the `copies` (to, from)."""
    tensor = values.get(output)
    if not isinstance(tensor, torch.Tensor) or len(index) != tensor.ndim:
        return None
    if any(place >= size for place, size in zip(index, tensor.shape, strict=True)):
        return None
    address = _address(tensor, index)
    found = _last(writers, address)
    for to, source in reversed(copies):
        if found is None and (place := _index(to, address)) is not None:
            address = _address(source.expand(to.shape), place)
            found = _last(writers, address)
    return found


def _last(writers: Sequence[Any], address: int) -> str | None:
    """Who wrote the byte at an address last."""
    return next(filter(None, (each.of(address) for each in writers)), None)


def _address(tensor: torch.Tensor, index: Sequence[int]) -> int:
    place = sum(i * stride for i, stride in zip(index, tensor.stride(), strict=True))
    return tensor.data_ptr() + place * tensor.element_size()


def _index(tensor: torch.Tensor, address: int) -> tuple[int, ...] | None:
    """The index of the element at an address; None where `tensor` has none there."""
    left, off = divmod(address - tensor.data_ptr(), tensor.element_size())
    if off or left < 0:
        return None
    found = [0] * tensor.ndim
    strides = tensor.stride()
    for axis in sorted(range(tensor.ndim), key=strides.__getitem__, reverse=True):
        stride, size = strides[axis], tensor.shape[axis]
        if stride and size > 1:
            found[axis], left = divmod(left, stride)
        if found[axis] >= size:
            return None
    return tuple(found) if not left else None
