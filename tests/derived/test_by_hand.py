"""Budgets derived from functions beside those that were written by hand for the same ops."""

import pytest
import torch
import torch.nn.functional as F

from touchstone.conformance.derived.samples import sampled
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.budget import Expected, budget
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import DTYPES

LOOSER, TIGHTER = 3.0, 5.0  # by which a budget by hand may differ from a derived one without a reason
FUNCTIONS = {
    "matmul": lambda a, b: a @ b,
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x, weight, bias: F.layer_norm(x, (x.shape[-1],), weight, bias),
    "rms_norm": lambda x, weight: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight,
    "gemv": lambda a, x: a @ x,
    "dot": torch.dot,
    "softmax_backward": lambda y, dy: y * (dy - (y * dy).sum(-1, keepdim=True)),
}
REASONS = {  # (op, dtype) -> why the two differ by more
    ("softmax", "float32"): "by hand, every element of the sum counts with the error of the largest exponent",
    ("layer_norm", "float32"): "by hand, the errors of mean, variance and bias are added with the root of all terms",
}


@pytest.mark.level("default")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_the_two_are_near_each_other(op, dtype):
    contract = registry.contract(op)
    small = (s for s in contract.sizes if contract.work(plain_case(contract, dtype, "normal", size=s)) < 1e6)
    size = max(small, key=str)
    inputs = contract.build(plain_case(contract, dtype, next(iter(contract.values)), size=size))
    by_hand = next(iter(contract.expected(inputs).values()))
    values = [value for value in inputs.exact.values() if value is not None]
    narrow = None if dtype == "float32" else DTYPES[dtype]
    found = sampled(FUNCTIONS[op], values, store=narrow)
    derived = budget(Expected(found.answers[0], extra=found.extra(0)), DTYPES[dtype])
    torch.testing.assert_close(found.answers[0], by_hand.answer.expand(derived.shape))
    ratio = float((budget(by_hand, DTYPES[dtype]).expand(derived.shape) / derived).median())
    print(f"{op} {dtype}: {ratio:.2f}")
    near = 1 / TIGHTER <= ratio <= LOOSER
    assert near != ((op, dtype) in REASONS), f"by hand {ratio:.2f} times the derived budget"
