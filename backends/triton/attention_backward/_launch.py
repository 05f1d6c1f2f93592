"""What the launchers of attention_backward share: the argument check, the load of lse, tiles for any head dimension."""

import torch
import triton
import triton.language as tl

from touchstone.backends.triton.lib.gemm import roomy

# Sizes whose value or alignment would not improve the code: one compilation serves them all. Of the strides only lse's
# are among them: a head that is not known to start on 16 bytes is loaded element by element and not pipelined.
PLAIN = ["stride_lseb", "stride_lseh", "stride_lses", "B", "Hq", "Hkv", "Sq", "Sk", "pitch"]


@triton.jit
def load_lse(lse_ptr, rows, stride, row_end):
    """lse[rows]; +inf for rows that do not exist and for those that saw nothing (lse -inf), whose p is then 0."""
    x = tl.load(lse_ptr + rows.to(tl.int64) * stride, mask=rows < row_end, other=float("inf"))
    return tl.where(x == float("-inf"), float("inf"), x)


def default_tiles(dtype: torch.dtype, D: int) -> dict[str, int]:
    """A program owns OWN rows of a gradient and walks over the other sequence STEP rows at a time.

    Sized to fit on chip for any D; float32 `ieee` runs on the FMA pipes.
    """
    if dtype is torch.float32:
        if D <= 64:
            return dict(OWN=32, STEP=16, num_warps=4, num_stages=1)
        return dict(OWN=32 if D <= 128 else 16, STEP=16, num_warps=8, num_stages=1)
    if D <= 64:
        return dict(OWN=128, STEP=64, num_warps=8, num_stages=2)
    if D <= 128:
        return dict(OWN=128, STEP=32, num_warps=8, num_stages=2)
    return dict(OWN=64, STEP=16, num_warps=8, num_stages=2)


def default_pruned_tiles(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor) -> dict[str, int]:
    """Longer steps and a third stage, for whoever prunes: 0.65 of cuDNN's time at D 128 on an H200, before 0.47.

    Not for rows that are not known to start on 16 bytes: their loads are not pipelined, and spill.
    """
    D = q.shape[-1]
    even = all(x.stride(3) == 1 and x.data_ptr() % 16 == 0 for x in (q, k, v, do))
    even = even and all(stride % 16 == 0 for x in (q, k, v, do) for stride in x.stride()[:3])
    if q.dtype is torch.float32 or D > 128 or not even or not roomy(q.device):
        return default_tiles(q.dtype, D)
    return dict(OWN=128, STEP=64, num_warps=8, num_stages=3)
