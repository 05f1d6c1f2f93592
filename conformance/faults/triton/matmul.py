"""Wrong kernels of matmul: `_tiled_kernel`, one program per tile, and `_splitk_kernel`, four programs per tile."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.matmul import KERNELS as SHARED


@triton.jit
def _tiled_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    FAULT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    tile_m, tile_n = tile // tiles_n, tile % tiles_n
    m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    if FAULT == "offset_int32":
        a_rows = a_ptr + (tile_m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None] * stride_am
    else:
        a_rows = a_ptr + m[:, None] * stride_am
    b_cols = b_ptr + n[None, :] * stride_bn
    if FAULT == "column_stride_of_b_ignored":
        b_cols = b_ptr + n[None, :]
    end = K
    if FAULT == "k_tail_dropped":
        end = K // BLOCK_K * BLOCK_K
    fill = 1.0 if FAULT == "fill_one" else 0.0
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if FAULT == "accumulator_float16":
        acc = acc.to(tl.float16)
    for start in range(0, end, BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        inside_a, inside_b = (m[:, None] < M) & (k[None, :] < K), (k[:, None] < K) & (n[None, :] < N)
        if FAULT == "k_unmasked":
            inside_a, inside_b = (m[:, None] < M) & (k[None, :] >= 0), (k[:, None] >= 0) & (n[None, :] < N)
        a = tl.load(a_rows + k[None, :] * stride_ak, mask=inside_a, other=fill)
        b = tl.load(b_cols + k[:, None] * stride_bk, mask=inside_b, other=fill)
        if FAULT == "default_precision":
            acc = tl.dot(a, b, acc)
        elif FAULT == "accumulator_float16":
            acc = (acc + tl.dot(a, b, input_precision="ieee")).to(tl.float16)
        elif FAULT == "last_k_tile_only":
            acc = tl.dot(a, b, input_precision="ieee")
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    if FAULT == "tile_order":  # tiles are numbered by columns here, by rows above
        m = (tile % tiles_m).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        n = (tile // tiles_m).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (m[:, None] < M) & (n[None, :] < N)
    if FAULT == "store_past_the_row":
        inside = m[:, None] < M
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside)


KERNELS = SHARED | {
    "k_unmasked": Kernel(
        "bounds", "the loads do not mask k: the last tile reads on past the row and past the last row", "OutOfBounds"
    ),
    "fill_one": Kernel("mask", "lanes past the end of k are loaded as 1 and add to every element"),
    "store_past_the_row": Kernel(
        "bounds", "the store masks rows only: a tile at the right edge writes into the next row", "OutOfBounds"
    ),
    "default_precision": Kernel(
        "precision",
        "tl.dot is left at its default precision, which rounds float32 operands to tf32",
        dtypes=("float32",),
    ),
    "last_k_tile_only": Kernel("accumulator", "only the last tile of k is kept: `acc =` for `acc +=`"),
    "tile_order": Kernel(
        "axis",
        "a tile is stored where another belongs: rows of tiles when it is computed, columns of tiles when it is stored",
    ),
    "column_stride_of_b_ignored": Kernel("strides", "the stride between the columns of b is taken to be 1"),
    "offset_int32": Kernel("offset", "row times row stride of a is computed in 32 bits", "IntegerOverflowError"),
    "splits_load_and_store": Kernel(
        "race", "the splits of k add to a tile by load and store without an atomic: updates get lost", "RaceCondition"
    ),
    "first_split_stores": Kernel(
        "race",
        "the first split of k stores its part, the others add to it atomically, before or after",
        "programs in reverse",
    ),
    "splits_overwrite": Kernel("race", "the splits of k store over one another: one of them remains"),
    "splits_add_to_empty": Kernel(
        "accumulator", "the splits of k add atomically to memory that nothing has set to zero"
    ),
    "splits_add_in_sixteen_bits": Kernel(
        "precision",
        "the splits of k add atomically in the 16-bit output, which rounds every addition",
        dtypes=("float16", "bfloat16"),
    ),
}


def _tiled(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    c = a.new_empty(M, N)
    if c.numel():
        rows = max(M // 32, 1) if fault == "grid_of_whole_tiles" else triton.cdiv(M, 32)
        _tiled_kernel[(rows * triton.cdiv(N, 32),)](
            a, b, c, M, N, K, *a.stride(), *b.stride(), FAULT=fault, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32
        )
    return c


plant_kernels(
    globals(),
    _tiled,
    KERNELS,
    "k_tail_dropped",
    "k_unmasked",
    "fill_one",
    "store_past_the_row",
    "accumulator_float16",
    "default_precision",
    "last_k_tile_only",
    "tile_order",
    "grid_of_whole_tiles",
    "column_stride_of_b_ignored",
    "offset_int32",
)


@triton.jit
def _splitk_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    FAULT: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    split = tl.program_id(1)
    m = (tl.program_id(0) // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(split * BLOCK_K, K, SPLITS * BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K)).to(tl.int64)
        a_tile = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
        b_tile = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
        a = tl.load(a_tile, mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_tile, mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    c_tile = c_ptr + m[:, None] * N + n[None, :]
    inside = (m[:, None] < M) & (n[None, :] < N)
    acc = acc.to(c_ptr.dtype.element_ty)
    if FAULT == "splits_load_and_store":
        tl.store(c_tile, tl.load(c_tile, mask=inside, other=0.0) + acc, mask=inside)
    elif FAULT == "splits_overwrite":
        tl.store(c_tile, acc, mask=inside)
    elif FAULT == "first_split_stores":
        if split == 0:
            tl.store(c_tile, acc, mask=inside)
        else:
            tl.atomic_add(c_tile, acc, mask=inside, sem="relaxed")
    else:
        tl.atomic_add(c_tile, acc, mask=inside, sem="relaxed")


def _splitk(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K, N = shapes("M K, K N", a=a, b=b)
    dtype = a.dtype if fault == "splits_add_in_sixteen_bits" else torch.float32
    allocate = torch.empty if fault in ("splits_add_to_empty", "first_split_stores") else torch.zeros
    c = allocate((M, N), dtype=dtype, device=a.device)
    if c.numel():
        _splitk_kernel[(triton.cdiv(M, 32) * triton.cdiv(N, 32), 4)](
            a, b, c, M, N, K, *a.stride(), *b.stride(), FAULT=fault, SPLITS=4, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16
        )
    return c.to(a.dtype)


plant_kernels(
    globals(),
    _splitk,
    KERNELS,
    "splits_load_and_store",
    "first_split_stores",
    "splits_overwrite",
    "splits_add_to_empty",
    "splits_add_in_sixteen_bits",
    deterministic=False,
)
