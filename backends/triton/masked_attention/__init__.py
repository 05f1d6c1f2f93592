"""masked_attention: attention under a causal mask, a window, segments, a bias, slopes, a soft-cap, with dropout of p.

naive: masked scores in one launch, softmax and product with v in another, around a float32 score matrix [vaswani2017]
flash: online softmax over tiles of k and v, each score changed and masked where it is formed [dao2023flash2]
pruned: key tiles that causality and window hide are not visited, and those they show whole have no mask [dong2024]
"""

# isort: off
from touchstone.backends.triton.masked_attention.naive import naive
from touchstone.backends.triton.masked_attention.flash import flash
from touchstone.backends.triton.masked_attention.pruned import pruned
# isort: on

__all__ = ["naive", "flash", "pruned"]  # noqa: RUF022 - ladder order
