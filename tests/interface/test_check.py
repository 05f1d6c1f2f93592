"""`check`: its arguments, what it counts, its report, and the processes it can run in."""

import functools
import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch

from tests import processes
from touchstone import Report, check
from touchstone.conformance.discovery import registry
from touchstone.conformance.judging.judgement import DECLINED, FAILED, PASSED
from touchstone.conformance.judging.trials import Kind
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.narrowing import condition
from touchstone.reference.attention import torch_attention
from touchstone.reference.gated_mlp import torch_gated_mlp


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()


def quick(fn, op="softmax", **options) -> Report:
    return check(op, fn, **{"device": "cpu", "level": "quick", **options})


def failures(report: Report) -> set[str]:
    return {finding.check for finding in report.findings if finding.severity == "failure"}


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", "default"])
def test_a_correct_function_passes(level):
    report = quick(softmax, level=level)
    assert report.passed
    assert report.findings == []
    assert report.cases == len(report.outcomes) == report.planned > 10
    assert report.declined == 0
    assert 0.3 < report.worst <= 1
    assert set(report.not_run.values()) <= {0}
    assert str(report).splitlines()[-1].startswith("PASSED; judged on ")


def test_check_is_fast():
    """In this thread's processor time: the machine may be busy, and torch's other threads wait by spinning."""
    start = time.thread_time()
    quick(softmax, isolate="none")
    assert time.thread_time() - start <= 3


def test_the_device_may_be_left_out():
    assert (
        check("softmax", softmax, level="quick", dtypes=["float32"], where=lambda case: case.values == "normal").cases
        > 0
    )


