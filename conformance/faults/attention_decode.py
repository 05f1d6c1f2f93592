"""Mutants and known-good kernels of attention_decode(q, k, v, lengths, *, scale): o (B, Hq, Sq, D), lse (B, Hq, Sq) in
float32."""

import math
from functools import partial

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._rows import LOADS, STORES

SPLIT = 16  # keys of a part


def part(s, v):
    """(..., n), (..., n, D) -> o (..., D), normalised, and lse (...) over the keys of a part; 0 and -inf if none."""
    m = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -math.inf)
    p = torch.exp(s - torch.where(m.isneginf(), 0.0, m))
    l = p.sum(-1, keepdim=True)
    o = (p[..., None, :] @ v)[..., 0, :] / torch.where(l == 0, 1.0, l)
    return o, (m + torch.log(l))[..., 0]


def merged(parts):
    """o and lse of all parts from theirs."""
    every = torch.stack([lse for _, lse in parts])
    m = every.amax(0)
    weight = torch.exp(every - torch.where(m.isneginf(), 0.0, m))
    l = weight.sum(0)
    o = sum(w[..., None] * o for w, (o, _) in zip(weight, parts, strict=True))
    return o / torch.where(l == 0, 1.0, l)[..., None], m + torch.log(l)


def attention_decode(
    q,
    k,
    v,
    lengths,
    *,
    scale=None,
    load=torch.Tensor.float,
    store=torch.Tensor.to,
    split=SPLIT,
    seen=lambda length, queries, i: length - queries + i + 1,
    length_of=lambda lengths, b: int(lengths[b]),
    reader=lambda h, group, kv_heads: h // group,
    of_part=part,
    merged=merged,
    masked=True,
    bounds=lambda start, end: (start, end),
):
    """The op in float32, one query at a time; the last keywords are what mutants change."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    o, lse = torch.zeros(q.shape, device=q.device), torch.full(q.shape[:-1], -math.inf, device=q.device)
    batch, heads, queries, _ = q.shape
    kv_heads = k.shape[1]
    for b in range(batch):
        readers = [reader(h, heads // max(kv_heads, 1), kv_heads) for h in range(heads)]
        rows, keys, own = load(q[b]), load(k[b, readers]), load(v[b, readers])
        for i in range(queries):
            last = max(0, min(seen(length_of(lengths, b), queries, i), k.shape[2]))
            s = (keys @ rows[:, i, :, None])[..., 0] * scale
            parts = []
            for start in range(0, max(last, 1), split):
                first, end = bounds(start, min(start + split, last))
                if not masked:  # keys up to a whole part, whose p is 0
                    end = min(start + split, k.shape[2])
                hidden = torch.arange(first, max(first, end), device=q.device) >= last
                parts.append(of_part(s[:, first:end].masked_fill(hidden, -math.inf), own[:, first:end]))
            o[b, :, i], lse[b, :, i] = merged(parts)
    return store(o, q.dtype), lse


def _plant():
    for name, flaw in LOADS.items():
        fn = partial(attention_decode, load=flaw.part)
        plant(globals(), name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name in ("result_through_fp16", "result_through_bf16", "result_truncated"):
        flaw = STORES[name]
        plant(globals(), name, partial(attention_decode, store=flaw.part), flaw.about, flaw.kind, dtypes=flaw.dtypes)


_plant()


@mutant("mask")
def length_inclusive(*operands, **params):
    """every query sees one key too many: j <= length"""
    return attention_decode(*operands, **params, seen=lambda length, queries, i: length - queries + i + 2)


@mutant("mask")
def last_key_lost(*operands, **params):
    """the newest key, the query's own, is hidden"""
    return attention_decode(*operands, **params, seen=lambda length, queries, i: length - queries + i)


@mutant("causal")
def every_query_sees_all(*operands, **params):
    """all queries see all keys of their sequence"""
    return attention_decode(*operands, **params, seen=lambda length, queries, i: length)


@mutant("causal")
def top_left(q, k, v, lengths, **params):
    """query i sees the first keys up to i, as where queries and keys begin together"""
    return attention_decode(q, k, v, lengths, **params, seen=lambda length, queries, i: min(length, i + 1))


@mutant("formula")
def length_of_the_first_sequence(*operands, **params):
    """every sequence has the length of the first"""
    return attention_decode(*operands, **params, length_of=lambda lengths, b: int(lengths[0]))


@mutant("formula")
def length_of_the_whole_cache(q, k, v, lengths, **params):
    """every sequence has filled its cache"""
    return attention_decode(q, k, v, lengths, **params, length_of=lambda lengths, b: k.shape[2])


@mutant("special")
def values_not_masked(*operands, **params):
    """values beyond the length are multiplied by a probability of 0, which leaves their NaN"""
    return attention_decode(*operands, **params, masked=False)


@mutant("heads")
def heads_modulo(*operands, **params):
    """query head h reads key head h modulo their number"""
    return attention_decode(*operands, **params, reader=lambda h, group, kv_heads: h % kv_heads)


@mutant("heads")
def first_head_for_all(*operands, **params):
    """every query head reads key head 0"""
    return attention_decode(*operands, **params, reader=lambda h, group, kv_heads: 0)


