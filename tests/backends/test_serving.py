"""Attention of serving at sizes that no case of the judge has: more rows than a product holds, keys for several turns
of a warp's stages, more tiles than one, the widest heads."""

import importlib
from dataclasses import replace

import pytest

from touchstone.backends import emulator, numba
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.cases import plain_case

SIMULATED = "NUMBA_ENABLE_CUDASIM is set" if numba.simulated() else None
ABSENT = {"cupy": emulator.why_not(), "numba": numba.why_not("cpu") or SIMULATED}
BOTH = pytest.mark.parametrize("backend", ["cupy", pytest.param("numba", marks=pytest.mark.level("default"))])


def within_the_budget(backend, op, variant, size, dtype, **params):
    """The contiguous case of a size, with some parameters given."""
    if ABSENT[backend]:
        pytest.skip(str(ABSENT[backend]))
    contract = registry.contract(op)
    case = plain_case(contract, dtype, next(iter(contract.values)), size=size)
    inputs = contract.build(replace(case, params=tuple((name, params.get(name, old)) for name, old in case.params)))
    launcher = getattr(importlib.import_module(f"touchstone.backends.{backend}.{op}"), variant)
    got = contract.call(launcher, inputs.arguments, by_name=True)
    for name, tensor in contract.by_name(got, None).items():
        verdict = compare.compare(tensor, contract.expected(inputs)[name], inputs.case.torch_dtype)
        assert verdict.ok, f"{name}: {verdict.message}"


@BOTH
@pytest.mark.parametrize(
    ("kv_heads", "group", "queries", "keys", "dim"), [(2, 40, 1, 400, 64), (2, 9, 3, 70, 128), (1, 17, 1, 130, 256)]
)
def test_rows_of_a_key_head_in_several_tiles(backend, kv_heads, group, queries, keys, dim):
    size = {"B": 2, "Hq": kv_heads * group, "Hkv": kv_heads, "Sq": queries, "Sk": keys, "D": dim}
    within_the_budget(backend, "attention_decode", "packgqa", size, "bfloat16")


@BOTH
@pytest.mark.parametrize("dim", [64, 256])
def test_keys_in_one_part_where_heads_are_many(backend, dim):
    """So that each warp has more tiles than stages, which it fills in turn."""
    size = {"B": 2, "Hq": 40, "Hkv": 40, "Sq": 1, "Sk": 600, "D": dim}
    within_the_budget(backend, "attention_decode", "packgqa", size, "float16")


@BOTH
@pytest.mark.parametrize(("heads", "queries", "page", "most", "dim"), [(24, 1, 16, 20, 128), (9, 2, 7, 9, 80)])
def test_rows_of_a_key_head_over_pages(backend, heads, queries, page, most, dim):
    size = {"B": 3, "Hq": heads, "Hkv": 1, "Sq": queries, "P": 3 * most, "page": page, "n": most, "D": dim}
    within_the_budget(backend, "attention_paged", "packgqa", size, "float16")


@BOTH
@pytest.mark.parametrize(("causal", "dim"), [(False, 128), (True, 192)])
def test_several_tiles_of_queries_in_a_sequence(backend, causal, dim):
    size = {"N": 4, "Tq": 420, "Tk": 500, "Sq": 300, "Sk": 400, "Hq": 2, "Hkv": 1, "D": dim}
    within_the_budget(backend, "attention_varlen", "tensorcore", size, "float16", causal=causal)


@pytest.mark.parametrize(
    ("heads", "keys", "width", "dim_v"), [(33, 300, 576, 512), (5, 70, 576, 576), (16, 200, 192, 136)]
)
def test_heads_over_latents_in_several_tiles(heads, keys, width, dim_v):
    size = {"B": 2, "H": heads, "Sq": 1, "Sk": keys, "W": width, "V": dim_v}
    within_the_budget("cupy", "mla_decode", "tensorcore", size, "float16")


@pytest.mark.parametrize(("queries", "keys", "dim"), [(300, 300, 128), (130, 260, 256)])
@pytest.mark.parametrize("mods", [{}, {"causal": True, "window": 20}, {"window": 3, "softcap": 2.5, "p": 0.3}])
def test_several_tiles_of_queries_under_masks(queries, keys, dim, mods):
    size = {"B": 1, "Hq": 2, "Hkv": 1, "Sq": queries, "Sk": keys, "D": dim}
    within_the_budget("cupy", "masked_attention", "tensorcore", size, "bfloat16", **mods)


@pytest.mark.parametrize("causal", [False, True])
def test_several_tiles_of_queries_with_a_rotary_part(causal):
    size = {"B": 1, "H": 2, "Sq": 140, "Sk": 200, "Dn": 128, "Dr": 64, "R": 512, "Dv": 192}
    within_the_budget("cupy", "mla", "tensorcore", size, "bfloat16", causal=causal)
