"""Wrong kernels of rope: a program a head of a token, half of it at a time."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.rope import checked_sizes, empty_outputs
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults._rope import KERNELS as SHARED


@triton.jit
def _head_kernel(
    x_ptr,
    y_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    heads,
    tokens,
    dims,
    half,
    x_batch,
    x_head,
    x_token,
    x_dim,
    cos_row,
    cos_col,
    sin_row,
    sin_col,
    p_batch,
    p_token,
    INTERLEAVED: tl.constexpr,
    POSITIONS: tl.constexpr,
    FAULT: tl.constexpr,
    PAIRS: tl.constexpr,
    DIMS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    s, b, h = token % tokens, token // tokens // heads, token // tokens % heads
    row = s
    if POSITIONS:
        at = b * p_batch + s * p_token
        if FAULT == "positions_without_stride":
            at = b * tokens + s
        row = tl.load(positions_ptr + at).to(tl.int64)
    if FAULT == "stride_of_table_ignored":
        sin_col = 1
    i = tl.arange(0, PAIRS).to(tl.int64)
    inside = i < half
    if FAULT == "pairs_unmasked":
        inside = i >= 0
    c = tl.load(cos_ptr + row * cos_row + i * cos_col, mask=i < half, other=0.0).to(tl.float32)
    sine = tl.load(sin_ptr + row * sin_row + i * sin_col, mask=i < half, other=0.0).to(tl.float32)
    apart = half
    if FAULT == "partner_of_whole_head":
        apart = dims // 2
    first, second = (2 * i, 2 * i + 1) if INTERLEAVED else (i, i + apart)
    if FAULT == "offset_int32":
        x_ptr += b.to(tl.int32) * x_batch + h.to(tl.int32) * x_head + s.to(tl.int32) * x_token
    else:
        x_ptr += b * x_batch + h * x_head + s * x_token
    y_ptr += token * dims
    d = tl.arange(0, DIMS).to(tl.int64)
    rest = (d >= 2 * half) & (d < dims)
    if FAULT != "rest_unwritten":
        tl.store(y_ptr + d, tl.load(x_ptr + d * x_dim, mask=rest), mask=rest)
    one = tl.load(x_ptr + first * x_dim, mask=i < half, other=0.0).to(tl.float32)
    other = tl.load(x_ptr + second * x_dim, mask=i < half, other=0.0).to(tl.float32)
    tl.store(y_ptr + first, one * c - other * sine, mask=inside)
    if FAULT == "sine_of_first_side":
        tl.store(y_ptr + second, other * c - one * sine, mask=inside)
    else:
        tl.store(y_ptr + second, other * c + one * sine, mask=inside)


KERNELS = {
    name: SHARED[name]
    for name in (
        "partner_of_whole_head",
        "rest_unwritten",
        "sine_of_first_side",
        "stride_of_table_ignored",
        "positions_without_stride",
    )
} | {
    "pairs_unmasked": Kernel(
        "mask", "the stores do not mask the pairs beyond R/2: they write over what comes next", "values: |OutOfBounds"
    ),
    "offset_int32": Kernel("offset", "offsets into q and k are computed in 32 bits", "IntegerOverflowError"),
}


def _head(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
    fault: str = "none",
) -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Hkv, S, D, half = checked_sizes(q, k, cos, sin, positions)
    outputs = empty_outputs(q, k)
    for x, y, heads in zip((q, k), outputs, (Hq, Hkv), strict=True):
        if y.numel():
            _head_kernel[(B * heads * S,)](
                x,
                y,
                cos,
                sin,
                positions,
                heads,
                S,
                D,
                half,
                *x.stride(),
                *cos.stride(),
                *sin.stride(),
                *((0, 0) if positions is None else positions.stride()),
                INTERLEAVED=bool(interleaved),
                POSITIONS=positions is not None,
                FAULT=fault,
                PAIRS=triton.next_power_of_2(max(half, 1)),
                DIMS=triton.next_power_of_2(D),
            )
    return outputs


plant_kernels(globals(), _head, KERNELS, *KERNELS)
