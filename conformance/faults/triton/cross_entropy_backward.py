"""Wrong kernels of cross_entropy_backward: a row in a program, or tiles of 64 classes of it."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cross_entropy_backward import KERNELS as SHARED


@triton.jit
def _rows_kernel(
    z_ptr, y_ptr, g_ptr, dz_ptr, z_row, z_col, y_row, g_row, rows, V, ignore_index, smoothing, z_loss,
    MEAN: tl.constexpr, FAULT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z_ptr += row * z_row
    whole = tl.arange(0, WIDTH)
    z = tl.load(z_ptr + whole.to(tl.int64) * z_col, mask=whole < V, other=float("-inf")).to(tl.float32)
    m = tl.max(z, axis=0)
    lse = m + tl.log(tl.sum(tl.exp(z - m), axis=0))
    if FAULT == "first_dloss":
        g_row = 0
    elif FAULT == "strides_of_dloss":
        g_row = tl.minimum(g_row, 1)
    g = tl.load(g_ptr + row * g_row)
    if MEAN:
        every = tl.arange(0, ROWS)
        counted = every < rows
        classes = tl.load(y_ptr + every.to(tl.int64) * y_row, mask=counted, other=0)
        if FAULT != "every_row_counts":
            counted = counted & (classes != ignore_index)
        g /= tl.sum(tl.where(counted, 1.0, 0.0), axis=0)
    y = tl.load(y_ptr + row * y_row).to(tl.int64)
    for start in range(0, V, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < V
        z = tl.load(z_ptr + col.to(tl.int64) * z_col, mask=inside, other=0.0).to(tl.float32)
        place = col
        if FAULT == "class_of_first_tile":
            place = tl.arange(0, BLOCK)
        dz = (1 + 2 * z_loss * lse) * tl.exp(z - lse) - tl.where(place == y, 1 - smoothing, 0.0) - smoothing / V
        if FAULT == "ignored_row_unwritten":
            inside = inside & (y != ignore_index)
        tl.store(dz_ptr + row * V + col, tl.where(y == ignore_index, 0.0, dz * g), mask=inside)


KERNELS = SHARED | {
    "class_of_first_tile": Kernel("tail", "1 is subtracted at the class's place in the first tile, in every tile")
}


def _rows(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0,
    fault: str = "none"
) -> torch.Tensor:  # fmt: skip
    each = "rows" if reduction == "none" else "()"
    spec = f"rows V, rows:int64|int32, rows:float32?, {each}:float32"
    rows, V = shapes(spec, logits=logits, target=target, lse=lse, dloss=dloss)
    dlogits = torch.empty((rows, V), dtype=logits.dtype, device=logits.device)
    if rows:
        strides = (*logits.stride(), *target.stride(), dloss.stride(0) if dloss.ndim else 0)
        options = (rows, V, ignore_index, label_smoothing, z_loss)
        _rows_kernel[(rows,)](
            logits, target, dloss, dlogits, *strides, *options,
            MEAN=reduction == "mean", FAULT=fault, ROWS=triton.next_power_of_2(rows), WIDTH=triton.next_power_of_2(V),
            BLOCK=64, num_warps=1
        )  # fmt: skip
    return dlogits


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "first_dloss",
    "ignored_row_unwritten",
    "strides_of_dloss",
    "every_row_counts",
    "class_of_first_tile",
)
