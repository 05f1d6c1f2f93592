"""The GPUs that a launcher can be told it runs on, where there is none: one of each architecture.

Each with `Gpu.multiprocessors`, as the smallest slice of an H100 has them, instead of all that it is sold with: a grid
that fills a whole GPU has more programs than the tensors of a test have rows, so that programs that stay would never
take a second one, and the launch would last longer.
"""

from dataclasses import dataclass

_TABLE = """
arch   GiB KiB/block KiB/multiprocessor threads L2/MiB MHz  memory/MHz bits name
sm_80  80  163       164                2048    40     1410 1593       5120 NVIDIA A100-SXM4-80GB
sm_86  24  99        100                1536    6      1695 6251       384  NVIDIA A10
sm_89  48  99        100                1536    96     2520 9001       384  NVIDIA L40S
sm_90  80  227       228                2048    50     1980 2619       5120 NVIDIA H100 80GB HBM3
sm_100 180 227       228                2048    126    1965 3996       8192 NVIDIA B200
sm_120 32  99        100                1536    96     2407 14001      512  NVIDIA GeForce RTX 5090
"""


@dataclass(frozen=True)
class Gpu:
    """What a driver says of a GPU."""

    arch: str  # "sm_90"
    name: str
    memory: int  # bytes, as what follows in bytes is
    shared_per_block: int  # shared memory that a kernel can ask for
    shared_per_multiprocessor: int
    threads_per_multiprocessor: int
    l2: int
    clock: int  # kHz
    memory_clock: int
    bus: int  # bits

    multiprocessors = 16
    registers = 65536  # of 32 bits, per block and per multiprocessor
    warp = 32
    threads_per_block = 1024

    @property
    def capability(self) -> tuple[int, int]:
        """(9, 0)."""
        return divmod(int(self.arch.removeprefix("sm_")), 10)

    def __str__(self) -> str:
        return f"{self.name} ({self.arch}, {self.multiprocessors} multiprocessors)"


def _gpu(row: str) -> Gpu:
    arch, *numbers, name = row.split(maxsplit=9)
    memory, block, multiprocessor, threads, l2, clock, memory_clock, bus = map(int, numbers)
    kib, khz = 2**10, 1000
    return Gpu(
        arch, name, memory * kib**3, block * kib, multiprocessor * kib, threads, l2 * kib**2, clock * khz,
        memory_clock * khz, bus,
    )  # fmt: skip


GPUS = {gpu.arch: gpu for gpu in map(_gpu, _TABLE.strip().splitlines()[1:])}
DEFAULT = "sm_90"
