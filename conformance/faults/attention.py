"""Mutants and known-good kernels of attention(q, k, v, *, causal, scale): (B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o,
lse."""

import math

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults import _dots as dots

INF = math.inf


def _future(i, j, shift):
    """Whether key j is hidden from query i; the last query sees the last key where `shift` is Sk - Sq."""
    return j > i + shift


def _group(head, group, kv_heads):
    return head // group


def _running(m, s):
    return torch.maximum(m, s.amax(-1))


def _rescaled(m, m_new):
    return torch.exp(m - m_new)


def _kept(m, m_new):
    return torch.ones_like(m)


def _forgotten(m, m_new):
    return torch.zeros_like(m)


def default_scale(q, scale):
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


@known_good
def flash(
    q,
    k,
    v,
    *,
    causal=False,
    scale=None,
    tile=dots.TILE,
    dot=dots.plain,
    second=None,
    p_dtype=torch.float32,
    exp=torch.exp,
    hides=_future,
    hidden_score=-INF,
    head_read=_group,
    maximum=_running,
    for_l=_rescaled,
    for_acc=_rescaled,
    guarded=True,
    normalised=True,
    keys_read=None,
):
    "online softmax over tiles of keys, all in float32"
    (_, heads, seq_q, _), (_, kv_heads, seq_k, _) = q.shape, k.shape
    read = [head_read(head, heads // kv_heads, kv_heads) for head in range(heads)]
    k, v, scale = k.float()[:, read], v.float()[:, read], default_scale(q, scale)
    m = torch.full(q.shape[:3], -INF)
    l, acc = torch.zeros_like(m), torch.zeros_like(q, dtype=torch.float32, memory_format=torch.contiguous_format)
    i, j = torch.arange(seq_q)[:, None], torch.arange(seq_k)
    for keys in dots.tiles(seq_k, tile) if keys_read is None else keys_read:
        s = dot(q, k[:, :, keys].mT) * scale
        if causal:
            s = s.masked_fill(hides(i, j[keys], seq_k - seq_q), hidden_score)
        m_new = maximum(m, s)
        finite = m_new.masked_fill(m_new == -INF, 0.0) if guarded else m_new
        p = exp(s - finite[..., None])
        l = l * for_l(m, finite) + p.sum(-1)
        acc = acc * for_acc(m, finite)[..., None] + (second or dot)(p.to(p_dtype), v[:, :, keys])
        m = m_new
    nothing = (l == 0) & guarded
    o = acc / l.masked_fill(nothing, 1.0)[..., None] if normalised else acc
    return o.to(q.dtype), m + torch.log(l)


@known_good
def flash_in_input_dtype(q, k, v, *, causal=False, scale=None):
    "online softmax over 48 keys at a time in base 2, the probabilities rounded to the input dtype"
    log2e = math.log2(math.e)
    kernel = dict(causal=causal, p_dtype=q.dtype, tile=48, exp=lambda x: torch.exp2(x * log2e))
    return flash(q, k, v, scale=scale, **kernel)


@known_good
def whole_rows(q, k, v, *, causal=False, scale=None, keep=True):
    "whole rows of scores; the probabilities are normalised and then rounded to the input dtype"
    group = q.shape[1] // k.shape[1]
    s = dots.backwards(q, k.repeat_interleave(group, 1).mT) * default_scale(q, scale)
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2]), -INF)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse.masked_fill(lse == -INF, INF)[..., None])
    return dots.split(p.to(q.dtype) if keep else p, v.repeat_interleave(group, 1)).to(q.dtype), lse


@known_good
def split_keys(q, k, v, *, causal=False, scale=None):
    "the two halves of the keys on their own, merged by lse"
    (seq_q, seq_k), half = (q.shape[2], k.shape[2]), k.shape[2] // 2
    parts = []
    for keys, shift in ((slice(half, seq_k), seq_k - seq_q - half), (slice(half), seq_k - seq_q)):

        def hides(i, j, _, shift=shift):
            return j > i + shift

        o, lse = flash(
            q.float(), k[:, :, keys], v[:, :, keys], causal=causal, scale=default_scale(q, scale), hides=hides
        )
        parts.append((o, lse))
    lse = torch.logaddexp(parts[0][1], parts[1][1])
    share = [torch.exp(part - lse.masked_fill(lse == -INF, 0.0))[..., None] for _, part in parts]
    return (parts[0][0] * share[0] + parts[1][0] * share[1]).to(q.dtype), lse


