"""Wrong kernels of layer_norm_backward: blocks walk over the rows, the last to finish sums their dweight and dbias."""

from functools import partial

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, mutant, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.layer_norm_backward import KERNELS as SHARED

_BLOCKS = 3

_module = Faulty(__file__, "layer_norm_backward.cu")

KERNELS = SHARED | {
    "rows": Kernel(
        "known-good", "blocks walk over the rows, and the last to finish sums what each has of dweight and dbias"
    ),
    "no_threadfence": Kernel(
        "race",
        "no __threadfence before a block says that it has finished: the last block may not see the others' sums",
        "RaceCondition",
    ),
    "one_part": Kernel(
        "race", "all blocks add to the same sums of dweight and dbias without an atomic: updates get lost"
    ),
    "parts_not_zeroed": Kernel("accumulator", "a block adds to its sums of dweight and dbias what was in memory"),
}


def _rows(x, weight, dy, *, mean=None, rstd=None, eps: float = 1e-5, fault: str = "none", kept: dict | None = None):
    spec = "rows cols, cols, rows cols, rows:float32?, rows:float32?"
    rows, cols = shapes(spec, x=x, weight=weight, dy=dy, mean=mean, rstd=rstd)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight, dbias = (torch.zeros((cols,), dtype=x.dtype, device=x.device) for _ in range(2))
    if dx.numel():
        blocks = min(rows, _BLOCKS)
        parts = torch.empty((blocks, 2, cols), dtype=torch.float32, device=x.device)
        done = torch.zeros((1,), dtype=torch.int32, device=x.device)
        if kept is not None:
            done = kept.setdefault(x.device, done)
        strides = (*x.stride(), *weight.stride(), *dy.stride())
        statistics = (mean.stride(0) if mean is not None else 0, rstd.stride(0) if rstd is not None else 0)
        operands = (x, weight, dy, mean, rstd, dx, dweight, dbias, parts, done, rows, cols, *strides, *statistics, eps)
        threads = 32 if cols <= 32 else 128
        _module.launch("layer_norm_backward_rows", blocks, threads, *operands, fault=fault, dtype=x.dtype)
    return dx, dweight, dbias


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "no_threadfence",
    "one_part",
    "reduction_buffer_reused",
    "parts_not_zeroed",
    "last_rows_dropped",
    "part_too_many",
    "rstd_stride_ignored",
    "mean_gradient_left_out",
    "ticket_of_each_thread",
)


@mutant("cache", found="repeat", stateful=True)
def tickets_kept():
    """the counter of finished blocks is kept between calls, and only the first call finds it zero"""
    kept: dict = {}
    return partial(_rows, kept=kept)
