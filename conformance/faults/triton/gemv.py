"""Wrong kernels of gemv: a program to some rows."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.gemv import KERNELS as SHARED


@triton.jit
def _rows_kernel(
    a_ptr, x_ptr, y_ptr, M, K, a_row, a_col, x_step, FAULT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < M
    if FAULT == "row_unguarded":
        inside = row >= 0
    if FAULT == "row_stride_of_k":
        a_row = K
    if FAULT == "offset_int32":
        rows = row * a_row.to(tl.int32)
    else:
        rows = row.to(tl.int64) * a_row
    end = K
    if FAULT == "first_tile_only":
        end = tl.minimum(K, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for start in range(0, end, BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        mask = inside[:, None] & (k[None, :] < K)
        a = tl.load(a_ptr + rows[:, None] + k[None, :] * a_col, mask=mask, other=0.0)
        x = tl.load(x_ptr + k * x_step, mask=k < K, other=0.0)
        if FAULT == "products_narrow":
            products = (a * x[None, :]).to(tl.float32)
        else:
            products = a.to(tl.float32) * x.to(tl.float32)[None, :]
        if FAULT == "last_tile_only":
            acc = products
        else:
            acc += products
    if FAULT == "sum_over_rows":
        y = tl.sum(acc, axis=0)
    else:
        y = tl.sum(acc, axis=1)
    tl.store(y_ptr + row, y, mask=inside)


KERNELS = SHARED | {
    "first_tile_only": Kernel("tail", "only the first tile of columns is done"),
    "last_tile_only": Kernel("accumulator", "the last tile of columns is kept: `acc =` for `acc +=`"),
    "products_narrow": Kernel(
        "precision", "products are made in 16 bits before they are added", dtypes=("float16", "bfloat16")
    ),
    "sum_over_rows": Kernel("axis", "the square tile of products is summed over its rows instead of its columns"),
}


def _rows(a: torch.Tensor, x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        strides = (*a.stride(), *x.stride())
        _rows_kernel[(triton.cdiv(M, 16),)](a, x, y, M, K, *strides, FAULT=fault, BLOCK_M=16, BLOCK_K=16)
    return y


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "row_unguarded",
    "row_stride_of_k",
    "offset_int32",
    "first_tile_only",
    "last_tile_only",
    "products_narrow",
    "sum_over_rows",
)
