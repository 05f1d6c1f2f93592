"""Merging the parts of attention whose keys several programs share."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["splits", "DV"])
def merge_kernel(part_ptr, part_lse_ptr, o_ptr, lse_ptr, splits, DV, SPLITS: tl.constexpr, BLOCK_V: tl.constexpr):
    """The o and lse of a row from those of its parts; one without keys has an lse of -inf and no weight."""
    row = tl.program_id(0).to(tl.int64)
    s, e = tl.arange(0, SPLITS), tl.arange(0, BLOCK_V)
    of_parts = tl.load(part_lse_ptr + row * splits + s, mask=s < splits, other=float("-inf"))
    m = tl.max(of_parts, axis=0)
    shift = tl.where(m == float("-inf"), 0.0, m)
    weight = tl.exp(of_parts - shift)
    l = tl.sum(weight, axis=0)
    inside = (s < splits)[:, None] & (e < DV)[None, :]
    parts = tl.load(part_ptr + (row * splits + s[:, None]) * DV + e[None, :], mask=inside, other=0.0)
    o = tl.sum(parts * weight[:, None], axis=0) / tl.where(l == 0, 1.0, l)
    tl.store(o_ptr + row * DV + e, o, mask=e < DV)
    tl.store(lse_ptr + row, shift + tl.log(l))
