"""mlp(x, w1, b1, w2, b2): act(x·w1 + b1)·w2 + b2 for x (M, D), w1 (D, H), w2 (H, N).

unfused: two products and an elementwise kernel after each, so the hidden tensor travels four times [vaswani2017]
epilogue: bias and activation act on the accumulators before they are stored; elementwise passes are gone [cublas2019]
tensorcore: the same epilogue on mma.sync, for 16-bit operands [cublas2019]
wgmma: the same epilogue on warpgroups, which multiply tiles that the copy engine brings [colfax2024]
"""

# isort: off
from touchstone.backends.cupy.mlp.unfused import unfused
from touchstone.backends.cupy.mlp.epilogue import epilogue
from touchstone.backends.cupy.mlp.tensorcore import tensorcore
from touchstone.backends.cupy.mlp.wgmma import wgmma
# isort: on

__all__ = ["unfused", "epilogue", "tensorcore", "wgmma"]  # noqa: RUF022 - ladder order
