"""The single cases of contracts: each one is found right by right kernels, and shows the fault that it is there for."""

import inspect
from dataclasses import replace
from itertools import combinations, product

import pytest
import torch
import torch.nn.functional as F

from tests.night import some
from touchstone import check
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.faults._dots import to_tf32
from touchstone.conformance.faults.attention import flash
from touchstone.conformance.findings import minimise
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import FAILED, PASSED
from touchstone.conformance.judging.trials import CaseTrial, trials_of
from touchstone.conformance.selftest.run import drawn_once
from touchstone.conformance.spec.cases import also_case, one_unaligned, plan, single_and_strided
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import BEYOND_LARGEST, Also, Draw
from touchstone.reference._activations import torch_act
from touchstone.reference.layer_norm_backward import torch_layer_norm_backward

OPS = [op for op in registry.ops() if registry.contract(op).also]
SLOW = ("word_by_word", "outer_products", "autograd_of_each")
EVERY = [(op, name) for op in OPS for name in registry.contract(op).also]


def known_good(op: str):
    """One that was written for the op, and computes all elements at once; its operands have names."""
    fn = [p for p in registry.planted(op) if p.is_known_good and p.backend is None and p.name not in SLOW][-1].make()
    if all(parameter.kind != parameter.VAR_POSITIONAL for parameter in inspect.signature(fn).parameters.values()):
        return fn
    names = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in registry.contract(op).operands
    ]
    signature = inspect.Signature([*names, inspect.Parameter("params", inspect.Parameter.VAR_KEYWORD)])

    def named(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        return fn(*given.args, **given.kwargs)

    named.__signature__ = signature
    return named


def judged(op: str, name: str, fn) -> str:
    return judged_on(op, also_case(registry.contract(op), name), fn)


def judged_on(op: str, case, fn) -> str:
    outcome = judge.run(Subject(op, fn, "fn", "torch@cpu", "cpu", diagnosed=False), CaseTrial(case))
    assert [str(finding) for finding in outcome.findings if finding.check == Check.RAISED] == []
    return outcome.status


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_it_is_valid_and_of_finite_values_unless_it_is_there_for_others(op, name):
    contract = registry.contract(op)
    case = also_case(contract, name)
    assert contract.valid(case)
    drawn = contract.family(case.values)(Draw(case, contract)).values()
    assert all(bool(x.isfinite().all()) for x in drawn if x is not None) != name.startswith("special_")


@pytest.mark.parametrize(("op", "name"), some(EVERY, 3))
def test_a_right_kernel_is_found_right(op, name):
    assert judged(op, name, known_good(op)) == PASSED


def beyond(place: int):
    """Elements of outputs from one place of the last axis on, or of all, are 0."""

    def make(fn):
        def wrong(*args, **kwargs):
            found = fn(*args, **kwargs)
            every = found if isinstance(found, tuple) else (found,)
            for y in every:
                cut = y if y.ndim and y.shape[-1] > place else y.view(-1)
                cut[..., place:] = 0
            return found

        return wrong

    return make


def called(fn, args, kwargs, others):
    """The call with some arguments, by name, replaced; those given by position stay there."""
    names = inspect.signature(fn).parameters
    by_position = [others.get(name, given) for name, given in zip(names, args, strict=False)]
    return fn(*by_position, **{name: others.get(name, given) for name, given in kwargs.items()})


def by_name(fn, args, kwargs):
    return dict(zip(inspect.signature(fn).parameters, args, strict=False)) | kwargs


def changed(**changes):
    """Operands, by name, are others."""

    def make(fn):
        def wrong(*args, **kwargs):
            given = by_name(fn, args, kwargs)
            others = {name: change(given[name]) for name, change in changes.items() if name in given}
            return called(fn, args, kwargs, others)

        return wrong

    return make


def without_masks_at(n: int, along: dict[str, int]):
    """Of tiles of 2 n along an axis the last is filled up with 1 where the axis is whole tiles of n: the answer is that
    of longer operands."""

    def filled(dim: int):
        def change(x):
            missing = -x.shape[dim] % (2 * n)
            if x.shape[dim] % n or not missing:
                return x
            return torch.cat(
                [x, torch.ones_like(x.narrow(dim, 0, 1)).expand(*x.shape[:dim], missing, *x.shape[dim + 1 :])], dim
            )

        return change

    return changed(**{name: filled(dim) for name, dim in along.items()})


def in_parts(along: dict[str, int], rows: int, sums: tuple[int, ...]):
    """The call in parts of some operands, of which some outputs are sums: added up in the outputs' own dtype."""

    def make(fn):
        def wrong(*args, **kwargs):
            given = by_name(fn, args, kwargs)
            parts = zip(*(given[name].split(rows, axis) for name, axis in along.items()), strict=True)
            every = [called(fn, args, kwargs, dict(zip(along, part, strict=True))) for part in parts]
            every = [found if isinstance(found, tuple) else (found,) for found in every]
            found = fn(*args, **kwargs)
            whole = list(found) if isinstance(found, tuple) else [found]
            for place in sums:
                whole[place] = every[0][place]
                for other in every[1:]:
                    whole[place] = whole[place] + other[place]
            return tuple(whole) if isinstance(found, tuple) else whole[0]

        return wrong

    return make


def heads_wrong(fn):
    """A group has eight query heads at most."""

    def wrong(q, k, v, *rest, **kwargs):
        group = min(8, q.shape[1] // k.shape[1])
        own = (torch.arange(q.shape[1]) // group).clamp_max(k.shape[1] - 1)
        return fn(q, k[:, own], v[:, own], *rest, **kwargs)

    return wrong


def narrow(width: int):
    return lambda x: torch.cat([x[..., :width], torch.zeros_like(x[..., width:])], -1)


def tanh_in_16_bits(fn):
    def wrong(*args, activation, **kwargs):
        found = fn(*args, activation=activation, **kwargs)
        z, dy = args[0].float(), args[-1].float() * (args[1].float() if len(found) == 2 and args[1] is not None else 1)
        if args[1] is None or args[1].ndim == 1:
            dy = args[-1].float()
        t = torch.tanh(0.7978845608 * (z + 0.044715 * z**3)).to(args[0].dtype).float()
        slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * 0.7978845608 * (1 + 3 * 0.044715 * z * z)
        return (dy * slope).to(found[0].dtype), *found[1:]

    return wrong


def padded_with_0(fn):
    """A maximum or a minimum begins at 0 in the last part of many elements."""

    def wrong(x, *, function, **kwargs):
        y = fn(x, function=function, **kwargs)
        if function == "sum" or x.shape[kwargs.get("axis", 0)] <= 1024:
            return y
        return y.clamp_min(0) if function == "max" else y.clamp_max(0)

    return wrong


def by_halves(fn):
    """bfloat16 is turned into float16."""

    def wrong(*args, **kwargs):
        found = fn(*(x.half() if x.dtype is torch.bfloat16 else x for x in args), **kwargs)
        return found.to(args[0].dtype)

    return wrong


def flat(fn):
    """Operands are taken as if they were contiguous."""

    def wrong(*args, **kwargs):
        return fn(*(x.as_strided(x.shape, torch.empty(x.shape).stride()) for x in args), **kwargs)

    return wrong


def heads_inside_out(fn):
    """Results of many keys, which are put together from parts, come out row by row and not head by head."""

    def wrong(q, k, *rest, **kwargs):
        o, lse = fn(q, k, *rest, **kwargs)
        return (o.transpose(1, 2).reshape(o.shape) if k.shape[2] > 512 and q.shape[2] < 16 else o), lse

    return wrong


def in_tiles_of_16_bits(fn):
    """o is added up in its own dtype, 64 keys after another, where their scores are about equal."""

    def wrong(q, k, v, *rest, **kwargs):
        o, lse = fn(q, k, v, *rest, **kwargs)
        if k.shape[2] > 1024:
            found = torch.zeros_like(o, dtype=torch.float32)
            for number, part in enumerate(v.split(64, 2)):
                mean = part.float().mean(2, keepdim=True).repeat_interleave(q.shape[1] // k.shape[1], 1)
                held = number * 64
                found = ((found * held + mean * part.shape[2]) / (held + part.shape[2])).to(o.dtype).float()
            o = found.to(o.dtype)
        return o, lse

    return wrong


def with_the_keys_before(fn):
    """A sequence without keys is given the results of the row before it."""

    def wrong(q, k, v, cu_q, cu_k, **kwargs):
        o, lse = fn(q, k, v, cu_q, cu_k, **kwargs)
        for first, end, keys in zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), cu_k.diff().tolist(), strict=True):
            if first and not keys:
                o[first:end] = o[first - 1]
        return o, lse

    return wrong


def on_pages_of_64(fn):
    """Of a page only the first 64 rows are read, over and over."""

    def wrong(q, k_cache, v_cache, *rest, **kwargs):
        rows = torch.arange(k_cache.shape[1]) % 64
        return fn(q, k_cache[:, rows], v_cache[:, rows], *rest, **kwargs)

    return wrong


def as_wide_as_the_longest(fn):
    """A row of the table of pages is taken to be as long as the longest sequence needs, not as it is."""

    def wrong(q, k_cache, v_cache, table, lengths, **kwargs):
        most = -(-int(lengths.max()) // k_cache.shape[1])
        narrow = table.reshape(-1)[: len(table) * most].reshape(len(table), most)
        return fn(q, k_cache, v_cache, narrow.clamp_max(len(k_cache) - 1), lengths, **kwargs)

    return wrong


def up_to(width: int, *outputs: int):
    """Columns of outputs beyond a width are 0."""

    def make(fn):
        def wrong(*args, **kwargs):
            found = fn(*args, **kwargs)
            for place in outputs:
                found[place][..., width:] = 0
            return found

        return wrong

    return make


def of_whole_stages(tiles: int, stages: int, along: dict[str, int]):
    """Tiles that are left over when a number of stages have had their turns are left out."""
    return changed(
        **{
            name: (lambda x, axis=axis: x.narrow(axis, 0, x.shape[axis] // (tiles * stages) * tiles * stages))
            for name, axis in along.items()
        }
    )


def a_tail_too_large(fn):
    """An exponent is held within 15, and where silu is next to 0 it is not."""

    def wrong(x, bias, *, activation):
        z = x.float() + (0.0 if bias is None else bias.float())
        y = z / (1 + (-z.clamp(-15, 15)).exp())
        return y.to(x.dtype) if activation == "silu" else fn(x, bias, activation=activation)

    return wrong


def a_number_for_nan(fn):
    """The function is 0 where it is given NaN."""

    def wrong(*args, activation, **kwargs):
        found = fn(*args, activation=activation, **kwargs)
        every = [y.nan_to_num(0.0) if activation == "gelu" and y is not None else y for y in found]
        return tuple(every) if isinstance(found, tuple) else torch.stack(every)

    return wrong


def another_slope_in_the_tail(fn):
    """The gradient is 0 where the last element, which fills no vector, is NaN: else relu' of it is 1."""

    def wrong(*args, **kwargs):
        dx, *others = fn(*args, **kwargs)
        dx = dx.clone()
        dx[-1, -1] = 0.0
        return dx, *others

    return wrong


def an_exponential_in_16_bits(fn):
    """What a function of the sigmoid is made of is rounded to float16: 1 + exp(-z) is infinite from -12 on."""

    def wrong(first, *others, activation, **kwargs):
        found = fn(first, *others, activation=activation, **kwargs)
        every = list(found) if isinstance(found, tuple) else [found]
        lost = first.float() < -12
        every = [y.masked_fill(lost, 0.0) if y is not None and y.shape == lost.shape else y for y in every]
        return tuple(every) if isinstance(found, tuple) else every[0]

    return wrong


def a_sum_of_a_little_more(fn):
    """The sum of a softmax is 1e-6 too large."""

    def wrong(x):
        found = fn(x)
        y, *lse = found if isinstance(found, tuple) else (found,)
        y = (y.float() / (1 + 1e-6)).to(y.dtype)
        return (y, *lse) if lse else y

    return wrong


def about_the_first(fn):
    """Moments of a row, or of a group, are added up about its first element, in one pass."""

    def wrong(*args, **kwargs):
        given = by_name(fn, args, kwargs)
        h = given["x"].float() + (given["residual"].float() if "residual" in given else 0)
        rows = h.reshape(len(h), given.get("groups", 1), -1)
        less = rows - rows[..., :1]
        mean = less.mean(-1, keepdim=True)
        variance = (less.square().mean(-1, keepdim=True) - mean * mean).clamp_min(0)
        normalised = ((less - mean) * (variance + given.get("eps", 1e-5)).rsqrt()).reshape(h.shape)
        weight, bias = (given[name].reshape(-1, *[1] * (h.ndim - 2)) for name in ("weight", "bias"))
        y = normalised * weight + bias
        return (y, h) if "residual" in given else y

    return wrong


def without_the_last_tile(x):
    """Where there are whole tiles of 256 rows, the last 128 are 0; of (T, H, D) and of (B, H, S, D)."""
    axis = x.ndim - 2 if x.ndim == 4 else 0
    if x.shape[axis] % 256:
        return x
    return torch.cat([x.narrow(axis, 0, x.shape[axis] - 128), torch.zeros_like(x.narrow(axis, 0, 128))], axis)


def without_the_last(count: int, axis: int):
    """So many of an axis are 0."""
    return lambda x: torch.cat([x.narrow(axis, 0, x.shape[axis] - count), x.narrow(axis, 0, count) * 0], axis)


def padded_by_the_least_number(fn):
    """A row of -inf that is no power of two long is 0, by the maximum of what stands beyond its end."""

    def wrong(x):
        found = fn(x)
        hidden = (x == float("-inf")).all(-1) & (x.shape[-1] & (x.shape[-1] - 1) != 0)
        (found[0] if isinstance(found, tuple) else found)[hidden] = 0
        return found

    return wrong


def by_halves_of_lanes(name: str):
    """As many lanes as whole warps need add terms by halves; the last of an odd number of them is left out."""

    def without(x):
        lanes = -(-x.shape[0] // 32) * 32
        odd = lanes // (lanes & -lanes) if lanes else 1
        return x if odd == 1 or lanes > 256 else torch.where(torch.arange(x.shape[0]) % odd == odd - 1, 0, x)

    return changed(**{name: without})


def up_to_256(x):
    """What has a square that float16 holds."""
    return x.clamp(-255.875, 255.875)


def without_low_rows(fn):
    """A row of scores below -5e4 is taken for one that sees nothing."""

    def wrong(*args, **kwargs):
        o, lse = fn(*args, **kwargs)
        low = lse < -5e4
        rows = low.mT if o.ndim == 3 else low
        return o.masked_fill(rows[..., None], 0.0), lse.masked_fill(low, -torch.inf)

    return wrong


def against_the_last_tile(name):
    """Not the maximum of a row but that of its last tile is subtracted: exp of what is 80 larger overflows."""

    def make(fn):
        def wrong(*args, **kwargs):
            x = by_name(fn, args, kwargs)[name].float()
            found = fn(*args, **kwargs)
            if bool((x.amax(-1) > x[..., -1 - (x.shape[-1] - 1) % 1024 :].amax(-1) + 80).any()):
                for y in found if isinstance(found, tuple) else (found,):
                    y.fill_(torch.nan)
            return found

        return wrong

    return make


def without_low(x):
    """Without what lies 8 below the largest of its row, as a tile is skipped that does."""
    return x.masked_fill(x < x.amax(-1, keepdim=True) - 8, -torch.inf)


def lowered(keys):
    """Keys whose scores are low have no weight at all."""
    return torch.where((keys < -0.5).any(-1, keepdim=True), 1e4 * keys.clamp_max(0), keys)


def in_lanes_of_16_bits(fn):
    """Each of 256 lanes adds up every 256th term in the dtype."""

    def wrong(x, *others, **params):
        total = torch.zeros((*x.shape[:-1], 256), dtype=x.dtype)
        for part in x.split(256, -1):
            total[..., : part.shape[-1]] += part
        return fn(total, *(other[:256] for other in others), **params)  # the others are 1

    return wrong


def projected_in_tiles_of_16_bits(fn):
    """Values are added up in float16, 32 latents at a time."""

    def wrong(q_nope, q_rope, c, k_rope, w_uk, w_uv, **params):
        o, lse = fn(q_nope, q_rope, c, k_rope, w_uk, w_uv, **params)
        total = torch.zeros_like(o)
        for start in range(0, c.shape[-1], 32):
            tile = torch.zeros_like(w_uv)
            tile[:, start : start + 32] = w_uv[:, start : start + 32]
            total = total + fn(q_nope, q_rope, c, k_rope, w_uk, tile, **params)[0]
        return total, lse

    return wrong


def nan_before_the_last_part(fn):
    """A query that sees nothing of the last 256 keys of several times 256 is NaN."""

    def wrong(*args, **kwargs):
        o, lse = fn(*args, **kwargs)
        queries = o.shape[2]
        for b, keys in enumerate(by_name(fn, args, kwargs)["lengths"].tolist()):
            last = (keys - 1) // 256 * 256
            o[b, :, : max(0, last - keys + queries) if last > 0 else 0] = torch.nan
        return o, lse

    return wrong


def not_shifted_in_the_last_tile(scales):
    """Where there are several tiles of 64 keys, what is left over is not shifted."""
    tiles = scales.shape[2] // 64 * 64
    found = scales.clone()
    found[:, :, tiles if tiles else scales.shape[2] :, :, 1] = 0
    return found


def in_float16(x):
    """What bfloat16 holds, as float16 holds it."""
    return x.half().to(x.dtype)


def channels_up_to(count: int):
    """Of each group, so many channels are written."""

    def make(fn):
        def wrong(x, *others, groups, **params):
            y = fn(x, *others, groups=groups, **params)
            y.unflatten(1, (groups, -1))[:, :, count:] = 0
            return y

        return wrong

    return make


def product_in_16_bits(fn):
    """hardswish's product is rounded before it is divided by 6."""

    def wrong(x, bias, *rest, activation):
        z = x.float() + (0.0 if bias is None else bias.float())
        return ((z * (z + 3).clamp(0, 6)).to(x.dtype).float() / 6).to(x.dtype)

    return wrong


def of_four_axes(fn):
    """The outermost of five axes is not stepped over."""

    def wrong(*args, **kwargs):
        found = fn(*args, **kwargs)
        y = found[0] if isinstance(found, tuple) else found
        if y.ndim > 4:
            y[1:] = y[:1]
        return found

    return wrong


def nothing_of_zero(fn):
    """A product with 0 is 0, whatever the other factor is."""

    def wrong(a, b, *, function):
        y = fn(a, b, function=function)
        return y.masked_fill((a == 0) | (b == 0), 0.0) if function == "mul" else y

    return wrong


def times_a_mask(fn):
    """relu is the gate times 1 or 0, and sigmoid 1 - sigmoid(-gate) by a product: an infinity times 0."""

    def wrong(gate, up, *, activation):
        y = fn(gate, up, activation=activation)
        return torch.where(gate.isneginf() & (activation in ("relu", "sigmoid")), gate * 0 * up, y).to(y.dtype)

    return wrong


def one_of_one(fn):
    """Of a single logit the softmax is 1."""

    def wrong(x):
        found = fn(x)
        y, *lse = found if isinstance(found, tuple) else (found,)
        y = torch.ones_like(y) if x.shape[1] == 1 else y
        return (y, *lse) if lse else y

    return wrong


def nan_after_a_hidden_tile(fn):
    """A row whose first 1024 of more logits are -inf is NaN."""

    def wrong(x):
        found = fn(x)
        y, *lse = found if isinstance(found, tuple) else (found,)
        if x.shape[1] > 1024:
            y[(x[:, :1024] == -torch.inf).all(1)] = torch.nan
        return (y, *lse) if lse else y

    return wrong


def a_row_for_each_sequence(fn):
    """With max_q 1 the rows of q are the sequences'."""

    def wrong(q, k, v, *rest, max_q, **params):
        *before, cu_q, cu_k = rest
        if max_q == 1:
            cu_q = torch.arange(len(cu_q), dtype=cu_q.dtype).clamp_max(len(q))
        return fn(q, k, v, *before, cu_q, cu_k, max_q=max_q, **params)

    return wrong


def whole_groups_of_tiles(fn):
    """Tiles of 128 are taken 8 rows at a time, and where fewer are left as if they were 8: some are not reached."""

    def wrong(a, b):
        c = fn(a, b)
        rows, cols = (-(-n // 128) for n in c.shape)
        taken = (divmod(place, 8 * cols) for place in range(rows * cols))
        reached = {(8 * group + within % 8, within // 8) for group, within in taken}
        for row, col in {*product(range(rows), range(cols))} - reached:
            c[128 * row : 128 * row + 128, 128 * col : 128 * col + 128] = 0
        return c

    return wrong


def sums_without_the_last_row(operand: str):
    """Where one row is left over after whole tiles of 32, it is not in the sums over rows: all outputs but the first,
    or the only one."""

    def make(fn):
        def wrong(*args, **kwargs):
            found, rows = fn(*args, **kwargs), by_name(fn, args, kwargs)[operand]
            if len(rows) % 32 != 1:
                return found
            less = called(fn, args, kwargs, {operand: without_the_last(1, 0)(rows)})
            return (found[0], *less[1:]) if isinstance(found, tuple) else less

        return wrong

    return make


def first_units(count: int, operand: str):
    """Of one row's hidden units, so many are multiplied by the second weights."""
    return changed(**{operand: lambda w: torch.cat([w[:count], torch.zeros_like(w[count:])])})


def hidden_in_float16(fn):
    """What lies between the two products is rounded to float16."""

    def wrong(x, first, second, last, *more, activation):
        z = x.float() @ first.float()
        if more:  # second and more[0] are biases
            h = torch_act(z + (0 if second is None else second.float()), activation)
            y = h.half().float() @ last.float() + (0 if more[0] is None else more[0].float())
        else:
            y = (torch_act(z, activation) * (x.float() @ second.float())).half().float() @ last.float()
        return y.to(x.dtype)

    return wrong


ATTENTION = ("attention", "attention_varlen", "masked_attention")
ATTENTION_BACKWARD = ("attention_backward", "attention_varlen_backward", "masked_attention_backward")
WHOLE_TILES = ("whole_tiles", "keys_of_whole_tiles")
LONG_ROWS = (
    "softmax softmax_backward online_softmax layer_norm rms_norm add_layer_norm add_rms_norm layer_norm_backward "
    "rms_norm_backward"
)
MANY = "elementwise dropout dropout_bitmask_backward bias_dropout_residual activation glu glu_backward"
ENTROPY = ("cross_entropy", "cross_entropy_backward")
NORMS = "layer_norm rms_norm add_layer_norm add_rms_norm layer_norm_backward rms_norm_backward group_norm"
BIASED = "layer_norm add_layer_norm activation activation_backward bias_dropout_residual"
RMS = ("rms_norm", "add_rms_norm")
CENTRED = ("layer_norm", "add_layer_norm", "layer_norm_backward")
BACKWARD = ("layer_norm_backward", "rms_norm_backward")
DTYPES = ("float32", "float16", "bfloat16")
POWERS = (128, 256, 512, 1024, 2048, 4096, 8192)
AT_MOST_4096 = changed(lengths=lambda n: n.clamp_max(4096))
AT_MOST_512 = changed(lengths=lambda n: n.clamp_max(512))
CACHED = ("attention_decode", "attention_decode_int4", "attention_paged", "mla_decode")
TIMES_X = {"mlp": {"w1": 0}, "gated_mlp": {"w_gate": 0, "w_up": 0}}
MLPS = ("mlp", "mlp_backward", "gated_mlp")
DROPOUTS = ("dropout", "dropout_bitmask", "dropout_bitmask_backward")
PACKED = ("attention_varlen", "attention_varlen_backward")
SUMMED = {"dot": {"a": 0, "b": 0}, "gemv": {"a": 1, "x": 0}, "reduce": {"x": 0}, "reduce_rows": {"x": 1}}
WHOLE = {
    "matmul": "ab",
    "gemv": ("a",),
    "mlp": ("x", "w1"),
    "mlp_backward": ("x", "w1"),
    "gated_mlp": ("x", "w_up"),
    **dict.fromkeys((*ATTENTION, *ATTENTION_BACKWARD), "qk"),
    "mla": ("q_nope", "w_uk"),
}
OTHERS = {"gelu": "gelu_tanh", "gelu_tanh": "gelu", "silu": "gelu", "relu": "silu"}


def mutant(op, name):
    """One that stands among the op's mutants."""
    return lambda fn: next(planted for planted in registry.planted(op) if planted.name == name).make()


def ends_finite(fn):
    """An extreme is the largest finite number at most."""

    def wrong(x, *, function, **params):
        y, end = fn(x, function=function, **params), torch.finfo(x.dtype).max
        return y if function == "sum" else y.clamp(-end, end)

    return wrong


def with_gradients_of_nothing(fn):
    """A query that sees nothing has the first key as its dq; without queries dk is not written."""

    def wrong(q, k, *others, causal, **params):
        dq, dk, dv = fn(q, k, *others, causal=causal, **params)
        before = q.shape[2] - k.shape[2] if causal else 0
        if before > 0:
            dq[:, :, :before] = k[:, :, :1].repeat_interleave(q.shape[1] // k.shape[1], 1)
        return dq, dk + 1 if causal and not q.numel() else dk, dv

    return wrong


def gradients_in_float16(fn):
    return lambda *args, **kwargs: tuple(in_float16(x) for x in fn(*args, **kwargs))


def capped_rows_of_nothing(fn):
    """Under a softcap a row that sees nothing is the mean of all values."""

    def wrong(q, k, v, *others, softcap, **params):
        o, lse = fn(q, k, v, *others, softcap=softcap, **params)
        if softcap is not None:
            mean = v.float().mean(2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1).to(o.dtype)
            o = torch.where(lse.isneginf()[..., None], mean, o)
        return o, lse

    return wrong


def split_into_equal_parts(fn):
    """Of a cache of several tiles each of up to eight parts has as many keys; what is left over has none."""

    def wrong(*args, **params):
        lengths = by_name(fn, args, params)["lengths"]
        keys = int(lengths.max())  # one is full
        parts = max(1, min(8, keys // 64))
        return called(fn, args, params, {"lengths": lengths.clamp_max(keys // parts * parts)})

    return wrong


def in_rows_of_64(*operands):
    """64 rows at a time, beginning with the generator's first word each time."""

    def make(fn):
        def wrong(*args, **params):
            given = by_name(fn, args, params)
            parts = zip(*(given[name].split(64) for name in operands), strict=True)
            found = [called(fn, args, params, dict(zip(operands, part, strict=True))) for part in parts]
            return torch.cat(found)

        return wrong

    return make


def window_of_keys(fn):
    """A window of more than all keys is of so many."""
    return lambda *a, window, **k: fn(*a, window=min(window, a[1].shape[2] + 1), **k)


def columns_of_quads(fn):
    """Four elements at once, taken for those of one row: what is behind its end has its last column's bias."""

    def wrong(*args, **params):
        given = by_name(fn, args, params)
        x, bias = given["x"], given["bias"]
        cols, every = x.shape[1], torch.arange(x.numel())
        if x.numel() % 4 or bias is None:
            return fn(*args, **params)
        column = (every // 4 * 4 % cols + every % 4).clamp_max(cols - 1)
        flat = {name: t.reshape(1, -1) for name, t in given.items() if isinstance(t, torch.Tensor) and t.ndim == 2}
        found, right = called(fn, args, params, {**flat, "bias": bias[column]}), fn(*args, **params)
        return found.view(x.shape) if isinstance(found, torch.Tensor) else (found[0].view(x.shape), *right[1:])

    return wrong


def coalesced_by_rows(fn):
    """Two axes are taken for one where a row's stride is the number of rows."""

    def wrong(*args, **params):
        def flat(x):
            if not isinstance(x, torch.Tensor) or x.ndim != 2 or x.is_contiguous() or x.stride(0) != x.shape[0]:
                return x
            return x.as_strided((x.numel(),), (1,)).view(x.shape)

        return fn(*map(flat, args), **params)

    return wrong


def nan_lost_between_parts(fn):
    """Parts of 2048 elements along the axis are brought together by a maximum or a minimum that drops NaN."""

    def wrong(x, **params):
        combine, axis = {"max": torch.fmax, "min": torch.fmin}.get(params.get("function")), params.get("axis", 0)
        if combine is None or x.shape[axis] <= 2048:
            return fn(x, **params)
        first, *others = (fn(part, **params) for part in x.split(2048, axis))
        for other in others:
            first = combine(first, other)
        return first

    return wrong


def tiles_of_hidden(along: dict[str, int]):
    """The first output is added up in its own dtype, 32 hidden units after another."""
    return in_parts(along, 32, (0,))


def weights_flat_for_one_row(*weights: str):
    """A product with a vector takes its matrix for contiguous."""

    def make(fn):
        def wrong(x, *rest, **params):
            given = by_name(fn, (x, *rest), params)
            taken = {name: given[name].as_strided(given[name].shape, (given[name].shape[1], 1)) for name in weights}
            return called(fn, (x, *rest), params, taken if len(x) == 1 else {})

        return wrong

    return make


def the_bias_alone(fn):
    """A group of one element is its bias, whatever it is."""

    def wrong(x, weight, bias, *, groups, **params):
        alone = x[:1].numel() == groups
        return fn(torch.zeros_like(x) if alone else x, weight, bias, groups=groups, **params)

    return wrong


def no_infinity_from_numbers(fn):
    """A result beyond the largest number is that number."""

    def wrong(*args, **kwargs):
        found = fn(*args, **kwargs)
        every = found if isinstance(found, tuple) else (found,)
        held = tuple(y.clamp(-torch.finfo(y.dtype).max, torch.finfo(y.dtype).max) for y in every)
        return held if isinstance(found, tuple) else held[0]

    return wrong


def held_in(output: int):
    """The same in one of the outputs."""

    def make(fn):
        def wrong(*args, **kwargs):
            found = fn(*args, **kwargs)
            every = [*found] if isinstance(found, tuple) else [found]
            every[output] = no_infinity_from_numbers(lambda: every[output])()
            return tuple(every) if isinstance(found, tuple) else every[0]

        return wrong

    return make


def one_column_of_zeros(fn):
    """A row of one element is that less its mean, which is 0, whatever it is."""

    def wrong(*args, **kwargs):
        given = by_name(fn, args, kwargs)
        zeros = {name: torch.zeros_like(given[name]) for name in ("x", "residual") if name in given}
        found = called(fn, args, kwargs, zeros if given["x"].shape[1] == 1 else {})
        return (found[0], fn(*args, **kwargs)[1]) if "residual" in given else found

    return wrong


def halved_last(fn):
    """Half of a product that was rounded before."""

    def wrong(x, bias, **params):
        return fn(x, bias, **params) * 2 / 2

    return wrong


def zero_from_a_million_on(fn):
    """A maximum of more than 2^20 elements starts at 0."""
    return lambda x, **params: (padded_with_0(fn) if len(x) > 2**20 else fn)(x, **params)


def up_behind_its_gate(fn):
    """A gate in rows of twice its length is followed by its up."""

    def wrong(gate, up, *others, **params):
        rows, cols = gate.shape
        joined = gate.stride() == (2 * cols, 1)
        return fn(
            gate,
            gate.as_strided(gate.shape, gate.stride(), gate.storage_offset() + cols) if joined and rows > 1 else up,
            *others,
            **params,
        )

    return wrong


def rounded_in_whole_tiles(*operands: str):
    """Operands of whole tiles, of which heads are none, are cut to TF32."""

    def make(fn):
        def wrong(*args, **kwargs):
            given = by_name(fn, args, kwargs)
            whole = all(n < 3 or n % 16 == 0 for name in operands for n in given[name].shape)
            return called(fn, args, kwargs, {name: to_tf32(given[name]) for name in operands} if whole else {})

        return wrong

    return make


def read_on(fn):
    """Behind a row whole tiles of 32 are filled from the next one, whose elements meet zeros."""

    def wrong(first, *rest, **params):
        y = fn(first, *rest, **params)
        behind = first.reshape(-1)
        for row in range(len(first) - 1):
            start = (row + 1) * first.shape[1]
            y[row] += (behind[start : start + -first.shape[1] % 32] * 0).sum()
        return y

    return wrong


def documents_by_runs(fn):
    """A number that comes back is another document's."""

    def wrong(*args, **kwargs):
        given = by_name(fn, args, kwargs)
        numbers = given["seg_q"]
        if numbers is None or not torch.equal(numbers, given["seg_k"]):
            return fn(*args, **kwargs)
        runs = F.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0)).cumsum(1).int()
        return called(fn, args, kwargs, {"seg_q": runs, "seg_k": runs})

    return wrong


def rstd_in_one_pass(_):
    """About a mean that is given the variance is what is left of the mean square."""

    def wrong(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
        if mean is not None and rstd is None:
            rstd = ((x.square().mean(-1) - mean.square()).clamp_min(0) + eps).rsqrt()
        return torch_layer_norm_backward(x, weight, dy, mean=mean, rstd=rstd, eps=eps)

    return wrong


def correction_along_columns(fn):
    """Of two rows the corrections are spread over two columns, not each over its own row."""

    def wrong(x, weight, dy, **params):
        dx, *others = fn(x, weight, dy, **params)
        if x.shape[1] == 2 and len(x) > 2048:
            without = fn(x, weight, torch.zeros_like(dy), **params)[0]
            pairs = (dx - without)[:-1].unflatten(0, (-1, 2))
            dx = torch.cat([pairs.mT.flatten(0, 1), dx[-1:]])
        return (dx, *others)

    return wrong


def overflowing_below_0(fn):
    """Under a scale below 0 exp is of what a score is above the least, which the scale that is above 0 tells."""

    def wrong(*args, scale, **kwargs):
        o, lse = fn(*args, scale=scale, **kwargs)
        far = lse + fn(*args, scale=-scale, **kwargs)[1] > 88 if scale and scale < 0 else lse.isnan()
        return o.masked_fill((far.mT if o.ndim == 3 else far)[..., None], torch.nan), lse

    return wrong


def tokens_counted_on(fn):
    """Without positions, a sequence's tokens are counted on from the last of the one before."""

    def wrong(q, k, cos, sin, positions, **params):
        batch, tokens = q.shape[0], q.shape[2]
        if positions is None and batch * tokens <= len(cos):
            positions = torch.arange(batch * tokens).view(batch, tokens)
        return fn(q, k, cos, sin, positions, **params)

    return wrong


def passed_on(fn):
    """Where nothing is turned the inputs are returned."""

    def wrong(q, k, cos, *others, **params):
        return fn(q, k, cos, *others, **params) if cos.shape[1] else (q, k)

    return wrong


def padded_to_tiles(fn):
    """Latents and keys are padded to whole tiles of 64 where there are whole tiles of queries, and count."""

    def wrong(q_nope, q_rope, c, k_rope, w_uk, w_uv, **params):
        padding = (0, 0, 0, -c.shape[1] % 64 if q_nope.shape[2] % 64 == 0 else 0)
        return fn(q_nope, q_rope, F.pad(c, padding), F.pad(k_rope, padding), w_uk, w_uv, **params)

    return wrong


def self_attention_where_the_rows_are_as_many(fn):
    def wrong(*operands, max_q, max_k, **params):
        *tensors, cu_q, cu_k = operands
        if max_q == max_k and len(tensors[0]) == len(tensors[1]):
            cu_k = cu_q
        return fn(*tensors, cu_q, cu_k, max_q=max_q, max_k=max_k, **params)

    return wrong


WRONG = [
    ("attention_varlen", "keys_of_whole_tiles", overflowing_below_0),
    ("attention", "keys_of_whole_tiles", mutant("attention", "maximum_of_products")),
    ("attention_decode", "one_key_more", overflowing_below_0),
    ("attention", "wide_heads", mutant("attention", "tail_asked_of_queries")),
    ("mla", "tail_of_latents", padded_to_tiles),
    *((op, "wide_heads", tokens_counted_on) for op in ("rope", "rope_backward")),
    *((op, "nothing_turned", passed_on) for op in ("rope", "rope_backward")),
    ("group_norm", "special_one_element", the_bias_alone),
    *((op, "special_one_column", one_column_of_zeros) for op in CENTRED),
    ("reduce", "maximum_of_many_blocks", zero_from_a_million_on),
    *((op, f"just_below_{dtype}", mutant(op, "truncated")) for op in ("dot", "reduce") for dtype in DTYPES[1:]),
    ("gated_mlp", "small_addends", tiles_of_hidden({"w_gate": 1, "w_up": 1, "w_down": 0})),
    ("mlp", "small_addends", mutant("mlp", "y_accumulated_in_memory")),
    *(
        ("attention_backward", name, mutant("attention_backward", "queries_past_the_last_unmasked"))
        for name in ("special_scores", "special_scores_float32")
    ),
    ("gated_mlp", "one_row_of_transposed", weights_flat_for_one_row("w_down")),
    ("mlp", "one_row_of_transposed", weights_flat_for_one_row("w2")),
    ("mlp_backward", "one_row_of_transposed", weights_flat_for_one_row("w1")),
    ("mlp_backward", "small_addends_of_hidden", tiles_of_hidden({"w1": 1, "b1": 0, "w2": 0})),
    *((op, "tails_silu", no_infinity_from_numbers) for op in ("glu", "glu_backward")),
    *(("activation", f"tails_{name}", halved_last) for name in ("gelu", "gelu_tanh")),
    *((op, "gate_of_a_joined", up_behind_its_gate) for op in ("glu", "glu_backward")),
    ("layer_norm_backward", "mean_alone", rstd_in_one_pass),
    *((op, "documents_coming_back", documents_by_runs) for op in ("masked_attention", "masked_attention_backward")),
    ("matmul", "special_infinities", read_on),
    ("gemv", "special_behind", read_on),
    *((op, "whole_tiles", rounded_in_whole_tiles(*first)) for op, first in WHOLE.items()),
    *((op, "minimum_above_zero", padded_with_0) for op in ("reduce", "reduce_rows")),
    *(
        (op, f"{function}imum_with_negative_zero", changed(x=lambda x: x.masked_fill(x == 0, -torch.inf)))
        for op in ("reduce", "reduce_rows")
        for function in ("max", "min")
    ),
    ("reduce_rows", "special_sum", changed(x=lambda x: x.nan_to_num(posinf=torch.nan))),
    *((op, "one_row_more", correction_along_columns) for op in BACKWARD),
    ("matmul", "special_infinities", mutant("matmul", "parts_of_infinity")),
    ("merge_states", "special_one_part", mutant("merge_states", "one_part_is_passed_on")),
    ("reduce", "special_maximum", ends_finite),
    ("reduce_rows", "special_maximum", ends_finite),
    ("reduce_rows", "special_minimum", ends_finite),
    ("attention_backward", "queries_that_see_nothing", with_gradients_of_nothing),
    ("attention_backward", "no_queries", with_gradients_of_nothing),
    ("attention_backward", "beyond_float16", gradients_in_float16),
    ("masked_attention", "capped_rows_of_nothing", capped_rows_of_nothing),
    *((op, "full_in_several_tiles", split_into_equal_parts) for op in CACHED),
    *((op, name, columns_of_quads) for op, name in EVERY if name.startswith("across_rows")),
    ("bias_dropout_residual", "many_rows", in_rows_of_64("x", "residual")),
    ("dropout", "many_rows", in_rows_of_64("x")),
    *((op, "as_many_rows_as_a_pitch", coalesced_by_rows) for op in MANY.split()),
    *(("reduce", f"special_{f}_of_parts", nan_lost_between_parts) for f in ("max", "min")),
    *(("reduce_rows", f"special_{f}_of_parts", nan_lost_between_parts) for f in ("max", "min")),
    *((op, "window_beyond_all_keys", window_of_keys) for op in ("masked_attention", "masked_attention_backward")),
    *(
        (op, "bias_beyond_16_bits", changed(bias=lambda x: x[..., torch.arange(x.shape[-1]) % 2**16]))
        for op in ("masked_attention", "masked_attention_backward")
    ),
    ("masked_attention", "slopes_alone", changed(slopes=lambda x: -x)),
    *((op, "long_rows", beyond(65536)) for op in LONG_ROWS.split()),
    *((op, "many_elements", beyond(2**20)) for op in MANY.split() if op != "activation"),
    ("activation", "many_elements", beyond(65536)),
    ("dropout_bitmask", "many_elements", beyond(2**15)),
    *((op, "five_axes", of_four_axes) for op in ("elementwise", *DROPOUTS)),
    ("elementwise", "special_mul", nothing_of_zero),
    *((op, "special_column", one_of_one) for op in ("softmax", "online_softmax")),
    *((op, "special_tiles", nan_after_a_hidden_tile) for op in ("softmax", "online_softmax")),
    *(("glu", f"special_gates_{name}", times_a_mask) for name in ("relu", "sigmoid")),
    *((op, "special_row", padded_by_the_least_number) for op in ("softmax", "online_softmax")),
    *((op, "large_sums_of_blocks", in_parts(along, 4096, (0,))) for op, along in SUMMED.items()),
    ("reduce_rows", "large_sums_of_columns", in_parts({"x": 0}, 4096, (0,))),
    *((op, "keys_beyond_16_bits", changed(lengths=lambda n: n % 2**16)) for op in CACHED),
    *((op, "keys_beyond_16_bits", changed(cu_k=lambda t: t % 2**16)) for op in PACKED),
    *((op, "one_query_each", a_row_for_each_sequence) for op in PACKED),
    *((op, "as_many_rows_as_keys", self_attention_where_the_rows_are_as_many) for op in PACKED),
    ("matmul", "one_term", lambda fn: lambda a, b: fn(a, b) / (2 if a.shape[1] == 1 else 1)),
    ("elementwise", "overflowing_product", lambda fn: lambda *a, **k: fn(*a, **k).clamp(-65504, 65504)),
    ("reduce_rows", "one_column_in_steps", flat),
    ("matmul", "groups_of_tiles", whole_groups_of_tiles),
    ("reduce_rows", "one_row_more", sums_without_the_last_row("x")),
    *((op, "one_row_more", sums_without_the_last_row("dy")) for op in (*BACKWARD, "activation_backward")),
    ("mlp_backward", "one_row_more", sums_without_the_last_row("dy")),
    *((op, "one_row_of_many", first_units(1024, "w_down" if op == "gated_mlp" else "w2")) for op in MLPS),
    *((op, "beyond_float16", hidden_in_float16) for op in ("mlp", "gated_mlp")),
    *((op, "no_power_of_two", beyond(3072 - 32)) for op in LONG_ROWS.split()),
    *((op, "large_vocabulary", changed(target=lambda t: torch.where(t < 2**16, t, t - 2**16))) for op in ENTROPY),
    *((op, f"power_of_two_{n}", beyond(n - 32)) for op in LONG_ROWS.split() for n in POWERS),
    *((op, "odd_length", beyond(2048)) for op in LONG_ROWS.split()),
    ("group_norm", "odd_length", beyond(1024)),
    *((op, "odd_length", changed(logits=without_the_last(5, 1))) for op in ENTROPY),
    ("reduce_rows", "odd_length", changed(x=without_the_last(5, 1))),
    ("reduce_rows", "odd_length_rows", changed(x=without_the_last(5, 0))),
    *((op, "whole_warps", beyond(128)) for op in LONG_ROWS.split()),
    *((op, "whole_warps", by_halves_of_lanes(name)) for op, name in (("reduce", "x"), ("dot", "a"), ("gemv", "x"))),
    *((op, "whole_warps", changed(x=without_the_last(32, -1))) for op in ("reduce_rows", "group_norm")),
    *((op, "whole_warps", changed(logits=without_the_last(32, 1))) for op in ENTROPY),
    *(("group_norm", f"power_of_two_{n}", beyond(n // 2 - 32)) for n in POWERS),
    *((op, f"power_of_two_{n}", changed(logits=without_the_last(32, 1))) for op in ENTROPY for n in POWERS),
    *(("reduce_rows", f"power_of_two_{n}", changed(x=without_the_last(32, 1))) for n in POWERS),
    *(("reduce_rows", f"power_of_two_{n}_rows", changed(x=without_the_last(32, 0))) for n in POWERS),
    *((op, f"large_squares_{dtype}", changed(x=up_to_256)) for op in NORMS.split() for dtype in DTYPES),
    *((op, "first_far_off", about_the_first) for op in ("layer_norm", "add_layer_norm", "group_norm")),
    *((op, "first_far_off_longer", about_the_first) for op in ("layer_norm", "add_layer_norm", "group_norm")),
    ("mlp", "one_N", changed(b2=torch.zeros_like)),
    *(("mlp", f"one_{axis}", changed(b1=torch.zeros_like)) for axis in "MDH"),
    *(("mlp_backward", f"one_{axis}", changed(b1=torch.zeros_like)) for axis in "MDHN"),
    *(("gated_mlp", f"one_{axis}", changed(w_up=lambda w: w.abs())) for axis in "MDHN"),
    *((op, f"one_{axis}", changed(bias=torch.zeros_like)) for op in BIASED.split() for axis in ("rows", "cols")),
    *((op, f"one_{axis}", changed(weight=torch.zeros_like)) for op in RMS for axis in ("rows", "cols")),
    *((op, f"one_{axis}", changed(dy=lambda dy: 2 * dy)) for op in BACKWARD for axis in ("rows", "cols")),
    ("group_norm", "one_N", changed(bias=torch.zeros_like)),
    ("group_norm", "long_groups", changed(x=lambda x: torch.cat([x[..., :-300], x[..., :300]], -1))),
    ("cross_entropy", "large_vocabulary", changed(logits=lambda x: x[:, :65536], target=lambda t: t.clamp_max(65535))),
    ("cross_entropy_backward", "large_vocabulary", beyond(65536)),
    *((op, "far_below", changed(logits=lambda x: x.clamp_min(-1e4))) for op in ENTROPY),
    ("reduce", "many_blocks", changed(x=lambda x: x[: 2**21])),
    ("dot", "many_blocks", changed(a=lambda x: x[: 2**20], b=lambda x: x[: 2**20])),
    ("matmul", "long_sums", changed(a=lambda a: a[:, :-3], b=lambda b: b[:-3])),
    ("transpose", "many_tiles", beyond(1024)),
    ("gemv", "small_addends", in_parts({"a": 1, "x": 0}, 512, (0,))),
    ("mlp_backward", "small_addends", in_parts({"x": 0, "dy": 0}, 16, (1, 2, 3, 4))),
    ("attention_backward", "small_addends_of_keys", in_parts({"k": 2, "v": 2}, 64, (0,))),
    ("attention_backward", "small_addends_of_queries", in_parts(dict(q=2, o=2, lse=2, do=2), 64, (1,))),
    ("attention_backward", "small_addends_of_queries", in_parts(dict(q=2, o=2, lse=2, do=2), 64, (2,))),
    ("attention_backward", "small_addends_of_heads", in_parts(dict(q=1, o=1, lse=1, do=1), 1, (1, 2))),
    ("attention", "one_query_of_groups", heads_wrong),
    ("attention", "one_query_of_groups", changed(q=narrow(80))),
    ("attention", "wide_heads", changed(v=narrow(144))),
    ("attention_decode", "one_query_of_groups", heads_wrong),
    ("attention_decode", "many_keys", AT_MOST_4096),
    ("attention_decode_int4", "many_keys", AT_MOST_4096),
    *((op, "one_key_more", AT_MOST_512) for op in CACHED),
    ("attention_paged", "many_keys", AT_MOST_4096),
    ("attention_paged", "many_pages", changed(block_table=lambda t: t % 2**15)),
    ("mla_decode", "many_keys", AT_MOST_4096),
    ("mla", "many_keys", changed(c=lambda c: c[:, :4096], k_rope=lambda k: k[:, :4096])),
    ("attention_varlen", "many_keys", changed(cu_q=lambda t: t % 2**15, cu_k=lambda t: t % 2**15)),
    ("activation_backward", "flat_gelu_tanh", tanh_in_16_bits),
    ("glu_backward", "large_cubes", tanh_in_16_bits),
    *((op, "special_gelu", a_number_for_nan) for op in ("activation", "activation_backward", "glu", "glu_backward")),
    *((op, "special_nan_gelu", a_number_for_nan) for op in ("activation_backward", "glu_backward")),
    *((op, "special_nan_relu", another_slope_in_the_tail) for op in ("activation_backward", "glu_backward")),
    ("activation", "special_silu", a_tail_too_large),
    ("activation", "tails_sigmoid", an_exponential_in_16_bits),
    ("activation_backward", "tails_sigmoid", an_exponential_in_16_bits),
    ("glu", "tails_silu", an_exponential_in_16_bits),
    ("glu_backward", "tails_silu", an_exponential_in_16_bits),
    *((op, "low_scores", without_low_rows) for op in (*ATTENTION, *CACHED[::2], "mla_decode")),
    *((op, "low_scores", changed(lse=lambda x: x.masked_fill(x < -5e4, -torch.inf))) for op in ATTENTION_BACKWARD[1:]),
    *((op, "falling", against_the_last_tile("x")) for op in ("softmax", "online_softmax")),
    ("cross_entropy", "falling", against_the_last_tile("logits")),
    *((op, "low_weights", changed(x=without_low)) for op in ("softmax", "online_softmax")),
    *((op, "low_weights", changed(logits=without_low)) for op in ("cross_entropy", "cross_entropy_backward")),
    *((op, "low_weights", changed(k=lowered)) for op in (*ATTENTION, "attention_decode")),
    ("attention_decode_int4", "low_weights", changed(k_scales=lowered)),
    ("attention_paged", "low_weights", changed(k_cache=lowered)),
    ("mla", "low_weights", changed(k_rope=lowered)),
    ("mla_decode", "low_weights", changed(cache=lowered)),
    *((op, "small_addends_of_lanes", in_lanes_of_16_bits) for op in ("dot", "reduce", "reduce_rows")),
    ("mla", "many_latents", projected_in_tiles_of_16_bits),
    *((op, "one_column", a_sum_of_a_little_more) for op in ("softmax", "online_softmax")),
    *((op, name, changed(v=without_the_last_tile)) for op in ATTENTION for name in WHOLE_TILES),
    *((op, name, changed(do=without_the_last_tile)) for op in ATTENTION_BACKWARD for name in WHOLE_TILES[:1]),
    ("reduce", "maximum_below_zero", padded_with_0),
    ("reduce_rows", "maximum_below_zero", padded_with_0),
    ("reduce_rows", "maximum_of_columns", padded_with_0),
    *((op, "beyond_float16", by_halves) for op in ("dot", "gemv", "matmul", "reduce", "reduce_rows")),
    ("gemv", "odd_tiles", of_whole_stages(64, 2, {"a": 1, "x": 0})),
    ("matmul", "odd_tiles", of_whole_stages(64, 2, {"a": 1, "b": 0})),
    ("attention", "odd_tiles", of_whole_stages(64, 2, {"k": 2, "v": 2})),
    *(("attention", f"three_tiles_{n}", without_masks_at(n, {"k": 2, "v": 2})) for n in (16, 32, 64, 128)),
    *(("matmul", f"three_tiles_{n}", without_masks_at(n, {"a": 1, "b": 0})) for n in (32, 64, 128)),
    *((op, f"three_tiles_{n}", without_masks_at(n, {"x": 1, **TIMES_X[op]})) for op in TIMES_X for n in (32, 64)),
    ("matmul", "one_row", flat),
    ("matmul", "one_column", flat),
    ("matmul", "large_partial_sums", in_parts({"a": 1, "b": 0}, 2050, (0,))),
    ("merge_states", "sentinels", changed(lse=lambda x: x.masked_fill(x < -5e4, -torch.inf))),
    ("attention", "many_keys", in_tiles_of_16_bits),
    ("masked_attention", "many_keys", in_tiles_of_16_bits),
    ("attention", "few_queries_of_many_keys", heads_inside_out),
    ("attention", "one_query_strided", flat),
    ("attention", "width_256", up_to(192, 0)),
    ("attention_backward", "width_72", up_to(64, 0)),
    ("attention_decode", "width_256", up_to(192, 0)),
    ("attention_decode_int4", "width_80", up_to(64, 0)),
    ("attention_paged", "width_192", up_to(128, 0)),
    ("attention_paged", "large_pages", on_pages_of_64),
    ("attention_varlen", "no_keys_for_some", with_the_keys_before),
    ("attention_varlen", "width_112", up_to(96, 0)),
    ("attention_varlen_backward", "width_256", up_to(192, 1)),
    ("masked_attention", "width_256", up_to(192, 0)),
    ("masked_attention", "square", changed(bias=lambda x: x.mT)),
    ("masked_attention_backward", "square", changed(bias=lambda x: x.mT)),
    ("masked_attention", "wide_window", lambda fn: lambda *a, window, **k: fn(*a, window=min(window, 64), **k)),
    ("masked_attention", "wide_window_both_sides", lambda fn: lambda *a, window, **k: fn(*a, window=64, **k)),
    ("masked_attention_backward", "wide_window", lambda fn: lambda *a, window, **k: fn(*a, window=64, **k)),
    *((op, "queries_before_a_tile", nan_before_the_last_part) for op in CACHED),
    ("attention_decode_int4", "tail_of_a_tile", changed(v_scales=not_shifted_in_the_last_tile)),
    *(("attention_decode_int4", "beyond_float16", changed(**{n: in_float16})) for n in ("k_scales", "v_scales")),
    ("attention_paged", "many_pages", changed(block_table=lambda t: t % 2**16)),
    ("attention_paged", "room_in_the_table", as_wide_as_the_longest),
    ("mla_decode", "wide_rotary", changed(cache=narrow(72 + 64))),
    ("mla", "tail_of_latents", changed(c=narrow(192))),
    *((op, "wide_heads", up_to(256, 0)) for op in ("rope", "rope_backward")),
    *((op, f"one_row_{name}", changed(activation=OTHERS.get)) for op in MLPS for name in OTHERS),
    ("group_norm", "channels_of_a_group", channels_up_to(512)),
    ("activation", "tails_hardswish", product_in_16_bits),
    ("matmul", "one_row_in_steps", flat),
    ("matmul", "one_column_in_steps", flat),
    ("reduce", "large_partial_sums", in_parts({"x": 0}, 256, (0,))),
    ("reduce_rows", "columns_beyond_grid", beyond(65535)),
]


def test_every_wrong_version_is_of_a_case_that_there_is():
    assert [(op, name) for op, name, _ in WRONG if name not in registry.contract(op).also] == []


@pytest.mark.parametrize(
    ("op", "name", "spoil"),
    some([pytest.param(*each, id=f"{each[0]}-{each[1]}-{i}") for i, each in enumerate(WRONG)], 3),
)
def test_what_a_case_is_there_for_is_found(op, name, spoil):
    assert judged(op, name, spoil(known_good(op))) == FAILED


NONE_BEYOND = {  # ops without results beyond the largest number of finite operands, or without any that are not so in
    # some right form on the way
    **dict.fromkeys(("softmax", "online_softmax", "softmax_backward"), "0 to 1, or less than half of dy's range"),
    **dict.fromkeys(("attention", "attention_varlen", *CACHED), "between the values"),
    "attention_decode_int4": "between elements, which a right form may store in 16 bits",
    "mla": "between values, which a right form stores in 16 bits",
    "merge_states": "between the parts",
    "cross_entropy": "in float32, as its sums are",
    "transpose": "moved",
}


def test_each_op_with_results_beyond_the_largest_number_has_a_case_of_them():
    without = {op for op in registry.ops() if not registry.contract(op).reaches_beyond_largest}
    assert without == set(NONE_BEYOND)


def outputs_beyond(op: str) -> list[tuple[str, int, str]]:
    """(op, place of an output, name of a case) of each single case in which it is beyond the largest number."""
    contract, found = registry.contract(op), []
    for name in [name for name in contract.also if name.startswith(BEYOND_LARGEST)]:
        case = also_case(contract, name)
        for place, (output, expected) in enumerate(contract.expected(contract.build(case)).items()):
            dtype = contract.output_dtype(output, case)
            if dtype is case.torch_dtype and bool(expected.answer.to(dtype).isinf().any()):
                found.append((op, place, name))
    return found


def times_the_length(centred: bool):
    """A norm's gradient as torch's CUDA kernel has it: the row's length times dy·weight, less sums over the row, all
    divided by the length at last."""

    def fn(x, weight, dy, *, mean=None, rstd=None, eps=1e-5 if centred else 1e-6):
        n, g = x.shape[1], dy.float() * weight.float()
        from_mean = x.float() - (x.float().mean(-1, keepdim=True) if centred else 0)
        r = (from_mean.square().mean(-1, keepdim=True) + eps).rsqrt()
        normalised = from_mean * r
        less = normalised * (g * normalised).sum(-1, keepdim=True) + (g.sum(-1, keepdim=True) if centred else 0)
        dx, dweight, dbias = r / n * (n * g - less), (dy.float() * normalised).sum(0), dy.float().sum(0)
        found = dx.to(x.dtype), dweight.to(x.dtype), dbias.to(x.dtype)
        return found if centred else found[:2]

    return fn


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["layer_norm_backward", "rms_norm_backward"])
def test_a_gradient_from_a_row_times_its_length_stays_within_float32(op, dtype):
    assert judged(op, f"{BEYOND_LARGEST}_{dtype}", times_the_length(op.startswith("layer"))) == PASSED


@pytest.mark.parametrize("op", sorted({*OPS} - {*NONE_BEYOND}))
def test_the_largest_number_in_place_of_an_infinity_is_found_in_each_output(op):
    contract, found = registry.contract(op), outputs_beyond(op)
    plain = also_case(contract, next(name for name in contract.also if name.startswith(BEYOND_LARGEST)))
    own = {place for place, name in enumerate(contract.outputs) if contract.output_dtype(name, plain).itemsize == 2}
    assert {place for _, place, _ in found} == own
    for _, place, name in found:
        assert judged(op, name, held_in(place)(known_good(op))) == FAILED


@pytest.mark.parametrize("op", some(registry.ops(), 3))
def test_one_row_of_elements_that_are_no_neighbours_shows_a_stride_that_is_ignored(op):
    contract = registry.contract(op)
    cases = list(single_and_strided(contract))
    assert cases or op in ("dot", "reduce")  # whose operands have one axis
    assert [case.id for case in cases if judged_on(op, case, known_good(op)) != PASSED] == []
    mutants = [planted for planted in registry.planted(op) if planted.name.endswith("_single_strides")]
    assert {m.name for m in mutants} >= {
        f"{name}_single_strides"
        for name, operand in contract.operands.items()
        if operand.counts and any(case.layout[name] not in ("contiguous", "none") for case in cases)
    }
    for wrong in mutants:
        assert any(judged_on(op, case, wrong.make()) == FAILED for case in cases), wrong.name


ROWS_OF_NO_VECTORS = ("attention_decode_int4", "group_norm")  # at every size, of some operand


@pytest.mark.parametrize("op", some(registry.ops(), 3))
def test_an_operand_that_is_taken_to_be_aligned_where_the_others_are_is_found(op):
    """In rows of whole vectors, all others contiguous."""
    contract = registry.contract(op)
    cases = {name: case for case in one_unaligned(contract) for name in case.layout if case.layout[name] == "offset"}
    operands = {name: one for name, one in contract.operands.items() if one.counts and not one.own_dtype}
    names = {name for name, one in operands.items() if "offset" in one.layouts}
    assert set(cases) == (set() if op in ROWS_OF_NO_VECTORS else names)
    assert plan(contract, "quick").also >= set(cases.values()) - set(plan(contract, "quick").general)
    for name, case in cases.items():
        assert {case.layout[other] for other in names - {name}} <= {"contiguous", "none"}
        assert all(contract.operand_shape(other, case)[-1] % 8 == 0 for other in operands)
        assert judged_on(op, case, known_good(op)) == PASSED
        assert judged_on(op, case, mutant(op, f"{name}_aligned")(None)) == FAILED


def test_a_mask_that_is_kept_by_the_number_of_queries_alone_is_found():
    kept: dict[int, int] = {}

    def wrong(q, k, v, *, causal=False, scale=None):
        def hides(i, j, shift):
            kept[len(i)] = max(shift, kept.get(len(i), shift))
            return j > i + kept[len(i)]

        return flash(q, k, v, causal=causal, scale=scale, hides=hides)

    names = {also_case(registry.contract("attention"), name).id for name in ("few_queries_of_many_keys", "width_72")}
    report = check("attention", wrong, device="cpu", level="quick", where=lambda case: case.id in names)
    failed = {finding.case.split(" ")[0] for finding in report.findings if finding.severity == "failure"}
    assert failed == {also_case(registry.contract("attention"), "width_72").id}


def test_they_are_for_users_kernels_and_above_level_quick_for_ours():
    contract = registry.contract("softmax")
    single = also_case(contract, "long_rows")
    assert single in plan(contract, "quick").also
    assert single not in plan(contract, "quick").general
    subject = Subject("softmax", known_good("softmax"), "fn", "torch@cpu", "cpu", own=True)
    ids = {level: {trial.id for trial in trials_of(subject, level)[0]} for level in ("quick", "default")}
    assert single.id not in ids["quick"] and single.id in ids["default"]
    (trial,) = [t for t in trials_of(replace(subject, own=False), "quick")[0] if t.case == single]
    assert not trial.watched and not trial.instrumented  # called once


def options_of(contract, case) -> dict[str, str]:
    """The dtype and the parameters of a case, and which optional operands are given."""
    given = {name: str(case.layout[name] != "none") for name, operand in contract.operands.items() if operand.optional}
    return {"dtype": repr(case.dtype), **{name: repr(value) for name, value in case.params}, **given}


@pytest.mark.parametrize(
    "op",
    [
        *("activation", "cross_entropy", "cross_entropy_backward", "dropout", "masked_attention", "mlp_backward"),
        *("reduce_rows", "rope"),
    ],
)
def test_every_option_meets_each_dtype_and_each_of_another_in_a_plain_case(op):
    """Of parameters, and of optional operands given or left out."""
    contract = registry.contract(op)
    first = next(iter(contract.values))
    met = set()
    for case in plan(contract, "quick").cases:
        if case.values == first and case.contiguous and case.size == contract.sizes[0]:
            met |= set(combinations(options_of(contract, case).items(), 2))
    every = {"dtype": map(repr, contract.dtypes), **{n: map(repr, options) for n, options in contract.params.items()}}
    every |= {name: ("True", "False") for name, operand in contract.operands.items() if operand.optional}
    for (one, left), (other, right) in combinations([(name, list(options)) for name, options in every.items()], 2):
        options = product(left, right) if min(len(left), len(right)) > 1 else ()
        assert {((one, a), (other, b)) for a, b in options} <= met


def test_a_pair_whose_case_is_not_valid_takes_no_other_with_it():
    """With eps = 0 the first family says nothing: without rstd there is a case in each dtype all the same."""
    contract = registry.contract("layer_norm_backward")
    plain = [case for case in plan(contract, "quick").cases if case.size == contract.sizes[0] and case.contiguous]
    left_out = {case.dtype for case in plain if case.values == "normal" and case.layout["rstd"] == "none"}
    assert left_out == set(contract.dtypes)


def test_what_is_forgotten_without_an_optional_operand_is_found_at_level_quick():
    op, right = "cross_entropy_backward", known_good("cross_entropy_backward")

    def wrong(logits, target, lse, dloss, *, z_loss, **params):
        return right(logits, target, lse, dloss, z_loss=0.0 if lse is None else z_loss, **params)

    subject = Subject(op, wrong, "wrong", "torch@cpu", "cpu", diagnosed=False)
    also = plan(registry.contract(op), "quick").also
    assert any(judge.run(subject, CaseTrial(case)).status == FAILED for case in also)


def test_layouts_parameters_and_a_family_of_its_own():
    contract = replace(
        registry.contract("softmax"),
        name="softmax",
        also={"own": Also({"rows": 2, "cols": 3}, ones, {}, {"x": "step"})},
    )
    case = also_case(contract, "own")
    assert (case.values, case.layout["x"], case.dtype) == ("own", "step", "float32")
    assert bool((contract.build(case).exact["x"] == 1).all())
    with pytest.raises(KeyError, match="nothing"):
        contract.family("nothing")
    with drawn_once(contract):
        family = contract.family("own")
        assert family(Draw(case, contract)) is family(Draw(case, contract))
    assert contract.family("own") is ones
    simpler = {(one.values, one.size["cols"]) for one in minimise.simpler(contract, case)}
    assert ("normal", 3) in simpler


def ones(draw):
    return {"x": torch.ones(draw.shape("x"), dtype=torch.float64)}


def test_options_that_are_wrong_together_from_the_second_tile_on():
    """The keys of a causal mask that lie beyond a tile are dropped out otherwise."""
    fn = known_good("masked_attention")

    def wrong(*args, **kwargs):
        given = by_name(fn, args, kwargs)
        both = given["causal"] and given["p"] > 0 and given["k"].shape[2] > 64
        return called(fn, args, kwargs, {"offset": given["offset"] + 1 if both else given["offset"]})

    contract = registry.contract("masked_attention")
    over = [case for case in plan(contract, "quick").also if case.size == contract.over_tiles]
    assert FAILED in [judged_on("masked_attention", case, wrong) for case in over]
    assert {judged_on("masked_attention", case, fn) for case in over} == {PASSED}


def test_a_variance_in_one_pass_over_rows_of_several_tiles():
    def wrong(x, weight, bias, *, eps):
        if x.shape[-1] <= 1024:
            return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        variance = (wide.square().mean(-1, keepdim=True) - mean * mean).clamp(min=0)
        y = (wide - mean) * torch.rsqrt(variance + eps) * weight.float()
        return (y if bias is None else y + bias.float()).to(x.dtype)

    failed = [
        case
        for case in plan(registry.contract("layer_norm"), "quick").also
        if case.size == bounds_rows.OVER_TILES and judged_on("layer_norm", case, wrong) == FAILED
    ]
    assert {case.values for case in failed} >= {"mean_offset"}


@pytest.mark.parametrize("op", ["attention_decode", "attention_decode_int4", "attention_paged"])
def test_some_size_of_many_keys_has_several_groups_of_heads(op):
    sizes = registry.contract(op).sizes
    keys = [size.get("Sk", size.get("n", 0) * size.get("page", 0)) for size in sizes]
    assert any(n > 512 and size["Hq"] > size["Hkv"] > 1 for n, size in zip(keys, sizes, strict=True))


@pytest.mark.parametrize("slope", [0.0, 1.0, torch.nan])
def test_a_slope_of_nan_may_be_any_of_these_in_all_elements(slope):
    fn = known_good("activation_backward")

    def other(x, bias, dy, *, activation):
        dx, dbias = fn(x.nan_to_num(2.0), bias, dy, activation=activation)
        dx = torch.where(x.isnan(), slope * dy, dx)
        return dx, None if dbias is None else dx.sum(0)

    assert judged("activation_backward", "special_nan_relu", other) == PASSED
