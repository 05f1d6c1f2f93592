"""Wrong kernels of cross_entropy: tiles of 64 classes in one pass, and a program that adds the losses up."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cross_entropy import KERNELS as SHARED


@triton.jit
def _rows_kernel(
    z_ptr, y_ptr, loss_ptr, z_row, z_col, y_row, V, ignore_index, smoothing, z_loss, FAULT: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if FAULT == "strides_of_the_target":
        y_row = 1
    y = tl.load(y_ptr + row * y_row).to(tl.int64)
    if y == ignore_index:
        if FAULT != "ignored_row_unwritten":
            tl.store(loss_ptr + row, 0.0)
        return
    z_ptr += row * z_row
    m = tl.full((), -3e38, tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, V, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < V
        other = float("-inf")
        if FAULT == "padding_is_zero":
            other = 0.0
        z = tl.load(z_ptr + col.to(tl.int64) * z_col, mask=inside, other=other).to(tl.float32)
        m_new = tl.maximum(m, tl.max(z, axis=0))
        alpha = tl.exp(m - m_new)
        if FAULT == "not_rescaled":
            alpha = 1.0
        l = l * alpha + tl.exp(z - m_new)
        m = m_new
        total += tl.where(inside, z, 0.0)
    lse = m + tl.log(tl.sum(l, axis=0))
    count = V
    if FAULT == "smoothing_over_tiles":
        count = tl.cdiv(V, BLOCK) * BLOCK
    smooth = tl.where(smoothing > 0, smoothing * (lse - tl.sum(total, axis=0) / count), 0.0)
    picked = tl.load(z_ptr + y * z_col).to(tl.float32)
    tl.store(loss_ptr + row, (1 - smoothing) * (lse - picked) + smooth + z_loss * lse * lse)


@triton.jit
def _total_kernel(losses_ptr, y_ptr, loss_ptr, rows, y_row, ignore_index, MEAN: tl.constexpr, FAULT: tl.constexpr):
    total = 0.0
    kept = 0.0
    for start in range(0, rows, 64):
        row = start + tl.arange(0, 64)
        total += tl.sum(tl.load(losses_ptr + row, mask=row < rows, other=0.0), axis=0)
        y = tl.load(y_ptr + row.to(tl.int64) * y_row, mask=row < rows, other=0).to(tl.int64)
        counted = row < rows
        if FAULT != "counts_all_rows":
            counted = counted & (y != ignore_index)
        kept += tl.sum(tl.where(counted, 1.0, 0.0), axis=0)
    if MEAN:
        total /= kept
    tl.store(loss_ptr, total)


KERNELS = SHARED | {
    "padding_is_zero": Kernel("mask", "the lanes past the last class hold 0 instead of -inf"),
    "smoothing_over_tiles": Kernel("mask", "the mean of the logits is over whole tiles of classes"),
}


def _rows(
    logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0, fault: str = "none"
) -> torch.Tensor:
    rows, V = shapes("rows V, rows:int64|int32", logits=logits, target=target)
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        options = (V, ignore_index, label_smoothing, z_loss)
        strides = (*logits.stride(), *target.stride())
        _rows_kernel[(rows,)](logits, target, losses, *strides, *options, FAULT=fault, BLOCK=64, num_warps=1)
    if reduction == "none":
        return losses
    loss = torch.full((), float("nan") if reduction == "mean" else 0.0)
    if rows:
        operands = (losses, target, loss, rows, *target.stride(), ignore_index)
        _total_kernel[(1,)](*operands, MEAN=reduction == "mean", FAULT=fault)
    return loss


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "not_rescaled",
    "counts_all_rows",
    "strides_of_the_target",
    "ignored_row_unwritten",
    "padding_is_zero",
    "smoothing_over_tiles",
)
