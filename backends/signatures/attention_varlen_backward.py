"""attention_varlen_backward: q, o and do (Tq, Hq, D), k and v (Tk, Hkv, D), lse (Hq, Tq) in float32, cu_q and cu_k (B +
1,) int32; dq, dk, dv."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.attention import check_heads
from touchstone.backends.signatures.attention_varlen import Sizes, check_lengths


def checked_sizes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    max_q: int,
    max_k: int,
) -> Sizes:
    """The sizes of checked operands. What cu_q and cu_k hold is not looked at: that would wait for the GPU."""
    spec = "Tq Hq D, Tk Hkv D, Tk Hkv D, Tq Hq D, Hq Tq:float32, Tq Hq D, N:int32, N:int32"
    Tq, Hq, D, Tk, Hkv, N = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do, cu_q=cu_q, cu_k=cu_k)
    check_heads(Hq, Hkv, D)
    check_lengths(N, max_q, max_k)
    return Sizes(Tq, Hq, D, Tk, Hkv, N - 1)
