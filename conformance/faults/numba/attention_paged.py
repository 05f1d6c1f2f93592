"""Wrong kernels of attention_paged: a block for each query, whose threads take the keys of a page."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int32

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.attention_paged import KERNELS
from touchstone.conformance.faults.numba._launching import flat, launch

_THREADS, _HELD = 32, 8  # keys of a step; of D in each thread
_LOW, _NONE = np.float32(-3e38), np.float32(-math.inf)


class Fault(IntEnum):
    none = 0
    next_page = 1
    second_page_of_the_first = 2
    page_stride = 3
    last_page_full = 4
    heads_modulo = 5
    first_length = 6
    page_int32 = 7
    entry_beyond_the_last = 8


@cuda.jit(device=True)
def _begin(held, page, reader, steps, fault):
    """Where a page's rows of one head begin in the memory of a cache; `steps` are its strides."""
    step = page * steps[1] if fault == Fault.page_stride else steps[0]
    start = held * step
    if fault == Fault.page_int32:
        start = int32(start)
    return start + reader * steps[2]


@cuda.jit
def _pages_kernel(q, k, v, table, lengths, o, lse, k_steps, v_steps, page, kv_heads, scale, fault):
    scores = cuda.shared.array(_THREADS, float32)
    own = cuda.local.array(_HELD, float32)
    heads, seq, dim, thread = q.shape[1], q.shape[2], q.shape[3], cuda.threadIdx.x
    row = cuda.blockIdx.x
    b, h, i = row // (heads * seq), row // seq % heads, row % seq
    reader = h % kv_heads if fault == Fault.heads_modulo else h // (heads // kv_heads)
    length = lengths[b]
    if fault == Fault.first_length:
        length = min(length, lengths[0])
    last = max(0, length - seq + i + 1)
    pages = (last + page - 1) // page
    if fault == Fault.last_page_full:
        last = pages * page
    m, l = _LOW, float32(0)
    for r in range(_HELD):
        own[r] = float32(0)
    for place in range(pages):
        entry = min(place + 1, pages - 1) if fault == Fault.next_page else place
        owner = 0 if fault == Fault.second_page_of_the_first and place == 1 else b
        k_from = _begin(table[owner, entry], page, reader, k_steps, fault)
        v_from = _begin(table[owner, entry], page, reader, v_steps, fault)
        if fault == Fault.entry_beyond_the_last and place + 1 < table.shape[1]:
            own[0] += float32(0) * float32(v[_begin(table[b, place + 1], page, reader, v_steps, fault)])
        rows = min(page, last - place * page)
        for start in range(0, rows, _THREADS):
            if start + thread < rows:
                dot = float32(0)
                for d in range(dim):
                    dot += float32(q[b, h, i, d]) * float32(k[k_from + (start + thread) * k_steps[1] + d * k_steps[3]])
                scores[thread] = dot * scale
            cuda.syncthreads()
            count = min(_THREADS, rows - start)
            larger = m
            for c in range(count):
                larger = max(larger, scores[c])
            kept = math.exp(m - larger)
            l *= kept
            for r in range(_HELD):
                own[r] *= kept
            for c in range(count):
                p = math.exp(scores[c] - larger)
                l += p
                for d in range(thread, dim, _THREADS):
                    own[d // _THREADS] += p * float32(v[v_from + (start + c) * v_steps[1] + d * v_steps[3]])
            m = larger
            cuda.syncthreads()
    for d in range(thread, dim, _THREADS):
        o[row, d] = own[d // _THREADS] / l if l > float32(0) else float32(0)
    if thread == 0:
        lse[row] = m + math.log(l) if l > float32(0) else _NONE


def _pages(
    q, k_cache, v_cache, block_table, lengths, *, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    spec = "B Hq Sq D, P page Hkv D, P page Hkv D, B n:int32, B:int32"
    operands = dict(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, lengths=lengths)
    _, _, _, D, _, page, Hkv, _ = shapes(spec, **operands)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        caches, steps = (flat(k_cache), flat(v_cache)), [torch.tensor(x.stride()) for x in (k_cache, v_cache)]
        factor = np.float32(1 / math.sqrt(D) if scale is None else scale)
        rows = lse.numel()
        arguments = (q, *caches, block_table, lengths, o.view(rows, D), lse.view(rows), *steps, page, Hkv, factor)
        launch(Fault, fault, _pages_kernel, rows, _THREADS, *arguments)
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
)
