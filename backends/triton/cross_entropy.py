"""Cross entropy: loss = (1 - eps)·(lse - z_y) + eps·(lse - mean z) + zeta·lse², and the sum or the mean of the rows'.

onerow: one program holds a row in registers, so the logits are read once [hsu2024]
online: max and sum in one pass by rescaling the sum whenever the max grows, so a row may have any length [milakov2018]
"""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.signatures.cross_entropy import checked_sizes, empty_loss, empty_losses
from touchstone.backends.sizes import next_power_of_2
from touchstone.backends.triton.lib.rows import warps
from touchstone.backends.variants import variant


@triton.jit
def _loss(z_ptr, stride_v, y, V, lse, total, smoothing, z_loss):
    """From lse and the sum of the logits; without smoothing a sum of -inf must not count."""
    picked = tl.load(z_ptr + y * stride_v).to(tl.float32)
    smooth = tl.where(smoothing > 0, smoothing * (lse - total / V), 0.0)
    return (1 - smoothing) * (lse - picked) + smooth + z_loss * lse * lse


@triton.jit(do_not_specialize=["ignore_index", "smoothing", "z_loss"], do_not_specialize_on_alignment=["stride_v"])
def _onerow_kernel(
    z_ptr, y_ptr, loss_ptr, stride_m, stride_v, stride_y, V, ignore_index, smoothing, z_loss, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(y_ptr + row * stride_y).to(tl.int64)
    if y == ignore_index:
        tl.store(loss_ptr + row, 0.0)
        return
    z_ptr += row * stride_m
    col = tl.arange(0, BLOCK)
    inside = col < V
    z = tl.load(z_ptr + col.to(tl.int64) * stride_v, mask=inside, other=float("-inf")).to(tl.float32)
    m = tl.max(z, axis=0)
    lse = m + tl.log(tl.sum(tl.exp(z - m), axis=0))
    total = tl.sum(tl.where(inside, z, 0.0), axis=0)
    tl.store(loss_ptr + row, _loss(z_ptr, stride_v, y, V, lse, total, smoothing, z_loss))


@variant()
def onerow(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0) -> torch.Tensor:
    """logits (rows, V), target (rows,) -> loss () or (rows,) float32. Declines over 32768 classes, what one program
    holds. Source: [hsu2024]."""
    rows, V = checked_sizes(logits, target, reduction, label_smoothing)
    if V > 32768:
        raise Unsupported(f"{V} classes; one program holds 32768")
    losses = empty_losses(logits)
    if rows:
        block = next_power_of_2(max(V, 1))
        options = (V, ignore_index, label_smoothing, z_loss)
        _onerow_kernel[(rows,)](
            logits, target, losses, *logits.stride(), *target.stride(), *options, BLOCK=block, num_warps=warps(block)
        )
    return _reduced(losses, logits, target, reduction, ignore_index)


@triton.jit(do_not_specialize=["ignore_index", "smoothing", "z_loss"], do_not_specialize_on_alignment=["stride_v"])
def _online_kernel(
    z_ptr,
    y_ptr,
    loss_ptr,
    stride_m,
    stride_v,
    stride_y,
    V,
    ignore_index,
    smoothing,
    z_loss,
    EACH: tl.constexpr,
    THREADS: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(y_ptr + row * stride_y).to(tl.int64)
    if y == ignore_index:
        tl.store(loss_ptr + row, 0.0)
        return
    # A thread has EACH vectors of LANES logits at once, and a max and a sum of its own: nothing waits within a row.
    # Rows begin and end with whole vectors, which sizes in vectors tell Triton: else each logit is a load of its own.
    z_ptr += row * stride_m * LANES
    V *= LANES
    vector = tl.arange(0, EACH)[:, None, None] * THREADS + tl.arange(0, THREADS)[None, :, None]
    cols = vector * LANES + tl.arange(0, LANES)[None, None, :]
    LOG2E: tl.constexpr = 1.4426950408889634
    m = tl.full((THREADS,), float("-inf"), tl.float32)
    l = tl.zeros((THREADS,), tl.float32)
    total = tl.zeros((THREADS,), tl.float32)
    for start in range(0, V, EACH * THREADS * LANES):
        inside = start + cols < V
        z = tl.load(z_ptr + (start + cols).to(tl.int64) * stride_v, mask=inside, other=float("-inf")).to(tl.float32)
        m_new = tl.maximum(m, tl.max(tl.max(z, axis=2), axis=0))
        # While every logit so far is -inf, z - m would be NaN and stay in l although later tiles are finite.
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        l = l * tl.exp2((m - shift) * LOG2E) + tl.sum(
            tl.sum(tl.exp2((z - shift[None, :, None]) * LOG2E), axis=2), axis=0
        )
        m = m_new
        if smoothing > 0:
            total += tl.sum(tl.sum(tl.where(inside, z, 0.0), axis=2), axis=0)
    shift = tl.max(m, axis=0)
    shift = tl.where(shift == float("-inf"), 0.0, shift)
    lse = shift + tl.log(tl.sum(l * tl.exp(m - shift), axis=0))
    tl.store(loss_ptr + row, _loss(z_ptr, stride_v, y, V, lse, tl.sum(total, axis=0), smoothing, z_loss))


@variant()
def online(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0) -> torch.Tensor:
    """logits (rows, V), target (rows,) -> loss () or (rows,) float32; any number of classes. Source: [milakov2018]."""
    rows, V = checked_sizes(logits, target, reduction, label_smoothing)
    losses = empty_losses(logits)
    if rows:
        step, neighbours = logits.stride()
        lanes = math.gcd(16 // logits.element_size(), step, V) if neighbours == 1 else 1
        each = max(4, 16 // lanes)
        threads = min(max(next_power_of_2(-(-V // (each * lanes))), 32), 256)
        options = (V // lanes, ignore_index, label_smoothing, z_loss)
        _online_kernel[(rows,)](
            logits,
            target,
            losses,
            step // lanes,
            neighbours,
            *target.stride(),
            *options,
            EACH=each,
            THREADS=threads,
            LANES=lanes,
            num_warps=threads // 32,
        )
    return _reduced(losses, logits, target, reduction, ignore_index)


@triton.jit(do_not_specialize=["ignore_index"])
def _reduce_kernel(losses_ptr, y_ptr, loss_ptr, rows, stride_y, ignore_index, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    kept = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK).to(tl.int64)
        total += tl.load(losses_ptr + row, mask=row < rows, other=0.0)
        y = tl.load(y_ptr + row * stride_y, mask=row < rows, other=0).to(tl.int64)
        kept += tl.where((row < rows) & (y != ignore_index), 1.0, 0.0)
    loss = tl.sum(total, axis=0)
    if MEAN:
        loss /= tl.sum(kept, axis=0)  # of no rows: NaN
    tl.store(loss_ptr, loss)


def _reduced(losses, logits, target, reduction, ignore_index) -> torch.Tensor:
    if reduction == "none":
        return losses
    loss = empty_loss(logits, reduction)
    if len(losses):
        mean = reduction == "mean"
        _reduce_kernel[(1,)](losses, target, loss, len(losses), *target.stride(), ignore_index, MEAN=mean, BLOCK=1024)
    return loss
