"""The contracts of matmul, the MLPs and attention tell right from wrong.

For each op: the correctly rounded answer and independently written correct implementations pass every default case with
room to spare, and each planted fault is rejected by at least one.
"""

import importlib
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conformance import budget, generate, registry

OPS = ("matmul", "mlp", "mlp_backward", "gated_mlp", "attention", "attention_backward")
DTYPES = ("float32", "float16", "bfloat16")
ROOM = 0.9


@dataclass(frozen=True)
class Judged:
    case: Any
    arguments: dict
    expected: dict
    exact: tuple


@cache
def cases(op, dtype, compute=None):
    """Every default case of `op` in `dtype` with its arguments and answers."""
    contract = registry.contract(op)
    found = []
    for case in generate.plan(contract, "default", dtypes=(dtype,)).cases:
        inputs = contract.build(case)
        exact = tuple(contract.exact.get(case.values, ()))
        found.append(Judged(case, inputs.arguments, contract.expected(inputs, compute), exact))
    return found


def judge(op, fn, dtypes=DTYPES, compute=None):
    """Yield (case, output, verdict) for every output of `fn` on every case of `dtypes`."""
    for judged in [judged for dtype in dtypes for judged in cases(op, dtype, compute)]:
        returned = fn(**judged.arguments)
        returned = returned if isinstance(returned, tuple) else (returned,)
        for (name, expected), got in zip(judged.expected.items(), returned, strict=True):
            if expected is None:
                assert got is None
                continue
            got = got.to(expected.dtype or judged.case.torch_dtype)
            yield judged.case, name, budget.compare(got, expected, judged.case.torch_dtype, name in judged.exact)


def passes(op, fn, dtypes=DTYPES, compute=None):
    worst = 0.0
    for case, name, verdict in judge(op, fn, dtypes, compute):
        assert verdict.ok, f"{case}: {name}: {verdict.message}"
        assert verdict.fraction < ROOM, f"{case}: {name}: {verdict.fraction:.2f} of the budget"
        worst = max(worst, verdict.fraction)
    print(f"{op} {fn.__name__}: worst {worst:.2f} of the budget")


def rejected(op, fn, dtype, compute=None):
    return any(not verdict.ok for _, _, verdict in judge(op, fn, (dtype,), compute))


# Dot products: `dot(a, b)` in several precisions and orders, all returned in float32.


def to_tf32(x):
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def dot_float32(a, b):
    return a.float() @ b.float()


def dot_tf32(a, b):
    return to_tf32(a) @ to_tf32(b)


def dot_bf16(a, b):
    return a.bfloat16().float() @ b.bfloat16().float()


def accumulating(dtype, tile=8):
    """A dot product that keeps its running sum in `dtype` from one tile of the inner axis to the next."""

    def dot(a, b):
        a, b = a.float(), b.float()
        total = (a[..., :0] @ b[..., :0, :]).to(dtype)
        for start in range(0, a.shape[-1], tile):
            total = (total.float() + a[..., start : start + tile] @ b[..., start : start + tile, :]).to(dtype)
        return total.float()

    return dot


LOWER = [
    ("float32", "tf32 inputs", dot_tf32),
    ("float32", "bf16 inputs", dot_bf16),
    ("float32", "fp16 accumulator", accumulating(torch.float16)),
    ("float16", "bf16 inputs", dot_bf16),
    ("float16", "fp16 accumulator", accumulating(torch.float16)),
    ("bfloat16", "bf16 accumulator", accumulating(torch.bfloat16)),
]


def dot_reversed(a, b):
    return a.float().flip(-1) @ b.float().flip(-2)


def dot_sequential(a, b):
    return accumulating(torch.float32, tile=5)(a, b)


def dot_split(a, b):
    """Every fourth element of the inner axis in one sum, the four sums added last (split-K)."""
    a, b = a.float(), b.float()
    return sum((a[..., i::4] @ b[..., i::4, :] for i in range(4)), torch.zeros(()))


def dot_truncating_tail(a, b, tile=32):
    """Only whole tiles of the inner axis."""
    whole = a.shape[-1] // tile * tile if a.shape[-1] > tile else a.shape[-1]
    return a[..., :whole].float() @ b[..., :whole, :].float()


def dot_last_dropped(a, b):
    return a[..., :-1].float() @ b[..., :-1, :].float()


