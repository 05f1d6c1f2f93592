"""Backward of cross entropy: dz = ((1 + 2·zeta·lse)·p - (1 - eps)·1_y - eps/V)·g, p = exp(z - lse).

onerow: one program holds a row in registers: logits are read once, whether or not lse is given [hsu2024]
looped: tiles of a row, so that it may have any length; a pass for lse before, where it is not given [milakov2018]
pieces: whole 16-byte pieces of a row, and its edges apart: rows that start anywhere move 16 bytes at a time [gupta2012]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.signatures.cross_entropy_backward import checked_sizes, empty_gradient
from touchstone.backends.sizes import next_power_of_2
from touchstone.backends.triton.lib.rows import check_pieces, multiple, row_unit, split, warps
from touchstone.backends.variants import variant


@triton.jit
def _gradient(z, col, y, ignored, V, lse, g, smoothing, z_loss):
    p = tl.exp(z - lse)
    picked = tl.where(col == y, 1 - smoothing, 0.0)
    return tl.where(ignored, 0.0, ((1 + 2 * z_loss * lse) * p - picked - smoothing / V) * g)


@triton.jit(do_not_specialize=["ignore_index", "smoothing", "z_loss"], do_not_specialize_on_alignment=["stride_v"])
def _onerow_kernel(
    z_ptr, y_ptr, lse_ptr, g_ptr, dz_ptr, stride_m, stride_v, stride_y, stride_lse, stride_g, V, ignore_index,
    smoothing, z_loss, GIVEN: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr
):  # fmt: skip
    stride_m, V = multiple(stride_m, UNIT), multiple(V, UNIT)
    row = tl.program_id(0).to(tl.int64)
    z_ptr += row * stride_m
    y = tl.load(y_ptr + row * stride_y).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < V
    z = tl.load(z_ptr + col.to(tl.int64) * stride_v, mask=inside, other=float("-inf")).to(tl.float32)
    if GIVEN:
        lse = tl.load(lse_ptr + row * stride_lse)
    else:
        m = tl.max(z, axis=0)
        lse = m + tl.log(tl.sum(tl.exp(z - m), axis=0))
    g = tl.load(g_ptr + row * stride_g)
    dz = _gradient(z, col, y, y == ignore_index, V, lse, g, smoothing, z_loss)
    tl.store(dz_ptr + row * V + col, dz, mask=inside)


@variant()
def onerow(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0
) -> torch.Tensor:
    """logits (rows, V), target (rows,), lse (rows,) or None, dloss () or (rows,) -> dlogits (rows, V). Declines over
    32768 classes, what one program holds. Source: [hsu2024]."""
    V = checked_sizes(logits, target, lse, dloss, reduction, label_smoothing)[1]
    if V > 32768:
        raise Unsupported(f"{V} classes; one program holds 32768")
    return _launch(_onerow_kernel, 32768, logits, target, lse, dloss, reduction, ignore_index, label_smoothing, z_loss)


@triton.jit(do_not_specialize=["ignore_index", "smoothing", "z_loss"], do_not_specialize_on_alignment=["stride_v"])
def _looped_kernel(
    z_ptr, y_ptr, lse_ptr, g_ptr, dz_ptr, stride_m, stride_v, stride_y, stride_lse, stride_g, V, ignore_index,
    smoothing, z_loss, GIVEN: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr
):  # fmt: skip
    stride_m, V = multiple(stride_m, UNIT), multiple(V, UNIT)
    row = tl.program_id(0).to(tl.int64)
    z_ptr += row * stride_m
    dz_ptr += row * V
    y = tl.load(y_ptr + row * stride_y).to(tl.int64)
    if GIVEN:
        lse = tl.load(lse_ptr + row * stride_lse)
    else:
        m = tl.full((), float("-inf"), tl.float32)
        shift = tl.full((), 0.0, tl.float32)
        l = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, V, BLOCK):
            col = start + tl.arange(0, BLOCK)
            z = tl.load(z_ptr + col.to(tl.int64) * stride_v, mask=col < V, other=float("-inf")).to(tl.float32)
            m_new = tl.maximum(m, tl.max(z, axis=0))
            # While every logit so far is -inf, z - m would be NaN and stay in l although later tiles are finite.
            shift = tl.where(m_new == float("-inf"), 0.0, m_new)
            l = l * tl.exp(m - shift) + tl.exp(z - shift)
            m = m_new
        lse = shift + tl.log(tl.sum(l, axis=0))
    g = tl.load(g_ptr + row * stride_g)
    for start in range(0, V, BLOCK):
        col = start + tl.arange(0, BLOCK)
        z = tl.load(z_ptr + col.to(tl.int64) * stride_v, mask=col < V, other=float("-inf")).to(tl.float32)
        tl.store(dz_ptr + col, _gradient(z, col, y, y == ignore_index, V, lse, g, smoothing, z_loss), mask=col < V)


@variant()
def looped(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0
) -> torch.Tensor:
    """logits (rows, V), target (rows,), lse (rows,) or None, dloss () or (rows,) -> dlogits (rows, V). Source:
    [milakov2018]."""
    checked_sizes(logits, target, lse, dloss, reduction, label_smoothing)
    return _launch(_looped_kernel, 4096, logits, target, lse, dloss, reduction, ignore_index, label_smoothing, z_loss)


@triton.jit(do_not_specialize=["ignore_index", "smoothing", "z_loss"])
def _pieces_kernel(
    z_ptr, y_ptr, lse_ptr, g_ptr, dz_ptr, stride_m, stride_v, stride_y, stride_lse, stride_g, V, ignore_index,
    smoothing, z_loss, GIVEN: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head, body, edge, outside = split(row * stride_m, V, UNIT)
    z_body = z_ptr + multiple(row * stride_m + head, UNIT)
    dz_body = dz_ptr + multiple(row * V + head, UNIT)
    edges = tl.load(z_ptr + row * stride_m + edge * stride_v, mask=outside, other=float("-inf")).to(tl.float32)
    y = tl.load(y_ptr + row * stride_y).to(tl.int64)
    if GIVEN:
        lse = tl.load(lse_ptr + row * stride_lse)
    else:
        m = tl.full((), float("-inf"), tl.float32)
        l = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, body, BLOCK):
            col = start + tl.arange(0, BLOCK)
            z = tl.load(z_body + col, mask=col < body, other=float("-inf")).to(tl.float32)
            m_new = tl.maximum(m, tl.max(z, axis=0))
            # While every logit so far is -inf, z - m would be NaN and stay in l although later tiles are finite.
            shift = tl.where(m_new == float("-inf"), 0.0, m_new)
            l = l * tl.exp(m - shift) + tl.exp(z - shift)
            m = m_new
        m_new = tl.maximum(m, tl.max(edges, axis=0))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        l = tl.sum(l, axis=0) * tl.exp(m - shift) + tl.sum(tl.exp(edges - shift), axis=0)
        lse = shift + tl.log(l)
    g = tl.load(g_ptr + row * stride_g)
    ignored = y == ignore_index
    at_edges = _gradient(edges, edge, y, ignored, V, lse, g, smoothing, z_loss)
    tl.store(dz_ptr + row * V + edge, at_edges, mask=outside)
    for start in range(0, body, BLOCK):
        col = start + tl.arange(0, BLOCK)
        z = tl.load(z_body + col, mask=col < body, other=float("-inf")).to(tl.float32)
        dz = _gradient(z, head + col, y, ignored, V, lse, g, smoothing, z_loss)
        tl.store(dz_body + col, dz, mask=col < body)


@variant()
def pieces(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0
) -> torch.Tensor:
    """logits (rows, V), target (rows,), lse (rows,) or None, dloss () or (rows,) -> dlogits (rows, V).

    Declines rows whose elements lie apart, and rows of logits and dlogits that start at different places in 16 bytes.
    Source: [milakov2018], [gupta2012].
    """
    checked_sizes(logits, target, lse, dloss, reduction, label_smoothing)
    check_pieces(logits)
    unit = 16 // logits.element_size()
    options = (reduction, ignore_index, label_smoothing, z_loss, unit)
    return _launch(_pieces_kernel, 4096, logits, target, lse, dloss, *options)


def _launch(kernel, widest, logits, target, lse, dloss, reduction, ignore_index, label_smoothing, z_loss, unit=None):
    rows, V = logits.shape
    dlogits = empty_gradient(logits)
    if not dlogits.numel():
        return dlogits
    if reduction == "mean":
        g = torch.empty(1, dtype=torch.float32, device=logits.device)
        _scale_kernel[(1,)](dloss, target, g, rows, *target.stride(), ignore_index, BLOCK=1024)
        dloss = g
    given = lse is not None
    strides = (*logits.stride(), *target.stride(), lse.stride(0) if given else 0)
    strides = (*strides, dloss.stride(0) if reduction == "none" else 0)
    block = min(next_power_of_2(V), widest)
    options = (V, ignore_index, label_smoothing, z_loss)
    kernel[(rows,)](
        logits, target, lse if given else dloss, dloss, dlogits, *strides, *options,
        GIVEN=given, BLOCK=block, UNIT=unit or row_unit(logits), num_warps=warps(block)
    )  # fmt: skip
    return dlogits


@triton.jit(do_not_specialize=["ignore_index"])
def _scale_kernel(dloss_ptr, y_ptr, g_ptr, rows, stride_y, ignore_index, BLOCK: tl.constexpr):
    """dloss by the number of rows that are not ignored: what each of them is multiplied by."""
    kept = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK).to(tl.int64)
        y = tl.load(y_ptr + row * stride_y, mask=row < rows, other=0).to(tl.int64)
        kept += tl.where((row < rows) & (y != ignore_index), 1.0, 0.0)
    tl.store(g_ptr, tl.load(dloss_ptr) / tl.sum(kept, axis=0))