@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (torch.zeros_like, Check.VALUES),
        (lambda x: torch.softmax(x, 0), Check.VALUES),
        (lambda x: torch.softmax(x, -1).double(), Check.DTYPE),
        (lambda x: softmax(x).t(), Check.SHAPE),
        (lambda x: x.copy_(softmax(x)), Check.INPUTS),
        (lambda x: None, Check.RETURNS),
        (lambda x: 1 / 0, Check.RAISED),
        (lambda x: softmax(x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())), Check.VALUES),
        (lambda x: softmax(x.as_strided(x.shape, x.stride(), x.storage_offset() // 32 * 32)), Check.VALUES),
        (lambda x: softmax(x.bfloat16()).to(x.dtype), Check.VALUES),
        (lambda x: (x.float().exp() / x.float().exp().sum(-1, keepdim=True)).to(x.dtype).contiguous(), Check.VALUES),
    ],
)
def test_a_wrong_function_does_not_pass(fn, found):
    report = quick(fn)
    assert not report.passed
    assert found in failures(report)
    assert "FAILED" in str(report).splitlines()[-1]


def test_a_function_that_declines_everything_does_not_pass():
    def declines(x):
        raise NotImplementedError("not today")

    report = quick(declines)
    assert not report.passed
    assert report.cases == 0
    assert report.declined == len(report.outcomes) > 0
    assert "nothing was judged" in report.summary()
    assert "declined (not today)" in report.summary()


def test_what_is_declined_is_counted():
    def up_to_100(x):
        if x.shape[1] > 100:
            raise NotImplementedError(f"{x.shape[1]} columns")
        return softmax(x)

    report = quick(up_to_100)
    assert report.passed
    assert report.declined > 0
    planned = report.cases - report.again
    said = f"judged on {planned} of {planned + report.declined} trials and on {report.again} in place of declined ones"
    assert said in report.summary()
    assert report.again > 0
    assert "columns" in report.summary()


@pytest.mark.parametrize(
    "narrowed",
    [
        {"dtypes": ["bfloat16"]},
        {"sizes": {"cols": [127]}},
        {"dtypes": ["float16"], "where": lambda case: case.size["cols"] > 50},
    ],
)
def test_many_calls_are_made_of_what_is_left(narrowed):
    """A result kept by shape is found whatever a check is narrowed to."""
    kept = {}

    def remembers(x):
        return kept.setdefault((x.shape, x.dtype, x.stride()), softmax(x)).clone()

    report = quick(remembers, **narrowed)
    assert {outcome.kind for outcome in report.outcomes if outcome.status == "failed"} >= {Kind.CALLS}, report


def test_where_dtypes_and_outputs_narrow_and_are_counted():
    whole = quick(softmax)
    report = quick(softmax, dtypes=["float16"])
    assert {o.dtype for o in report.outcomes} == {"float16"}
    assert report.not_run == {"left out by dtypes": whole.cases - report.cases}
    report = quick(softmax, where=lambda case: case.size["cols"] < 100 and case.layout["x"] == "contiguous")
    assert 0 < report.cases < whole.cases
    assert report.not_run == {"left out by where": whole.cases - report.cases}
    assert f"judged on {report.cases} of {whole.cases} trials, {whole.cases - report.cases} left out by where" in str(
        report
    )
    report = quick(softmax, sizes={"cols": [64, 10007]})
    assert report.not_run == {"left out by sizes": whole.cases - report.cases}
    cases = [outcome for outcome in report.outcomes if outcome.kind is Kind.CASE]
    assert {outcome.trial.split("-")[1].partition("x")[2] for outcome in cases} == {"64", "10007"}
    assert {outcome.trial for outcome in report.outcomes if outcome not in cases} == {"calls-float32-17x64"}
    nothing = quick(softmax, where=lambda case: False)
    assert not nothing.passed
    assert "nothing was judged" in str(nothing)


def only_silu(x, w_gate, w_up, w_down, *, activation):
    """Takes the activation for silu, whatever it is."""
    return torch_gated_mlp(*(t.float() for t in (x, w_gate, w_up, w_down)), activation="silu").to(x.dtype)


def only_contiguous(a, b):
    assert a.is_contiguous() and b.is_contiguous(), "the matrices must be contiguous"
    return (a.float() @ b.float()).to(a.dtype)


def only_whole(q, k, v, *, causal, scale):
    """Attention without a causal form."""
    assert not causal
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    o, lse = torch_attention(*(t.double() for t in (q, k, v)), causal=False, scale=scale)
    return o.to(q.dtype), lse.float()


@pytest.mark.parametrize(
    ("op", "fn", "where"),
    [
        ("gated_mlp", only_silu, "activation == 'silu'"),
        ("matmul", only_contiguous, "contiguous"),
        ("attention", only_whole, "not causal"),
    ],
)
def test_a_kernel_is_not_held_to_properties_that_call_what_is_left_out(op, fn, where):
    """The property of another order of hidden units calls with relu, that of the transposed product with transposes."""
    report = quick(fn, op=op, where=condition(where, registry.contract(op)), dtypes=["float32"], require=["values"])
    assert report.passed, str(report)
    held = {outcome.trial for outcome in report.outcomes if outcome.trial.startswith("property-")}
    assert len(held) == sum(prop.elsewhere is None for prop in registry.contract(op).properties)


def test_a_subset_of_outputs_leaves_out_the_properties():
    """Properties look at every output."""
    whole = quick(lambda x: (softmax(x), torch.logsumexp(x.double(), -1).float()), op="online_softmax")
    assert whole.passed
    report = quick(softmax, op="online_softmax", outputs=["y"])
    assert report.passed
    properties = len(registry.contract("online_softmax").properties) * 3
    assert report.not_run == {"properties left out by outputs": properties}
    assert report.cases == whole.cases - properties
    assert "outputs not judged: lse" in str(report)
    assert {name for o in report.outcomes for name in o.fractions} == {"y"}


def tf32_matmul(a, b):
    def rounded(x):
        return ((x.view(torch.int32) + 4096) & -8192).view(torch.float32)

    return rounded(a.contiguous()) @ rounded(b.contiguous())


@pytest.mark.slow
def test_a_declared_precision_is_judged_in_that_precision_and_said():
    assert Check.VALUES in failures(quick(tf32_matmul, op="matmul", dtypes=["float32"]))
    report = quick(tf32_matmul, op="matmul", dtypes=["float32"], compute="tf32")
    assert report.passed, str(report)
    assert "computes in tf32" in str(report)


@pytest.mark.parametrize("fn", [torch.matmul, torch.mm], ids=["matmul", "mm"])
def test_library_functions_with_names_of_their_own(fn):
    """torch.matmul(input, other): operands go by position."""
    assert quick(fn, op="matmul", dtypes=["float32"]).passed


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        (dict(op="softmaks"), ValueError, "op: 'softmaks' is not one of .*softmax.*; did you mean 'softmax'"),
        (dict(op=None), ValueError, "op: None"),
        (dict(fn="softmax"), TypeError, "fn: .*got str"),
        (dict(fn=None), TypeError, "fn: .*got NoneType"),
        (dict(device="gpu"), ValueError, "device: .*'cpu', 'cuda', got 'gpu'"),
        (dict(device=torch.device("cpu")), ValueError, "device: "),
        (dict(level="fast"), ValueError, "level: .*'quick', 'default', 'thorough', got 'fast'"),
        (dict(dtypes=["float64"]), ValueError, "dtypes: 'float64' is not one of float32, float16, bfloat16"),
        (dict(dtypes="float32"), ValueError, "dtypes: "),
        (dict(dtypes=[]), ValueError, "dtypes: .*non-empty"),
        (dict(dtypes=[torch.float32]), ValueError, "dtypes: torch.float32"),
        (dict(dtypes=5), ValueError, "dtypes: .*got 5"),
        (dict(dtypes=(d for d in ["float32"])), ValueError, "dtypes: "),
        (dict(where="x"), TypeError, "where: .*got str"),
        (dict(sizes={"col": 3}), ValueError, "sizes: 'col' is not one of rows, cols; did you mean 'cols'"),
        (dict(sizes={"cols": 31}), ValueError, "sizes: no case of softmax at level quick has cols=31; cols is 0, 1, "),
        (dict(sizes={"cols": "3"}), TypeError, "sizes: cols: expected whole numbers"),
        (dict(sizes=[3]), TypeError, "sizes: expected a dict"),
        (dict(outputs=["z"]), ValueError, "outputs: 'z' is not one of y"),
        (dict(outputs="y"), ValueError, "outputs: "),
        (dict(outputs=[]), ValueError, "outputs: "),
        (dict(compute="fp8"), ValueError, "compute: .*got 'fp8'"),
        (dict(require="values"), ValueError, "require: expected a non-empty sequence out of values, layouts, special"),
        (dict(require=[]), ValueError, "require: .*non-empty"),
        (dict(require=["speed"]), ValueError, "require: 'speed' is not one of values, layouts"),
        (dict(fn=lambda: None), TypeError, r"fn: <lambda>\(\): softmax is called as fn\(x\); too many positional"),
        (dict(fn=lambda x, w: x), TypeError, r"\(x, w\): softmax is called as fn\(x\); missing a required .*'w'"),
        (
            dict(op="rms_norm", fn=lambda x, w: x),
            TypeError,
            r"\(x, w\): rms_norm is called as fn\(x, weight, eps=1e-06\); got an unexpected keyword argument 'eps'",
        ),
        (dict(isolate="thread"), ValueError, "isolate: .*got 'thread'"),
        (dict(timeout=0), ValueError, "timeout: .*got 0"),
        (dict(timeout="60"), ValueError, "timeout: .*got '60'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_argument_is_named(options, error, named):
    called = []

    def fn(x):
        called.append(x)
        return softmax(x)

    given = {"op": "softmax", "fn": fn, "device": "cpu", "level": "quick", "isolate": "none", **options}
    with pytest.raises(error, match=named):
        check(given.pop("op"), given.pop("fn"), **given)
    assert called == []


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(
        sys.modules["touchstone.conformance.check"], "cuda_unavailable", lambda: "the driver is on holiday"
    )
    with pytest.raises(
        ValueError, match="device: 'cuda' cannot be used here: the driver is on holiday; pass device='cpu'"
    ):
        check("softmax", softmax, device="cuda")
    assert (
        check("softmax", softmax, level="quick", dtypes=["float32"], where=lambda c: c.values == "normal").target
        == "user@cpu"
    )


def test_the_report_goes_through_json():
    report = quick(lambda x: torch.zeros_like(x))
    record = json.loads(report.to_json())
    assert record["passed"] is False
    assert record["versions"]["torch"] == torch.__version__ or record["versions"]["torch"] in torch.__version__
    (one,) = record["reports"]
    assert [(o["trial"], o["status"]) for o in one["outcomes"]] == [(o.trial, o.status) for o in report.outcomes]
    assert [found["id"] for found in one["findings"]] == [found.id for found in report.findings]
    assert (one["op"], one["target"]) == ("softmax", "user@cpu")
    counts = one["coverage"]
    assert (counts["judged"], counts["declined"], counts["not_run"]) == (report.cases, report.declined, 0)


def test_the_report_reads_well():
    text = str(quick(lambda x: torch.zeros_like(x)))
    lines = text.splitlines()
    assert "softmax: " in lines[0]
    assert "user@cpu, level quick, seed 0" in lines[0]
    assert lines[1].split() == ["output", "float32", "float16", "bfloat16"]
    assert re.search(r"^\d+ trials: \[[0-9a-f]{8}\] values: y: ", text, re.MULTILINE)
    assert "expected" in text
    assert "seed 0" in text
    assert lines[-1].startswith("FAILED: ")


def test_what_is_required_decides():
    """A kernel that ignores strides: the report says what holds, and `require` what counts."""

    def ignores_strides(x):
        return softmax(x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset()))

    whole = quick(ignores_strides)
    assert not whole.passed
    assert {name for name, each in whole.standing.items() if each.verdict == "fails"} == {"layouts"}
    assert {f.requirement for f in whole.failures} == {"layouts"}
    some = quick(ignores_strides, require=["values", "special", "empty", "contract"])
    assert some.passed
    assert some.failures == [] and some.findings
    assert "not required: " in str(some)
    assert not quick(ignores_strides, require=("values", "layouts")).passed


def test_a_kernel_that_cannot_run_here_is_not_failed():
    from touchstone.backends import NotRun

    def lacks(x):
        if not x.numel():
            return torch.empty_like(x)
        raise NotRun("libdevice.j0 is not interpreted")

    report = quick(lacks)
    assert (report.verdict, report.passed) == ("not run", False)
    assert str(report).splitlines()[-1].startswith("NOT RUN: libdevice.j0 is not interpreted; judged on 2 of ")
    assert json.loads(report.to_json())["verdict"] == "not run"


def test_the_findings_of_one_cause_are_shown_once():
    report = quick(lambda x: 1 / 0)
    text = str(report)
    assert text.count("ZeroDivisionError") == 1  # on empty operands too, which another requirement is about
    assert re.search(r"^\d\d trials: \[[0-9a-f]{8}\] raised: ZeroDivisionError", text, re.MULTILINE)
    assert len(report.findings) == len(report.outcomes)


def zeros(x):
    return torch.zeros_like(x)


def test_each_finding_can_be_repeated_by_its_last_line(tmp_path, monkeypatch):
    """A lambda cannot be imported again: the line is the call that meets the finding."""
    monkeypatch.chdir(tmp_path)  # where the findings are kept
    report = quick(zeros)
    lines = [line for line in str(report).splitlines() if line.startswith("    repeat: ")]
    assert f"    repeat: python -m touchstone replay {report.failures[0].id} --anywhere" in lines
    report = quick(lambda x: torch.zeros_like(x))
    line = next(line for line in str(report).splitlines() if line.startswith("    repeat: "))
    named = re.search(r"case.id == '(.+)'\)", line)
    assert named and named[1] in {outcome.trial for outcome in report.outcomes}


def test_notes_are_shown_and_do_not_fail():
    """Elementwise operations of torch pass on the strides of their input."""

    def keeps_strides(x):
        e = (x.float() - x.float().amax(-1, keepdim=True) if x.numel() else x.float()).exp()
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)

    report = quick(keeps_strides, where=lambda case: case.layout["x"] in ("contiguous", "transposed"))
    assert report.passed
    assert any(f.severity == "note" for f in report.findings)
    assert re.search(r"^note: (\d+ trials: )?\[", str(report), re.MULTILINE)


