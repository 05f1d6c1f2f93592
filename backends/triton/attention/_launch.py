"""What the launchers of attention share: the argument check, the tile load and tiles that fit every head dimension."""

import math

import torch
import triton
import triton.language as tl

from backends import shapes

# Sizes whose value or alignment would not improve the code: one compilation serves them all. Strides are not among them:
# a head that is not known to start on 16 bytes is loaded element by element.
_PLAIN = ["Hq", "Hkv", "Sq", "Sk"]


@triton.jit
def _load_tile(x, rows, row_stride, row_end, cols, col_stride, col_end):
    """x[rows, cols], zero from `row_end` (None: all rows exist) and `col_end` on.

    Offsets are 64-bit: a row stride may reach 2^26 and more.
    """
    offsets = rows.to(tl.int64)[:, None] * row_stride + cols.to(tl.int64)[None, :] * col_stride
    inside = cols[None, :] < col_end
    if row_end is not None:
        inside = inside & (rows[:, None] < row_end)
    return tl.load(x + offsets, mask=inside, other=0.0)


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk) of checked operands."""
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D", q=q, k=k, v=v)
    if Hq % Hkv if Hkv else Hq:
        raise ValueError(f"q: {Hq} heads; expected a multiple of the {Hkv} heads of k and v")
    if not 1 <= D <= 256:
        raise ValueError(f"q: head dimension {D}; expected 1 to 256")
    return B, Hq, Sq, D, Hkv, Sk


def _outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh o like q and lse (B, Hq, Sq) in float32, both contiguous."""
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return o, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


def _scale(scale: float | None, D: int) -> float:
    return 1 / math.sqrt(D) if scale is None else scale


def _block_d(D: int) -> int:
    """Head dimension padded to what `tl.dot` takes."""
    return max(16, triton.next_power_of_2(D))


def _tiles(dtype: torch.dtype, D: int) -> dict[str, int]:
    """Tiles that keep q, k, v and the accumulator on chip for any D; float32 `ieee` runs on the FMA pipes."""
    if dtype is torch.float32:
        if D <= 64:
            return dict(BLOCK_M=64, BLOCK_N=32, num_warps=8, num_stages=2)
        return dict(BLOCK_M=32, BLOCK_N=16, num_warps=8, num_stages=2)
    if D <= 64:
        return dict(BLOCK_M=128, BLOCK_N=64, num_warps=4, num_stages=3)
    if D <= 128:
        return dict(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=2)
    return dict(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)
