"""Mutants and known-good kernels of attention_backward(q, k, v, o, lse, do, *, causal, scale) -> dq, dk, dv."""

import math

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults import _dots as dots

EQUIVALENT = {
    "swallows_nan": "a NaN in do reaches hidden keys or not, as the mask is applied; the contract leaves it open"
}

INF = math.inf


def _future(i, j, shift):
    """Whether key j is hidden from query i; `shift` is Sk - Sq."""
    return j > i + shift


def _group(head, group, kv_heads):
    return head // group


def _delta_of_o(do, o, p, dp):
    return (do * o.float()).sum(-1)


def _delta_of_p(do, o, p, dp):
    return (p * dp).sum(-1)


def _ds(p, dp, delta):
    return p * (dp - delta)


def default_scale(q, scale):
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


@known_good
def from_lse(
    q,
    k,
    v,
    o,
    lse,
    do,
    *,
    causal=False,
    scale=None,
    dot=dots.plain,
    over_dim=None,
    over_keys=None,
    over_queries=None,
    exp=torch.exp,
    hides=_future,
    head_read=_group,
    guarded=True,
    delta=_delta_of_o,
    gradient=_ds,
    dq_scale=None,
    dk_scale=None,
    p_dtype=torch.float32,
    head_dtype=torch.float32,
    summed=True,
):
    "whole rows of probabilities from lse, all in float32"
    group, (seq_q, seq_k) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    read = [head_read(head, group, k.shape[1]) for head in range(q.shape[1])]
    over_dim, over_keys, over_queries = over_dim or dot, over_keys or dot, over_queries or dot
    scale = default_scale(q, scale)
    rows, drows, keys, values = q.float(), do.float(), k.float()[:, read], v.float()[:, read]
    s = over_dim(rows, keys.mT) * scale
    if causal:
        s = s.masked_fill(hides(torch.arange(seq_q)[:, None], torch.arange(seq_k), seq_k - seq_q), -INF)
    p = exp(s - (lse.masked_fill(lse == -INF, INF) if guarded else lse)[..., None])
    dp = over_dim(drows, values.mT)
    ds = gradient(p, dp, delta(drows, o, p, dp)[..., None]).to(p_dtype)
    dq = over_keys(ds, keys) * (scale if dq_scale is None else dq_scale)
    dk = (over_queries(ds.mT, rows) * (scale if dk_scale is None else dk_scale)).to(head_dtype)
    dv = over_queries(p.to(p_dtype).mT, drows).to(head_dtype)
    return dq.to(q.dtype), _over_group(dk, k, read, summed), _over_group(dv, v, read, summed)


def _over_group(gradients, like, read, summed):
    """The sum of the query heads' gradients for each key head; the last one's where not `summed`."""
    total = torch.zeros(like.shape)
    for head, reader in enumerate(read):
        total[:, reader] = gradients[:, head].float() + (total[:, reader] if summed else 0)
    return total.to(like.dtype)


@known_good
def delta_from_probabilities(q, k, v, o, lse, do, *, causal=False, scale=None):
    "delta is the sum of p·dp over the keys, sums go backwards"
    kernel = dict(causal=causal, scale=scale, dot=dots.backwards, delta=_delta_of_p)
    return from_lse(q, k, v, o, lse, do, **kernel)


@known_good
def stored_in_input_dtype(q, k, v, o, lse, do, *, causal=False, scale=None):
    "p, ds and the gradients of each query head are rounded to the input dtype"
    kernel = dict(causal=causal, scale=scale, p_dtype=q.dtype, head_dtype=q.dtype)
    return from_lse(q, k, v, o, lse, do, **kernel)


@known_good
def scaled_before_storing(q, k, v, o, lse, do, *, causal=False, scale=None):
    "ds is scaled, then rounded to the input dtype, and summed in four parts"
    factor = default_scale(q, scale)

    def gradient(p, dp, delta):
        return factor * p * (dp - delta)

    kernel = dict(causal=causal, scale=scale, gradient=gradient, dq_scale=1, dk_scale=1, p_dtype=q.dtype)
    return from_lse(q, k, v, o, lse, do, dot=dots.split, **kernel)


