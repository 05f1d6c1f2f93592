"""mlp(x, w1, b1, w2, b2): act(x·w1 + b1)·w2 + b2 for x (M, D), w1 (D, H), w2 (H, N).

unfused: two products and an elementwise kernel after each, so the hidden tensor travels four times [vaswani2017]
epilogue: bias and activation act on the accumulator before it is stored, and elementwise passes are gone [cublas2019]
fused: one kernel; a tile of hidden columns is made, activated and spent at once, and never stored [muller2021]
tma: epilogue on persistent programs with tensor descriptors, the products at the speed of the plain one [hoque2024tma]
"""

# isort: off
from touchstone.backends.triton.mlp.unfused import unfused
from touchstone.backends.triton.mlp.epilogue import epilogue
from touchstone.backends.triton.mlp.fused import fused
from touchstone.backends.triton.mlp.tma import tma
# isort: on

__all__ = ["unfused", "epilogue", "fused", "tma"]  # noqa: RUF022 - ladder order
