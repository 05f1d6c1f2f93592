"""Every public function of every reference module against the definition, over the shapes of the table below.

Ops are found by listing reference/, functions by introspection: a new op without a row, or a new derivation that is
wrong at one shape, fails here without being named.
"""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from touchstone import reference
from touchstone.reference.attention import attention
from touchstone.reference.attention_varlen import attention_varlen
from touchstone.reference.masked_attention import masked_attention
from touchstone.reference.online_softmax import online_softmax

OPS = sorted(path.stem for path in Path(reference.__path__[0]).glob("*.py") if not path.stem.startswith("_"))
SIZES = [(1, 1), (0, 5), (3, 0), (2, 4), (5, 7), (3, 64), (4, 65), (7, 37), (2, 129)]
Case = tuple[tuple[Any, ...], dict[str, Any]]


def _normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def _softmax() -> Iterator[Case]:
    for rows, cols in SIZES:
        yield (_normal(1, rows, cols),), {}
    yield (1000 + 5 * _normal(2, 3, 37),), {}
    yield (-1000 - np.abs(_normal(3, 3, 37)),), {}
    yield (np.cumsum(np.abs(_normal(4, 3, 37)), axis=1),), {}
    x = _normal(5, 8, 21)
    x[0], x[1, :9], x[2, 12:], x[3, 7], x[4, 20], x[5, 0], x[6, ::2] = (
        -np.inf,
        -np.inf,
        -np.inf,
        np.inf,
        np.nan,
        -np.inf,
        -np.inf,
    )
    yield (x,), {}


def _softmax_backward() -> Iterator[Case]:
    for rows, cols in SIZES:
        y = np.exp(_normal(6, rows, cols))
        yield (y / y.sum(axis=1, keepdims=True), _normal(7, rows, cols)), {}


def _matmul() -> Iterator[Case]:
    for m, k, n in [(1, 1, 1), (0, 3, 2), (2, 0, 3), (3, 2, 0), (5, 7, 3), (17, 64, 33), (4, 129, 31)]:
        yield (_normal(8, m, k), _normal(9, k, n)), {}


def _attention() -> Iterator[Case]:
    shapes = [  # B, Hq, Hkv, Sq, Sk, D
        (1, 1, 1, 1, 1, 1),
        (2, 4, 2, 5, 7, 3),
        (1, 6, 2, 11, 4, 5),
        (2, 3, 1, 13, 13, 8),
        (1, 2, 2, 17, 31, 40),
        (1, 1, 1, 3, 0, 4),
        (1, 2, 1, 0, 3, 4),
        (0, 2, 1, 2, 3, 4),
        (1, 1, 1, 4, 1, 2),
    ]
    for b, hq, hkv, sq, sk, d in shapes:
        q, k, v = _normal(10, b, hq, sq, d), _normal(11, b, hkv, sk, d), _normal(12, b, hkv, sk, d)
        for causal in (False, True):
            yield (q, k, v), {"causal": causal}
        yield (3 * q, np.cumsum(k, axis=2), v), {"causal": True, "scale": 0.3}
    q, k, v = np.abs(_normal(13, 1, 2, 6, 3)) + 0.1, _normal(14, 1, 2, 9, 3), _normal(15, 1, 2, 9, 3)
    k[0, 0, :5, 1], k[0, 1, :, 2] = -np.inf, -np.inf  # a leading stretch of scores is −inf; all of them are
    yield (q, k, v), {}
    yield (q, k, v), {"causal": True}


def _attention_backward() -> Iterator[Case]:
    for (q, k, v), kwargs in _attention():
        o, lse = attention(q, k, v, **kwargs)
        if np.isfinite(k).all():
            yield (q, k, v, o, lse, _normal(16, *q.shape)), kwargs


