"""Mutants and known-good kernels of attention_varlen_backward(q, k, v, o, lse, do, cu_q, cu_k, *, max_q, max_k, causal,
scale) -> dq, dk, dv."""

import math
from functools import partial
from itertools import pairwise

import torch

from touchstone.conformance.faults import Kernel, mutant, plant
from touchstone.conformance.faults import attention_backward as dense

EQUIVALENT = {
    "swallows_nan": "a NaN in do reaches hidden keys or not, as the mask is applied; the contract leaves it open"
}


def spans(cu_q, cu_k, total_q, total_k, max_q, max_k):
    """First row and end of each sequence in q, and in k and v."""
    return [(*rows, *keys) for rows, keys in zip(pairwise(cu_q), pairwise(cu_k), strict=True)]


def attention_varlen_backward(
    q,
    k,
    v,
    o,
    lse,
    do,
    cu_q,
    cu_k,
    *,
    max_q,
    max_k,
    causal=False,
    scale=None,
    spans=spans,
    of_one=dense.from_lse,
    about=lambda first_q, first_k: {},
):
    """Each sequence by attention's backward `of_one`; `about` are its further keywords, by a sequence's first rows."""
    dq, dk, dv = (torch.zeros(t.shape, dtype=torch.float32, device=q.device) for t in (q, k, v))
    every = spans(cu_q.tolist(), cu_k.tolist(), len(q), len(k), max_q, max_k)
    for first_q, end_q, first_k, end_k in every:
        if first_q >= end_q or first_k >= end_k:
            continue
        rows, keys = slice(first_q, end_q), slice(first_k, end_k)
        own = [x[at].transpose(0, 1)[None] for x, at in ((q, rows), (k, keys), (v, keys), (o, rows))]
        own += [lse[:, rows][None], do[rows].transpose(0, 1)[None]]
        found = of_one(*own, causal=causal, scale=scale, **about(first_q, first_k))
        dq[rows] = found[0][0].transpose(0, 1).float()
        dk[keys] += found[1][0].transpose(0, 1)
        dv[keys] += found[2][0].transpose(0, 1)
    return tuple(gradient.to(q.dtype).contiguous() for gradient in (dq, dk, dv))


LIFTED = (
    "from_lse",
    "delta_from_probabilities",
    "stored_in_input_dtype",
    "scaled_before_storing",
    "key_tiles",
    "autograd",
    "p_in_bfloat16",
    "lse_in_bfloat16",
    "delta_missing",
    "delta_added",
    "delta_averaged",
    "delta_of_first_row",
    "base_2",
    "lse_taken_as_base_2",
    "dq_unscaled",
    "dk_unscaled",
    "scale_ignored",
    "causal_ignored",
    "sees_the_next_key",
    "misses_the_diagonal",
    "top_left",
    "interleaved_groups",
    "last_head_of_the_group",
    "delta_of_first_head",
    "empty_rows_poison",
    "query_tail_dropped",
    "last_query_dropped",
    "key_tail_dropped",
    "padded_queries",
    "last_query_tile_only",
    "last_key_tile_only",
)  # of attention's backward, sequence by sequence


def _plant():
    for name in LIFTED:
        fn = getattr(dense, name)
        marks = {key: fn.planted[key] for key in ("kind", "dtypes")}
        lifted = partial(attention_varlen_backward, of_one=fn)
        plant(globals(), f"{name}_of_each", lifted, fn.__doc__.partition("\n")[0], **marks)


_plant()


@mutant("causal")
def causal_by_row(*operands, **params):
    """the causal mask compares rows in memory, not places in a sequence"""

    def about(first_q, first_k):
        return {"hides": lambda i, j, shift: first_k + j > first_q + i}

    return attention_varlen_backward(*operands, **params, about=about)


@mutant("causal")
def aligned_by_the_longest(*operands, max_q, max_k, **params):
    """the causal mask is aligned by max_k - max_q"""

    def about(first_q, first_k):
        return {"hides": lambda i, j, shift: j > i + max_k - max_q}

    return attention_varlen_backward(*operands, max_q=max_q, max_k=max_k, **params, about=about)


@mutant("formula")
def offsets_of_q_for_k(*operands, **params):
    """the sequences of k and v lie where those of q do"""

    def both(cu_q, cu_k, total_q, total_k, *longest):
        return spans(cu_q, [min(offset, total_k) for offset in cu_q], total_q, total_k, *longest)

    return attention_varlen_backward(*operands, **params, spans=both)


@mutant("formula")
def longest_for_all_queries(*operands, **params):
    """every sequence has max_q queries, those of its neighbours too"""

    def long(cu_q, cu_k, total_q, total_k, max_q, max_k):
        every = spans(cu_q, cu_k, total_q, total_k, max_q, max_k)
        return [(first, min(first + max_q, total_q), *keys) for first, _, *keys in every]

    return attention_varlen_backward(*operands, **params, spans=long)


@mutant("mask")
def longest_for_all_keys(*operands, **params):
    """every sequence has max_k keys, those of its neighbours too"""

    def long(cu_q, cu_k, total_q, total_k, max_q, max_k):
        every = spans(cu_q, cu_k, total_q, total_k, max_q, max_k)
        return [(*rows, first, min(first + max_k, total_k)) for *rows, first, _ in every]

    return attention_varlen_backward(*operands, **params, spans=long)


