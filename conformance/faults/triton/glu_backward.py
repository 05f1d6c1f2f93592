"""Wrong kernels of glu_backward: blocks of 256 elements, wherever rows end."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.triton.lib.activations import activate, activation_slope
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.glu_backward import KERNELS as SHARED


@triton.jit
def _flat_kernel(
    gate_ptr,
    up_ptr,
    dy_ptr,
    dgate_ptr,
    dup_ptr,
    gate_m,
    gate_n,
    up_m,
    up_n,
    dy_m,
    dy_n,
    size,
    cols,
    ACTIVATION: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, col = i // cols, i % cols
    inside = i < size
    gate = tl.load(gate_ptr + row * gate_m + col * gate_n, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_m + col * up_n, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * dy_m + col * dy_n, mask=inside, other=0.0).to(tl.float32)
    dgate = dy * up * activation_slope(gate, ACTIVATION)
    if FAULT == "up_left_out":
        dgate = dy * activation_slope(gate, ACTIVATION)
    if FAULT == "dup_from_dgate":
        gate = dgate
    dup = dy * activate(gate, ACTIVATION)
    if FAULT == "dgate_stored_over_gate":
        tl.store(gate_ptr + row * gate_m + col * gate_n, dgate.to(gate_ptr.dtype.element_ty), mask=inside)
    tl.store(dgate_ptr + i, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
    tl.store(dup_ptr + i, dup.to(dup_ptr.dtype.element_ty), mask=inside)


KERNELS = SHARED | {
    "up_left_out": Kernel("formula", "dgate lacks the factor up"),
    "dgate_stored_over_gate": Kernel("mutation", "dgate is also stored over gate", "inputs: gate was written"),
}


def _flat(
    gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu", fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    dgate, dup = (torch.empty((rows, cols), dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        operands = (gate, up, dy, dgate, dup, *gate.stride(), *up.stride(), *dy.stride(), dup.numel(), cols)
        _flat_kernel[(triton.cdiv(dup.numel(), 256),)](*operands, ACTIVATION=activation, FAULT=fault, BLOCK=256)
    return dgate, dup


plant_kernels(globals(), _flat, KERNELS, "up_left_out", "dup_from_dgate", "dgate_stored_over_gate")
