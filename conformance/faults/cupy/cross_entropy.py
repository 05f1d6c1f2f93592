"""Wrong kernels of cross_entropy: a block for each row, a warp that adds the losses up."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cross_entropy import KERNELS as SHARED
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "cross_entropy.cu")

KERNELS = SHARED | {
    "merge_not_rescaled": Kernel("rescale", "the sums of lanes are added as they are, whatever their maxima"),
    "no_barrier_before_sums": Kernel(
        "race", "no barrier between the warps' sums and the thread that merges them", "UninitialisedShared"
    ),
}


def _rows(
    logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0, fault: str = "none"
) -> torch.Tensor:
    rows, V = shapes("rows V, rows:int64|int32", logits=logits, target=target)
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    words = target if target.dtype == torch.int32 else target[:, None].view(torch.int32)[:, 0]  # the lower halves
    if rows:
        threads = min(32 * -(-V // 32), 128)
        operands = (logits, losses, V, *logits.stride(), words, words.stride(0), ignore_index, label_smoothing, z_loss)
        _module.launch("cross_entropy_rows", rows, threads, *operands, fault=fault, dtype=logits.dtype)
    if reduction == "none":
        return losses
    loss = torch.full((), float("nan") if reduction == "mean" else 0.0)
    if rows:
        operands = (losses, loss, rows, words, words.stride(0), ignore_index, int(reduction == "mean"))
        _module.launch("cross_entropy_total", 1, 32, *operands, fault=fault, dtype=logits.dtype)
    return loss


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "not_rescaled",
    "merge_not_rescaled",
    "counts_all_rows",
    "strides_of_the_target",
    "ignored_row_unwritten",
    "no_barrier_before_sums",
)
