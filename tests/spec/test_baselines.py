"""What the bench compares with: a baseline does once what is not timed, and its call reads the arguments anew."""

import pytest
import torch

from tests.fixed import changeable
from touchstone.conformance.spec import baselines
from touchstone.conformance.spec.baselines import Baseline, autograd, compiled, eager, library


def test_a_function_reads_its_arguments_in_each_call():
    made = eager("twice", lambda x: {"y": 2 * x}, needs="numpy", dtypes=("float32",))
    assert (made.name, made.needs, made.dtypes, made.compiles, made.devices) == (
        "twice",
        "numpy",
        ("float32",),
        False,
        ("cpu", "cuda"),
    )
    x = torch.ones(3)
    call = made.make({"x": x})
    assert call()["y"].tolist() == [2, 2, 2]
    x.fill_(4)
    assert call()["y"].tolist() == [8, 8, 8]


def test_what_is_compiled_is_so_for_these_shapes(monkeypatch):
    asked = []

    def compile(fn, **options):
        asked.append(options)
        return fn

    monkeypatch.setattr(torch, "compile", compile)
    made = compiled(lambda x: {"y": 2 * x}, devices=("cuda",))
    assert made.compiles and made.name == "torch.compile" and made.devices == ("cuda",) and not asked
    call = made.make({"x": torch.ones(2)})
    assert asked == [{"dynamic": False, "fullgraph": True}]
    call()
    call()
    assert len(asked) == 1 and call()["y"].tolist() == [2, 2]


def backward(**options):
    made = []

    def forward(x, w, bias, dy, scale):
        made.append(1)
        assert not dy.requires_grad
        return x * w * scale if bias is None else x * w * scale + bias

    return autograd("autograd", forward, {"dx": "x", "dw": "w", "dbias": "bias"}, **options), made


def test_a_gradient_is_that_of_a_graph_that_is_kept():
    baseline, made = backward()
    x, w, dy = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([1.0, 10.0])
    with torch.no_grad():  # as the bench is
        call = baseline.make({"x": x, "w": w, "bias": None, "dy": dy, "scale": 2.0})
        first = call()
    assert made == [1] and first.keys() == {"dx", "dw"}  # of what was not given there is none
    assert first["dx"].tolist() == [6, 80] and first["dw"].tolist() == [2, 40]
    dy.fill_(1)
    assert call()["dx"].tolist() == [6, 8] and made == [1]
    assert not (x.requires_grad or w.requires_grad) and not baseline.compiles


def test_operands_of_the_forward_pass_that_a_gradient_has_not():
    baseline, _ = backward(more=lambda arguments: {"scale": 3.0}, upstream="dy", slow=True)
    assert baseline.compiles
    ones = torch.ones(2)
    found = baseline.make({"x": ones, "w": ones, "bias": ones, "dy": ones})()
    assert found["dx"].tolist() == [3, 3] and found["dbias"].tolist() == [1, 1]


def test_a_gradient_through_the_compiler(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda fn, **options: asked.append(options) or fn)
    monkeypatch.setattr(baselines, "_graph_kept", lambda: asked.append("kept") or torch.enable_grad())
    baseline, _ = backward(compile=True)
    ones = torch.ones(2)
    baseline.make({"x": ones, "w": ones, "bias": None, "dy": ones, "scale": 1.0})()
    assert baseline.compiles and asked == [{"dynamic": False}, "kept"]


def test_a_graph_that_runs_again_keeps_its_memory():
    config = library("torch._functorch.config")
    with config.patch(donated_buffer=True):
        with baselines._graph_kept():
            assert config.donated_buffer is False
        assert config.donated_buffer is True


def test_a_package_is_imported_where_it_is_used():
    assert library("math").sqrt(4) == 2
    with pytest.raises(ImportError):
        library("nothing_of_this_name")
    assert Baseline("x", lambda arguments: lambda: {}).dtypes is None


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Baseline, baselines.Bench) == []
