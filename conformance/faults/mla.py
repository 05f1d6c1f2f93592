"""Mutants and known-good kernels of mla(q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal, scale): o (B, H, Sq, Dv), lse
(B, H, Sq) in float32."""

import math
from functools import partial

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._rows import LOADS, STORES, through

EQUIVALENT = {"truncated": "a right kernel rounds twice, which is as much as one result cut"}


def softmax(s):
    """(..., n) -> probabilities and lse, 0 and -inf where nothing is seen."""
    m = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -math.inf)
    p = torch.exp(s - torch.where(m.isneginf(), 0.0, m))
    l = p.sum(-1, keepdim=True)
    return p / torch.where(l == 0, 1.0, l), (m + torch.log(l))[..., 0]


def materialised(q, c, w_uk, w_uv, kept):
    """The scores of the latents, and p -> o: keys and values are made and kept."""
    k, v = kept(c @ w_uk), kept(c @ w_uv)
    return q @ k.mT, lambda p: p @ v


def absorbed(q, c, w_uk, w_uv, kept):
    """The scores of the latents, and p -> o: queries and outputs of the latents are kept."""
    return kept(q @ w_uk.mT) @ c.mT, lambda p: kept(p @ c) @ w_uv


def mla(
    q_nope,
    q_rope,
    c,
    k_rope,
    w_uk,
    w_uv,
    *,
    causal=False,
    scale=None,
    load=torch.Tensor.float,
    store=torch.Tensor.to,
    form=materialised,
    kept=lambda t: t,
    rotary=lambda q, k: q @ k.mT,
    factor=lambda dim, rotary, latent: 1 / math.sqrt(dim + rotary),
    offset=lambda queries, keys: keys - queries,
    softmax=softmax,
    latents=lambda c: c,
    heads=lambda w: w,
    probabilities=lambda p: p,
):
    """The op in float32; the last keywords are what mutants change."""
    dtype = q_nope.dtype
    q_nope, q_rope, c, k_rope, w_uk, w_uv = (load(t) for t in (q_nope, q_rope, c, k_rope, w_uk, w_uv))
    c, k_rope = latents(c)[:, None], k_rope[:, None]
    scale = factor(q_nope.shape[-1], q_rope.shape[-1], c.shape[-1]) if scale is None else scale
    scores, output = form(q_nope, c, heads(w_uk), heads(w_uv), kept)
    s = (scores + rotary(q_rope, k_rope)) * scale
    if causal:
        seen = torch.ones(s.shape[2:], dtype=torch.bool, device=s.device).tril(offset(*s.shape[2:]))
        s = s.masked_fill(~seen, -math.inf)
    p, lse = softmax(s)
    return store(output(probabilities(p)), dtype).contiguous(), lse


