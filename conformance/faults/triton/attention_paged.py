"""Wrong kernels of attention_paged: a program for each query, which takes its sequence's pages one after another."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.attention_paged import KERNELS as SHARED


@triton.jit
def _pages_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, table_strides,
    length_row, scale, Hq, Hkv, Sq, page, n, D, FAULT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, h, i = row // (Hq * Sq), row // Sq % Hq, row % Sq
    reader = h // (Hq // Hkv)
    if FAULT == "heads_modulo":
        reader = h % Hkv
    length = tl.load(lengths_ptr + b * length_row)
    if FAULT == "first_length":
        length = tl.minimum(length, tl.load(lengths_ptr))
    last = length - Sq + i + 1
    if FAULT == "last_page_full":
        last = (last + page - 1) // page * page
    d = tl.arange(0, WIDTH).to(tl.int64)
    q_at = b * q_strides[0] + h * q_strides[1] + i * q_strides[2] + d * q_strides[3]
    q = tl.load(q_ptr + q_at, mask=d < D, other=0.0).to(tl.float32)
    k_page, v_page = k_strides[0], v_strides[0]
    if FAULT == "page_stride":
        k_page, v_page = page * k_strides[1], page * v_strides[1]
    m, l, o = -3e38, 0.0, tl.zeros((WIDTH,), tl.float32)
    pages = (last + page - 1) // page
    for place in range(0, pages):
        entry, owner = place, b
        if FAULT == "next_page":
            entry = tl.minimum(place + 1, pages - 1)
        if FAULT == "second_page_of_the_first":
            owner = tl.where(place == 1, 0, b)
        held = tl.load(table_ptr + owner * table_strides[0] + entry * table_strides[1])
        if FAULT != "page_int32":
            held = held.to(tl.int64)
        k_from, v_from = held * k_page, held * v_page
        for start in range(0, page, TILE):
            r = (start + tl.arange(0, TILE)).to(tl.int64)
            own = (r < page) & (place * page + r < last)
            inside = own[:, None] & (d < D)[None, :]
            of_values = inside
            if FAULT == "values_not_masked":
                of_values = (r < page)[:, None] & (d < D)[None, :]
            k_at = k_from + r[:, None] * k_strides[1] + reader * k_strides[2] + d[None, :] * k_strides[3]
            v_at = v_from + r[:, None] * v_strides[1] + reader * v_strides[2] + d[None, :] * v_strides[3]
            k = tl.load(k_ptr + k_at, mask=inside, other=0.0).to(tl.float32)
            v = tl.load(v_ptr + v_at, mask=of_values, other=0.0).to(tl.float32)
            s = tl.where(own, tl.sum(k * q[None, :], axis=1) * scale, -3e38)
            larger = tl.maximum(m, tl.max(s))
            kept, p = tl.exp(m - larger), tl.where(own, tl.exp(s - larger), 0.0)
            if FAULT == "not_rescaled":
                kept = 1.0
            l = l * kept + tl.sum(p)
            o = o * kept + tl.sum(p[:, None] * v, axis=0)
            m = larger
    tl.store(o_ptr + row * D + d, o / tl.where(l == 0, 1.0, l), mask=d < D)
    tl.store(lse_ptr + row, tl.where(l == 0, float("-inf"), m + tl.log(l)))


KERNELS = SHARED | {
    "values_not_masked": Kernel("special", "values beyond the length are multiplied by a probability of 0: NaN stays"),
    "not_rescaled": Kernel("rescale", "what earlier pages gave is not rescaled when the maximum moves"),
    "page_int32": SHARED["page_int32"]._replace(found="IntegerOverflowError"),
}


def _pages(
    q, k_cache, v_cache, block_table, lengths, *, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    spec = "B Hq Sq D, P page Hkv D, P page Hkv D, B n:int32, B:int32"
    operands = dict(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, lengths=lengths)
    _, Hq, Sq, D, _, page, Hkv, n = shapes(spec, **operands)
    o, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=torch.float32)
    if o.numel():
        strides = (q.stride(), k_cache.stride(), v_cache.stride(), block_table.stride(), lengths.stride(0))
        options = (1 / math.sqrt(D) if scale is None else scale, Hq, Hkv, Sq, page, n, D)
        tile, width = min(64, triton.next_power_of_2(page)), triton.next_power_of_2(D)
        _pages_kernel[(lse.numel(),)](
            *operands.values(), o, lse, *strides, *options, FAULT=fault, TILE=tile, WIDTH=width
        )
    return o, lse


plant_kernels(
    globals(),
    _pages,
    KERNELS,
    "next_page",
    "second_page_of_the_first",
    "page_stride",
    "last_page_full",
    "heads_modulo",
    "first_length",
    "page_int32",
    "values_not_masked",
    "not_rescaled",
)
