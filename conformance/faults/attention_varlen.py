"""Mutants and known-good kernels of attention_varlen(q, k, v, cu_q, cu_k, *, max_q, max_k, causal, scale): o (Tq, Hq,
D), lse (Hq, Tq) in float32."""

import math
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._rows import LOADS, STORES

TILE = 16


def spans(cu_q, cu_k, total_q, total_k, max_q, max_k):
    """First row and end of each sequence in q, and in k and v."""
    return [(*rows, *keys) for rows, keys in zip(pairwise(cu_q), pairwise(cu_k), strict=True)]


def hides(i, j, seq_q, seq_k, first_q, first_k):
    """Whether causality hides key j of a sequence from its query i."""
    return j > i + seq_k - seq_q


def softmax(s, v):
    """(..., n, m), (..., m, D) -> o (..., n, D) and lse (..., n); 0 and -inf where nothing is seen."""
    m = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -math.inf)
    p = torch.exp(s - torch.where(m.isneginf(), 0.0, m))
    l = p.sum(-1, keepdim=True)
    return (p @ v) / torch.where(l == 0, 1.0, l), (m + torch.log(l))[..., 0]


def attention_varlen(
    q,
    k,
    v,
    cu_q,
    cu_k,
    *,
    max_q,
    max_k,
    causal=False,
    scale=None,
    load=torch.Tensor.float,
    store=torch.Tensor.to,
    spans=spans,
    hides=hides,
    reader=lambda h, group, kv_heads: h // group,
    softmax=softmax,
    queries=lambda n: n,
    keys=lambda m, behind: (m, m),
):
    """The op in float32, one sequence at a time; the last keywords are what mutants change. `keys(m, behind)` of the m
    keys of a sequence and the rows that follow them are those that are seen, and those whose values are multiplied."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    o, lse = torch.zeros(q.shape, device=q.device), torch.full(q.shape[1::-1], -math.inf, device=q.device)
    heads, kv_heads = q.shape[1], k.shape[1]
    read = [reader(h, heads // max(kv_heads, 1), kv_heads) for h in range(heads)]
    every = spans(cu_q.tolist(), cu_k.tolist(), len(q), len(k), max_q, max_k)
    for first_q, end_q, first_k, end_k in every:
        seen, used = keys(end_k - first_k, len(k) - end_k)
        rows = load(q[first_q : first_q + queries(end_q - first_q)]).transpose(0, 1)
        own_k, own_v = (load(t[first_k : first_k + used][:, read]).transpose(0, 1) for t in (k, v))
        s = rows @ own_k.mT * scale
        i, j = torch.arange(s.shape[1], device=q.device)[:, None], torch.arange(s.shape[2], device=q.device)
        s = s.masked_fill(j >= seen, -math.inf)
        if causal:
            s = s.masked_fill(hides(i, j, end_q - first_q, end_k - first_k, first_q, first_k), -math.inf)
        found, of_rows = softmax(s, own_v)
        o[first_q : first_q + s.shape[1]] = found.transpose(0, 1)
        lse[:, first_q : first_q + s.shape[1]] = of_rows
    return store(o, q.dtype).contiguous(), lse


def _plant():
    for name, flaw in LOADS.items():
        fn = partial(attention_varlen, load=flaw.part)
        plant(globals(), name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name in ("result_through_fp16", "result_through_bf16", "result_truncated"):
        flaw = STORES[name]
        plant(globals(), name, partial(attention_varlen, store=flaw.part), flaw.about, flaw.kind, dtypes=flaw.dtypes)


_plant()


@mutant("causal")
def causal_by_row(*operands, **params):
    """the causal mask compares rows in memory, not places in a sequence"""

    def hides(i, j, seq_q, seq_k, first_q, first_k):
        return first_k + j > first_q + i

    return attention_varlen(*operands, **params, hides=hides)


@mutant("causal")
def top_left(*operands, **params):
    """query i of a sequence sees its keys up to i, whatever the lengths"""
    return attention_varlen(*operands, **params, hides=lambda i, j, *about: j > i)


@mutant("causal")
def aligned_by_the_longest(*operands, max_q, max_k, **params):
    """the causal mask is aligned by max_k - max_q"""

    def hides(i, j, *about):
        return j > i + max_k - max_q

    return attention_varlen(*operands, max_q=max_q, max_k=max_k, **params, hides=hides)


@mutant("parameter")
def causal_ignored(*operands, **params):
    """there is no causal mask"""
    return attention_varlen(*operands, **{**params, "causal": False})


@mutant("parameter")
def scale_ignored(*operands, **params):
    """scale is always 1/sqrt(D)"""
    return attention_varlen(*operands, **{**params, "scale": None})


@mutant("formula")
def offsets_of_q_for_k(q, k, v, cu_q, cu_k, **params):
    """the sequences of k and v lie where those of q do"""

    def both(cu_q, cu_k, total_q, total_k, max_q, max_k):
        held = [min(offset, total_k) for offset in cu_q]
        return spans(cu_q, held, total_q, total_k, max_q, max_k)

    return attention_varlen(q, k, v, cu_q, cu_k, **params, spans=both)


@mutant("formula")
def keys_begin_where_queries_do(q, k, v, cu_q, cu_k, **params):
    """a sequence has as many keys as cu_k says, but they begin at its cu_q"""

    def moved(cu_q, cu_k, total_q, total_k, max_q, max_k):
        every = spans(cu_q, cu_k, total_q, total_k, max_q, max_k)
        return [(a, b, min(a, total_k), min(a + d - c, total_k)) for a, b, c, d in every]

    return attention_varlen(q, k, v, cu_q, cu_k, **params, spans=moved)


@mutant("formula")
def longest_for_all_queries(*operands, **params):
    """every sequence has max_q queries, those of its neighbours too"""

    def long(cu_q, cu_k, total_q, total_k, max_q, max_k):
        every = spans(cu_q, cu_k, total_q, total_k, max_q, max_k)
        return [(first, min(first + max_q, total_q), *keys) for first, _, *keys in every]

    return attention_varlen(*operands, **params, spans=long)


@mutant("mask")
def longest_for_all_keys(*operands, **params):
    """every sequence has max_k keys, those of its neighbours too"""

    def long(cu_q, cu_k, total_q, total_k, max_q, max_k):
        every = spans(cu_q, cu_k, total_q, total_k, max_q, max_k)
        return [(*rows, first, min(first + max_k, total_k)) for *rows, first, _ in every]

    return attention_varlen(*operands, **params, spans=long)


@mutant("formula")
def same_length_for_all(*operands, **params):
    """all sequences have the same length"""

    def even(cu_q, cu_k, total_q, total_k, max_q, max_k):
        number = max(1, len(cu_q) - 1)
        q, k = ([cu[-1] * b // number for b in range(number + 1)] for cu in (cu_q, cu_k))
        return spans(q, k, total_q, total_k, max_q, max_k)

    return attention_varlen(*operands, **params, spans=even)


@mutant("mask")
def whole_tiles_of_keys(*operands, **params):
    """keys are masked by whole tiles of 16: those of the next sequence are seen"""

    def seen(m, behind):
        whole = min(-(-m // TILE) * TILE, m + behind)
        return whole, whole

    return attention_varlen(*operands, **params, keys=seen)


@mutant("special")
def values_not_masked(*operands, **params):
    """values behind a sequence are multiplied by a probability of 0, which leaves their NaN"""
    return attention_varlen(*operands, **params, keys=lambda m, behind: (m, m + min(-m % TILE, behind)))


@mutant("tail")
def partial_tile_of_keys_lost(*operands, **params):
    """keys beyond whole tiles of 16 are lost"""
    return attention_varlen(*operands, **params, keys=lambda m, behind: (m // TILE * TILE, m))


@mutant("tail")
def last_query_lost(*operands, **params):
    """the last query of each sequence is left out"""
    return attention_varlen(*operands, **params, queries=lambda n: max(0, n - 1))


@mutant("tail")
def one_tile_of_queries(*operands, **params):
    """queries beyond the first 64 of a sequence are left out"""
    return attention_varlen(*operands, **params, queries=lambda n: min(n, 64))


@mutant("tail")
def queries_beyond_1024_lost(*operands, **params):
    """queries beyond the first 1024 of a sequence are left out"""
    return attention_varlen(*operands, **params, queries=lambda n: min(n, 1024))


@mutant("tail")
def keys_beyond_1024_lost(*operands, **params):
    """keys beyond the first 1024 of a sequence are left out"""
    return attention_varlen(*operands, **params, keys=lambda m, behind: (min(m, 1024), min(m, 1024)))


@mutant("tail")
def sequences_beyond_1024_lost(*operands, **params):
    """sequences beyond the 1024 that a block's threads look at are left out"""
    return attention_varlen(*operands, **params, spans=lambda *about: spans(*about)[:1024])


