"""What the contract of masked_attention says of its cases."""

import pytest

from touchstone.conformance.contracts import masked_attention
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import PASSED
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.cases import also_case
from touchstone.reference import _masks


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(24, 24), (7, 96), (40, 17), (0, 5), (5, 0), (1100, 1100)])
def test_the_work_counted_is_of_the_pairs_that_are_seen(seq_q, seq_k, causal, window):
    size, where = dict(B=2, Hq=3, Hkv=1, Sq=seq_q, Sk=seq_k, D=8), dict(causal=causal, window=window)
    seen = 0
    for b in range(size["B"]):
        documents = masked_attention.segments(seq_q, seq_k, masked_attention.length_of(size, b))
        own = (documents[0][None], documents[1][None])
        seen += int(_masks.visible(seq_q, seq_k, *own, **where).expand(1, 1, seq_q, seq_k).sum())
    assert masked_attention.flops(size, where) == 4 * size["D"] * size["Hq"] * seen


@pytest.mark.parametrize(
    "name", [p.name for p in registry.planted("masked_attention") if p.is_known_good and not p.backend]
)
def test_right_kernels_take_more_keys_than_a_tile_without_dropout(name):
    case = also_case(registry.contract("masked_attention"), "square")
    assert case.param["p"] == 0
    (planted,) = [p for p in registry.planted("masked_attention") if p.name == name and not p.backend]
    subject = Subject("masked_attention", planted.make(), name, "torch@cpu", "cpu", diagnosed=False)
    assert judge.run(subject, CaseTrial(case)).status == PASSED
