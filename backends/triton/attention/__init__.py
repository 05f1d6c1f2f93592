"""attention(q, k, v): o = softmax(scale·q·kᵀ)·v and lse = ln Σ exp(scale·q·kᵀ), causal or not, heads grouped or not.

naive: scores, softmax and product with v in three launches around a float32 score matrix in memory [vaswani2017]
fullrow: one launch; a program keeps the whole row of scores of its queries on chip, which bounds Sk [pearbiossom2026]
flash: online softmax over tiles of k and v, so a row of scores need not fit anywhere [dao2023flash2]
pruned: key tiles that causality hides are skipped, border tiles alone masked, exp2 with folded scale [dao2023flash2]
tma: pruned with host tensor descriptors over (B, H, S, D); the copy engine clips a tail at its head [pearbiossom2026]
gluon: warpgroups fed by a warp that loads; the next scores are formed while these weights are used [shah2024]
packgqa: for few queries over many keys: the query heads of a key head are the rows of one tile, keys are cut between
  programs [yeetal2025]
resident: for few keys: they stay on chip, and a program walks over queries that it loads ahead [pearbiossom2026]
"""

# isort: off
from touchstone.backends.triton.attention.naive import naive
from touchstone.backends.triton.attention.fullrow import fullrow
from touchstone.backends.triton.attention.flash import flash
from touchstone.backends.triton.attention.pruned import pruned
from touchstone.backends.triton.attention.tma import tma
from touchstone.backends.triton.attention.gluon import gluon
from touchstone.backends.triton.attention.packgqa import packgqa
from touchstone.backends.triton.attention.resident import resident
# isort: on

__all__ = ["naive", "fullrow", "flash", "pruned", "tma", "gluon", "packgqa", "resident"]  # noqa: RUF022 - ladder order