def test_seeds_change_the_inputs_and_are_reported():
    one, two = quick(softmax, seed=1), quick(softmax, seed=2)
    assert one.worst != two.worst
    assert "seed 1" in str(one)
    assert quick(softmax, seed=1).worst == one.worst


def test_findings_have_the_same_ids_every_time():
    first, again = (quick(torch.zeros_like) for _ in range(2))
    ids = [finding.id for finding in first.findings]
    assert ids == [finding.id for finding in again.findings]
    assert len(set(ids)) == len(ids) > 10


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["fork", "spawn"])
def test_a_child_process_gives_the_same_report(isolate):
    factor = 2.0  # a closure, in a lambda, with a lambda for `where`
    here, there = (
        quick(lambda x: factor * softmax(x), dtypes=["float32"], where=lambda case: case.size["rows"] < 10, isolate=way)
        for way in ("none", isolate)
    )
    assert there.outcomes == here.outcomes
    assert there.not_run == here.not_run
    assert failures(there) == {Check.VALUES}


def test_what_one_launcher_asks_of_cuda_is_not_told_of_the_next():
    def asks(x):
        torch.cuda.current_device()
        return softmax(x)

    first, second = (quick(fn, dtypes=["float32"], isolate="none") for fn in (asks, softmax))
    assert "torch.cuda.current_device" in first.notes[0]
    assert second.notes == []


