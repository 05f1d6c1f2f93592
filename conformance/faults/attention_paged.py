"""Mutants and known-good kernels of attention_paged(q, k_cache, v_cache, block_table, lengths, *, scale): o (B, Hq, Sq,
D), lse (B, Hq, Sq) in float32."""

import math
from functools import partial

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._rows import LOADS, STORES
from touchstone.conformance.faults.attention_decode import merged, part


def held(cache, table, page, j):
    """The rows of keys j, (keys, Hkv, D), of a sequence whose row of the table is `table`."""
    return cache[table[j // page].long(), j % page]


def attention_paged(
    q,
    k_cache,
    v_cache,
    block_table,
    lengths,
    *,
    scale=None,
    load=torch.Tensor.float,
    store=torch.Tensor.to,
    seen=lambda length, queries, i: length - queries + i + 1,
    length_of=lambda lengths, b: int(lengths[b]),
    table_of=lambda table, b: table[b],
    rows_of=held,
    rows_of_values=held,
    reader=lambda h, group, kv_heads: h // group,
    of_part=part,
    merged=merged,
    split=16,
):
    """The op in float32, one sequence at a time; the last keywords are what mutants change."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    o, lse = torch.zeros(q.shape, device=q.device), torch.full(q.shape[:-1], -math.inf, device=q.device)
    heads, queries, page, kv_heads = q.shape[1], q.shape[2], k_cache.shape[1], k_cache.shape[2]
    readers = [reader(h, heads // max(kv_heads, 1), kv_heads) for h in range(heads)]
    for b in range(len(q)):
        length = length_of(lengths, b)
        j = torch.arange(max(0, min(seen(length, queries, queries - 1), block_table.shape[1] * page)), device=q.device)
        keys = load(rows_of(k_cache, table_of(block_table, b), page, j))[:, readers].transpose(0, 1)
        own = load(rows_of_values(v_cache, table_of(block_table, b), page, j))[:, readers].transpose(0, 1)
        for i in range(queries):
            last = max(0, min(seen(length, queries, i), len(j)))
            s = (keys[:, :last] @ load(q[b, :, i, :, None]))[..., 0] * scale
            cuts = [(start, min(start + split, last)) for start in range(0, max(last, 1), split)]
            o[b, :, i], lse[b, :, i] = merged([of_part(s[:, a:z], own[:, a:z]) for a, z in cuts])
    return store(o, q.dtype), lse


def _plant():
    for name, flaw in LOADS.items():
        fn = partial(attention_paged, load=flaw.part)
        plant(globals(), name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name in ("result_through_fp16", "result_through_bf16", "result_truncated"):
        flaw = STORES[name]
        plant(globals(), name, partial(attention_paged, store=flaw.part), flaw.about, flaw.kind, dtypes=flaw.dtypes)


_plant()


@mutant("formula")
def page_after_the_right_one(*operands, **params):
    """key j lies in the page after that of its entry, the last entry's excepted"""

    def after(cache, table, page, j):
        return cache[table[(j // page + 1).clamp_max((len(j) - 1) // page)].long(), j % page]

    return attention_paged(*operands, **params, rows_of=after, rows_of_values=after)


@mutant("formula")
def table_ignored(*operands, **params):
    """the first pages of the cache are every sequence's"""

    def first(cache, table, page, j):
        return cache[(j // page) % len(cache), j % page]

    return attention_paged(*operands, **params, rows_of=first, rows_of_values=first)


@mutant("formula")
def table_of_the_first_sequence(*operands, **params):
    """every sequence has the pages of the first, as far as these go"""
    lengths = operands[4]
    page = operands[1].shape[1]

    def own(table, b):
        known = -(-int(lengths[0]) // page)
        return torch.cat([table[0, :known], table[b, known:]])

    return attention_paged(*operands, **params, table_of=own)


@mutant("strides")
def table_taken_to_be_contiguous(q, k_cache, v_cache, block_table, lengths, **params):
    """the strides of the table are those of a contiguous one"""
    rows, entries = block_table.shape
    fits = block_table.stride(0) >= entries  # memory that there is
    table = block_table.as_strided((rows, entries), (entries, 1)) if fits else block_table
    return attention_paged(q, k_cache, v_cache, table.clamp_max(len(k_cache) - 1), lengths, **params)


@mutant("formula")
def row_without_the_page(*operands, **params):
    """every page's first row stands for all of its rows"""

    def first(cache, table, page, j):
        return cache[table[j // page].long(), 0 * j]

    return attention_paged(*operands, **params, rows_of=first, rows_of_values=first)


@mutant("formula")
def values_of_the_first_page(*operands, **params):
    """values come from a sequence's first page, keys from their own"""

    def first(cache, table, page, j):
        return cache[table[0 * j].long(), j % page]

    return attention_paged(*operands, **params, rows_of_values=first)


@mutant("shapes")
def pages_of_16_rows(*operands, **params):
    """a page has 16 rows, whatever it has"""

    def sixteen(cache, table, page, j):
        return cache[table[(j // 16).clamp_max((len(j) - 1) // page)].long(), (j % 16).clamp_max(page - 1)]

    return attention_paged(*operands, **params, rows_of=sixteen, rows_of_values=sixteen)


@mutant("shapes")
def page_of_a_tile(*operands, **params):
    """the page of the first of every 16 keys is taken for all of them"""

    def of_a_tile(cache, table, page, j):
        return cache[table[j // 16 * 16 // page].long(), j % page]

    return attention_paged(*operands, **params, rows_of=of_a_tile, rows_of_values=of_a_tile)


@mutant("strides")
def page_stride_reconstructed(q, k_cache, v_cache, block_table, lengths, **params):
    """a page begins page·(stride of a row) after the one before, where the cache may hold its values in between"""

    def without_gaps(cache):
        strides = (cache.shape[1] * cache.stride(1), *cache.stride()[1:])
        fits = cache.shape[1] > 1 and strides[0] <= cache.stride(0)  # memory that there is
        return cache.as_strided(cache.shape, strides) if fits else cache

    return attention_paged(q, without_gaps(k_cache), without_gaps(v_cache), block_table, lengths, **params)


@mutant("axis")
def rows_and_heads_swapped(q, k_cache, v_cache, block_table, lengths, **params):
    """pages are taken to be stored as (heads, rows, D)"""

    def swapped(cache):
        shape = (len(cache), cache.shape[2], cache.shape[1], cache.shape[3])
        return cache.reshape(shape).transpose(1, 2)

    return attention_paged(q, swapped(k_cache), swapped(v_cache), block_table, lengths, **params)


@mutant("tail")
def last_page_lost(*operands, **params):
    """a last page that is not full is not attended to"""
    page = operands[1].shape[1]
    return attention_paged(
        *operands, **params, length_of=lambda lengths, b: max(int(lengths[b]) // page * page, min(1, int(lengths[b])))
    )


@mutant("mask")
def last_page_full(q, k_cache, v_cache, block_table, lengths, **params):
    """a sequence's last page is full"""
    page = k_cache.shape[1]
    return attention_paged(
        q,
        k_cache,
        v_cache,
        block_table,
        lengths,
        **params,
        length_of=lambda lengths, b: -(-int(lengths[b]) // page) * page,
    )


@mutant("bounds")
def one_page_too_many(q, k_cache, v_cache, block_table, lengths, **params):
    """where the last page is full, the entry after it is read, and the page that it names"""
    o, lse = attention_paged(q, k_cache, v_cache, block_table, lengths, **params)
    page = k_cache.shape[1]
    for b, length in enumerate(lengths.tolist()):
        if length and length % page == 0 and length // page < block_table.shape[1]:
            v_cache[int(block_table[b, length // page])]
    return o, lse


@mutant("mask")
def length_inclusive(*operands, **params):
    """every query sees one key too many: j <= length, in a page that there is"""
    page = operands[1].shape[1]

    def seen(length, queries, i):
        last = length - queries + i + 1
        return min(last + 1, max(last, -(-length // page) * page))

    return attention_paged(*operands, **params, seen=seen)


@mutant("mask")
def last_key_lost(*operands, **params):
    """the newest key, the query's own, is hidden"""
    return attention_paged(*operands, **params, seen=lambda length, queries, i: length - queries + i)


@mutant("causal")
def every_query_sees_all(*operands, **params):
    """all queries see all keys of their sequence"""
    return attention_paged(*operands, **params, seen=lambda length, queries, i: length)


@mutant("formula")
def length_of_the_first_sequence(*operands, **params):
    """no sequence is longer than the first"""
    return attention_paged(*operands, **params, length_of=lambda lengths, b: min(int(lengths[0]), int(lengths[b])))


@mutant("heads")
def heads_modulo(*operands, **params):
    """query head h reads key head h modulo their number"""
    return attention_paged(*operands, **params, reader=lambda h, group, kv_heads: h % kv_heads)


@mutant("heads")
def first_head_for_all(*operands, **params):
    """every query head reads key head 0"""
    return attention_paged(*operands, **params, reader=lambda h, group, kv_heads: 0)


@mutant("tail")
def four_parts_only(*operands, **params):
    """parts beyond the fourth are lost"""
    return attention_paged(*operands, **params, merged=lambda parts: merged(parts[:4]))


@mutant("tail")
def keys_beyond_1024_lost(*operands, **params):
    """keys beyond the first 1024 are lost"""
    return attention_paged(*operands, **params, merged=lambda parts: merged(parts[:64]))


@mutant("offset")
def pages_of_8_bits(*operands, **params):
    """the numbers of pages are kept in 8 bits"""
    return attention_paged(*operands, **params, table_of=lambda table, b: table[b] % 256)


@mutant("rescale")
def merged_without_weights(*operands, **params):
    """the outputs of parts are averaged, whatever their lse"""

    def averaged(parts):
        return sum(o for o, _ in parts) / len(parts), merged(parts)[1]

    return attention_paged(*operands, **params, merged=averaged)


@mutant("scale")
def lse_to_base_2(*operands, **params):
    """lse is the logarithm to base 2"""
    o, lse = attention_paged(*operands, **params)
    return o, lse / math.log(2)


@mutant("special")
def no_key_gives_nan(*operands, **params):
    """a query that sees nothing gives NaN: 0 / 0, or -inf - -inf"""
    o, lse = attention_paged(*operands, **params)
    return torch.where(lse.isneginf()[..., None], math.nan, o), lse


@mutant("special")
def no_key_gives_a_finite_lse(*operands, **params):
    """lse of a query that sees nothing is -1e30"""
    o, lse = attention_paged(*operands, **params)
    return o, lse.clamp_min(-1e30)


@mutant("special")
def values_not_masked(q, k_cache, v_cache, block_table, lengths, **params):
    """values of the last page beyond the length are multiplied by a probability of 0, which leaves their NaN"""
    o, lse = attention_paged(q, k_cache, v_cache, block_table, lengths, **params)
    page = k_cache.shape[1]
    for b, length in enumerate(lengths.tolist()):
        if length % page:
            beyond = v_cache[int(block_table[b, length // page]), length % page :].float()
            o[b] += (0 * beyond).sum((0, 1)).to(o.dtype)
    return o, lse


@mutant("precision", dtypes=("float32", "float16"))
def parts_in_bf16(*operands, **params):
    """the outputs of parts are kept in bfloat16"""

    def narrow(s, v):
        o, lse = part(s, v)
        return o.bfloat16().float(), lse

    return attention_paged(*operands, **params, of_part=narrow)


@known_good
def gathered_first(*operands, **params):
    """a sequence's keys are gathered, and attended to in one part"""
    return attention_paged(*operands, **params, split=1 << 30)


@known_good
def parts_of_16(*operands, **params):
    """parts of 16 keys, merged by their lse"""
    return attention_paged(*operands, **params)


@known_good
def a_part_for_each_page(*operands, **params):
    """a page at a time, from the last to the first"""
    return attention_paged(*operands, **params, split=operands[1].shape[1], merged=lambda parts: merged(parts[::-1]))


@known_good
def merged_two_at_a_time(*operands, **params):
    """parts of 7 keys, each merged with what was before"""

    def running(parts):
        found = parts[0]
        for one in parts[1:]:
            found = merged([found, one])
        return found

    return attention_paged(*operands, **params, merged=running, split=7)


@known_good
def probabilities_in_the_dtype(*operands, **params):
    """probabilities are rounded to the dtype of the values before they are multiplied"""

    def rounded(s, v):
        m = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -math.inf)
        p = torch.exp(s - torch.where(m.isneginf(), 0.0, m))
        l = p.sum(-1, keepdim=True)
        o = (p.to(operands[0].dtype).float()[..., None, :] @ v)[..., 0, :] / torch.where(l == 0, 1.0, l)
        return o, (m + torch.log(l))[..., 0]

    return attention_paged(*operands, **params, of_part=rounded)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "pages": Kernel("known-good", "a program for each query, which takes its sequence's pages one after another"),
    "next_page": Kernel("formula", "every key but those of a sequence's last page is read from the page after its own"),
    "second_page_of_the_first": Kernel("formula", "every sequence's second page is that of the first sequence"),
    "page_stride": Kernel(
        "strides", "a page begins page·(stride of a row) after the one before", "values: |OutOfBounds"
    ),
    "last_page_full": Kernel("mask", "a sequence's last page is full"),
    "heads_modulo": Kernel("heads", "query head h reads key head h modulo their number"),
    "first_length": Kernel("formula", "no sequence is longer than the first"),
    "page_int32": Kernel(
        "offset", "page times the stride of pages is a product of 32 bits, which wraps", "OutOfBounds"
    ),
    "entry_beyond_the_last": Kernel(
        "bounds", "the page of the next entry is read ahead, where the last page is full too", "OutOfBounds"
    ),
}
