"""attention(q, k, v): o = softmax(scale·q·kᵀ)·v and lse = ln Σ exp(scale·q·kᵀ), causal or not, heads grouped or not.

naive: scores, softmax and product with v in three launches around a float32 score matrix in memory (S0-10)
fullrow: one launch; a block keeps the whole rows of scores of four queries in shared memory, which bounds Sk (S4-22)
flash: online softmax over tiles of k and v, a 4 x 4 tile of scores a thread; hidden tiles are skipped (S0-13, S2-57)
tensorcore: flash on mma.m16n8k16; scores and o in registers, cp.async, border tiles alone masked, exp2 (S4-10, S4-11)
wgmma: a warpgroup has keys and values brought, two multiply them and form scores while values are used (S2-73)
"""

# isort: off
from touchstone.backends.cupy.attention.naive import naive
from touchstone.backends.cupy.attention.fullrow import fullrow
from touchstone.backends.cupy.attention.flash import flash
from touchstone.backends.cupy.attention.tensorcore import tensorcore
from touchstone.backends.cupy.attention.wgmma import wgmma
# isort: on

__all__ = ["naive", "fullrow", "flash", "tensorcore", "wgmma"]  # noqa: RUF022 - ladder order
