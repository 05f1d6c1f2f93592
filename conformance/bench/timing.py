"""One timed call, on a GPU by the driver's own events, on the CPU by the clock; and the clocks themselves watched.

A kernel under test runs in this process and may have replaced what measures it. So on a GPU time comes from libcuda,
called directly; clocks are bound at import, before any kernel's file; and `Guard` compares what it can see of the
measuring functions with what they were.
"""

import ctypes
import gc
import inspect
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from touchstone.conformance.bench.hooks import Code

COLD, WARM, GRAPH = "cold", "warm", "graph"
CACHES = (COLD, WARM, GRAPH)
CYCLES_PER_SECOND = 2e9  # of a GPU that waits; a faster clock waits shorter, and the hold is doubled then
HOLD, LONGEST_HOLD = 1e-4, 0.01  # seconds for which a stream is held back: at first, at most
LAG = 5e-5  # seconds that an idle GPU may take to say that it is idle

now = time.perf_counter


class Sample(NamedTuple):
    """One timed call: seconds on the device, seconds the host took to launch, what came back, seconds of work left
    over."""

    seconds: float
    host: float
    returned: Any
    kept: Any
    lag: float
    exposed: bool  # the host was too slow to keep the GPU busy: launch gaps are in `seconds`


class Bulk(NamedTuple):
    """Of calls one after another, seconds for each: until the device is done, and what the host takes to launch."""

    seconds: float
    host: float


@dataclass(frozen=True)
class Stats:
    """Of the samples of one contestant, in milliseconds."""

    median: float
    q1: float
    q3: float
    least: float
    count: int

    @property
    def iqr(self) -> float:
        return self.q3 - self.q1


def stats(seconds: Sequence[float]) -> Stats:
    """Median and quartiles; of at least one sample."""
    ms = sorted(1e3 * s for s in seconds)
    q1, median, q3 = statistics.quantiles(ms, n=4, method="inclusive") if len(ms) > 1 else (ms[0],) * 3
    return Stats(median, q1, q3, ms[0], len(ms))


class CpuTimer:
    """The host's clock around a call. Caches stay as they are: for an emulated kernel they say nothing."""

    device = "cpu"

    def __init__(self, cache: str = WARM) -> None:
        self.cache = WARM
        self.hold = 0.0

    def time(self, call: Callable[[], Any], after: Callable[[Any], Any] | None = None, _now=now) -> Sample:
        collecting = gc.isenabled()
        gc.disable()
        try:
            start = _now()
            returned = call()
            seconds = _now() - start
        finally:
            if collecting:
                gc.enable()
        return Sample(seconds, seconds, returned, after(returned) if after else None, 0.0, False)

    def bulk(self, call: Callable[[], Any], count: int, _now=now) -> Bulk:
        """A call's seconds when `count` of them follow one another, by the clock."""
        start = _now()
        for _ in range(count):
            call()
        seconds = (_now() - start) / count
        return Bulk(seconds, seconds)

    def within(self) -> Any:
        return torch.no_grad()

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


