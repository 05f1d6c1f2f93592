"""What a long sum on tensor cores is off by, and what its budget allows."""

import numpy as np
import torch

from touchstone.conformance.contracts._bounds_dots import multiplied
from touchstone.conformance.spec.budget import EPS32, C


def cut_off_sum(steps: np.ndarray, bits: int = 26) -> float:
    """A running sum that keeps `bits` bits and cuts off what is below them."""
    total = 0.0
    for step in steps:
        total += step
        unit = 2.0 ** (np.frexp(total)[1] - bits)
        total = np.floor(total / unit) * unit
    return total


def test_a_very_long_sum_may_be_cut_off_at_each_step():
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(*shape, generator=generator).double() for shape in ((1, 1 << 20), (1 << 20, 1)))
    exact = (left @ right).item()
    got = cut_off_sum((left * right.T).reshape(-1, 16).sum(1).numpy())
    assert 0 < exact - got < C * EPS32 * multiplied(left, right).item() ** 0.5 * exact
    assert exact - got > C * EPS32 * left.shape[1] ** 0.5 * exact


def test_shorter_sums_have_their_number_of_terms():
    for terms in (3, 1000, 128**2):
        assert multiplied(torch.rand(2, terms).double(), torch.rand(terms, 3).double()).tolist() == [[terms] * 3] * 2
