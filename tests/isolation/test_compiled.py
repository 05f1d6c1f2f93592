"""Kernels of a user's function that are interpreted, put through the compiler in a fresh process."""

import importlib.util
import itertools
import re
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import pytest

from touchstone.conformance.cli import main
from touchstone.conformance.discovery.importing import FileFunction, interpreted_by
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import compiled
from touchstone.conformance.judging.judgement import DECLINED, FAILED, PASSED
from touchstone.conformance.judging.trials import Compiled, trials_of
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.narrowing import Narrowing

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

SOFTMAX = """
import torch
import triton
import triton.language as tl

LARGEST = 8192


@triton.jit
def row_softmax(x, y, cols, stride_row, stride_col, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride_row + col.to(tl.int64) * stride_col, col < cols, -float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    value /= tl.sum(value, 0)
    tl.store(y + row * cols + col, value, col < cols)


def softmax(x):
    y = torch.empty(x.shape, dtype=x.dtype, device="cuda")
    if x.shape[1] > LARGEST:
        raise NotImplementedError("cols")
    if y.numel():
        row_softmax[(len(x),)](x, y, x.shape[1], *x.stride(), BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
"""
EXP = "    value = tl.exp("
INNER = "@triton.jit\ndef inner(a):\n    return a + LARGEST\n\n\n@triton.jit\ndef row_softmax"
REFUSED = {
    "a global number": (
        {EXP: "    col += LARGEST - 8192\n" + EXP},
        r"row_softmax \(mine.py:14\) for sm_90: .* global variable LARGEST .* in `col \+= LARGEST - 8192`",
    ),
    "a comparison of three": ({EXP: "    if 0 < cols < 9000:\n        row += 0\n" + EXP}, r"mine.py:14\).*comparison"),
    "another type in a loop": (
        {EXP: "    total = 0\n    for i in range(cols):\n        total += 0.5\n" + EXP},
        r"mine.py:15\).*total has initial type int32 but is re-assigned to fp32",
    ),
    "exp of float16": ({EXP: "    tl.exp(value.to(tl.float16))\n" + EXP}, r"mine.py:14\).*fp16"),
    "a function that the kernel calls": (
        {EXP: "    col = inner(col) - 8192\n" + EXP, "@triton.jit\ndef row_softmax": INNER},
        r"row_softmax \(mine.py:19\) .* in `return a \+ LARGEST`",
    ),
    "warps": (
        {"BLOCK=triton": "num_warps=3, BLOCK=triton"},
        r"a launch \(mine.py:24\).*num_warps must be a power of 2",
    ),
    "a NumPy number": (
        {"x.shape[1], *x": "numpy.int32(x.shape[1]), *x", "import torch": "import numpy\nimport torch"},
        r"a launch \(mine.py:25\).*numpy.int32",
    ),
    "an option that is none": ({"BLOCK=triton": "warps=4, BLOCK=triton"}, r"a launch \(mine.py:24\).*warps"),
}
CONFIGS = '@triton.autotune([triton.Config({"UNIT": 1}), triton.Config({"UNIT": 3})], key=["cols"])\n@triton.jit'
ASSERTS = "@triton.jit\ndef one(n: tl.constexpr):\n    tl.static_assert(n == 1)\n\n\n"
TAKEN = {
    "as it is": {},
    "a launcher that looks at what it got": {"    return y\n": "    assert y.sum() == len(x)\n    return y\n"},
    "a configuration that an assertion leaves out": {
        "@triton.jit": CONFIGS,
        "BLOCK: tl.constexpr": "BLOCK: tl.constexpr, UNIT: tl.constexpr",
        "    row = tl": "    tl.static_assert(UNIT == 1)\n    row = tl",
    },
    "one that an assertion of a function leaves out": {
        "@triton.jit": f"{ASSERTS}{CONFIGS}",
        "BLOCK: tl.constexpr": "BLOCK: tl.constexpr, UNIT: tl.constexpr",
        "    row = tl": "    one(UNIT)\n    row = tl",
    },
    "a file that asks the driver about the GPU": {
        "LARGEST = 8192": "LARGEST = 8192\nDRIVER = triton.runtime.driver.active\nDRIVER.get_active_torch_device()",
        "    if y.numel():": '    assert DRIVER.utils.get_device_properties(0)["warpSize"] == 32\n    if y.numel():',
    },
}


