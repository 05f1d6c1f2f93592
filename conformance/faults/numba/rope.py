"""Wrong kernels of rope: a block a head, in shared memory."""

from enum import IntEnum

import torch
from numba import cuda, float32

from touchstone.backends.signatures.rope import checked_sizes, empty_outputs
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults._rope import KERNELS
from touchstone.conformance.faults.numba._launching import flat, launch


class Fault(IntEnum):
    none = 0
    no_barrier = 1
    partner_of_whole_head = 2
    rest_unwritten = 3
    sine_of_first_side = 4
    stride_of_table_ignored = 5
    heads_of_q = 6
    positions_without_stride = 7


@cuda.jit
def _staged_kernel(
    x, y, cos, sin, sin_row, sin_col, positions, p_batch, p_token, are_given, q_heads, interleaved, fault
):
    values = cuda.shared.array(0, float32)
    heads, tokens, dims, half = x.shape[1], x.shape[2], x.shape[3], cos.shape[1]
    d, s, bh = cuda.threadIdx.x, cuda.blockIdx.x % tokens, cuda.blockIdx.x // tokens
    b, h = bh // heads, bh % heads
    b_of_x, h_of_x = b, h
    if fault == Fault.heads_of_q:
        b_of_x, h_of_x = bh // q_heads, min(bh % q_heads, heads - 1)
    if d < dims:
        values[d] = float32(x[b_of_x, h_of_x, s, d])
    if fault != Fault.no_barrier:
        cuda.syncthreads()
    if d >= dims:
        return

    if d >= 2 * half:
        if fault != Fault.rest_unwritten:
            y[b, h, s, d] = values[d]
        return
    row = s
    if are_given:
        at = b * tokens + s if fault == Fault.positions_without_stride else b * p_batch + s * p_token
        row = int(positions[at])
    apart = dims // 2 if fault == Fault.partner_of_whole_head else half
    is_first = d % 2 == 0 if interleaved else d < half
    pair = d // 2 if interleaved else d % half
    step = 1 if interleaved else apart
    partner = d + step if is_first else d - step
    c = float32(cos[row, pair])
    sine = float32(sin[row * sin_row + pair * (1 if fault == Fault.stride_of_table_ignored else sin_col)])
    if is_first or fault == Fault.sine_of_first_side:
        sine = -sine
    y[b, h, s, d] = values[d] * c + values[(partner + dims) % dims] * sine


def _staged(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
    fault: str = "none",
) -> tuple[torch.Tensor, torch.Tensor]:
    B, Hq, Hkv, S, D, _ = checked_sizes(q, k, cos, sin, positions)
    outputs = empty_outputs(q, k)
    given = (torch.zeros(1, dtype=torch.int32, device=q.device), 0, 0, False)
    if positions is not None:
        given = (positions, *positions.stride(), True)
    for x, y, heads in zip((q, k), outputs, (Hq, Hkv), strict=True):
        if y.numel():
            threads = 32 * -(-D // 32)
            tables = (cos, flat(sin), *sin.stride(), flat(given[0]), *given[1:])
            arguments = (x, y, *tables, Hq, bool(interleaved))
            launch(Fault, fault, _staged_kernel, B * heads * S, threads, *arguments, shared=4 * threads)
    return outputs


plant_kernels(globals(), _staged, KERNELS, *KERNELS)
