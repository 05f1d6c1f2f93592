"""Contracts derived from functions beside those that were written by hand for the same ops."""

import pytest

from tests.derived.by_hand import OPS, counted, ratios

LOOSER, TIGHTER = 3.0, 5.0  # by which a budget by hand may differ from a derived one without a reason
LOST = 0.01  # of the mutants that are rejected by hand
REASONS: dict[tuple[str, str, str], str] = {}  # (op, output, dtype) -> why the two differ by more
ACCUSED: dict[tuple[str, str], str] = {}  # (op, known-good kernel) -> why the derived contract accuses it


@pytest.mark.level("default")
@pytest.mark.parametrize("op", OPS)
def test_budgets_are_near_each_other(op):
    found = ratios(op)
    print(op, {f"{output} {dtype}": round(ratio, 2) for (output, dtype), ratio in found.items()})
    assert found
    far = {key: ratio for key, ratio in found.items() if not 1 / TIGHTER <= ratio <= LOOSER}
    assert set(far) == {(output, dtype) for name, output, dtype in REASONS if name == op}, far


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
    assert by_hand > 1000
    assert by_hand - derived <= LOST * by_hand, lost
    assert set(accused) == set(ACCUSED), accused
