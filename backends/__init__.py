"""Kernels, one folder a language. Here: what every launcher shares, whatever its language.

`Unsupported` is how a launcher declines an input that its contract allows; `shapes` is the one-line argument check
that every launcher makes before anything runs.
"""

if __name__ != "touchstone.backends":
    raise ImportError(
        f"touchstone.backends was imported as {__name__!r}: import it as touchstone.backends, so that no module "
        f"exists under two names"
    )

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

import torch

INTERPRETER, EMULATOR = "interpreter", "emulator"  # the engines: what runs kernels on the CPU
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Unsupported(NotImplementedError):
    """A valid input that this kernel does not take; the message says why (`"5000 columns; one block holds 4096"`)."""


class NotRun(RuntimeError):
    """A kernel that this target cannot execute; it says nothing about whether the kernel is right. The message says
    what is missing (`"libdevice.j0 is not interpreted"`)."""


class Reached(NamedTuple):
    """Memory that a launch may write to."""

    start: int
    bytes: int
    owner: Any  # what has to stay for the memory to stay: a tensor, an array


_running = _chosen = 0
_launches: Counter[str] = Counter()
before_launch: list[Callable[[Iterable[Reached]], None]] = []  # called when a launch begins, with what it reaches
after_launch: list[Callable[[], None]] = []  # and when it has ended
failed_launch: list[Callable[[BaseException], None]] = []  # and before that, with what it raised
strayed: list[Callable[[Any], None]] = []  # with addresses that a kernel writes to and that it has from no argument
on_constants: list[Callable[[], contextlib.AbstractContextManager]] = []  # entered by `compiling`, within a launch
on_observing: list[Callable[[], None]] = []  # called when an instrument is turned on that tells what kernels do
called: set[str] = set()  # regular expressions of modules of others, whose functions interpreters call in a launch
kernel_code: set[CodeType] = set()  # what interpreters have made of kernels, which runs as Python


@contextlib.contextmanager
def running(reached: Callable[[], Iterable[Reached]] = tuple, engine: str = INTERPRETER) -> Iterator[None]:
    """Entered by an engine around a launch: what torch does meanwhile is no call of the launcher's.

    `reached` gives the memory that the launch may write to, as far as its arguments tell.
    """
    global _running
    if before_launch and not _running:
        found = tuple(reached())
        for begins in before_launch:
            begins(found)
    _running += 1
    _launches[engine] += 1
    try:
        yield
    except BaseException as error:
        for fails in failed_launch if _running == 1 else ():
            fails(error)
        raise
    finally:
        _running -= 1
        for told in after_launch if not _running else ():
            told()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Entered by an interpreter around what a launch calls on constants, as a GPU's compiler does before any launch."""
    with contextlib.ExitStack() as stack:
        for within in on_constants if _running else ():
            stack.enter_context(within())
        yield


def observing() -> None:
    """Called by an instrument that tells what kernels do, when it is turned on."""
    for told in on_observing:
        told()


def chosen(more: int = 0) -> int:
    """How many calls on constants the numbers of kernels have decided about; `more` are added."""
    global _chosen
    _chosen += more
    return _chosen


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Within, the garbage collector does not run: it looks through all of torch, and calls finalizers of anybody's."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def launches() -> Counter[str]:
    """How many launches each engine of this process has begun."""
    return _launches.copy()


def kernel_running() -> bool:
    """Whether a kernel is running in an interpreter or emulator of this process."""
    return _running > 0


def shapes(spec: str, **tensors: torch.Tensor | None) -> tuple[int, ...]:
    """Check the operands of a call against `spec`; return the sizes it names, in order of first appearance.

    `spec` has one comma-separated entry an operand, in the order of the keywords: `shapes("M K, K N", a=a, b=b)`
    returns `(M, K, N)`. A letter stands for one size and means the same everywhere; `...` for any number of trailing
    axes, not returned; a number for itself; `K/8` for an eighth of a size named before, which must be a multiple of 8;
    `()` for no axes at all. `:float32` after an entry fixes that operand's dtype, `:int64|int32` to one of several, of
    which `same` is the common one; every other operand must have one common dtype out of float32, float16 and bfloat16.
    `?` after an entry lets the operand be None.

    Raises TypeError (not a tensor, wrong or mixed dtype) or ValueError (rank, size, device), naming the argument.
    """
    key: tuple[Any, ...]
    try:
        key = (spec, *[None if t is None else (type(t), t.dtype, t.shape, t.device) for t in tensors.values()])
        found = _right.get(key)
    except (AttributeError, TypeError):  # of what is no tensor
        return _checked(spec, tensors)
    if found is None:
        found = _checked(spec, tensors)
        if len(_right) >= MOST:
            _right.clear()
        _right[key] = found
    return found


MOST = 4096  # calls whose sizes are kept; then all are checked anew
_right: dict[tuple[Any, ...], tuple[int, ...]] = {}  # sizes by what was checked: a launcher is called with few


