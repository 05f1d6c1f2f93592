"""Gradients of y = h·w2 + b2, h = act(z), z = x·w1 + b1: dz = (dy·w2ᵀ)·act'(z), dx = dz·w1ᵀ, dw1 = xᵀ·dz, dw2 = hᵀ·dy.

db1 and db2 are the column sums of dz and dy. A transposed operand is the same memory with its strides exchanged.

unfused: five products, each elementwise step and each column sum a launch of its own [rumelhart1986]
epilogue: act and act' act on the accumulators of the first two products [oneflow2022]
tensorcore: the same on mma.sync, for 16-bit operands [oneflow2022]
"""

# isort: off
from touchstone.backends.cupy.mlp_backward.unfused import unfused
from touchstone.backends.cupy.mlp_backward.epilogue import epilogue
from touchstone.backends.cupy.mlp_backward.tensorcore import tensorcore
# isort: on

__all__ = ["unfused", "epilogue", "tensorcore"]  # noqa: RUF022 - ladder order
