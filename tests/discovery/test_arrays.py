"""`arrays=`: kernels on NumPy arrays and on a backend's. What they get is the judge's memory, what they return is
judged."""

import importlib.util
import sys
import types

import ml_dtypes
import numpy as np
import pytest
import torch

from tests import targets
from touchstone import check
from touchstone.conformance.discovery import arrays, selection
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import DTYPES

NUMPY = arrays.library("numpy")


def softmax(x: np.ndarray) -> np.ndarray:
    x32 = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        e = np.exp(x32 - x32.max(-1, keepdims=True, initial=-np.inf))
    return np.ascontiguousarray((e / e.sum(-1, keepdims=True)).astype(x.dtype))


def judged(fn, **options):
    return check("softmax", fn, **{"level": "quick", "arrays": "numpy", "isolate": "none", **options})


def failures(report) -> dict[str, str]:
    return {f.check: f.message for f in report.findings if f.severity == "failure"}


@pytest.mark.parametrize("layout", [*layouts.MATRIX, "sliced"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_an_array_is_the_memory_of_the_tensor(dtype, layout):
    placed = layouts.place(torch.randn(5, 33).to(dtype), layout, "cpu")
    tensor = placed.view
    array = NUMPY.to_array(tensor)
    assert type(array) is np.ndarray
    assert array.dtype == {torch.bfloat16: ml_dtypes.bfloat16}.get(dtype, str(dtype).removeprefix("torch."))
    assert array.shape == tuple(tensor.shape)
    assert array.strides == tuple(stride * dtype.itemsize for stride in tensor.stride())
    assert array.ctypes.data == tensor.data_ptr()
    assert np.array_equal(array.astype(np.float64), tensor.double().numpy())
    back = NUMPY.to_tensor(array)
    assert (back.dtype, back.shape, back.stride()) == (dtype, tensor.shape, tensor.stride())
    assert back.data_ptr() == tensor.data_ptr()
    array[2, 3] = 7
    assert tensor[2, 3] == back[2, 3] == 7


@pytest.mark.parametrize(
    ("array", "shape", "stride"),
    [
        (np.asfortranarray(np.ones((3, 4), np.float32)), (3, 4), (1, 3)),
        (np.ones((6, 4), np.float16)[::2, 1:], (3, 3), (8, 1)),
        (np.ones((), ml_dtypes.bfloat16), (), ()),
        (np.float32(3), (), ()),
        (np.ones((1, 4), np.float32)[::-1], (1, 4), (4, 1)),
        (np.broadcast_to(np.float32(3), (2, 3)), (2, 3), (0, 0)),
    ],
    ids=["fortran", "sliced", "0-d", "scalar", "turned axis of one", "read-only broadcast"],
)
def test_a_returned_array_is_read_where_it_lies(array, shape, stride):
    tensor = NUMPY.to_tensor(array)
    assert (tuple(tensor.shape), tensor.stride()) == (shape, stride)
    if isinstance(array, np.ndarray):
        assert tensor.data_ptr() == array.ctypes.data


def test_a_right_function_passes():
    report = judged(softmax)
    assert report.passed, report
    assert {outcome.dtype for outcome in report.outcomes} == set(DTYPES)
    assert failures(report) == {}


def frozen(x):
    y = softmax(x)
    y.setflags(write=False)
    return y


def test_a_read_only_answer_is_an_answer(recwarn):
    torch.set_warn_always(True)  # else torch says it once a process
    try:
        report = judged(frozen)
    finally:
        torch.set_warn_always(False)
    assert report.passed, report
    assert not [w for w in recwarn if "writable" in str(w.message)]


def in_place(x):
    x[...] = softmax(x)
    return x.copy()


def beside_the_operand(x):
    extent = sum((n - 1) * stride for n, stride in zip(x.shape, x.strides, strict=True)) // x.itemsize + 1
    np.lib.stride_tricks.as_strided(x, (extent + 1,), (x.itemsize,))[-1] = 0
    return softmax(x)


def ignoring_strides(x):
    flat = np.lib.stride_tricks.as_strided(x, x.shape, (x.shape[1] * x.itemsize, x.itemsize))
    return softmax(flat)


_buffers: dict[tuple, np.ndarray] = {}


def static(x):
    buffer = _buffers.setdefault((x.shape, x.dtype), np.empty(x.shape, x.dtype))
    buffer[...] = softmax(x)
    return buffer


def other_byte_order(x):
    return x.astype(">f4")


@pytest.mark.parametrize(
    ("fn", "found", "message"),
    [
        (lambda x: softmax(x.astype(np.float64)), "dtype", "expected torch.float32, got torch.float64"),
        (lambda x: np.asfortranarray(softmax(x)), "strides", "expected a contiguous tensor"),
        (lambda x: softmax(x)[::-1], "returns", "expected a numpy.ndarray, got an array with negative strides"),
        (lambda x: 0.5, "returns", "y: expected a numpy.ndarray, got float"),
        (lambda x: softmax(x).max(initial=0), "shape", "got ()"),
        (lambda x: softmax(x).astype(object), "returns", "an array of dtype object that torch cannot read"),
        (other_byte_order, "returns", "an array of dtype >f4 that torch cannot read"),
        (lambda x: np.ma.masked_array(softmax(x)), "returns", "got numpy.ma.MaskedArray"),
        (lambda x: torch.zeros(3, 33), "returns", "expected a numpy.ndarray, got torch.Tensor"),
        (lambda x: None, "returns", "got NoneType"),
        (lambda x: (softmax(x), softmax(x)), "returns", "returned 2 values; expected 1"),
        (lambda x: x, "alias", "y shares memory with the input x"),
        (lambda x: softmax(x) + x.dtype.type(1e-2), "values", "elements wrong"),
        (lambda x: 1 / 0, Check.RAISED, "ZeroDivisionError"),
        (in_place, "inputs", "x was written"),
        (beside_the_operand, "inputs", "x was written"),
        (ignoring_strides, "values", "elements wrong"),
        (static, "alias", "return the same memory"),
    ],
)
def test_a_wrong_function_is_found_out(fn, found, message):
    report = judged(fn, dtypes=["float32"], isolate="fork")  # strides ignored where they are 0 read what is not theirs
    assert not report.passed
    assert found in failures(report), report
    assert any(message in f.message for f in report.findings if f.check == found), report


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["fork", "spawn"])
def test_in_other_processes(isolate):
    factor = 1.0
    assert judged(lambda x: factor * softmax(x), isolate=isolate, dtypes=["float32"]).passed
    assert Check.DTYPE in failures(judged(lambda x: softmax(x).astype(float), isolate=isolate, dtypes=["bfloat16"]))


def test_none_and_parameters_reach_the_function_as_they_are():
    seen = []

    def layer_norm(x, weight, bias, *, eps):
        seen.append((type(weight), type(bias), type(eps)))
        raise NotImplementedError

    check("layer_norm", layer_norm, level="quick", arrays="numpy", isolate="none")
    assert {kinds[0] for kinds in seen} == {np.ndarray}
    assert {kinds[1] for kinds in seen} == {np.ndarray, type(None)}
    assert {kinds[2] for kinds in seen} == {float}


def test_numpy_means_the_cpu(monkeypatch):
    assert arrays.device_of("numpy", None) == "cpu"
    assert arrays.device_of("torch", "cuda") == "cuda"
    with pytest.raises(ValueError, match="^arrays: 'numpy' means device 'cpu'.* but 'cuda' was asked for"):
        judged(softmax, device="cuda")
    with pytest.raises(ValueError, match="^arrays: expected one of 'torch', 'numpy'.*, got 'jax'"):
        judged(softmax, arrays="jax")


def test_bfloat16_needs_ml_dtypes(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ml_dtypes" else find(name))
    with pytest.raises(ValueError, match=r"^arrays: 'numpy' has no bfloat16 here.*pip install ml_dtypes"):
        judged(softmax)
    assert judged(softmax, dtypes=["float16"]).passed


def test_the_options(tmp_path, monkeypatch):
    kernel = tmp_path / "mine.py"
    kernel.write_text("import numpy as np\n\n\ndef fn(x):\n    return x\n")
    options = dict(op="softmax", kernel=f"{kernel}:fn", environ={})
    made = selection.select(**options, library="numpy")
    assert made.device == "cpu"
    assert made.subjects()[0][1].arrays == "numpy"
    for changes, match in [
        (dict(device="cuda"), "--arrays: 'numpy' means device 'cpu'"),
        (dict(library="jax"), "--arrays: expected one of"),
        (dict(kernel=None), "--arrays: goes with --kernel"),
    ]:
        with pytest.raises(UsageError, match=f"^{match}"):
            selection.select(**{**options, "library": "numpy", **changes})


PAPER_ARRAYS = """
from contextlib import nullcontext

import torch

DEVICE, TYPE = "cpu", "list"


def why_not(dtype):
    return "paper is white" if dtype is torch.bfloat16 else None


def to_array(tensor):
    return [tensor.tolist()]


def to_tensor(value):
    if type(value) is not list:
        raise TypeError(type(value).__name__)
    return torch.tensor(value[0])


calling = nullcontext
"""


def test_a_backend_can_bring_arrays_along(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "library", arrays.library.__wrapped__)
    with targets.pretend(tmp_path, monkeypatch):
        for name in ("paper", "quill"):
            (tmp_path / "backends" / name / "runtime" / "arrays.py").write_text(PAPER_ARRAYS)
        assert arrays.libraries() == ("torch", "numpy", "paper", "quill")
        assert arrays.type_name("paper") == "list"
        assert arrays.lacks("paper", DTYPES).startswith("arrays: 'paper' has no bfloat16 here: paper is white; or call")
        doubled = arrays.on_tensors(lambda x, n: ([[n * value for value in x[0]]], 3, None), "paper")
        twice, three, none = doubled(torch.tensor([1.0, 2.0]), n=2)
        assert twice.tolist() == [2.0, 4.0]
        assert three == arrays.Unreadable("int")
        assert none is None
        with pytest.raises(ValueError, match="^arrays: 'quill' cannot be used here: quill is not installed"):
            arrays.library("quill")
    assert "paper" not in arrays.libraries()


@pytest.fixture
def cupy(monkeypatch):
    """The module for CuPy arrays over a NumPy that calls itself cupy."""
    fake = types.ModuleType("cupy")
    fake.ndarray, fake.from_dlpack, fake.__version__ = np.ndarray, np.from_dlpack, "13.6.0"
    monkeypatch.setitem(sys.modules, "cupy", fake)
    spec = importlib.util.find_spec("touchstone.backends.cupy.runtime.arrays")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cupy_arrays(cupy):
    tensor = torch.arange(12.0).reshape(3, 4).t()
    array = cupy.to_array(tensor)
    assert array.ctypes.data == tensor.data_ptr()
    back = cupy.to_tensor(array)
    assert (back.data_ptr(), back.stride()) == (tensor.data_ptr(), tensor.stride())
    assert cupy.why_not(torch.float16) is None
    assert "install CuPy 14" in cupy.why_not(torch.bfloat16)
    with pytest.raises(TypeError, match="^torch.Tensor$"):
        cupy.to_tensor(tensor)
    with pytest.raises(ValueError, match="^an array with negative strides"):
        cupy.to_tensor(array[::-1])
    with pytest.raises(ValueError, match="^an array of dtype object that torch cannot read"):
        cupy.to_tensor(array.astype(object))


@pytest.mark.needs("GPU", "cupy")
def test_cupy_arrays_on_a_gpu():
    import cupy

    def right(x):
        x32 = x.astype(cupy.float32)
        e = cupy.exp(x32 - x32.max(-1, keepdims=True)) if x.shape[-1] else x32
        return cupy.ascontiguousarray((e / e.sum(-1, keepdims=True)).astype(x.dtype))

    for isolate in ("none", "spawn"):
        assert judged(right, arrays="cupy", isolate=isolate).passed
    assert Check.DTYPE in failures(judged(lambda x: right(x).astype(float), arrays="cupy"))
    assert Check.INPUTS in failures(judged(lambda x: x.fill(0) or right(x), arrays="cupy"))
