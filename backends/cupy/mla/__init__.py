"""Multi-head latent attention: keys and values that are projections of a latent row a token, and a rotary part of the
keys that all heads share.

materialised: keys and values of all heads are made and stored, and attention over them follows, which takes few
  operations where there are as many queries as keys [deepseek2024]
absorbed: the projections go to the queries and to the output instead, and all heads attend to the latents, which takes
  few bytes where there are few queries [deepseek2024]
tensorcore: materialised, all products on mma.m16n8k16; attention as its `tensorcore`, whose scores have two parts
  [dao2023flash2]
"""

import math

import torch

from touchstone.backends.cupy.lib.attention import sweep_of
from touchstone.backends.cupy.lib.gemm import by_warps, sixteen_bits
from touchstone.backends.cupy.lib.latent import row_grid
from touchstone.backends.cupy.lib.rows import blocks
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.mla import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import HALF, variant

_module = Module(__file__, "mla.cu")
_tile_product = Module(__file__, "product.cu")
_tensorcore = Module(__file__, "tensorcore.cu")


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(B, H, M, K), (B, H, K, N) -> (B, H, M, N), in the dtype; what heads or batches share is expanded."""
    B, H, M, K = a.shape
    out = torch.empty((B, H, M, b.shape[-1]), dtype=a.dtype, device=a.device)
    if count := out.numel():
        operands = (a, b, out, *a.stride(), *b.stride(), H, M, K, out.shape[-1], count)
        _module.launch("mla_product", blocks(-(-count // 128)), 128, *operands, dtype=a.dtype)
    return out


def _attention(q, r, k, t, v, o, lse, causal: bool, scale: float, shared: bool) -> None:
    """q (B, H, Sq, D) over k (B, heads, Sk, D) and v (B, heads, Sk, DV), which is k where it is `shared`; r
    (B, H, Sq, P) over t (B, Sk, P)."""
    (B, H, Sq, D), (heads, Sk) = q.shape, k.shape[1:3]
    strides = (*q.stride(), *r.stride(), *k.stride(), *t.stride(), *v.stride())
    options = (scale, heads, H // heads, Sq, Sk, D, r.shape[-1], v.shape[-1], causal, shared)
    grid = row_grid(H // heads * Sq, B * heads)
    _module.launch("mla_attention", grid, 128, q, r, k, t, v, o, lse, *strides, *options, dtype=q.dtype)


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


def _tiled_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(B, H, M, K), (B, H, K, N) -> (B, H, M, N), in the dtype, 16 bits; what heads or batches share is expanded."""
    B, H, M, K = a.shape
    out = torch.empty((B, H, M, b.shape[-1]), dtype=a.dtype, device=a.device)
    if out.numel():
        tiles = by_warps(M, out.shape[-1])
        operands = (a, b, out, *a.stride(), *b.stride(), H, M, K, out.shape[-1], tiles.blocks)
        about = {"dtype": a.dtype, "shared": tiles.shared, **tiles.definitions}
        _tile_product.launch("mla_tile_product", blocks(B * H * tiles.blocks), tiles.threads, *operands, **about)
    return out


@variant(needs="sm_80", dtypes=HALF)
def tensorcore(
    q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q_nope (B, H, Sq, Dn), q_rope (B, H, Sq, Dr), c (B, Sk, R), k_rope (B, Sk, Dr), w_uk (H, R, Dn), w_uv (H, R, Dv)
    -> o (B, H, Sq, Dv), lse (B, H, Sq) float32.

    Declines float32. Source: [dao2023flash2].
    """
    B, H, Sq, Dn, Dr, Sk, _, Dv = checked_sizes(q_nope, q_rope, c, k_rope, w_uk, w_uv)
    sixteen_bits(q_nope.dtype)
    o, lse = empty_outputs(q_nope, Dv)
    if o.numel():
        latents = c.unsqueeze(1).expand(-1, H, -1, -1)
        k, v = (_tiled_product(latents, w.unsqueeze(0).expand(B, -1, -1, -1)) for w in (w_uk, w_uv))
        tiles, operands = sweep_of(q_nope, k, v, q_rope, k_rope), (q_nope, q_rope, k, k_rope, v)
        factor = scale_or_default(scale, Dn, Dr) * math.log2(math.e)
        numbers = (*(step for x in operands for step in x.stride()), factor, H, Sq, Sk, Dn, Dr, Dv, causal)
        about = {"dtype": q_nope.dtype, "shared": tiles.shared, **tiles.definitions}
        grid = blocks(B * H * ceil_div(Sq, tiles.queries))
        _tensorcore.launch("mla_tensorcore", grid, tiles.threads, *operands, o, lse, *numbers, **about)
    return o, lse
