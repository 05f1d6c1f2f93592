"""Cross entropy of rows of logits z with one class y each, with label smoothing ε [szegedy2015] and z-loss ζ
[chowdhery2022]:

loss = (1 − ε)·(lse − z_y) + ε·(lse − mean z) + ζ·lse², lse = ln Σ exp z.

logits (rows, V); target (rows,) integers in [0, V), or `ignore_index`: such a row has loss 0 whatever its logits are.
`reduction` "none" gives (rows,), "sum" their sum, "mean" that over the number of rows that are not ignored, NaN where
there are none. A class of logit −inf has loss +inf; logits of +inf, and label smoothing over one of −inf, are outside.
Raises ValueError for another reduction, and for ε outside [0, 1].
"""

import numpy as np
import torch

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    logits: np.ndarray,
    target: np.ndarray,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> np.ndarray:
    """(rows, V), (rows,) -> () or (rows,)."""
    logits, target = np.asarray(logits, np.float64), np.asarray(target, np.int64)
    kept = target != ignore_index
    z, y = logits[kept], target[kept]
    with np.errstate(invalid="ignore", divide="ignore"):  # a row of −inf is meant to be NaN
        lse = _log_sum(z)
        loss = (1 - label_smoothing) * (lse - z[np.arange(len(z)), y]) + z_loss * lse**2
        if label_smoothing:
            loss += label_smoothing * (lse - z.sum(1) / logits.shape[1])
    losses = np.zeros(len(target))
    losses[kept] = loss
    return _reduced(losses, kept, reduction)


def torch_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> torch.Tensor:
    """(rows, V), (rows,) -> () or (rows,)."""
    kept = target.long() != ignore_index
    z, y = logits[kept], target.long()[kept]
    lse = torch.logsumexp(z, -1)
    loss = (1 - label_smoothing) * (lse - z.gather(1, y[:, None])[:, 0]) + z_loss * lse.square()
    if label_smoothing:
        loss = loss + label_smoothing * (lse - z.mean(-1))
    losses = logits.new_zeros(len(target))
    losses[kept] = loss
    if reduction == "none":
        return losses
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


def by_one_hot(
    logits: np.ndarray,
    target: np.ndarray,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> np.ndarray:
    """−Σ q·ln p of each row, q = (1 − ε)·1_y + ε/V [szegedy2015], and the sum for p in one pass [milakov2018]."""
    logits, target = np.asarray(logits, np.float64), np.asarray(target, np.int64)
    losses, classes = np.zeros(len(target)), np.arange(logits.shape[1])
    with np.errstate(invalid="ignore"):
        for row, (z, y) in enumerate(zip(logits, target, strict=True)):
            if y == ignore_index:
                continue
            m, total = -np.inf, 0.0
            for value in z:
                larger = np.maximum(m, value)
                base = 0 if larger == -np.inf else larger
                m, total = larger, total * np.exp(m - base) + np.exp(value - base)
            lse = m + np.log(total) if total else m
            q = (1 - label_smoothing) * (classes == y) + label_smoothing / len(classes)
            losses[row] = (q[q > 0] * (lse - z[q > 0])).sum() + z_loss * lse**2
    return _reduced(losses, target != ignore_index, reduction)


def _log_sum(z: np.ndarray) -> np.ndarray:
    """(rows, V) -> lse (rows,); −inf for a row of −inf."""
    m = z.max(axis=1, initial=-np.inf)
    base = np.where(m == -np.inf, 0, m)
    return base + np.log(np.exp(z - base[:, None]).sum(axis=1))


def _reduced(losses: np.ndarray, kept: np.ndarray, reduction: str) -> np.ndarray:
    if reduction == "none":
        return losses
    with np.errstate(invalid="ignore", divide="ignore"):
        return losses.sum() / (kept.sum() if reduction == "mean" else 1)
