"""attention(q, k, v): o = softmax(scale·q·kᵀ)·v and lse = ln Σ exp(scale·q·kᵀ), causal or not, heads grouped or not.

naive: scores, softmax and product with v in three launches around a float32 score matrix in memory [vaswani2017]
fullrow: one launch; a block keeps four queries' rows of scores in shared memory, which bounds Sk [pearbiossom2026]
flash: online softmax over tiles of k and v, a 4 x 4 tile of scores a thread; hidden tiles are skipped [dao2023flash2]
tensorcore: flash on mma.m16n8k16; scores and o in registers, cp.async, border tiles alone masked, exp2 [dao2023flash2]
wgmma: a warpgroup has keys and values brought, two multiply them and form scores while values are used [shah2024]
"""

# isort: off
from touchstone.backends.cupy.attention.naive import naive
from touchstone.backends.cupy.attention.fullrow import fullrow
from touchstone.backends.cupy.attention.flash import flash
from touchstone.backends.cupy.attention.tensorcore import tensorcore
from touchstone.backends.cupy.attention.wgmma import wgmma
# isort: on

__all__ = ["naive", "fullrow", "flash", "tensorcore", "wgmma"]  # noqa: RUF022 - ladder order
