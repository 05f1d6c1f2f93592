"""Gradients of y = h·w2 + b2, h = act(z), z = x·w1 + b1: dz = (dy·w2ᵀ)·act'(z), dx = dz·w1ᵀ, dw1 = xᵀ·dz, dw2 = hᵀ·dy.

db1 and db2 are the column sums of dz and dy.

unfused: five products, each elementwise step and each column sum a launch of its own [rumelhart1986]
epilogue: act and act' act on accumulators, and the weight gradients' programs sum columns too: 5 launches [oneflow2022]
fused: z and dy·w2ᵀ meet in one program, so z is never stored, and one launch does the rest: 2 launches [oneflow2022]
tma: epilogue on persistent programs with tensor descriptors; act' is stored, not z, a factor for dy·w2ᵀ [hoque2024tma]
"""

# isort: off
from touchstone.backends.triton.mlp_backward.unfused import unfused
from touchstone.backends.triton.mlp_backward.epilogue import epilogue
from touchstone.backends.triton.mlp_backward.fused import fused
from touchstone.backends.triton.mlp_backward.tma import tma
# isort: on

__all__ = ["unfused", "epilogue", "fused", "tma"]  # noqa: RUF022 - ladder order
