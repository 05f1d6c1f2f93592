"""attention_paged: q (B, Hq, Sq, D), k_cache and v_cache (P, page, Hkv, D), block_table (B, n) and lengths (B,) int32;
o like q, lse (B, Hq, Sq) in float32."""

from typing import NamedTuple

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.attention import check_heads


class Sizes(NamedTuple):
    """Of a call: `page` rows to each of `P` pages, `n` pages to a sequence at most."""

    B: int
    Hq: int
    Sq: int
    D: int
    P: int
    page: int
    Hkv: int
    n: int


def checked_sizes(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, lengths: torch.Tensor
) -> Sizes:
    """The sizes of checked operands."""
    spec = "B Hq Sq D, P page Hkv D, P page Hkv D, B n:int32, B:int32"
    found = shapes(spec, q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, lengths=lengths)
    sizes = Sizes(*found)
    check_heads(sizes.Hq, sizes.Hkv, sizes.D)
    if not sizes.page:
        raise ValueError("k_cache: pages of 0 rows; expected 1 or more")
    return sizes
