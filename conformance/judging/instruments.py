"""Instruments around a call: what a kernel does besides returning values, seen without its cooperation.

Each has its blind spots, so each outcome says which of them reached the kernel:

- allocator poison: fresh memory is filled with a byte pattern, so that what a kernel never wrote shows. On the CPU
  glibc's
  M_PERTURB, for torch, NumPy, threads and compiled code alike; on both devices blocks of the outputs' sizes are
  poisoned and freed before the call, which is what the caching allocators hand out next.
- output guards and library calls: a dispatch mode, in one further call. It does not see into `torch.compile`, custom
  ops,
  other threads, NumPy or CuPy; whether it reached the outputs is told by where they lie.
- global state: compared before and after; settings are put back.
"""

import contextlib
import ctypes
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from touchstone import backends

PATTERNS = (0xFF, 0x7B)  # NaN in every floating dtype; a large finite value (1.3e36, 6e4, 1.3e36)
GUARD_BYTES = 512
GUARD = 0x5A
M_PERTURB = -6
POOL_BLOCKS = 32  # of one size: glibc hands out freed blocks of that size without the pattern of M_PERTURB
POOL_BYTES = 2**24
THREADS = "the number of threads"

EMPTY = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"}
FILLED = {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full"}
FILLS = {"fill_", "zero_"}


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None


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
    try:
        yield
    finally:
        mallopt(M_PERTURB, 0)


def raw(x: torch.Tensor) -> torch.Tensor:
    """The values as bytes; a copy, since an empty axis or one of size 1 leaves strides that cannot be viewed so."""
    return torch.empty(x.numel(), dtype=x.dtype, device=x.device).copy_(x.detach().reshape(-1)).view(torch.uint8)


class State:
    """What a call must leave as it found it, outside its operands: taken at construction.

    Without `random`, generators and the environment are left out, which are most of the cost.
    """

    def __init__(self, random: bool = True) -> None:
        self.values = {name: read() for name, (read, _) in _STATE.items()}
        self.random = _random_state() if random else None
        self.environment = dict(os.environ) if random else None

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
        if self.random is None or self.environment is None:
            return settings, consumed
        for name, before, now in zip(_RANDOM, self.random, _random_state(), strict=True):
            if not _same(before, now):
                consumed.append(f"the state of {name}")
        if self.environment != os.environ:
            names = sorted(n for n in {*self.environment, *os.environ} if self.environment.get(n) != os.environ.get(n))
            consumed.append(f"environment variables {', '.join(names)}")
        return settings, consumed


_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
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

    def __init__(self) -> None:
        super().__init__()
        self.library: dict[str, int] = {}
        self._buffers: list[tuple[torch.Tensor, int, str]] = []  # whole buffer, bytes of the body, what it is

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, and with it triton, on the first call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if backends.kernel_running():
            return made
        name = func._schema.name.removeprefix("aten::")
        if name in EMPTY or name in FILLED:
            return self._guarded(made, name in EMPTY)
        if name in ("resize_", "set_"):
            self._abandon(args[0])
        elif name not in FILLS and not func.is_view:
            self.library[name] = self.library.get(name, 0) + 1
        return made

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
        found = []
        for buffer, body, what in self._buffers:
            for side, band in (("before", buffer[:GUARD_BYTES]), ("after", buffer[GUARD_BYTES + body :])):
                touched = (band != GUARD).nonzero().flatten()
                if touched.numel():
                    where = "before an" if side == "before" else "past the end of an"
                    found.append(f"{touched.numel()} bytes {where} allocation of {what} were written")
        return found


def _inside(tensor: torch.Tensor, buffer: torch.Tensor) -> bool:
    return 0 <= tensor.data_ptr() - buffer.data_ptr() < buffer.numel()


def compiled(fn: Any) -> bool:
    """Whether `fn` is, or directly uses, a torch.compile'd function: a dispatch mode would make it run in eager
    form."""
    code = getattr(fn, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(fn, "__closure__", None) or () if _filled(cell)]
    used = [getattr(fn, "__globals__", {}).get(name) for name in (code.co_names if code else ())]
    return any(hasattr(found, "_torchdynamo_orig_callable") for found in (fn, *cells, *used))


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