@known_good
def key_tiles(q, k, v, o, lse, do, *, causal=False, scale=None, tile=48):
    "keys outside, queries inside: dk and dv complete with their tile, dq grows"
    scale, shift = default_scale(q, scale), k.shape[2] - q.shape[2]
    dq, dk, dv = (torch.zeros(t.shape) for t in (q, k, v))
    delta = (do.float() * o.float()).sum(-1, keepdim=True)
    at = lse.masked_fill(lse == -INF, INF)[..., None]
    groups = k.shape[1], q.shape[1] // k.shape[1]
    of_q, of_do, of_delta, of_at, of_dq = (x.unflatten(1, groups) for x in (q, do, delta, at, dq))
    for keys in dots.tiles(k.shape[2], tile):
        for rows in dots.tiles(q.shape[2], 24):
            some_k, some_v, own_q, own_do = (
                k[:, :, None, keys],
                v[:, :, None, keys],
                of_q[..., rows, :],
                of_do[..., rows, :],
            )
            s = dots.plain(own_q, some_k.mT) * scale
            if causal:
                i, j = torch.arange(q.shape[2])[rows, None], torch.arange(k.shape[2])[keys]
                s = s.masked_fill(j > i + shift, -INF)
            p = torch.exp(s - of_at[..., rows, :])
            ds = p * (dots.plain(own_do, some_v.mT) - of_delta[..., rows, :]) * scale
            of_dq[..., rows, :] += dots.plain(ds, some_k)
            dk[:, :, keys] += dots.plain(ds.mT, own_q).sum(2)
            dv[:, :, keys] += dots.plain(p.mT, own_do).sum(2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


@known_good
def autograd(q, k, v, o, lse, do, *, causal=False, scale=None):
    "torch's autograd in float32 through a softmax of its own; o and lse are not used"
    with torch.enable_grad():
        leaves = [t.detach().float().requires_grad_() for t in (q, k, v)]
        wide_k, wide_v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in leaves[1:])
        s = leaves[0] @ wide_k.mT * default_scale(q, scale)
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) == 0, -INF)
        blind = (s == -INF).all(-1, keepdim=True)
        p = torch.softmax(s.masked_fill(blind, 0), -1).masked_fill(blind, 0)
        gradients = torch.autograd.grad(p @ wide_v, leaves, do.float())
    return tuple(gradient.to(q.dtype).contiguous() for gradient in gradients)


dots.plant_lower(globals(), from_lse)


@mutant("precision", dtypes=("float32", "float16"))
def p_in_bfloat16(q, k, v, o, lse, do, *, causal=False, scale=None):
    "p and ds are rounded to bfloat16"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, p_dtype=torch.bfloat16)


@mutant("precision", dtypes=("float32",))
def heads_in_float16(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk and dv of each query head are rounded to float16 before they are added"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, head_dtype=torch.float16)


@mutant("precision", dtypes=("float16", "bfloat16"))
def dq_accumulated_in_memory(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dq is rounded to its dtype after every eight keys"

    def over_keys(ds, k):
        return dots.added(ds, k, dots.tiles(ds.shape[-1], 8), q.dtype)

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_keys=over_keys)


@mutant("precision", dtypes=("float16", "bfloat16"))
def dk_and_dv_accumulated_in_memory(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk and dv are rounded to their dtype after every eight queries"

    def over_queries(p, rows):
        return dots.added(p, rows, dots.tiles(p.shape[-1], 8), q.dtype)

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_queries=over_queries)


@mutant("precision", dtypes=("float16", "bfloat16"))
def dk_accumulated_in_memory(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk is rounded to its dtype after every 64 queries"

    def over_queries(p, rows):
        return dots.added(p, rows, dots.tiles(p.shape[-1], 64), q.dtype)

    dq, dk, _ = from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_queries=over_queries)
    return dq, dk, from_lse(q, k, v, o, lse, do, causal=causal, scale=scale)[2]


@mutant("precision")
def lse_in_bfloat16(q, k, v, o, lse, do, *, causal=False, scale=None):
    "lse is rounded to bfloat16 when it is loaded"
    return from_lse(q, k, v, o, lse.bfloat16().float(), do, causal=causal, scale=scale)


@mutant("special")
def queries_past_the_last_unmasked(q, k, v, o, lse, do, *, causal=False, scale=None, tile=16):
    "what of a tile lies past the last query is 0 with an lse of +inf, and no mask: times a key of -inf it is NaN"
    seq, pad = q.shape[2], -q.shape[2] % tile
    q, o, do = (F.pad(t, (0, 0, 0, pad)) for t in (q, o, do))
    kernel = dict(causal=causal, scale=scale, hides=lambda i, j, shift: j > i + shift + pad)
    dq, dk, dv = from_lse(q, k, v, o, F.pad(lse, (0, pad), value=INF), do, **kernel)
    return dq[:, :, :seq].contiguous(), dk, dv


@mutant("formula")
def delta_missing(q, k, v, o, lse, do, *, causal=False, scale=None):
    "delta is not subtracted: ds = p·dp"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, gradient=lambda p, dp, delta: p * dp)


