"""attention_backward: dq, dk, dv from the saved lse, p = exp(scale·q·kᵀ - lse) rebuilt tile by tile [dao2022flash].

dv = pᵀ·do; ds = p·(do·vᵀ - delta) with delta = Σ do·o; dq = scale·ds·k; dk = scale·dsᵀ·q. Programs own their rows of
dq, or of dk and dv for the whole group of query heads, so nothing is accumulated in memory, but in gluon.

delta_inline: a kernel for dq and one for dk and dv; each forms delta from o and do where it needs it [dao2022flash]
delta_stored: the dq kernel stores delta and the other loads it, so o is read once and not in a loop [pearbiossom2026]
delta_first: a kernel of its own for delta, then hidden tiles skipped, border tiles alone masked, exp2 [triton2022]
onekernel: programs for dk and dv and programs for dq in one launch; the second fill the tail of the first [triton2022]
tma: delta_first with host tensor descriptors over (B, H, S, D), which free the registers of addresses [pearbiossom2026]
gluon: one walk of two warpgroups that a warp feeds: five products, not seven; dq is added up in memory [shah2024]
"""

# isort: off
from touchstone.backends.triton.attention_backward.delta_inline import delta_inline
from touchstone.backends.triton.attention_backward.delta_stored import delta_stored
from touchstone.backends.triton.attention_backward.delta_first import delta_first
from touchstone.backends.triton.attention_backward.onekernel import onekernel
from touchstone.backends.triton.attention_backward.tma import tma
from touchstone.backends.triton.attention_backward.gluon import gluon
# isort: on

__all__ = ["delta_inline", "delta_stored", "delta_first", "onekernel", "tma", "gluon"]  # noqa: RUF022 - ladder order
