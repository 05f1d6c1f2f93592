"""matmul(a, b): (M, K) times (K, N), float32 accumulation, the result in the input dtype.

naive: one program computes one tile of C and walks K; operands meet in `tl.dot` [tillet2019]
grouped: programs visit tiles in column-major groups of rows, so that those in flight share operands in L2 [triton2021]
tuned: grouped with tile, warps and stages pinned for the architecture, dtype and size [boehm2022]
splitk: K is cut between programs; a second kernel adds their float32 partials, for few tiles with a long K [hoque2024]
splitk_pdl: splitk whose second kernel is launched while the first still runs, and waits for it [cuda2025pdl]
persistent: one program per multiprocessor loops over tiles; its loads run ahead across tile borders [triton2024]
tma: persistent with host tensor descriptors; the copy engine computes addresses and clips the tails [hoque2024tma]
gluon: persistent with a warp that loads and two or three warpgroups that multiply, layouts chosen by hand [wright2024]
aligned: gluon; an operand whose rows lie across lines of the L2 cache is copied to rows that start at them [wright2024]
streamk: tma; tiles that are fewer than the multiprocessors are laid end to end along K and cut into equal spans, and a
  second kernel adds the pieces [osama2023]
splitk_tma: tma; the K of each tile is cut into as many equal parts as there are multiprocessors for it, whose partials
  a second kernel adds, launched as that of splitk_pdl; few rows are made transposed [hoque2024]
tf32: grouped with float32 operands rounded to tf32 on the tensor cores [xlite2025]
tf32x3: each float32 operand split into two tf32 parts and three products summed, near float32 accuracy [ootomo2022]
tf32x3_presplit: tf32x3 whose operands a pass beforehand splits and turns, so that the copy engine brings them
  [ootomo2022]
tf32x3_gluon: tf32x3_presplit with a warp that loads and two warpgroups that multiply [wright2024]
"""

# isort: off
from touchstone.backends.triton.matmul.tiled import naive, grouped, tuned
from touchstone.backends.triton.matmul.splitk import splitk, splitk_pdl
from touchstone.backends.triton.matmul.persistent import persistent
from touchstone.backends.triton.matmul.tma import tma
from touchstone.backends.triton.matmul.gluon import gluon
from touchstone.backends.triton.matmul.aligned import aligned
from touchstone.backends.triton.matmul.streamk import streamk
from touchstone.backends.triton.matmul.splitk_tma import splitk_tma
from touchstone.backends.triton.matmul.tensorfloat import tf32, tf32x3
from touchstone.backends.triton.matmul.tf32x3_presplit import tf32x3_presplit
from touchstone.backends.triton.matmul.tf32x3_gluon import tf32x3_gluon
# isort: on

__all__ = [  # noqa: RUF022 - ladder order
    "naive",
    "grouped",
    "tuned",
    "splitk",
    "splitk_pdl",
    "persistent",
    "tma",
    "gluon",
    "aligned",
    "streamk",
    "splitk_tma",
    "tf32",
    "tf32x3",
    "tf32x3_presplit",
    "tf32x3_gluon",
]
