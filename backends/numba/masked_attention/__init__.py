"""masked_attention: attention under a causal mask, a window, segments, a bias, slopes, a soft-cap, with dropout of p.

naive: masked scores, softmax and product with v in three launches around a float32 score matrix [vaswani2017]
flash: online softmax over tiles of k and v, each score changed and masked in its thread's registers [dao2023flash2]
"""

# isort: off
from touchstone.backends.numba.masked_attention.naive import naive
from touchstone.backends.numba.masked_attention.flash import flash
# isort: on

__all__ = ["naive", "flash"]  # noqa: RUF022 - ladder order
