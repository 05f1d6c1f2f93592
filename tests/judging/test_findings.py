"""What is said of wrong kernels of many kinds, in several ops: what is printed names the fault, and nothing else."""

import itertools
import math
import re

import pytest
import torch
import torch.nn.functional as F

from tests.night import some
from touchstone import check
from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults import _dots as dots
from touchstone.conformance.faults import attention, attention_backward, gated_mlp, mlp

KERNELS = []  # (op, a regular expression that each hint matches, what makes the kernel)


def wrong(op, said):
    def add(make):
        KERNELS.append((op, said, make))
        return make

    return add


def softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def rms(x, weight, eps):
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


@wrong("softmax", r"the answer of an earlier call|mutant cached_by|kept from the first call of a size")
def cached_by_shape():
    held = {}

    def fn(x):
        return held.setdefault((x.shape, x.dtype), softmax(x)).clone()

    return fn


@wrong("matmul", r"every 25th call is wrong")
def every_25th_call():
    number = itertools.count(1)

    def fn(a, b):
        c = (a.float() @ b.float()).to(a.dtype)
        if next(number) % 25 == 0 and c.numel() > 2:
            c.view(-1)[1] += 3
        return c

    return fn


@wrong("softmax", r"right up to call \d+, wrong from call \d+ on|right in the first \d+ calls")
def first_12_calls():
    number = itertools.count(1)

    def fn(x):
        y = softmax(x)
        return torch.where(torch.arange(y.shape[-1]) % 3 == 0, y * 1.25, y) if next(number) > 12 else y

    return fn


@wrong("softmax", r"only the first call of a size is wrong")
def tuned_on_its_output():
    seen = set()

    def fn(x):
        new = (x.shape, x.dtype) not in seen
        seen.add((x.shape, x.dtype))
        return (softmax(x) * (5 if new else 1)).to(x.dtype)

    return fn


@wrong("matmul", r"only the first call of a size is wrong")
def tuned_by_adding():
    seen = set()

    def fn(a, b):
        key = (a.shape, b.shape, a.dtype)
        c = (a.float() @ b.float()) * (1 if key in seen else 4)
        seen.add(key)
        return c.to(a.dtype)

    return fn


def _one_more(x):
    """x with a column more than it has, where its rows leave room for that; else None."""
    if x.stride(-1) != 1 or x.stride(0) <= x.shape[1]:
        return None
    return torch.as_strided(x, (x.shape[0], x.shape[1] + 1), x.stride(), x.storage_offset())


@wrong("softmax", r"memory outside the view of x|mutant all_nan|NaN there|NaN around or between the elements of it")
def gap_in_the_sum():
    def fn(x):
        e = torch.exp((x if _one_more(x) is None else _one_more(x)).float() - x.float().amax(-1, keepdim=True))
        return (e[:, : x.shape[1]] / e.sum(-1, keepdim=True)).to(x.dtype) if x.numel() else torch.empty_like(x)

    return fn


@wrong("layer_norm", r"memory outside the view of x|mutant all_nan|NaN there|NaN around or between the elements of it")
def gap_in_the_mean():
    def fn(x, weight, bias, *, eps=1e-5):
        wide = x if _one_more(x) is None or not x.numel() else _one_more(x)
        mean = wide.float().sum(-1, keepdim=True) / max(x.shape[1], 1)
        centred = x.float() - mean
        y = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()
        return (y if bias is None else y + bias.float()).to(x.dtype).contiguous()

    return fn


@wrong("softmax", r"the answer of another rows: that of 0")
def last_row_of_the_first():
    def fn(x):
        y = softmax(x)
        if len(y) > 1:
            y[-1] = y[0]
        return y

    return fn