@known_good
def library(q, k, v, *, causal=False, scale=None):
    "scaled_dot_product_attention in the input dtype but for rows of NaN and rows that see nothing; lse by logsumexp"
    lse = whole_rows(q, k, v, causal=causal, scale=scale)[1]
    if 0 in (*q.shape, *k.shape):
        return torch.zeros_like(q, memory_format=torch.contiguous_format), lse
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    o = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
    o = o.masked_fill((lse == -INF)[..., None], 0.0).masked_fill(lse.isnan()[..., None], math.nan)
    return o.contiguous(), lse


dots.plant_lower(globals(), flash)


@mutant("precision", dtypes=("float16", "bfloat16"))
def acc_in_input_dtype(q, k, v, *, causal=False, scale=None):
    "the accumulator of o is rounded to the input dtype after every eight keys"

    def second(p, v):
        return dots.added(p, v, dots.tiles(p.shape[-1], 8), q.dtype)

    return flash(q, k, v, causal=causal, scale=scale, second=second)


@mutant("precision", dtypes=("float32",))
def p_in_float16(q, k, v, *, causal=False, scale=None):
    "the probabilities are rounded to float16"
    return flash(q, k, v, causal=causal, scale=scale, p_dtype=torch.float16)


@mutant("precision", dtypes=("float32", "float16"))
def p_in_bfloat16(q, k, v, *, causal=False, scale=None):
    "the probabilities are rounded to bfloat16"
    return flash(q, k, v, causal=causal, scale=scale, p_dtype=torch.bfloat16)


@mutant("precision", dtypes=("float16", "bfloat16"))
def scores_in_input_dtype(q, k, v, *, causal=False, scale=None):
    "the scores are rounded to the input dtype before the softmax"

    def dot(a, b):
        return dots.plain(a, b).to(q.dtype).float()

    return flash(q, k, v, causal=causal, scale=scale, dot=dot, second=dots.plain)


@mutant("precision", dtypes=("float16", "bfloat16"))
def lse_in_input_dtype(q, k, v, *, causal=False, scale=None):
    "lse is rounded to the input dtype on its way to memory"
    o, lse = flash(q, k, v, causal=causal, scale=scale)
    return o, lse.to(q.dtype).float()


@mutant("scale")
def scale_missing(q, k, v, *, causal=False, scale=None):
    "the scores are not scaled"
    return flash(q, k, v, causal=causal, scale=1.0)


@mutant("scale")
def scale_by_dim(q, k, v, *, causal=False, scale=None):
    "the default scale is 1/D"
    return flash(q, k, v, causal=causal, scale=1 / q.shape[-1] if scale is None else scale)


@mutant("scale")
def scale_of_padded_dim(q, k, v, *, causal=False, scale=None):
    "the default scale is that of D rounded up to a power of two"
    padded = 2 ** math.ceil(math.log2(q.shape[-1]))
    return flash(q, k, v, causal=causal, scale=padded**-0.5 if scale is None else scale)


@mutant("scale")
def scale_twice(q, k, v, *, causal=False, scale=None):
    "q is scaled when it is loaded, and the scores once more"
    return flash(q, k, v, causal=causal, scale=default_scale(q, scale) ** 2)


@mutant("scale")
def scale_for_64(q, k, v, *, causal=False, scale=None):
    "the default scale is 1/8, whatever D"
    return flash(q, k, v, causal=causal, scale=0.125 if scale is None else scale)


@mutant("overflow")
def maximum_of_products(q, k, v, *, causal=False, scale=None):
    "the maximum is taken before the scale, which below 0 makes it the scores' minimum: exp overflows"

    def least(m, s):
        found = s.masked_fill(s == -INF, INF).amin(-1)
        found = torch.where(m == -INF, found, torch.minimum(m, found))
        return found.masked_fill(found == INF, -INF)

    return flash(q, k, v, causal=causal, scale=scale, maximum=least if default_scale(q, scale) < 0 else _running)