@mutant("tail")
def last_split_is_whole(*operands, **params):
    """keys beyond whole parts of 16 are lost"""
    return attention_decode(
        *operands, **params, bounds=lambda start, end: (start, end if end - start == SPLIT else start)
    )


@mutant("tail")
def four_splits_only(*operands, **params):
    """parts beyond the fourth are lost"""
    return attention_decode(*operands, **params, merged=lambda parts: merged(parts[:4]))


@mutant("tail")
def keys_beyond_1024_lost(*operands, **params):
    """keys beyond the first 1024 are lost"""
    return attention_decode(*operands, **params, merged=lambda parts: merged(parts[: 1024 // SPLIT]))


@mutant("causal")
def queries_at_the_first_key(*operands, **params):
    """where there are fewer keys than queries, the first query is that of the first key"""
    return attention_decode(
        *operands, **params, seen=lambda length, queries, i: max(length - queries, 0) + i + 1 if length else 0
    )


@mutant("heads")
def groups_of_a_power_of_two(*operands, **params):
    """the query heads of a key head are counted as the power of two below their number"""
    return attention_decode(
        *operands,
        **params,
        reader=lambda h, group, kv_heads: min(h // (1 << max(group, 1).bit_length() - 1), kv_heads - 1),
    )


@mutant("accumulator")
def last_part_overwrites(*operands, **params):
    """the last part stands for all"""
    return attention_decode(*operands, **params, merged=lambda parts: parts[-1])


@mutant("rescale")
def merged_without_weights(*operands, **params):
    """the outputs of parts are averaged, whatever their lse"""

    def averaged(parts):
        return sum(o for o, _ in parts) / len(parts), merged(parts)[1]

    return attention_decode(*operands, **params, merged=averaged)


@mutant("scale")
def merged_in_base_2(*operands, **params):
    """parts are merged as if their lse were to base 2"""

    def base_2(parts):
        o, lse = merged([(o, lse * math.log(2)) for o, lse in parts])
        return o, lse / math.log(2)

    return attention_decode(*operands, **params, merged=base_2)


@mutant("scale")
def lse_to_base_2(*operands, **params):
    """lse is the logarithm to base 2"""
    o, lse = attention_decode(*operands, **params)
    return o, lse / math.log(2)


@mutant("special")
def no_key_gives_nan(*operands, **params):
    """a query that sees nothing gives NaN: 0 / 0, or -inf - -inf"""
    o, lse = attention_decode(*operands, **params)
    return torch.where(lse.isneginf()[..., None], math.nan, o), lse


@mutant("special")
def no_key_gives_a_finite_lse(*operands, **params):
    """lse of a query that sees nothing is -1e30"""
    o, lse = attention_decode(*operands, **params)
    return o, lse.clamp_min(-1e30)


@mutant("special")
def no_key_averages_all(q, k, v, lengths, **params):
    """a sequence of no length gives the average of its cache, as a softmax of a finite sentinel does"""
    o, lse = attention_decode(q, k, v, lengths, **params)
    mean = v.float().nan_to_num(0.0).mean(2).repeat_interleave(q.shape[1] // max(k.shape[1], 1), 1)[:, :, None]
    return torch.where(lse.isneginf()[..., None], mean.to(o.dtype), o), lse


@mutant("overflow")
def no_maximum(*operands, **params):
    """the maximum is not subtracted before exp"""

    def plain(s, v):
        p = torch.exp(s)
        l = p.sum(-1, keepdim=True)
        return (p[..., None, :] @ v)[..., 0, :] / torch.where(l == 0, 1.0, l), torch.log(l)[..., 0]

    return attention_decode(*operands, **params, of_part=plain)


@mutant("precision", dtypes=("float32", "float16"))
def parts_in_bf16(*operands, **params):
    """the outputs of parts are kept in bfloat16"""

    def narrow(s, v):
        o, lse = part(s, v)
        return o.bfloat16().float(), lse

    return attention_decode(*operands, **params, of_part=narrow)


@known_good
def one_part(*operands, **params):
    """all keys in one part"""
    return attention_decode(*operands, **params, split=1 << 30)


@known_good
def parts_of_16(*operands, **params):
    """parts of 16 keys, merged by their lse"""
    return attention_decode(*operands, **params)


@known_good
def parts_of_7_from_the_last(*operands, **params):
    """parts of 7 keys, merged from the last to the first"""
    return attention_decode(*operands, **params, split=7, merged=lambda parts: merged(parts[::-1]))


@known_good
def merged_two_at_a_time(*operands, **params):
    """parts of 16 keys, each merged with what was before"""

    def running(parts):
        found = parts[0]
        for one in parts[1:]:
            found = merged([found, one])
        return found

    return attention_decode(*operands, **params, merged=running)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "parts": Kernel("known-good", "a part of the keys for each program, merged by their lse"),
    "one_key_too_many": Kernel("mask", "the first row beyond the length is a key too"),
    "merged_unweighted": Kernel("rescale", "the outputs of parts are averaged, whatever their lse"),
    "heads_modulo": Kernel("heads", "query head h reads key head h modulo their number"),
    "first_length": Kernel("formula", "every sequence has the length of the first"),
}
