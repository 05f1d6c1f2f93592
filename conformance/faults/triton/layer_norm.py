"""Wrong kernels of layer_norm: a program holds four rows on chip."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels


@triton.jit
def _rows_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    x_row,
    x_col,
    w_col,
    b_col,
    rows,
    cols,
    eps,
    FAULT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_row + col.to(tl.int64) * x_col, mask=inside, other=0.0).to(tl.float32)
    count = cols
    if FAULT == "divided_by_block":
        count = BLOCK
    mean = tl.sum(x, axis=1, keep_dims=True) / count
    if FAULT == "mean_of_the_tile":
        mean = tl.sum(tl.sum(x, axis=1, keep_dims=True), axis=0, keep_dims=True) / (ROWS * count)
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=1, keep_dims=True) / count
    if FAULT == "masked_lanes_in_variance":
        variance = tl.sum((x - mean) * (x - mean), axis=1, keep_dims=True) / count
    elif FAULT == "one_pass_variance":
        variance = tl.sum(x * x, axis=1, keep_dims=True) / count - mean * mean
    elif FAULT == "unbiased":
        variance = variance * count / (count - 1)
    rstd = tl.rsqrt(variance + eps)
    if FAULT == "eps_outside_root":
        rstd = 1.0 / (tl.sqrt(variance) + eps)

    w_offset, b_offset = col.to(tl.int64) * w_col, col.to(tl.int64) * b_col
    if FAULT == "weight_stride_ignored":
        w_offset = col.to(tl.int64)
    y = centred * rstd * tl.load(w_ptr + w_offset, mask=col < cols, other=0.0).to(tl.float32)
    if b_ptr is not None:
        if FAULT == "first_bias_for_all":
            y += tl.load(b_ptr).to(tl.float32)
        else:
            y += tl.load(b_ptr + b_offset, mask=col < cols, other=0.0).to(tl.float32)
    if FAULT == "rows_unmasked":
        inside = col < cols
    tl.store(y_ptr + row * cols + col, y, mask=inside)


KERNELS = {
    "masked_lanes_in_variance": Kernel(
        "mask", "lanes past the last column, loaded as 0, enter the variance as the square of the mean"
    ),
    "one_pass_variance": Kernel(
        "variance", "the variance is the mean of squares less the square of the mean, in float32"
    ),
    "divided_by_block": Kernel("variance", "sums are divided by the padded number of columns"),
    "unbiased": Kernel("variance", "the variance is the unbiased one"),
    "eps_outside_root": Kernel("eps", "eps is added to the standard deviation instead of the variance"),
    "mean_of_the_tile": Kernel("axis", "the mean is that of all rows of a program's tile: a reduction over both axes"),
    "weight_stride_ignored": Kernel("strides", "the stride of weight is taken to be 1"),
    "first_bias_for_all": Kernel("weights", "the first element of bias is added to every column"),
    "rows_unmasked": Kernel(
        "bounds", "the store does not mask rows: the last tile writes past the output", "OutOfBounds"
    ),
}


def _rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5, fault: str = "none"):
    rows, cols = shapes("rows cols, cols, cols?", x=x, weight=weight, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        strides = (*x.stride(), *weight.stride(), bias.stride(0) if bias is not None else 0)
        _rows_kernel[(triton.cdiv(rows, 4),)](
            x, weight, bias, y, *strides, rows, cols, eps, FAULT=fault, ROWS=4, BLOCK=triton.next_power_of_2(cols)
        )
    return y


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "masked_lanes_in_variance",
    "one_pass_variance",
    "divided_by_block",
    "unbiased",
    "eps_outside_root",
    "mean_of_the_tile",
    "weight_stride_ignored",
    "first_bias_for_all",
    "rows_unmasked",
)
