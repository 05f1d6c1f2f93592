"""Attention over sequences of various lengths, one after another: o = softmax(scale·q·kᵀ)·v and lse of each by itself.

flash: a block for each tile of the longest sequence, of each sequence and head; shorter ones end at once
  [dao2023flash2]
scheduled: a kernel lists the tiles that there are, and a block takes one of them: one long sequence among many short
  ones leaves no blocks idle [shah2024]
"""

# isort: off
from touchstone.backends.numba.attention_varlen.flash import flash
from touchstone.backends.numba.attention_varlen.scheduled import scheduled
# isort: on

__all__ = ["flash", "scheduled"]
