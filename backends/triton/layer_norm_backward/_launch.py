"""What the launchers of layer norm's backward share: the argument check, the outputs, the sum of partial sums."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes


def _check(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, mean: torch.Tensor | None, rstd: torch.Tensor | None
) -> tuple[int, int]:
    rows, cols = shapes(
        "rows cols, cols, rows cols, rows:float32?, rows:float32?", x=x, weight=weight, dy=dy, mean=mean, rstd=rstd
    )
    return rows, cols


def _outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dx, dweight and dbias; the last two are zero, their value where there are no rows."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return dx, _zeros(x, x.dtype), _zeros(x, x.dtype)


def _zeros(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros((x.shape[1],), dtype=dtype, device=x.device)


def _strides(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> tuple[int, ...]:
    return *x.stride(), *weight.stride(), *dy.stride()


def _statistics_strides(mean: torch.Tensor | None, rstd: torch.Tensor | None) -> tuple[int, int]:
    return mean.stride(0) if mean is not None else 0, rstd.stride(0) if rstd is not None else 0


@triton.jit(do_not_specialize=["parts"])
def _reduce_kernel(
    dw_partial_ptr, db_partial_ptr, dweight_ptr, dbias_ptr, parts, cols, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    col = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    dweight = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    dbias = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in tl.range(0, parts, BLOCK_P, num_stages=3):
        part = start + tl.arange(0, BLOCK_P)[:, None]
        inside = (part < parts) & (col < cols)
        dweight += tl.load(dw_partial_ptr + part.to(tl.int64) * cols + col, mask=inside, other=0.0)
        dbias += tl.load(db_partial_ptr + part.to(tl.int64) * cols + col, mask=inside, other=0.0)
    tl.store(dweight_ptr + col, tl.sum(dweight, axis=0)[None, :], mask=col < cols)
    tl.store(dbias_ptr + col, tl.sum(dbias, axis=0)[None, :], mask=col < cols)


def _reduce(dw_partial: torch.Tensor, db_partial: torch.Tensor, dweight: torch.Tensor, dbias: torch.Tensor) -> None:
    """Sum partial sums (parts, cols) over parts into dweight and dbias, always in the same order."""
    parts, cols = dw_partial.shape
    _reduce_kernel[(triton.cdiv(cols, 16),)](
        dw_partial, db_partial, dweight, dbias, parts, cols, BLOCK_P=256, BLOCK_C=16, num_warps=8
    )
