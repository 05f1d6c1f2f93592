"""Rows wider than any case of the judge: where the top variants keep 16 or 32 columns in a thread, and sums in shared
memory."""

import importlib

import pytest
import torch

from touchstone.backends import emulator
from touchstone.backends.cupy.lib.norms import registers_per_row
from touchstone.backends.cupy.lib.rows import in_teams
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.cases import plain_case

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

OPS = [
    "softmax",
    "softmax_backward",
    "online_softmax",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
    "add_layer_norm",
    "add_rms_norm",
]
WIDE = [(12000, 16, "float32"), (20000, 32, "bfloat16"), (32768, 32, "bfloat16")]


@pytest.mark.parametrize(("cols", "columns", "dtype"), WIDE)
@pytest.mark.parametrize("op", OPS)
def test_wide_rows_stay_within_the_budget(op, cols, columns, dtype):
    assert registers_per_row(cols)[0] == columns
    size = {"rows": 5 if op.endswith("norm_backward") else 2, "cols": cols}
    within_the_budget(op, "vectorised", size, dtype)


@pytest.mark.parametrize(("cols", "dtype"), [(16384, "bfloat16"), (5003, "float32")])
@pytest.mark.parametrize("op", ["layer_norm_backward", "rms_norm_backward"])
def test_rows_that_fill_shared_memory_stay_within_the_budget(op, cols, dtype):
    within_the_budget(op, "staged", {"rows": 5, "cols": cols}, dtype)


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "teams"),
    [(13, 16384, "bfloat16", 5), (11, 16408, "bfloat16", 5), (9, 70000, "float16", 4)],
)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_teams_take_several_rows(op, rows, cols, dtype, teams):
    """More than the teams of all clusters, whole vectors for each thread or not, of one to eight blocks."""
    x = torch.empty(rows, cols, dtype=getattr(torch, dtype))
    grid = in_teams(rows, cols, x, x[0])
    assert grid.options["TEAMS"] == teams and rows > teams * grid.blocks // grid.options["CLUSTER"]
    within_the_budget(op, "teams", {"rows": rows, "cols": cols}, dtype)


def within_the_budget(op, variant, size, dtype):
    contract = registry.contract(op)
    inputs = contract.build(plain_case(contract, dtype, next(iter(contract.values)), size=size))
    got = contract.call(
        getattr(importlib.import_module(f"touchstone.backends.cupy.{op}"), variant), inputs.arguments, by_name=True
    )
    for name, tensor in contract.by_name(got, None).items():
        verdict = compare.compare(tensor, contract.expected(inputs)[name], inputs.case.torch_dtype)
        assert verdict.ok, f"{name}: {verdict.message}"


@pytest.mark.parametrize("op", ["softmax", "online_softmax"])
def test_rows_far_from_zero_whose_warps_merge(op):
    """Against 0, in place of the maximum of a warp that has no columns, the other warps' exponentials overflow."""
    contract = registry.contract(op)
    case = plain_case(contract, "float32", "row_offsets", size={"rows": 4, "cols": 1100})
    inputs = contract.build(case)
    got = contract.call(
        importlib.import_module(f"touchstone.backends.cupy.{op}").vectorised, inputs.arguments, by_name=True
    )
    for name, tensor in contract.by_name(got, None).items():
        verdict = compare.compare(tensor, contract.expected(inputs)[name], case.torch_dtype)
        assert verdict.ok, f"{name}: {verdict.message}"


def test_no_case_of_the_judge_is_wider_than_the_first():
    widest = max(size["cols"] for op in OPS for size in registry.contract(op).sizes)
    assert registers_per_row(widest)[0] <= min(columns for _, columns, _ in WIDE)
