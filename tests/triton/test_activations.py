"""The device functions of activations.py beside float64, closer than the budgets of the ops that use them ask."""

import pytest

from tests.processes import run_touchstone
from touchstone.backends import triton
from touchstone.backends.devices import cuda_unavailable

PROGRAM = """
import math
import sys
import torch
import triton
import triton.language as tl
from touchstone.backends.triton.lib.activations import activate, normal_cdf, sigmoid

@triton.jit
def both(x_ptr, cdf_ptr, sigmoid_ptr, gelu_ptr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(cdf_ptr + at, normal_cdf(x))
    tl.store(sigmoid_ptr + at, sigmoid(x))
    tl.store(gelu_ptr + at, activate(x, "gelu"))

device = sys.argv[1]
edges = torch.tensor([-1e30, -200.0, -100.0, 100.0, 200.0, 1e30, math.nan])
x = torch.cat([torch.linspace(-12, 12, 65529), edges]).to(device)
cdf, logistic, gelu = (torch.empty_like(x) for _ in range(3))
both[(64,)](x, cdf, logistic, gelu, 1024)
exact = torch.special.ndtr(x.double())
assert cdf[-1].isnan() and logistic[-1].isnan() and gelu[-1].isnan()
assert ((cdf - exact).abs()[:-1] <= 2e-7).all(), (cdf - exact).abs()[:-1].max()
assert ((logistic - x.double().sigmoid()).abs()[:-1] <= 2e-7).all()
assert (gelu[-7:-4].abs() == 0).all() and torch.equal(gelu[-4:-1], x[-4:-1])
"""


@pytest.mark.skipif(bool(triton.why_not("cpu")) and bool(triton.why_not("cuda")), reason="needs Triton")
def test_the_normal_distribution_and_the_sigmoid_are_as_close_as_stated(tmp_path):
    device = "cpu" if cuda_unavailable() else "cuda"
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {"TRITON_INTERPRET": "1" if device == "cpu" else "0"}
    done = run_touchstone(["program.py", device], tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
