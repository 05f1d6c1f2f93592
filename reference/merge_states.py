"""Attention over parts of the keys, merged into attention over all of them [dao2023decoding] [yeetal2025].

o (P, rows, D), lse (P, rows), natural logarithm -> o (rows, D), lse (rows,). A part's weight is exp(lse_p − lse), where
exp(lse) is the sum of all exp(lse_p). A part whose lse is −inf has seen no key and counts nothing; where all are such,
or where there is no part, o is 0 and lse −inf.
"""

import numpy as np
import torch


def merge_states(o: np.ndarray, lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P, rows, D), (P, rows) -> (rows, D), (rows,)."""
    o, lse = np.asarray(o, np.float64), np.asarray(lse, np.float64)
    largest = np.max(lse, axis=0, initial=-np.inf)
    weights = np.exp(lse - np.where(largest == -np.inf, 0.0, largest))
    total = weights.sum(axis=0)
    merged = (weights[..., None] * o).sum(axis=0) / np.where(total == 0, 1.0, total)[:, None]
    with np.errstate(divide="ignore"):
        return merged, np.where(total == 0, -np.inf, largest + np.log(total))


def torch_merge_states(o: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(P, rows, D), (P, rows) -> (rows, D), (rows,)."""
    merged = torch.logsumexp(lse, 0)
    weights = torch.exp(lse - torch.where(merged.isneginf(), 0.0, merged))
    return (weights[..., None].to(o.dtype) * o).sum(0), merged


def one_after_another(o: np.ndarray, lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each part merged with what those before it have given, by a share 1 / (1 + exp(lse − lse_p)) [yeetal2025]."""
    o, lse = np.asarray(o, np.float64), np.asarray(lse, np.float64)
    merged, total = np.zeros(o.shape[1:]), np.full(lse.shape[1:], -np.inf)
    for part, of_part in zip(o, lse, strict=True):
        for row in np.flatnonzero(of_part != -np.inf):
            with np.errstate(over="ignore"):
                share = 1 / (1 + np.exp(total[row] - of_part[row]))
            merged[row] += share * (part[row] - merged[row])
            total[row] = np.logaddexp(total[row], of_part[row])
    return merged, total
