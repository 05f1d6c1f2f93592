"""attention_paged(q, k_cache, v_cache, block_table, lengths, *, scale): o and lse of a few queries over a cache in
pages, which sequences can share; the rows and the entries of the table that are nobody's hold anything."""

from dataclasses import replace

import torch

from touchstone.conformance.contracts import attention, attention_decode
from touchstone.conformance.contracts._decode import TIMES, nothing_is_left, sized
from touchstone.conformance.contracts._laws import equals_op, relabels
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.baselines import Bench, eager
from touchstone.conformance.spec.contract import Also, Case, Contract, Draw, Invalid, Operand, Output, Property, Regular

SIZES = [
    dict(B=batch, Hq=heads_q, Hkv=heads_kv, Sq=seq_q, P=pages, page=rows, n=most, D=dim)
    for batch, heads_q, heads_kv, seq_q, pages, rows, most, dim in [
        (3, 4, 2, 1, 7, 8, 3, 16),
        (1, 1, 1, 1, 1, 1, 1, 64),
        (2, 2, 1, 1, 2, 8, 0, 16),
        (2, 8, 1, 1, 5, 24, 4, 80),
        (5, 3, 3, 3, 14, 1, 6, 24),
        (2, 6, 2, 7, 9, 3, 4, 136),
        (9, 20, 4, 1, 20, 1, 3, 8),
        (1, 4, 2, 2, 290, 16, 192, 8),
    ]
]
REGULAR = Regular(
    [
        dict(B=batch, Hq=heads_q, Hkv=heads_kv, Sq=1, P=batch * most + 1, page=16, n=most, D=dim)
        for batch, heads_q, heads_kv, most, dim in [
            (2, 4, 4, 4, 64),
            (1, 4, 1, 8, 128),
            (4, 2, 1, 4, 128),
            (2, 8, 2, 4, 64),
            (2, 2, 2, 12, 64),
            (1, 8, 1, 4, 128),
            (1, 4, 4, 12, 64),
            (4, 1, 1, 4, 64),
        ]
    ]
)
OVER_TILES = dict(B=1, Hq=4, Hkv=2, Sq=1, P=41, page=16, n=38, D=8)
BEYOND_GRID = [dict(B=3, Hq=23001, Hkv=1, Sq=1, P=4, page=2, n=2, D=4)]
LARGE = [
    dict(B=batch, Hq=32, Hkv=heads, Sq=1, P=batch * most, page=16, n=most, D=128)
    for batch, heads, most in [(64, 8, 256), (16, 8, 1024), (1, 8, 8192), (16, 32, 256)]
]


def _most(size) -> int:
    """Keys of the longest sequence."""
    return size["n"] * size["page"]


