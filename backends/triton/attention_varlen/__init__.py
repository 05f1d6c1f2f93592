"""Attention over sequences of various lengths, one after another: o = softmax(scale·q·kᵀ)·v and lse of each by itself.

flash: a program for each tile of the longest sequence, of each sequence and head; shorter ones end at once
  [dao2023flash2]
scheduled: a kernel lists the tiles that there are, and a program takes one of them: one long sequence among many short
  ones leaves no programs idle [shah2024]
"""

# isort: off
from touchstone.backends.triton.attention_varlen.flash import flash
from touchstone.backends.triton.attention_varlen.scheduled import scheduled
# isort: on

__all__ = ["flash", "scheduled"]
