"""Multi-head latent attention: keys and values that are projections of a latent row a token, and a rotary part of the
keys that all heads share.

materialised: keys and values of all heads are made and stored, and attention over them follows, which takes few
  operations where there are as many queries as keys [deepseek2024]
absorbed: the projections go to the queries and to the output instead, and all heads attend to the latents, which takes
  few bytes where there are few queries [deepseek2024]
"""

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends.numba.lib.latent import WARPS, attend, row_grid
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.splits import HELD, write
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.mla import checked_sizes, empty_outputs, scale_or_default
from touchstone.backends.variants import variant


@cuda.jit
def _multiply(a, b, out, elements):
    # (B, heads, M, K) · (B, heads, K, N), a thread for each element.
    index = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    heads, rows, columns = uint64(out.shape[1]), uint64(out.shape[2]), uint64(out.shape[3])
    if index < uint64(elements):
        n, m, pair = index % columns, index // columns % rows, index // columns // rows
        batch, head = pair // heads, pair % heads
        sum = float32(0)
        for k in range(uint64(a.shape[3])):
            sum += float32(a[batch, head, m, k]) * float32(b[batch, head, k, n])
        out[batch, head, m, n] = sum


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(B, H, M, K), (B, H, K, N) -> (B, H, M, N), in the dtype; what heads or batches share is expanded."""
    out = torch.empty((*a.shape[:3], b.shape[-1]), dtype=a.dtype, device=a.device)
    if count := out.numel():
        launch(_multiply, checked_grid(-(-count // 128)), 128, a, b, out, count)
    return out


@cuda.jit
def _attend(q, r, k, t, v, target, lse, causal, shared, scale):
    o = cuda.local.array(HELD, float32)
    readers, keys, dim_v, rotary = int64(k.shape[1]), int64(k.shape[2]), v.shape[3], r.shape[3]
    group = int64(q.shape[1]) // readers
    b, reader = uint64(cuda.blockIdx.y // readers), uint64(cuda.blockIdx.y % readers)
    m, l = attend(o, q, r, k, t, v, dim_v, rotary, shared, causal, b, reader, group, int64(0), keys, keys, scale)
    rows, row = group * q.shape[2], int64(cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32)
    if row < rows:
        write(o, m, l, target, lse, uint64(cuda.blockIdx.y * rows + row))


def _attention(q, r, k, t, v, o, lse, causal: bool, scale: float, shared: bool) -> None:
    """q (B, H, Sq, D) over k (B, heads, Sk, D) and v (B, heads, Sk, DV), which is k where it is `shared`; r
    (B, H, Sq, P) over t (B, Sk, P)."""
    (B, H, Sq, _), heads = q.shape, k.shape[1]
    grid = row_grid(H // heads * Sq, B * heads)
    outputs = (o.view(-1, v.shape[-1]), lse.view(-1))
    launch(_attend, grid, 32 * WARPS, q, r, k, t, v, *outputs, causal, shared, np.float32(scale))


@variant(needs="shuffles")
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


@variant(needs="shuffles")
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
