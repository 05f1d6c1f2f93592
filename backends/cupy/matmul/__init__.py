"""matmul(a, b): (M, K) times (K, N), float32 accumulation, the result in the input dtype.

naive: a thread an element of c, a warp down a column of c: neighbouring threads read rows of a far apart (S3-01, B-01)
coalesced: the same with a warp along a row, so neighbours share a's element and read neighbours of b (S3-02, B-02)
tiled: a block's operands pass through shared memory, read from global memory once for 32 threads each (S3-03, B-03)
tiled1d: a thread keeps eight results of a column, so one word of b from shared memory serves eight products (B-04)
tiled2d: eight by eight results a thread: sixteen words from shared memory serve 64 products (S3-04, B-05)
vectorised: 16-byte loads from global memory and from shared memory, where a is stored transposed (S3-06, B-06)
doublebuffered: the next tiles load while these are multiplied, with two buffers and one barrier a step (S3-05, B-11)
warptiled: lanes of a warp close together, so they read fewer words; fast loads for transposed operands too (B-10)
splitk: K is cut between blocks and a second kernel adds their float32 partials, for few tiles with a long K (S2-69)
tf32: warptiled's tiles on the tensor cores, float32 operands rounded to tf32 (L-08)
tensorcore: mma.sync on 16-bit operands that cp.async brings, three stages deep, through ldmatrix (B-12)
pipelined: larger tiles, and a loop in which nothing parts the products: operands in pieces of 16 bytes only (B-12)
wgmma: a warpgroup's products straight from shared memory, filled by the copy engine and one warpgroup's thread (S2-73)
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
