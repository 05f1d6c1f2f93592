"""Dot products, right and wrong: what the mutants of the products, the MLPs and attention are made of.

Each `dot(a, b)` takes (..., I, K) and (..., K, J) of any floating dtype and returns (..., I, J) in float32.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from touchstone.conformance.faults import ALL, plant

TILE = 32
Dot = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def tiles(length: int, tile: int = TILE) -> list[slice]:
    """The slices that cut `length` elements into tiles; the last may be shorter."""
    return [slice(start, min(start + tile, length)) for start in range(0, length, tile)]


def added(a: torch.Tensor, b: torch.Tensor, cuts: Iterable[slice], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The products of some slices of k, added one after another in `dtype`."""
    a, b = a.float(), b.float()
    total = (a[..., :0] @ b[..., :0, :]).to(dtype)
    for cut in cuts:
        total = (total.float() + a[..., cut] @ b[..., cut, :]).to(dtype)
    return total.float()


# right


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In float32 by torch."""
    return a.float() @ b.float()


def backwards(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """From the last k to the first."""
    return a.float().flip(-1) @ b.float().flip(-2)


def in_tiles(a: torch.Tensor, b: torch.Tensor, tile: int = 5) -> torch.Tensor:
    """Tile after tile of k, as a kernel's loop does."""
    return added(a, b, tiles(a.shape[-1], tile))


def split(a: torch.Tensor, b: torch.Tensor, parts: int = 4) -> torch.Tensor:
    """Every fourth k in a sum of its own, the four added last (split-K)."""
    return added(a, b, [slice(part, None, parts) for part in range(parts)])


# in less than float32


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to the 10 bits of mantissa that a tensor core takes of a float32."""
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def of_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return to_tf32(a) @ to_tf32(b)


def of_bf16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return plain(a.bfloat16(), b.bfloat16())


def accumulating_in(dtype: torch.dtype, tile: int = 8) -> Dot:
    """The running sum is rounded to `dtype` after every tile of k."""
    return lambda a, b: added(a, b, tiles(a.shape[-1], tile), dtype)


LOWER = {  # name -> (dot, dtypes that show it, what is wrong)
    "tf32_operands": (of_tf32, ("float32",), "operands of dot products are rounded to tf32"),
    "bf16_operands": (of_bf16, ("float32", "float16"), "operands of dot products are rounded to bfloat16"),
    "fp16_accumulator": (accumulating_in(torch.float16), ("float32", "float16"), "dot products accumulate in float16"),
    "bf16_accumulator": (accumulating_in(torch.bfloat16), ALL, "dot products accumulate in bfloat16"),
}


def plant_lower(namespace: dict[str, Any], kernel: Callable[..., Any]) -> None:
    """Plant `kernel(..., dot=)` with its dot products in each lower precision."""
    for name, (dot, dtypes, about) in LOWER.items():
        plant(namespace, name, partial(kernel, dot=dot), about, "precision", dtypes=dtypes)


def truncated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 `x` cut, not rounded, to float16 or bfloat16."""
    low = {torch.float16: 13, torch.bfloat16: 16}[dtype]
    return (x.contiguous().view(torch.int32) & -(1 << low)).view(torch.float32).to(dtype)


# wrong


def tail_dropped(a: torch.Tensor, b: torch.Tensor, tile: int = TILE) -> torch.Tensor:
    """`for k in range(K // TILE)`: whole tiles only."""
    return added(a, b, tiles(a.shape[-1], tile)[: max(a.shape[-1] // tile, 1)])


def last_dropped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`k < K - 1`."""
    return plain(a[..., :-1], b[..., :-1, :])


def last_tile_only(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`acc =` for `acc +=`."""
    return added(a, b, tiles(a.shape[-1])[-1:])


def first_tile_only(a: torch.Tensor, b: torch.Tensor, tile: int = TILE) -> torch.Tensor:
    """One block is taken to hold all of k."""
    return plain(a[..., :tile], b[..., :tile, :])


def first_tile_twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The tile loaded ahead of a pipelined loop is multiplied before the loop and in it."""
    cuts = tiles(a.shape[-1])
    return added(a, b, cuts[:1] + cuts)


def tail_overlapping(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The last tile is moved back to end at K, and what it shares with the one before counts twice."""
    inner = a.shape[-1]
    return added(a, b, [slice(max(cut.stop - TILE, 0), cut.stop) if cut.stop == inner else cut for cut in tiles(inner)])


def tail_clamped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Lanes beyond K load the last k again, `min(k, K - 1)`, and no mask takes them out of the sum."""
    return plain(a, b) + -a.shape[-1] % TILE * plain(a[..., -1:], b[..., -1:, :])


def last_part_lost(a: torch.Tensor, b: torch.Tensor, parts: int = 4) -> torch.Tensor:
    """Split-K whose last partial sum is not added."""
    return added(a, b, tiles(a.shape[-1], max(-(-a.shape[-1] // parts), 1))[: parts - 1])


def remainder_lost(a: torch.Tensor, b: torch.Tensor, parts: int = 4) -> torch.Tensor:
    """Split-K in parts of K // 4 each."""
    part = a.shape[-1] // parts
    return added(a, b, [slice(i * part, (i + 1) * part) for i in range(parts)])


def losing_updates(parts: int = 4, one_in: int = 50) -> Dot:
    """Split-K whose partial sums are added by read-modify-write in place of an atomic: some of them are lost."""
    generator = torch.Generator().manual_seed(0)

    def dot(a, b):
        total = added(a, b, [])
        for part in range(parts):
            partial_sum = added(a, b, [slice(part, None, parts)])
            arrives = torch.randint(0, one_in, partial_sum.shape, generator=generator) > 0
            total = total + partial_sum * arrives
        return total

    return dot


def never_zeroed() -> Dot:
    """The accumulator is a buffer kept for each shape and zeroed only when it is allocated."""
    kept: dict[tuple[int, ...], torch.Tensor] = {}

    def dot(a, b):
        product = plain(a, b)
        shape = tuple(product.shape)
        kept[shape] = kept[shape] + product if shape in kept else product
        return kept[shape].clone()

    return dot
