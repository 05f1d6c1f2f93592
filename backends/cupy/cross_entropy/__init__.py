"""Cross entropy: loss = (1 - eps)·(lse - z_y) + eps·(lse - mean z) + zeta·lse², and the sum or the mean of the rows'.

naive: one thread per row, two passes over its logits; neighbouring threads read addresses one row apart [milakov2018]
warp: one warp per row, whose lanes merge their maxima and sums by shuffles; neighbours read neighbours [oneflow2021]
online: one block per row, 16 bytes at a time: a row of any length is read once, with many loads under way [milakov2018]
"""

import torch

from touchstone.backends.cupy.lib.norms import threads
from touchstone.backends.cupy.lib.rows import blocks, warp_grid
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.cross_entropy import checked_sizes, empty_loss, empty_losses
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_online = Module(__file__, "online.cu")


@variant()
def naive(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0) -> torch.Tensor:
    """logits (rows, V), target (rows,) -> loss () or (rows,) float32, any number of classes. Source: [milakov2018]."""
    rows, V = checked_sizes(logits, target, reduction, label_smoothing)
    losses = empty_losses(logits)
    if rows:
        operands = (logits, losses, rows, V, *logits.stride(), *_targets(target), ignore_index, label_smoothing, z_loss)
        _scalar.launch("cross_entropy_naive", -(-rows // 128), 128, *operands, dtype=logits.dtype)
    return _reduced(losses, target, reduction, ignore_index)


@variant()
def warp(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0) -> torch.Tensor:
    """logits (rows, V), target (rows,) -> loss () or (rows,) float32, any number of classes. Source: [oneflow2021]."""
    rows, V = checked_sizes(logits, target, reduction, label_smoothing)
    losses = empty_losses(logits)
    if rows:
        operands = (logits, losses, rows, V, *logits.stride(), *_targets(target), ignore_index, label_smoothing, z_loss)
        _scalar.launch("cross_entropy_warp", *warp_grid(rows), *operands, dtype=logits.dtype)
    return _reduced(losses, target, reduction, ignore_index)


@variant()
def online(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0) -> torch.Tensor:
    """logits (rows, V), target (rows,) -> loss () or (rows,) float32, any number of classes. Source: [milakov2018]."""
    rows, V = checked_sizes(logits, target, reduction, label_smoothing)
    losses = empty_losses(logits)
    if rows:
        operands = (logits, losses, V, *logits.stride(), *_targets(target), ignore_index)
        size = threads(V, each=2 * (16 // logits.element_size()), most=512) or 32
        _online.launch(
            "cross_entropy_online", blocks(rows), size, *operands, label_smoothing, z_loss, dtype=logits.dtype
        )
    return _reduced(losses, target, reduction, ignore_index)


def _targets(target: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """Targets as the kernels take them: memory, the stride, whether 64 bits wide."""
    return target, target.stride(0), int(target.dtype == torch.int64)


def _reduced(losses: torch.Tensor, target: torch.Tensor, reduction: str, ignore_index: int) -> torch.Tensor:
    if reduction == "none":
        return losses
    loss = empty_loss(losses, reduction)
    if len(losses):
        operands = (losses, loss, len(losses), *_targets(target), ignore_index, int(reduction == "mean"))
        _scalar.launch("cross_entropy_reduce", 1, threads(len(losses)), *operands, dtype=torch.float32)
    return loss
