"""Mutants and known-good kernels of masked_attention(q, k, v, bias, slopes, seg_q, seg_k, *, causal, window, softcap,
scale, p, seed, offset): o (B, Hq, Sq, D), lse (B, Hq, Sq) in float32."""

import math

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults import _dots as dots
from touchstone.reference import _masks

INF = math.inf


def in_place(apart, *, causal, window):
    """Whether a key is seen from its place; `apart` is how far before a query's own key it lies."""
    seen = apart >= 0 if causal else torch.ones_like(apart, dtype=torch.bool)
    return seen if window is None else seen & (apart.abs() < window)


def in_segment(seg_q, seg_k):
    """(B, Sq), (B, Sk) -> (B, 1, Sq, Sk)."""
    return seg_q[:, None, :, None] == seg_k[:, None, None, :]


def capped(s, softcap):
    return s if softcap is None else softcap * torch.tanh(s / softcap)


def scored(dots, softcap, bias, slopes, apart):
    """The soft-cap, then slopes and bias."""
    s = capped(dots, softcap)
    s = s if slopes is None else s - slopes[:, None, None] * apart.abs()
    return s if bias is None else s + bias.float()


def kept(shape, p, seed, offset):
    return _masks.weights(shape, p=p, seed=seed, offset=offset).float().expand(shape)  # one 1 where p = 0


def group_of(head, group, kv_heads):
    return head // group


def own_key(seq_q, seq_k):
    """(Sq,): the own key of each query."""
    return torch.arange(seq_q) + seq_k - seq_q