def subject(folder, changes, **options):
    text = SOFTMAX
    for was, now in changes.items():
        assert was in text
        text = text.replace(was, now, 1)
    (folder / "mine.py").write_text(text)
    return Subject("softmax", FileFunction(folder / "mine.py", "softmax"), "softmax", "user@cpu", "cpu", **options)


def trials(of, level="quick", **options):
    return [trial for trial in trials_of(of, level, **options)[0] if isinstance(trial, Compiled)]


def judged(folder, changes, **options):
    one = subject(folder, changes, arch="sm_90", **options)
    (trial,) = trials(one)
    return compiled.outcome(one, trial)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_compiler_refuses_fails_whatever_is_required(tmp_path, name):
    changes, said = REFUSED[name]
    outcome = judged(tmp_path, changes)
    assert outcome.status == FAILED and outcome.findings
    assert all(found.check == Check.COMPILES and found.requirement is None for found in outcome.findings)
    assert re.search(said, outcome.findings[0].message), outcome.findings[0].message


@pytest.mark.parametrize("name", TAKEN)
def test_what_compiles_passes(tmp_path, name):
    outcome = judged(tmp_path, TAKEN[name])
    assert (outcome.status, outcome.findings, outcome.instruments) == (PASSED, [], ["compiler"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"    if y.numel():": "    if y.numel() < 0:", "LARGEST = 8192": "LARGEST = 1 << 20"},
            "not compiled: the calls launch nothing",
        ),
        ({"    y = torch": "    raise OSError('no licence')\n    y = torch"}, "not compiled: OSError: no licence"),
        (
            {"LARGEST = 8192": "LARGEST = 8192\nimport os, sys; os._exit(3)"},
            "not compiled: the process ended with status 3",
        ),
    ],
)
def test_what_cannot_be_told_is_declined_with_its_reason(tmp_path, changes, reason):
    outcome = judged(tmp_path, changes)
    assert outcome.status == DECLINED and reason in outcome.reason and not outcome.findings
    assert outcome.single  # and does not count against coverage


def test_a_function_that_no_file_has_at_its_top_level_is_not_compiled(tmp_path):
    one = subject(tmp_path, {}, arch="sm_90")
    nowhere = replace(one, fn=lambda x: x)
    outcome = compiled.outcome(nowhere, trials(one)[0])
    assert outcome.status == DECLINED and "is not found at the top level of a file" in outcome.reason


def test_who_has_such_a_trial(tmp_path):
    assert len(trials(subject(tmp_path, {}))) == len(trials(subject(tmp_path, {}), "default")) == 1
    assert len(trials(subject(tmp_path, {}, untrusted=True))) == 1 and not trials(subject(tmp_path, {}, own=True))
    assert not trials(replace(subject(tmp_path, {}), device="cuda"))
    for line in ("import torch, triton", "from triton.runtime import driver", "    import triton as t"):
        (tmp_path / "mine.py").write_text(f"def softmax(x):\n    pass\n\n\nif 1:\n    pass\n{line}\n")
        assert interpreted_by("triton", FileFunction(tmp_path / "mine.py", "softmax"))
    (tmp_path / "mine.py").write_text('"""After a kernel in triton."""\ndef softmax(x):\n    return x.softmax(1)\n')
    assert not trials(Subject("softmax", FileFunction(tmp_path / "mine.py", "softmax"), "softmax", "user@cpu", "cpu"))


def test_the_cases_are_one_of_each_dtype_that_a_narrowing_leaves(tmp_path):
    (trial,) = trials(subject(tmp_path, {}))
    assert {case.dtype for case in trial.cases} == {"float32", "float16", "bfloat16"} and len(trial.cases) <= 3 + 3 * 2
    for dtype, name in itertools.product(("float32", "float16", "bfloat16"), ("rows", "cols")):
        assert max(case.size[name] for case in trial.cases if case.dtype == dtype) > 1000, (dtype, name)
    (left,) = trials(subject(tmp_path, {}), narrowing=Narrowing(where=lambda case: case.size["rows"] > 40))
    assert {case.dtype for case in left.cases} >= {"float32", "bfloat16"}
    assert all(case.size["rows"] > 40 for case in left.cases)
    assert not trials(subject(tmp_path, {}), narrowing=Narrowing(where=lambda case: False))


