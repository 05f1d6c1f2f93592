"""A derived contract is as any other: what the judge does with contracts written by hand, it does with these."""

import json
import textwrap

import pytest
import torch

from tests.derived.functions import drawn, rms_norm
from tests.night import some
from touchstone import check
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import derivation, registry
from touchstone.conformance.selftest.results import holes
from touchstone.conformance.selftest.run import judge_op

OPERANDS = drawn((12, 40), (40,))
# mutants of any op: of layouts, offsets beyond 2^31 elements, repeated calls, inputs, memory outside, many calls
MUTANTS = [
    "x_strides",
    "weight_int32",
    "zeroes_its_input",
    "cached_by_shape",
    "writes_past_its_output",
    "every_25th_call",
]


@pytest.fixture(scope="module")
def op(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("derived"))
        yield derivation.load_derived(rms_norm, OPERANDS, level="quick")


def right(x, weight):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype).contiguous()


@pytest.mark.parametrize("name", some(MUTANTS, 3))
def test_what_is_no_matter_of_values_alone_is_found(op, name):
    planted = next(each for each in registry.planted(op) if each.name == name)
    report = check(op, planted.make(), device="cpu", level="quick", isolate="none", dtypes=["bfloat16"])
    assert not report.passed, report


@pytest.mark.parametrize(
    "isolate", ["fork", *(pytest.param(way, marks=pytest.mark.level("default")) for way in ("none", "spawn"))]
)
def test_a_right_kernel_passes_wherever_it_runs(op, isolate):
    report = check(op, right, device="cpu", level="quick", isolate=isolate, dtypes=["bfloat16"])
    assert report.passed, report
    for requirement in ("values", "layouts", "offsets", "determinism", "contract"):
        assert report.standing[requirement].verdict == "holds", requirement
    assert report.selftest.real == report.selftest.killed == 12


@pytest.mark.level("default")
def test_an_op_file_may_derive_its_contract_and_candidates_are_judged_by_it(tmp_path, monkeypatch):
    """`judge` takes the path of an op's file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l2.py").write_text(
        textwrap.dedent(
            """
            import torch
            from touchstone import derive

            def reference(x):
                return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()

            contract = derive(reference, [torch.randn(9, 20, generator=torch.Generator().manual_seed(0))])
            """
        )
    )
    kernel = """
def kernel(x):
    y = x.float()
    return (y / (y.square().sum(-1, keepdim=True) + {}).sqrt()).to(x.dtype)
"""
    lines = [
        {"id": name, "op": "l2.py", "source": kernel.format(eps), "function": "kernel", "dtypes": ["float32"]}
        for name, eps in (("right", "1e-6"), ("wrong", "1e-4"))
    ]
    (tmp_path / "candidates.jsonl").write_text("\n".join(map(json.dumps, lines)))
    main(["judge", "candidates.jsonl", "--out", "results.jsonl", "--allow-library", "--level", "quick"])
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    verdicts = {each["candidate"]["id"]: each["verdict"] for each in results if "candidate" in each}
    assert verdicts == {"right": "passed", "wrong": "failed"}


@pytest.mark.level("default")
def test_every_mutant_that_any_op_can_have_is_rejected(op):
    """But one that cuts its result, which in 16 bits is no farther off than what stores intermediates as eager does."""
    found = judge_op(op, "quick")
    assert len(found.mutants) > 40
    assert not [hole for hole in holes([found]) if "nothing kills truncated" not in hole]
