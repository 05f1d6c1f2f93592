"""Attention of serving at sizes that no case of the judge has: more rows than a product holds, keys for several turns
of a warp's stages, more tiles than one, the widest heads."""

import pytest

from tests.cupy.test_wide import within_the_budget
from touchstone.backends import emulator

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)


@pytest.mark.parametrize(
    ("kv_heads", "group", "queries", "keys", "dim"), [(2, 40, 1, 400, 64), (2, 9, 3, 70, 128), (1, 17, 1, 130, 256)]
)
def test_rows_of_a_key_head_in_several_tiles(kv_heads, group, queries, keys, dim):
    size = {"B": 2, "Hq": kv_heads * group, "Hkv": kv_heads, "Sq": queries, "Sk": keys, "D": dim}
    within_the_budget("attention_decode", "packgqa", size, "bfloat16")


@pytest.mark.parametrize("dim", [64, 256])
def test_keys_in_one_part_where_heads_are_many(dim):
    """So that each warp has more tiles than stages, which it fills in turn."""
    size = {"B": 2, "Hq": 32, "Hkv": 32, "Sq": 1, "Sk": 600, "D": dim}
    within_the_budget("attention_decode", "packgqa", size, "float16")


@pytest.mark.parametrize(("heads", "queries", "page", "most", "dim"), [(24, 1, 16, 20, 128), (9, 2, 7, 9, 80)])
def test_rows_of_a_key_head_over_pages(heads, queries, page, most, dim):
    size = {"B": 3, "Hq": heads, "Hkv": 1, "Sq": queries, "P": 3 * most, "page": page, "n": most, "D": dim}
    within_the_budget("attention_paged", "packgqa", size, "float16")


@pytest.mark.parametrize(
    ("heads", "keys", "width", "dim_v"), [(33, 300, 576, 512), (5, 70, 576, 576), (16, 200, 192, 136)]
)
def test_heads_over_latents_in_several_tiles(heads, keys, width, dim_v):
    size = {"B": 2, "H": heads, "Sq": 1, "Sk": keys, "W": width, "V": dim_v}
    within_the_budget("mla_decode", "tensorcore", size, "float16")


@pytest.mark.parametrize(("queries", "keys", "dim"), [(300, 300, 128), (130, 260, 256)])
def test_several_tiles_of_queries_under_masks(queries, keys, dim):
    size = {"B": 1, "Hq": 2, "Hkv": 1, "Sq": queries, "Sk": keys, "D": dim}
    within_the_budget("masked_attention", "tensorcore", size, "bfloat16")


def test_several_tiles_of_queries_with_a_rotary_part():
    size = {"B": 1, "H": 2, "Sq": 140, "Sk": 200, "Dn": 128, "Dr": 64, "R": 512, "Dv": 192}
    within_the_budget("mla", "tensorcore", size, "bfloat16")
