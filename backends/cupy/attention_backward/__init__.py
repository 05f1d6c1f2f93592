"""attention_backward: dq, dk, dv from the saved lse, p = exp(scale·q·kᵀ - lse) rebuilt tile by tile (S4-31, S0-15).

dv = pᵀ·do; ds = p·(do·vᵀ - delta) with delta = Σ do·o; dq = scale·ds·k; dk = scale·dsᵀ·q.

delta_inline: a kernel for dq and one for dk and dv; each forms delta from o and do where it needs it (S4-31, S4-04)
delta_first: a kernel of its own for delta, then hidden tiles skipped, border tiles alone masked, exp2 (S2-58, S4-11)
tensorcore: dk, dv and dq in one kernel on mma.m16n8k16, five products a tile and not seven; dq by atomics (S2-58)
wgmma: the same walk on warpgroups, which read what the copy engine brings straight from shared memory (S2-58, S2-73)
"""

# isort: off
from touchstone.backends.cupy.attention_backward.delta_inline import delta_inline
from touchstone.backends.cupy.attention_backward.delta_first import delta_first
from touchstone.backends.cupy.attention_backward.tensorcore import tensorcore
from touchstone.backends.cupy.attention_backward.wgmma import wgmma
# isort: on

__all__ = ["delta_inline", "delta_first", "tensorcore", "wgmma"]  # noqa: RUF022 - ladder order