PRODUCT = """
import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k, (m[:, None] < M) & (k < K), 0.0)
        y = tl.load(b + k[:, None] * N + n, (k[:, None] < K) & (n < N), 0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + m[:, None] * N + n, acc, (m[:, None] < M) & (n < N))


def matmul(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.zeros((M, N), dtype=a.dtype, device=a.device)
    tile = 128 if K > 500 else 32
    if c.numel():
        grid = triton.cdiv(M, tile), triton.cdiv(N, tile)
        product[grid](a.contiguous(), b.contiguous(), c, M, N, K, tile, tile, tile, num_stages=STAGES)
    return c
"""


@pytest.mark.parametrize(("stages", "beyond"), [(4, True), (1, False)])
def test_tiles_of_the_largest_sizes_have_to_fit_the_shared_memory(tmp_path, stages, beyond):
    (tmp_path / "mine.py").write_text(PRODUCT.replace("STAGES", str(stages)))
    one = Subject("matmul", FileFunction(tmp_path / "mine.py", "matmul"), "matmul", "user@cpu", "cpu", arch="sm_90")
    outcome = compiled.outcome(one, trials(one)[0])
    assert outcome.status == (FAILED if beyond else PASSED), outcome.reason
    said = [found.message for found in outcome.findings]
    assert len(said) == beyond
    assert all(
        re.match(r"product\(.*BM=128.*\) for sm_90: needs \d+ bytes of shared memory; sm_90 has", s) for s in said
    )


def test_a_check_fails_by_it_and_a_replay_says_it_again(tmp_path, monkeypatch, capsys):
    changes, _ = REFUSED["a global number"]
    subject(tmp_path, changes)
    monkeypatch.chdir(tmp_path)
    check = ["check", "softmax", "--kernel", "mine.py:softmax", "--device", "cpu", "--quick"]
    assert main([*check, "--require", "empty"]) == 1
    found = re.search(r"\[(\w+)\] compiles: row_softmax \(mine.py:14\)", capsys.readouterr().out)
    assert main(["replay", found[1]]) == 1
    assert "global variable LARGEST" in capsys.readouterr().out
    assert main(["replay", found[1], "--minimise"]) == 2
    assert "there is nothing to make smaller" in capsys.readouterr().err


def test_what_declines_the_cases_of_least_work_is_compiled_on_one_that_it_takes(tmp_path, monkeypatch, capsys):
    changes, _ = REFUSED["a global number"]
    subject(tmp_path, {**changes, "    if x.shape[1] > LARGEST": "    if x.shape[1] % 64 or x.shape[1] > LARGEST"})
    monkeypatch.chdir(tmp_path)
    check = ["check", "softmax", "--kernel", "mine.py:softmax", "--device", "cpu", "--quick", "--dtypes", "float32"]
    assert main(check) == 1
    said = capsys.readouterr().out
    assert "compiles: row_softmax (mine.py:14)" in said
    assert main(["replay", re.search(r"\[(\w+)\] compiles", said)[1]]) == 1


def test_a_launch_that_the_compiler_cannot_be_asked_about_is_no_launch_that_it_took(tmp_path, monkeypatch):
    outside = {"import torch": "import torch\nfrom triton.compiler.compiler import ASTSource\nASTSource.make_ir = None"}
    outcome = judged(tmp_path, outside)
    assert outcome.status == DECLINED and re.search(r"not compiled: row_softmax\(x: .*TypeError", outcome.reason)


