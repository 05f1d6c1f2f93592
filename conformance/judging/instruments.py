"""Instruments around a call: what a kernel does besides returning values, seen without its cooperation.

Each has its blind spots, so each outcome says which of them reached the kernel:

- allocator poison: fresh memory is filled with a byte pattern, so that what a kernel never wrote shows. On the CPU
  glibc's M_PERTURB, for torch, NumPy, threads and compiled code alike; on both devices blocks of the outputs' sizes are
  poisoned and freed before the call, which is what the caching allocators hand out next.
- output guards and library calls: a dispatch mode, in one further call. It sees into custom ops that are Python, and
  not into `torch.compile`, compiled ops, other threads, NumPy or CuPy; whether it reached the outputs is told by where
  they lie.
- global state: compared before and after; settings are put back.
"""

import contextlib
import ctypes
import functools
import gc
import os
import random
import signal
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from touchstone import backends
from touchstone.conformance.spec import layouts

if sys.platform != "win32":
    import resource

PATTERNS = (0xFF, 0x7B)  # NaN in every floating dtype; a large finite value (1.3e36, 6e4, 1.3e36)
GUARD_BYTES = 512
GUARD = 0x5A
M_PERTURB = -6
POOL_BLOCKS = 32  # of one size: glibc hands out freed blocks of that size without the pattern of M_PERTURB
POOL_BYTES = 2**24
CACHED = 8  # one more than glibc's cache of a thread holds blocks of one size
CACHED_BYTES = 1032  # the largest request that this cache serves
ALIGNMENT = 64  # of torch's allocations
WIDTHS = (1, 2, 4)  # how much wider than the outputs what a kernel keeps in between may be: float32, float64
THREADS = "the number of threads"

EMPTY = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"}
FILLED = {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full"}
FILLS = {"fill_", "zero_"}
COPIES = {"clone", "_to_copy", "copy_"}
READS = {"_local_scalar_dense"}  # `item()`
ALONE = 64  # elements that are copied one by one in a call, as a launcher may place some


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None


@functools.cache
def _malloc() -> tuple[Callable[[int], int], Callable[[int, int], int], Callable[[int], None]]:
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.aligned_alloc.argtypes, library.aligned_alloc.restype = [ctypes.c_size_t] * 2, ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
    return library.malloc, library.aligned_alloc, library.free


def _fill_cache(byte: int, blocks: Sequence[int]) -> None:
    """Fill the thread's cache at the sizes from which torch's allocations of `blocks` bytes are cut.

    posix_memalign asks for a block with room for the alignment. Where that size's cache has room, glibc 2.36 puts free
    blocks of the size there first and then hands one out as it is, without the pattern of M_PERTURB.
    """
    malloc, _, free = _malloc()
    for size in {max(32, n * width + 23 & ~15) + 96 for n in blocks for width in WIDTHS}:
        if size <= CACHED_BYTES:
            held = [malloc(size) for _ in range(CACHED)]
            for address in held:
                ctypes.memset(address, byte, size)
                free(address)


@contextlib.contextmanager
def _drained_cache(blocks: Sequence[int]) -> Iterator[None]:
    """Within: the thread's cache has no aligned blocks of these sizes, which glibc 2.39 would hand out as they are."""
    _, aligned_alloc, free = _malloc()
    sizes = {n * width for n in blocks for width in WIDTHS if 0 < n * width <= CACHED_BYTES}
    held = [aligned_alloc(ALIGNMENT, size) for size in sizes for _ in range(CACHED)]
    try:
        yield
    finally:
        for address in held:
            free(address)


@contextlib.contextmanager
def poison(byte: int, device: str, blocks: Sequence[int]) -> Iterator[None]:
    """Within: memory that the allocators hand out holds `byte`; `blocks` are the sizes in bytes to expect."""
    for size in {n for n in blocks if n}:
        count = min(POOL_BLOCKS, max(1, POOL_BYTES // size))
        pool = [torch.empty(size, dtype=torch.uint8, device=device).fill_(byte) for _ in range(count)]
        del pool
    mallopt = _mallopt() if device == "cpu" else None
    if mallopt is None:
        yield
        return
    mallopt(M_PERTURB, (byte ^ 0xFF) or 0x100)  # malloc fills with the complement; 0 would switch it off
    _fill_cache(byte, blocks)
    try:
        with _drained_cache(blocks):
            yield
    finally:
        mallopt(M_PERTURB, 0)


def raw(x: torch.Tensor) -> torch.Tensor:
    """The values as bytes; a copy, since an empty axis or one of size 1 leaves strides that cannot be viewed so."""
    return torch.empty(x.numel(), dtype=x.dtype, device=x.device).copy_(x.detach().reshape(-1)).view(torch.uint8)


# by its compiler's settings, which torch imports when they are first needed
SET_BY_TORCH = {"TORCHINDUCTOR_CACHE_DIR"}

# What os.environ keeps, in bytes on POSIX: it decodes every name and value each time that it is read, which took a
# tenth of a call's judging.
_ENVIRONMENT: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)


class State:
    """What a call must leave as it found it, outside its operands: taken at construction.

    Without `random`, generators are left out, which are most of the cost.
    """

    def __init__(self, random: bool = True) -> None:
        self.values = {name: read() for name, (read, _) in _STATE.items()}
        self.process = {name: read() for name, read in _PROCESS.items()}
        self.environ, self.environment = os.environ, dict(_ENVIRONMENT)
        self.generators = _random_state() if random else None

    def changes(self) -> tuple[list[str], list[str]]:
        """What was changed: settings, which are put back, and what is only consumed: generators, the environment.

        Generators are left where they are: a kernel that draws from them would get the same numbers in every call.
        """
        settings: list[str] = []
        consumed: list[str] = []
        for name, (read, write) in _STATE.items():
            now = read()
            if now != self.values[name]:
                kind = consumed if name == THREADS else settings  # an OpenMP library of the kernel's may share torch's
                kind.append(f"{name} from {self.values[name]} to {now}")
                write(self.values[name])
        for name, value in self.process.items():
            if (now := _PROCESS[name]()) != value:
                consumed.append(f"{name} from {value} to {now}")
        if self.generators is not None:
            for name, before, now in zip(_RANDOM, self.generators, _random_state(), strict=True):
                if not _same(before, now):
                    consumed.append(f"the state of {name}")
        before, now = self.environment, _ENVIRONMENT
        if before != now:
            names = {os.fsdecode(n) for n in {*before, *now} if before.get(n) != now.get(n)}
            if names := names - SET_BY_TORCH:
                consumed.append(f"environment variables {', '.join(sorted(names))}")
        if os.environ is not self.environ:
            consumed.append("what os.environ is")
        return settings, consumed


_LEAST = 2.0**-1022  # the smallest normal number


_ONE, _LITTLE = [1.0], [2.0**-60]  # in lists, so that Python does not add them before it runs


def _rounding() -> str:
    up, down = _ONE[0] + _LITTLE[0] > 1, _ONE[0] - _LITTLE[0] < 1
    return "upwards" if up else "downwards" if down and -_ONE[0] - _LITTLE[0] < -1 else "to zero" if down else "nearest"


def _fesetround(mode: int) -> None:
    for name in ("libm.so.6", None):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(name).fesetround(mode)
            return


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "none"


def _streams() -> str:
    """Which of the first three descriptors are open."""
    found = []
    for number in range(3):
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.append(str(number))
    return ", ".join(found) or "none"


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(each) for each in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)]


