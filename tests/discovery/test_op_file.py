"""A user's own op from one file: what it takes, that it is judged as a built-in op is, and what mistakes in it are
told."""

import functools
import json
import re
import textwrap
from pathlib import Path

import pytest
import torch

from tests import processes
from touchstone import check, load_op
from touchstone.conformance.cli import main
from touchstone.conformance.discovery import opfile, registry, selection
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.judging.judgement import FAILED
from touchstone.conformance.spec import compare
from touchstone.conformance.spec.budget import simple
from touchstone.conformance.spec.cases import LEVELS, plan
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Contract, Operand, Output

L2_NORMALIZE = """
from touchstone.conformance.spec import values
from touchstone.conformance.spec.budget import simple
from touchstone.conformance.spec.contract import Contract, Property, Operand, Output


def l2_normalize(x, *, eps=1e-6):
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def expect(inputs, params, *, dtype, compute=None):
    return {"y": simple(l2_normalize(inputs["x"], **params), terms=inputs["x"].shape[-1])}


def odd(call, arguments, outputs, case):
    turned = call(**{**arguments, "x": -arguments["x"]})[0]
    return None if (turned == -outputs[0]).all() else "-x does not give -y"


contract = Contract(
    operands={"x": Operand("rows cols")},
    outputs={"y": Output("rows cols")},
    sizes=[{"rows": 3, "cols": 33}, {"rows": 1, "cols": 1}, {"rows": 0, "cols": 5}, {"rows": 5, "cols": 1025}],
    values={**values.COMMON, "tiny": values.each(values.tiny)},
    params={"eps": (1e-6, 1e-2)},
    expect=expect,
    properties=[Property("odd", odd)],
)
"""

