"""Rotary position embedding of q (B, Hq, S, D) and k (B, Hkv, S, D) [suetal2021].

Each pair of the first R dimensions of a head is turned by an angle of its token's position, y1 = x1·c − x2·s and
y2 = x2·c + x1·s; the other D − R stay.

cos and sin (P, R/2) hold c and s by position and pair. Pair i is (i, i + R/2), or (2i, 2i + 1) where `interleaved`. The
position of token s of sequence b is positions[b, s], (B, S) of integers, or s where that is None. No angle is computed
here: the tables need not be of rotations.
"""

import numpy as np
import torch


def rope(
    q: np.ndarray,
    k: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    positions: np.ndarray | None,
    *,
    interleaved: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """-> like q and like k."""
    cos, sin = _rows(cos, positions, q.shape), _rows(sin, positions, q.shape)
    return _turned(q, cos, sin, interleaved), _turned(k, cos, sin, interleaved)


def torch_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> like q and like k."""
    tokens = q.shape[2]
    c, s = (t[:tokens] if positions is None else t[positions.long()][:, None] for t in (cos, sin))
    first, second = _pairs(2 * cos.shape[1], interleaved)

    def turned(x: torch.Tensor) -> torch.Tensor:
        y = x.clone(memory_format=torch.contiguous_format)
        y[..., first] = (x[..., first] * c - x[..., second] * s).to(x.dtype)
        y[..., second] = (x[..., second] * c + x[..., first] * s).to(x.dtype)
        return y

    return turned(q), turned(k)


def complex_product(
    q: np.ndarray,
    k: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    positions: np.ndarray | None,
    *,
    interleaved: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """A pair as one complex number, times c + i·s [suetal2021]."""
    factor = _rows(cos, positions, q.shape) + 1j * _rows(sin, positions, q.shape)
    half = cos.shape[1]
    outputs = []
    for x in (q, k):
        y = np.array(x, np.float64)
        head = y[..., : 2 * half]
        pairs = head.reshape(*y.shape[:-1], *((half, 2) if interleaved else (2, half)))
        sides = np.moveaxis(pairs, -1 if interleaved else -2, 0)
        product = (sides[0] + 1j * sides[1]) * factor
        stacked = np.stack([product.real, product.imag], axis=-1 if interleaved else -2)
        y[..., : 2 * half] = stacked.reshape(head.shape)
        outputs.append(y)
    return outputs[0], outputs[1]


def matrices(
    q: np.ndarray,
    k: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    positions: np.ndarray | None,
    *,
    interleaved: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """A (D, D) matrix for each token, which is 1 but for blocks [[c, −s], [s, c]] at the pairs."""
    batch, _, tokens, dim = q.shape
    cos, sin = _rows(cos, positions, q.shape)[:, 0], _rows(sin, positions, q.shape)[:, 0]
    turn = np.tile(np.eye(dim), (batch, tokens, 1, 1))
    for i in range(cos.shape[-1]):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + cos.shape[-1])
        turn[..., a, a] = turn[..., b, b] = cos[..., i]
        turn[..., a, b], turn[..., b, a] = -sin[..., i], sin[..., i]
    answers = (np.einsum("bsij,bhsj->bhsi", turn, np.asarray(x, np.float64)) for x in (q, k))
    return next(answers), next(answers)


def _rows(table: np.ndarray, positions: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """The rows of a table for the tokens of q or k: (B, 1, S, R/2)."""
    batch, _, tokens, _ = shape
    at = np.tile(np.arange(tokens), (batch, 1)) if positions is None else np.asarray(positions).astype(np.int64)
    return np.asarray(table, np.float64)[at][:, None]


def _turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    half = cos.shape[-1]
    y = np.array(x, np.float64)
    first, second = _pairs(2 * half, interleaved)
    one, other = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = one * cos - other * sin, other * cos + one * sin
    return y


def _pairs(dim: int, interleaved: bool) -> tuple[slice, slice]:
    """Where the first and the second elements of the pairs are."""
    return (slice(0, dim, 2), slice(1, dim, 2)) if interleaved else (slice(dim // 2), slice(dim // 2, dim))