@known_good
def masked_attention(
    q,
    k,
    v,
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
    weights=kept,
    head_read=group_of,
    shift=lambda s: s.amax(-1, keepdim=True).nan_to_num(neginf=0.0),
    p_dtype=torch.float32,
):
    "whole rows of scores in float32"
    group, (seq_q, seq_k) = q.shape[1] // max(k.shape[1], 1), (q.shape[2], k.shape[2])
    if 0 in (*q.shape, *k.shape):
        return torch.zeros(q.shape, dtype=q.dtype), torch.full(q.shape[:3], -INF)
    read = [head_read(head, group, k.shape[1]) for head in range(q.shape[1])]
    apart = own(seq_q, seq_k)[:, None] - torch.arange(seq_k)
    s = dot(q.float(), k.float()[:, read].mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    s = scored(s, softcap, bias, slopes, apart)
    visible = seen(apart, causal=causal, window=window)
    if seg_q is not None:
        visible = visible & same(seg_q, seg_k)
    s = s.masked_fill(~visible, -INF)
    m = shift(s)
    e = torch.exp(s - m)
    l = e.sum(-1, keepdim=True)
    z = (e * weights(s.shape, p, seed, offset)).to(p_dtype)
    o = dot(z, v.float()[:, read]) / torch.where(l == 0, 1.0, l)
    return o.to(q.dtype), (m + torch.log(l))[..., 0]


@known_good
def probabilities_in_the_dtype(q, *operands, **params):
    "products from the last to the first; what is multiplied by v is dropped out, scaled, then rounded to the dtype"
    return masked_attention(q, *operands, **params, dot=dots.backwards, p_dtype=q.dtype)


@known_good
def flash(q, k, v, bias, slopes, seg_q, seg_k, *, tile=24, tanh_by_exp=True, scored=scored, **params):
    "online softmax over 24 keys at a time, in base 2, p in the dtype; tanh by an exponential; dropout after rounding"
    about = {"causal": False, "window": None, "softcap": None, "scale": None, "p": 0.0, "seed": 0, "offset": 0} | params
    read = torch.arange(q.shape[1]) // (q.shape[1] // max(k.shape[1], 1))
    scale = 1 / math.sqrt(q.shape[-1]) if about["scale"] is None else about["scale"]
    seq_k, log2e = k.shape[2], math.log2(math.e)
    weight = kept((*q.shape[:3], seq_k), about["p"], about["seed"], about["offset"])
    o, l, m = torch.zeros(q.shape), torch.zeros(q.shape[:3]), torch.full(q.shape[:3], -INF)
    for keys in dots.tiles(seq_k, tile):
        apart = own_key(q.shape[2], seq_k)[:, None] - torch.arange(seq_k)[keys]
        s = dots.in_tiles(q, k[:, read, keys].mT) * scale
        if about["softcap"] is not None and tanh_by_exp:
            s = about["softcap"] * (1 - 2 / (torch.exp(2 * s / about["softcap"]) + 1))
        s = scored(s, None, None if bias is None else bias[..., keys], slopes, apart)
        hidden = ~in_place(apart, causal=about["causal"], window=about["window"])
        if seg_q is not None:
            hidden = hidden | ~in_segment(seg_q, seg_k[:, keys])
        s = s.masked_fill(hidden, -INF) * log2e
        larger = torch.maximum(m, s.amax(-1))
        base = larger.nan_to_num(neginf=0.0)
        e, alpha = torch.exp2(s - base[..., None]), torch.exp2(m - base)
        l = l * alpha + e.sum(-1)
        z = e.to(q.dtype).float() * weight[..., keys]
        o, m = o * alpha[..., None] + dots.plain(z.to(q.dtype), v[:, read, keys]), larger
    o = o / torch.where(l == 0, 1.0, l)[..., None]
    return o.to(q.dtype), m / log2e + torch.log(l)


@known_good
def masked_by_addition(q, k, v, bias, slopes, seg_q, seg_k, *, causal=False, window=None, **params):
    "all masks in one bias of 0 and -inf in float32, four partial sums"
    seq_q, seq_k = q.shape[2], k.shape[2]
    seen = _masks.visible(seq_q, seq_k, seg_q, seg_k, causal=causal, window=window)
    whole = torch.zeros((*q.shape[:3], seq_k)).masked_fill(~seen, -INF)
    whole = whole if bias is None else whole + bias.float()
    return masked_attention(q, k, v, whole, slopes, None, None, **params, dot=dots.split)


dots.plant_lower(globals(), masked_attention)


def _place(about, kind, name, seen):
    """A mutant that sees other places."""

    def fn(*operands, **params):
        return masked_attention(*operands, **params, seen=seen)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = about
    globals()[name] = mutant(kind)(fn)


def _windows():
    def moved(by):
        return lambda apart, causal, window: in_place(
            apart, causal=causal, window=None if window is None else window + by
        )

    def left_only(apart, causal, window):
        seen = in_place(apart, causal=causal, window=None)
        return seen if window is None else seen & (apart < window)

    def half(apart, causal, window):
        return in_place(apart, causal=causal, window=window if causal or window is None else window // 2 + 1)

    def behind(apart, causal, window):
        seen = in_place(apart, causal=causal, window=None)
        return seen if window is None else seen & (apart < window) & (apart > 0)

    def first_keys(apart, causal, window):
        seen = in_place(apart, causal=causal, window=None)
        return seen if window is None else seen & (torch.arange(apart.shape[1]) < window)

    def of_top_left(apart, window):
        begin = apart - (apart.shape[1] - apart.shape[0])
        return in_place(begin, causal=window is None, window=window)

    def window_top_left(apart, causal, window):
        seen = in_place(apart, causal=causal, window=None)
        return seen if window is None else seen & of_top_left(apart, window)

    def causal_top_left(apart, causal, window):
        seen = in_place(apart, causal=False, window=window)
        return seen & of_top_left(apart, None) if causal else seen

    def no_diagonal(apart, causal, window):
        return in_place(apart - 1 if causal else apart, causal=causal, window=window)

    for name, kind, seen, about in (
        ("window_as_flash_attn_has_it", "mask", moved(1), "a window has one key more: the own one is not counted"),
        ("window_one_short", "mask", moved(-1), "a window has one key less"),
        ("window_before_only", "mask", left_only, "a window without causality does not bound the keys after"),
        ("window_on_both_sides_halved", "mask", half, "a window is shared out between the keys before and after"),
        ("window_without_own_key", "mask", behind, "a window holds only keys before the own one"),
        ("window_of_the_first_keys", "mask", first_keys, "a window is of the first keys of the sequence"),
        ("window_top_left", "mask", window_top_left, "a window is aligned top-left: without Sk - Sq"),
        ("causal_top_left", "causal", causal_top_left, "causality alone is aligned top-left: without Sk - Sq"),
        ("misses_the_diagonal", "causal", no_diagonal, "the causal mask hides a query's own key"),
    ):
        _place(about, kind, name, seen)


_windows()


@mutant("parameter")
def window_ignored(*operands, window=None, **params):
    "there is no window"
    return masked_attention(*operands, **params)


@mutant("parameter")
def causal_ignored(*operands, causal=False, **params):
    "there is no causal mask"
    return masked_attention(*operands, **params)


@mutant("causal")
def top_left(*operands, **params):
    "causality, window and slopes are aligned top-left: without Sk - Sq"
    return masked_attention(*operands, **params, own=lambda seq_q, seq_k: torch.arange(seq_q))


@mutant("formula")
def slopes_without_shift(*operands, **params):
    "slopes count from the top left: |i - j|"

    def shifted(dots, softcap, bias, slopes, apart):
        return scored(dots, softcap, bias, slopes, apart - (dots.shape[-1] - dots.shape[-2]))

    return masked_attention(*operands, **params, scored=shifted)


@mutant("formula")
def slope_of_the_first_head(q, k, v, bias, slopes, *segments, **params):
    "every head has the slope of the first"
    slopes = None if slopes is None else slopes[:1].expand(slopes.shape)
    return masked_attention(q, k, v, bias, slopes, *segments, **params)


@mutant("formula")
def slopes_of_key_heads(q, k, v, bias, slopes, *segments, **params):
    "a query head has the slope of its key head's number"
    read = torch.arange(q.shape[1]) // (q.shape[1] // max(k.shape[1], 1))
    return masked_attention(q, k, v, bias, None if slopes is None else slopes[read], *segments, **params)


@mutant("formula")
def slopes_are_signed(*operands, **params):
    "slopes multiply the distance with its sign: keys after a query's own one gain"

    def signed(dots, softcap, bias, slopes, apart):
        s = scored(dots, softcap, bias, None, apart)
        return s if slopes is None else s - slopes[:, None, None] * apart

    return masked_attention(*operands, **params, scored=signed)


@mutant("formula")
def slopes_added(q, k, v, bias, slopes, *segments, **params):
    "the distance times the slope is added"
    return masked_attention(q, k, v, bias, None if slopes is None else -slopes, *segments, **params)


@mutant("formula")
def softcap_last(*operands, **params):
    "the soft-cap comes after slopes and bias"

    def last(dots, softcap, bias, slopes, apart):
        return capped(scored(dots, None, bias, slopes, apart), softcap)

    return masked_attention(*operands, **params, scored=last)


@mutant("scale")
def softcap_not_multiplied(*operands, **params):
    "tanh(s / c) is not multiplied by c"

    def bent(dots, softcap, bias, slopes, apart):
        s = dots if softcap is None else torch.tanh(dots / softcap)
        return scored(s, None, bias, slopes, apart)

    return masked_attention(*operands, **params, scored=bent)


@mutant("formula")
def softcap_clamps(*operands, **params):
    "scores are clamped to the soft-cap"

    def clamped(dots, softcap, bias, slopes, apart):
        s = dots if softcap is None else dots.clamp(-softcap, softcap)
        return scored(s, None, bias, slopes, apart)

    return masked_attention(*operands, **params, scored=clamped)


@mutant("parameter")
def softcap_ignored(*operands, softcap=None, **params):
    "there is no soft-cap"
    return masked_attention(*operands, **params)


@mutant("weights")
def bias_ignored(q, k, v, bias, *mods, **params):
    "there is no bias"
    return masked_attention(q, k, v, None, *mods, **params)


@mutant("weights")
def bias_of_the_first_head(q, k, v, bias, *mods, **params):
    "every head has the bias of the first"
    bias = None if bias is None else bias[:, :1].expand(bias.shape)
    return masked_attention(q, k, v, bias, *mods, **params)


@mutant("weights")
def bias_of_the_first_sequence(q, k, v, bias, *mods, **params):
    "every sequence of the batch has the bias of the first"
    bias = None if bias is None else bias[:1].expand(bias.shape)
    return masked_attention(q, k, v, bias, *mods, **params)


@mutant("weights")
def bias_of_the_first_query(q, k, v, bias, *mods, **params):
    "every query has the bias of the first: it is spread over the wrong axis"
    bias = None if bias is None else bias[:, :, :1].expand(bias.shape)
    return masked_attention(q, k, v, bias, *mods, **params)


@mutant("scale")
def bias_scaled(q, *operands, scale=None, **params):
    "the bias is multiplied by the scale too"
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale

    def with_bias(dots, softcap, bias, slopes, apart):
        return scored(dots, softcap, None if bias is None else bias.float() * factor, slopes, apart)

    return masked_attention(q, *operands, scale=scale, **params, scored=with_bias)


@mutant("special")
def bias_without_infinity(q, k, v, bias, *mods, **params):
    "a bias of -inf becomes -10, which hides less"
    bias = None if bias is None else bias.clamp_min(-10)
    return masked_attention(q, k, v, bias, *mods, **params)


@mutant("formula")
def segments_by_index(*operands, **params):
    "segments of queries are read at the index of the query among the keys, without Sk - Sq"

    def by_index(seg_q, seg_k):
        index = torch.arange(seg_q.shape[1]).clamp(max=seg_k.shape[1] - 1)
        return in_segment(seg_k[:, index], seg_k)

    return masked_attention(*operands, **params, same=by_index)


@mutant("formula")
def segments_in_order(*operands, **params):
    "a query sees its own segment and those of smaller number"
    return masked_attention(
        *operands, **params, same=lambda seg_q, seg_k: seg_q[:, None, :, None] >= seg_k[:, None, None, :]
    )


@mutant("formula")
def segments_of_the_first_sequence(*operands, **params):
    "every sequence of the batch has the segments of the first"
    return masked_attention(*operands, **params, same=lambda seg_q, seg_k: in_segment(seg_q[:1], seg_k[:1]))


@mutant("parameter")
def segments_ignored(q, k, v, bias, slopes, seg_q, seg_k, **params):
    "every query sees all segments"
    return masked_attention(q, k, v, bias, slopes, None, None, **params)


@mutant("mask")
def full_tiles_by_their_corner(*operands, **params):
    "a tile of 16 by 16 whose first query sees its first key has no mask"

    def by_corner(apart, causal, window):
        seen = in_place(apart, causal=causal, window=window)
        corner = seen[::16, ::16].repeat_interleave(16, 0).repeat_interleave(16, 1)
        return seen | corner[: seen.shape[0], : seen.shape[1]]

    return masked_attention(*operands, **params, seen=by_corner)


@mutant("tail")
def first_window_tile_skipped(*operands, **params):
    "the tile of 16 keys in which a window begins is skipped"

    def skipped(apart, causal, window):
        seen = in_place(apart, causal=causal, window=window)
        if window is None:
            return seen
        first = (seen.long().cumsum(-1) == 0).sum(-1, keepdim=True)
        return seen & (torch.arange(seen.shape[1]) >= (first + 15) // 16 * 16)

    return masked_attention(*operands, **params, seen=skipped)


@mutant("formula")
def dropout_of_a_tile(*operands, **params):
    "dropout's index begins anew for every 16 keys"

    def local(shape, p, seed, offset):
        weight = kept((*shape[:3], -(-shape[3] // 16) * 16), p, seed, offset)
        return weight[..., :16].repeat(1, 1, 1, -(-shape[3] // 16))[..., : shape[3]]

    return masked_attention(*operands, **params, weights=local)


@mutant("formula")
def dropout_alike_in_all_heads(*operands, **params):
    "all heads drop what the first does"
    return masked_attention(
        *operands, **params, weights=lambda shape, *rule: kept(shape, *rule)[:, :1].expand(tuple(shape))
    )


@mutant("scale")
def dropout_unscaled(*operands, **params):
    "what dropout keeps is not multiplied by 1/(1 - p)"
    return masked_attention(*operands, **params, weights=lambda *about: (kept(*about) > 0).float())


@mutant("parameter")
def dropout_ignored(*operands, p=0.0, seed=0, offset=0, **params):
    "nothing is dropped"
    return masked_attention(*operands, **params)


@mutant("formula")
def dropout_before_the_sum(*operands, **params):
    "probabilities are normalised by the sum of those that are kept, and lse is theirs"
    p, seed, offset = (params.pop(name, 0) for name in ("p", "seed", "offset"))

    def dropped(dots, softcap, bias, slopes, apart):
        gone = kept(dots.shape, p, seed, offset) == 0
        return scored(dots, softcap, bias, slopes, apart).masked_fill(gone, -INF)

    return masked_attention(*operands, **params, scored=dropped)


@mutant("offset")
def seed_of_32_bits(*operands, seed=0, **params):
    "the high half of the seed is lost"
    return masked_attention(*operands, **params, seed=seed % 2**32)


@mutant("offset")
def offset_of_32_bits(*operands, offset=0, **params):
    "the high half of the offset is lost"
    return masked_attention(*operands, **params, offset=offset % 2**32)


@mutant("heads")
def heads_modulo(*operands, **params):
    "query head h reads key head h modulo their number"
    return masked_attention(*operands, **params, head_read=lambda head, group, kv_heads: head % kv_heads)


@mutant("special")
def blind_rows_average(q, k, v, *mods, **params):
    "a query that sees nothing gives the mean of v, as a finite sentinel in place of -inf does"
    o, lse = masked_attention(q, k, v, *mods, **params)
    if 0 in (*q.shape, *k.shape):
        return o, lse
    mean = v.float().mean(2).repeat_interleave(q.shape[1] // k.shape[1], 1)[:, :, None]
    return torch.where(lse.isneginf()[..., None], mean.to(o.dtype), o), lse


@mutant("special")
def blind_rows_are_nan(*operands, **params):
    "a query that sees nothing gives NaN"
    o, lse = masked_attention(*operands, **params)
    return torch.where(lse.isneginf()[..., None], math.nan, o), lse


@mutant("overflow")
def no_maximum(*operands, **params):
    "the maximum is not subtracted before exp"
    return masked_attention(*operands, **params, shift=lambda s: torch.zeros_like(s[..., :1]))


@mutant("precision", dtypes=("float32", "float16"))
def p_in_bfloat16(*operands, **params):
    "the probabilities are rounded to bfloat16"
    return masked_attention(*operands, **params, p_dtype=torch.bfloat16)


@mutant("precision", dtypes=("float32", "float16"))
def bias_in_bfloat16(q, k, v, bias, *mods, **params):
    "the bias is rounded to bfloat16"
    return masked_attention(q, k, v, None if bias is None else bias.bfloat16(), *mods, **params)


@mutant("scale")
def lse_to_base_2(*operands, **params):
    "lse is the logarithm to base 2"
    o, lse = masked_attention(*operands, **params)
    return o, lse / math.log(2)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "rows": Kernel("known-good", "a query at a time, which walks over its keys"),
    "window_one_more": Kernel("mask", "a window has one key more: the own one is not counted"),
    "window_top_left": Kernel("mask", "causality and window are aligned top-left: without Sk - Sq"),
    "slope_of_head_0": Kernel("formula", "every head has the slope of the first"),
    "softcap_last": Kernel("formula", "the soft-cap comes after slopes and bias"),
    "segments_by_query": Kernel("formula", "the segment of a key is looked up among those of the queries"),
    "dropout_by_key": Kernel("formula", "dropout's index is that of the key alone"),
    "dropout_in_lse": Kernel("formula", "lse and the sum are of what dropout keeps"),
}
