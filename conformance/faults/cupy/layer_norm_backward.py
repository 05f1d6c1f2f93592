"""Wrong kernels of layer_norm_backward: blocks walk over the rows, the last to finish sums their dweight and dbias."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.cupy._module import Faulty

_BLOCKS = 3

_module = Faulty(__file__, "layer_norm_backward.cu")


def _rows(x, weight, dy, mean, rstd, eps: float, fault: str = "none", kept: dict | None = None):
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
        _module.launch("layer_norm_backward_rows", blocks, 128, *operands, fault=fault, dtype=x.dtype)
    return dx, dweight, dbias


@known_good
def rows(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """blocks walk over the rows, and the last to finish sums what each has of dweight and dbias"""
    return _rows(x, weight, dy, mean, rstd, eps)


@mutant("race")
def no_threadfence(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """no __threadfence before a block says that it has finished: the last block may not see the others' sums"""
    return _rows(x, weight, dy, mean, rstd, eps, "no_threadfence")


@mutant("race")
def one_part(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """all blocks add to the same sums of dweight and dbias without an atomic: updates get lost"""
    return _rows(x, weight, dy, mean, rstd, eps, "one_part")


@mutant("race")
def reduction_buffer_reused(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """no barrier after a reduction: the next one overwrites partial sums that slower warps still read"""
    return _rows(x, weight, dy, mean, rstd, eps, "reused_buffer")


@mutant("accumulator")
def parts_not_zeroed(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """a block adds to its sums of dweight and dbias what was in memory"""
    return _rows(x, weight, dy, mean, rstd, eps, "parts_not_zeroed")


@mutant("tail")
def last_rows_dropped(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """rows beyond a multiple of the number of blocks are left out"""
    return _rows(x, weight, dy, mean, rstd, eps, "rows_tail")


@mutant("bounds")
def part_too_many(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """the last block sums one part more than there are blocks"""
    return _rows(x, weight, dy, mean, rstd, eps, "part_too_many")


@mutant("strides")
def rstd_stride_ignored(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """the stride of a given rstd is taken to be 1"""
    return _rows(x, weight, dy, mean, rstd, eps, "statistics_by_column")


@mutant("formula")
def mean_gradient_left_out(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dx lacks the mean of dy times weight"""
    return _rows(x, weight, dy, mean, rstd, eps, "mean_gradient")


@mutant("unwritten")
def ticket_of_each_thread(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """every thread of a block takes a ticket, so no block holds the last one: nothing sums the parts"""
    return _rows(x, weight, dy, mean, rstd, eps, "ticket_of_each_thread")


@mutant("cache", stateful=True)
def tickets_kept():
    """the counter of finished blocks is kept between calls, and only the first call finds it zero"""
    kept: dict = {}
    return lambda x, weight, dy, *, mean=None, rstd=None, eps=1e-5: _rows(x, weight, dy, mean, rstd, eps, kept=kept)
