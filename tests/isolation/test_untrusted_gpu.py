"""Untrusted kernels on a GPU: the sandbox lets CUDA work, and the judge refuses there what it refuses on the CPU."""

import json

import pytest

from tests.processes import run_touchstone

pytestmark = [pytest.mark.slow, pytest.mark.needs("GPU", "triton")]

KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def rows(y, x, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK).to(tl.int64)
    given = tl.load(x + row * row_stride + i * col_stride, mask=i < cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(given - tl.max(given, 0))
    tl.store(y + row * cols + i, (e / tl.sum(e, 0)).to(y.dtype.element_ty), mask=i < cols)


def softmax(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        rows[(x.shape[0],)](y, x, x.shape[1], *x.stride(), triton.next_power_of_2(x.shape[1]))
    return y


def by_library(x):
    return torch.softmax(x, -1).contiguous()


def on_the_host(x):
    return softmax(x).cpu()


"""


def judged(folder, name):
    (folder / "kernel.py").write_text(KERNEL)
    arguments = ["check", "softmax", "--kernel", "kernel.py:" + name, "--device", "cuda", "--untrusted", "--quick"]
    return run_touchstone(["-m", "touchstone", *arguments, "--dtypes", "float32"], folder)


def test_a_right_kernel_passes(tmp_path):
    done = judged(tmp_path, "softmax")
    assert done.returncode == 0 and "untrusted: seed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("by_library", "honest work: the library does work: _softmax"),
        ("on_the_host", "device: y: expected a tensor on cuda, got one on cpu"),
    ],
)
def test_another_one_is_refused(name, words, tmp_path):
    done = judged(tmp_path, name)
    assert done.returncode == 1 and words in done.stdout, done.stdout + done.stderr


def test_a_process_that_used_cuda_refuses(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    code = (
        "import torch\nfrom touchstone import check\nfrom kernel import softmax\ntorch.ones(1, device='cuda')\n"
        "if __name__ == '__main__':\n    check('softmax', softmax, device='cuda', level='quick', untrusted=True)\n"
    )
    (tmp_path / "used.py").write_text(code)
    done = run_touchstone(["used.py"], tmp_path)
    assert done.returncode == 1 and "untrusted: CUDA was used in this process before" in done.stderr, done.stderr


def test_many_of_them_are_judged(tmp_path):
    folder = tmp_path / "softmax"
    folder.mkdir()
    (folder / "right.py").write_text(KERNEL.partition("def by_library")[0])
    (folder / "library.py").write_text(
        "import torch\n\n\ndef softmax(x):\n    return torch.softmax(x, -1).contiguous()\n"
    )
    arguments = ["judge", str(tmp_path), "--device", "cuda", "--out", "results.jsonl"]
    done = run_touchstone(["-m", "touchstone", *arguments], tmp_path)
    results = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    verdicts = {result["candidate"]["id"]: result["verdict"] for result in results}
    assert verdicts == {"softmax/right": "passed", "softmax/library": "failed"}, done.stdout + done.stderr