@mutant("mask")
def whole_tiles_of_keys(*operands, **params):
    """keys are masked by whole tiles of 16: those of the next sequence are seen"""

    def whole(cu_q, cu_k, total_q, total_k, *longest):
        every = spans(cu_q, cu_k, total_q, total_k, *longest)
        return [(*rows, first, min(first - (first - end) // 16 * 16, total_k)) for *rows, first, end in every]

    return attention_varlen_backward(*operands, **params, spans=whole)


@mutant("mask")
def whole_tiles_of_queries(*operands, **params):
    """queries are masked by whole tiles of 16: those of the next sequence add to dk and dv"""

    def whole(cu_q, cu_k, total_q, total_k, *longest):
        every = spans(cu_q, cu_k, total_q, total_k, *longest)
        return [(first, min(first - (first - end) // 16 * 16, total_q), *keys) for first, end, *keys in every]

    return attention_varlen_backward(*operands, **params, spans=whole)


@mutant("tail")
def last_sequence_lost(*operands, **params):
    """the last sequence is left out"""
    return attention_varlen_backward(*operands, **params, spans=lambda *about: spans(*about)[:-1])


@mutant("special")
def empty_sequences_skipped(*operands, **params):
    """sequences of no length are left out in q and in k, each by itself: later ones meet others' keys"""

    def some(cu_q, cu_k, *about):
        rows, keys = ([span for span in pairwise(cu) if span[1] > span[0]] for cu in (cu_q, cu_k))
        return [(*of_q, *of_k) for of_q, of_k in zip(rows, keys, strict=False)]

    return attention_varlen_backward(*operands, **params, spans=some)


@mutant("special")
def empty_sequence_ends_all(*operands, **params):
    """what follows a sequence without queries is left out"""

    def until(*about):
        every = spans(*about)
        return every[: next((b for b, (first, end, *_) in enumerate(every) if first == end), len(every))]

    return attention_varlen_backward(*operands, **params, spans=until)


@mutant("special")
def empty_sequences_give_nan(*operands, **params):
    """keys of a sequence without queries have gradients of 0 / 0"""
    dq, dk, dv = attention_varlen_backward(*operands, **params)
    cu_q, cu_k = (operands[at].tolist() for at in (6, 7))
    for first_q, end_q, first_k, end_k in spans(cu_q, cu_k, 0, 0, 0, 0):
        if first_q == end_q:
            dk[first_k:end_k] = math.nan
    return dq, dk, dv


@mutant("special")
def unseen_keys_left(q, k, v, *operands, **params):
    """dk and dv of sequences without queries hold what was in memory: here k and v"""
    dq, dk, dv = attention_varlen_backward(q, k, v, *operands, **params)
    cu_q, cu_k = (operands[at].tolist() for at in (3, 4))
    for first_q, end_q, first_k, end_k in spans(cu_q, cu_k, 0, 0, 0, 0):
        if first_q == end_q:
            dk[first_k:end_k], dv[first_k:end_k] = k[first_k:end_k], v[first_k:end_k]
    return dq, dk, dv


@mutant("special")
def queries_behind_the_last_left(*operands, **params):
    """dq of rows that belong to no sequence holds what was in memory: here do"""
    dq, dk, dv = attention_varlen_backward(*operands, **params)
    end = int(operands[6][-1])
    dq[end:] = operands[5][end:]
    return dq, dk, dv


@mutant("special")
def keys_behind_the_last_left(*operands, **params):
    """dk and dv of rows that belong to no sequence hold what was in memory: here k and v"""
    dq, dk, dv = attention_varlen_backward(*operands, **params)
    end = int(operands[7][-1])
    dk[end:], dv[end:] = operands[1][end:], operands[2][end:]
    return dq, dk, dv


@mutant("special")
def queries_behind_the_last_in_it(*operands, **params):
    """the last sequence has the queries behind it too, whose NaN reach dk and dv"""

    def longer(cu_q, cu_k, total_q, *about):
        return spans([*cu_q[:-1], total_q], cu_k, total_q, *about) if len(cu_q) > 1 else []

    return attention_varlen_backward(*operands, **params, spans=longer)


@mutant("strides")
def lse_by_rows(q, k, v, o, lse, *operands, **params):
    """lse is read as if it lay in memory as (Tq, Hq)"""
    turned = lse.contiguous().view(lse.shape[::-1]).mT
    return attention_varlen_backward(q, k, v, o, turned, *operands, **params)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "rows": Kernel("known-good", "a program for each row of a gradient, which walks over the other side's rows"),
    "next_sequence_seen": Kernel("mask", "keys are masked by whole tiles: those of the next sequence are seen"),
    "causal_by_row": Kernel("causal", "the causal mask compares rows in memory, not places in a sequence"),
    "delta_left_out": Kernel("formula", "delta = Σ do·o is not subtracted"),
    "dk_not_scaled": Kernel("scale", "dk lacks the factor `scale`"),
    "group_not_summed": Kernel("accumulator", "dk and dv are those of the last query head of the group"),
    "empty_row_nan": Kernel("special", "a query that saw no key gives exp(-inf - (-inf))"),
    "unseen_keys_left": Kernel("special", "dk and dv of a sequence without queries are not written"),
    "rows_behind_left": Kernel("special", "gradients of rows that belong to no sequence are not written"),
    "lse_by_rows": Kernel("strides", "lse is read as (Tq, Hq)", "values: |OutOfBounds"),
}
