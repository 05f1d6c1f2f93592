"""attention_varlen: q (Tq, Hq, D), k and v (Tk, Hkv, D), cu_q and cu_k (B + 1,) int32; o like q, lse (Hq, Tq) in
float32."""

from typing import NamedTuple

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.attention import check_heads


class Sizes(NamedTuple):
    Tq: int
    Hq: int
    D: int
    Tk: int
    Hkv: int
    B: int


def checked_sizes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int, max_k: int
) -> Sizes:
    """The sizes of checked operands. What cu_q and cu_k hold is not looked at: that would wait for the GPU."""
    spec = "Tq Hq D, Tk Hkv D, Tk Hkv D, N:int32, N:int32"
    Tq, Hq, D, Tk, Hkv, N = shapes(spec, q=q, k=k, v=v, cu_q=cu_q, cu_k=cu_k)
    check_heads(Hq, Hkv, D)
    check_lengths(N, max_q, max_k)
    return Sizes(Tq, Hq, D, Tk, Hkv, N - 1)


def check_lengths(N: int, max_q: int, max_k: int) -> None:
    """Raise ValueError unless there is an offset at least, and the longest lengths are none below 0."""
    if N == 0:
        raise ValueError("cu_q: no offset; expected one for each sequence and the end of the last")
    for name, longest in (("max_q", max_q), ("max_k", max_k)):
        if longest < 0:
            raise ValueError(f"{name}: {longest}; expected a length, 0 or more")


def empty_outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh o like q and lse (Hq, Tq) in float32, both contiguous."""
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return o, torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)


def tiles_of(longest: int, rows: int) -> int:
    """Tiles of `rows` rows that the longest sequence has: one at least, for the rows that belong to none."""
    return max(1, -(-longest // rows))


def most_items(total: int, B: int, rows: int) -> int:
    """Tiles of `rows` rows that B sequences and the rows behind them can have, whatever their lengths."""
    return total // rows + B + 1