def _default_device() -> str | None:
    """None stands for the CPU, without a mode that says so."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else str(device)


def _autocast() -> list[tuple[str, bool]]:
    return [(device, torch.is_autocast_enabled(device)) for device in ("cpu", "cuda")]


_OF_MODULES = {
    name: hooks
    for name, hooks in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and name.endswith("_hooks")
}


def _module_hooks() -> list[tuple[str, int]]:
    """What torch calls for every module, by the kind and the key."""
    return [(name.removeprefix("_global_"), key) for name, hooks in _OF_MODULES.items() for key in hooks]


def _unhook(kept: list[tuple[str, int]]) -> None:
    for kind, key in set(_module_hooks()).difference(kept):
        del _OF_MODULES[f"_global_{kind}"][key]


def _file_mode() -> str:
    mode = os.umask(0o077)
    os.umask(mode)
    return f"{mode:03o}"


# of the process, noted and left as they are
_PROCESS: dict[str, Callable[[], Any]] = {
    "the garbage collector": lambda: "on" if gc.isenabled() else "off",
    "the garbage collector's callbacks": lambda: len(gc.callbacks),
    "the recursion limit": sys.getrecursionlimit,
    "the mode of new files": _file_mode,
    "the current folder": _folder,
    "the trace function": lambda: sys.gettrace() is not None,
    "the profile function": lambda: sys.getprofile() is not None,
    "Python's threads": lambda: len(sys._current_frames()),
    "standard output": lambda: "closed" if sys.stdout is None or sys.stdout.closed else "open",
    "the standard streams": lambda: _streams(),
    "the warnings that are errors": lambda: sum(kind == "error" for kind, *_ in warnings.filters),
}
if sys.platform != "win32":
    _PROCESS["the limits of its process"] = _limits
    _PROCESS["the priority of its process"] = lambda: os.getpriority(os.PRIO_PROCESS, 0)
    _PROCESS["the signals blocked"] = lambda: sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))
if hasattr(os, "sched_getaffinity"):
    _PROCESS["the processors that it may use"] = lambda: sorted(os.sched_getaffinity(0))
_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (_default_device, lambda value: torch.set_default_device(value)),
    "autocast": (_autocast, lambda value: [torch.set_autocast_enabled(*each) for each in value]),
    "inference mode": (torch.is_inference_mode_enabled, lambda value: None),  # nothing can end it from outside
    "flushing of denormal numbers": (lambda: _LEAST / 2 == 0, torch.set_flush_denormal),
    "the rounding mode": (_rounding, lambda value: _fesetround(0)),
    "torch's dispatch modes": (lambda: torch._C._len_torch_dispatch_stack(), lambda value: None),
    "torch's function modes": (lambda: torch._C._len_torch_function_stack(), lambda value: None),
    "torch's hooks of all modules": (_module_hooks, _unhook),
    "torch's detection of anomalies": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "the float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "autograd's mode": (torch.is_grad_enabled, lambda value: torch._C._set_grad_enabled(value)),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        lambda value: torch.use_deterministic_algorithms(value),
    ),
    "cudnn.allow_tf32": (lambda: torch._C._get_cudnn_allow_tf32(), lambda value: torch._C._set_cudnn_allow_tf32(value)),
    THREADS: (torch.get_num_threads, torch.set_num_threads),
    "NumPy's error handling": (np.geterr, lambda value: np.seterr(**value)),
}
_RANDOM = ("torch's generator", "NumPy's generator", "random's generator")


def _random_state() -> tuple[Any, ...]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return torch.equal(before, now)
    if isinstance(before, tuple) and any(isinstance(part, np.ndarray) for part in before):
        return all(np.array_equal(a, b) for a, b in zip(before, now, strict=True))
    return before == now


class Watch(TorchDispatchMode):
    """Within: torch's allocations lie between guard bands, and library calls are listed.

    Stands aside while a kernel runs in an interpreter or emulator.
    """

    def __init__(self, moving: "Moving | None" = None) -> None:
        super().__init__()
        self._moving = moving
        self.library: dict[str, int] = {}
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # to and from, of tensors of one shape or broadcast
        self._buffers: list[tuple[torch.Tensor, int, str]] = []  # whole buffer, bytes of the body, what it is
        self._digests: dict[int, int] = {}  # of buffers when the last launch ended, by address
        self._written: set[int] = set()  # and those that the library has written since

    def __enter__(self):
        backends.after_launch.append(self._remember)
        return super().__enter__()

    def __exit__(self, *error):
        backends.after_launch.remove(self._remember)
        return super().__exit__(*error)

    def _remember(self) -> None:
        self._digests = {buffer.data_ptr(): _digest(buffer) for buffer, _, _ in self._buffers if not buffer.is_cuda}
        self._written.clear()

    def unexplained(self, tensor: torch.Tensor) -> str | None:
        """Why neither a kernel nor a call of the library has given a tensor its values; None where one may have."""
        if any(to is tensor or to.data_ptr() == tensor.data_ptr() for to, _ in self.copies):
            return None
        buffer = next((buffer for buffer, _, _ in self._buffers if _inside(tensor, buffer)), None)
        if buffer is None:
            return "lies in memory that no call of torch's that was seen has allocated"
        known = self._digests.get(buffer.data_ptr())
        if known is None or buffer.data_ptr() in self._written or known == _digest(buffer):
            return None
        return "was changed after the last kernel had ended, by no call of the library that was seen"

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, and with it triton, on the first call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        running = backends.kernel_running()
        if not running and (body := python_of(func, args)) is not None:
            with on_again(self):
                return body(*args, **(kwargs or {}))
        made = func(*args, **(kwargs or {}))
        if running:
            return made
        name = func._schema.name.removeprefix("aten::")
        if name in EMPTY or name in FILLED:
            return self._guarded(made, name in EMPTY)
        if name in ("resize_", "set_"):
            self._abandon(args[0])
        elif name in FILLS:
            self._note_written(made)
        elif not func.is_view:
            if name in COPIES:
                made_plain, source = map(plain, (made, args[1] if name == "copy_" else args[0]))
                self._note_written(made_plain)
                self.copies.append((made_plain, source))
                name += IN_ANOTHER_ORDER if self._moving is not None and self._moving.does(*self.copies[-1]) else ""
            self.library[name] = self.library.get(name, 0) + 1
        return made

    def _note_written(self, tensor: torch.Tensor) -> None:
        self._written |= {buffer.data_ptr() for buffer, _, _ in self._buffers if _inside(tensor, buffer)}

    def _guarded(self, made: Any, poisoned: bool) -> Any:
        if type(made) is not torch.Tensor or made.layout is not torch.strided or not made.numel():
            return made
        if made.device.type not in ("cpu", "cuda") or (made.device.type == "cpu" and made.is_pinned()):
            return made
        body = made.untyped_storage().nbytes()
        room = -(-body // GUARD_BYTES) * GUARD_BYTES + 2 * GUARD_BYTES
        buffer = torch.empty(room, dtype=torch.uint8, device=made.device).fill_(GUARD)
        inside = buffer[GUARD_BYTES : GUARD_BYTES + body]
        if poisoned:
            inside.fill_(PATTERNS[1])
        else:
            inside.copy_(torch.empty(0, dtype=torch.uint8, device=made.device).set_(made.untyped_storage()))
        typed = buffer.view(made.dtype)
        offset = GUARD_BYTES // made.element_size() + made.storage_offset()
        self._buffers.append((buffer, body, f"{tuple(made.shape)} {str(made.dtype).removeprefix('torch.')}"))
        return typed.as_strided(made.shape, made.stride(), offset)

    def _abandon(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            kept = [entry for entry in self._buffers if not _inside(tensor, entry[0])]
            self._buffers = kept

    def reached(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lies between guard bands."""
        return any(_inside(tensor, buffer) for buffer, _, _ in self._buffers)

    def broken(self) -> list[str]:
        """The guard bands that were written, one sentence each."""
        bands = [
            (band, f"{where} allocation of {what}")
            for buffer, body, what in self._buffers
            for band, where in (
                (buffer[:GUARD_BYTES], "before an"),
                (buffer[GUARD_BYTES + body :], "past the end of an"),
            )
        ]
        written = map(int, layouts.fetched([(band != GUARD).sum() for band, _ in bands]))
        return [
            f"{count} bytes {where} were written" for count, (_, where) in zip(written, bands, strict=True) if count
        ]


