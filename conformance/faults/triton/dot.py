"""Wrong kernels of dot: programs that add to one total, and one program that adds the sums of all."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.dot import KERNELS as SHARED

_BLOCK = 64


@triton.jit
def _products(a_ptr, b_ptr, i, n, a_step, b_step, FAULT: tl.constexpr):
    inside = i < n
    if FAULT == "b_stride_ignored":
        b_step = a_step
    if FAULT == "tail_unmasked":
        inside = i < tl.cdiv(n, 32) * 32
    a = tl.load(a_ptr + i * a_step, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + i * b_step, mask=inside, other=0.0).to(tl.float32)
    return a * b


@triton.jit
def _blocks_kernel(a_ptr, b_ptr, partial_ptr, n, a_step, b_step, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0) * BLOCK
    if FAULT == "stride_of_a_block":
        step = BLOCK
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(first, n, step):
        products = _products(a_ptr, b_ptr, start + tl.arange(0, BLOCK), n, a_step, b_step, FAULT)
        if FAULT == "last_tile_only":
            acc = products
        else:
            acc += products
    tl.store(partial_ptr + tl.program_id(0), tl.sum(acc, axis=0))


@triton.jit
def _atomic_kernel(a_ptr, b_ptr, total_ptr, n, a_step, b_step, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    own = tl.sum(_products(a_ptr, b_ptr, i, n, a_step, b_step, FAULT), axis=0)
    if FAULT == "added_in_place":
        tl.store(total_ptr, tl.load(total_ptr) + own)
    else:
        tl.atomic_add(total_ptr, own)


@triton.jit
def _finish_kernel(partial_ptr, y_ptr, count, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if FAULT == "absent_partials":
        partials = tl.load(partial_ptr + i, mask=i < count)
    else:
        partials = tl.load(partial_ptr + i, mask=i < count, other=0.0)
    tl.store(y_ptr, tl.sum(partials, axis=0))


KERNELS = SHARED | {
    "last_tile_only": Kernel("accumulator", "a program keeps its last tile of products: `acc =` for `acc +=`"),
    "absent_partials": Kernel(
        "mask", "partial sums past the last program's are loaded without `other` and enter the sum"
    ),
    "total_not_zeroed": Kernel("unwritten", "the total that programs add to begins with what was in memory"),
}


def _blocks(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    (n,) = shapes("n, n", a=a, b=b)
    y, partial = a.new_empty(()), a.new_empty(3, dtype=torch.float32)
    _blocks_kernel[(3,)](a, b, partial, n, *a.stride(), *b.stride(), FAULT=fault, BLOCK=_BLOCK)
    _finish_kernel[(1,)](partial, y, 3, FAULT=fault, BLOCK=4)
    return y


plant_kernels(
    globals(),
    _blocks,
    KERNELS,
    "b_stride_ignored",
    "tail_unmasked",
    "stride_of_a_block",
    "last_tile_only",
    "absent_partials",
)


def _atomic(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    (n,) = shapes("n, n", a=a, b=b)
    y, total = a.new_empty(()), a.new_empty(1, dtype=torch.float32)
    if fault != "total_not_zeroed":
        total.zero_()
    if n:
        _atomic_kernel[(triton.cdiv(n, _BLOCK),)](a, b, total, n, *a.stride(), *b.stride(), FAULT=fault, BLOCK=_BLOCK)
    _finish_kernel[(1,)](total, y, 1, FAULT=fault, BLOCK=4)
    return y


plant_kernels(globals(), _atomic, KERNELS, "added_in_place", "total_not_zeroed", deterministic=False)
