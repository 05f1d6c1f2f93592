"""Wrong kernels of rms_norm: tiles of 256 columns in two passes, mean square and write."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels


@triton.jit
def _looped_kernel(x_ptr, w_ptr, y_ptr, x_row, x_col, w_col, cols, eps, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row
    y_ptr += row * cols

    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * x_col, mask=col < cols, other=0.0).to(tl.float32)
        square += x * x
    count = cols
    if FAULT == "divided_by_tiles":
        count = tl.cdiv(cols, BLOCK) * BLOCK
    if FAULT == "squares_in_float16":
        square = square.to(tl.float16).to(tl.float32)
    mean_square = tl.sum(square, axis=0) / count
    rstd = tl.rsqrt(mean_square + eps)
    if FAULT == "eps_outside_root":
        rstd = tl.rsqrt(mean_square) + eps
    elif FAULT == "eps_constant":
        rstd = tl.rsqrt(mean_square + 1e-6)

    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        x = tl.load(x_ptr + col.to(tl.int64) * x_col, mask=inside, other=0.0).to(tl.float32)
        within = col
        if FAULT == "weight_of_the_first_tile":
            within = col - start
        w = tl.load(w_ptr + within.to(tl.int64) * w_col, mask=inside, other=0.0).to(tl.float32)
        if FAULT == "normalised_in_place":
            tl.store(x_ptr + col.to(tl.int64) * x_col, x * rstd, mask=inside)
        tl.store(y_ptr + col, x * rstd * w, mask=inside)


KERNELS = {
    "squares_in_float16": Kernel("precision", "the partial sums of squares pass through float16", dtypes=("float32",)),
    "divided_by_tiles": Kernel("variance", "the sum of squares is divided by the columns of whole tiles"),
    "eps_outside_root": Kernel("eps", "eps is added to the reciprocal root instead of the mean square"),
    "eps_constant": Kernel("eps", "eps is 1e-6 whatever the argument says"),
    "weight_of_the_first_tile": Kernel("weights", "every tile of columns is multiplied by the weights of the first"),
    "normalised_in_place": Kernel("mutation", "the normalised row is also stored over x", "inputs: x was written"),
}


def _looped(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        block = min(triton.next_power_of_2(cols), 256)
        _looped_kernel[(rows,)](x, weight, y, *x.stride(), *weight.stride(), cols, eps, FAULT=fault, BLOCK=block)
    return y


plant_kernels(
    globals(),
    _looped,
    KERNELS,
    "squares_in_float16",
    "divided_by_tiles",
    "eps_outside_root",
    "eps_constant",
    "weight_of_the_first_tile",
    "normalised_in_place",
)