@mutant("formula")
def delta_added(q, k, v, o, lse, do, *, causal=False, scale=None):
    "delta is added: ds = p·(dp + delta)"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, gradient=lambda p, dp, delta: p * (dp + delta))


@mutant("formula")
def delta_outside(q, k, v, o, lse, do, *, causal=False, scale=None):
    "delta is not weighted by p: ds = p·dp - delta"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, gradient=lambda p, dp, delta: p * dp - delta)


@mutant("formula")
def delta_averaged(q, k, v, o, lse, do, *, causal=False, scale=None):
    "delta is the mean over D of do·o, not the sum"

    def delta(do, o, p, dp):
        return (do * o.float()).mean(-1)

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, delta=delta)


@mutant("formula")
def delta_of_first_row(q, k, v, o, lse, do, *, causal=False, scale=None):
    "every row subtracts the delta of the first"

    def delta(do, o, p, dp):
        return _delta_of_o(do, o, p, dp)[..., :1].expand(do.shape[:3])

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, delta=delta)


@mutant("formula")
def sigmoid_like(q, k, v, o, lse, do, *, causal=False, scale=None):
    "softmax's derivative is taken elementwise: ds = p·(1 - p)·dp"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, gradient=lambda p, dp, delta: p * (1 - p) * dp)


@mutant("formula")
def base_2(q, k, v, o, lse, do, *, causal=False, scale=None):
    "the probabilities are 2^(s - lse)"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, exp=torch.exp2)


@mutant("formula")
def lse_taken_as_base_2(q, k, v, o, lse, do, *, causal=False, scale=None):
    "lse is taken to be in base 2, as some forwards store it"
    return from_lse(q, k, v, o, lse * math.log(2), do, causal=causal, scale=scale)


@mutant("scale")
def dq_unscaled(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dq lacks the scale"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, dq_scale=1)


@mutant("scale")
def dk_unscaled(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk lacks the scale"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, dk_scale=1)


@mutant("scale")
def dq_scaled_twice(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dq is scaled twice, with ds and with the result"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, dq_scale=default_scale(q, scale) ** 2)


@mutant("parameter")
def scale_ignored(q, k, v, o, lse, do, *, causal=False, scale=None):
    "scale is always 1/sqrt(D)"
    return from_lse(q, k, v, o, lse, do, causal=causal)


@mutant("parameter")
def scale_ignored_in_the_end(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dq and dk are multiplied by 1/sqrt(D), whatever the scale of the scores"
    factor = default_scale(q, None)
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, dq_scale=factor, dk_scale=factor)


@mutant("parameter")
def causal_ignored(q, k, v, o, lse, do, *, causal=False, scale=None):
    "there is no causal mask"
    return from_lse(q, k, v, o, lse, do, scale=scale)


@mutant("causal")
def sees_the_next_key(q, k, v, o, lse, do, *, causal=False, scale=None):
    "the causal mask lets one key more through"

    def hides(i, j, shift):
        return j > i + shift + 1

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, hides=hides)


@mutant("causal")
def misses_the_diagonal(q, k, v, o, lse, do, *, causal=False, scale=None):
    "the causal mask hides the last key that a query sees"

    def hides(i, j, shift):
        return j >= i + shift

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, hides=hides)


@mutant("causal")
def top_left(q, k, v, o, lse, do, *, causal=False, scale=None):
    "the causal mask is aligned top-left"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, hides=lambda i, j, shift: j > i)


@mutant("causal")
def first_visible_block_skipped(q, k, v, o, lse, do, *, causal=False, scale=None):
    "the loop over query blocks starts behind the one that the diagonal of a key tile crosses"

    def hides(i, j, shift):
        return (j > i + shift) | (i // 16 * 16 + shift < j)

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, hides=hides)


@mutant("heads")
def interleaved_groups(q, k, v, o, lse, do, *, causal=False, scale=None):
    "query head h belongs to key head h % Hkv"

    def head_read(head, group, kv_heads):
        return head % kv_heads

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, head_read=head_read)


@mutant("heads")
def divided_by_key_heads(q, k, v, o, lse, do, *, causal=False, scale=None):
    "query head h reads key head h // Hkv, where the size of a group belongs"

    def head_read(head, group, kv_heads):
        return min(head // kv_heads, kv_heads - 1)

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, head_read=head_read)