def dot_not_accumulating(a, b, tile=32):
    """`acc =` for `acc +=`: only the last tile counts."""
    start = max(a.shape[-1] - 1, 0) // tile * tile
    return a[..., start:].float() @ b[..., start:, :].float()


def dot_untransposed(a, b):
    """The strides of a transposed b ignored: its elements taken in the order they lie in memory."""
    in_memory = b.t().reshape(b.shape) if b.t().is_contiguous() else b
    return a.float() @ in_memory.float()


DOTS = [dot_float32, dot_reversed, dot_sequential, dot_split]
DOT_FAULTS = [dot_truncating_tail, dot_last_dropped, dot_not_accumulating]


# every op


def rounded(op):
    """The float64 answer, correctly rounded, as an implementation of `op`."""
    function = getattr(importlib.import_module(f"reference.{op}"), f"torch_{op}")

    def answer(**arguments):
        return function(**{k: v.double() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()})

    return answer


@pytest.mark.parametrize("op", OPS)
def test_rounded_answer_passes(op):
    passes(op, rounded(op))


@pytest.mark.parametrize("op", OPS)
def test_zeros_are_rejected(op):
    def zeros(**arguments):
        outputs = rounded(op)(**arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(None if out is None else torch.zeros_like(out) for out in outputs)

    for dtype in DTYPES:
        assert rejected(op, zeros, dtype)


@pytest.mark.parametrize("op", OPS)
def test_cases_are_few_and_small(op):
    contract = registry.contract(op)
    for level, most in (("quick", 18), ("default", 170)):
        cases = generate.plan(contract, level).cases
        assert 10 <= len(cases) <= most + len(DTYPES) * len(contract.aligned)
        assert max(map(contract.work, cases)) < 2e7


# matmul


@pytest.mark.parametrize("dot", DOTS)
def test_matmul_in_any_order_passes(dot):
    passes("matmul", dot)


def test_matmul_of_torch_passes():
    passes("matmul", lambda a, b: torch.matmul(a, b))


@pytest.mark.parametrize(("dtype", "name", "dot"), LOWER, ids=lambda x: x if isinstance(x, str) else "")
def test_matmul_in_a_lower_precision_is_rejected(dtype, name, dot):
    assert rejected("matmul", dot, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dot", [*DOT_FAULTS, dot_untransposed])
def test_matmul_faults_are_rejected(dot, dtype):
    assert rejected("matmul", dot, dtype)


# attention


def attend(
    q,
    k,
    v,
    *,
    causal=False,
    scale=None,
    tile=32,
    dot=dot_float32,
    p_dtype=torch.float32,
    exp2=False,
    hidden=lambda i, j, shift: j > i + shift,
    sentinel=-math.inf,
    heads=lambda h, group, kv: h // group,
    rescale_sum=True,
    rescale_acc=True,
    subtract=True,
    first_maximum=False,
    padded=None,
    swallow=False,
    guarded=True,
):
    """Flash attention over key tiles in float32; the keywords after `exp2` plant one fault each."""  # fmt: skip
    (batch, query_heads, seq_q, dim), (kv_heads, seq_k) = q.shape, k.shape[1:3]
    readers = [heads(h, query_heads // kv_heads, kv_heads) for h in range(query_heads)]
    q, k, v = q.float(), k.float()[:, readers], v.float()[:, readers]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    m = torch.full((batch, query_heads, seq_q), -math.inf)
    total, acc = torch.zeros_like(m), torch.zeros_like(q)
    if padded is not None and seq_k:
        pad = -seq_k % tile
        k, v = F.pad(k, (0, 0, 0, pad), value=padded), F.pad(v, (0, 0, 0, pad))
    row = torch.arange(seq_q)[:, None]
    for start in range(0, k.shape[2], tile):
        keys = slice(start, min(start + tile, k.shape[2]))
        s = dot(q, k[:, :, keys].mT) * scale
        if swallow:
            s = torch.nan_to_num(s, nan=-math.inf, neginf=-math.inf)
        if causal:
            column = torch.arange(keys.start, keys.stop)[None]
            s = s.masked_fill(hidden(row, column, seq_k - seq_q), sentinel)
        m_new = torch.maximum(m, s.amax(-1)) if subtract else torch.zeros_like(m)
        if first_maximum and start:
            m_new = m
        shift = torch.where(m_new == -math.inf, 0.0, m_new) if guarded else m_new
        if exp2:
            p = torch.exp2(s * 1.4426950408889634 - shift[..., None] * 1.4426950408889634)
        else:
            p = torch.exp(s - shift[..., None])
        alpha = torch.exp(m - shift)
        if not subtract or (first_maximum and start):
            alpha = torch.ones_like(alpha)
        total = total * (alpha if rescale_sum else 1) + p.sum(-1)
        acc = acc * (alpha[..., None] if rescale_acc else 1) + dot(p.to(p_dtype), v[:, :, keys])
        m = m_new
    nothing = (total == 0) & guarded
    return acc / torch.where(nothing, 1.0, total)[..., None], m + torch.log(total)


def attend_rows(q, k, v, *, causal=False, scale=None, dot=dot_float32, p_dtype=None):
    """Whole rows of scores, the probabilities normalised and then kept in the input dtype."""
    group = q.shape[1] // k.shape[1]
    s = dot(q, k.repeat_interleave(group, 1).mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2]), -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - torch.where(lse == -math.inf, math.inf, lse)[..., None])
    return dot(p.to(p_dtype or q.dtype), v.repeat_interleave(group, 1)), lse


def attend_torch(q, k, v, *, causal=False, scale=None):
    """torch's own attention where it is defined as ours; elsewhere `attend`."""
    o, lse = attend(q, k, v, causal=causal, scale=scale)
    if o.numel() == 0 or k.shape[2] == 0 or not torch.isfinite(lse).all():
        return o, lse
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True), lse


def attend_split(q, k, v, *, causal=False, scale=None):
    """Two parts of the keys on their own, merged by lse."""
    seq_q, seq_k = q.shape[2], k.shape[2]
    half = seq_k // 2
    parts = []
    for keys, shift in ((slice(half, seq_k), seq_k - seq_q - half), (slice(0, half), seq_k - seq_q)):

        def hidden(i, j, _, shift=shift):
            return j > i + shift

        parts.append(attend(q, k[:, :, keys], v[:, :, keys], causal=causal, scale=scale, hidden=hidden))
    lse = torch.logaddexp(parts[0][1], parts[1][1])
    return sum(o * torch.exp(own - torch.where(lse == -math.inf, 0.0, lse))[..., None] for o, own in parts), lse


def variant(fn, name, **fixed):
    def call(**arguments):
        return fn(
            **{
                **arguments,
                **{key: make(arguments) if callable(make) and key == "scale" else make for key, make in fixed.items()},
            }
        )

    call.__name__ = name
    return call


def in_dtype(fn):
    def call(**arguments):
        return fn(**arguments, p_dtype=arguments["q"].dtype)

    call.__name__ = "p_in_dtype"
    return call


ATTENTION = [
    variant(attend, "flash"),
    variant(attend, "flash_exp2", tile=48, exp2=True),
    in_dtype(attend),
    variant(attend_rows, "rows_in_dtype"),
    variant(attend_rows, "rows_reversed", p_dtype=torch.float32, dot=dot_reversed),
    attend_torch,
    attend_split,
]


def mean_of_values(q, k, v, *, causal, scale):
    return attend(q * 0, k, v, causal=causal, scale=scale)


def log2_lse(**arguments):
    o, lse = attend(**arguments)
    return o, lse / math.log(2)


def empty_rows(value):
    def call(**arguments):
        o, lse = attend(**arguments)
        return torch.where((lse == -math.inf)[..., None], value, o), lse

    call.__name__ = f"empty_rows_{value}"
    return call


def tail_keys_dropped(q, k, v, *, causal, scale):
    whole = k.shape[2] // 32 * 32 if k.shape[2] > 32 else k.shape[2]

    def hidden(i, j, _, shift=k.shape[2] - q.shape[2]):
        return j > i + shift

    return attend(q, k[:, :, :whole], v[:, :, :whole], causal=causal, scale=scale, hidden=hidden)


def tail_dims_dropped(q, k, v, *, causal, scale):
    whole = q.shape[3] // 16 * 16 if q.shape[3] > 16 else q.shape[3]
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    o, lse = attend(q[..., :whole], k[..., :whole], v[..., :whole], causal=causal, scale=scale)
    return F.pad(o, (0, q.shape[3] - whole)), lse


ATTENTION_FAULTS = [
    variant(attend, "scale_missing", scale=1.0),
    variant(attend, "scale_ignored", scale=None),
    variant(attend, "scale_squared", scale=lambda a: 1 / a["q"].shape[-1] if a["scale"] is None else a["scale"]),
    variant(
        attend, "scale_of_padded_dim",
        scale=lambda a: 2 ** (-math.ceil(math.log2(a["q"].shape[-1])) / 2) if a["scale"] is None else a["scale"],
    ),
    variant(attend, "causal_ignored", causal=False),
    variant(attend, "causal_always", causal=True),
    variant(attend, "sees_the_next_key", hidden=lambda i, j, shift: j > i + shift + 1),
    variant(attend, "misses_the_diagonal", hidden=lambda i, j, shift: j >= i + shift),
    variant(attend, "top_left", hidden=lambda i, j, shift: j > i),
    variant(attend, "finite_sentinel", sentinel=-1e30),
    variant(attend, "no_maximum", subtract=False),
    variant(attend, "maximum_of_first_tile", first_maximum=True),
    variant(attend, "sum_not_rescaled", rescale_sum=False),
    variant(attend, "accumulator_not_rescaled", rescale_acc=False),
    variant(attend, "interleaved_groups", heads=lambda h, group, kv: h % kv),
    variant(attend, "first_head_of_k", heads=lambda h, group, kv: 0),
    variant(attend, "padding_scores_0", padded=0.0),
    variant(attend, "nan_swallowed", swallow=True),
    variant(attend, "leading_inf_tile", tile=16, guarded=False),
    mean_of_values, log2_lse, empty_rows(math.nan), tail_keys_dropped, tail_dims_dropped,
]  # fmt: skip


@pytest.mark.parametrize("fn", ATTENTION, ids=lambda fn: fn.__name__)
def test_attention_right_passes(fn):
    passes("attention", fn)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", ATTENTION_FAULTS, ids=lambda fn: fn.__name__)
def test_attention_faults_are_rejected(fn, dtype):
    assert rejected("attention", fn, dtype)


@pytest.mark.parametrize(("dtype", "name", "dot"), LOWER, ids=lambda x: x if isinstance(x, str) else "")
def test_attention_in_a_lower_precision_is_rejected(dtype, name, dot):
    assert rejected("attention", variant(attend, name, dot=dot), dtype)


# mlp and gated_mlp


def activate(z, name):
    match name:
        case "none":
            return z
        case "gelu":
            return F.gelu(z)
        case "gelu_tanh":
            return F.gelu(z, approximate="tanh")
        case "silu":
            return F.silu(z)
    return F.relu(z)


def perceptron(
    x, w1, b1, w2, b2, *, activation, dot=dot_float32, second=None, store=torch.float32, act=activate, early=False
):
    """Both products in float32; `store` is what z, h and y are kept in, `early` applies act before the bias."""
    bias = torch.zeros(w1.shape[1]) if b1 is None else b1.float()
    z = dot(x, w1).to(store)
    h = act(z.float(), activation) + bias if early else act((z + bias).to(store).float(), activation)
    y = (second or dot)(h.to(store), w2).to(store).float()
    return y if b2 is None else y + b2.float()


def perceptron_in_dtype(**arguments):
    return perceptron(**arguments, store=arguments["x"].dtype)


def perceptron_of_tiles(x, w1, b1, w2, b2, *, activation, tile=24):
    """The hidden units a tile at a time, the tiles in reversed order."""
    y = torch.zeros(x.shape[0], w2.shape[1])
    for start in reversed(range(0, w1.shape[1], tile)):
        cut = slice(start, start + tile)
        bias = None if b1 is None else b1[cut]
        y = y + perceptron(x, w1[:, cut], bias, w2[cut], None, activation=activation, dot=dot_reversed)
    return y if b2 is None else y + b2.float()


def perceptron_of_torch(x, w1, b1, w2, b2, *, activation):
    return F.linear(activate(F.linear(x, w1.t(), b1), activation), w2.t(), b2)


def tanh_by_exp(z, name):
    if name != "gelu_tanh":
        return activate(z, name)
    e = torch.exp(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
    return z / 2 * (1 + (e - 1) / (e + 1))


def sigmoid_by_exp(z, name):
    return z * torch.exp(z) / (1 + torch.exp(z)) if name == "silu" else activate(z, name)


def one_for(other, instead):
    def act(z, name):
        return activate(z, instead if name == other else name)

    act.__name__ = f"{instead}_for_{other}"
    return act


def with_act(fn, act):
    return variant(fn, act.__name__, act=act)


def last_row_lost(fn):
    def call(**arguments):
        y = fn(**arguments).clone()
        y[-1:] = 0
        return y

    call.__name__ = "last_row_lost"
    return call


MLP = [perceptron, perceptron_in_dtype, perceptron_of_tiles, perceptron_of_torch]
MLP_FAULTS = [
    variant(perceptron, "b1_ignored", b1=None),
    variant(perceptron, "b2_ignored", b2=None),
    variant(perceptron, "bias_after_activation", early=True),
    variant(perceptron, "inner_tail_dropped", dot=dot_truncating_tail, second=dot_float32),
    variant(perceptron, "hidden_tail_dropped", second=dot_truncating_tail),
    variant(perceptron, "last_hidden_dropped", second=dot_last_dropped),
    variant(perceptron, "only_last_hidden_tile", second=dot_not_accumulating),
    variant(perceptron, "w1_untransposed", dot=dot_untransposed, second=dot_float32),
    variant(perceptron, "w2_untransposed", second=dot_untransposed),
    last_row_lost(perceptron),
    *(
        with_act(perceptron, act)
        for act in (
            tanh_by_exp, sigmoid_by_exp, one_for("gelu", "relu"), one_for("relu", "gelu"), one_for("silu", "gelu"),
            one_for("gelu", "none"), one_for("gelu_tanh", "silu"),
        )
    ),
]  # fmt: skip


def gated(
    x, w_gate, w_up, w_down, *, activation, dot=dot_float32, second=None, store=torch.float32, act=activate, up_act=None
):
    gate, up = dot(x, w_gate).to(store).float(), dot(x, w_up).to(store).float()
    up = up_act(up, activation) if up_act else up
    h = (act(gate, activation).to(store) * up.to(store)).to(store)
    return (second or dot)(h, w_down)


def gated_in_dtype(**arguments):
    return gated(**arguments, store=arguments["x"].dtype)


def gated_of_tiles(x, w_gate, w_up, w_down, *, activation, tile=24):
    y = torch.zeros(x.shape[0], w_down.shape[1])
    for start in reversed(range(0, w_gate.shape[1], tile)):
        cut = slice(start, start + tile)
        y = y + gated(x, w_gate[:, cut], w_up[:, cut], w_down[cut], activation=activation, dot=dot_reversed)
    return y


def gated_of_torch(x, w_gate, w_up, w_down, *, activation):
    return (activate(x @ w_gate, activation) * (x @ w_up)) @ w_down


def swapped(x, w_gate, w_up, w_down, *, activation):
    return gated(x, w_up, w_gate, w_down, activation=activation)


def up_for_gate(x, w_gate, w_up, w_down, *, activation):
    return gated(x, w_up, w_up, w_down, activation=activation)


GATED = [gated, gated_in_dtype, gated_of_tiles, gated_of_torch]
GATED_FAULTS = [
    swapped,
    up_for_gate,
    variant(gated, "both_activated", up_act=activate),
    variant(gated, "inner_tail_dropped", dot=dot_truncating_tail, second=dot_float32),
    variant(gated, "hidden_tail_dropped", second=dot_truncating_tail),
    variant(gated, "last_hidden_dropped", second=dot_last_dropped),
    variant(gated, "only_last_hidden_tile", second=dot_not_accumulating),
    variant(gated, "w_gate_and_w_up_untransposed", dot=dot_untransposed, second=dot_float32),
    variant(gated, "w_down_untransposed", second=dot_untransposed),
    last_row_lost(gated),
    with_act(gated, tanh_by_exp),
    with_act(gated, sigmoid_by_exp),
    with_act(gated, one_for("silu", "relu")),
    with_act(gated, one_for("gelu", "silu")),
]


@pytest.mark.parametrize("fn", MLP, ids=lambda fn: fn.__name__)
def test_mlp_right_passes(fn):
    passes("mlp", fn)


@pytest.mark.parametrize("fn", GATED, ids=lambda fn: fn.__name__)
def test_gated_mlp_right_passes(fn):
    passes("gated_mlp", fn)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", MLP_FAULTS, ids=lambda fn: fn.__name__)
def test_mlp_faults_are_rejected(fn, dtype):
    assert rejected("mlp", fn, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", GATED_FAULTS, ids=lambda fn: fn.__name__)
def test_gated_mlp_faults_are_rejected(fn, dtype):
    assert rejected("gated_mlp", fn, dtype)


def test_the_other_gelu_is_rejected_where_it_shows():
    assert rejected("mlp", with_act(perceptron, one_for("gelu", "gelu_tanh")), "float32")
    assert rejected("mlp", with_act(perceptron, one_for("gelu_tanh", "gelu")), "float32")


@pytest.mark.parametrize(("dtype", "name", "dot"), LOWER, ids=lambda x: x if isinstance(x, str) else "")
def test_mlp_in_a_lower_precision_is_rejected(dtype, name, dot):
    assert rejected("mlp", variant(perceptron, name, dot=dot), dtype)
    assert rejected("gated_mlp", variant(gated, name, dot=dot), dtype)


# mlp_backward


def derivative(z, name):
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        return torch.autograd.grad(activate(z, name).sum(), z)[0]


def backpropagated(
    x,
    w1,
    b1,
    w2,
    b2,
    dy,
    *,
    activation,
    dot=dot_float32,
    store=torch.float32,
    over_rows=None,
    slope=derivative,
    slope_of=lambda z, h: z,
    left_of_w2=lambda z, h: h,
    over_hidden=None,
    over_outer=None,
    row_sum=lambda t: t.sum(0),
):
    """The chain rule with recomputed z; the keywords after `store` plant one fault each."""  # fmt: skip
    x, w1, w2, dy = x.float(), w1.float(), w2.float(), dy.float()
    over_rows, over_hidden, over_outer = over_rows or dot, over_hidden or dot, over_outer or dot
    z = dot(x, w1).to(store)
    z = (z if b1 is None else z + b1.to(store)).float()
    h = activate(z, activation).to(store).float()
    dz = over_outer(dy, w2.t()).to(store).float() * slope(slope_of(z, h), activation)
    dz = dz.to(store).float()
    return (
        over_hidden(dz, w1.t()),
        over_rows(x.t(), dz),
        None if b1 is None else row_sum(dz),
        over_rows(left_of_w2(z, h).t(), dy),
        None if b2 is None else row_sum(dy),
    )


def backpropagated_in_dtype(**arguments):
    return backpropagated(**arguments, store=arguments["x"].dtype)


def backpropagated_by_autograd(dy, *, activation, **operands):
    leaves = {name: None if t is None else t.detach().float().requires_grad_() for name, t in operands.items()}
    perceptron(**leaves, activation=activation).backward(dy.float())
    return tuple(None if leaf is None else leaf.grad for leaf in leaves.values())


def relu_slope_1_at_0(z, name):
    return (z >= 0).float() if name == "relu" else derivative(z, name)


def mean_over_rows(t):
    return t.mean(0)


MLP_BACKWARD = [
    backpropagated,
    variant(backpropagated, "split_sums", dot=dot_split),
    variant(backpropagated, "sequential_sums", dot=dot_sequential),
    backpropagated_in_dtype,
    backpropagated_by_autograd,
]
MLP_BACKWARD_FAULTS = [
    variant(backpropagated, "no_derivative", slope=lambda z, name: torch.ones_like(z)),
    variant(backpropagated, "derivative_at_h", slope_of=lambda z, h: h),
    variant(backpropagated, "dw2_from_z", left_of_w2=lambda z, h: z),
    variant(backpropagated, "mean_over_rows", row_sum=mean_over_rows),
    variant(backpropagated, "last_row_not_summed", row_sum=lambda t: t[:-1].sum(0)),
    variant(backpropagated, "tail_of_rows_not_summed", over_rows=dot_truncating_tail),
    variant(backpropagated, "last_tile_of_rows_only", over_rows=dot_not_accumulating),
    variant(backpropagated, "last_row_dropped", over_rows=dot_last_dropped),
    variant(backpropagated, "hidden_tail_dropped", over_hidden=dot_truncating_tail),
    variant(backpropagated, "outer_tail_dropped", over_outer=dot_truncating_tail),
    variant(backpropagated, "relu_slope_1_at_0", slope=relu_slope_1_at_0),
    variant(backpropagated, "relu_for_gelu", slope=lambda z, name: derivative(z, "relu" if name == "gelu" else name)),
    variant(
        backpropagated, "sigmoid_for_silu", slope=lambda z, n: torch.sigmoid(z) if n == "silu" else derivative(z, n)
    ),
]


def bias_left_out_of_z(**arguments):
    gradients = backpropagated(**{**arguments, "b1": None})
    db1 = None if arguments["b1"] is None else backpropagated(**arguments)[2]
    return (*gradients[:2], db1, *gradients[3:])


@pytest.mark.parametrize("fn", MLP_BACKWARD, ids=lambda fn: fn.__name__)
def test_mlp_backward_right_passes(fn):
    passes("mlp_backward", fn)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", [*MLP_BACKWARD_FAULTS, bias_left_out_of_z], ids=lambda fn: fn.__name__)
def test_mlp_backward_faults_are_rejected(fn, dtype):
    assert rejected("mlp_backward", fn, dtype)


@pytest.mark.parametrize(("dtype", "name", "dot"), LOWER, ids=lambda x: x if isinstance(x, str) else "")
def test_mlp_backward_in_a_lower_precision_is_rejected(dtype, name, dot):
    assert rejected("mlp_backward", variant(backpropagated, name, dot=dot), dtype)


# attention_backward


def attend_back(
    q,
    k,
    v,
    o,
    lse,
    do,
    *,
    causal=False,
    scale=None,
    dot=dot_float32,
    store=torch.float32,
    per_head=torch.float32,
    delta="o",
    guarded=True,
    hidden=lambda i, j, shift: j > i + shift,
    heads=None,
    dq_scale=True,
    dk_scale=True,
    over_queries=None,
    over_keys=None,
    over_dim=None,
    sum_heads=True,
    exp=torch.exp,
):
    """Whole rows of probabilities rebuilt from lse; the keywords after `delta` plant one fault each."""  # fmt: skip
    group, (seq_q, dim), seq_k = q.shape[1] // k.shape[1], q.shape[2:], k.shape[2]
    readers = [heads(h, group, k.shape[1]) if heads else h // group for h in range(q.shape[1])]
    over_queries, over_keys, over_dim = over_queries or dot, over_keys or dot, over_dim or dot
    scale = 1 / math.sqrt(dim) if scale is None else scale
    q, do, wide_k, wide_v = q.float(), do.float(), k.float()[:, readers], v.float()[:, readers]
    s = over_dim(q, wide_k.mT) * scale
    if causal:
        s = s.masked_fill(hidden(torch.arange(seq_q)[:, None], torch.arange(seq_k)[None], seq_k - seq_q), -math.inf)
    p = exp(s - (lse.masked_fill(lse == -math.inf, math.inf) if guarded else lse)[..., None])
    dp = over_dim(do, wide_v.mT)
    shift = {"o": (do * o.float()).sum(-1), "p": (p * dp).sum(-1), "none": torch.zeros_like(lse)}[delta]
    ds = p * (dp - shift[..., None])
    dq = over_keys(ds.to(store), wide_k) * (scale if dq_scale else 1)
    dk = over_queries(ds.to(store).mT, q) * (scale if dk_scale else 1)
    dv = over_queries(p.to(store).mT, do)
    return dq, *(_grouped(t.to(per_head).float(), k.shape, sum_heads, readers) for t in (dk, dv))


def _grouped(gradient, shape, summed, readers):
    total = torch.zeros(shape)
    for h, reader in enumerate(readers):
        total[:, reader] = gradient[:, h] + (total[:, reader] if summed else 0)
    return total


def attend_back_in_dtype(**arguments):
    dtype = arguments["q"].dtype
    return attend_back(**arguments, store=dtype, per_head=dtype)


def attend_back_prescaled(**arguments):
    """dS scaled before it is stored in the input dtype; delta from the probabilities."""
    dtype, scale = arguments["q"].dtype, arguments["scale"]
    factor = 1 / math.sqrt(arguments["q"].shape[-1]) if scale is None else scale

    def stored(a, b):
        return (a * factor).to(dtype).float() @ b

    dq, dk, _ = attend_back(**arguments, over_keys=stored, over_queries=stored, dq_scale=False, dk_scale=False)
    return dq, dk, attend_back(**arguments, delta="p")[2]


def attend_back_by_autograd(q, k, v, o, lse, do, *, causal, scale):
    leaves = [t.detach().float().requires_grad_() for t in (q, k, v)]
    out, norm = attend_rows(*leaves, causal=causal, scale=scale)
    if not norm.isfinite().all():
        return attend_back(q, k, v, o, lse, do, causal=causal, scale=scale)
    return torch.autograd.grad(out, leaves, do.float())


def fully_masked_poison(**arguments):
    return attend_back(**arguments, guarded=False)


ATTENTION_BACKWARD = [
    attend_back,
    variant(attend_back, "delta_from_p", delta="p"),
    variant(attend_back, "split_sums", dot=dot_split),
    variant(attend_back, "sequential_sums", dot=dot_sequential),
    attend_back_in_dtype,
    attend_back_prescaled,
    attend_back_by_autograd,
]
ATTENTION_BACKWARD_FAULTS = [
    variant(attend_back, "no_delta", delta="none"),
    variant(attend_back, "scale_ignored", scale=None),
    variant(attend_back, "dq_unscaled", dq_scale=False),
    variant(attend_back, "dk_unscaled", dk_scale=False),
    variant(attend_back, "causal_ignored", causal=False),
    variant(attend_back, "sees_the_next_key", hidden=lambda i, j, shift: j > i + shift + 1),
    variant(attend_back, "misses_the_diagonal", hidden=lambda i, j, shift: j >= i + shift),
    variant(attend_back, "top_left", hidden=lambda i, j, shift: j > i),
    variant(attend_back, "interleaved_groups", heads=lambda h, group, kv: h % kv),
    variant(attend_back, "last_head_of_the_group", sum_heads=False),
    variant(attend_back, "tail_of_queries_dropped", over_queries=dot_truncating_tail),
    variant(attend_back, "last_query_dropped", over_queries=dot_last_dropped),
    variant(attend_back, "last_tile_of_queries_only", over_queries=dot_not_accumulating),
    variant(attend_back, "tail_of_keys_dropped", over_keys=dot_truncating_tail),
    variant(attend_back, "last_tile_of_keys_only", over_keys=dot_not_accumulating),
    variant(attend_back, "tail_of_dim_dropped", over_dim=lambda a, b: dot_truncating_tail(a, b, 16)),
    variant(attend_back, "base_2", exp=torch.exp2),
    fully_masked_poison,
]


@pytest.mark.parametrize("fn", ATTENTION_BACKWARD, ids=lambda fn: fn.__name__)
def test_attention_backward_right_passes(fn):
    passes("attention_backward", fn)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", ATTENTION_BACKWARD_FAULTS, ids=lambda fn: fn.__name__)
def test_attention_backward_faults_are_rejected(fn, dtype):
    assert rejected("attention_backward", fn, dtype)


@pytest.mark.parametrize(("dtype", "name", "dot"), LOWER, ids=lambda x: x if isinstance(x, str) else "")
def test_attention_backward_in_a_lower_precision_is_rejected(dtype, name, dot):
    assert rejected("attention_backward", variant(attend_back, name, dot=dot), dtype)


# declared precisions and truncation


IN_PRECISION = [
    ("matmul", lambda dot: lambda a, b: dot(a, b)),
    ("attention", lambda dot: variant(attend, "attend", dot=dot)),
    ("attention_backward", lambda dot: variant(attend_back, "attend_back", dot=dot)),
    ("mlp", lambda dot: variant(perceptron, "perceptron", dot=dot)),
    ("mlp_backward", lambda dot: variant(backpropagated, "backpropagated", dot=dot)),
    ("gated_mlp", lambda dot: variant(gated, "gated", dot=dot)),
]


@pytest.mark.parametrize(("op", "make"), IN_PRECISION, ids=lambda x: x if isinstance(x, str) else "")
def test_a_declared_precision_is_judged_in_that_precision(op, make):
    passes(op, make(dot_tf32), ("float32",), compute="tf32")
    assert rejected(op, make(accumulating(torch.bfloat16)), "float32", compute="tf32")


@pytest.mark.parametrize("op", ["matmul", "mlp_backward", "attention", "attention_backward"])
def test_bf16_inputs_are_no_tf32(op):
    assert rejected(op, dict(IN_PRECISION)[op](dot_bf16), "float32", compute="tf32")


def test_tf32_inputs_are_no_tf32x3():
    assert rejected("matmul", dot_tf32, "float32", compute="tf32x3")


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 13), ("bfloat16", 16)])
@pytest.mark.parametrize("op", ["matmul", "attention", "mlp", "mlp_backward"])
def test_truncated_outputs_are_rejected(op, dtype, bits):
    """Where the output's own rounding is not lost among those of stored intermediates."""

    def truncated(**arguments):
        outputs = dict(IN_PRECISION)[op](dot_float32)(**arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        kept = ~((1 << bits) - 1)
        return tuple(t if t is None else (t.contiguous().view(torch.int32) & kept).view(torch.float32) for t in outputs)

    assert rejected(op, truncated, dtype)
