"""y = act(gate)·up, element by element.

naive: a program has a block of one row's columns; a row that is no multiple of the block leaves lanes idle [tillet2019]
vectorised: programs cut all elements into blocks: contiguous ones move in accesses of 16 bytes, whatever the row's
            length [xlite2025]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib.activations import activate
from touchstone.backends.triton.lib.pointwise import is_flat, load, offsets, programs
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize_on_alignment=["gate_n", "up_n"])
def _naive_kernel(
    gate_ptr, up_ptr, y_ptr, gate_m, gate_n, up_m, up_n, cols, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):
    blocks = tl.cdiv(cols, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + row * gate_m + col * gate_n, mask=col < cols, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_m + col * up_n, mask=col < cols, other=0.0).to(tl.float32)
    y = activate(gate, ACTIVATION) * up
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@variant()
def naive(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu") -> torch.Tensor:
    """gate and up (rows, cols) -> y (rows, cols). Any sizes and strides. Source: [tillet2019]."""
    rows, cols = shapes("rows cols, rows cols", gate=gate, up=up)
    check_activation(activation)
    y = torch.empty((rows, cols), dtype=gate.dtype, device=gate.device)
    if y.numel():
        block = min(next_power_of_2(cols), 1024)
        grid = programs(rows * ceil_div(cols, block), 1)
        _naive_kernel[grid](gate, up, y, *gate.stride(), *up.stride(), cols, ACTIVATION=activation, BLOCK=block)
    return y


@triton.jit
def _product(
    gate_ptr, up_ptr, y_ptr, gate_m, gate_n, up_m, up_n, i, inside, cols, ACTIVATION: tl.constexpr, FLAT: tl.constexpr
):
    gate = load(gate_ptr + offsets(i, cols, gate_m, gate_n, FLAT), inside)
    up = load(up_ptr + offsets(i, cols, up_m, up_n, FLAT), inside)
    tl.store(y_ptr + i, (activate(gate, ACTIVATION) * up).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["gate_n", "up_n"])
def _vectorised_kernel(
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
    FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        _product(gate_ptr, up_ptr, y_ptr, gate_m, gate_n, up_m, up_n, i, None, cols, ACTIVATION, FLAT)
    else:
        _product(gate_ptr, up_ptr, y_ptr, gate_m, gate_n, up_m, up_n, i, i < size, cols, ACTIVATION, FLAT)


@variant()
def vectorised(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu") -> torch.Tensor:
    """gate and up (rows, cols) -> y (rows, cols). Any sizes and strides; the halves of a joined projection go row by
    row, as in `naive`. Source: [xlite2025]."""
    rows, cols = shapes("rows cols, rows cols", gate=gate, up=up)
    check_activation(activation)
    if cols and not is_flat(gate, up) and gate.stride(1) == up.stride(1) == 1:
        return naive(gate, up, activation=activation)
    y = torch.empty((rows, cols), dtype=gate.dtype, device=gate.device)
    if y.numel():
        operands = (gate, up, y, *gate.stride(), *up.stride(), y.numel(), cols)
        grid = programs(y.numel(), 2048)
        flat = is_flat(gate, up)
        _vectorised_kernel[grid](*operands, ACTIVATION=activation, FLAT=flat, BLOCK=2048, num_warps=8)
    return y