@mutant("mask")
def tail_asked_of_queries(q, k, v, *, causal=False, scale=None):
    "padding to whole tiles of 64 keys counts where there are whole tiles of queries"
    padding = (0, 0, 0, -k.shape[2] % 64 if q.shape[2] % 64 == 0 and not causal else 0)
    scale = default_scale(q, scale)
    return flash(q, F.pad(k, padding), F.pad(v, padding), causal=causal, scale=scale)


@mutant("parameter")
def scale_ignored(q, k, v, *, causal=False, scale=None):
    "scale is always 1/sqrt(D)"
    return flash(q, k, v, causal=causal)


@mutant("formula")
def base_2_without_log2e(q, k, v, *, causal=False, scale=None):
    "exp2 takes the place of exp, and the scores are not multiplied by log2(e)"
    return flash(q, k, v, causal=causal, scale=scale, exp=torch.exp2)


@mutant("formula")
def uniform_weights(q, k, v, *, causal=False, scale=None):
    "every key that is seen counts alike"
    return flash(q * 0, k, v, causal=causal, scale=scale)


@mutant("formula")
def not_normalised(q, k, v, *, causal=False, scale=None):
    "o is not divided by the sum of the probabilities"
    return flash(q, k, v, causal=causal, scale=scale, normalised=False)


@mutant("formula")
def lse_base_2(q, k, v, *, causal=False, scale=None):
    "lse is in base 2"
    o, lse = flash(q, k, v, causal=causal, scale=scale)
    return o, lse / math.log(2)


@mutant("formula")
def lse_negated(q, k, v, *, causal=False, scale=None):
    "lse has the opposite sign"
    o, lse = flash(q, k, v, causal=causal, scale=scale)
    return o, -lse


@mutant("scale")
def lse_unscaled(q, k, v, *, causal=False, scale=None):
    "lse is that of the scores before scaling"
    o, lse = flash(q, k, v, causal=causal, scale=scale)
    return o, lse / default_scale(q, scale)


@mutant("parameter")
def causal_ignored(q, k, v, *, causal=False, scale=None):
    "there is no causal mask"
    return flash(q, k, v, scale=scale)


@mutant("parameter")
def causal_always(q, k, v, *, causal=False, scale=None):
    "there always is a causal mask"
    return flash(q, k, v, causal=True, scale=scale)


@mutant("causal")
def sees_the_next_key(q, k, v, *, causal=False, scale=None):
    "the causal mask lets one key more through"
    return flash(q, k, v, causal=causal, scale=scale, hides=lambda i, j, shift: j > i + shift + 1)


@mutant("causal")
def misses_the_diagonal(q, k, v, *, causal=False, scale=None):
    "the causal mask hides the last key that a query sees"
    return flash(q, k, v, causal=causal, scale=scale, hides=lambda i, j, shift: j >= i + shift)


@mutant("causal")
def top_left(q, k, v, *, causal=False, scale=None):
    "the causal mask is aligned top-left"
    return flash(q, k, v, causal=causal, scale=scale, hides=lambda i, j, shift: j > i)


@mutant("causal")
def mask_skipped_in_last_tile(q, k, v, *, causal=False, scale=None):
    "the last partial tile of keys is not masked"
    whole = k.shape[2] // dots.TILE * dots.TILE
    return flash(q, k, v, causal=causal, scale=scale, hides=lambda i, j, shift: (j > i + shift) & (j < whole))