def _mlp_sizes() -> list[tuple[int, int, int, int]]:
    return [(1, 1, 1, 1), (0, 3, 5, 2), (3, 0, 5, 2), (3, 4, 0, 2), (3, 4, 5, 0), (7, 5, 13, 3), (5, 16, 33, 17)]


def _mlp() -> Iterator[Case]:
    for i, (m, d, h, n) in enumerate(_mlp_sizes()):
        x, w1, b1, w2, b2 = _normal(17, m, d), _normal(18, d, h), _normal(19, h), _normal(20, h, n), _normal(21, n)
        yield (x, w1, b1, w2, b2), {}
        yield (4 * x, w1, b1 if i % 2 else None, w2, None if i % 3 else b2), {"activation": "gelu_tanh"}
        yield (x, w1, None, w2, None), {"activation": "silu"}
        yield (x, w1, b1, w2, b2), {"activation": "relu"}


def _mlp_backward() -> Iterator[Case]:
    for (x, w1, b1, w2, b2), kwargs in _mlp():
        yield (x, w1, b1, w2, b2, _normal(22, len(x), w2.shape[1])), kwargs


def _gated_mlp() -> Iterator[Case]:
    for m, d, h, n in _mlp_sizes():
        for activation in ("silu", "gelu", "gelu_tanh", "relu"):
            args = (_normal(23, m, d), _normal(24, d, h), _normal(25, d, h), _normal(26, h, n))
            yield args, {"activation": activation}


def _rows() -> Iterator[tuple[np.ndarray, dict[str, float]]]:
    for rows, cols in SIZES:
        yield _normal(27, rows, cols), {}
    yield 3000 + _normal(28, 3, 37), {"eps": 1e-3}
    yield 1e-3 * _normal(29, 3, 37), {"eps": 0.1}
    yield np.zeros((2, 5)), {}


def _layer_norm() -> Iterator[Case]:
    for i, (x, kwargs) in enumerate(_rows()):
        yield (x, _normal(30, x.shape[1]), None if i % 3 == 2 else _normal(31, x.shape[1])), kwargs


def _layer_norm_backward() -> Iterator[Case]:
    for i, (x, kwargs) in enumerate(_rows()):
        args = x, _normal(32, x.shape[1]), _normal(33, *x.shape)
        yield args, kwargs
        mean, rstd = x.mean(axis=1) if x.shape[1] else np.zeros(len(x)), 0.5 + np.abs(_normal(34, len(x)))
        yield args, kwargs | {"mean": mean, "rstd": rstd}
        yield args, kwargs | ({"mean": mean + 0.25} if i % 2 else {"rstd": rstd})


def _rms_norm() -> Iterator[Case]:
    for x, kwargs in _rows():
        yield (x, _normal(35, x.shape[1])), kwargs


def _rms_norm_backward() -> Iterator[Case]:
    for x, kwargs in _rows():
        args = x, _normal(36, x.shape[1]), _normal(37, *x.shape)
        yield args, kwargs
        yield args, kwargs | {"rstd": 0.5 + np.abs(_normal(38, len(x)))}


def _group_norm() -> Iterator[Case]:
    for shape, groups in [
        ((1, 1), 1),
        ((2, 6), 3),
        ((2, 6, 7), 2),
        ((3, 4, 5, 3), 4),
        ((1, 6, 2, 3, 5), 1),
        ((0, 4, 3), 2),
        ((2, 4, 0), 2),
    ]:
        weight, bias = _normal(39, shape[1]), _normal(40, shape[1])
        yield (_normal(41, *shape), weight, bias), {"groups": groups}
        yield (50 + _normal(42, *shape), weight, None), {"groups": groups, "eps": 0.1}


def _add_layer_norm() -> Iterator[Case]:
    for (x, weight, bias), kwargs in _layer_norm():
        yield (x, _normal(43, *x.shape), weight, bias), kwargs


def _add_rms_norm() -> Iterator[Case]:
    for (x, weight), kwargs in _rms_norm():
        yield (x, _normal(44, *x.shape), weight), kwargs