IN_ANOTHER_ORDER = " in another order"


class Moving:
    """Of an op that only moves elements: which of the library's copies in a call do that, so that a kernel before or
    after them has nothing left to do but to copy."""

    def __init__(self, operands: Iterable[torch.Tensor]) -> None:
        self._operands = [_spread(each, each) for each in operands]
        self._trivial = all(len(axes) < 2 for _, axes in self._operands)  # nothing changes its place in memory
        self._alone = 0

    def does(self, to: torch.Tensor, source: torch.Tensor) -> bool:
        """Whether a copy has elements lie in another order than they lay; an operand may be made contiguous."""
        with torch._C.DisableTorchFunction():
            if self._trivial or to.layout is not torch.strided or source.layout is not torch.strided:
                return False
            begin, axes = _spread(to, source)
        if not axes:
            self._alone += 1
            return self._alone > ALONE
        there = [stride for stride, _ in axes]
        if (begin, [(stride, stride) for _, stride in axes]) in self._operands and there == sorted(there, reverse=True):
            return False
        here = [stride for _, stride in sorted(axes, reverse=True)]
        return here != sorted(here, reverse=True) or here[-1] != min(there)


def _spread(to: torch.Tensor, source: torch.Tensor) -> tuple[int, list[tuple[int, int]]]:
    """Where the source of a copy begins, and both strides of each axis along which it is more than one element."""
    strides = zip(to.shape, to.stride(), source.expand(to.shape).stride(), strict=True)
    return source.data_ptr(), [(there, here) for size, there, here in strides if size > 1 and here]


