"""A variant is a function: it runs in a process that imports its file and nothing of the judge."""

import importlib

import pytest

from tests.processes import output_of
from touchstone.backends.devices import cuda_unavailable

PROGRAM = """
import torch
from touchstone.backends.{backend}.softmax import {variant}
x = torch.linspace(-3, 3, 1000, device="{device}").view(4, 250)
assert torch.allclose({variant}(x), x.softmax(1), atol=1e-6)
from touchstone.backends.{backend}.matmul import naive
a = torch.ones(5, 7, device="{device}", dtype=torch.bfloat16)
assert (naive(a, a.t()) == 7).all()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "variant"), [("triton", "onerow"), ("cupy", "vectorised"), ("numba", "vectorised")]
)
def test_a_variant_runs_by_itself(backend, variant):
    device = "cpu" if cuda_unavailable() else "cuda"
    if reason := importlib.import_module(f"touchstone.backends.{backend}").why_not(device):
        pytest.skip(reason)
    environment = {"TRITON_INTERPRET": "1"} if backend == "triton" and device == "cpu" else {}
    program = PROGRAM.format(backend=backend, variant=variant, device=device)
    output_of(program, **environment)