def test_the_line_of_a_kernel_within_a_function_and_below_several_lines_of_decorators(tmp_path):
    text = SOFTMAX.replace(EXP, "    col += LARGEST - 8192\n" + EXP)
    head, launcher = text.split("\n\n\ndef softmax")
    imports, kernel = head.split("@triton.jit\n")
    within = (
        f"def made():\n    @triton.heuristics(\n        {{}}\n    )\n{indent(f'@triton.jit{chr(10)}{kernel}', '    ')}"
    )
    (tmp_path / "mine.py").write_text(
        f"{imports}{within}\n    return row_softmax\n\n\nrow_softmax = made()\n\n\ndef softmax{launcher}"
    )
    one = Subject("softmax", FileFunction(tmp_path / "mine.py", "softmax"), "softmax", "user@cpu", "cpu", arch="sm_90")
    (finding,) = compiled.outcome(one, trials(one)[0]).findings
    line = (tmp_path / "mine.py").read_text().splitlines().index("        col += LARGEST - 8192") + 1
    assert f"row_softmax (mine.py:{line})" in finding.message


# What nobody has read


def test_an_untrusted_kernel_is_compiled_in_a_sandbox(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_JUDGE", "1")
    confined = {"LARGEST = 8192": "LARGEST = 8192\nimport os, socket\nassert 'OF_THE_JUDGE' not in os.environ"}
    outcome = judged(tmp_path, confined, untrusted=True)
    assert (outcome.status, outcome.findings, outcome.instruments) == (PASSED, [], ["compiler"]), outcome.reason
    assert "not compiled: AssertionError" in judged(tmp_path, confined).reason
    reaching = {"LARGEST = 8192": "LARGEST = 8192\nimport socket\nsocket.socket()"}
    assert "PermissionError" in judged(tmp_path, reaching, untrusted=True).reason
    changes, said = REFUSED["a global number"]
    monkeypatch.chdir(tmp_path)  # a confined process has another current folder
    there = replace(subject(tmp_path, changes, untrusted=True), fn=FileFunction(Path("mine.py"), "softmax"))
    outcome = compiled.outcome(there, trials(there)[0])
    assert outcome.status == FAILED and re.search(said, outcome.findings[0].message)


def test_where_nothing_can_be_confined_nothing_is_run(tmp_path, monkeypatch):
    def refuse(*_):
        raise CannotRun("untrusted: no")

    monkeypatch.setattr(compiled, "confined_to_compile", refuse)
    outcome = judged(tmp_path, {}, untrusted=True)
    assert outcome.status == DECLINED and outcome.reason.endswith("not compiled: untrusted: no")


FORGED = """
import json, os, pickle, struct

class Payload:
    def __reduce__(self):
        return (open, ({there!r}, "w"))

def send(data):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, struct.pack("!i", len(data)) + data)
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("pickle.dumps(('answer', Payload()))", "a message that is not JSON"),
        ("b'[]'", "an answer of another form"),
        ('b\'{{"refused": [[1]], "untold": ""}}\'', "an answer of another form"),
        ('b\'{{"refused": 3, "untold": ""}}\'', "an answer of another form"),
        ("b' ' * (1 << 21)", "closed the connection to the judge"),
    ],
)
def test_no_forged_answer_is_believed(tmp_path, message, reason):
    there = tmp_path / "opened by the judge"
    text = f"{FORGED}\nsend({message})\nimport time; time.sleep(60)".format(there=str(there))
    outcome = judged(tmp_path, {"LARGEST = 8192": f"LARGEST = 8192\n{text}"}, untrusted="pickle" in message)
    assert outcome.status == DECLINED and reason in outcome.reason, outcome.reason
    assert not there.exists()


def test_what_is_said_is_cut_and_shown(tmp_path):
    many = "json.dumps(dict(refused=[chr(27) + '[2J' + 'x' * 9000] * 40, untold='')).encode()"
    text = f"{FORGED}\nsend({many})\nimport time; time.sleep(60)".format(there="")
    outcome = judged(tmp_path, {"LARGEST = 8192": f"LARGEST = 8192\n{text}"})
    assert len(outcome.findings) == compiled.NAMED
    assert outcome.findings[0].message.startswith(r"\x1b[2Jxxx") and len(outcome.findings[0].message) < 5000


def test_a_process_that_only_says_that_it_is_alive_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "LONGEST", 4.0)
    text = f"{FORGED}\nimport time\nwhile True:\n    send(b'\"alive\"')\n    time.sleep(0.1)".format(there="")
    outcome = judged(tmp_path, {"LARGEST = 8192": f"LARGEST = 8192\n{text}"})
    assert outcome.status == DECLINED and "no answer in" in outcome.reason
