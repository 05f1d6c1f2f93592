"""packgqa: for few queries over many keys. The query heads that share a key head are the rows of one tile, and the keys
are cut between programs."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.attention import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.signatures.attention_decode import empty_parts
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib import packed
from touchstone.backends.triton.lib.gemm import processors
from touchstone.backends.triton.lib.splits import merge_kernel
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=["scale", "Hkv", "rows", "Sq", "Sk", "keys", "ahead"])
def _packgqa_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, scale, Hkv, rows, Sq, Sk, D, keys, ahead,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    pair, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * keys
    b, reader = pair // Hkv, pair % Hkv
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    k_ptr += b * k_strides[0] + reader * k_strides[1]
    v_ptr += b * v_strides[0] + reader * v_strides[1]
    o, m, l = packed.attend(
        q_ptr, q_strides, k_ptr, (k_strides[2], k_strides[3]), v_ptr, (v_strides[2], v_strides[3]), None, 0, 1, b,
        reader, row, rows, Sq, first, tl.minimum(first + keys, Sk), ahead, scale, D, BLOCK_M, BLOCK_N, BLOCK_D
    )  # fmt: skip
    packed.store_part(o, m, l, o_ptr, lse_ptr, pair, row, rows, D, BLOCK_D)


@variant(spills=1536)  # on sm_80, where keys lie across: 16 rows over 256 keys
def packgqa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq). Source: [yeetal2025]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel():
        rows = Hq // Hkv * Sq
        config = packed.tiles_alike(q.dtype, D, rows)
        tiles = ceil_div(rows, config["BLOCK_M"])
        splits, keys = packed.parts_alike(Sk, B * Hkv * tiles, processors(q.device))
        parts = empty_parts(q, splits)
        ahead = Sk - Sq if causal else Sk  # query i sees the keys up to i + ahead
        options = (scale_or_default(scale, D), Hkv, rows, Sq, Sk, D, keys, ahead)
        grid = (B * Hkv, splits, tiles)
        _packgqa_kernel[grid](q, k, v, *parts, q.stride(), k.stride(), v.stride(), *options, **config)
        options = {"SPLITS": next_power_of_2(splits), "BLOCK_V": config["BLOCK_D"]}
        merge_kernel[(B * Hq * Sq,)](*parts, o, lse, splits, D, **options)
    return o, lse