@mutant("tail")
def last_sequence_lost(*operands, **params):
    """the last sequence is left out"""
    return attention_varlen(*operands, **params, spans=lambda *about: spans(*about)[:-1])


@mutant("special")
def empty_sequences_skipped(*operands, **params):
    """sequences of no length are left out in q and in k, each by itself: later ones meet others' keys"""

    def some(cu_q, cu_k, total_q, total_k, max_q, max_k):
        rows, keys = ([span for span in pairwise(cu) if span[1] > span[0]] for cu in (cu_q, cu_k))
        return [(*of_q, *of_k) for of_q, of_k in zip(rows, keys, strict=False)]

    return attention_varlen(*operands, **params, spans=some)


@mutant("special")
def empty_sequence_ends_all(*operands, **params):
    """what follows a sequence without queries is left out"""

    def until(*about):
        every = spans(*about)
        return every[: next((b for b, (first, end, *_) in enumerate(every) if first == end), len(every))]

    return attention_varlen(*operands, **params, spans=until)


@mutant("special")
def rows_behind_the_last_as_they_are(q, *operands, **params):
    """rows that belong to no sequence hold what was in memory: here q"""
    o, lse = attention_varlen(q, *operands, **params)
    end = int(operands[2][-1])
    o[end:] = q[end:]
    return o, lse


