"""Gradients of y = act(gate)·up: dgate = dy·up·act'(gate), dup = dy·act(gate).

naive: a program has a block of one row's columns; gate is read once for both gradients [tillet2019]
vectorised: programs cut all elements into blocks: contiguous ones move in accesses of 16 bytes, whatever the row's
            length [xlite2025]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib.activations import activate, activation_slope
from touchstone.backends.triton.lib.pointwise import is_flat, load, offsets, programs
from touchstone.backends.variants import variant

Gradients = tuple[torch.Tensor, torch.Tensor]


@triton.jit(do_not_specialize_on_alignment=["gate_n", "up_n", "dy_n"])
def _naive_kernel(
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
    cols,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks = tl.cdiv(cols, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    gate = tl.load(gate_ptr + row * gate_m + col * gate_n, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_m + col * up_n, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * dy_m + col * dy_n, mask=inside, other=0.0).to(tl.float32)
    dgate = dy * up * activation_slope(gate, ACTIVATION)
    dup = dy * activate(gate, ACTIVATION)
    tl.store(dgate_ptr + row * cols + col, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
    tl.store(dup_ptr + row * cols + col, dup.to(dup_ptr.dtype.element_ty), mask=inside)


@variant()
def naive(gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu") -> Gradients:
    """gate, up and dy (rows, cols) -> dgate, dup (rows, cols). Any sizes and strides. Source: [tillet2019]."""
    rows, cols = shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    check_activation(activation)
    dgate, dup = (torch.empty((rows, cols), dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        block = min(next_power_of_2(cols), 1024)
        grid = programs(rows * ceil_div(cols, block), 1)
        strides = (*gate.stride(), *up.stride(), *dy.stride())
        _naive_kernel[grid](gate, up, dy, dgate, dup, *strides, cols, ACTIVATION=activation, BLOCK=block)
    return dgate, dup


@triton.jit
def _gradients(
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
    i,
    inside,
    cols,
    ACTIVATION: tl.constexpr,
    FLAT: tl.constexpr,
):
    gate = load(gate_ptr + offsets(i, cols, gate_m, gate_n, FLAT), inside)
    up = load(up_ptr + offsets(i, cols, up_m, up_n, FLAT), inside)
    dy = load(dy_ptr + offsets(i, cols, dy_m, dy_n, FLAT), inside)
    dgate = dy * up * activation_slope(gate, ACTIVATION)
    dup = dy * activate(gate, ACTIVATION)
    tl.store(dgate_ptr + i, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
    tl.store(dup_ptr + i, dup.to(dup_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["gate_n", "up_n", "dy_n"])
def _vectorised_kernel(
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
    FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = first + tl.arange(0, BLOCK)
    strides = (gate_m, gate_n, up_m, up_n, dy_m, dy_n)
    if first + BLOCK <= size:
        _gradients(gate_ptr, up_ptr, dy_ptr, dgate_ptr, dup_ptr, *strides, i, None, cols, ACTIVATION, FLAT)
    else:
        _gradients(gate_ptr, up_ptr, dy_ptr, dgate_ptr, dup_ptr, *strides, i, i < size, cols, ACTIVATION, FLAT)


@variant()
def vectorised(gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu") -> Gradients:
    """gate, up and dy (rows, cols) -> dgate, dup (rows, cols). Any sizes and strides. Source: [xlite2025]."""
    rows, cols = shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    check_activation(activation)
    dgate, dup = (torch.empty((rows, cols), dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        operands = (gate, up, dy, dgate, dup, *gate.stride(), *up.stride(), *dy.stride(), dup.numel(), cols)
        grid = programs(dup.numel(), 1024)
        _vectorised_kernel[grid](*operands, ACTIVATION=activation, FLAT=is_flat(gate, up, dy), BLOCK=1024)
    return dgate, dup
