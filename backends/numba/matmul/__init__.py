"""matmul(a, b): (M, K) times (K, N), float32 accumulation, the result in the input dtype.

naive: one thread per element of c, a warp down a column of c: neighbouring threads read distant rows of a [boehm2022]
coalesced: the same with a warp along a row, so neighbours share a's element and read neighbours of b [boehm2022]
tiled: a block's operands pass through shared memory, read from global memory once for 16 threads each [boehm2022]
tiled2d: eight by eight results a thread: sixteen words from shared memory serve 64 products [volkov2010]
vectorised: 16-byte loads from global memory and from shared memory, where a is stored transposed [boehm2022]
doublebuffered: the next tiles load while these are multiplied, with two buffers and one barrier a step [boehm2022]
tensorcore: mma.sync on 16-bit operands that cp.async brings, three stages deep, through ldmatrix [kerr2020]
pipelined: 256 by 128 a block in 96 KB of shared memory, fragments loaded ahead, no choice in the loop [kerr2020]
splitk: K is cut between blocks and a second kernel adds their float32 sums, for few tiles with a long K [hoque2024]
"""

# isort: off
from touchstone.backends.numba.matmul.naive import naive, coalesced
from touchstone.backends.numba.matmul.tiled import tiled
from touchstone.backends.numba.matmul.registers import tiled2d, vectorised, doublebuffered
from touchstone.backends.numba.matmul.tensorcore import tensorcore
from touchstone.backends.numba.matmul.pipelined import pipelined
from touchstone.backends.numba.matmul.splitk import splitk
# isort: on

__all__ = [  # noqa: RUF022 - ladder order
    "naive",
    "coalesced",
    "tiled",
    "tiled2d",
    "vectorised",
    "doublebuffered",
    "tensorcore",
    "pipelined",
    "splitk",
]
