"""Attention over sequences of various lengths, one after another: o = softmax(scale·q·kᵀ)·v and lse of each by itself.

flash: a block for each tile of the longest sequence, of each sequence and head; shorter ones end at once
  [dao2023flash2]
scheduled: a kernel lists the tiles that there are, and a block takes one of them: one long sequence among many short
  ones leaves no blocks idle [shah2024]
tensorcore: the same list, products on mma.m16n8k16; scores and o in registers, cp.async, border tiles alone masked,
  exp2 [dao2023flash2]
"""

# isort: off
from touchstone.backends.numba.attention_varlen.flash import flash
from touchstone.backends.numba.attention_varlen.scheduled import scheduled
from touchstone.backends.numba.attention_varlen.tensorcore import tensorcore
# isort: on

__all__ = ["flash", "scheduled", "tensorcore"]