KERNEL = """
import torch


def right(x, *, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype).contiguous()


def longest(x, *, eps):
    return torch.nn.functional.normalize(x.float(), dim=-1, eps=eps).to(x.dtype).contiguous()


def even(x, *, eps):
    return right(x.abs(), eps=eps)
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """What a test loads goes with it."""
    monkeypatch.setattr(registry, "_own", {})
    yield
    registry.contract.cache_clear()


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "l2_normalize.py").write_text(L2_NORMALIZE)
    (tmp_path / "mine.py").write_text(KERNEL)
    return tmp_path


@pytest.fixture
def mine(folder):
    space: dict = {}
    exec(KERNEL, space)
    return space


def test_an_op_is_judged_as_a_built_in_one_is(folder, mine):
    assert load_op(folder / "l2_normalize.py") == "l2_normalize"
    assert registry.contract("l2_normalize").name == "l2_normalize"
    assert registry.op_file("l2_normalize") == folder / "l2_normalize.py"
    assert "l2_normalize" not in registry.ops()
    assert len({len(plan(registry.contract("l2_normalize"), level).cases) for level in LEVELS}) == 3
    report = check("l2_normalize", mine["right"], device="cpu")
    assert report.passed, report
    assert report.cases > 40
    assert 0.3 < report.worst_of("bfloat16") <= 1
    assert {o.trial for o in report.outcomes} >= {"property-odd-float32", "property-odd-bfloat16"}


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["none", "fork", "spawn"])
def test_wrong_kernels_are_found_out_wherever_they_run(folder, mine, isolate):
    name = load_op(folder / "l2_normalize.py")
    report = check(name, mine["longest"], device="cpu", level="quick", isolate=isolate)
    assert {f.check for f in report.findings if f.severity == "failure"} == {Check.VALUES}
    trials = {o.trial for o in report.outcomes if o.status == FAILED}
    assert any("tiny" in trial or "eps=0.01" in trial for trial in trials)


def test_generic_faults_belong_to_it_too(folder):
    name = load_op(folder / "l2_normalize.py")
    planted = registry.planted(name)
    assert len(planted) > 5
    report = check(name, planted[0].make(), device="cpu", level="quick")
    assert not report.passed


def test_the_commands(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    shared = ["--op-file", "l2_normalize.py", "--device", "cpu", "--quick"]
    assert main(["check", "l2_normalize", *shared, "--kernel", "mine.py:right"]) == 0
    assert "l2_normalize: right on user@cpu, level quick" in capsys.readouterr().out
    assert main(["check", *shared, "--kernel", "mine.py:longest"]) == 1
    assert "] values: y: " in capsys.readouterr().out
    assert main(["check", "softmax", *shared, "--kernel", "mine.py:right"]) == 2
    assert "--op-file=l2_normalize.py: holds the op 'l2_normalize', not 'softmax'" in capsys.readouterr().err
    assert main(["check", *shared]) == 2
    assert "there are no kernels of 'l2_normalize' here; give one by --kernel" in capsys.readouterr().err
    assert main(["check", "--op-file", "nowhere.py", "--kernel", "mine.py:right"]) == 2
    assert "--op-file=nowhere.py: there is no Python file" in capsys.readouterr().err


@pytest.mark.slow
def test_pytest_from_another_folder(folder):
    plugin = ["-p", "touchstone.conformance.suite.plugin", "--pyargs", "touchstone.conformance.suite.test_kernels"]
    options = ["--op-file=l2_normalize.py", "--op=l2_normalize", "--device=cpu", "--quick", "-q"]
    environment = {"PYTHONPATH": str(registry.ROOT), "OMP_NUM_THREADS": "1"}
    arguments = ["-m", "pytest", *plugin, *options, "--kernel=mine.py:longest"]
    done = processes.run_python(arguments, folder, environment=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^l2_normalize +user@cpu +longest +[1-9]\d* +[1-9]\d* +0 ", done.stdout, re.MULTILINE)
    assert "test_kernel[l2_normalize-user@cpu-longest-" in done.stdout


@pytest.mark.slow
def test_one_file_can_hold_op_kernel_and_check(folder):
    """The file loads itself below its contract: what is above is the op."""
    path = folder / "all_in_one.py"
    path.write_text(
        L2_NORMALIZE
        + KERNEL
        + textwrap.dedent("""
            from touchstone import check, load_op

            print(check(load_op(__file__), right, device="cpu", level="quick").passed)
            print(check("all_in_one", longest, device="cpu", level="quick", isolate="spawn").passed)
        """)
    )
    done = processes.run_python([str(path)], folder, environment={"PYTHONPATH": str(registry.ROOT)})
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_file_is_read_afresh(folder, mine):
    name = load_op(folder / "l2_normalize.py")
    assert check(name, mine["right"], device="cpu", level="quick", dtypes=["float32"]).passed
    (folder / "l2_normalize.py").write_text(L2_NORMALIZE.replace("return x /", "return 2 * x /"))
    assert load_op(folder / "l2_normalize.py") == name
    assert not check(name, mine["right"], device="cpu", level="quick", dtypes=["float32"]).passed


def test_names(folder):
    for stem, match in [
        ("softmax", "softmax.py: 'softmax' is a built-in op; give the file another name"),
        ("_hidden", "_hidden.py: the stem is the op's name; expected a Python identifier"),
        ("two words", "two words.py: the stem is the op's name"),
    ]:
        (folder / f"{stem}.py").write_text(L2_NORMALIZE)
        with pytest.raises(ValueError, match=f"^op file: {match}"):
            load_op(folder / f"{stem}.py")
    with pytest.raises(ValueError, match="^op file: there is no Python file .*nowhere.py"):
        load_op(folder / "nowhere.py")
    load_op(folder / "l2_normalize.py")
    (folder / "other").mkdir()
    (folder / "other" / "l2_normalize.py").write_text(L2_NORMALIZE)
    with pytest.raises(ValueError, match="^op file: l2_normalize.py: 'l2_normalize' is loaded from .* already"):
        load_op(folder / "other" / "l2_normalize.py")
    with pytest.raises(ValueError, match="^op: 'l2' is not one of l2_normalize, "):
        registry.contract("l2")
    with pytest.raises(UsageError, match="^--op-file=.*softmax.py: softmax.py: 'softmax' is a built-in op"):
        selection.select(op_file=str(folder / "softmax.py"), kernel="mine.py:right", environ={})


REGULAR = """    regular=__import__("touchstone.conformance.spec.contract", fromlist=["Regular"]).Regular({}, {}),
    properties="""
ALSO = """    also={{"one": __import__("touchstone.conformance.spec.contract", fromlist=["Also"]).Also({})}},
    properties="""
MISTAKES = [
    ("contract = Contract(", "contrakt = Contract(", "expected `contract`, .*, got nothing of that name"),
    (
        "contract = Contract(",
        "contract = dict(",
        "expected `contract`, a touchstone.conformance.spec.contract.Contract, got a dict",
    ),
    ("import values", "import valleys", r"does not import: ImportError: .*valleys.* \(line 2\)"),
    ("    expect=expect,\n", "", "does not import: TypeError: .*'expect'"),
    ("    sizes=", "    size=", "does not import: TypeError: .*'size'"),
    ('{"x": Operand("rows cols")}', '["x"]', "contract.operands: expected a dict of names and Operands"),
    ('Operand("rows cols")', '"rows cols"', "contract.operands: x: expected an Operand, got str"),
    ('Operand("rows cols")', 'Operand("rows cows")', r"contract.sizes: \[0\]: no cows, an axis of operands or outputs"),
    ('Output("rows cols")', 'Output("rows heads")', r"contract.sizes: \[0\]: no heads"),
    ('{"rows": 1, "cols": 1}', '{"rows": 1}', r"contract.sizes: \[1\]: no cols"),
    ('"cols": 1025', '"cols": -1', r"contract.sizes: \[3\]: cols: expected a whole number of at least 0, got -1"),
    ("    properties=", "    regular=64,\n    properties=", "contract.regular: expected a Regular, got int"),
    ("    properties=", REGULAR.format('[{"rows": 64}]', "{}"), r"contract.regular: \[0\]: no cols, an axis of"),
    (
        "    properties=",
        REGULAR.format("[]", '{"epps": (0,)}'),
        "contract.regular: params: 'epps' is not one of eps; did you",
    ),
    ("    properties=", "    also=64,\n    properties=", "contract.also: expected a dict of names and Alsos"),
    ("    properties=", '    also={"one": 64},\n    properties=', "contract.also: one: expected an Also, got int"),
    ("    properties=", ALSO.format('{"rows": 64}'), r"contract.also: \[0\]: no cols, an axis of"),
    (
        "    properties=",
        ALSO.format('{"rows": 1, "cols": 2}, "tine"'),
        "contract.also: one: values: expected a function",
    ),
    (
        "    properties=",
        ALSO.format('{"rows": 1, "cols": 2}, params={"epps": 0}'),
        "contract.also: one: params: 'epps' is not one of eps; did you",
    ),
    (
        "    properties=",
        ALSO.format('{"rows": 1, "cols": 2}, layouts={"z": "step"}'),
        "contract.also: one: layouts: 'z' is not one of x",
    ),
    ("    properties=", REGULAR.format("[]", '{"eps": 0}'), "contract.regular: params: eps: expected a list of values"),
    (
        'Operand("rows cols")',
        'Operand("rows cols", ("tilted",))',
        "contract.operands: x: layouts: 'tilted' is not one of",
    ),
    ('Operand("rows cols")', 'Operand("rows cols", "step")', "contract.operands: x: layouts: expected a list of names"),
    ('Operand("rows cols")', 'Operand("cols", ("transposed",))', "layouts: 'transposed' needs more axes than 'cols'"),
    ("    properties=", '    dtypes=("float8",),\n    properties=', "contract.dtypes: 'float8' is not one of float32"),
    ("values.each(values.tiny)", "3", "contract.values: tiny: expected a function of a Draw, got int"),
    ("values.each(values.tiny)", "lambda draw: draw.nothing", r"contract.values\['tiny'\]: raised AttributeError"),
    ("values.each(values.tiny)", "lambda draw: draw.normal((3, 33))", r"values\['tiny'\]: expected a dict of tensors"),
    ("values.each(values.tiny)", "lambda draw: {}", r"values\['tiny'\]: expected the operands x, got none"),
    (
        "values.each(values.tiny)",
        'lambda draw: {"x": draw.normal((33, 3))}',
        r"values\['tiny'\]: x: expected shape \(3, 33\), which is 'rows cols', got \(33, 3\) \(for float32-3x33-tiny",
    ),
    ("values.each(values.tiny)", 'lambda draw: {"x": 1.0}', r"values\['tiny'\]: x: expected a tensor, got float"),
    ("(1e-6, 1e-2)", "1e-6", "contract.params: eps: expected a list of values, the default first, got 1e-06"),
    ('params={"eps"', 'params={"x"', "contract.params: x is an operand too"),
    (
        "dtype, compute=None",
        "dtype",
        "contract.expect: its signature is .*: got an unexpected keyword argument 'compute'",
    ),
    ('{"y": simple', '{"z": simple', "contract.expect: expected the outputs y, got z"),
    ('{"y": simple(', '{"y": (', "does not import: SyntaxError"),
    (
        'simple(l2_normalize(inputs["x"], **params), terms=inputs["x"].shape[-1])',
        'l2_normalize(inputs["x"], **params)',
        "contract.expect: y: expected an Expected .*, got Tensor",
    ),
    ("simple(l2_normalize(", "len(l2_normalize(", "contract.expect: raised TypeError: .*len.* for float32-3x33-normal"),
    ("keepdim=True", "keepdim=False", r"contract.expect: raised RuntimeError: .*size of tensor.* \(line 8\)"),
    ("x / (", "x[:, 0] / (", "contract.expect: "),
    (
        "x / (x.square().sum(-1, keepdim=True) + eps).sqrt()",
        "x.square().sum(-1)",
        r"y: answer: expected shape \(3, 33\)",
    ),
    ("return x /", "x = x.float()\n    return x /", "contract.expect: y: answer: expected float64, got torch.float32"),
    ("terms=inputs", "condition=torch.full((3, 33), float('nan')), terms=inputs", "NameError"),
    ('terms=inputs["x"].shape[-1]', 'condition=inputs["x"][:, :5]', "parts, rounding or extra do not fit .*3, 33"),
    ('terms=inputs["x"].shape[-1]', "terms=-9", "y: parts: expected at least 0 terms, got -9"),
    (
        '    properties=[Property("odd", odd)]',
        "    properties=[odd]",
        "contract.properties: expected Properties, got function",
    ),
    (
        'Property("odd", odd)',
        'Property("odd", odd, "binary")',
        "contract.properties: odd: values: 'binary' is no family of values",
    ),
    (
        "    properties=",
        '    exact={"binary": ["y"]},\n    properties=',
        "contract.exact: 'binary' is no family of values; there are normal",
    ),
    (
        "    properties=",
        '    exact={"tiny": ["z"]},\n    properties=',
        r"contract.exact: tiny: expected outputs, got \['z'\]",
    ),
    ("    properties=", "    invalid=[3],\n    properties=", "contract.invalid: expected Invalids, got int"),
    (
        "    properties=",
        "    valid=lambda case: False,\n    properties=",
        "contract.valid: rules out float32-3x33-normal",
    ),
    ("    properties=", "    valid=lambda case: case.cols,\n    properties=", "contract.valid: raised AttributeError"),
    ("    properties=", "    flops=7,\n    properties=", "contract.flops: expected a function"),
    (
        "    properties=",
        '    flops=lambda size, params: size["D"],\n    properties=',
        "contract.flops: raised KeyError: 'D'",
    ),
]


@pytest.mark.parametrize(("old", "new", "match"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_named_with_its_file_and_field(folder, old, new, match):
    assert L2_NORMALIZE.count(old) >= 1
    path = folder / "my_op.py"
    path.write_text(L2_NORMALIZE.replace(old, new))
    with pytest.raises(ValueError, match=r"^op file: my_op\.py|^my_op\.py: contract\.") as raised:
        load_op(path)
    assert raised.match(match)
    assert registry.op_file("my_op") is None


def made(**changes) -> Contract:
    """A contract with a derived operand: y = x + twice, twice = 2·x."""
    contract = Contract(
        operands={"x": Operand("n", ("contiguous",)), "twice": Operand("n", ("contiguous",), derived=True)},
        outputs={"y": Output("n")},
        sizes=[{"n": 3}],
        values={"normal": lambda draw: {"x": draw.normal(draw.shape("x"))}},
        derive=lambda exact, params: {"twice": 2 * exact["x"]},
        expect=lambda inputs, params, *, dtype, compute=None: {"y": simple(inputs["x"] + inputs["twice"])},
    )
    for name, value in changes.items():
        setattr(contract, name, value)
    return contract


def test_derived_operands():
    opfile.validate(made(), "here")
    for derive, match in [
        (None, "contract.derive: computes the derived operands, twice; it is missing"),
        (lambda exact, params: {}, "contract.derive: expected the operands twice, got none"),
        (lambda exact, params: {"twice": exact["x"][1:]}, r"contract.derive: twice: expected shape \(3,\)"),
        (lambda exact, params: {"twice": exact["z"]}, "contract.derive: raised KeyError: 'z'"),
    ]:
        with pytest.raises(ValueError, match=f"^here: {match}"):
            opfile.validate(made(derive=derive), "here")


def test_what_is_left_out_of_the_cost_model_counts_each_operand_once():
    contract = made()
    assert contract.flops({"n": 5}, {}) == 15
    assert contract.bytes({"n": 5}, {}, 2) == 30
    assert made(flops=lambda size, params: 7.0).flops({"n": 5}, {}) == 7


@pytest.mark.slow
@pytest.mark.parametrize("op", registry.ops())
def test_the_built_in_contracts_are_valid(op):
    opfile.validate(registry.contract(op), op)


def test_a_simple_budget():
    """That of float32 sums: right ones pass in any order, those with bfloat16 operands or a half accumulator do not."""
    x = torch.randn(20, 4001, dtype=torch.float64).float().double()
    expected = simple(x.sum(-1), terms=4001, condition=x.abs().sum(-1))
    for right in (x.float().sum(-1), x.float().flip(-1).cumsum(-1)[:, -1], x.sum(-1).float()):
        assert compare.compare(right, expected, torch.float32).ok
    assert not compare.compare(x.bfloat16().double().sum(-1).float(), expected, torch.float32).ok
    half = functools.reduce(torch.add, x.half().unbind(-1))
    assert not compare.compare(half.float(), expected, torch.float32).ok
    assert torch.equal(simple(x).parts[0][1], x.abs())
    assert simple(x, dtype=torch.float32).dtype is torch.float32


ENDING = {"at once": "import os\nos._exit(0)\n", "as another program": "import os\nos.execv('/bin/true', ['true'])\n"}


@pytest.mark.parametrize("how", ENDING)
def test_no_trusted_file_ends_a_command_with_a_status_of_its_own(folder, how):
    """And what it prints is printed once, where it ends nothing."""
    own = folder / "l2_normalize.py"
    kept = own.read_text()
    (folder / "given.py").write_text(ENDING[how] + "def f(x):\n    return x\n\n\ndef inputs():\n    return []\n")
    (folder / "problem.py").write_text(ENDING[how] + "class Model:\n    pass\n")
    line = {"id": "a", "op": "l2_normalize.py", "source": KERNEL, "function": "right", "sizes": {"cols": 33}}
    (folder / "all.jsonl").write_text(json.dumps({**line, "dtypes": ["float32"]}) + "\n")
    own.write_text(ENDING[how] + kept)
    reference = ["--reference=given.py:f", "--inputs=given.py:inputs"]
    for words in (
        ["judge", "all.jsonl", "--device=cpu", "--out=results.jsonl"],
        ["check", "--op-file=l2_normalize.py", "--kernel=mine.py:right", "--device=cpu"],
        ["check", "--kernel=mine.py:right", "--device=cpu", *reference],
        ["describe", "given.py:f", "--inputs=given.py:inputs"],
        ["describe", "--kernelbench=problem.py"],
    ):
        done = processes.run_touchstone(["-m", "touchstone", *words], folder)
        assert done.returncode == 2 and "does not import: it ends the process that imports it, with " in done.stderr
    words = ["-m", "pytest", "-q", "-p", "touchstone.pytest", "--kernel=mine.py:right", "--device=cpu", *reference]
    done = processes.run_touchstone(words, folder)
    assert done.returncode not in (0, 5) and "it ends the process that imports it" in done.stdout + done.stderr
    own.write_text("print('read')\n" + kept)
    done = processes.run_touchstone(
        ["-m", "touchstone", "check", "--op-file=l2_normalize.py", "--kernel=mine.py:right", "--device=cpu", "--quick"],
        folder,
    )
    assert done.returncode == 0 and done.stdout.count("read\n") == 1, done.stdout + done.stderr
