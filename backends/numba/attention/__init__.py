"""attention(q, k, v): o = softmax(scale·q·kᵀ)·v and lse = ln Σ exp(scale·q·kᵀ), causal or not, heads grouped or not.

naive: scores, softmax and product with v in three launches around a float32 score matrix in memory [vaswani2017]
flash: online softmax over tiles of k and v, a tile of scores a thread; hidden tiles are skipped [dao2023flash2]
tensorcore: flash on mma.m16n8k16; scores and o in registers, cp.async, border tiles alone masked, exp2 [dao2023flash2]
"""

# isort: off
from touchstone.backends.numba.attention.naive import naive
from touchstone.backends.numba.attention.flash import flash
from touchstone.backends.numba.attention.tensorcore import tensorcore
# isort: on

__all__ = ["naive", "flash", "tensorcore"]  # noqa: RUF022 - ladder order
