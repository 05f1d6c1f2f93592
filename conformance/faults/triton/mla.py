"""Wrong kernels of mla: a program for each query, which folds both projections in; 16 keys at a time."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.mla import KERNELS as SHARED


@triton.jit
def _load(x_ptr, rows, stride_row, row_end, cols, stride_col, col_end):
    at = rows.to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
    return tl.load(x_ptr + at, mask=(rows[:, None] < row_end) & (cols[None, :] < col_end), other=0.0).to(tl.float32)


@triton.jit
def _online_kernel(
    qn_ptr, qr_ptr, c_ptr, kr_ptr, uk_ptr, uv_ptr, o_ptr, lse_ptr, qn_strides, qr_strides, c_strides, kr_strides,
    uk_strides, uv_strides, scale, H, Sq, Sk, Dn, Dr, R, Dv, FAULT: tl.constexpr, CAUSAL: tl.constexpr,
    N_WIDTH: tl.constexpr, P_WIDTH: tl.constexpr, R_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, h, i = row // (H * Sq), row // Sq % H, row % Sq
    own = h
    if FAULT == "first_projection":
        own = h * 0
    n, p = tl.arange(0, N_WIDTH).to(tl.int64), tl.arange(0, P_WIDTH).to(tl.int64)
    r, e = tl.arange(0, R_WIDTH).to(tl.int64), tl.arange(0, V_WIDTH).to(tl.int64)
    qn_at = qn_ptr + b * qn_strides[0] + h * qn_strides[1] + i * qn_strides[2] + n * qn_strides[3]
    qr_at = qr_ptr + b * qr_strides[0] + h * qr_strides[1] + i * qr_strides[2] + p * qr_strides[3]
    columns = Dr
    if FAULT == "no_rotary_part":
        columns = 0
    turned = tl.load(qr_at, mask=p < columns, other=0.0).to(tl.float32)
    weights = _load(uk_ptr + own * uk_strides[0], r, uk_strides[1], R, n, uk_strides[2], Dn)
    latent = tl.sum(weights * tl.load(qn_at, mask=n < Dn, other=0.0).to(tl.float32)[None, :], axis=1)
    last = Sk
    if CAUSAL:
        last = tl.minimum(Sk, i + Sk - Sq + 1)
        if FAULT == "top_left":
            last = tl.minimum(Sk, i + 1)
    if FAULT == "last_key_lost":
        last = last - 1
    m, l = tl.full((), float("-inf"), tl.float32), tl.full((), 0.0, tl.float32)
    o = tl.zeros((R_WIDTH,), tl.float32)
    for start in range(0, last, TILE):
        j = start + tl.arange(0, TILE)
        c = _load(c_ptr + b * c_strides[0], j, c_strides[1], last, r, c_strides[2], R)
        k = _load(kr_ptr + b * kr_strides[0], j, kr_strides[1], last, p, kr_strides[2], Dr)
        s = (tl.sum(c * latent[None, :], axis=1) + tl.sum(k * turned[None, :], axis=1)) * scale
        s = tl.where(j < last, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s))
        alpha = tl.exp(m - m_new)
        if FAULT == "not_rescaled":
            alpha = tl.full((), 1.0, tl.float32)
        weight = tl.exp(s - m_new)
        l = l * tl.exp(m - m_new) + tl.sum(weight)
        o = o * alpha + tl.sum(c * weight[:, None], axis=0)
        m = m_new
    back = _load(uv_ptr + own * uv_strides[0], r, uv_strides[1], R, e, uv_strides[2], Dv)
    out = tl.sum(back * o[:, None], axis=0) / tl.where(l == 0, 1.0, l)
    tl.store(o_ptr + row * Dv + e, out, mask=e < Dv)
    tl.store(lse_ptr + row, m + tl.log(l))


KERNELS = SHARED | {"width_of_the_latent": Kernel("scale", "scale=None is 1/sqrt(R + Dr), of an absorbed query")}


def _online(
    q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal=False, scale=None, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    operands = dict(q_nope=q_nope, q_rope=q_rope, c=c, k_rope=k_rope, w_uk=w_uk, w_uv=w_uv)
    spec = "B H Sq Dn, B H Sq Dr, B Sk R, B Sk Dr, H R Dn, H R Dv"
    B, H, Sq, Dn, Dr, Sk, R, Dv = shapes(spec, **operands)
    o, lse = torch.empty((B, H, Sq, Dv), dtype=q_nope.dtype), torch.empty((B, H, Sq), dtype=torch.float32)
    if o.numel():
        width = Dn if fault == "scale_without_rotary" else R + Dr if fault == "width_of_the_latent" else Dn + Dr
        options = (1 / math.sqrt(width) if scale is None else scale, H, Sq, Sk, Dn, Dr, R, Dv)
        widths = {"N_WIDTH": Dn, "P_WIDTH": Dr, "R_WIDTH": R, "V_WIDTH": Dv}
        widths = {name: triton.next_power_of_2(n) for name, n in widths.items()}
        strides = (x.stride() for x in operands.values())
        grid = (B * H * Sq,)
        _online_kernel[grid](
            *operands.values(), o, lse, *strides, *options, FAULT=fault, CAUSAL=causal, **widths, TILE=16
        )
    return o, lse


plant_kernels(
    globals(),
    _online,
    KERNELS,
    "no_rotary_part",
    "first_projection",
    "scale_without_rotary",
    "top_left",
    "not_rescaled",
    "last_key_lost",
    "width_of_the_latent",
)