def python_of(func: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """What an operator does that was written in Python, by `torch.library`: to be called as its launcher would be, with
    a mode on. None of one of the library's own, and of one that was compiled."""
    if func.namespace == "aten":
        return None
    schema = func._schema
    name = schema.name.replace("::", "/") + (f".{schema.overload_name}" if schema.overload_name else "")
    device = next((each.device.type for each in args if isinstance(each, torch.Tensor)), "cpu").upper()
    if not torch.library._impls & {f"{name}/{key}" for key in ("CompositeExplicitAutograd", device)}:
        return None
    return functools.partial(func.redispatch, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device)))


@contextlib.contextmanager
def on_again(mode: TorchDispatchMode) -> Iterator[None]:
    """Within an operator that a mode was asked about, it is on once more."""
    TorchDispatchMode.__enter__(mode)
    try:
        yield
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without what its class makes of it."""
    with torch._C.DisableTorchFunction():
        return tensor if type(tensor) is torch.Tensor else torch._C.TensorBase.as_subclass(tensor, torch.Tensor)


def _digest(buffer: torch.Tensor) -> int:
    return zlib.crc32(buffer.numpy().tobytes())


def _inside(tensor: torch.Tensor, buffer: torch.Tensor) -> bool:
    return 0 <= tensor.data_ptr() - buffer.data_ptr() < buffer.numel()
