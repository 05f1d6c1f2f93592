"""Backward of cross entropy of rows of logits z with class y, p = exp(z − lse), label smoothing ε and z-loss ζ:

dz = ((1 + 2ζ·lse)·p − (1 − ε)·1_y − ε/V)·g.

logits, dlogits (rows, V); target (rows,) integers in [0, V), or `ignore_index`: such a row has gradient 0. lse (rows,)
is used where given and else recomputed. g is dloss: one a row, (rows,), with reduction "none"; (), for all rows, with
"sum"; and that over the number of rows that are not ignored with "mean". Source: [szegedy2015], [chowdhery2022].
"""

import numpy as np
import torch

from touchstone.reference.online_softmax import online_softmax
from touchstone.reference.softmax import softmax


def cross_entropy_backward(
    logits: np.ndarray,
    target: np.ndarray,
    lse: np.ndarray | None,
    dloss: np.ndarray,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> np.ndarray:
    """(rows, V), (rows,), (rows,) or None, () or (rows,) -> dlogits (rows, V)."""
    logits, target = np.asarray(logits, np.float64), np.asarray(target, np.int64)
    kept = target != ignore_index
    g, z, V = _scale(dloss, kept, reduction)[kept, None], logits[kept], logits.shape[1]
    of_rows = (online_softmax(z)[1] if lse is None else np.asarray(lse, np.float64)[kept])[:, None]
    picked = np.arange(V) == target[kept, None]
    dlogits = np.zeros(logits.shape)
    dz = (1 + 2 * z_loss * of_rows) * np.exp(z - of_rows) - (1 - label_smoothing) * picked
    dlogits[kept] = (dz - (label_smoothing / V if label_smoothing else 0)) * g
    return dlogits


def torch_cross_entropy_backward(
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor | None,
    dloss: torch.Tensor,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> torch.Tensor:
    """(rows, V), (rows,), (rows,) or None, () or (rows,) -> dlogits (rows, V)."""
    target = target.long()
    kept = target != ignore_index
    z, V = logits[kept], logits.shape[1]
    of_rows = (torch.logsumexp(z, -1) if lse is None else lse[kept].to(z.dtype))[:, None]
    g = (dloss / kept.sum() if reduction == "mean" else dloss).expand(len(target))[kept, None].to(z.dtype)
    picked = torch.arange(V, device=z.device) == target[kept, None]
    dz = (1 + 2 * z_loss * of_rows) * torch.exp(z - of_rows) - (1 - label_smoothing) * picked.to(z.dtype)
    dlogits = torch.zeros_like(logits)
    dlogits[kept] = (dz - (label_smoothing / V if label_smoothing else 0)) * g
    return dlogits


def by_chain_rule(
    logits: np.ndarray,
    target: np.ndarray,
    lse: np.ndarray | None,
    dloss: np.ndarray,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> np.ndarray:
    """Through p, a row at a time: J = diag(p) − p·pᵀ, and J/p of −Σ q·ln p with q = (1 − ε)·1_y + ε/V; lse from p."""
    logits, target = np.asarray(logits, np.float64), np.asarray(target, np.int64)
    g, V = _scale(dloss, target != ignore_index, reduction), logits.shape[1]
    dlogits = np.zeros(logits.shape)
    for row in np.flatnonzero(target != ignore_index):
        p = softmax(logits[row : row + 1])[0]
        q = (1 - label_smoothing) * (np.arange(V) == target[row]) + label_smoothing / V
        top = int(np.argmax(logits[row]))
        total = logits[row, top] - np.log(p[top])  # lse, from the class whose p is no rounded 0
        through_ln_p = np.outer(q, p) - np.diag(q)  # row j: −q_j·d ln p_j / dz
        dlogits[row] = g[row] * (through_ln_p.sum(0) + 2 * z_loss * total * p)
    return dlogits


def _scale(dloss: np.ndarray, kept: np.ndarray, reduction: str) -> np.ndarray:
    """g of each row."""
    with np.errstate(invalid="ignore", divide="ignore"):  # no row is kept, and none needs it
        g = np.asarray(dloss, np.float64) / (kept.sum() if reduction == "mean" else 1)
    return np.broadcast_to(g, kept.shape)
