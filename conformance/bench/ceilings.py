"""What this machine reaches in this run: copying, reading, writing, and matrix products per dtype, by the same timer.

The roofline of a call is the larger of two times: its least bytes at the copy rate, its operations at the rate of the
matrix product in the dtype it computes in. `limit` is what no right answer can beat: a result below it is an error of
the measurement or of the kernel, never a speed.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from touchstone.conformance.bench.timing import CpuTimer, Timer, stats
from touchstone.conformance.spec.contract import DTYPES

ROUNDS = 15
# bytes of one operand, and sides of the square matrices; the best of them is the ceiling
BYTES = {"cuda": (2**28, 2**30), "cpu": (2**15, 2**18, 2**24)}
SIDES = {"cuda": (4096, 8192), "cpu": (128, 512)}
MEMORY_MARGIN = 1.10  # above the fastest of copy, read and write
COMPUTE_MARGIN = 1.25  # above the library's product, which is not the best there can be
# dense multiply-adds times two, per clock and multiprocessor, by compute capability: of 16-bit operands, and of float32
PEAK_16 = {(8, 0): 2048, (8, 6): 512, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192}
PEAK_32 = {(8, 0): 128, (8, 6): 256, (8, 9): 256, (9, 0): 256, (10, 0): 256}
# of a variant that declares a precision: the dtype of its products, and how many it makes of one
COMPUTED = {"tf32": ("tf32", 1), "tf32x3": ("tf32", 3), "bf16": ("bfloat16", 1)}


@dataclass(frozen=True)
class Roof:
    """The least time of a call, in milliseconds: on this machine's ceilings, and beyond which nothing is believed."""

    ms: float
    limit: float
    bound: str  # "memory" or "compute"


@dataclass
class Ceilings:
    """Rates of one machine: bytes per second, and operations per second by dtype ("tf32" is one here)."""

    device: str
    copy: float = 0.0
    read: float = 0.0
    write: float = 0.0
    products: dict[str, float] = field(default_factory=dict)  # of matrices
    peak: dict[str, float] = field(default_factory=dict)  # by the chip's clock, where it is known
    cache: int = 0  # bytes that may stay on the chip

    def roof(
        self, flops: float, bytes_: float, written: float, dtype: str, compute: str | None, cold: bool
    ) -> Roof | None:
        """The roofline of a call that moves `bytes_`, `written` of them outputs; None where nothing was measured.

        What is written may still be in the cache when the time ends, and in a warm call also what is read: the limit
        counts only what exceeds it.
        """
        if not self.copy:
            return None
        # a variant's precision is that of its float32; 16-bit operands lose nothing
        name, passes = COMPUTED.get(compute or "", (dtype, 1)) if dtype == "float32" else (dtype, 1)
        rate = self.products.get(name, 0.0) / passes
        memory, work = bytes_ / self.copy, flops / rate if rate else 0.0
        outside = bytes_ - min(written if cold else bytes_, self.cache)
        fastest = MEMORY_MARGIN * max(self.copy, self.read, self.write)
        hardest = COMPUTE_MARGIN * self.products.get(name, 0.0)
        if name in self.peak:
            hardest = min(hardest, 1.02 * self.peak[name]) if hardest else self.peak[name]
        limit = max(outside / fastest, passes * flops / hardest if hardest else 0.0)
        return Roof(1e3 * max(memory, work), 1e3 * limit, "memory" if memory >= work else "compute")

    def rows(self) -> list[Sequence[str]]:
        """(what, how much) for a table."""
        found: list[Sequence[str]] = [
            (what, f"{getattr(self, what) / 1e9:.0f} GB/s") for what in ("copy", "read", "write")
        ]
        return found + [
            (f"matrix product {name}", f"{rate / 1e12:.4g} TFLOP/s") for name, rate in self.products.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(timer: Timer, dtypes: Sequence[str] = ("float32", "float16", "bfloat16"), rounds: int = ROUNDS) -> Ceilings:
    """The ceilings of the timer's device, each the fastest of its sizes by the median; matrix products for `dtypes`."""
    device = timer.device
    found = Ceilings(device, cache=getattr(timer, "l2", 0))
    with timer.within():
        for size in BYTES[device]:
            source = torch.randn(size // 4, device=device)
            target = torch.empty_like(source)
            found.copy = max(found.copy, 2 * size / _seconds(timer, partial(target.copy_, source), rounds))
            found.read = max(found.read, size / _seconds(timer, source.sum, rounds))
            found.write = max(found.write, size / _seconds(timer, partial(target.fill_, 1.5), rounds))
            del source, target
        names = [*dtypes, *(("tf32",) if "float32" in dtypes and device == "cuda" else ())]
        for name in names:
            found.products[name] = max(_product(timer, name, side, rounds) for side in SIDES[device])
    if device == "cuda":
        found.peak = _peak(names)
    return found


def _seconds(timer: Timer, call: Callable[[], Any], rounds: int) -> float:
    call()
    timer.time(call)
    return stats([timer.time(call).seconds for _ in range(rounds)]).median * 1e-3


def _product(timer: Timer, name: str, side: int, rounds: int) -> float:
    """Operations a second of a square product: the fastest of the rounds, since clocks fall while they run."""
    dtype = torch.float32 if name == "tf32" else DTYPES[name]
    a, b = (torch.randn(side, side, device=timer.device, dtype=dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        for _ in range(2):
            a @ b
        count = 3 if isinstance(timer, CpuTimer) else rounds
        return 2 * side**3 / min(timer.time(lambda: a @ b).seconds for _ in range(count))
    finally:
        torch.set_float32_matmul_precision(before)


def _peak(names: Sequence[str]) -> dict[str, float]:
    """Operations a second at the highest clock of the chip, where its generation is known."""
    about = torch.cuda.get_device_properties(torch.cuda.current_device())
    chip, clock = (about.major, about.minor), getattr(about, "clock_rate", 0) * 1e3
    if not clock or chip not in PEAK_16:
        return {}
    each = dict.fromkeys(("float16", "bfloat16"), PEAK_16[chip])
    each |= {"float32": PEAK_32[chip], "tf32": PEAK_16[chip] // 2}
    return {name: each[name] * about.multi_processor_count * clock for name in names}
