"""Wrong kernels of cross_entropy_backward: a block for each row, after a thread that sums it and a warp that counts."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.cross_entropy_backward import KERNELS
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "cross_entropy_backward.cu")


def _rows(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0,
    fault: str = "none"
) -> torch.Tensor:  # fmt: skip
    each = "rows" if reduction == "none" else "()"
    spec = f"rows V, rows:int64|int32, rows:float32?, {each}:float32"
    rows, V = shapes(spec, logits=logits, target=target, lse=lse, dloss=dloss)
    dlogits = torch.empty((rows, V), dtype=logits.dtype, device=logits.device)
    words = target if target.dtype == torch.int32 else target[:, None].view(torch.int32)[:, 0]  # the lower halves
    if not rows:
        return dlogits
    options = {"fault": fault, "dtype": logits.dtype}
    if lse is None:
        lse = torch.empty(rows, dtype=torch.float32)
        _module.launch("cross_entropy_backward_lse", rows, 1, logits, lse, V, *logits.stride(), **options)
    count = torch.empty((), dtype=torch.float32)
    targets = (words, words.stride(0), ignore_index)
    _module.launch("cross_entropy_backward_count", 1, 32, count, rows, *targets, int(reduction == "mean"), **options)
    of_rows = (lse, lse.stride(0), dloss, dloss.stride(0) if dloss.ndim else 0, count)
    operands = (logits, dlogits, V, *logits.stride(), *of_rows, *targets, label_smoothing, z_loss)
    _module.launch("cross_entropy_backward_rows", rows, 64, *operands, **options)
    return dlogits


plant_kernels(
    globals(), _rows, KERNELS, "rows", "first_dloss", "ignored_row_unwritten", "strides_of_dloss", "every_row_counts"
)