def _transpose() -> Iterator[Case]:
    for rows, cols in SIZES:
        yield (_normal(45, rows, cols),), {}


ACTIVATIONS = (
    "gelu",
    "gelu_tanh",
    "silu",
    "relu",
    "sigmoid",
    "quick_gelu",
    "mish",
    "elu",
    "hardswish",
    "hardshrink",
    "identity",
)


def _activation() -> Iterator[Case]:
    for i, name in enumerate(ACTIVATIONS):
        rows, cols = SIZES[i % len(SIZES)]
        yield (3 * _normal(45, rows, cols), _normal(46, cols)), {"activation": name}
        yield (3 * _normal(47, 5, 7), None), {"activation": name}
    yield (np.array([[-3.0, 3.0, -0.5, 0.5, 0.0, -0.0]]), None), {"activation": "hardshrink"}


def _dot() -> Iterator[Case]:
    for n in (2, 1, 0, 5, 7, 64, 65, 129):
        yield (_normal(45, n), _normal(46, n)), {}


def _gemv() -> Iterator[Case]:
    for m, k in SIZES:
        yield (_normal(47, m, k), _normal(48, k)), {}


def _reduce() -> Iterator[Case]:
    for function in ("sum", "max", "min"):
        for n in (2, 1, 5, 64, 129):
            yield (_normal(49, n),), {"function": function}
        x = _normal(50, 37)
        x[7] = np.nan
        yield (x,), {"function": function}
        x[7], x[30] = np.inf, -np.inf
        yield (x,), {"function": function}
    yield (np.zeros(0),), {}


def _elementwise() -> Iterator[Case]:
    for i, shape in enumerate([(), (3,), (0,), (2, 3), (4, 0), (2, 3, 4), (1, 5, 1, 2), (7, 5)]):
        yield (_normal(54, *shape), _normal(55, *shape)), {"function": "mul" if i % 2 else "add"}


def _glu() -> Iterator[Case]:
    for i, name in enumerate(ACTIVATIONS):
        rows, cols = SIZES[i % len(SIZES)]
        yield (3 * _normal(48, rows, cols), _normal(49, rows, cols)), {"activation": name}
    yield (_normal(50, 4, 6), _normal(51, 4, 6)), {}


def _reduce_rows() -> Iterator[Case]:
    for function in ("sum", "max", "min"):
        for axis in (-1, 0):
            for rows, cols in SIZES:
                if (rows, cols)[axis] or function == "sum":
                    yield (_normal(51, rows, cols),), {"axis": axis, "function": function}
            x = _normal(52, 5, 7)
            x[1, 2], x[3, 4], x[3, 5], x[0, 6] = np.nan, np.inf, -np.inf, -np.inf
            yield (x,), {"axis": axis, "function": function}


def _glu_backward() -> Iterator[Case]:
    for (gate, up), kwargs in _glu():
        yield (gate, up, _normal(52, *gate.shape)), kwargs


def _dropout() -> Iterator[Case]:
    streams = [(0, 0), (2**63 - 1, 2**33 + 7), (2**40 + 16, 1)]  # seed, offset
    for i, shape in enumerate([(), (0,), (1,), (4, 0), (3,), (33,), (3, 7), (2, 3, 11), (129,)]):
        seed, offset = streams[i % 3]
        for p in (0.5, 0.0, 1.0, 0.1):
            yield (_normal(45, *shape),), {"p": p, "seed": seed, "offset": offset}
    yield (np.array([np.inf, np.nan, -np.inf, -0.0] * 9),), {"seed": 3}


