"""What a kernel is found to take for granted of an operand of indices."""

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import indices, judge
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference.attention_paged import torch_attention_paged

PAGED = registry.contract("attention_paged")


def pages_behind_the_first(table):
    return table[:, :1] + torch.arange(table.shape[1], dtype=table.dtype)


def a_page_missed(table):
    return torch.roll(table, 1, 1)


@pytest.mark.parametrize(
    ("reads", "told"), [(pages_behind_the_first, True), (a_page_missed, False), (lambda table: table, False)]
)
def test_pages_that_are_taken_to_lie_one_behind_another(reads, told):
    def called(inputs):
        exact = {n: x.int() if n in ("block_table", "lengths") else x for n, x in inputs.exact.items()}
        exact["block_table"] = reads(exact["block_table"]) % len(exact["k_cache"])
        o, lse = torch_attention_paged(**exact)
        return {"o": o.float(), "lse": lse.float()}

    case = plain_case(PAGED, "float32", "normal")
    text = indices.in_order(PAGED, case, "o", "cpu", called)
    assert (text is not None) == told
    assert not told or text.startswith("right where block_table counts up by one")


def test_a_failure_says_so():
    def fn(q, k_cache, v_cache, block_table, lengths, **params):
        table = pages_behind_the_first(block_table) % len(k_cache)
        return torch_attention_paged(q, k_cache.nan_to_num(), v_cache.nan_to_num(), table, lengths, **params)

    case = plain_case(PAGED, "float32", "normal")
    outcome = judge.run(Subject("attention_paged", fn, "fn", "user@cpu", "cpu"), CaseTrial(case))
    assert "right where block_table counts up by one" in outcome.findings[0].diagnosis
