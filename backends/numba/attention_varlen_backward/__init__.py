"""attention_varlen_backward: dq, dk, dv of sequences of various lengths, one after another, from the saved lse.

dv = pᵀ·do; ds = p·(do·vᵀ - delta) with delta = Σ do·o; dq = scale·ds·k; dk = scale·dsᵀ·q, in each sequence by itself.

delta_first: a kernel of its own for delta, then one for dq and one for dk and dv; hidden tiles skipped, exp2
  [triton2022]
"""

from touchstone.backends.numba.attention_varlen_backward.delta_first import delta_first

__all__ = ["delta_first"]
