"""Gradients of RMS norm. With r = 1 / sqrt(mean x^2 + eps), n = x * r, g = dy * weight:
dx = r * (g - n * mean(g * n)), dweight = sum over rows of dy * n.

looped: a launch for the statistics of every row, another for blocks of columns, so a row may have any length [hsu2024]
l2_resident: both in one launch, chunk of rows by chunk, so that the blocks of columns find x and dy in the L2 cache
  [gupta2012]
partials: a program holds a row in registers and sums dweight there over many rows, one part each [hsu2024]
atomics: the programs add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
"""

# isort: off
from touchstone.backends.triton.rms_norm_backward.column_blocks import looped
from touchstone.backends.triton.rms_norm_backward.column_blocks import l2_resident
from touchstone.backends.triton.rms_norm_backward.registers import partials
from touchstone.backends.triton.rms_norm_backward.registers import atomics
# isort: on

__all__ = ["atomics", "l2_resident", "looped", "partials"]