@mutant("special")
def rows_behind_the_last_in_it(*operands, **params):
    """the last sequence has the rows behind it too"""

    def longer(cu_q, cu_k, total_q, *about):
        return spans([*cu_q[:-1], total_q], cu_k, total_q, *about) if len(cu_q) > 1 else []

    return attention_varlen(*operands, **params, spans=longer)


@mutant("special")
def lse_behind_the_last_is_0(*operands, **params):
    """lse of rows that belong to no sequence is 0"""
    o, lse = attention_varlen(*operands, **params)
    lse[:, int(operands[3][-1]) :] = 0
    return o, lse


@mutant("special")
def no_key_gives_nan(*operands, **params):
    """a query that sees nothing gives NaN: 0 / 0, or -inf - -inf: those of a sequence without keys too"""

    def divided(s, v):
        o, lse = softmax(s, v)
        return torch.where(lse.isneginf()[..., None], math.nan, o), lse

    return attention_varlen(*operands, **params, softmax=divided)


@mutant("special")
def no_key_gives_a_finite_lse(*operands, **params):
    """lse of a query that sees nothing is -1e30"""

    def finite(s, v):
        o, lse = softmax(s, v)
        return o, lse.clamp_min(-1e30)

    return attention_varlen(*operands, **params, softmax=finite)


@mutant("strides")
def lse_by_rows(*operands, **params):
    """lse lies in memory as (Tq, Hq)"""
    o, lse = attention_varlen(*operands, **params)
    return o, lse.mT.contiguous().view(lse.shape)


@mutant("heads")
def heads_modulo(*operands, **params):
    """query head h reads key head h modulo their number"""
    return attention_varlen(*operands, **params, reader=lambda h, group, kv_heads: h % kv_heads)


@mutant("heads")
def first_head_for_all(*operands, **params):
    """every query head reads key head 0"""
    return attention_varlen(*operands, **params, reader=lambda h, group, kv_heads: 0)


@mutant("scale")
def lse_to_base_2(*operands, **params):
    """lse is the logarithm to base 2"""
    o, lse = attention_varlen(*operands, **params)
    return o, lse / math.log(2)


@mutant("overflow")
def no_maximum(*operands, **params):
    """the maximum is not subtracted before exp"""

    def plain(s, v):
        p = torch.exp(s)
        l = p.sum(-1, keepdim=True)
        return (p @ v) / torch.where(l == 0, 1.0, l), torch.log(l)[..., 0]

    return attention_varlen(*operands, **params, softmax=plain)


