"""gated_mlp(x, w_gate, w_up, w_down): (act(x·w_gate)·(x·w_up))·w_down; x (M, D), w_gate, w_up (D, H), w_down (H, N).

unfused: three products and an elementwise kernel between them [shazeer2020]
epilogue: a block multiplies columns of gate and of up side by side; they meet in its threads' registers [cutlass2022]
tensorcore: the same on mma.sync, for 16-bit operands [cutlass2022]
wgmma: the same on warpgroups; the tile's columns are half gate's and half up's, which meet in a thread [colfax2024]
"""

# isort: off
from touchstone.backends.cupy.gated_mlp.unfused import unfused
from touchstone.backends.cupy.gated_mlp.epilogue import epilogue
from touchstone.backends.cupy.gated_mlp.tensorcore import tensorcore
from touchstone.backends.cupy.gated_mlp.wgmma import wgmma
# isort: on

__all__ = ["unfused", "epilogue", "tensorcore", "wgmma"]  # noqa: RUF022 - ladder order
