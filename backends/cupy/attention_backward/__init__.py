"""attention_backward: dq, dk, dv from the saved lse, p = exp(scale·q·kᵀ - lse) rebuilt tile by tile [dao2022flash].

dv = pᵀ·do; ds = p·(do·vᵀ - delta) with delta = Σ do·o; dq = scale·ds·k; dk = scale·dsᵀ·q.

delta_inline: a kernel for dq and one for dk and dv; each forms delta from o and do where it needs it [dao2022flash]
delta_first: a kernel of its own for delta, then hidden tiles skipped, border tiles alone masked, exp2 [triton2022]
tensorcore: dk, dv and dq in one kernel on mma.m16n8k16, five products a tile, not seven; dq by atomics [dao2023flash2]
wgmma: the same walk on warpgroups, which read what the copy engine brings straight from shared memory [shah2024]
"""

# isort: off
from touchstone.backends.cupy.attention_backward.delta_inline import delta_inline
from touchstone.backends.cupy.attention_backward.delta_first import delta_first
from touchstone.backends.cupy.attention_backward.tensorcore import tensorcore
from touchstone.backends.cupy.attention_backward.wgmma import wgmma
# isort: on

__all__ = ["delta_inline", "delta_first", "tensorcore", "wgmma"]  # noqa: RUF022 - ladder order
