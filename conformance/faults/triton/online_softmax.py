"""Wrong kernels of online_softmax: tiles of 64 columns, one pass for (m, l), one that writes y."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels


@triton.jit
def _online_kernel(x_ptr, y_ptr, lse_ptr, x_row, x_col, cols, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    y_ptr += row * cols

    m = tl.full((), float("-inf"), tl.float32)
    if FAULT == "maximum_starts_at_zero":
        m = tl.full((), 0.0, tl.float32)
    shift = tl.full((), 0.0, tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * x_col, mask=col < cols, other=float("-inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(x, axis=0))
        shift = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new)
        if FAULT == "leading_neg_inf":
            shift = m_new
        alpha = tl.exp(m - shift)
        if FAULT == "no_rescale":
            alpha = 1.0
        elif FAULT == "inverse_rescale":
            alpha = tl.exp(shift - m)
        l = l * alpha + tl.exp(x - shift)
        if FAULT == "one_pass":
            tl.store(y_ptr + col, tl.exp(x - shift) / tl.sum(l, axis=0), mask=col < cols)
        m = m_new
    l = tl.sum(l, axis=0)
    lse = shift + tl.log(l)
    if FAULT == "lse_in_log2":
        lse = shift + tl.log2(l)
    elif FAULT == "lse_without_maximum":
        lse = tl.log(l)
    tl.store(lse_ptr + row, lse)

    l = tl.where(m == float("inf"), float("nan"), l)
    end = cols
    if FAULT == "one_pass":
        end = 0
    for start in range(0, end, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * x_col, mask=col < cols, other=float("-inf")).to(tl.float32)
        tl.store(y_ptr + col, tl.exp(x - shift) / l, mask=col < cols)


KERNELS = {
    "no_rescale": Kernel("rescale", "the running sum is not rescaled when the maximum grows"),
    "inverse_rescale": Kernel(
        "rescale", "the running sum is multiplied by exp(new maximum - old) instead of exp(old - new)"
    ),
    "one_pass": Kernel("rescale", "each tile is normalised by the maximum and the sum so far, and never corrected"),
    "maximum_starts_at_zero": Kernel("overflow", "the running maximum starts at 0: rows far below zero underflow"),
    "leading_neg_inf": Kernel("special", "a first tile of -inf makes the row NaN: exp(-inf - (-inf)) enters the sum"),
    "lse_in_log2": Kernel("scale", "the sum enters lse by its logarithm to base 2"),
    "lse_without_maximum": Kernel("formula", "lse lacks the maximum"),
}


def _online(x: torch.Tensor, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    lse = torch.full((rows,), float("-inf"), dtype=torch.float32, device=x.device)
    if y.numel():
        _online_kernel[(rows,)](
            x, y, lse, *x.stride(), cols, FAULT=fault, BLOCK=min(triton.next_power_of_2(cols), 64), num_warps=1
        )
    return y, lse


plant_kernels(
    globals(),
    _online,
    KERNELS,
    "no_rescale",
    "inverse_rescale",
    "one_pass",
    "maximum_starts_at_zero",
    "leading_neg_inf",
    "lse_in_log2",
    "lse_without_maximum",
)