def _plant():
    for name, flaw in LOADS.items():
        plant(globals(), name, partial(mla, load=flaw.part), flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name in ("result_through_fp16", "result_through_bf16"):
        flaw = STORES[name]
        plant(globals(), name, partial(mla, store=flaw.part), flaw.about, flaw.kind, dtypes=flaw.dtypes)


_plant()


@mutant("formula")
def rotary_part_left_out(*operands, **params):
    """the scores are those of the latents alone"""
    return mla(*operands, **params, rotary=lambda q, k: 0.0)


@mutant("formula")
def rotary_part_of_the_next_key(*operands, **params):
    """the rotary part of a key is that of the next"""
    return mla(*operands, **params, rotary=lambda q, k: q @ k.roll(-1, 2).mT)


@mutant("formula")
def rotary_part_of_the_first_head(*operands, **params):
    """every head has the rotary part of the first head's query"""
    return mla(*operands, **params, rotary=lambda q, k: q[:, :1] @ k.mT)


@mutant("heads")
def rotary_part_turned_by_head(*operands, **params):
    """head h has the rotary part of the key turned by h columns, as if each had its own"""

    def own(q, k):
        return torch.stack([q[:, h] @ k[:, 0].roll(h, -1).mT for h in range(q.shape[1])], 1)

    return mla(*operands, **params, rotary=own)


@mutant("scale")
def scale_without_the_rotary_part(*operands, **params):
    """scale=None is 1/sqrt(Dn)"""
    return mla(*operands, **params, factor=lambda dim, rotary, latent: 1 / math.sqrt(dim))


@mutant("scale")
def scale_of_the_latent(*operands, **params):
    """scale=None is 1/sqrt(R + Dr), the width of an absorbed query"""
    return mla(*operands, **params, factor=lambda dim, rotary, latent: 1 / math.sqrt(latent + rotary))


@mutant("heads")
def projections_of_the_first_head(*operands, **params):
    """every head has the projections of the first"""
    return mla(*operands, **params, heads=lambda w: w[:1].expand(w.shape))


@mutant("heads")
def projections_of_the_next_head(*operands, **params):
    """every head has the projections of the next"""
    return mla(*operands, **params, heads=lambda w: w.roll(-1, 0))


@mutant("formula")
def not_projected_back(*operands, **params):
    """o is of the first latents, and not their projection"""

    def latent(q, c, w_uk, w_uv, kept):
        width = w_uv.shape[-1]
        identity = torch.eye(w_uv.shape[1], width, device=q.device)
        return (q @ w_uk.mT) @ c.mT, lambda p: p @ c @ identity

    return mla(*operands, **params, form=latent)


@mutant("tail")
def whole_pieces_of_latents(*operands, **params):
    """latents past a multiple of 16 are lost"""

    def whole(c):
        return torch.cat([c[..., : c.shape[-1] // 16 * 16], torch.zeros_like(c[..., c.shape[-1] // 16 * 16 :])], -1)

    return mla(*operands, **params, latents=whole)


@mutant("tail")
def latents_of_256(*operands, **params):
    """latents from 256 on are lost"""
    return mla(*operands, **params, latents=lambda c: torch.cat([c[..., :256], torch.zeros_like(c[..., 256:])], -1))


@mutant("causal")
def top_left(*operands, **params):
    """query i sees the first keys up to i, as where queries and keys begin together"""
    return mla(*operands, **params, offset=lambda queries, keys: 0)


@mutant("causal")
def own_key_hidden(*operands, **params):
    """under the mask a query does not see its own key"""
    return mla(*operands, **params, offset=lambda queries, keys: keys - queries - 1)


@mutant("causal")
def never_causal(*operands, causal=False, **params):
    """causal is ignored"""
    return mla(*operands, **params)


@mutant("overflow")
def no_maximum(*operands, **params):
    """the maximum is not subtracted before exp"""

    def plain(s):
        p = torch.exp(s)
        l = p.sum(-1, keepdim=True)
        return p / torch.where(l == 0, 1.0, l), torch.log(l)[..., 0]

    return mla(*operands, **params, softmax=plain)


@mutant("special")
def nothing_seen_gives_nan(*operands, **params):
    """a query that sees nothing gives NaN: 0 / 0, or -inf - -inf"""
    o, lse = mla(*operands, **params)
    return torch.where(lse.isneginf()[..., None], math.nan, o), lse


@mutant("special")
def nothing_seen_averages_all(*operands, **params):
    """a query that sees nothing gives the average of all values, as a softmax of a finite sentinel does"""

    def finite(s):
        return torch.softmax(s.clamp_min(-1e30), -1), softmax(s)[1]

    return mla(*operands, **params, softmax=finite)


@mutant("scale")
def lse_to_base_2(*operands, **params):
    """lse is the logarithm to base 2"""
    o, lse = mla(*operands, **params)
    return o, lse / math.log(2)


@mutant("precision", dtypes=("float32", "float16"))
def keys_and_values_in_bf16(*operands, **params):
    """keys and values are kept in bfloat16"""
    return mla(*operands, **params, kept=through(torch.bfloat16))


@mutant("precision", dtypes=("float32", "float16"))
def latents_in_bf16(*operands, **params):
    """queries and outputs of the latents are kept in bfloat16"""
    return mla(*operands, **params, form=absorbed, kept=through(torch.bfloat16))


@mutant("precision", dtypes=("float32",))
def latents_in_fp16(*operands, **params):
    """queries and outputs of the latents are kept in float16"""
    return mla(*operands, **params, form=absorbed, kept=through(torch.float16))


@mutant("accumulator")
def last_tile_of_latents(*operands, **params):
    """the scores are those of the last 8 latents: `acc =` for `acc +=`"""
    return mla(*operands, **params, form=_last_tile)


def _last_tile(q, c, w_uk, w_uv, kept):
    first = max(0, (c.shape[-1] - 1) // 8 * 8)
    return (q @ w_uk.mT)[..., first:] @ c[..., first:].mT, lambda p: (p @ c) @ w_uv


def _in_the_dtype(form, probabilities=False):
    def fn(q_nope, *operands, **params):
        kept = through(q_nope.dtype)
        return mla(
            q_nope, *operands, **params, form=form, kept=kept, probabilities=kept if probabilities else lambda p: p
        )

    return fn


for _form in (materialised, absorbed):
    _about = f"{_form.__name__}, in float32"
    plant(globals(), f"{_form.__name__}_in_float32", partial(mla, form=_form), _about, "known-good")
    _about = f"{_form.__name__}, what is between kernels in the dtype"
    plant(globals(), f"{_form.__name__}_in_the_dtype", _in_the_dtype(_form), _about, "known-good")
    _about = f"{_form.__name__}, and probabilities in the dtype too, as tensor cores need them"
    plant(globals(), f"{_form.__name__}_with_probabilities", _in_the_dtype(_form, True), _about, "known-good")


@known_good
def one_term_after_another(*operands, **params):
    """absorbed, each product summed one term after another"""

    def product(a, b):
        return sum((a[..., n, None] * b[..., n, None, :] for n in range(a.shape[-1])), a.new_zeros(()))

    def slowly(q, c, w_uk, w_uv, kept):
        def output(p):
            return product(product(p, c), w_uv) if p.shape[-1] else p @ c @ w_uv

        return product(product(q, w_uk.mT), c.mT), output

    return mla(*operands, **params, form=slowly, rotary=lambda q, k: product(q, k.mT))


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "online": Kernel(
        "known-good", "a program for each query, which folds both projections in and stores nothing between"
    ),
    "no_rotary_part": Kernel("formula", "the scores are those of the latents alone"),
    "first_projection": Kernel("heads", "every head has the projections of the first"),
    "scale_without_rotary": Kernel("scale", "scale=None is 1/sqrt(Dn)"),
    "top_left": Kernel("causal", "query i sees the first keys up to i, as where both begin together"),
    "not_rescaled": Kernel("rescale", "o is not rescaled where the maximum moves"),
    "last_key_lost": Kernel("tail", "the last key is left out"),
}
