"""Which keys a query of masked attention sees, and what its scores become [dong2024].

With off = Sk − Sq query i and key j are i + off − j apart: 0 for a query's own key, the last query's is the last. A
window of w keys counts the own one: with `causal` the own and w − 1 before it, else w − 1 on either side
[beltagy2020]. Segments are documents that were laid end to end: a query sees the keys of its own [dong2024].
"""

import numpy as np
import torch

from touchstone.reference import _philox


def check(window: int | None, softcap: float | None) -> None:
    """ValueError: a window of less than 1 key, or a soft-cap that is not above 0."""
    if window is not None and window < 1:
        raise ValueError(f"window: expected None or at least 1 key, got {window}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap: expected None or a number above 0, got {softcap}")


def apart(seq_q: int, seq_k: int) -> np.ndarray:
    """(Sq, Sk): how many keys lie between key j and the own key of query i, below 0 for later ones."""
    return np.arange(seq_q)[:, None] + (seq_k - seq_q) - np.arange(seq_k)


def within(seq_q: int, seq_k: int, *, causal: bool = False, window: int | None = None) -> np.ndarray:
    """(Sq, Sk): booleans, the keys that a query's place lets it see."""
    distance = apart(seq_q, seq_k)
    seen = distance >= 0 if causal else np.ones((seq_q, seq_k), bool)
    return seen if window is None else seen & (abs(distance) < window)


def visible(
    seq_q: int,
    seq_k: int,
    seg_q: torch.Tensor | None,
    seg_k: torch.Tensor | None,
    *,
    causal: bool = False,
    window: int | None = None,
) -> torch.Tensor:
    """(1 or B, 1, Sq, Sk): booleans. seg_q (B, Sq) and seg_k (B, Sk), or None."""
    seen = torch.from_numpy(within(seq_q, seq_k, causal=causal, window=window))[None, None]
    if seg_q is None or seg_k is None:
        return seen
    return seen.to(seg_q.device) & (seg_q[:, None, :, None] == seg_k[:, None, None, :])


def changed(
    dots: torch.Tensor, bias: torch.Tensor | None, slopes: torch.Tensor | None, *, softcap: float | None = None
) -> torch.Tensor:
    """(B, Hq, Sq, Sk): scale·q·kᵀ bent towards ±softcap, less slope·|distance|, plus bias; nothing is hidden yet.

    The soft-cap is c·tanh(x/c) [gemma2024]; slopes (Hq,) are those of ALiBi [press2021].
    """
    s = dots if softcap is None else softcap * torch.tanh(dots / softcap)
    if slopes is not None:
        distance = torch.from_numpy(abs(apart(*dots.shape[2:]))).to(dots)
        s = s - slopes.to(dots)[:, None, None] * distance
    return s if bias is None else s + bias


def weights(
    shape: tuple[int, ...], *, p: float = 0.0, seed: int = 0, offset: int = 0, device: torch.device | None = None
) -> torch.Tensor:
    """(B, Hq, Sq, Sk), or (1, 1, 1, 1) where p is 0: what dropout multiplies each probability by, 0 or 1/(1 − p), by
    the index in this shape."""
    drawn = shape if p else (1,) * len(shape)
    return _philox.torch_kept(drawn, p, seed, offset, device or torch.device("cpu")).double() * _philox.scale(p)


def pairs(seq_q: int, seq_k: int, *, causal: bool = False, window: int | None = None) -> int:
    """How many pairs of a query and a key `within` lets through."""
    own = np.arange(seq_q) + seq_k - seq_q
    reach = seq_q + seq_k if window is None else window - 1
    first = np.clip(own - reach, 0, seq_k)
    last = np.clip(own + (0 if causal else reach) + 1, 0, seq_k)
    if window is None and not causal:
        return seq_q * seq_k
    return int(np.maximum(last - first, 0).sum())
