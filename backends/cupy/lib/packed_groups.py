"""Launching packed_groups.cuh: the tiles of a key head's queries, and the parts that its keys are cut into."""

from typing import Any, NamedTuple

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.lib.attention import padded_dimension, whole_pieces
from touchstone.backends.cupy.lib.gemm import processors
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.signatures.attention_decode import SPLITS
from touchstone.backends.sizes import ceil_div

_HOP = 64  # keys that the warps of a block take at a time
_BLOCKS, _AT_ONCE = 16, 2  # to each multiprocessor where lengths differ, and how many of them it holds


class Plan(NamedTuple):
    """A grid of `splits` parts of `keys` keys each, and the keywords of its launch."""

    grid: tuple[int, int]
    splits: int
    keys: int
    options: dict[str, Any]


def parts_of(groups: int, longest: int, wanted: int) -> tuple[int, int]:
    """How many parts up to `longest` keys are cut into, so that of `groups` blocks for each there are about `wanted`,
    and the keys of a part. Declines more keys than an int counts."""
    if longest > (limit := 2**31 - 1 - _HOP * SPLITS):
        raise Unsupported(f"{longest} keys; a kernel counts up to {limit}")
    splits = max(1, min(SPLITS, longest // (2 * _HOP), ceil_div(wanted, groups)))
    keys = _HOP * max(1, ceil_div(longest, _HOP * splits))
    return max(1, ceil_div(longest, keys)), keys


def plan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, longest: int, alike: bool = False) -> Plan:
    """For q (B, Hq, Sq, D) over up to `longest` keys of `heads` key heads in k and v, 4-D both; `alike`: over all of
    them. Declines float32."""
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    B, Hq, Sq, D = q.shape
    block_d, row_tiles = padded_dimension(D), ceil_div(Hq // heads * Sq, 16)
    at_once = min(row_tiles, 2 if block_d <= 128 else 1)  # more o than a thread has registers for
    stages = 3 if block_d <= 128 else 2
    groups = blocks(B * heads * ceil_div(row_tiles, at_once))
    wanted = _BLOCKS * processors(q.device)
    if alike:  # one round of blocks, so that none waits for another
        wanted = max(1, _AT_ONCE * processors(q.device) // max(1, groups)) * groups
    splits, keys = parts_of(groups, longest, wanted)
    definitions = {"ROW_TILES": at_once, "STAGES": stages, "BLOCK_D": block_d, "ALIGNED": whole_pieces(k, v)}
    shared = 2 * block_d * (16 * at_once + 2 * _HOP * stages)
    return Plan((groups, splits), splits, keys, {"dtype": q.dtype, "shared": shared, **definitions})
