"""The single cases of contracts: each one is found right by right kernels, and shows the fault that it is there for."""

import inspect
from dataclasses import replace

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings import minimise
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import FAILED, PASSED
from touchstone.conformance.judging.trials import CaseTrial, trials_of
from touchstone.conformance.selftest.run import drawn_once
from touchstone.conformance.spec.cases import also_case, plan
from touchstone.conformance.spec.contract import Also, Draw

OPS = [op for op in registry.ops() if registry.contract(op).also]
SLOW = ("word_by_word", "outer_products", "autograd_of_each")
EVERY = [(op, name) for op in OPS for name in registry.contract(op).also]


def known_good(op: str):
    """One that was written for the op, and computes all elements at once."""
    return [p for p in registry.planted(op) if p.is_known_good and p.backend is None and p.name not in SLOW][-1].make()


def judged(op: str, name: str, fn) -> str:
    case = also_case(registry.contract(op), name)
    return judge.run(Subject(op, fn, "fn", "torch@cpu", "cpu", diagnosed=False), CaseTrial(case)).status


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_it_is_valid_and_of_finite_values(op, name):
    contract = registry.contract(op)
    case = also_case(contract, name)
    assert contract.valid(case)
    drawn = contract.family(case.values)(Draw(case, contract)).values()
    assert all(bool(x.isfinite().all()) for x in drawn if x is not None)


@pytest.mark.parametrize(("op", "name"), EVERY)
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


def changed(**changes):
    """Operands, by name, are others."""

    def make(fn):
        names = list(inspect.signature(fn).parameters)

        def wrong(*args, **kwargs):
            given = dict(zip(names, args, strict=False)) | kwargs
            return fn(**given | {name: change(given[name]) for name, change in changes.items() if name in given})

        return wrong

    return make


def in_parts(along: dict[str, int], rows: int, sums: tuple[int, ...]):
    """The call in parts of some operands, of which some outputs are sums: added up in the outputs' own dtype."""

    def make(fn):
        names = list(inspect.signature(fn).parameters)

        def wrong(*args, **kwargs):
            given = dict(zip(names, args, strict=False)) | kwargs
            parts = zip(*(given[name].split(rows, axis) for name, axis in along.items()), strict=True)
            every = [fn(**given | dict(zip(along, part, strict=True))) for part in parts]
            every = [found if isinstance(found, tuple) else (found,) for found in every]
            found = fn(**given)
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


LONG_ROWS = (
    "softmax softmax_backward online_softmax layer_norm rms_norm add_layer_norm add_rms_norm layer_norm_backward "
    "rms_norm_backward"
)
MANY = "elementwise dropout dropout_bitmask_backward bias_dropout_residual activation glu glu_backward"
AT_MOST_4096 = changed(lengths=lambda n: n.clamp_max(4096))
WRONG = [
    *((op, "long_rows", beyond(65536)) for op in LONG_ROWS.split()),
    *((op, "many_elements", beyond(2**18)) for op in MANY.split() if op != "activation"),
    ("activation", "many_elements", beyond(65536)),
    ("dropout_bitmask", "many_elements", beyond(2**13)),
    ("group_norm", "long_groups", changed(x=lambda x: torch.cat([x[..., :-300], x[..., :300]], -1))),
    ("cross_entropy", "large_vocabulary", changed(logits=lambda x: x[:, :65536], target=lambda t: t.clamp_max(65535))),
    ("cross_entropy_backward", "large_vocabulary", beyond(65536)),
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
    ("attention_paged", "many_keys", AT_MOST_4096),
    ("attention_paged", "many_pages", changed(block_table=lambda t: t % 2**15)),
    ("mla_decode", "many_keys", AT_MOST_4096),
    ("mla", "many_keys", changed(c=lambda c: c[:, :4096], k_rope=lambda k: k[:, :4096])),
    ("attention_varlen", "many_keys", changed(cu_q=lambda t: t % 2**15, cu_k=lambda t: t % 2**15)),
    ("activation_backward", "flat_gelu_tanh", tanh_in_16_bits),
    ("glu_backward", "large_cubes", tanh_in_16_bits),
]


@pytest.mark.parametrize(
    ("op", "name", "spoil"), WRONG, ids=[f"{op}-{name}-{i}" for i, (op, name, _) in enumerate(WRONG)]
)
def test_what_a_case_is_there_for_is_found(op, name, spoil):
    assert judged(op, name, spoil(known_good(op))) == FAILED


def test_they_are_for_users_kernels_and_above_level_quick_for_ours():
    contract = registry.contract("softmax")
    (single,) = plan(contract, "quick").also
    assert single not in plan(contract, "quick").general
    subject = Subject("softmax", known_good("softmax"), "fn", "torch@cpu", "cpu", own=True)
    ids = {level: {trial.id for trial in trials_of(subject, level)[0]} for level in ("quick", "default")}
    assert single.id not in ids["quick"] and single.id in ids["default"]
    (trial,) = [t for t in trials_of(replace(subject, own=False), "quick")[0] if t.case == single]
    assert not trial.watched and not trial.instrumented  # called once


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
