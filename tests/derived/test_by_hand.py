"""Contracts derived from functions beside those that were written by hand for the same ops."""

import pytest

from tests.derived.by_hand import OPS, counted, is_accused, ratios

LOOSER, TIGHTER = 3.0, 5.0  # by which a budget by hand may differ from a derived one without a reason
LOST = 0.01  # of the mutants that are rejected by hand
ABSOLUTE = (
    "by hand, errors of intermediates are added with their absolute values, as if all had one sign: right in any order "
    "of evaluation; errors of samples partly cancel"
)
ONE_SUM = "by hand, h is one addition, rounded once; derived, each operand may be off by half a unit before it"
IN_FLOAT32 = "by hand, lse keeps float32 and no score is stored in 16 bits; derived, results of dot products may be"
TAIL = (
    "by hand, an activation and its slope far below 0 may come from 1 + erf(x/√2), of which absolute digits are left; "
    "derived, from the form that the reference has"
)
# (op, output, dtype) -> why the two differ by more
REASONS: dict[tuple[str, str, str], str] = {
    ("add_layer_norm", "h", "float32"): ONE_SUM,
    ("add_rms_norm", "h", "float32"): ONE_SUM,
    ("attention", "lse", "float16"): IN_FLOAT32,
    ("attention", "lse", "bfloat16"): IN_FLOAT32,
    ("attention", "o", "float32"): ABSOLUTE,
    ("attention_backward", "dq", "float32"): ABSOLUTE,
    ("attention_backward", "dk", "float32"): ABSOLUTE,
    ("gated_mlp", "y", "float32"): ABSOLUTE,
    ("layer_norm_backward", "dx", "float32"): ABSOLUTE,
    ("layer_norm_backward", "dweight", "float32"): ABSOLUTE,
    ("mlp", "y", "float32"): ABSOLUTE,
    ("mlp_backward", "dx", "float32"): ABSOLUTE,
    ("mlp_backward", "db1", "float32"): ABSOLUTE,
    ("mlp_backward", "dw2", "float32"): ABSOLUTE,
    ("mlp_backward", "dx", "float16"): TAIL,
}
ACCUSED = {  # (op, known-good kernel) -> why the derived contract accuses it
    ("attention_backward", "delta_from_probabilities"): (
        "delta as the sum of p·dp is worse conditioned than the reference's sum of do·o, where scores are large"
    ),
    ("layer_norm_backward", "autograd"): (
        "it computes the statistics anew; derived, those given are operands, and taken for exact"
    ),
}


@pytest.mark.level("default")
@pytest.mark.parametrize("op", OPS)
def test_budgets_are_near_each_other(op):
    found = ratios(op)
    print(op, {f"{output} {dtype}": round(ratio, 2) for (output, dtype), ratio in found.items()})
    assert found
    far = {key: ratio for key, ratio in found.items() if not 1 / TIGHTER <= ratio <= LOOSER}
    named = {(output, dtype) for name, output, dtype in REASONS if name == op}
    assert set(far) <= named, far
    for key in named:  # a reason for what is no longer so goes
        assert not 1.5 / TIGHTER <= found[key] <= LOOSER / 1.5, (key, found[key])


@pytest.mark.level("default")
@pytest.mark.slow
def test_derived_contracts_reject_what_those_by_hand_reject_and_accuse_no_other_kernels_than_these():
    by_hand = derived = 0
    lost, accused = [], {}
    for op in OPS:
        count = counted(op)
        by_hand, derived = by_hand + len(count.by_hand), derived + len(count.derived & count.by_hand)
        lost += [f"{op}: {name}" for name in sorted(count.by_hand - count.derived)]
        accused |= {(op, name): where for name, where in count.accused.items()}
        print(op, len(count.tried), len(count.by_hand), len(count.derived), count.accused, sorted(count.noted))
    assert by_hand > 900
    assert by_hand - derived <= LOST * by_hand, lost
    assert set(accused) <= set(ACCUSED), accused


@pytest.mark.level("default")
@pytest.mark.parametrize(("op", "name"), ACCUSED)
def test_a_kernel_that_derived_contracts_are_said_to_accuse_is_accused(op, name):
    """In one of all small cases, of which those that mutants are judged on are a sample."""
    assert is_accused(op, name)
