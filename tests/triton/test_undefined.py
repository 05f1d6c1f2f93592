"""Kernels that rely on what Triton leaves undefined, judged whole: a note that names the line, and a failure under
--strict."""

import json
import re

import pytest

from tests.processes import run_touchstone

# the second load has no `other`; its masked lanes are multiplied by 0 before they are summed
KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def _k(x, w, y, n, eps, stride_x, BLOCK: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride_x + c, mask=c < n, other=0.0).to(tl.float32)
    u = tl.load(w + c, mask=c < n).to(tl.float32)
    s = tl.sum(v * v, 0) + 0.0 * tl.sum(tl.where(c < n, 1.0, 0.0) * u, 0)
    tl.store(y + row * n + c, v * tl.rsqrt(s / n + eps) * u, mask=c < n)


def rms_norm(x, weight, *, eps=1e-6):
    weight = weight.contiguous()
    x = x if x.stride(-1) == 1 else x.contiguous()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        _k[(x.shape[0],)](x, weight, y, x.shape[1], eps, x.stride(0), BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
"""
LOAD = KERNELS.splitlines().index("    u = tl.load(w + c, mask=c < n).to(tl.float32)") + 1


@pytest.fixture
def checked(tmp_path):
    (tmp_path / "k.py").write_text(KERNELS)

    def check(*options):
        arguments = ["check", "rms_norm", "--kernel", "k.py:rms_norm", "--device", "cpu", "--quick", "--json", "r.json"]
        done = run_touchstone(["-m", "touchstone", *arguments, *options], tmp_path)
        return done, json.loads((tmp_path / "r.json").read_text())["reports"][0]

    return check


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_masked_load_without_other_gets_a_note_and_an_offset_that_wraps_fails(checked):
    done, record = checked("--require=values,layouts,special,empty,determinism,contract")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^note: .* portability: k\.py:{LOAD}: a masked load without `other`", done.stdout, re.MULTILINE)
    verdicts = {name: each["verdict"] for name, each in record["requirements"].items()}
    assert verdicts == {**dict.fromkeys(verdicts, "holds"), "offsets": "fails"}
    assert "int32 mul overflows, and wraps on a GPU" in done.stdout


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton")
def test_an_offset_that_wraps_fails_the_whole_check(checked):
    done, record = checked()
    assert (done.returncode, record["verdict"]) == (1, "failed")


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton")
def test_strictly_it_fails_and_the_line_is_named(checked):
    done, _ = checked("--strict")
    assert done.returncode == 1
    assert f"undefined: k.py:{LOAD}: a masked load without `other`" in done.stdout
    assert "with what GPUs give there the answer is right" in done.stdout
