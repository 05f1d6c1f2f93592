"""attention_backward: dq, dk, dv from the saved lse, p = exp(scale·q·kᵀ - lse) rebuilt tile by tile [dao2022flash].

dv = pᵀ·do; ds = p·(do·vᵀ - delta) with delta = Σ do·o; dq = scale·ds·k; dk = scale·dsᵀ·q.

delta_inline: a kernel for dq and one for dk and dv; each forms delta from o and do where it needs it [dao2022flash]
delta_first: a kernel of its own for delta, then hidden tiles skipped, border tiles alone masked, exp2 [triton2022]
tensorcore: delta_first on mma.m16n8k16; p and ds stay in registers from product to product, cp.async [dao2023flash2]
"""

# isort: off
from touchstone.backends.numba.attention_backward.delta_inline import delta_inline
from touchstone.backends.numba.attention_backward.delta_first import delta_first
from touchstone.backends.numba.attention_backward.tensorcore import tensorcore
# isort: on

__all__ = ["delta_inline", "delta_first", "tensorcore"]  # noqa: RUF022 - ladder order
