"""Mutants and known-good kernels of masked_attention_backward(q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, *,
causal, window, softcap, scale, p, seed, offset) -> dq, dk, dv."""

import math

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults import _dots as dots
from touchstone.conformance.faults.masked_attention import group_of, in_place, in_segment, kept, own_key, scored

INF = math.inf
EQUIVALENT = {
    "swallows_nan": "a NaN in do reaches hidden keys or not, as the mask is applied; the contract leaves it open"
}


def bend(raw, softcap):
    """The slope of the soft-cap."""
    return 1.0 if softcap is None else 1 - torch.tanh(raw / softcap).square()


def of_o(do, o, z, dp):
    return (do * o.float()).sum(-1, keepdim=True)


def of_p(do, o, z, dp):
    return (z * dp).sum(-1, keepdim=True)


@known_good
def from_lse(
    q,
    k,
    v,
    o,
    lse,
    do,
    bias,
    slopes,
    seg_q,
    seg_k,
    *,
    causal=False,
    window=None,
    softcap=None,
    scale=None,
    p=0.0,
    seed=0,
    offset=0,
    dot=dots.plain,
    own=own_key,
    seen=in_place,
    same=in_segment,
    scored=scored,
    bend=bend,
    weights=kept,
    weights_of_dp=None,
    delta=of_o,
    head_read=group_of,
    p_dtype=torch.float32,
    head_dtype=torch.float32,
    factor=lambda scale: scale,
):
    "whole rows of probabilities from lse, all in float32"
    if 0 in (*q.shape, *k.shape):
        return torch.zeros(q.shape).to(q.dtype), torch.zeros(k.shape).to(q.dtype), torch.zeros(v.shape).to(q.dtype)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group, (seq_q, seq_k) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    read = [head_read(head, group, k.shape[1]) for head in range(q.shape[1])]
    rows, drows, keys, values = q.float(), do.float(), k.float()[:, read], v.float()[:, read]
    apart = own(seq_q, seq_k)[:, None] - torch.arange(seq_k)
    raw = dot(rows, keys.mT) * scale
    s = scored(raw, softcap, bias, slopes, apart)
    visible = seen(apart, causal=causal, window=window)
    if seg_q is not None:
        visible = visible & same(seg_q, seg_k)
    share = torch.exp(s.masked_fill(~visible, -INF) - lse.masked_fill(lse == -INF, INF)[..., None])
    weight = weights(s.shape, p, seed, offset)
    dp, z = dot(drows, values.mT), share * weight
    weight = weight if weights_of_dp is None else weights_of_dp(s.shape, p, seed, offset)
    ds = (share * (weight * dp - delta(drows, o, z, dp)) * bend(raw, softcap)).to(p_dtype)
    dq = dot(ds, keys) * factor(scale)
    dk = (dot(ds.mT, rows) * factor(scale)).to(head_dtype).float()
    dv = dot(z.to(p_dtype).mT, drows).to(head_dtype).float()
    return dq.to(q.dtype), over_group(dk, k, read), over_group(dv, v, read)


def over_group(gradients, like, read):
    """The sum of the query heads' gradients for each key head."""
    total = torch.zeros(like.shape)
    for head, reader in enumerate(read):
        total[:, reader] += gradients[:, head]
    return total.to(like.dtype)


@known_good
def in_the_dtype(q, *operands, **params):
    "p, ds and the gradients of each query head are rounded to the dtype; delta is of the probabilities; sums backwards"
    return from_lse(q, *operands, **params, dot=dots.backwards, delta=of_p, p_dtype=q.dtype, head_dtype=q.dtype)


