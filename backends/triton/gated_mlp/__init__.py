"""gated_mlp(x, w_gate, w_up, w_down): (act(x·w_gate)·(x·w_up))·w_down; x (M, D), w_gate, w_up (D, H), w_down (H, N).

unfused: three products and an elementwise kernel between them [shazeer2020]
epilogue: gate and up share a program and its tiles of x, and meet in registers [cutlass2022]
fused: one kernel; a tile of gated hidden columns is made and spent at once, and never stored [muller2021]
tma: persistent programs with tensor descriptors; gate, then up, whose tiles gate's meet in the epilogue [hoque2024tma]
"""

# isort: off
from touchstone.backends.triton.gated_mlp.unfused import unfused
from touchstone.backends.triton.gated_mlp.epilogue import epilogue
from touchstone.backends.triton.gated_mlp.fused import fused
from touchstone.backends.triton.gated_mlp.tma import tma
# isort: on

__all__ = ["unfused", "epilogue", "fused", "tma"]  # noqa: RUF022 - ladder order