def _checked(spec: str, tensors: Mapping[str, torch.Tensor | None]) -> tuple[int, ...]:
    entries = _entries(spec)
    if len(entries) != len(tensors):
        raise TypeError(f"shapes: {len(entries)} entries in {spec!r} for {len(tensors)} operands")
    sizes: dict[str, int] = {}
    leader: tuple[str, torch.device] | None = None  # whose device the others share
    first: tuple[str, torch.dtype] | None = None  # whose dtype the others share
    for entry, (name, tensor) in zip(entries, tensors.items(), strict=True):
        if tensor is None and entry.optional:
            continue
        if not isinstance(tensor, torch.Tensor):
            expected = f"a torch.Tensor{' or None' if entry.optional else ''}"
            raise TypeError(f"{name}: expected {expected}, got {type(tensor).__name__}")
        dtype, shape, device = tensor.dtype, tensor.shape, tensor.device
        if dtype not in entry.dtypes:
            if entry.closed or dtype not in FLOATS or (first is not None and dtype is not first[1]):
                raise TypeError(f"{name}: {_wrong_dtype(entry, dtype, first)}")
            first = first or (name, dtype)
        if len(shape) < len(entry.axes) or (len(shape) > len(entry.axes) and not entry.trailing):
            raise ValueError(f"{name}: expected shape {entry.form}, got {tuple(shape)}")
        for axis, size in zip(entry.axes, shape, strict=False):
            wanted = sizes.setdefault(axis, size) if isinstance(axis, str) else _expected(axis, spec, tensors, sizes)
            if size != wanted:
                why = _why(axis, spec, tensors, sizes)
                raise ValueError(f"{name}: expected shape {entry.form}{why}, got {tuple(shape)}")
        if leader is None:
            leader = (name, device)
        elif device != leader[1]:
            raise ValueError(f"{name}: is on {device}, but {leader[0]} is on {leader[1]}")
    return tuple(sizes.values())


_SAME = "same"


class _Part(NamedTuple):
    """An axis that is an eighth, say, of a size."""

    whole: str
    parts: int


class _Entry(NamedTuple):
    """What one entry of `shapes` asks of an operand. `closed`: no other dtypes than these."""

    optional: bool
    dtypes: frozenset[torch.dtype]
    named: tuple[str, ...]
    closed: bool
    axes: tuple[str | int | _Part, ...]
    trailing: bool
    form: str


@cache
def _entries(spec: str) -> tuple[_Entry, ...]:
    """The entries of `spec`, which every call of a launcher gives anew."""
    return tuple(_entry(text.strip()) for text in spec.split(","))


def _entry(text: str) -> _Entry:
    axes_text, _, fixed = text.rstrip("?").partition(":")
    allowed = tuple(fixed.split("|")) if fixed else ()
    named = tuple(name for name in allowed if name != _SAME)
    axes = axes_text.split() if axes_text.strip() != "()" else []
    trailing = axes[-1:] == ["..."]
    return _Entry(
        text.endswith("?"),
        frozenset(getattr(torch, name) for name in named),
        named,
        bool(allowed) and _SAME not in allowed,
        tuple(map(_axis, axes[:-1] if trailing else axes)),
        trailing,
        f"({', '.join(axes)})",
    )


def _axis(text: str) -> str | int | _Part:
    whole, _, parts = text.partition("/")
    return _Part(whole, int(parts)) if parts else int(text) if text.isdigit() else text


def _expected(axis: int | _Part, spec: str, tensors: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    if isinstance(axis, int):
        return axis
    size = sizes[axis.whole]
    if size % axis.parts:
        raise ValueError(f"{_owner(axis.whole, spec, tensors)}: {axis.whole} = {size} is no multiple of {axis.parts}")
    return size // axis.parts


def _why(axis: str | int | _Part, spec: str, tensors: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    if isinstance(axis, int):
        return ""
    whole = axis.whole if isinstance(axis, _Part) else axis
    return f", where {_owner(whole, spec, tensors)} gives {whole} = {sizes[whole]}"


def _owner(size: str, spec: str, tensors: Mapping[str, Any]) -> str:
    """The operand that gives a size first."""
    given = zip(_entries(spec), tensors.items(), strict=True)
    return next(name for entry, (name, tensor) in given if tensor is not None and size in entry.axes)


def _wrong_dtype(entry: _Entry, dtype: torch.dtype, first: tuple[str, torch.dtype] | None) -> str:
    got = _name(dtype)
    if entry.closed:
        return f"expected dtype {' or '.join(entry.named)}, got {got}"
    if dtype not in FLOATS or first is None:
        return f"expected dtype float32, float16 or bfloat16, got {got}"
    shared = f"dtype {got}, but {first[0]} has {_name(first[1])}; all operands share one dtype"
    return shared + "".join(f", or it is {name}" for name in entry.named)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def seen_by(owner: type, method: str, pick: Callable[[Any, Any], Any], call: Callable[[], Any]) -> list[Any]:
    """What `pick(self, result)` gives of each call of a class's method while `call()` runs, each object once."""
    found: dict[int, Any] = {}
    original = getattr(owner, method)

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        one = pick(self, result)
        if one is not None:
            found[id(one)] = one
        return result

    setattr(owner, method, watched)
    try:
        call()
    finally:
        setattr(owner, method, original)
    return list(found.values())