def _cross_entropy() -> Iterator[Case]:
    every = [dict(zip(("reduction", "label_smoothing", "z_loss"), one, strict=True)) for one in SMOOTHED]
    for i, (rows, V) in enumerate([(2, 4), (1, 1), (0, 5), (5, 7), (3, 64), (7, 37), (2, 129)]):
        logits, target = _normal(45, rows, V), np.random.default_rng(46).integers(0, V, rows)
        yield (logits, target), every[i % len(every)]
        if rows > 1:
            logits, target = logits * 100, target.copy()
            logits[1], target[1] = np.nan, 0
            yield (logits, target), every[(i + 1) % len(every)] | {"ignore_index": 0}
            yield (np.zeros((rows, V)), np.full(rows, -1)), {"ignore_index": -1}
    logits = _normal(47, 4, 9)
    logits[0, :5], logits[1, 3], logits[2, 4], logits[3] = -np.inf, -np.inf, np.nan, -np.inf
    yield (logits, np.array([7, 3, 2, 1])), {"reduction": "none", "z_loss": 0.1}


def _cross_entropy_backward() -> Iterator[Case]:
    for i, ((logits, target), kwargs) in enumerate(_cross_entropy()):
        lse = online_softmax(np.nan_to_num(logits, nan=0.0))[1] if i % 2 else None
        shape = target.shape if kwargs.get("reduction", "mean") == "none" else ()
        if np.isfinite(logits[target != kwargs.get("ignore_index", -100)]).all():
            yield (logits, target, lse, np.asarray(1 + np.abs(_normal(48, *shape, 1))[..., 0])), kwargs


def _rope() -> Iterator[Case]:
    sizes = [  # B, Hq, Hkv, S, D, R/2, P
        (1, 1, 1, 1, 2, 1, 1),
        (2, 3, 1, 5, 8, 2, 9),
        (0, 2, 1, 3, 4, 2, 5),
        (1, 2, 0, 3, 6, 3, 4),
        (2, 1, 2, 4, 7, 3, 4),
    ]
    for b, hq, hkv, s, d, half, rows in sizes:
        q, k = _normal(46, b, hq, s, d), _normal(47, b, hkv, s, d)
        cos, sin = _normal(48, rows, half), _normal(49, rows, half)
        yield (q, k, cos, sin, np.random.default_rng(50).integers(0, rows, (b, s))), {}
        yield (q, k, cos, sin, None), {"interleaved": True}


