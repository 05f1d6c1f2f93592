"""What the launchers of RMS norm's backward share: the argument check, the outputs, the sum of partial sums."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes


def _check(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, rstd: torch.Tensor | None) -> tuple[int, int]:
    rows, cols = shapes("rows cols, cols, rows cols, rows:float32?", x=x, weight=weight, dy=dy, rstd=rstd)
    return rows, cols


def _outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and dweight; the latter is zero, its value where there are no rows."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), _zeros(x, x.dtype)


def _zeros(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros((x.shape[1],), dtype=dtype, device=x.device)


def _strides(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> tuple[int, ...]:
    return *x.stride(), *weight.stride(), *dy.stride()


def _statistics_stride(rstd: torch.Tensor | None) -> int:
    return rstd.stride(0) if rstd is not None else 0


@triton.jit(do_not_specialize=["parts"])
def _reduce_kernel(partial_ptr, dweight_ptr, parts, cols, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    col = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    dweight = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in tl.range(0, parts, BLOCK_P, num_stages=3):
        part = start + tl.arange(0, BLOCK_P)[:, None]
        inside = (part < parts) & (col < cols)
        dweight += tl.load(partial_ptr + part.to(tl.int64) * cols + col, mask=inside, other=0.0)
    tl.store(dweight_ptr + col, tl.sum(dweight, axis=0)[None, :], mask=col < cols)


def _reduce(partial: torch.Tensor, dweight: torch.Tensor) -> None:
    """Sum partial sums (parts, cols) over parts into dweight, always in the same order."""
    parts, cols = partial.shape
    _reduce_kernel[(triton.cdiv(cols, 16),)](partial, dweight, parts, cols, BLOCK_P=256, BLOCK_C=16, num_warps=8)
