"""What the porting of kernels knows of Triton: launches as they are read and written, names, first lines."""

import ast
import re
from pathlib import Path

import pytest

from touchstone.backends.porting import Launch
from touchstone.backends.triton.runtime import porting


def launch(text):
    return porting.launch_of(ast.parse(text, mode="eval").body)


def test_a_launch_is_read():
    assert launch("kernel[(n, 2)](x, y.stride(0), n, BLOCK=64, num_warps=8, num_stages=3, EVEN=n % 2 == 0)") == Launch(
        "kernel",
        "(n, 2)",
        "256",
        ("x", "y.stride(0)", "n"),
        (("BLOCK", "64"), ("EVEN", "n % 2 == 0")),
        rest=(("num_stages", "3"),),
    )
    wrapped = launch("torch.library.wrap_triton(kernel)[grid](x)")
    assert (wrapped.kernel, wrapped.grid, wrapped.threads, wrapped.constants) == ("kernel", "grid", "128", ())
    spread = launch("kernel[grid](x, **config, maxnreg=64)")
    assert spread.threads == '32 * config["num_warps"]' and spread.constants == (("**", "config"),)
    assert spread.rest == (("maxnreg", "64"),)
    assert launch("kernel[grid](x, BLOCK=64, **config)").threads == '32 * config["num_warps"]'
    assert launch("kernel[grid](x, BLOCK=64)").threads == "128"
    for option in ("num_stages", "num_ctas", "maxnreg", "launch_cooperative_grid"):
        assert launch(f"kernel[grid](x, {option}=1)").rest == ((option, "1"),)


@pytest.mark.parametrize("text", ["kernel(x)", "kernels[0].run[grid](x)", "f(a, b)[grid](x)", "kernel[grid].warmup(x)"])
def test_what_is_no_launch(text):
    assert launch(text) is None


LINES = {
    "i = tl.program_id(0) + tl.arange(0, 4) % tl.num_programs(1)": {"index order"},
    "n = n.to(tl.int64)": {"index width"},
    "x = tl.load(x_ptr + i, mask=i < n, other=tl.where(a, b, c))": {"masks"},
    "y = tl.cumsum(x) + tl.argmin(x, 0)": {"barriers"},
    "x = x.to(tl.float32)": {"accumulator type"},
    "acc += tl.dot(a, b)": {"accumulator type", "barriers"},
    "y = tl.rsqrt(x)": {"literals"},
    "y = x * 0.5": {"literals"},
    "y = tl.maximum(a, b)": {"NaN"},
    "y = tl.max(x, 0)": {"NaN", "barriers"},
    "y = sums[1] + x1.y": set(),
}


@pytest.mark.parametrize("line", LINES)
def test_what_a_line_of_a_kernel_has_to_be_looked_at_for(line):
    patterns = {topic: about.pattern for topic, about in porting.TOPICS.items() if about.pattern}
    assert {topic for topic, pattern in patterns.items() if re.search(pattern, line)} == LINES[line]
    assert set().union(*LINES.values()) | {"launch order", "shared memory"} == porting.TOPICS.keys()


def test_a_launch_is_written():
    known = Launch("gemm", "(m,)", "256", ("x", "n"), (("BLOCK", "64"), ("**", "more")))
    assert porting.launch_text(known, "op") == "_gemm_kernel[(m,)](x, n, BLOCK=64, **more, num_warps=8)"
    unknown = Launch("gemm", "grid", None, (), ())
    assert porting.launch_text(unknown, "op") == "_gemm_kernel[grid]()"


def test_names_and_first_lines(tmp_path):
    assert [porting.stem(name, "op") for name in ("_row_kernel", "row", "__row_", "kernel")] == [
        "row",
        "row",
        "row",
        "kernel",
    ]
    assert porting.declaration("row", "op").splitlines() == [
        "@triton.jit",
        "def _row_kernel(..., BLOCK: tl.constexpr):",
    ]
    first = porting.imports(Path("k.py")).splitlines()
    assert first[:3] == ["import torch", "import triton", "import triton.language as tl"] and "Unsupported" in first[-1]
    assert porting.beside(Path("k.py"), "op", ["row"]) == {}
    file = tmp_path / "k.py"
    file.write_text("@triton.jit\ndef _row_kernel(x):\n    pass\n")
    assert porting.find_kernel([file], "_row_kernel") and porting.find_kernel([file], "_other_kernel") is None
