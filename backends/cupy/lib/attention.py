"""What the launchers of attention and of its gradients share: padded head dimensions, how operands lie in memory, in
which order a causal case's tiles are taken."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.runtime.hopper import aligned, taken
from touchstone.backends.sizes import ceil_div

# For each padded head dimension: warps, 16-row tiles of queries per warp, keys per tile.
_TILES = {64: (4, 2, 64), 128: (4, 2, 64), 192: (4, 1, 64), 256: (4, 1, 32)}


class Sweep(NamedTuple):
    """Of a launch of attention_sweep.cuh: queries and threads of a block, its dynamic shared memory in bytes, and the
    kernel's definitions."""

    queries: int
    threads: int
    shared: int
    definitions: dict[str, int]


def sweep_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rotary: torch.Tensor) -> Sweep:
    """For operands whose last axis is that of a head, and for those of the other part of queries and keys, if there is
    one. Declines float32."""
    if q.dtype is torch.float32:
        raise Unsupported("float32; mma.m16n8k16 multiplies float16 and bfloat16")
    block_d = padded_dimension(max(q.shape[-1], v.shape[-1]))
    block_r = padded_dimension(rotary[0].shape[-1]) if rotary else 0
    warps, row_tiles, block_n = _TILES[block_d]
    queries, aligned = 16 * row_tiles * warps, int(whole_pieces(q, k, v, *rotary))
    definitions = {"WARPS": warps, "ROW_TILES": row_tiles, "BLOCK_N": block_n, "BLOCK_D": block_d, "ALIGNED": aligned}
    shared = 2 * (block_d * (queries + 2 * block_n) + block_r * (queries + block_n))
    return Sweep(queries, 32 * warps, shared, definitions | ({"BLOCK_R": block_r} if rotary else {}))


def padded_dimension(D: int) -> int:
    """The head dimension padded to whole tiles: a multiple of 64."""
    return ceil_div(D, 64) * 64


def whole_pieces(*operands: torch.Tensor) -> bool:
    """Whether every head row of every operand is whole 16-byte pieces, one after another and on 16 bytes."""
    return all(x.data_ptr() % 16 == 0 and _in_pieces(x.shape, x.stride(), x.element_size()) for x in operands)


@lru_cache(maxsize=1024)
def _in_pieces(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> bool:
    whole = strides[-1] == 1 and shape[-1] * size % 16 == 0
    return whole and all(n == 1 or s * size % 16 == 0 for n, s in zip(shape[:-1], strides[:-1], strict=True))


def check_copyable(**operands: torch.Tensor) -> None:
    """Raise Unsupported, naming the argument, for an operand that the copy engine does not take as it lies."""
    for name, x in operands.items():
        aligned(name, x)
        if not taken(x):
            raise Unsupported(
                f"{name}: strides {x.stride()} of {x.element_size()} bytes; the copy engine needs 1 for the last axis "
                "and positive multiples of 16 bytes for the others"
            )


@lru_cache(maxsize=1024)
def heads_together(blocks: int, heads: int, seen: range, most: int, step: int, uneven: float) -> int:
    """How many heads' tiles are put in one order, the most work first. Each block takes one of every `blocks`, from the
    left and from the right by turns. A tile works through what it sees in steps of `step`: `seen`, the most first, but
    no less than 0 and no more than `most`.

    The fewest with which no block has more than `uneven` times the work that it could have: on an H200 keys and values
    of few heads that stay in the L2 cache are worth as much.
    """
    costs = 1 + -(-np.clip(seen, 0, most) // step)
    heads = min(heads, max(1, 100_000 // len(costs)))  # as even as of more, which take milliseconds here
    choices = [n for power in range(heads.bit_length()) for n in (1 << power, 3 << power >> 1) if n < heads] + [heads]
    loads = {n: _most_work(blocks, heads, n, costs) for n in choices}
    return min(n for n in choices if loads[n] <= uneven * min(loads.values()))


def _most_work(blocks: int, heads: int, together: int, costs: np.ndarray) -> int:
    group, rest = np.repeat(costs, together), np.repeat(costs, heads % together)
    work = np.concatenate([np.tile(group, heads // together), rest])
    turns = np.pad(work, (0, -len(work) % blocks)).reshape(-1, blocks)
    turns[1::2] = turns[1::2, ::-1]
    return int(turns.sum(0).max())
