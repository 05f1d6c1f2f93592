"""`touchstone port`: what it writes, what it refuses, and how it and `check` lead on from there."""

import ast
import itertools
import json
import re
import sys

import pytest

from tests import processes, targets
from touchstone import check
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry
from touchstone.conformance.judging.judgement import UNPORTED, Outcome
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.porting import port

BACKENDS = [
    name for name in registry.backends() if (registry.ROOT / "backends" / name / "runtime" / "porting.py").is_file()
]
DIRECTIONS = list(itertools.permutations(BACKENDS, 2))


@pytest.fixture
def run(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["port", *arguments])
        return (status, *capsys.readouterr())

    return call


def test_nothing_is_written_without_a_name(run, tmp_path, monkeypatch):
    """Not in the current folder, and not in the clone."""
    before = {path: path.stat().st_mtime_ns for path in (registry.ROOT / "backends").rglob("*")}
    monkeypatch.chdir(tmp_path)
    status, out, _ = run("softmax", "--from=triton", "--to=cupy", "--variant=onerow", "--json=port.json")
    assert status == 0
    assert out.startswith("nothing is written: -o FILE.py says where to\n")
    assert (
        f"onerow{UNPORTED}its source is onerow of backends/triton/softmax.py"
        in out.partition("softmax.py would be:")[2]
    )
    assert "\nsoftmax.cu would be:\n\n#include" in out
    assert "Write the kernel" not in out
    assert json.loads((tmp_path / "port.json").read_text())["port"]["files"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["port.json"]
    written = [path for path in (registry.ROOT / "backends").rglob("*") if "__pycache__" not in str(path)]
    assert all(before.get(path) == path.stat().st_mtime_ns for path in written)


def test_every_backend_takes_part():
    assert list(registry.backends()) == BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_note_has_a_topic_and_every_topic_its_notes(backend):
    topics, notes = port.language(backend).TOPICS, registry.backend(backend).NOTES
    assert set(port.REQUIRED) <= set(topics)
    for topic in port.REQUIRED:
        assert topics[topic].notes, topic
    openings = {opening for topic in topics.values() for opening in topic.notes}
    for opening in openings:
        assert sum(note.startswith(opening) for note in notes) == 1, f"no note, or several, begin {opening!r}"
    assert [note for note in notes if not note.startswith(tuple(openings))] == []
    for topic in topics.values():
        re.compile(topic.pattern or "")


@pytest.mark.parametrize(("source", "target"), DIRECTIONS)
def test_ladders_become_files_of_the_other_language(source, target, tmp_path):
    launched, ops = 0, registry.kernel_ops(source)[source < target :: 2]  # the other direction has the other half
    for op in ops:
        planned = port.plan(op, source, target, None, str(tmp_path / f"{op}.py"), None)
        text = port.text(planned)
        tree = ast.parse(text)
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert list(functions) == registry.ladder(source, op)
        assert re.findall(r"^(\w+): ", ast.get_docstring(tree) or "", re.MULTILINE)[-len(functions) :] == list(
            functions
        )
        for variant in planned.variants:
            launched += len(variant.launches)
            made = functions[variant.name]
            assert ast.unparse(made.args) == ast.unparse(variant.node.args)
            assert ast.get_docstring(made) == ast.get_docstring(variant.node)
            assert len(made.body) == 2
            assert isinstance(made.body[1], ast.Raise)
            assert f"{variant.name}{UNPORTED}" in ast.unparse(made.body[1])
            assert str(variant.node.lineno) in ast.unparse(made.body[1])
        assert max(map(len, text.splitlines())) <= 145
    assert launched >= len(ops)


def test_a_launch_is_written_in_each_language():
    calls = {
        "triton": "_onerow_kernel[(rows,)](x, y, *x.stride(), cols, BLOCK=block, num_warps=8, num_stages=2)",
        "cupy": (
            '_m.launch("softmax_warp", -(-rows // 4), (32, 4), x, y, *x.stride(), cols, dtype=x.dtype, '
            "shared=64, ROWS=4)"
        ),
        "numba": "launch(_block, rows, threads(cols), x, y, shared=64)",
    }
    written = {}
    for source, target in DIRECTIONS:
        call = ast.parse(calls[source], mode="eval").body
        launch = port.language(source).launch_of(call)
        written[source, target] = port.language(target).launch_text(
            launch._replace(kernel=port.language(source).stem(launch.kernel, "softmax")), "softmax"
        )
    assert written == {
        ("triton", "numba"): "launch(_onerow, (rows,), 256, x, y, cols)",
        (
            "triton",
            "cupy",
        ): '_module.launch("softmax_onerow", (rows,), 256, x, y, *x.stride(), cols, dtype=x.dtype, BLOCK=block)',
        ("cupy", "numba"): "launch(_warp, -(-rows // 4), (32, 4), x, y, cols, shared=64)",
        ("cupy", "triton"): "_warp_kernel[-(-rows // 4)](x, y, *x.stride(), cols, ROWS=4, num_warps=4)",
        ("numba", "cupy"): '_module.launch("softmax_block", rows, threads(cols), x, y, dtype=x.dtype, shared=64)',
        ("numba", "triton"): "_block_kernel[rows](x, y, num_warps=(threads(cols)) // 32)",
    }


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_trace_of_what_is_not_ported_says_so(run, tmp_path):
    for name in ("triton", "cupy"):
        if reason := registry.backend(name).why_not("cpu"):
            pytest.skip(reason)
    arguments = ["softmax", "--from=triton", "--to=cupy", "--variant=onerow", "-o", str(tmp_path / "mine.py")]
    assert run(*arguments)[0] == 0
    command = ["-m", "touchstone", "port", *arguments, "--trace"]
    done = processes.run_python(command, tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[1].startswith(f"FAILED: onerow{UNPORTED}its source is onerow of backends/triton/")


def test_what_is_written_and_said(run, tmp_path):
    file = tmp_path / "mine.py"
    status, out, _ = run(
        "softmax",
        "--from=triton",
        "--to=numba",
        "--variant=onerow",
        "-o",
        str(file),
        "--json",
        str(tmp_path / "port.json"),
    )
    assert status == 0
    text = file.read_text()
    assert text.startswith('"""Softmax over the last axis')
    assert "\nonerow: " in text
    assert "\nlooped: " not in text
    assert "    # port softmax --from triton --to numba --variant onerow\n" in text
    assert "# " + " " * 8 + "launch(_onerow, (rows,), 32 * warps(block), x, y, cols)" in text
    assert list(port.missing(file)) == ["onerow"]
    for topic in port.REQUIRED:
        assert re.search(rf"^\[ \] {topic}", out, re.MULTILINE), topic
    lines = (registry.ROOT / "backends/triton/softmax.py").read_text().splitlines()
    (numbers,) = re.findall(r"^\[ \] masks: backends/triton/softmax.py lines ([\d, ]+)$", out, re.MULTILINE)
    assert all("mask=" in lines[int(number) - 1] for number in numbers.split(", "))
    assert f"check softmax --kernel {file}:onerow" in out
    record = json.loads((tmp_path / "port.json").read_text())["port"]
    assert record["variants"][0]["launches"][0]["threads"] == "32 * warps(block)"
    status, _, err = run("softmax", "--from=triton", "--to=numba", "--variant=onerow", "-o", str(file))
    assert status == 2
    assert "-o: " in err
    assert "exists" in err
    assert file.read_text() == text


def test_a_variant_can_get_another_name_and_cuda_c_a_file_of_its_own(run, tmp_path):
    arguments = [
        "softmax",
        "--from=triton",
        "--to=cupy",
        "--variant=onerow",
        "--as=block",
        "-o",
        str(tmp_path / "mine.py"),
    ]
    assert run(*arguments)[0] == 0
    text = (tmp_path / "mine.py").read_text()
    assert "\ndef block(x" in text
    assert "\nblock: one program" in text
    assert f"block{UNPORTED}its source is onerow of backends/triton/softmax.py" in text
    assert '_module.launch("softmax_block", (rows,)' in text
    assert 'Module(__file__, "mine.cu")' in text
    assert "softmax_block(" in (tmp_path / "mine.cu").read_text()
    (tmp_path / "mine.py").unlink()
    status, _, err = run(*arguments)
    assert status == 2
    assert "mine.cu exists" in err
    assert not (tmp_path / "mine.py").exists()


OWN = '''"""Kernels of a project of its own."""
from typing import Optional

import torch
import triton
import triton.language as tl

from launching import run

WARPS = 4


@triton.jit
def _rows(x_ptr, y_ptr, stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * cols + at, e / tl.sum(e, 0), mask=at < cols)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, warps):
        assert x.stride(-1) == 1, "rows have to be contiguous"
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        run(_rows, x, y, warps)
        return y


def softmax(x: torch.Tensor, out: Optional[torch.Tensor] = None, warps: int = WARPS):
    """Softmax of rows, which are contiguous.

    As in the tutorial.
    """
    return Softmax.apply(x, warps)


def help():
    pass
'''
LAUNCHING = '''"""How kernels are launched."""
import triton


def run(kernel, x, y, warps):
    block = triton.next_power_of_2(max(x.shape[1], 1))
    if y.numel():
        kernel[(x.shape[0],)](x, y, x.stride(0), x.shape[1], BLOCK=block, num_warps=warps)
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a user's kernel, which is the current one."""
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "launching.py").write_text(LAUNCHING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_kernel_of_ones_own_is_ported(run, own):
    """Through an autograd function and a helper in a file beside it."""
    status, out, err = run("softmax", "--from=triton", "--to=numba", "--kernel=mine.py:softmax", "-o", "port.py")
    assert status == 0, err
    assert "kernel[(x.shape[0],)](x, y, x.stride(0), x.shape[1], BLOCK=block, num_warps=warps)" in out
    assert "launch(_rows, (x.shape[0],), 32 * warps, x, y, x.shape[1])" in out
    assert "masks: mine.py lines 17, 19" in out
    text = (own / "port.py").read_text()
    assert text.startswith(
        '"""Kernels of a project of its own.\n\nsoftmax: Softmax of rows, which are contiguous.\n"""'
    )
    assert "def softmax(x: torch.Tensor, out=None, warps: int=None):" in text
    assert "# port softmax --from triton --to numba --kernel mine.py:softmax\n" in text
    assert "# Kernel: mine.py, lines 14 to 19: _rows(x_ptr, y_ptr, stride, cols, BLOCK: tl.constexpr)" in text
    assert f"softmax{UNPORTED}its source is softmax of mine.py, line 31" in text
    namespace = {"__name__": "port"}
    pytest.importorskip("numba")
    exec(compile(text, "port.py", "exec"), namespace)
    with pytest.raises(NotImplementedError, match="is not ported yet"):
        namespace["softmax"](None)


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_port_of_a_kernel_of_ones_own_is_compared_with_it(own):
    if reason := registry.backend("numba").why_not("cpu"):
        pytest.skip(reason)
    command = ["-m", "touchstone", "port", "softmax", "--from=triton", "--to=numba", "--kernel=mine.py:softmax"]
    for body, status, told in [
        ("torch.softmax(x.float(), -1).to(x.dtype).contiguous()", 0, "AGREES on "),
        ("torch.softmax(x.float(), 0).to(x.dtype).contiguous()", 1, "DIFFERS on "),
    ]:
        (own / "port.py").write_text(f"import torch\n\n\ndef softmax(x):\n    return {body}\n")
        done = processes.run_touchstone([*command, "-o", "port.py", "--trace"], own)
        assert done.returncode == status, done.stdout + done.stderr
        assert done.stdout.startswith("softmax: softmax of port.py against softmax of mine.py, on the CPU\n" + told)
        if status == 0:
            assert "not compared: triton raises AssertionError: rows have to be contiguous" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["softmaks", "--from=triton", "--to=numba"], "op: 'softmaks' is not one of "),
        (["softmax", "--from=tritn", "--to=numba"], "--from: 'tritn' is not one of "),
        (["softmax", "--from=triton", "--to=rust"], "--to: 'rust' is not one of "),
        (["softmax", "--from=triton", "--to=triton"], "--to: 'triton' is what --from is; expected another of "),
        (
            ["softmax", "--from=triton", "--to=numba", "--variant=oneroe"],
            "--variant: 'oneroe' is no variant of softmax in triton; there are",
        ),
        (["softmax", "--from=triton", "--to=numba", "-o", "backends/numba/softmax.py"], "exists; name another file"),
        (["softmax", "--from=triton", "--to=numba", "--kernel=KERNEL:softmx"], "; did you mean 'softmax'?"),
        (["softmax", "--from=triton", "--to=numba", "--kernel=KERNEL:help"], "launches no kernel of triton"),
        (["softmax", "--from=cupy", "--to=numba", "--kernel=KERNEL:softmax"], "launches no kernel of cupy"),
        (["softmax", "--from=triton", "--to=numba", "--kernel=no.py:softmax"], "--kernel: there is no file no.py"),
        (["softmax", "--from=triton", "--to=numba", "--kernel=mine.py"], "--kernel: expected file.py:function"),
        (
            ["softmax", "--from=triton", "--to=numba", "--kernel=KERNEL:softmax", "--variant=onerow"],
            "--variant and --kernel: give one of the two",
        ),
        (["softmax", "--from=triton", "--to=numba", "-o", "FOLDER/mine.txt"], "-o: expected a file name ending in .py"),
        (["softmax", "--from=triton", "--to=numba", "-o", "FOLDER/no/mine.py"], "-o: there is no folder"),
        (["softmax", "--from=triton", "--to=numba", "--as=x", "-o", "FOLDER/mine.py"], "--as: names one variant, but "),
        (
            ["softmax", "--from=triton", "--to=numba", "--variant=onerow", "--as=_x", "-o", "FOLDER/mine.py"],
            "--as: expected a function's name",
        ),
        (
            ["softmax", "--from=triton", "--to=numba", "--case=x", "-o", "FOLDER/mine.py"],
            "--case and --seed go with --trace",
        ),
        (["softmax", "--from=triton", "--to=numba", "--trace"], "--trace: compares one variant; choose one of onerow"),
        (
            ["softmax", "--from=triton", "--to=numba", "--variant=onerow", "--trace", "-o", "FOLDER/mine.py"],
            "-o: there is no file ",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_named(run, tmp_path, tmp_path_factory, monkeypatch, arguments, told):
    kernel = tmp_path_factory.mktemp("kernel") / "mine.py"
    kernel.write_text(OWN)
    monkeypatch.chdir(registry.ROOT)
    words = [each.replace("FOLDER", str(tmp_path)).replace("KERNEL", str(kernel)) for each in arguments]
    status, out, err = run(*words)
    assert status == 2
    assert err.startswith("python -m touchstone port: ")
    assert told in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_backends_that_take_no_part_or_do_not_run_are_named(run, tmp_path, monkeypatch):
    ours = registry.ROOT / "backends" / BACKENDS[0] / "runtime" / "porting.py"
    with targets.pretend(tmp_path, monkeypatch):
        for name in ("paper", "blank", "quill"):
            (tmp_path / "backends" / name / "runtime" / "porting.py").write_text(ours.read_text())
        mine = tmp_path / "mine.py"
        mine.write_text("def plain(x):\n    return x\n")
        told = {
            (
                "chalk",
                "paper",
            ): "--from: 'chalk' has no backends/chalk/runtime/porting.py; ports are between blank, paper, quill",
            ("blank", "paper"): "--from: blank has no kernels for softmax; it has none",
            ("paper", "quill"): "--to=quill: cannot run on cpu here: quill is not installed: pip install quill",
        }
        for (source, target), words in told.items():
            status, _, err = run(
                "softmax", f"--from={source}", f"--to={target}", "--variant=plain", "-o", str(mine), "--trace"
            )
            assert status == 2
            assert words in err


def unported(x):
    if not x.numel():
        return x.clone()
    raise NotImplementedError(f"unported{UNPORTED}its source is onerow of somewhere.py, line 3")


def declining(x):
    raise NotImplementedError("not in this weather")


def test_check_tells_an_unported_variant_from_one_that_declines():
    report = check("softmax", unported, device="cpu", level="quick", isolate="none")
    assert not report.passed
    assert report.declined == 1  # it stops there
    assert report.summary() == "FAILED: unported is not ported yet: its source is onerow of somewhere.py, line 3"
    assert str(report).splitlines()[-1] == report.summary()
    assert any(reason.startswith("not called") for reason in report.not_run)
    other = check("softmax", declining, device="cpu", level="quick", isolate="none")
    assert other.unported is None
    assert "nothing was judged" in other.summary()
    assert "declined (not in this weather)" in other.summary()


def test_check_of_a_backend_names_what_is_not_ported(tmp_path, monkeypatch, capsys):
    source = targets.PAPER.replace("torch.softmax(x.float(), -1).to(x.dtype).contiguous()", "raise_()", 1)
    source = source.replace(
        "import torch\n", f'import torch\n\ndef _no():\n    raise NotImplementedError("plain{UNPORTED}")\n\n', 1
    )
    world = {"paper": ({}, (), {}, {"softmax": source.replace("return raise_()", "_no()", 1)})}
    with targets.pretend(tmp_path, monkeypatch, world):
        assert main(["check", "softmax", "--backend=paper", "--quick"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^softmax +paper@cpu +plain +not ported", out, re.MULTILINE)
    assert re.search(r"^softmax +paper@cpu +folded +passed", out, re.MULTILINE)


def test_check_says_what_comes_next(tmp_path):
    file = tmp_path / "mine.py"
    mark = "    # port softmax --from triton --to numba --variant {0}\n"
    body = '    raise NotImplementedError("{0}' + UNPORTED + 'its source is {0}")\n'
    file.write_text(
        "".join(f"def {n}(x):\n{(mark + b).format(n)}\n" for n, b in [("onerow", "    return x\n"), ("looped", body)])
    )
    command = f"python -m touchstone port softmax --from triton --to numba --variant onerow -o {file} --trace"
    report = check(
        "softmax", lambda x: x.softmax(-1).contiguous(), device="cpu", level="quick", isolate="none", dtypes=["float32"]
    )
    assert report.passed
    assert port.advice(file, "onerow", report) == [
        f"next: compare it with its source, races included: {command}",
        f"then: looped{UNPORTED}its source is looped",
    ]
    wrong = [outcome for outcome in report.outcomes if outcome.kind is Kind.CASE][3]
    wrong.status = "failed"
    found = check("softmax", lambda x: x * 0, device="cpu", level="quick", isolate="none", dtypes=["float32"]).findings
    wrong.findings = [finding for finding in found if finding.severity == "failure"][:1]
    assert port.advice(file, "onerow", report) == [
        f"next: see where it leaves its source: {command} --case {wrong.trial}"
    ]
    report.outcomes = [Outcome("a", Kind.CASE, "float32", "declined", reason=f"looped{UNPORTED}its source is looped")]
    assert port.advice(file, "looped", report) == []
    file.write_text("def onerow(x):\n    return x\n")
    assert port.advice(file, "onerow", report) == []


def test_nothing_unported_is_committed():
    for path in (registry.ROOT / "backends").rglob("*.py"):
        assert UNPORTED not in path.read_text(), path
        assert not port._MARK.search(path.read_text()), path


CASES = """
import json, sys
from touchstone.conformance.discovery import registry
from touchstone.conformance.porting import port, trace as porttrace
from touchstone.conformance.spec import cases as generate
variants = {"triton": "onerow", "cupy": "warp", "numba": "warp"}
case = next(c for c in generate.plan(registry.contract("softmax"), "default", 0).cases
            if c.dtype == "float32" and c.values == "normal" and 1 < c.size["rows"] < 99 and 2 <= c.size["cols"] <= 200)
found = {"case": case.id, **case.size}
for source in variants:
    for target in variants:
        if source != target:
            for file in (None, FOLDER + "/" + target + "_wrong.py"):
                name = variants[target] if file is None else "wrong"
                planned = port.plan("softmax", source, target, variants[source], file, name)
                trace = porttrace.trace(planned, case.id)
                found[f"{source} {target} {name}"] = [trace.agrees, str(trace)]
print(json.dumps(found))
"""
WRONG = {
    # the last column is not written
    "triton_wrong.py": """
import torch, triton, triton.language as tl

@triton.jit
def _kernel(x_ptr, y_ptr, x_row, x_col, cols, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=col < cols, other=float("-inf"))
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * cols + col, p / tl.sum(p, axis=0), mask=col < cols - 1)

def wrong(x):
    y = torch.empty(x.shape, dtype=x.dtype)
    _kernel[(x.shape[0],)](x, y, *x.stride(), x.shape[1], BLOCK=1024)
    return y
""",
    # a block is one thread, and the second row is twice what it should be
    "numba_wrong.py": """
import math
import torch
from numba import cuda, float32
from touchstone.backends.numba.runtime.launching import launch

@cuda.jit
def _kernel(x, y):
    row, l = cuda.blockIdx.x, float32(0)
    m = x[row, 0]
    for col in range(x.shape[1]):
        m = max(m, x[row, col])
    for col in range(x.shape[1]):
        l += math.exp(x[row, col] - m)
    for col in range(x.shape[1]):
        y[row, col] = math.exp(x[row, col] - m) / l * (2 if row == 1 else 1)

def wrong(x):
    y = torch.empty(x.shape, dtype=x.dtype)
    launch(_kernel, x.shape[0], 1, x, y)
    return y
""",
    "cupy_wrong.py": """
import torch
from touchstone.backends.cupy.runtime.module import Module
_module = Module(__file__, "wrong.cu")

def wrong(x):
    y = torch.empty(x.shape, dtype=x.dtype)
    _module.launch("softmax_wrong", x.shape[0], 32, x, y, x.shape[1], *x.stride(), dtype=x.dtype)
    return y
""",
    # it writes behind the end of y
    "wrong.cu": """
extern "C" __global__ void softmax_wrong(const ELEMENT* x, ELEMENT* y, int cols, long long x_row, long long x_col) {
    y[(long long)blockIdx.x * cols + cols + threadIdx.x * 100000] = x[blockIdx.x * x_row];
}
""",
}


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_trace_in_every_direction(tmp_path):
    """Variants of the repository agree with each other; of a wrong port the first tile is shown, with who wrote it in
    both."""
    for name in BACKENDS:
        if reason := registry.backend(name).why_not("cpu"):
            pytest.skip(reason)
    for name, text in WRONG.items():
        (tmp_path / name).write_text(text)
    script = f"FOLDER = {str(tmp_path)!r}\n" + CASES
    done = processes.run_python(
        ["-c", script], tmp_path, environment={"PYTHONPATH": str(registry.ROOT), "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows, cols = found.pop("rows"), found.pop("cols")
    case = found.pop("case")
    assert len(found) == 12
    variants = {"triton": "onerow", "cupy": "warp", "numba": "warp"}
    for (source, target), name in itertools.product(DIRECTIONS, ("right", "wrong")):
        agrees, text = found[f"{source} {target} {variants[target] if name == 'right' else 'wrong'}"]
        assert agrees is (name == "right"), text
        if name == "right":
            assert "AGREES on 1 case; right under " in text
            continue
        assert f"DIFFERS on {case} (seed 0)" in text
        own = r"program \(\d+, 0, 0\), line \d+ of softmax.py"
        thread = r"block \(\d+, 0, 0\), thread \(\d+, \d, 0\), line \d+ of (softmax|scalar).(cu|py)"
        theirs = own if source == "triton" else thread
        if target == "triton":
            assert f"y differs in {rows} of {rows * cols} elements" in text
            assert re.search(rf"first tile that differs: y\[0(:\d+)?, 0:{cols}\], [1-4] of its", text), text
            assert re.search(rf"{source}: +y\[0, {cols - 1}\] was written by {theirs}", text), text
            assert re.search(rf"triton: +y\[0, {cols - 1}\] was written by nobody", text), text
            assert "no thread wrote y[" in text
        elif target == "numba":
            assert f"y differs in {cols} of {rows * cols} elements: rows 1 of {rows}" in text
            assert re.search(rf"{source}: +y\[1, 0\] was written by {theirs}", text), text
            wrote = r"numba: +y\[1, 0\] was written by block \(1, 0, 0\), thread \(0, 0, 0\), line 16 of numba_wrong.py"
            assert re.search(wrote, text), text
        else:
            assert "cupy raises OutOfBounds: softmax_wrong (wrong.cu:3): block (0, 0, 0)" in text


@pytest.mark.slow
def test_importing_the_command_needs_no_kernel_library(tmp_path):
    script = (
        "import sys\nfor name in ('triton', 'cupy', 'numba'):\n    sys.modules[name] = None\n"
        "from touchstone.conformance.cli import main\n"
        "sys.exit(main(['port', 'softmax', '--from', 'triton', '--to', 'cupy', '-o', 'mine.py']))"
    )
    done = processes.run_python(["-c", script], tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.cu").is_file()
    assert sys.modules["touchstone.conformance.porting.port"]
