"""matmul(a, b): (M, K) times (K, N), float32 accumulation, the result in the input dtype.

naive: one thread per element of c, a warp down a column of c: neighbouring threads read distant rows of a [boehm2022]
coalesced: the same with a warp along a row, so neighbours share a's element and read neighbours of b [boehm2022]
tiled: a block's operands pass through shared memory, read from global memory once for 32 threads each [boehm2022]
tiled1d: a thread keeps eight results of a column, so one word of b from shared memory serves eight products [boehm2022]
tiled2d: eight by eight results a thread: sixteen words from shared memory serve 64 products [volkov2010]
vectorised: 16-byte loads from global memory and from shared memory, where a is stored transposed [boehm2022]
doublebuffered: the next tiles load while these are multiplied, with two buffers and one barrier a step [boehm2022]
warptiled: lanes of a warp close together, so they read fewer words; fast loads for transposed operands too [boehm2022]
splitk: K is cut between blocks and a second kernel adds their float32 partials, for few tiles with a long K [hoque2024]
tf32: warptiled's tiles on the tensor cores, float32 operands rounded to tf32 [xlite2025]
tensorcore: mma.sync on 16-bit operands that cp.async brings, three stages deep, through ldmatrix [kerr2020]
pipelined: larger tiles, and a branch-free main loop in which nothing interrupts the MMAs: operands in pieces of 16
  bytes only [kerr2020]
wgmma: a warpgroup's products from shared memory, filled by the copy engine and one warpgroup's thread [colfax2024]
"""

# isort: off
from touchstone.backends.cupy.matmul.naive import naive, coalesced
from touchstone.backends.cupy.matmul.tiled import tiled, tiled1d
from touchstone.backends.cupy.matmul.registers import tiled2d, vectorised, doublebuffered
from touchstone.backends.cupy.matmul.warptiled import warptiled
from touchstone.backends.cupy.matmul.splitk import splitk
from touchstone.backends.cupy.matmul.tf32 import tf32
from touchstone.backends.cupy.matmul.tensorcore import tensorcore
from touchstone.backends.cupy.matmul.pipelined import pipelined
from touchstone.backends.cupy.matmul.wgmma import wgmma
# isort: on

__all__ = [  # noqa: RUF022 - ladder order
    "naive",
    "coalesced",
    "tiled",
    "tiled1d",
    "tiled2d",
    "vectorised",
    "doublebuffered",
    "warptiled",
    "splitk",
    "tf32",
    "tensorcore",
    "pipelined",
    "wgmma",
]