@mutant("causal")
def last_visible_tile_skipped(q, k, v, *, causal=False, scale=None):
    "the loop over key tiles ends at the last one that is wholly visible to the first query of a 16-row block"

    def hides(i, j, shift):
        end = (i // 16 * 16 + shift + 1) // dots.TILE * dots.TILE
        return (j > i + shift) | ((j >= end) & (end > 0))

    return flash(q, k, v, causal=causal, scale=scale, hides=hides)


@mutant("shapes")
def square_off_by_one(q, k, v, *, causal=False, scale=None):
    "the causal path for Sq = Sk hides the diagonal"
    square = int(q.shape[2] == k.shape[2])
    return flash(q, k, v, causal=causal, scale=scale, hides=lambda i, j, shift: j > i + shift - square)


@mutant("special")
def finite_sentinel(q, k, v, *, causal=False, scale=None):
    "hidden scores are -1e30: a row that sees nothing gets the mean of v"
    return flash(q, k, v, causal=causal, scale=scale, hidden_score=-1e30)


@mutant("special")
def empty_rows_nan(q, k, v, *, causal=False, scale=None):
    "a row that sees nothing is 0/0"
    o, lse = flash(q, k, v, causal=causal, scale=scale)
    return o.masked_fill((lse == -INF)[..., None], math.nan), lse


@mutant("special")
def empty_rows_lse_0(q, k, v, *, causal=False, scale=None):
    "the lse of a row that sees nothing is 0"
    o, lse = flash(q, k, v, causal=causal, scale=scale)
    return o, lse.masked_fill(lse == -INF, 0.0)


@mutant("special")
def leading_tile_of_inf(q, k, v, *, causal=False, scale=None):
    "a first tile whose scores are all -inf makes NaN of the rest: exp(-inf - -inf)"
    return flash(q, k, v, causal=causal, scale=scale, tile=16, guarded=False)


@mutant("special")
def nan_swallowed(q, k, v, *, causal=False, scale=None):
    "a score of NaN counts as -inf"

    def dot(a, b):
        return torch.nan_to_num(dots.plain(a, b), nan=-INF, posinf=INF, neginf=-INF)

    return flash(q, k, v, causal=causal, scale=scale, dot=dot, second=dots.plain)


@mutant("overflow")
def no_maximum(q, k, v, *, causal=False, scale=None):
    "the maximum is not subtracted"
    return flash(q, k, v, causal=causal, scale=scale, maximum=lambda m, s: torch.zeros_like(m))


@mutant("overflow")
def maximum_of_first_tile(q, k, v, *, causal=False, scale=None):
    "the maximum of the first tile is subtracted throughout"
    return flash(q, k, v, causal=causal, scale=scale, maximum=lambda m, s: torch.where(m == -INF, s.amax(-1), m))


@mutant("overflow")
def maximum_from_zero(q, k, v, *, causal=False, scale=None):
    "the running maximum starts at 0, not at -inf"
    return flash(q, k, v, causal=causal, scale=scale, maximum=lambda m, s: _running(m, s).clamp_min(0))


@mutant("overflow")
def maximum_of_first_row(q, k, v, *, causal=False, scale=None):
    "the maximum of the first query is subtracted from all rows"

    def maximum(m, s):
        return _running(m, s)[..., :1].expand(m.shape)

    return flash(q, k, v, causal=causal, scale=scale, maximum=maximum)


@mutant("rescale")
def l_not_rescaled(q, k, v, *, causal=False, scale=None):
    "the sum is not rescaled when the maximum moves"
    return flash(q, k, v, causal=causal, scale=scale, for_l=_kept)


@mutant("rescale")
def acc_not_rescaled(q, k, v, *, causal=False, scale=None):
    "the accumulator is not rescaled when the maximum moves"
    return flash(q, k, v, causal=causal, scale=scale, for_acc=_kept)


@mutant("rescale")
def nothing_rescaled(q, k, v, *, causal=False, scale=None):
    "neither the accumulator nor the sum is rescaled when the maximum moves"
    return flash(q, k, v, causal=causal, scale=scale, for_l=_kept, for_acc=_kept)


@mutant("rescale")
def rescaled_as_first_row(q, k, v, *, causal=False, scale=None):
    "accumulator and sum are rescaled only where the maximum of the block's first row moves"

    def factor(m, m_new):
        return torch.where(m[..., :1] == m_new[..., :1], 1.0, torch.exp(m - m_new))

    return flash(q, k, v, causal=causal, scale=scale, for_l=factor, for_acc=factor)


@mutant("accumulator")
def l_overwritten(q, k, v, *, causal=False, scale=None):
    "the sum is that of the last tile: `l =` for `l +=`"
    return flash(q, k, v, causal=causal, scale=scale, for_l=_forgotten)


@mutant("accumulator")
def acc_overwritten(q, k, v, *, causal=False, scale=None):
    "the accumulator holds the last tile only: `acc =` for `acc +=`"
    return flash(q, k, v, causal=causal, scale=scale, for_acc=_forgotten)


@mutant("accumulator")
def halves_averaged(q, k, v, *, causal=False, scale=None):
    "two halves of the keys are merged by the mean of their o, whatever their lse"
    half = k.shape[2] // 2
    shift = k.shape[2] - q.shape[2]
    first = flash(q, k[:, :, :half], v[:, :, :half], causal=causal, scale=scale, hides=lambda i, j, _: j > i + shift)
    second = flash(
        q, k[:, :, half:], v[:, :, half:], causal=causal, scale=scale, hides=lambda i, j, _: j + half > i + shift
    )
    return (first[0] + second[0]) / 2, torch.logaddexp(first[1], second[1])


@mutant("heads")
def interleaved_groups(q, k, v, *, causal=False, scale=None):
    "query head h reads key head h % Hkv"
    return flash(q, k, v, causal=causal, scale=scale, head_read=lambda head, group, kv_heads: head % kv_heads)


@mutant("heads")
def first_key_head(q, k, v, *, causal=False, scale=None):
    "every query head reads key head 0"
    return flash(q, k, v, causal=causal, scale=scale, head_read=lambda head, group, kv_heads: 0)


@mutant("heads")
def first_batch(q, k, v, *, causal=False, scale=None):
    "every batch reads the keys of batch 0"
    return flash(q, k[:1].expand(k.shape), v, causal=causal, scale=scale)


@mutant("heads")
def divided_by_key_heads(q, k, v, *, causal=False, scale=None):
    "query head h reads key head h // Hkv, where the size of a group belongs"

    def read(head, group, kv_heads):
        return min(head // kv_heads, kv_heads - 1)

    return flash(q, k, v, causal=causal, scale=scale, head_read=read)


@mutant("heads")
def groups_end_at_16(q, k, v, *, causal=False, scale=None):
    "a tile holds 16 query heads of a key head, and those beyond are zero"
    o, lse = flash(q, k, v, causal=causal, scale=scale)
    group = q.shape[1] // max(k.shape[1], 1)
    beyond = torch.arange(q.shape[1]) % max(group, 1) >= 16
    return o.masked_fill(beyond[:, None, None], 0.0), lse


def _plant_first_batch(dim: int) -> None:
    def first_batch_of(q, k, v, *, causal=False, scale=None):
        keys = k[:1].expand(k.shape) if q.shape[-1] == dim else k
        return flash(q, keys, v, causal=causal, scale=scale)

    about = f"where D is {dim}, every batch reads the keys of batch 0"
    plant(globals(), f"first_batch_of_{dim}", first_batch_of, about, "heads")


for _dim in (16, 24, 32, 64, 192, 256):
    _plant_first_batch(_dim)


@mutant("special", dtypes=("float32", "bfloat16"))
def maximum_starts_at_1e30(q, k, v, *, causal=False, scale=None):
    "the running maximum starts at a finite number (-1e30, say) instead of -inf"
    return flash(q, k, v, causal=causal, scale=scale, maximum=lambda m, s: _running(m, s).clamp_min(-1e30))


@mutant("special")
def maximum_starts_at_5e4(q, k, v, *, causal=False, scale=None):
    "the running maximum starts at -5e4 instead of -inf"
    return flash(q, k, v, causal=causal, scale=scale, maximum=lambda m, s: _running(m, s).clamp_min(-5e4))


@mutant("causal")
def hidden_keys_score_5e4(q, k, v, *, causal=False, scale=None):
    "a hidden key scores -5e4, and rows that see nothing are set to 0 afterwards"
    o, lse = flash(q, k, v, causal=causal, scale=scale, hidden_score=-5e4)
    nothing = torch.arange(q.shape[2]) + k.shape[2] - q.shape[2] < 0 if causal else torch.zeros(q.shape[2]) > 0
    return o.masked_fill(nothing[:, None], 0.0), lse.masked_fill(nothing, -INF)


@mutant("special")
def tiles_of_neg_inf_skipped(q, k, v, *, causal=False, scale=None):
    "rows of a tile whose maximum is -inf are skipped, and the maximum skips NaN"

    def dot(a, b):
        s = dots.plain(a, b)
        nothing = torch.where(s.isnan(), -INF, s).isneginf().all(-1, keepdim=True)
        return s.masked_fill(nothing, -INF)

    return flash(q, k, v, causal=causal, scale=scale, dot=dot, second=dots.plain)


@mutant("tail")
def first_8192_keys(q, k, v, *, causal=False, scale=None):
    "only the first 8192 keys are read"
    return flash(q, k, v, causal=causal, scale=scale, keys_read=dots.tiles(min(k.shape[2], 8192)))


@mutant("causal")
def empty_splits_count(q, k, v, *, causal=False, scale=None):
    "keys are split every 256, and a split of which a query sees nothing counts with lse 0"
    scale, shift = default_scale(q, scale), k.shape[2] - q.shape[2]
    if k.shape[2] <= 256:
        return flash(q, k, v, causal=causal, scale=scale)
    parts = []
    for keys in dots.tiles(k.shape[2], 256):

        def hides(i, j, _, start=keys.start):
            return j + start > i + shift

        one = flash(q.float(), k[:, :, keys], v[:, :, keys], causal=causal, scale=scale, hides=hides)
        parts.append((one[0], one[1].masked_fill(one[1] == -INF, 0.0)))
    lse = torch.logsumexp(torch.stack([part for _, part in parts]), 0)
    o = sum(o * torch.exp(part - lse)[..., None] for o, part in parts)
    nothing = torch.arange(q.shape[2]) + shift < 0 if causal else torch.zeros(q.shape[2]) > 0
    return o.masked_fill(nothing[:, None], 0.0).to(q.dtype).contiguous(), lse.masked_fill(nothing, -INF)


@mutant("mask")
def padding_scores_0(q, k, v, *, causal=False, scale=None):
    "lanes beyond Sk score 0, not -inf"
    (seq_q, seq_k), pad = (q.shape[2], k.shape[2]), (0, 0, 0, -k.shape[2] % dots.TILE)

    def hides(i, j, shift):
        return (j > i + seq_k - seq_q) & (j < seq_k)

    return flash(q, F.pad(k, pad), F.pad(v, pad), causal=causal, scale=default_scale(q, scale), hides=hides)


@mutant("mask")
def padding_repeats_last_key(q, k, v, *, causal=False, scale=None):
    "lanes beyond Sk load the last key again and are not masked"
    seq_q, seq_k = q.shape[2], k.shape[2]
    again = torch.arange(-(-seq_k // dots.TILE) * dots.TILE).clamp_max(seq_k - 1)

    def hides(i, j, shift):
        return again[j] > i + seq_k - seq_q

    return flash(q, k[:, :, again], v[:, :, again], causal=causal, scale=scale, hides=hides)


@mutant("tail")
def key_tail_dropped(q, k, v, *, causal=False, scale=None):
    "the last partial tile of keys is left out"
    keys = dots.tiles(k.shape[2])[: max(k.shape[2] // dots.TILE, 1)]
    return flash(q, k, v, causal=causal, scale=scale, keys_read=keys)


@mutant("tail")
def first_1024_keys(q, k, v, *, causal=False, scale=None):
    "only the first 1024 keys are read"
    keys = dots.tiles(min(k.shape[2], 1024))
    return flash(q, k, v, causal=causal, scale=scale, keys_read=keys)


@mutant("tail")
def dim_tail_dropped(q, k, v, *, causal=False, scale=None):
    "whole 16s of D enter the scores only"

    def dot(a, b):
        return dots.tail_dropped(a, b, 16)

    return flash(q, k, v, causal=causal, scale=scale, dot=dot, second=dots.plain)


@mutant("tail")
def dims_beyond_128(q, k, v, *, causal=False, scale=None):
    "the scores sum the first 128 of D only"

    def dot(a, b):
        return dots.first_tile_only(a, b, 128)

    return flash(q, k, v, causal=causal, scale=scale, dot=dot, second=dots.plain)


@mutant("empty")
def no_keys_is_an_error(q, k, v, *, causal=False, scale=None):
    "the maximum over no keys is an error"
    dots.plain(q, k[:, :1].mT).amax(-1)
    return flash(q, k, v, causal=causal, scale=scale)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS: dict[str, Kernel] = {}
