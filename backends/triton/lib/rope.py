"""What rope and its backward share: kernels with the sign of sin as TURN."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.rope import checked_sizes, empty_outputs
from touchstone.backends.sizes import ceil_div, next_power_of_2

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]


@triton.jit
def _elements_kernel(
    x_ptr,
    y_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    count,
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
    TURN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    d, s, bh = index % dims, index // dims % tokens, index // dims // tokens
    b, h = bh // heads, bh % heads
    turned = inside & (d < 2 * half)
    if INTERLEAVED:
        pair = d // 2
        is_first = d % 2 == 0
        partner = tl.where(is_first, d + 1, d - 1)
    else:
        pair = d % (half + (half == 0))
        is_first = d < half
        partner = tl.where(is_first, d + half, d - half)
    row = s
    if POSITIONS:
        row = tl.load(positions_ptr + b * p_batch + s * p_token, mask=inside, other=0).to(tl.int64)
    x_ptr += b * x_batch + h * x_head + s * x_token
    x = tl.load(x_ptr + d * x_dim, mask=inside)
    other = tl.load(x_ptr + partner * x_dim, mask=turned, other=0.0).to(tl.float32)
    c = tl.load(cos_ptr + row * cos_row + pair * cos_col, mask=turned, other=1.0).to(tl.float32)
    sine = tl.load(sin_ptr + row * sin_row + pair * sin_col, mask=turned, other=0.0).to(tl.float32) * TURN
    y = x.to(tl.float32) * c + other * tl.where(is_first, -sine, sine)
    tl.store(y_ptr + index, tl.where(turned, y.to(x.dtype), x), mask=inside)


def by_elements(operands: Operands, interleaved: bool, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A program for neighbouring elements of q or k."""
    q, k, cos, sin, positions = operands
    _, Hq, Hkv, S, D, half = checked_sizes(*operands)
    outputs = empty_outputs(q, k)
    for x, y, heads in zip((q, k), outputs, (Hq, Hkv), strict=True):
        if y.numel():
            _elements_kernel[(ceil_div(y.numel(), 512),)](
                x,
                y,
                cos,
                sin,
                positions,
                y.numel(),
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
                TURN=turn,
                BLOCK=512,
            )
    return outputs


@triton.jit
def _turn_heads(
    x_ptr,
    x_head,
    x_dim,
    y_ptr,
    heads,
    c,
    s,
    tokens,
    dims,
    half,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
):
    """All heads of one token, (heads, dims)."""
    i = tl.arange(0, PAIRS)
    first, second = (2 * i, 2 * i + 1) if INTERLEAVED else (i, i + half)
    rest = 2 * half + tl.arange(0, REST)
    for start in range(0, heads, HEADS):
        h = (start + tl.arange(0, HEADS)).to(tl.int64)
        inside = (h[:, None] < heads) & (i[None, :] < half)
        x_rows, y_rows = x_ptr + h[:, None] * x_head, y_ptr + h[:, None] * tokens * dims
        one = tl.load(x_rows + first.to(tl.int64)[None, :] * x_dim, mask=inside, other=0.0).to(tl.float32)
        other = tl.load(x_rows + second.to(tl.int64)[None, :] * x_dim, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_rows + first[None, :], one * c - other * s, mask=inside)
        tl.store(y_rows + second[None, :], other * c + one * s, mask=inside)
        inside = (h[:, None] < heads) & (rest[None, :] < dims)
        stays = tl.load(x_rows + rest.to(tl.int64)[None, :] * x_dim, mask=inside)
        tl.store(y_rows + rest[None, :], stays, mask=inside)


@triton.jit
def _pairs_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    q_heads,
    k_heads,
    tokens,
    dims,
    half,
    q_batch,
    q_head,
    q_token,
    q_dim,
    k_batch,
    k_head,
    k_token,
    k_dim,
    cos_row,
    cos_col,
    sin_row,
    sin_col,
    p_batch,
    p_token,
    INTERLEAVED: tl.constexpr,
    POSITIONS: tl.constexpr,
    TURN: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
):
    b, t = (tl.program_id(0) // tokens).to(tl.int64), (tl.program_id(0) % tokens).to(tl.int64)
    row = t
    if POSITIONS:
        row = tl.load(positions_ptr + b * p_batch + t * p_token).to(tl.int64)
    i = tl.arange(0, PAIRS).to(tl.int64)
    c = tl.load(cos_ptr + row * cos_row + i * cos_col, mask=i < half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin_ptr + row * sin_row + i * sin_col, mask=i < half, other=0.0).to(tl.float32)[None, :] * TURN
    q_ptr += b * q_batch + t * q_token
    q_out_ptr += b * q_heads * tokens * dims + t * dims
    _turn_heads(q_ptr, q_head, q_dim, q_out_ptr, q_heads, c, s, tokens, dims, half, INTERLEAVED, HEADS, PAIRS, REST)
    k_ptr += b * k_batch + t * k_token
    k_out_ptr += b * k_heads * tokens * dims + t * dims
    _turn_heads(k_ptr, k_head, k_dim, k_out_ptr, k_heads, c, s, tokens, dims, half, INTERLEAVED, HEADS, PAIRS, REST)


def by_pairs(
    operands: Operands, interleaved: bool, turn: int, names: tuple[str, str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A program a token, which reads its rows of the tables once for all heads of q and k."""
    q, k, cos, sin, positions = operands
    B, Hq, Hkv, S, D, half = checked_sizes(*operands, names=names)
    outputs = empty_outputs(q, k)
    if q.numel() or k.numel():
        _pairs_kernel[(B * S,)](
            q,
            k,
            *outputs,
            cos,
            sin,
            positions,
            Hq,
            Hkv,
            S,
            D,
            half,
            *q.stride(),
            *k.stride(),
            *cos.stride(),
            *sin.stride(),
            *((0, 0) if positions is None else positions.stride()),
            INTERLEAVED=bool(interleaved),
            POSITIONS=positions is not None,
            TURN=turn,
            HEADS=8,
            PAIRS=next_power_of_2(max(half, 1)),
            REST=next_power_of_2(max(D - 2 * half, 1)),
        )
    return outputs