@wrong("rms_norm", r"statistics are those of row 0|each row is a factor|x the answer")
def statistics_of_row_0():
    def fn(x, weight, *, eps=1e-6):
        rstd = (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()
        return (x.float() * rstd[:1] * weight.float()).to(x.dtype)

    return fn


@wrong("attention", r"the answer of another Hq: that of 2|mutant")
def head_1_holds_head_2():
    def fn(q, k, v, *, causal=False, scale=None):
        o, lse = attention.flash(q, k, v, causal=causal, scale=scale)
        if q.shape[1] > 2:
            o[:, 1] = o[:, 2].clone()
        return o, lse

    return fn


@wrong("attention", r"v were everywhere as at B 0|the answer of another B|first_batch")
def values_of_batch_0():
    def fn(q, k, v, *, causal=False, scale=None):
        return attention.flash(q, k, v[:1].expand(v.shape), causal=causal, scale=scale)

    return fn


@wrong("attention_backward", r"v were everywhere as at Hkv 0|the answer of another Hkv|read other heads of v alone")
def values_of_head_0():
    def fn(q, k, v, o, lse, do, *, causal=False, scale=None):
        return attention_backward.from_lse(q, k, v[:, :1].expand(v.shape), o, lse, do, causal=causal, scale=scale)

    return fn


@wrong("matmul", r"one of float16|sums kept in float16|accumulate in float16|but for one in float16")
def float16_accumulator():
    def fn(a, b):
        return dots.added(a, b, dots.tiles(a.shape[-1], 16), torch.float16).to(a.dtype)

    return fn


@wrong("matmul", r"a few partial sums")
def partial_sums_stored():
    def fn(a, b):
        return sum((a[:, i::4].float() @ b[i::4].float()).to(a.dtype).float() for i in range(4)).to(a.dtype)

    return fn


@wrong("matmul", r"one of bfloat16|accumulate in bfloat16|sums kept in bfloat16|result_through_bfloat16")
def bfloat16_accumulator():
    def fn(a, b):
        return dots.added(a, b, dots.tiles(a.shape[-1], 32), torch.bfloat16).to(a.dtype)

    return fn


@wrong("layer_norm", r"never written")
def tail_not_stored():
    def fn(x, weight, bias, *, eps=1e-5):
        shift = None if bias is None else bias.float()
        y = F.layer_norm(x.float(), x.shape[-1:], weight.float(), shift, eps).to(x.dtype)
        out = torch.empty(y.shape, dtype=y.dtype)
        kept = y.shape[-1] // 16 * 16
        out[:, :kept] = y[:, :kept]
        return out

    return fn


@wrong("mlp", r"tanh_for_erf")
def tanh_for_erf():
    def fn(x, w1, b1, w2, b2, *, activation="gelu"):
        act = acts.replaced("gelu", "gelu_tanh")
        return mlp.whole_hidden(x, w1, b1, w2, b2, activation=activation, act=act)

    return fn


@wrong("online_softmax", r"to base 2|1/ln 2")
def lse_to_base_2():
    return lambda x: (softmax(x), torch.logsumexp(x.float(), -1) / math.log(2))


@wrong("rms_norm_backward", r"sums over rows leave out|partial_tile|last_row|all 0 there")
def last_rows_left_out():
    def fn(x, weight, dy, *, rstd=None, eps=1e-6):
        wide, d = x.float(), dy.float()
        r = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        hat, g = wide * r, d * weight.float()
        dx = r * (g - hat * (g * hat).mean(-1, keepdim=True))
        return dx.to(x.dtype), (d * hat)[: len(x) // 8 * 8].sum(0).to(x.dtype)

    return fn


@wrong(
    "group_norm",
    r"weight_of_the_group|each C of weight were the one before|weight were everywhere as at C 0|first_weight_for_all",
)
def weight_of_the_group():
    def fn(x, weight, bias, *, groups, eps=1e-5):
        shape, each = (1, -1, *[1] * (x.ndim - 2)), x.shape[1] // groups
        y = F.group_norm(x.float(), groups, None, None, eps)
        y = y * weight.float()[::each].repeat_interleave(each).reshape(shape)
        return (y if bias is None else y + bias.float().reshape(shape)).to(x.dtype).contiguous()

    return fn


@wrong("add_rms_norm", r"other values in each call")
def by_chance():
    def fn(x, residual, weight, *, eps=1e-6):
        h = x.float() + residual.float()
        y = rms(h, weight, eps)
        if y.numel() and len(y) > 2:
            y[2] *= torch.rand(y.shape[1])
        return y.to(x.dtype).contiguous(), h.to(x.dtype).contiguous()

    return fn


@wrong("softmax_backward", r"delta_added")
def delta_added():
    def fn(y, dy):
        wide, d = y.float(), dy.float()
        return (wide * (d + (wide * d).sum(-1, keepdim=True))).to(y.dtype)

    return fn


@wrong("gated_mlp", r"gate_and_up_swapped")
def gate_for_up():
    def fn(x, w_gate, w_up, w_down, *, activation="silu"):
        return gated_mlp.whole_hidden(x, w_up, w_gate, w_down, activation=activation)

    return fn


@wrong("glu", r"wrong wherever gate >= \S+, and nowhere else \(right up to \S+\): NaN there, as where|^NaN there: 0/0")
def sigmoid_by_powers():
    """inf/inf from a gate of 89 on."""

    def fn(gate, up, *, activation="silu"):
        wide = gate.float()
        act = wide * (wide.exp() / (1 + wide.exp())) if activation == "silu" else acts.activate(wide, activation)
        return (act * up.float()).to(gate.dtype)

    return fn


@wrong("attention_decode", r"by running sums: neither the sums nor what they weigh|not scaled anew|rescale")
def nothing_rescaled():
    """In tiles of 16 keys."""

    def fn(q, k_cache, v_cache, lengths, *, scale=None):
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        group, (count, queries) = q.shape[1] // max(k_cache.shape[1], 1), (k_cache.shape[2], q.shape[2])
        k, v = (t.float().repeat_interleave(group, 1) for t in (k_cache, v_cache))
        key = torch.arange(count)
        last = lengths.long()[:, None, None, None] - queries + torch.arange(queries)[:, None]
        s = (q.float() @ k.mT * scale).masked_fill(key > last, -math.inf)
        known = s.cummax(-1).values[..., (key // 16 * 16 + 15).clamp_max(count - 1)]
        p = torch.where(s == -math.inf, 0, (s - known).exp())
        total = p.sum(-1)
        held = torch.where(key[:, None] < lengths.long()[:, None, None, None], v, 0)
        o = torch.where(total[..., None] == 0, 0, p @ held / total[..., None])
        return o.to(q.dtype), known.amax(-1) + total.log()

    return fn


def hints(diagnosis):
    """What a diagnosis says of the cause, apart from where it is wrong, the map and who wrote it."""
    found = []
    for line in (diagnosis or "").splitlines():
        if line.startswith(("equals the reference", "right as", "right in", "every ", "only ")):
            found.append(line)
        elif ": wrong: " in line:
            found += line.split("; ")[1:2]
        elif line.startswith("the answer"):
            found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("op", "said", "make"), some(KERNELS, 8), ids=lambda value: getattr(value, "__name__", ""))
def test_the_fault_is_named_and_no_other(op, said, make):
    report = check(op, make(), device="cpu", level="quick", isolate="none")
    assert not report.passed
    told = [hints(finding.diagnosis) for finding in report.failures if finding.check == "values"][:3]
    assert any(told), "nothing is said"
    misleading = [hint for each in told for hint in each if not re.search(said, hint)]
    assert misleading == []