class _Driver:
    """The few functions of libcuda that timing needs. The caller's thread has torch's context."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._elapsed = self._cuda.cuEventElapsedTime
        self._elapsed.argtypes = [ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p]
        self._record = self._cuda.cuEventRecord
        self._record.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._memset = self._cuda.cuMemsetD8Async
        self._memset.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        self._wait = self._cuda.cuEventSynchronize
        self._drain = self._cuda.cuStreamSynchronize
        self._destroy = self._cuda.cuEventDestroy_v2
        for function in (self._wait, self._drain, self._destroy):
            function.argtypes = [ctypes.c_void_p]

    @staticmethod
    def check(status: int, what: str) -> None:
        if status != 0:
            raise CudaError(f"{what} gave error {status}")

    def event(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.check(self._cuda.cuEventCreate(ctypes.byref(made), 0), "cuEventCreate")
        return made

    def record(self, event: ctypes.c_void_p, stream: int) -> None:
        self.check(self._record(event, stream), "cuEventRecord")

    def wait(self, event: ctypes.c_void_p) -> None:
        self.check(self._wait(event), "cuEventSynchronize")

    def elapsed(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        ms = ctypes.c_float()
        self.check(self._elapsed(ctypes.byref(ms), start, end), "cuEventElapsedTime")
        return ms.value * 1e-3

    def memset(self, address: int, byte: int, count: int, stream: int) -> None:
        self.check(self._memset(address, byte, count, stream), "cuMemsetD8Async")

    def drain(self, stream: int) -> None:
        self.check(self._drain(stream), "cuStreamSynchronize")

    def drain_all(self) -> None:
        self.check(self._cuda.cuCtxSynchronize(), "cuCtxSynchronize")

    def destroy(self, event: ctypes.c_void_p) -> None:
        self._destroy(event)


class CudaTimer:
    """Driver events around a call on a stream of its own.

    Before a cold call a memset of twice the L2 cache, through the driver, takes the inputs out of it. Then the stream
    is held back for as long as the host takes to launch, so that launch gaps are not in the time. A kernel on any other
    stream than the current one is not waited for: what it writes is missing from the outputs, and the GPU is still busy
    after the end, which `lag` shows.
    """

    device = "cuda"

    def __init__(self, cache: str = COLD, sleep: Callable[[int], None] | None = None) -> None:
        torch.cuda.init()
        torch.empty(1, device="cuda")  # makes the context current in this thread
        self.cache = cache
        self.stream = torch.cuda.Stream()
        self._handle = self.stream.cuda_stream
        self._driver = _Driver()
        self._start, self._end = self._driver.event(), self._driver.event()
        self._sleep = sleep or torch.cuda._sleep
        self.hold = HOLD
        self.l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._bytes = 2 * self.l2 if cache != WARM else 0
        self._scratch = torch.cuda.caching_allocator_alloc(self._bytes, stream=self.stream) if self._bytes else 0

    def time(self, call: Callable[[], Any], after: Callable[[Any], Any] | None = None, _now=now) -> Sample:
        """`call` once; `after(returned)` is queued behind it on the same stream, out of the time."""
        driver, handle = self._driver, self._handle
        if self._bytes:
            driver.memset(self._scratch, 0, self._bytes, handle)
        self._sleep(int(self.hold * CYCLES_PER_SECOND))
        driver.record(self._start, handle)
        begin = _now()
        returned = call()
        host = _now() - begin
        driver.record(self._end, handle)
        kept = after(returned) if after else None
        driver.wait(self._end)
        driver.drain(handle)
        begin = _now()
        driver.drain_all()
        lag = _now() - begin
        exposed = host > 0.8 * self.hold and self.hold < LONGEST_HOLD
        if exposed:
            self.hold = min(LONGEST_HOLD, 2 * host)
        return Sample(driver.elapsed(self._start, self._end), host, returned, kept, lag, exposed)

    def bulk(self, call: Callable[[], Any], count: int, _now=now) -> Bulk:
        """A call's seconds when `count` of them follow one another, by the host's clock, the GPU idle at the end."""
        self._driver.drain_all()
        start = _now()
        for _ in range(count):
            call()
        host = (_now() - start) / count
        self._driver.drain_all()
        return Bulk((_now() - start) / count, host)

    def within(self) -> Any:
        return _Stack(torch.cuda.stream(self.stream), torch.no_grad())

    def synchronize(self) -> None:
        self._driver.drain_all()

    def close(self) -> None:
        self._driver.drain_all()
        if self._scratch:
            torch.cuda.caching_allocator_delete(self._scratch)
            self._scratch = 0
        for event in (self._start, self._end):
            self._driver.destroy(event)


class _Stack:
    """Two context managers as one."""

    def __init__(self, outer: Any, inner: Any):
        self._both = (outer, inner)

    def __enter__(self) -> None:
        for one in self._both:
            one.__enter__()

    def __exit__(self, *about: Any) -> None:
        for one in reversed(self._both):
            one.__exit__(*about)


class Graph:
    """A call captured as a CUDA graph on the timer's stream; calling it replays the graph and returns the same
    outputs."""

    def __init__(self, call: Callable[[], Any], stream: torch.cuda.Stream):
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._returned = call()
        self._replay = self._graph.replay

    def __call__(self) -> Any:
        self._replay()
        return self._returned


Timer = CpuTimer | CudaTimer


def timer(device: str, cache: str) -> Timer:
    """The timer of a device; `cache` is "cold", "warm" or "graph" (cold, and replayed from a graph)."""
    return CudaTimer(cache) if device == "cuda" else CpuTimer()


class Guard:
    """What measures and judges, as it was at construction: functions of modules and methods of classes, with their code
    and their defaults."""

    _KINDS = (FunctionType, BuiltinFunctionType, type)

    def __init__(self, whole: Iterable[Any], some: Mapping[Any, Sequence[str]]):
        """Watch everything callable that the modules and classes of `whole` define, and the names given in `some`."""
        self._was: list[tuple[Any, str, Any, bool]] = []
        for owner in whole:
            held = inspect.isclass(owner)
            for name, value in list(vars(owner).items()):
                if isinstance(value, self._KINDS) or (held and callable(value)):
                    self._was.append((owner, name, value, True))
        for owner, names in some.items():
            for name in names:
                if hasattr(owner, name):
                    self._was.append((owner, name, inspect.getattr_static(owner, name), name in vars(owner)))
        functions = [(owner, name, getattr(value, "__func__", value)) for owner, name, value, _ in self._was]
        self._codes = [
            (owner, name, Code(function)) for owner, name, function in functions if isinstance(function, FunctionType)
        ]

    def changed(self, restore: bool = True) -> list[str]:
        """The names that mean something else now, put back unless `restore` is False."""
        found = []
        for owner, name, value, own in self._was:
            if inspect.getattr_static(owner, name, None) is not value:
                found.append(f"{_name(owner)}.{name}")
                if restore and own:
                    setattr(owner, name, value)
                elif restore:
                    delattr(owner, name)
        for owner, name, code in self._codes:
            if code.changed():
                found.append(f"{_name(owner)}.{name}")
                if restore:
                    code.restore()
        return found


def _name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