def _dropout_bitmask_backward() -> Iterator[Case]:
    for (x,), kwargs in _dropout():
        bits = np.random.default_rng(46).integers(-(2**31), 2**31, -(-x.size // 32), dtype=np.int32)
        yield (x, bits), {"p": kwargs.get("p", 0.5)}


def _attention_decode() -> Iterator[Case]:
    for (q, k, v), kwargs in _attention():
        if not kwargs.get("causal", True) and np.isfinite(k).all():
            lengths = np.array([k.shape[2], 0, k.shape[2] // 2, 1])[: len(q)]
            yield (q, k, v, lengths), {} if len(q) > 1 else {"scale": -0.4}
            yield (q, k, v, lengths[::-1].copy()), {"scale": 0.3}


def _attention_decode_int4() -> Iterator[Case]:
    draw = np.random.default_rng(56)
    for b, hq, hkv, sq, sk, d, groups in [
        (1, 2, 1, 2, 5, 6, 2),
        (3, 4, 2, 1, 7, 8, 2),
        (2, 1, 1, 1, 1, 2, 1),
        (2, 3, 3, 3, 9, 4, 4),
        (1, 2, 1, 1, 0, 4, 1),
    ]:
        q = _normal(57, b, hq, sq, d)
        codes = [draw.integers(0, 256, (b, hkv, sk, d // 2), dtype=np.uint8) for _ in "kv"]
        scales = [0.2 * _normal(58 + i, b, hkv, sk, groups, 2) for i in range(2)]
        lengths = np.array([sk, 0, sk // 2])[:b]
        for order in (lengths, lengths[::-1].copy()):
            yield (q, codes[0], scales[0], codes[1], scales[1], order), {"scale": 0.3} if sk % 2 else {}


def _mla() -> Iterator[Case]:
    for b, h, sq, sk, dn, dr, r, dv in [
        (2, 2, 3, 5, 4, 3, 6, 5),
        (1, 3, 4, 4, 2, 1, 3, 2),
        (1, 1, 1, 1, 1, 1, 1, 1),
        (1, 2, 5, 2, 3, 2, 4, 3),
        (2, 1, 3, 0, 3, 2, 4, 3),
        (1, 2, 0, 3, 3, 2, 4, 3),
    ]:
        q_nope, q_rope = _normal(60, b, h, sq, dn), _normal(61, b, h, sq, dr)
        c, k_rope = _normal(62, b, sk, r), _normal(63, b, sk, dr)
        operands = (q_nope, q_rope, c, k_rope, _normal(64, h, r, dn), _normal(65, h, r, dv))
        for causal in (False, True):
            yield operands, {"causal": causal}
        yield operands, {"causal": True, "scale": -0.4}


def _mla_decode() -> Iterator[Case]:
    for b, h, sq, sk, width, dim_v in [(1, 2, 2, 5, 4, 3), (3, 2, 1, 7, 5, 3), (2, 3, 4, 9, 6, 6), (2, 2, 2, 0, 4, 1)]:
        lengths = np.array([sk, 0, sk // 2])[:b]
        for order in (lengths, lengths[::-1].copy()):
            q, cache = _normal(54, b, h, sq, width), _normal(55, b, sk, width)
            yield (q, cache, order), {"dim_v": dim_v, "scale": 0.7}
            yield (q, cache, order), {"dim_v": dim_v, "scale": -0.2}


def _attention_paged() -> Iterator[Case]:
    for (q, k, v, lengths), kwargs in _attention_decode():
        batch, heads, most, dim = k.shape
        for page in (1, 4):
            n = -(-most // page)
            pages = np.random.default_rng(1).permutation(batch * n + 1)[: batch * n].reshape(batch, n)
            pages[-1:, :1] = pages[:1, :1]  # the last sequence begins as the first one does
            caches = []
            for x in (k, v):
                rows = np.zeros((batch, heads, n * page, dim))
                rows[:, :, :most] = x
                cache = np.full((batch * n + 1, page, heads, dim), 7.0)
                cache[pages[::-1].ravel()] = (
                    rows[::-1]
                    .reshape(batch, heads, n, page, dim)
                    .transpose(0, 2, 3, 1, 4)
                    .reshape(batch * n, page, heads, dim)
                )
                caches.append(cache)
            yield (q, *caches, pages, lengths), kwargs


def _merge_states() -> Iterator[Case]:
    sizes = [(1, 3, 2), (2, 5, 7), (9, 4, 3), (0, 3, 2), (3, 0, 2)]
    states = [(_normal(66, parts, rows, dim), 4 * _normal(67, parts, rows)) for parts, rows, dim in sizes]
    for o, lse in states:
        yield (o, lse), {}
    for o, lse in states:
        far = lse + 800
        far[::2, ::2], far[:, 1:2] = -np.inf, -np.inf  # parts without keys, and a row without any
        yield (o, far), {}


def _attention_varlen() -> Iterator[Case]:
    shapes = [  # Hq, Hkv, D; lengths of q and of k; rows that belong to no sequence
        (1, 1, 1, [1], [1], 0),
        (4, 2, 3, [5, 0, 7], [7, 4, 9], 2),
        (6, 2, 5, [0, 3, 0, 2, 0], [0, 11, 3, 0, 0], 0),
        (2, 1, 4, [0, 0], [0, 0], 3),
        (3, 3, 2, [], [], 4),
        (2, 2, 8, [17], [13], 1),
        (1, 1, 4, [1, 1, 9, 1], [1, 1, 4, 1], 0),
    ]
    for hq, hkv, d, rows, keys, slack in shapes:
        q = _normal(60, sum(rows) + slack, hq, d)
        k, v = (_normal(seed, sum(keys) + slack, hkv, d) for seed in (61, 62))
        cu_q, cu_k = (np.cumsum([0, *lengths]).astype(np.int32) for lengths in (rows, keys))
        longest = {"max_q": max(rows, default=0), "max_k": max(keys, default=0) + 1}
        yield (q, k, v, cu_q, cu_k), longest
        yield (3 * q, k, v, cu_q, cu_k), {**longest, "causal": True, "scale": 0.3}


def _attention_varlen_backward() -> Iterator[Case]:
    for (q, k, v, cu_q, cu_k), kwargs in _attention_varlen():
        o, lse = attention_varlen(q, k, v, cu_q, cu_k, **kwargs)
        yield (q, k, v, o, lse, _normal(64, *q.shape), cu_q, cu_k), kwargs


def _masked_attention() -> Iterator[Case]:
    sizes = [(1, 1, 1, 1, 1, 4), (2, 4, 2, 5, 9, 3), (1, 2, 1, 7, 4, 2), (1, 2, 2, 0, 3, 2), (1, 1, 1, 3, 0, 2)]
    settings: list[dict[str, Any]] = [
        {},
        {"causal": True, "window": 3, "scale": -0.4},
        {"window": 2, "softcap": 1.5, "p": 0.4, "seed": 2**33 + 1, "offset": 2**34},
        {"causal": True, "p": 1.0},
    ]
    for batch, heads, kv_heads, seq_q, seq_k, dim in sizes:
        q, k = _normal(61, batch, heads, seq_q, dim), _normal(62, batch, kv_heads, seq_k, dim)
        bias = np.where(_normal(63, batch, heads, seq_q, seq_k) < -1, -np.inf, _normal(64, batch, heads, seq_q, seq_k))
        segments = [np.tile(np.arange(n) // size, (batch, 1)) for n, size in ((seq_q, 3), (seq_k, 4))]
        slopes = 2.0 ** -np.arange(1, heads + 1)
        mods = [
            (None, None, *segments),
            (bias, None, None, None),
            (bias, slopes, *segments),
            (None, slopes, None, None),
        ]
        for given, kwargs in zip(mods, settings, strict=True):
            yield (q, k, _normal(65, *k.shape), *given), kwargs


def _masked_attention_backward() -> Iterator[Case]:
    for (q, k, v, *mods), kwargs in _masked_attention():
        o, lse = masked_attention(q, k, v, *mods, **kwargs)
        yield (q, k, v, o, lse, _normal(66, *q.shape), *mods), kwargs


def _bias_dropout_residual() -> Iterator[Case]:
    for i, (rows, cols) in enumerate(SIZES):
        x, bias, residual = _normal(47, rows, cols), _normal(48, cols), _normal(49, rows, cols)
        yield (x, None if i % 2 else bias, residual), {"p": (0.0, 0.5, 0.9)[i % 3], "seed": 2**32 + i, "offset": i}
    yield (np.ones((3, 5)), np.ones(5), np.ones((3, 5))), {}


def _activation_backward() -> Iterator[Case]:
    for (x, bias), kwargs in _activation():
        if kwargs["activation"] != "hardshrink" or x.shape != (1, 6):  # autograd's kinks are torch's own
            yield (x, bias, _normal(53, *x.shape)), kwargs


SMOOTHED = [("mean", 0.0, 0.0), ("none", 0.1, 0.0), ("sum", 0.2, 0.01), ("none", 0.0, 0.1), ("mean", 1.0, 0.5)]
_online_softmax = _softmax
_dropout_bitmask = _dropout
_rope_backward = _rope
CASES = {op: globals()[f"_{op}"] for op in OPS if f"_{op}" in globals()}


def _public(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def _module(op: str) -> ModuleType:
    return importlib.import_module(f"touchstone.reference.{op}")


def _answers(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _label(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return f"{[None if a is None else a.shape for a in args]} {kwargs}"


PAIRS = [(op, name) for op in OPS for name in _public(_module(op)) if name != op]


@pytest.mark.parametrize("op", OPS)
def test_module_has_definition_torch_form_and_a_derivation(op):
    module = _module(op)
    names = _public(module)
    assert names[:2] == [op, f"torch_{op}"]
    assert len(names) >= 3, "no second derivation"
    definition = inspect.signature(getattr(module, op)).parameters
    for name in names:
        function = getattr(module, name)
        parameters = inspect.signature(function).parameters
        assert [(p.name, p.kind, p.default) for p in parameters.values()] == [
            (p.name, p.kind, p.default) for p in definition.values()
        ], name
        assert function.__doc__, name


def test_every_op_has_shapes():
    assert sorted(CASES) == OPS


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("op", "name"), PAIRS, ids=[f"{op}-{name}" for op, name in PAIRS])
def test_equals_the_definition(op, name):
    module = _module(op)
    definition, other = getattr(module, op), getattr(module, name)
    on_torch = name == f"torch_{op}"
    cases = 0
    for args, kwargs in CASES[op]():
        label = _label(args, kwargs)
        kept = [None if a is None else a.copy() for a in args]
        want = _answers(definition(*args, **kwargs))
        if on_torch:
            operands = [None if a is None else torch.from_numpy(a) for a in args]
            options = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
            got = _answers(other(*operands, **options))
            got = tuple(None if g is None else g.numpy() for g in got)
        else:
            got = _answers(other(*args, **kwargs))
        assert len(got) == len(want), label
        for g, w in zip(got, want, strict=True):
            assert (g is None) == (w is None), label
            if w is not None:
                assert g.dtype == w.dtype == (np.int32 if w.dtype == np.int32 else np.float64), label
                assert g.shape == w.shape, label
                np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-11, err_msg=label)
        for before, after in zip(kept, args, strict=True):
            np.testing.assert_array_equal(before, after, err_msg=f"{label}: an input was written")
        cases += 1
    assert cases >= 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_torch_form_takes_every_float_dtype(op, dtype):
    """Near the float64 answer of the same rounded inputs, in the inputs' dtype; statistics may come in float32."""
    function = getattr(_module(op), f"torch_{op}")
    args, kwargs = [case for case in CASES[op]() if all(a is None or a.size for a in case[0])][1]
    given = [None if a is None else torch.from_numpy(a) for a in args]
    rounded = [a.to(dtype) if a is not None and a.is_floating_point() else a for a in given]
    single = {k: torch.from_numpy(v).float() if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    if op in ("attention_backward", "attention_varlen_backward"):
        rounded[4] = torch.from_numpy(args[4]).float()
    double = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in single.items()}
    wide = [a.double() if a is not None and a.is_floating_point() else a for a in rounded]
    want = _answers(function(*wide, **double))
    for g, w in zip(_answers(function(*rounded, **single)), want, strict=True):
        if w is not None and not w.is_floating_point():
            assert torch.equal(g, w)
        elif w is not None:
            assert g.dtype == dtype
            assert (g.double() - w).abs().max() <= 40 * torch.finfo(dtype).eps * (1 + w.abs().max())


@pytest.mark.parametrize("op", OPS)
def test_definition_takes_float32_and_answers_in_float64(op):
    definition = getattr(_module(op), op)
    args, kwargs = [case for case in CASES[op]() if all(a is None or a.size for a in case[0])][1]
    single = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in args]
    wide = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in single]
    want = _answers(definition(*wide, **kwargs))
    for g, w in zip(_answers(definition(*single, **kwargs)), want, strict=True):
        if w is not None:
            assert g.dtype == (np.int32 if w.dtype == np.int32 else np.float64)
            np.testing.assert_array_equal(g, w)
