"""Multi-head latent attention: keys and values that are projections of a latent row a token, and a rotary part of the
keys that all heads share.

materialised: keys and values of all heads are made and stored, and attention over them follows, which takes few
  operations where there are as many queries as keys [deepseek2024]
absorbed: the projections go to the queries and to the output instead, and all heads attend to the latents, which takes
  few bytes where there are few queries [deepseek2024]
tma: materialised with tiles moved by the copy engine, and no mask where all queries of a tile see all keys
  [pearbiossom2026]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.mla import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.attention._launch import LN2, LOG2E, block_d, head_descriptor
from touchstone.backends.triton.lib.latent import attend, blocks, load_tile
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize=["heads", "M", "K", "N"])
def _product_kernel(
    a_ptr, b_ptr, out_ptr, a_strides, b_strides, heads, M, K, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(2).to(tl.int64)  # (batch, head)
    a_ptr += pair // heads * a_strides[0] + pair % heads * a_strides[1]
    b_ptr += pair // heads * b_strides[0] + pair % heads * b_strides[1]
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    out = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = load_tile(a_ptr, m, a_strides[2], M, k, a_strides[3], K)
        b = load_tile(b_ptr, k, b_strides[2], K, n, b_strides[3], N)
        out = tl.dot(a, b, out, input_precision="ieee")
    at = (pair * M + m.to(tl.int64)[:, None]) * N + n[None, :]
    tl.store(out_ptr + at, out, mask=(m[:, None] < M) & (n[None, :] < N))


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(B, H, M, K), (B, H, K, N) -> (B, H, M, N), in the dtype; what heads or batches share is expanded."""
    B, H, M, K = a.shape
    out = torch.empty((B, H, M, b.shape[-1]), dtype=a.dtype, device=a.device)
    if out.numel():
        tiles = dict(BLOCK_M=32, BLOCK_N=64, BLOCK_K=64)
        if a.dtype is not torch.float32 and M > 64:
            tiles = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=3)
        grid = (ceil_div(M, tiles["BLOCK_M"]), ceil_div(out.shape[-1], tiles["BLOCK_N"]), B * H)
        _product_kernel[grid](a, b, out, a.stride(), b.stride(), H, M, K, out.shape[-1], **tiles)
    return out


@triton.jit(do_not_specialize=["scale", "heads", "rows", "Sq", "Sk", "D", "P", "DV"])
def _attention_kernel(
    q_ptr, r_ptr, k_ptr, t_ptr, v_ptr, o_ptr, lse_ptr, q_strides, r_strides, k_strides, t_strides, v_strides, scale,
    heads, rows, Sq, Sk, D, P, DV, CAUSAL: tl.constexpr, SHARED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(1).to(tl.int64)  # (batch, key head)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    o, m, l = attend(
        q_ptr, q_strides, r_ptr, r_strides, k_ptr, k_strides, t_ptr, t_strides, v_ptr, v_strides, pair // heads,
        pair % heads, row, rows, Sq, 0, Sk, Sk, scale, D, P, DV, CAUSAL, SHARED, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_P,
        BLOCK_V
    )  # fmt: skip
    e, place = tl.arange(0, BLOCK_V), pair * rows + row
    o = o / tl.where(l == 0, 1.0, l)[:, None]
    tl.store(o_ptr + place[:, None] * DV + e, o, mask=(row < rows)[:, None] & (e < DV))
    tl.store(lse_ptr + place, m + tl.log(l), mask=row < rows)


def _attention(q, r, k, t, v, o, lse, causal: bool, scale: float, shared: bool) -> None:
    """q (B, H, Sq, D) over k (B, heads, Sk, D) and v (B, heads, Sk, DV), which is k where it is `shared`; r
    (B, H, Sq, P) over t (B, Sk, P)."""
    (B, H, Sq, D), (heads, Sk), P, DV = q.shape, k.shape[1:3], r.shape[-1], v.shape[-1]
    rows = H // heads * Sq
    tiles = blocks(q.dtype, rows, D, P, DV, shared, k.stride(-1) == 1)
    strides = (q.stride(), r.stride(), k.stride(), t.stride(), v.stride())
    options = (scale, heads, rows, Sq, Sk, D, P, DV)
    grid = (ceil_div(rows, tiles["BLOCK_M"]), B * heads)
    _attention_kernel[grid](q, r, k, t, v, o, lse, *strides, *options, CAUSAL=causal, SHARED=shared, **tiles)


