"""Wrong kernels of glu: blocks of 256 elements, wherever rows end."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.triton.lib.activations import activate
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.glu import KERNELS as SHARED


@triton.jit
def _flat_kernel(
    gate_ptr,
    up_ptr,
    y_ptr,
    gate_m,
    gate_n,
    up_m,
    up_n,
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
    if FAULT == "row_of_up_ignored":
        up_m = gate_m
    up = tl.load(up_ptr + row * up_m + col * up_n, mask=inside, other=0.0).to(tl.float32)
    if FAULT == "act_of_up":
        y = gate * activate(up, ACTIVATION)
    elif FAULT == "act_in_bfloat16":
        y = activate(gate, ACTIVATION).to(tl.bfloat16).to(tl.float32) * up
    else:
        y = activate(gate, ACTIVATION) * up
    if FAULT == "closed_gates_skipped":
        inside = inside & (y != 0.0)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=inside)


KERNELS = SHARED | {
    "act_in_bfloat16": Kernel(
        "precision", "act(gate) passes through bfloat16 before the product", dtypes=("float32", "float16")
    ),
    "closed_gates_skipped": Kernel("unwritten", "where the product is 0 nothing is stored"),
}


def _flat(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu", fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, rows cols", gate=gate, up=up)
    y = torch.empty((rows, cols), dtype=gate.dtype, device=gate.device)
    if y.numel():
        operands = (gate, up, y, *gate.stride(), *up.stride(), y.numel(), cols)
        _flat_kernel[(triton.cdiv(y.numel(), 256),)](*operands, ACTIVATION=activation, FAULT=fault, BLOCK=256)
    return y


plant_kernels(globals(), _flat, KERNELS, "row_of_up_ignored", "act_of_up", "act_in_bfloat16", "closed_gates_skipped")
