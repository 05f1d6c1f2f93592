"""Kernels judged by a function of torch from the command line and from pytest."""

import re
import textwrap
from dataclasses import replace

import pytest
import torch

from tests.processes import output_of, run_touchstone
from touchstone.conformance.cli import main
from touchstone.conformance.derived import modules
from touchstone.conformance.discovery import derivation, problems, registry
from touchstone.conformance.spec.cases import plain_case, plan

FUNCTIONS = """
import torch

def l2(x, eps):
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()

def get_inputs():
    return [torch.randn(24, 40), 1e-6]

def noisy(x, eps):
    return x + torch.randn_like(x)

def right(x, eps):
    y = x.float()
    return (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + eps)).to(x.dtype).contiguous()

def wrong(x, eps):
    return torch.nn.functional.normalize(x.float(), dim=-1, eps=eps).to(x.dtype).contiguous()

class Layer(torch.nn.Module):
    pass
"""
PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, in_features, out_features, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale = scale

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.scale

batch_size = 128
in_features = 1024
out_features = 512
scale = 2.0

def get_inputs():
    return [torch.randn(batch_size, in_features)]

def get_init_inputs():
    return [in_features, out_features, scale]
"""
KERNELS = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale = scale

    def forward(self, x):
        y = x.float() @ self.linear.weight.float().t() + self.linear.bias.float()
        return (y.clamp_min(0) * self.scale).to(x.dtype)

class Multiples(ModelNew):
    def __init__(self, in_features, out_features, scale):
        super().__init__(in_features, out_features, scale)
        if in_features % 8 or out_features % 8:
            raise ValueError("multiples of 8")

class Wrong(ModelNew):
    def forward(self, x):
        y = x.float() @ self.linear.weight.float().t()
        return (y.clamp_min(0) * self.scale).to(x.dtype)

class Renamed(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.layer = nn.Linear(*sizes[:2])

class Unbuilt(nn.Module):
    def __init__(self):
        super().__init__()

def function(x):
    return x
"""
REFERENCE = ["--reference", "functions.py:l2", "--inputs", "functions.py:get_inputs"]
PROBLEMS = ["--kernelbench", "problem.py"]
QUICK = ["--device=cpu", "--quick", "--dtypes=float32"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, text in {"functions": FUNCTIONS, "problem": PROBLEM, "kernels": KERNELS}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    (tmp_path / "half.py").write_text("class Model:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.level("default")
def test_a_kernel_is_judged_by_a_function(capsys):
    assert main(["check", *REFERENCE, "--kernel", "functions.py:right", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "PASSED" in out and "this contract rejects 12 of 12 wrong versions of the reference" in out
    assert main(["check", *REFERENCE, "--kernel", "functions.py:wrong", *QUICK]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_cases_and_values_are_the_same_wherever_the_reference_lies(folder):
    drawn = []
    for place in ("one", "another"):
        (folder / place).mkdir()
        path = folder / place / "functions.py"
        path.write_text((folder / "functions.py").read_text())
        op = derivation.load_files(f"{path}:l2", f"{path}:get_inputs", level="quick").stem
        contract = registry.contract(op)
        case = plain_case(contract, "float32", "normal")
        cases = [(c.id, c.seed) for c in plan(contract, "quick").cases]
        drawn.append(
            (op, cases, contract.build(case).exact["x"], contract.build(replace(case, altered="x")).exact["x"])
        )
    (one, cases, *values), (another, same, *others) = drawn
    assert one != another and cases == same
    assert all(map(torch.equal, values, others)) and not torch.equal(*values)


def test_a_module_is_judged_by_a_problem_with_the_parameters_of_its_model(capsys):
    problems.small.cache_clear()
    assert main(["check", *PROBLEMS, "--kernel", "kernels.py:ModelNew", *QUICK]) == 0
    assert problems.small.cache_info().misses == 1
    assert "ModelNew on user@cpu" in capsys.readouterr().out
    assert main(["check", *PROBLEMS, "--kernel", "kernels.py:Wrong", *QUICK]) == 1


def test_a_problem_is_built_with_other_sizes_too(folder):
    model, _ = problems.small(folder / "problem.py")
    contract = derivation.of_problem("problem.py")
    weight = contract.operands["linear_weight"].axes.split()
    shapes = {tuple(size[letter] for letter in weight) for size in contract.sizes}
    own = tuple(model.linear.weight.shape)
    assert {own, (37, own[1]), (own[0], 37), (own[0] + 1, own[1])} <= shapes
    contract.name = "problem"
    size = next(size for size in contract.sizes if tuple(size[n] for n in weight) == (37, own[1]))
    inputs = contract.build(plain_case(contract, "float32", "normal", size=size))
    x, w, b = (inputs.exact[name] for name in contract.names)
    assert w.shape == (37, own[1])
    torch.testing.assert_close(contract.expected(inputs)["y"].answer, torch.relu(x @ w.t() + b) * 2)


def test_a_kernel_has_the_sizes_and_tensors_of_the_model_that_its_file_repeats(folder):
    text = PROBLEM.replace("self.scale = scale", "self.scale, self.start = scale, torch.randn(batch_size, 1)")
    text = text.replace("self.linear(x)", "self.linear(x) + self.start")
    (folder / "started.py").write_text(textwrap.dedent(text))
    text = text.replace("class Model(", "class ModelNew(").replace("__init__()", "__init__(), torch.rand(1)")
    (folder / "kernel.py").write_text(textwrap.dedent(text))
    kernel = problems.kernel_of("kernel.py", "ModelNew", "started.py")
    model, (x,) = problems.small(folder / "started.py")
    assert len(x) < 128
    for one, (given,) in ((model, [x]), *modules.siblings(model)):
        torch.testing.assert_close(kernel(given, **modules.state_of(one)), one(given))


def test_a_problem_whose_class_needs_some_of_its_sizes_keeps_them_however_large_it_is(folder):
    text = PROBLEM.replace("nn.Linear(in_features, out_features)", "nn.Linear(1024, 600)").replace("512", "2048")
    (folder / "large.py").write_text(textwrap.dedent(text))
    model, (x,) = problems.small(folder / "large.py")
    assert model.linear.weight.numel() > 10 * problems.LARGEST
    assert x.shape[0] < 9 and x.shape[1] == 1024


RECURRENT = """
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layers = nn.GRU(features, features, 6, bidirectional=True)

    def forward(self, x):
        return self.layers(x)[0]

def get_inputs():
    return [torch.randn(512, 10, 64)]

def get_init_inputs():
    return [64]
"""


@pytest.mark.level("default")
def test_a_recurrent_problem_gets_few_steps(folder, monkeypatch):
    """Each step costs as much time as many elements do: where no size is small enough, the one of fewest steps is. It
    is not built with single sizes as they were then, which can be no smaller, and what has run is not sketched."""
    (folder / "recurrent.py").write_text("import torch\nimport torch.nn as nn\n" + RECURRENT)
    changes, build = [], problems._built

    def built(tree, path, change, run=False):
        changes.append(change)
        return build(tree, path, change, run)

    monkeypatch.setattr(problems, "_built", built)
    monkeypatch.setattr(problems, "_goes_together", None)
    _, (x,) = problems.small(folder / "recurrent.py")
    assert len(x) <= 16
    assert {len(change) for change in changes} == {3}


DERIVING = """
import sys
from touchstone.conformance.derived import selftest
from touchstone.conformance.discovery import derivation
contract = derivation.of_problem("large.py")
contract.name = "problem"
assert selftest.examine(contract, 4).strength.real
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.level("default")
def test_the_compiler_of_torch_is_not_imported(folder):
    """It takes as long as half of the rest: neither modes that see every op need it, nor sizes that are far too large,
    where they are run without values."""
    text = PROBLEM.replace("self.linear(x)", "nn.functional.layer_norm(self.linear(x), (out_features,))")
    (folder / "large.py").write_text(textwrap.dedent(text).replace("= 1024", "= 1048576"))
    assert output_of(DERIVING, folder).strip() == "False"


def test_a_small_problem_keeps_its_sizes(folder):
    text = textwrap.dedent(PROBLEM).replace("= 1024", "= 96").replace("= 512", "= 150")
    (folder / "little.py").write_text(text)
    model, (x,) = problems.small(folder / "little.py")
    assert x.shape == (128, 96) and model.linear.weight.shape == (150, 96)
    assert {(37, 96), (150, 37)} <= {tuple(other.linear.weight.shape) for other, _ in modules.siblings(model)}


def test_a_file_that_is_no_problem_is_named(folder, capsys):
    (folder / "none.py").write_text(textwrap.dedent(PROBLEM).replace("class Model", "class Other"))
    assert main(["describe", "--kernelbench", "none.py"]) == 2
    message = capsys.readouterr().err
    assert "--kernelbench" in message and "none.py" in message and "it defines no Model" in message


def test_sizes_that_differ_still_do_when_they_are_smaller(folder):
    """As many groups as channels would leave a group norm nothing but its bias."""
    linear = "nn.Linear(in_features, out_features)"
    text = PROBLEM.replace(linear, f"nn.Sequential({linear}, nn.GroupNorm(scale, out_features))")
    text = text.replace("1024", "256").replace("scale = 2.0", "scale = 32")
    (folder / "grouped.py").write_text(textwrap.dedent(text))
    model, _ = problems.small(folder / "grouped.py")
    assert model.linear[1].num_groups < model.linear[1].num_channels < 512


def test_sizes_of_inputs_alone_are_made_smaller_before_those_of_the_model(folder):
    """By name, where one of the model is the same number, in assignments of several too."""
    text = textwrap.dedent(PROBLEM).replace("nn.Linear(in_features, out_features)", "nn.Conv2d(in_features, 64, 3)")
    text = text.replace("in_features = 1024", "in_features, height, width = 32, 64, 64").replace("512", "64")
    text = text.replace("batch_size, in_features)", "batch_size, in_features, height, width)")
    (folder / "image.py").write_text(text.replace("batch_size = 128", "batch_size = 64"))
    model, (x,) = problems.small(folder / "image.py")
    assert model.linear.weight.shape == (64, 32, 3, 3) and x.shape[1] == 32
    assert 3 < x.shape[2] == x.shape[3] < 33 and x.shape[0] == x.shape[2] and x.numel() <= problems.LARGEST


@pytest.mark.level("default")
def test_a_kernel_that_does_not_build_with_other_sizes_declines_them(capsys):
    assert main(["check", *PROBLEMS, "--kernel", "kernels.py:Multiples", *QUICK]) == 0
    assert "declined" in capsys.readouterr().out


def test_a_description_is_printed(capsys):
    assert main(["describe", "functions.py:l2", "--inputs", "functions.py:get_inputs", "--mutants", "2"]) == 0
    assert "l2, called as fn(x, eps)" in capsys.readouterr().out
    assert main(["describe", *PROBLEMS, "--mutants", "2"]) == 0
    out = capsys.readouterr().out
    assert "linear_weight: (C, D)" in out and "C = " in out  # sizes of the code, made smaller, stay


RIGHT = ["--kernel", "functions.py:right"]
MISTAKES = {
    "no inputs": (["--reference", "functions.py:l2", *RIGHT], "--reference: goes with --inputs"),
    "inputs alone": (["--inputs", "functions.py:get_inputs"], "--inputs: goes with --reference"),
    "no colon": (["--reference", "functions.py", *REFERENCE[2:], *RIGHT], "expected file.py:fun"),
    "no file": (["--reference", "gone.py:l2", *REFERENCE[2:], *RIGHT], "no Python file gone.py"),
    "no name": (["--reference", "functions.py:l3", *REFERENCE[2:], *RIGHT], "--reference: .*l3"),
    "no such inputs": ([*REFERENCE[:3], "functions.py:inputs", *RIGHT], "--inputs: .*'inputs'"),
    "a class": (["--reference", "functions.py:Layer", *REFERENCE[2:], *RIGHT], "is a class"),
    "an op too": (["softmax", *REFERENCE, *RIGHT], "--reference: goes without the name of an op"),
    "both": ([*REFERENCE, *PROBLEMS, *RIGHT], "--reference and --kernelbench: give one of them"),
    "no kernel": (REFERENCE, "--reference: needs --kernel"),
    "refused": (["--reference", "functions.py:noisy", *REFERENCE[2:], *RIGHT], "draws random numbers: aten.randn_like"),
    "no problem": (
        ["--kernelbench", "gone.py", "--kernel", "kernels.py:ModelNew"],
        "--kernelbench: there is no Python",
    ),
    "half a problem": (["--kernelbench", "half.py", "--kernel", "kernels.py:ModelNew"], "defines no get_inputs"),
    "other parameters": ([*PROBLEMS, "--kernel", "kernels.py:Renamed"], "--kernel: .*does not take the reference's"),
    "does not build": ([*PROBLEMS, "--kernel", "kernels.py:Unbuilt"], "--kernel: Unbuilt does not build"),
    "no module": ([*PROBLEMS, "--kernel", "kernels.py:function"], "--kernel: function of .* is no class of modules"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name, capsys):
    arguments, message = MISTAKES[name]
    assert main(["check", *arguments, "--device=cpu", "--quick"]) == 2
    assert re.search(message, capsys.readouterr().err, re.DOTALL)


def test_a_mistake_in_a_description_is_named(capsys):
    assert main(["describe"]) == 2
    assert "expected an op, FILE.py:FUNCTION with --inputs" in capsys.readouterr().err
    assert main(["describe", *REFERENCE[1:], "--mutants", "-1"]) == 2
    assert "--mutants: expected a whole number" in capsys.readouterr().err


@pytest.mark.level("default")
@pytest.mark.slow
def test_pytest_takes_a_reference(folder):
    options = ["-q", "-p", "no:cacheprovider", "-p", "touchstone.pytest", *QUICK]
    done = run_touchstone(["-m", "pytest", *options, *REFERENCE, "--kernel", "functions.py:right"], folder)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout
    done = run_touchstone(["-m", "pytest", *options, *REFERENCE, "--kernel", "functions.py:wrong"], folder)
    assert done.returncode == 1 and "failed" in done.stdout
    done = run_touchstone(["-m", "pytest", *options, *REFERENCE[:2], "--kernel", "functions.py:wrong"], folder)
    assert done.returncode == 4 and "--reference: goes with --inputs" in done.stderr