def _lengths(size) -> list[int]:
    """Two thirds of the keys, which may be whole pages, nothing, all but a third of a page, one row: in turn. Two
    thirds of the sizes here are powers of two, so that no probability is rounded where the scale is 0."""
    most, page = _most(size), size["page"]
    pattern = [most - most // 3, 0, max(0, most - page // 3), min(1, most)]
    return [pattern[b % len(pattern)] for b in range(size["B"])]


def _own(inputs) -> torch.Tensor:
    """(B, n·page): which keys each sequence has."""
    keys = inputs["block_table"].shape[1] * inputs["k_cache"].shape[1]
    return torch.arange(keys, device=inputs["lengths"].device) < inputs["lengths"][:, None]


def _places(inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, n·page) each: the page and the row of each key; of a key that a sequence has not, page 0."""
    own = _own(inputs)
    j = torch.arange(own.shape[1], device=own.device)
    pages = inputs["block_table"].long()[:, j // inputs["k_cache"].shape[1]]
    return torch.where(own, pages, 0), (j % inputs["k_cache"].shape[1]).expand(own.shape)


def gathered(inputs) -> dict[str, torch.Tensor]:
    """The operands of attention_decode: every sequence's pages one after another."""
    pages, rows = _places(inputs)
    k, v = (inputs[name][pages, rows].transpose(1, 2) for name in ("k_cache", "v_cache"))
    return {"q": inputs["q"], "k": k, "v": v, "lengths": inputs["lengths"]}


def expect(inputs, params, *, dtype, compute=None):
    return attention_decode.expect(gathered(inputs), params, dtype=dtype, compute=compute)


def _unused_rows(inputs, params) -> torch.Tensor:
    """(P, page, 1, 1): the rows of the cache that are nobody's."""
    own, (pages, rows) = _own(inputs), _places(inputs)
    unused = torch.ones(inputs["k_cache"].shape[:2], dtype=torch.bool)
    unused[pages[own], rows[own]] = False
    return unused[:, :, None, None]


def _unused_entries(inputs, params) -> torch.Tensor:
    """(B, n): the entries beyond a sequence's last page."""
    lengths = inputs["lengths"][:, None]
    first = torch.arange(inputs["block_table"].shape[1], device=lengths.device) * inputs["k_cache"].shape[1]
    return first >= lengths


class _OfSequences:
    """A draw in which k and v are attention's: the keys of one sequence after another."""

    def __init__(self, draw: Draw):
        self._draw = draw

    def __getattr__(self, name):
        return getattr(self._draw, name)

    def shape(self, operand: str) -> tuple[int, ...]:
        size = self._draw.size
        return self._draw.shape("q") if operand == "q" else (size["B"], size["Hkv"], _most(size), size["D"])


def _table(draw: Draw, lengths: list[int]) -> torch.Tensor:
    """(B, n): pages in random order, the last of the cache first, as far as there are any. The third sequence begins
    with the first one's first page."""
    size = draw.size
    order = [size["P"] - 1, *draw.uniform((size["P"] - 1,)).argsort().tolist()]
    table = draw.integers((size["B"], size["n"]), 0, size["P"])
    taken = 0
    for b, length in enumerate(lengths):
        for place in range(-(-length // size["page"])):
            if b == 2 and place == 0:
                table[b, 0] = table[0, 0]
                continue
            table[b, place] = order[taken % len(order)]
            taken += 1
    return table


def _family(make, lengths_of=_lengths):
    def family(draw: Draw):
        q, *keys_and_values = make(_OfSequences(draw))
        size, lengths = draw.size, lengths_of(draw.size)
        found = {"q": q, "block_table": _table(draw, lengths), "lengths": torch.tensor(lengths, dtype=torch.float64)}
        for name, own in zip(("k_cache", "v_cache"), keys_and_values, strict=True):
            cache = draw.normal(draw.shape(name))
            for b in reversed(range(size["B"])):  # a page that is shared has the first sequence's keys
                j = torch.arange(lengths[b])
                pages, rows = found["block_table"][b].long()[j // size["page"]], j % size["page"]
                cache[pages, rows] = own[b, :, : lengths[b]].transpose(0, 1)
                if name == "v_cache":
                    cache[pages[-1:], rows[-1:]] += 3  # the last key counts
            found[name] = cache
        return found

    return family


def _valid(case: Case) -> bool:
    if 0 in case.size.values():
        return case.values == "normal"
    return case.values != "growing_keys" or case.param["scale"] != 0


def _keys(size) -> int:
    return sum(_lengths(size))


def _bytes(size, param, item) -> float:
    queries, entries = size["B"] * size["Hq"] * size["Sq"], sum(-(-n // size["page"]) for n in _lengths(size))
    return 2 * (queries + size["Hkv"] * _keys(size)) * size["D"] * item + 4 * (queries + entries + size["B"])


def _spread_out(arguments) -> dict[str, torch.Tensor]:
    """The caches and the table with a page of its own for every entry of the table, in the table's order."""
    table, unused = arguments["block_table"], _unused_entries(arguments, {})
    pages = table.long().masked_fill(unused, 0).flatten()
    found = {name: arguments[name][pages] for name in ("k_cache", "v_cache")}
    numbers = torch.arange(table.numel(), dtype=table.dtype, device=table.device).view(table.shape)
    return {**found, "block_table": torch.where(unused, table, numbers)}


def _one_page_for_each_entry(case: Case) -> Case:
    pages = case.size["B"] * case.size["n"]
    return replace(case, sizes=tuple((name, pages if name == "P" else size) for name, size in case.sizes))


def _shared_is_copied(call, arguments, outputs, case):
    again = call(**{**arguments, **_spread_out(arguments)})
    same = all(torch.equal(before, after) for before, after in zip(outputs, again, strict=True))
    return None if same else "copies of shared pages give another answer than the pages themselves"


def _other_numbers(arguments, case):
    """Pages change places, and the table with them."""
    order = torch.randperm(case.size["P"], generator=case.rng("order")).to(arguments["q"].device)
    moved = {name: arguments[name][order] for name in ("k_cache", "v_cache")}
    table = arguments["block_table"]
    unused = _unused_entries(arguments, {})
    there = order.argsort().to(table.dtype)[table.long().masked_fill(unused, 0)]
    return {**arguments, **moved, "block_table": torch.where(unused, table, there)}


def _in_one_page(arguments, case):
    """One page that holds all of a sequence is what attention_decode takes."""
    contiguous = gathered(arguments)
    table = torch.arange(case.size["B"], dtype=torch.int32, device=arguments["q"].device)[:, None]
    caches = {f"{name}_cache": contiguous[name].transpose(1, 2).contiguous() for name in ("k", "v")}
    return {**arguments, **caches, "block_table": table}


def _more_entries(arguments, times):
    """Each sequence's pages, one time after the other."""
    table = arguments["block_table"].masked_fill(_unused_entries(arguments, {}), 0)
    caches = {name: arguments[name].nan_to_num(0.0, 0.0, 0.0) for name in ("k_cache", "v_cache")}
    return {**arguments, **caches, "block_table": torch.cat([table] * times, 1)}


def _of_decode(exact, case):
    return attention_decode.expect(gathered(exact), {"scale": exact["scale"]}, dtype=case.torch_dtype)


def _one_page_for_each_sequence(case: Case) -> Case:
    sizes = {**case.size, "P": case.size["B"], "page": _most(case.size), "n": 1}
    return replace(case, sizes=tuple(sizes.items()))


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


ALSO = {
    "one_query_of_groups": Also(dict(B=3, Hq=24, Hkv=2, Sq=1, P=14, page=8, n=4, D=96), dtype="float16"),
    "wide_heads": Also(dict(B=3, Hq=4, Hkv=2, Sq=3, P=14, page=8, n=5, D=160), dtype="bfloat16"),
    **attention.of_widths(dict(B=3, Hq=2, Hkv=1, Sq=2, P=14, page=8, n=5)),
    "large_pages": Also(dict(B=3, Hq=2, Hkv=1, Sq=1, P=7, page=256, n=2, D=16), dtype="float16"),  # than a tile of keys
    "many_keys": Also(  # 4171 of them, on 261 pages
        dict(B=1, Hq=2, Hkv=1, Sq=1, P=270, page=16, n=391, D=16), _family(attention.small_addends), dtype="float16"
    ),
    "low_weights": Also(dict(B=1, Hq=2, Hkv=1, Sq=1, P=270, page=16, n=391, D=16), _family(attention.low_weights)),
    "low_scores": Also(dict(B=3, Hq=4, Hkv=2, Sq=1, P=7, page=8, n=3, D=16), _family(attention.far_below)),
    "one_key_more": Also(dict(B=1, Hq=2, Hkv=1, Sq=1, P=770, page=1, n=769, D=16), "growing_keys"),  # 513 of them
    "keys_beyond_16_bits": Also(dict(B=1, Hq=1, Hkv=1, Sq=1, P=1030, page=64, n=1538, D=8)),  # 65622 of them
    # the last key, in a tile of its own, is seen by one query of three
    "queries_before_a_tile": Also(dict(B=1, Hq=2, Hkv=1, Sq=3, P=770, page=1, n=769, D=16)),
    # one of the sequences has all rows of its pages, no whole tiles or equal parts
    "full_in_several_tiles": Also(dict(B=3, Hq=2, Hkv=1, Sq=1, P=1100, page=1, n=643, D=16)),
    "many_pages": Also(dict(B=2, Hq=2, Hkv=1, Sq=1, P=66001, page=1, n=33, D=8)),
    # no sequence has as many pages as the table has room for
    "room_in_the_table": Also(
        dict(B=3, Hq=2, Hkv=1, Sq=1, P=9, page=4, n=6, D=16), _family(attention.heads, lambda size: [5, 9, 11])
    ),
}
contract = Contract(
    operands={
        "q": Operand("B Hq Sq D", layouts.HEADS),
        "k_cache": Operand("P page Hkv D", layouts.PAGES, garbage=_unused_rows, unused="rows that are no sequence's"),
        "v_cache": Operand("P page Hkv D", layouts.PAGES, garbage=_unused_rows, unused="rows that are no sequence's"),
        "block_table": Operand(
            "B n",
            layouts.TABLE,
            torch.int32,
            indexes="P",
            garbage=_unused_entries,
            unused="entries behind the last page",
        ),
        "lengths": Operand("B", ("contiguous", "step", "offset"), torch.int32, fixed=True),
    },
    outputs={"o": Output("B Hq Sq D"), "lse": Output("B Hq Sq", torch.float32)},
    sizes=SIZES,
    regular=REGULAR,
    beyond_grid=BEYOND_GRID,
    over_tiles=OVER_TILES,
    values={
        name: _family(make)
        for name, make in {
            "normal": attention.heads,
            "growing_keys": attention.growing_keys,
            "large": attention.large,
            "shifted_negative": attention.shifted_negative,
            "cancelling": attention.cancelling,
            "uniform": attention_decode.equal_scores,
        }.items()
    },
    params={"scale": (None, -0.3, 0.0)},
    valid=_valid,
    expect=expect,
    also=ALSO,
    large=LARGE,
    flops=lambda size, param: 4 * size["Hq"] * size["Sq"] * _keys(size) * size["D"] + 1,
    calls=lambda size, param: size["Hq"] * size["Sq"] * _keys(size),
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", _spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("k_cache has another D", _spoil("k_cache", lambda k: k[..., 1:]), ValueError, r"\bk_cache\b"),
        Invalid("v_cache has other pages", _spoil("v_cache", lambda v: v[:, 1:]), ValueError, r"\bv_cache\b"),
        Invalid("heads of q no multiple", _spoil("q", lambda q: q[:, :3]), ValueError, r"\bq\b.*\bheads\b"),
        Invalid("q is float64", _spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("v_cache has another dtype", _spoil("v_cache", torch.Tensor.half), TypeError, r"\bv_cache\b"),
        Invalid("table is int64", _spoil("block_table", torch.Tensor.long), TypeError, r"\bblock_table\b.*int64"),
        Invalid("table of one less", _spoil("block_table", lambda t: t[1:]), ValueError, r"\bblock_table\b"),
        Invalid("table is 1-D", _spoil("block_table", lambda t: t[0]), ValueError, r"\bblock_table\b"),
        Invalid("lengths are int64", _spoil("lengths", torch.Tensor.long), TypeError, r"\blengths\b.*int64"),
        Invalid("lengths is None", _spoil("lengths", lambda t: None), TypeError, r"\blengths\b"),
        Invalid("k_cache is elsewhere", _spoil("k_cache", lambda k: k.to("meta")), ValueError, r"\bk_cache\b.*meta"),
    ],
    properties=[
        relabels("numbers of pages do not matter", _other_numbers),
        nothing_is_left(_more_entries, lambda case: sized(case, n=TIMES * case.size["n"])),
        Property(
            "a shared page is as good as its copy", _shared_is_copied, bitwise=True, elsewhere=_one_page_for_each_entry
        ),
        equals_op(
            "attention_decode over the gathered cache", _in_one_page, _of_decode, elsewhere=_one_page_for_each_sequence
        ),
    ],
)


def _sdpa(q, k_cache, v_cache, block_table, lengths, scale, **_):
    """Gathers the cache first."""
    inputs = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table, "lengths": lengths}
    contiguous = gathered(inputs)
    last = torch.arange(q.shape[2], device=q.device)[:, None] + lengths[:, None, None, None] - q.shape[2]
    k, v = contiguous["k"].nan_to_num(0.0), contiguous["v"].nan_to_num(0.0)
    seen = torch.arange(k.shape[2], device=q.device) <= last
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    return {"o": o}


bench = Bench(
    baselines=[eager("gather, F.scaled_dot_product_attention", _sdpa)], independent_axes=(("B",), ("Hq", "Hkv"))
)