@variant()
def materialised(
    q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_nope (B, H, Sq, Dn), q_rope (B, H, Sq, Dr), c (B, Sk, R), k_rope (B, Sk, Dr), w_uk (H, R, Dn), w_uv (H, R, Dv)
    -> o (B, H, Sq, Dv), lse (B, H, Sq) float32. Source: [deepseek2024]."""
    B, H, _, Dn, Dr, _, _, Dv = checked_sizes(q_nope, q_rope, c, k_rope, w_uk, w_uv)
    o, lse = empty_outputs(q_nope, Dv)
    if o.numel():
        latents = c.unsqueeze(1).expand(-1, H, -1, -1)
        k, v = (_product(latents, w.unsqueeze(0).expand(B, -1, -1, -1)) for w in (w_uk, w_uv))
        _attention(q_nope, q_rope, k, k_rope, v, o, lse, causal, scale_or_default(scale, Dn, Dr), shared=False)
    return o, lse


@variant()
def absorbed(
    q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_nope (B, H, Sq, Dn), q_rope (B, H, Sq, Dr), c (B, Sk, R), k_rope (B, Sk, Dr), w_uk (H, R, Dn), w_uv (H, R, Dv)
    -> o (B, H, Sq, Dv), lse (B, H, Sq) float32. Source: [deepseek2024]."""
    B, _, _, Dn, Dr, _, R, Dv = checked_sizes(q_nope, q_rope, c, k_rope, w_uk, w_uv)
    o, lse = empty_outputs(q_nope, Dv)
    if o.numel():
        q = _product(q_nope, w_uk.mT.unsqueeze(0).expand(B, -1, -1, -1))
        latents, of_latents = c.unsqueeze(1), torch.empty((*q.shape[:3], R), dtype=q.dtype, device=q.device)
        scale = scale_or_default(scale, Dn, Dr)
        _attention(q, q_rope, latents, k_rope, latents, of_latents, lse, causal, scale, shared=True)
        o = _product(of_latents, w_uv.unsqueeze(0).expand(B, -1, -1, -1))
    return o, lse


@triton.jit
def _attend_tiles(
    acc, m, l, q, r, k_desc, t_desc, v_desc, batch, head, i, first, last, shift, Sk, scale, MASKED: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    """The queries i against the keys from `first` to `last`. `scale` is not negative and carries log2 e."""
    for start in range(first, last, BLOCK_N):
        k = k_desc.load([batch, head, start, 0]).reshape(BLOCK_N, BLOCK_D)
        t = t_desc.load([batch, 0, start, 0]).reshape(BLOCK_N, BLOCK_P)
        s = tl.dot(q, k.T, input_precision="ieee")
        s = tl.dot(r, t.T, s, input_precision="ieee") * scale
        if MASKED:
            j = start + tl.arange(0, BLOCK_N)
            visible = j[None, :] < Sk
            if CAUSAL:
                visible &= j[None, :] <= i[:, None] + shift
            s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        base = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new)  # inf - inf is NaN: leave such rows unshifted
        w = tl.exp2(s - base[:, None])
        alpha = tl.exp2(m - base)
        l = l * alpha + tl.sum(w, 1)
        m = m_new
        v = v_desc.load([batch, head, start, 0]).reshape(BLOCK_N, BLOCK_V)
        acc = tl.dot(w.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return acc, m, l


@triton.jit(do_not_specialize=["H", "Sq", "Sk"])
def _tma_kernel(
    q_desc, r_desc, k_desc, t_desc, v_desc, o_desc, lse_ptr, H, Sq, Sk, scale, NEGATIVE: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_V: tl.constexpr
):  # fmt: skip
    tiles = tl.cdiv(Sq, BLOCK_M)
    pair = tl.program_id(0) // tiles  # (batch, head)
    b, h = pair // H, pair % H
    top = (tiles - 1 - tl.program_id(0) % tiles) * BLOCK_M  # causal: the queries that see most keys start first
    i, shift = top + tl.arange(0, BLOCK_M), Sk - Sq
    full, last = Sk // BLOCK_N * BLOCK_N, Sk  # keys up to `full` are visible to all of i, from `last` on to none
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(top + 1 + shift, 0) // BLOCK_N * BLOCK_N)
        last = tl.minimum(last, tl.maximum(top + BLOCK_M + shift, 0))
    q = q_desc.load([b, h, top, 0]).reshape(BLOCK_M, BLOCK_D)
    r = r_desc.load([b, h, top, 0]).reshape(BLOCK_M, BLOCK_P)
    if NEGATIVE:
        q, r = -q, -r
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    acc, m, l = _attend_tiles(
        acc, m, l, q, r, k_desc, t_desc, v_desc, b, h, i, 0, full, shift, Sk, scale, False, CAUSAL, BLOCK_N, BLOCK_D,
        BLOCK_P, BLOCK_V
    )  # fmt: skip
    acc, m, l = _attend_tiles(
        acc, m, l, q, r, k_desc, t_desc, v_desc, b, h, i, full, last, shift, Sk, scale, True, CAUSAL, BLOCK_N, BLOCK_D,
        BLOCK_P, BLOCK_V
    )  # fmt: skip
    l = tl.where(l == 0, 1.0, l)  # a row that sees nothing: zeros and m = -inf
    o = (acc / l[:, None]).to(o_desc.dtype)
    o_desc.store([b, h, top, 0], o.reshape(1, 1, BLOCK_M, BLOCK_V))
    tl.store(lse_ptr + pair.to(tl.int64) * Sq + i, m * LN2 + tl.log(l), mask=i < Sq)


@variant(needs="sm_90")
def tma(
    q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_nope (B, H, Sq, Dn), q_rope (B, H, Sq, Dr), c (B, Sk, R), k_rope (B, Sk, Dr), w_uk (H, R, Dn), w_uv (H, R, Dv)
    -> o (B, H, Sq, Dv), lse (B, H, Sq) float32.

    Declines what a descriptor cannot describe: of q_nope, q_rope and k_rope a last stride other than 1, another stride
    that is 0 or no multiple of 16 bytes, a start off 16-byte alignment; Dn or Dv that is not whole 16 bytes. Source:
    [pearbiossom2026].
    """
    B, H, Sq, Dn, Dr, Sk, _, Dv = checked_sizes(q_nope, q_rope, c, k_rope, w_uk, w_uv)
    o, lse = empty_outputs(q_nope, Dv)
    if o.numel() == 0:
        return o, lse
    if Sk == 0:  # no descriptor of an empty tensor
        return o.zero_(), lse.fill_(float("-inf"))
    tiles = _tiles(q_nope.dtype, max(Dn, Dv))
    M, N = tiles["BLOCK_M"], tiles["BLOCK_N"]
    q, r, shared = (head_descriptor(q_nope, "q_nope", M), head_descriptor(q_rope, "q_rope", M), k_rope.unsqueeze(1))
    t, out = head_descriptor(shared, "k_rope", N), head_descriptor(o, "o", M)
    latents = c.unsqueeze(1).expand(-1, H, -1, -1)
    keys, values = (_product(latents, w.unsqueeze(0).expand(B, -1, -1, -1)) for w in (w_uk, w_uv))
    k, v = head_descriptor(keys, "keys", N), head_descriptor(values, "values", N)
    scale = scale_or_default(scale, Dn, Dr)
    sizes = dict(BLOCK_D=block_d(Dn), BLOCK_P=block_d(Dr), BLOCK_V=block_d(Dv))
    operands = (q, r, k, t, v, out, lse, H, Sq, Sk, abs(scale) * LOG2E.value)
    _tma_kernel[(B * H * ceil_div(Sq, M),)](*operands, NEGATIVE=scale < 0, CAUSAL=causal, **sizes, **tiles)
    return o, lse


def _tiles(dtype: torch.dtype, D: int) -> dict[str, int]:
    """Rows and keys of a tile; one of more rows would not leave its output in registers."""
    if dtype is torch.float32:
        return dict(BLOCK_M=16, BLOCK_N=16, num_warps=8, num_stages=2)
    if D <= 128:
        return dict(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3)
    return dict(BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=2)
