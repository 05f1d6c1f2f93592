"""Wrong kernels of dropout: a call of Philox for four elements, in blocks of 64."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._dropout import axes, checked
from touchstone.backends.triton.lib.philox import place, words_of
from touchstone.conformance.faults import Kernel, plant_kernels


@triton.jit
def _blocks_kernel(
    x_ptr,
    y_ptr,
    size,
    n1,
    n2,
    n3,
    s0,
    s1,
    s2,
    s3,
    threshold,
    scale,
    seed,
    offset,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    e = first + tl.arange(0, BLOCK)
    block = first // 4 + tl.arange(0, BLOCK // 4)
    if FAULT == "counter_of_a_block":
        block = tl.arange(0, BLOCK // 4).to(tl.int64)
    r0, r1, r2, r3 = words_of(block, seed, offset)
    if FAULT == "joined_in_another_order":
        words = tl.join(tl.join(r0, r1), tl.join(r2, r3))
    else:
        words = tl.join(tl.join(r0, r2), tl.join(r1, r3))
    words = tl.reshape(words, [BLOCK])
    if FAULT == "words_of_randint":
        words = tl.randint(seed, offset + e).to(tl.uint32, bitcast=True)
    if FAULT == "signed_words":
        kept = words.to(tl.int32, bitcast=True) >= threshold
    else:
        kept = words.to(tl.int64) >= threshold

    x = tl.load(x_ptr + place(e, n1, n2, n3, s0, s1, s2, s3), mask=e < size, other=0.0).to(tl.float32)
    y = tl.where(kept, x * scale, 0.0)
    if FAULT == "product_with_mask":
        y = x * scale * kept.to(tl.float32)
    if FAULT == "store_unmasked":
        tl.store(y_ptr + e, y)
    else:
        tl.store(y_ptr + e, y, mask=e < size)


KERNELS = {
    "counter_of_a_block": Kernel("offset", "the counter begins anew with every block of elements"),
    "joined_in_another_order": Kernel("axis", "four tiles of words are joined in an order that swaps two of them"),
    "words_of_randint": Kernel(
        "offset", "words come from tl.randint of offset + index, so that streams of neighbouring offsets overlap"
    ),
    "signed_words": Kernel("overflow", "words are compared as signed integers: those from 2^31 on are dropped"),
    "product_with_mask": Kernel("special", "x is multiplied by the mask: NaN that is dropped stays NaN"),
    "store_unmasked": Kernel("bounds", "the store has no mask: the last block writes past the output", "OutOfBounds"),
}


def _blocks(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0, fault: str = "none") -> torch.Tensor:
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if size := y.numel():
        sizes, strides = axes(x)
        programs = triton.cdiv(size, 64)
        _blocks_kernel[(programs,)](x, y, size, *sizes[1:], *strides, *rule, FAULT=fault, BLOCK=64, num_warps=1)
    return y


plant_kernels(
    globals(),
    _blocks,
    KERNELS,
    "counter_of_a_block",
    "joined_in_another_order",
    "words_of_randint",
    "signed_words",
    "product_with_mask",
    "store_unmasked",
)