def test_a_child_process_takes_partials_and_modules():
    assert quick(functools.partial(torch.softmax, dim=-1), dtypes=["float32"], isolate="fork").passed
    assert quick(torch.nn.Softmax(dim=-1), dtypes=["float32"], isolate="fork").passed


def test_a_function_that_cannot_travel_is_refused_with_the_way_out():
    lock = __import__("threading").RLock()

    def held(x):
        with lock:
            return softmax(x)

    with pytest.raises(ValueError, match=r"(?s)fn: .*held cannot be sent to another process .*isolate='none'"):
        quick(held, isolate="spawn")
    assert quick(held, isolate="fork", dtypes=["float32"]).passed


def test_statuses_add_up():
    def mixed(x):
        if x.dtype == torch.float16:
            raise NotImplementedError("no halves")
        return softmax(x) if x.dtype == torch.float32 else torch.zeros_like(x)

    report = quick(mixed)
    by_dtype = {
        dtype: {o.status for o in report.outcomes if o.dtype == dtype} for dtype in ("float32", "float16", "bfloat16")
    }
    assert by_dtype["float32"] == {PASSED}
    assert by_dtype["float16"] == {DECLINED}
    assert FAILED in by_dtype["bfloat16"]
    assert report.worst_of("float16") is None
    assert report.worst_of("float32") <= 1 < report.worst_of("bfloat16")


KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, x_row, x_col, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=col < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * cols + col, e / tl.sum(e, axis=0), mask=col < cols)


def softmax(x):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        _kernel[(x.shape[0],)](x, y, *x.stride(), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


def tail_lost(x):
    y = softmax(x)
    y[..., -1:] = 0
    return y
"""
CHECK = 'check("softmax", {fn}, device="cpu", level="quick", dtypes=["float32"], sizes={{"rows": [3, 17]}})'


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_script_with_triton_kernels_on_the_cpu(tmp_path):
    """Run by a process that compiles: the file is imported afresh by one that interprets. Without a guard."""
    calls = f"print({CHECK.format(fn='softmax')})\nprint({CHECK.format(fn='tail_lost')})\n"
    calls += "def late(x):\n    return softmax(x)\n"
    calls += f"try:\n    {CHECK.format(fn='late')}\nexcept ValueError as error:\n    print(error)\n"
    (tmp_path / "script.py").write_text(KERNEL + "\n\nfrom touchstone import check\n\n" + calls)
    done = processes.run_python(["script.py"], tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 0, done.stderr
    right, _, wrong = done.stdout.partition("softmax: tail_lost")
    assert "softmax: softmax on user@cpu" in right
    assert "PASSED; judged on" in right
    assert "values: y: " in wrong
    assert "FAILED: " in wrong
    assert "script.py calls check before it defines 'late'" in wrong
    assert '__name__ == "__main__"' in wrong


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_guarded_main_block_does_not_run_again(tmp_path):
    main = (
        '\n\nif __name__ == "__main__":\n    from touchstone import check\n\n    print("once")\n    print({}.passed)\n'
    )
    (tmp_path / "kernels.py").write_text(KERNEL)
    (tmp_path / "script.py").write_text("from kernels import softmax\n" + main.format(CHECK.format(fn="softmax")))
    done = processes.run_python(["script.py"], tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.stdout.split() == ["once", "True"], done.stderr


USER_TEST = """

def test_softmax():
    from touchstone import check

    report = {}
    assert report.passed, str(report)
    assert report.cases > 5
"""


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_users_own_test_file(tmp_path):
    """Without Touchstone's conftest and options."""
    (tmp_path / "test_mine.py").write_text(KERNEL + USER_TEST.format(CHECK.format(fn="softmax")))
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = processes.run_python(arguments, tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert "1 passed" in done.stdout, done.stdout + done.stderr


REFUSALS = """
import functools, linecache, sys
sys.path.insert(0, {folder!r})
import kernels
from touchstone import check

def refused(fn, **options):
    try:
        print("PASSED?", check("softmax", fn, device="cpu", level="quick", **options).passed)
    except ValueError as error:
        print("REFUSED", error)

refused(lambda x: kernels.softmax(x))
def outer():
    softmax = kernels.softmax
    def inner(x):
        return softmax(x)
    return inner
refused(outer())
refused(functools.partial(kernels.softmax))
refused(kernels.softmax, isolate="none")
source = "from kernels import softmax\\ndef cell(x):\\n    return softmax(x)\\n"
name = "/tmp/ipykernel_1/2.py"
linecache.cache[name] = (len(source), None, source.splitlines(True), name)
exec(compile(source, name, "exec"))
refused(cell)
exec("def typed(x):\\n    return softmax(x)\\n")
refused(typed)
"""


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_functions_that_another_process_cannot_import_are_refused_with_the_way_out(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNEL)
    (tmp_path / "refusals.py").write_text(REFUSALS.format(folder=str(tmp_path)))
    done = processes.run_python(["refusals.py"], tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    wanted = [
        "fn: <lambda> is a lambda or is defined inside a function",
        "fn: outer.<locals>.inner is a lambda or is defined inside a function",
        "fn: partial is a partial",
        "isolate: 'none' is not available here: softmax reaches a triton kernel",
        "fn: cell is defined in a notebook cell or at a prompt",
        "fn: typed is defined in a notebook cell or at a prompt",
    ]
    assert len(told) == len(wanted), done.stdout
    for line, text in zip(told, wanted, strict=True):
        assert line.startswith("REFUSED ")
        assert text in line
    assert 'os.environ["TRITON_INTERPRET"] = "1"' in told[4]
    assert "at the top level of a file" in told[0]


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_kernel_file_from_the_command_line(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNEL)
    arguments = [
        "-m",
        "touchstone",
        "check",
        "softmax",
        "--kernel",
        "kernels.py:tail_lost",
        "--device",
        "cpu",
        "--quick",
        "--dtypes=float32",
        "--sizes=rows=3,17",
    ]
    done = processes.run_python(arguments, tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "softmax: tail_lost on user@cpu" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("FAILED")


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_a_kernel_file_under_pytest(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNEL)
    run = "-q -p no:cacheprovider --op=softmax --device=cpu --quick --kernel=kernels.py:softmax"
    some = ["--dtypes=float32", "--sizes=rows=3,17"]
    arguments = [
        "-m",
        "pytest",
        str(registry.ROOT / "touchstone" / "conformance" / "suite" / "test_kernels.py"),
        *run.split(),
        *some,
    ]
    done = processes.run_python(arguments, tmp_path, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "user@cpu" in done.stdout


SHARES = """
import os
import torch

def test_a_share():
    print("asked for", os.environ["OMP_NUM_THREADS"], "and took", torch.get_num_threads())
    assert False
"""


@pytest.mark.level("default")
@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, "3"])
def test_workers_share_the_machine_s_cores(tmp_path, chosen):
    """Two workers; a number that the user has chosen stays."""
    (tmp_path / "test_shares.py").write_text(SHARES)
    environment = processes.clean_environment(PYTHONPATH=str(registry.ROOT))
    environment.pop("OMP_NUM_THREADS", None)
    if chosen:
        environment["OMP_NUM_THREADS"] = chosen
    command = [sys.executable, "-m", "pytest", "-p", "touchstone.pytest", "-p", "no:cacheprovider", "-n", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    told = f"asked for {chosen} and took" if chosen else f"asked for {share} and took {share}"
    assert told in done.stdout, done.stdout + done.stderr
