"""Backward of cross entropy: dz = ((1 + 2·zeta·lse)·p - (1 - eps)·1_y - eps/V)·g, p = exp(z - lse).

block: one block per row of any length; a pass over it for lse before, where that is not given [milakov2018]
vectorised: the same 16 bytes at a time, with four loads of a thread under way [oneflow2021]
"""

import torch

from touchstone.backends.cupy.lib.norms import threads
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.cross_entropy_backward import checked_sizes, empty_gradient
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def block(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0
) -> torch.Tensor:
    """logits (rows, V), target (rows,), lse (rows,) or None, dloss () or (rows,) -> dlogits (rows, V). Source:
    [milakov2018]."""
    rows, V = checked_sizes(logits, target, lse, dloss, reduction, label_smoothing)
    dlogits = empty_gradient(logits)
    if dlogits.numel():
        operands = _operands(logits, target, lse, dloss, dlogits, reduction, ignore_index)
        _scalar.launch(
            "cross_entropy_backward_block", blocks(rows), threads(V), *operands, label_smoothing, z_loss,
            dtype=logits.dtype
        )  # fmt: skip
    return dlogits


@variant()
def vectorised(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0
) -> torch.Tensor:
    """logits (rows, V), target (rows,), lse (rows,) or None, dloss () or (rows,) -> dlogits (rows, V). Rows that
    begin elsewhere in 16 bytes than those of dlogits move an element at a time. Source: [oneflow2021]."""
    rows, V = checked_sizes(logits, target, lse, dloss, reduction, label_smoothing)
    dlogits = empty_gradient(logits)
    if dlogits.numel():
        operands = _operands(logits, target, lse, dloss, dlogits, reduction, ignore_index)
        size = threads(V, each=2 * (16 // logits.element_size()), most=512)
        _vectorised.launch(
            "cross_entropy_backward_vectorised",
            blocks(rows),
            size,
            *operands,
            label_smoothing,
            z_loss,
            dtype=logits.dtype,
        )
    return dlogits


def _operands(logits, target, lse, dloss, dlogits, reduction, ignore_index) -> tuple:
    """What both kernels take first; with "mean" g is dloss by the number of rows that are not ignored, from the GPU."""
    targets = (target, target.stride(0), int(target.dtype == torch.int64), ignore_index)
    if reduction == "mean":
        g = torch.empty(1, dtype=torch.float32, device=logits.device)
        size = threads(len(target))
        _scalar.launch("cross_entropy_backward_scale", 1, size, dloss, g, len(target), *targets, dtype=logits.dtype)
        dloss = g
    of_rows = (lse, 0 if lse is None else lse.stride(0), dloss, dloss.stride(0) if reduction == "none" else 0)
    return (logits, dlogits, logits.shape[1], *logits.stride(), *of_rows, *targets)
