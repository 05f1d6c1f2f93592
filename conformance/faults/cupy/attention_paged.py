"""Wrong kernels of attention_paged: a block for each query, whose threads take the keys of a page."""

import math

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_paged import KERNELS as SHARED
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "attention_paged.cu")

KERNELS = SHARED | {
    "mask_of_another_row": Kernel(
        "mask", "the rows of a key head go by head and then by query, and are masked as if it were the other way round"
    ),
    "no_barrier": Kernel(
        "race", "no barrier between a page's scores and the threads that need all of them", "UninitialisedShared|Race"
    ),
}


def _pages(
    q, k_cache, v_cache, block_table, lengths, *, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    spec = "B Hq Sq D, P page Hkv D, P page Hkv D, B n:int32, B:int32"
    operands = dict(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, lengths=lengths)
    _, Hq, Sq, D, _, page, Hkv, n = shapes(spec, **operands)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        strides = [step for x in operands.values() for step in x.stride()]
        options = (1 / math.sqrt(D) if scale is None else scale, Hq, Hkv, Sq, page, n, D)
        arguments = (*operands.values(), o, lse, *strides, *options)
        _module.launch("attention_paged_pages", lse.numel(), 64, *arguments, fault=fault, dtype=q.dtype)
    return o, lse


plant_kernels(
    globals(),
    _pages,
    KERNELS,
    "pages",
    "next_page",
    "second_page_of_the_first",
    "page_stride",
    "last_page_full",
    "heads_modulo",
    "first_length",
    "page_int32",
    "entry_beyond_the_last",
    "mask_of_another_row",
    "no_barrier",
)