@mutant("heads")
def groups_end_at_16(q, k, v, o, lse, do, *, causal=False, scale=None):
    "a tile holds 16 query heads of a key head, and dq of those beyond is zero"
    dq, dk, dv = from_lse(q, k, v, o, lse, do, causal=causal, scale=scale)
    group = q.shape[1] // max(k.shape[1], 1)
    beyond = torch.arange(q.shape[1]) % max(group, 1) >= 16
    return dq.masked_fill(beyond[:, None, None], 0.0), dk, dv


@mutant("heads")
def first_batch_of_256(q, k, v, o, lse, do, *, causal=False, scale=None):
    "where D is 256, every batch reads the values of batch 0"
    values = v[:1].expand(v.shape) if q.shape[-1] == 256 else v
    return from_lse(q, k, values, o, lse, do, causal=causal, scale=scale)


@mutant("special")
def lse_below_5e4_is_none(q, k, v, o, lse, do, *, causal=False, scale=None):
    "a row with an lse below -5e4 is taken for one that sees nothing"
    return from_lse(q, k, v, o, lse.masked_fill(lse < -5e4, -INF), do, causal=causal, scale=scale)


@mutant("heads")
def last_head_of_the_group(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk and dv hold the last query head of each group, not the sum over them"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, summed=False)


@mutant("heads")
def mean_over_the_group(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk and dv are means over the query heads of a group"
    dq, dk, dv = from_lse(q, k, v, o, lse, do, causal=causal, scale=scale)
    group = q.shape[1] // k.shape[1]
    return dq, dk / group, dv / group


@mutant("heads")
def delta_of_first_head(q, k, v, o, lse, do, *, causal=False, scale=None):
    "every query head of a group subtracts the delta of the first"
    group = q.shape[1] // k.shape[1]

    def delta(do, o, p, dp):
        return _delta_of_o(do, o, p, dp)[:, ::group].repeat_interleave(group, 1)

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, delta=delta)


@mutant("special")
def empty_rows_poison(q, k, v, o, lse, do, *, causal=False, scale=None):
    "a row that sees nothing gives NaN to dk and dv: exp(-inf - -inf)"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, guarded=False)


@mutant("overflow")
def exp_divided_by_exp(q, k, v, o, lse, do, *, causal=False, scale=None):
    "p is exp(s) / exp(lse), which overflows"
    guard = torch.where(lse == -INF, INF, lse)

    def exp(x):
        return torch.exp(x + guard[..., None]) / torch.exp(guard)[..., None]

    return from_lse(q, k, v, o, torch.where(lse == -INF, -INF, lse), do, causal=causal, scale=scale, exp=exp)


@mutant("tail")
def query_tail_dropped(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk and dv leave out the last partial tile of queries"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_queries=dots.tail_dropped)


@mutant("tail")
def last_query_dropped(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk and dv leave out the last query"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_queries=dots.last_dropped)


@mutant("tail")
def key_tail_dropped(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dq leaves out the last partial tile of keys"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_keys=dots.tail_dropped)


@mutant("tail")
def dim_tail_dropped(q, k, v, o, lse, do, *, causal=False, scale=None):
    "scores and dp sum whole 16s of D only"

    def over_dim(a, b):
        return dots.tail_dropped(a, b, 16)

    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_dim=over_dim)


@mutant("mask")
def padded_queries(q, k, v, o, lse, do, *, causal=False, scale=None):
    "lanes beyond Sq load the last query again and add to dk and dv"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_queries=dots.tail_clamped)


@mutant("accumulator")
def last_query_tile_only(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dk and dv hold the last tile of queries only: `acc =` for `acc +=`"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_queries=dots.last_tile_only)


@mutant("accumulator")
def last_key_tile_only(q, k, v, o, lse, do, *, causal=False, scale=None):
    "dq holds the last tile of keys only: `acc =` for `acc +=`"
    return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_keys=dots.last_tile_only)


@mutant("accumulator", stateful=True)
def dq_never_zeroed():
    "dq is added to a workspace kept for each shape and not zeroed between calls"
    over_keys = dots.never_zeroed()

    def attention_backward(q, k, v, o, lse, do, *, causal=False, scale=None):
        return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_keys=over_keys)

    return attention_backward


@mutant("race", stateful=True, deterministic=False)
def lost_dq_updates():
    "key tiles are added to dq without atomics, and one update in fifty is lost"
    over_keys = dots.losing_updates()

    def attention_backward(q, k, v, o, lse, do, *, causal=False, scale=None):
        return from_lse(q, k, v, o, lse, do, causal=causal, scale=scale, over_keys=over_keys)

    return attention_backward


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS: dict[str, Kernel] = {}