@known_good
def autograd(q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, *, causal=False, window=None, softcap=None, scale=None,
             p=0.0, seed=0, offset=0):  # fmt: skip
    "torch's autograd in float32 through a softmax of its own; o and lse are not used"
    if 0 in (*q.shape, *k.shape):
        return torch.zeros(q.shape).to(q.dtype), torch.zeros(k.shape).to(q.dtype), torch.zeros(v.shape).to(q.dtype)
    scale, group = 1 / math.sqrt(q.shape[-1]) if scale is None else scale, q.shape[1] // k.shape[1]
    apart = own_key(q.shape[2], k.shape[2])[:, None] - torch.arange(k.shape[2])
    hidden = ~in_place(apart, causal=causal, window=window)
    if seg_q is not None:
        hidden = hidden | ~in_segment(seg_q, seg_k)
    with torch.enable_grad():
        leaves = [t.detach().float().requires_grad_() for t in (q, k, v)]
        wide_k, wide_v = (t.repeat_interleave(group, 1) for t in leaves[1:])
        s = scored(leaves[0] @ wide_k.mT * scale, softcap, bias, slopes, apart).masked_fill(hidden, -INF)
        blind = (s == -INF).all(-1, keepdim=True)
        share = torch.softmax(s.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
        found = torch.autograd.grad(share * kept(s.shape, p, seed, offset) @ wide_v, leaves, do.float())
    return tuple(gradient.to(q.dtype).contiguous() for gradient in found)


@known_good
def key_tiles(q, k, v, o, lse, do, bias, *mods, **params):
    "a tile of 24 keys at a time, in four sums, tanh's slope from an exponential"

    def by_exp(raw, softcap):
        if softcap is None:
            return 1.0
        t = 1 - 2 / (torch.exp(2 * raw / softcap) + 1)
        return (1 - t) * (1 + t)

    return from_lse(q, k, v, o, lse, do, bias, *mods, **params, dot=dots.in_tiles, bend=by_exp)


dots.plant_lower(globals(), from_lse)


@mutant("parameter")
def window_ignored(*operands, window=None, **params):
    "the forward has a window, the backward none"
    return from_lse(*operands, **params)


@mutant("mask")
def window_as_flash_attn_has_it(*operands, window=None, **params):
    "a window has one key more: the own one is not counted"
    return from_lse(*operands, **params, window=None if window is None else window + 1)


@mutant("mask")
def window_one_short(*operands, **params):
    "a window has one key less"

    def short(apart, causal, window):
        return in_place(apart, causal=causal, window=None if window is None else window - 1)

    return from_lse(*operands, **params, seen=short)


@mutant("mask")
def window_before_only(*operands, **params):
    "a window without causality does not bound the keys after"

    def before(apart, causal, window):
        seen = in_place(apart, causal=causal, window=None)
        return seen if window is None else seen & (apart < window)

    return from_lse(*operands, **params, seen=before)


@mutant("mask")
def window_top_left(*operands, **params):
    "a window is aligned top-left: without Sk - Sq"

    def seen(apart, causal, window):
        whole, begin = in_place(apart, causal=causal, window=None), apart - (apart.shape[1] - apart.shape[0])
        return whole if window is None else whole & in_place(begin, causal=False, window=window)

    return from_lse(*operands, **params, seen=seen)


@mutant("parameter")
def causal_ignored(*operands, causal=False, **params):
    "there is no causal mask"
    return from_lse(*operands, **params)


@mutant("causal")
def top_left(*operands, **params):
    "causality, window and slopes are aligned top-left: without Sk - Sq"
    return from_lse(*operands, **params, own=lambda seq_q, seq_k: torch.arange(seq_q))


@mutant("formula")
def softcap_without_slope(*operands, **params):
    "the slope of the soft-cap, 1 - tanh², is left out"
    return from_lse(*operands, **params, bend=lambda raw, softcap: 1.0)


@mutant("formula")
def softcap_slope_not_squared(*operands, **params):
    "the slope of the soft-cap is 1 - |tanh|"

    def straight(raw, softcap):
        return 1.0 if softcap is None else 1 - torch.tanh(raw / softcap).abs()

    return from_lse(*operands, **params, bend=straight)


@mutant("formula")
def softcap_slope_of_the_capped(*operands, **params):
    "the slope of the soft-cap is taken at the capped score: tanh of tanh"

    def capped(raw, softcap):
        return 1.0 if softcap is None else 1 - torch.tanh(torch.tanh(raw / softcap)).square()

    return from_lse(*operands, **params, bend=capped)


@mutant("parameter")
def softcap_ignored(*operands, softcap=None, **params):
    "there is no soft-cap"
    return from_lse(*operands, **params)


@mutant("weights")
def bias_ignored(q, k, v, o, lse, do, bias, *mods, **params):
    "the forward has a bias, the backward none"
    return from_lse(q, k, v, o, lse, do, None, *mods, **params)


@mutant("weights")
def bias_of_the_first_head(q, k, v, o, lse, do, bias, *mods, **params):
    "every head has the bias of the first"
    bias = None if bias is None else bias[:, :1].expand(bias.shape)
    return from_lse(q, k, v, o, lse, do, bias, *mods, **params)


@mutant("formula")
def slope_of_the_first_head(q, k, v, o, lse, do, bias, slopes, *segments, **params):
    "every head has the slope of the first"
    slopes = None if slopes is None else slopes[:1].expand(slopes.shape)
    return from_lse(q, k, v, o, lse, do, bias, slopes, *segments, **params)


@mutant("formula")
def slopes_ignored(q, k, v, o, lse, do, bias, slopes, *segments, **params):
    "the forward has slopes, the backward none"
    return from_lse(q, k, v, o, lse, do, bias, None, *segments, **params)


@mutant("parameter")
def segments_ignored(q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, **params):
    "every query sees all segments"
    return from_lse(q, k, v, o, lse, do, bias, slopes, None, None, **params)


@mutant("formula")
def segments_by_index(*operands, **params):
    "segments of queries are read at the index of the query among the keys, without Sk - Sq"

    def by_index(seg_q, seg_k):
        index = torch.arange(seg_q.shape[1]).clamp(max=seg_k.shape[1] - 1)
        return in_segment(seg_k[:, index], seg_k)

    return from_lse(*operands, **params, same=by_index)


@mutant("parameter")
def dropout_ignored(*operands, p=0.0, seed=0, offset=0, **params):
    "the forward drops, the backward does not"
    return from_lse(*operands, **params)


@mutant("formula")
def dropout_of_p_alone(*operands, **params):
    "dv has the dropout of the forward, dp has none"
    return from_lse(*operands, **params, weights_of_dp=lambda shape, *rule: torch.ones(shape))


@mutant("formula")
def dropout_of_dp_alone(*operands, **params):
    "dp has the dropout of the forward, dv has none"
    return from_lse(*operands, **params, weights=lambda shape, *rule: torch.ones(shape), weights_of_dp=kept)


@mutant("scale")
def dropout_unscaled(*operands, **params):
    "what dropout keeps is not multiplied by 1/(1 - p)"
    return from_lse(*operands, **params, weights=lambda *about: (kept(*about) > 0).float())


@mutant("formula")
def dropout_transposed(*operands, **params):
    "dropout's index runs over keys and then queries"

    def transposed(shape, *rule):
        return kept((*shape[:2], shape[3], shape[2]), *rule).mT

    return from_lse(*operands, **params, weights=transposed)


@mutant("offset")
def seed_of_32_bits(*operands, seed=0, **params):
    "the high half of the seed is lost"
    return from_lse(*operands, **params, seed=seed % 2**32)


@mutant("formula")
def delta_missing(*operands, **params):
    "delta is not subtracted"
    return from_lse(*operands, **params, delta=lambda do, o, z, dp: 0.0)


@mutant("formula")
def delta_of_the_first_query(*operands, **params):
    "every query subtracts the delta of the first"
    return from_lse(*operands, **params, delta=lambda do, o, z, dp: of_o(do, o, z, dp)[..., :1, :])


@mutant("scale")
def unscaled(*operands, **params):
    "dq and dk lack the scale"
    return from_lse(*operands, **params, factor=lambda scale: 1)


@mutant("heads")
def heads_modulo(*operands, **params):
    "query head h reads key head h modulo their number"
    return from_lse(*operands, **params, head_read=lambda head, group, kv_heads: head % kv_heads)


@mutant("special")
def blind_rows_are_nan(q, k, v, o, lse, *operands, **params):
    "a query that sees nothing has a NaN for its dq"
    dq, dk, dv = from_lse(q, k, v, o, lse, *operands, **params)
    return torch.where(lse.isneginf()[..., None], math.nan, dq), dk, dv


@mutant("precision", dtypes=("float32", "float16"))
def p_in_bfloat16(*operands, **params):
    "p and ds are rounded to bfloat16"
    return from_lse(*operands, **params, p_dtype=torch.bfloat16)


@mutant("precision")
def lse_in_bfloat16(q, k, v, o, lse, *operands, **params):
    "lse is rounded to bfloat16 when it is loaded"
    return from_lse(q, k, v, o, lse.bfloat16().float(), *operands, **params)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "rows": Kernel("known-good", "a query or a key at a time, which walks over the other sequence"),
    "window_ignored": Kernel("parameter", "the forward has a window, the backward none"),
    "window_one_more": Kernel("mask", "a window has one key more: the own one is not counted"),
    "softcap_without_slope": Kernel(
        "formula", "the slope of the soft-cap, 1 - tanh², is left out", "(values|property): "
    ),
    "slope_of_head_0": Kernel("formula", "every head has the slope of the first", "(values|property): "),
    "segments_by_query": Kernel("formula", "the segment of a query is looked up among those of the keys"),
    "dropout_of_p_alone": Kernel("formula", "dv has the dropout of the forward, dp has none"),
    "delta_missing": Kernel("formula", "delta is not subtracted"),
}