@mutant("precision", dtypes=("float32", "float16"))
def p_in_bf16(*operands, **params):
    """probabilities are rounded to bfloat16"""

    def narrow(s, v):
        lse = softmax(s, v)[1]
        p = torch.exp(s - torch.where(lse.isneginf(), 0.0, lse)[..., None])
        return p.bfloat16().float() @ v, lse

    return attention_varlen(*operands, **params, softmax=narrow)


def online(s, v, tile=TILE, dtype=torch.float32):
    """softmax by tiles of keys, whose probabilities are rounded to `dtype`."""
    m, l = s.new_full((*s.shape[:-1], 1), -math.inf), s.new_zeros((*s.shape[:-1], 1))
    o = s.new_zeros((*s.shape[:-1], v.shape[-1]))
    for start in range(0, s.shape[-1], tile):
        part, values = s[..., start : start + tile], v[..., start : start + tile, :]
        above = torch.maximum(m, part.amax(-1, keepdim=True))
        base = torch.where(above.isneginf(), 0.0, above)
        p, kept = torch.exp(part - base), torch.exp(m - base)
        l = l * kept + p.sum(-1, keepdim=True)
        o = o * kept + p.to(dtype).float() @ values
        m = above
    return o / torch.where(l == 0, 1.0, l), (m + torch.log(l))[..., 0]


@known_good
def one_sequence_at_a_time(*operands, **params):
    """each sequence by itself, all its scores at once, in float32"""
    return attention_varlen(*operands, **params)


@known_good
def tiles_of_16_keys(*operands, **params):
    """online softmax over tiles of 16 keys, the sequences from the last to the first"""
    return attention_varlen(*operands, **params, softmax=online, spans=lambda *about: spans(*about)[::-1])


@known_good
def probabilities_in_the_input_dtype(q, *operands, **params):
    """online softmax over tiles of 7 keys, probabilities rounded to the dtype of v"""
    return attention_varlen(q, *operands, **params, softmax=partial(online, tile=7, dtype=q.dtype))


@known_good
def one_key_after_another(*operands, **params):
    """every query adds its keys one after another"""
    return attention_varlen(*operands, **params, softmax=partial(online, tile=1))


@known_good
def one_mask(q, k, v, cu_q, cu_k, *, max_q, max_k, causal=False, scale=None):
    """all queries against all keys, of which a mask hides those of other sequences"""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    places = []
    for cu, x in ((cu_q, q), (cu_k, k)):
        rows = torch.arange(len(x))
        number = torch.searchsorted(cu[1:].contiguous(), rows.int(), right=True)
        places.append((number, F.pad(cu[1:], (0, 1))[number] - 1 - rows))
    (of_q, left_q), (of_k, left_k) = places
    seen = (of_q[:, None] == of_k) & (of_q[:, None] < len(cu_q) - 1)
    if causal:
        seen &= left_k >= left_q[:, None]
    group = q.shape[1] // k.shape[1]
    behind = of_k == len(cu_k) - 1
    wide_k, wide_v = (t.float().masked_fill(behind[:, None, None], 0).repeat_interleave(group, 1) for t in (k, v))
    s = torch.einsum("ihd,jhd->hij", q.float(), wide_k) * scale
    o, lse = softmax(s.masked_fill(~seen, -math.inf), wide_v.transpose(0, 1))
    return o.transpose(0, 1).to(q.dtype).contiguous(), lse


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "tiles": Kernel("known-good", "a program for each tile of 16 queries, sequence and head"),
    "next_sequence_seen": Kernel("mask", "keys are masked by whole tiles: those of the next sequence are seen"),
    "causal_by_row": Kernel("causal", "the causal mask compares rows in memory, not places in a sequence"),
    "offsets_of_q_for_k": Kernel("formula", "the sequences of k and v lie where those of q do"),
    "no_key_gives_nan": Kernel("special", "a query that sees nothing gives NaN: 0 / 0, or -inf - -inf"),
    "rows_behind_left": Kernel("special", "rows that belong to no sequence are not written"),
    "lse_by_rows": Kernel("strides", "lse is written as (Tq, Hq)", "values: |OutOfBounds"),
    "heads_modulo": Kernel("heads", "query head h reads key head h modulo their number"),
}
