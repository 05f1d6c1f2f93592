"""What a backend package offers, checked in fresh processes: one process runs one device and imports one library."""

import functools
import importlib
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import output_of

ROOT = Path(__file__).parents[2]
BACKENDS = ("triton", "cupy", "numba")
OFFERED = (
    "ALIASES",
    "CPU_VARIABLES",
    "NOTES",
    "WORK_PER_SECOND",
    "why_not",
    "prepare",
    "adopt",
    "reimport",
    "lacks",
    "doctor",
    "resources",
)


@pytest.mark.slow
def test_packages_import_and_answer_without_any_kernel_library():
    output_of(
        f"""
import importlib, importlib.util, sys
libraries = ("triton", "cupy", "numba", "numba_cuda")
for name in libraries:
    sys.modules[name] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in libraries else find(name, *rest)
for name in {BACKENDS!r}:
    backend = importlib.import_module("touchstone.backends." + name)
    for word in {OFFERED!r}:
        assert hasattr(backend, word), (name, word)
    for device in ("cpu", "cuda"):
        reason = backend.why_not(device)
        assert reason and len(reason) > 20, (name, device, reason)
    assert set(backend.WORK_PER_SECOND) == {{"cpu", "cuda"}}
    assert "pip install" in backend.why_not("cuda")
    for row in backend.doctor():
        assert len(row) == 3 and all(isinstance(cell, str) for cell in row), row
    assert len(backend.NOTES) >= 8 and all(note.endswith(".") for note in backend.NOTES)
    assert not backend.reimport(lambda x: x, "cpu")
    assert "sm_100a" in backend.lacks("sm_100a", "cpu")
""",
        CXX="absent-compiler",
    )


@pytest.mark.slow
def test_asking_for_a_gpu_imports_no_kernel_library_and_starts_no_cuda():
    output_of("""
import sys
import touchstone.backends.triton, touchstone.backends.cupy, touchstone.backends.numba
for backend in (touchstone.backends.triton, touchstone.backends.cupy, touchstone.backends.numba):
    backend.why_not("cuda")
assert not {"triton", "cupy", "numba"} & set(sys.modules)
import torch
assert not torch.cuda.is_initialized()

import numpy
if hasattr(numpy, "row_stack"):
    del numpy.row_stack
touchstone.backends.numba.restore_row_stack()
assert numpy.row_stack([[1], [2]]).tolist() == [[1], [2]]
""")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_folder_inside_the_packages_on_the_path_is_refused_with_the_way_out(backend):
    spec = importlib.util.spec_from_file_location(backend, ROOT / "backends" / backend / "__init__.py")
    with pytest.raises(ImportError, match=f"{backend}.*PYTHONPATH"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_triton_interprets_with_the_other_libraries_absent_and_stays_in_that_mode():
    printed = output_of("""
import os, sys
for name in ("cupy", "numba"):
    sys.modules[name] = None
import touchstone.backends.triton as backend
assert backend.why_not("cpu") is None and backend.lacks("sm_90", "cpu") is None and "triton" not in sys.modules
backend.prepare("cpu")
backend.prepare("cpu")
assert os.environ["TRITON_INTERPRET"] == "1"
import touchstone.backends.triton.softmax, torch
x = torch.randn(3, 5)
assert torch.allclose(touchstone.backends.triton.softmax.onerow(x), x.softmax(1))
try:
    backend.prepare("cuda")
except RuntimeError as error:
    assert "imported to interpret" in str(error) and "fresh" in str(error), error
else:
    raise AssertionError
for row in backend.doctor():
    print(" | ".join(row))
""")
    assert "repair: bfloat16 | active | " in printed
    assert "triton#11584" in printed


@pytest.mark.slow
@pytest.mark.needs("triton")
def test_triton_compiles_whatever_the_environment_said_and_stays_in_that_mode():
    output_of(
        """
import touchstone.backends.triton as backend
backend.prepare("cuda")
import os, triton
assert "TRITON_INTERPRET" not in os.environ and not triton.knobs.runtime.interpret
try:
    backend.prepare("cpu")
except RuntimeError as error:
    assert "TRITON_INTERPRET=1" in str(error), error
else:
    raise AssertionError
""",
        TRITON_INTERPRET="1",
    )


KERNELS = """
import functools, torch, triton, triton.language as tl
import helpers
@triton.jit
def _kernel(x_ptr):
    tl.store(x_ptr, 1.0)
@triton.autotune([triton.Config({}), triton.Config({}, num_warps=8)], key=[])
@triton.jit
def _tuned(x_ptr):
    tl.store(x_ptr, 1.0)
_table = {"k": [_kernel]}
def direct(x): _kernel[(1,)](x)
def tuned(x): _tuned[(1,)](x)
def called(x): return direct(x)
def tabled(x): return _table["k"][0][(1,)](x)
def imported(x): return helpers.launch(x)
def closure():
    kernel = _kernel
    return lambda x: kernel[(1,)](x)
closed = closure()
partly = functools.partial(direct)
class Module(torch.nn.Module):
    def forward(self, x): return direct(x)
module = Module()
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return direct(x)
applied = Function.apply
def nested(x): return [direct(y) for y in (x,)]
class Compiled: __slots__ = ("__code__", "__globals__")  # as types of compiled functions have them
compiled = Compiled()
def plain(x): return torch.softmax(x, 1) if compiled else None
"""


@pytest.mark.slow
@pytest.mark.needs("triton")
@pytest.mark.parametrize(("mode", "device", "other"), [("0", "cpu", "cuda"), ("1", "cuda", "cpu")])
def test_reimport_sees_kernels_of_the_other_mode_and_adopt_repairs_interpreted_ones(tmp_path, mode, device, other):
    (tmp_path / "mine.py").write_text(KERNELS)
    (tmp_path / "helpers.py").write_text("import other\ndef launch(x): return other.inner(x)\n")
    (tmp_path / "other.py").write_text(
        "import triton, triton.language as tl\n@triton.jit\ndef kernel(p):\n    tl.store(p, 1.0)\n"
        "def inner(x): return kernel[(1,)](x)\n"
    )
    output_of(
        f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import touchstone.backends.triton as backend
assert not backend.reimport(len, "cpu") and "triton" not in sys.modules
import mine
for name in "direct tuned called tabled imported closed partly module applied nested".split():
    assert backend.reimport(getattr(mine, name), {device!r}), name
    assert not backend.reimport(getattr(mine, name), {other!r}), name
assert not backend.reimport(mine.plain, {device!r})
assert backend.reimport(mine.direct, {device!r})

backend.adopt(mine.direct, "cpu")
module = sys.modules.get("touchstone.backends.triton.runtime.interpreter")
assert (module is not None and module.active("bounds")) is {mode == "1"}
""",
        TRITON_INTERPRET=mode,
    )


@pytest.mark.slow
@pytest.mark.needs("triton")
@pytest.mark.needs("numba_cuda")
def test_reimport_does_not_enter_kernels_of_numba(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import triton\nfrom numba import cuda\n@cuda.jit\ndef kernel(x):\n    x[0] = 1\ndef launch(x): "
        "kernel[1, 1](x)\n"
    )
    output_of(
        f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import touchstone.backends.triton as backend
import mine
assert not backend.reimport(mine.launch, "cpu")
"""
    )


def test_cuda_unavailable_says_what_is_missing(monkeypatch):
    from touchstone.backends import devices

    def missing(name):
        raise OSError

    monkeypatch.setattr(devices.ctypes, "CDLL", missing)
    devices.cuda_unavailable.cache_clear()
    devices._driver.cache_clear()
    try:
        assert devices.cuda_unavailable() == "no CUDA driver is installed (libcuda.so.1 not found)"
        assert devices.capability() is None
    finally:
        devices.cuda_unavailable.cache_clear()
        devices._driver.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("0 13000 9.0 9.0 ", None),
        ("100 13000 ", "sees no GPU"),
        ("0 13000 ", "sees no GPU"),
        ("35 12040 ", "(CUDA 12.4) does not start: cuInit gave error 35"),
        ("", "could not be asked"),
    ],
)
def test_driver_answers(monkeypatch, output, expected):
    from touchstone.backends import devices

    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(devices.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, stdout=output))
    reason, found = devices._driver.__wrapped__()
    if expected is None:
        assert reason is None
        assert found == [(9, 0), (9, 0)]
    else:
        assert expected in reason


@pytest.mark.parametrize(
    ("named", "there", "taken"),
    [(None, 2, ["0", "1", "0"]), ("3,5,7", 3, ["3", "5", "7"]), ("4", 1, ["4", "4", "4"]), (None, 1, [None] * 3)],
)
def test_workers_take_the_gpus_by_turns(monkeypatch, named, there, taken):
    from touchstone.backends import devices

    found = []
    for worker in range(3):
        with monkeypatch.context() as patch:
            patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            if named is not None:
                patch.setenv("CUDA_VISIBLE_DEVICES", named)
            patch.setattr(devices, "_driver", functools.cache(lambda: (None, [(9, 0)] * there)))
            devices.keep_one(worker)
            found.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
    assert found == taken


def test_needs_are_compared_with_the_gpu(monkeypatch):
    from touchstone.backends import devices

    monkeypatch.setattr(devices, "capability", lambda: (9, 0))
    assert devices.capability_lacks("sm_80") is None
    assert devices.capability_lacks("sm_90a") is None
    assert devices.capability_lacks("sm_100") == "needs sm_100; this GPU is sm_90"
    monkeypatch.setattr(devices, "capability", lambda: (10, 0))
    assert devices.capability_lacks("sm_90") is None
    assert devices.capability_lacks("sm_90a") == "needs sm_90a; this GPU is sm_100"
    with pytest.raises(ValueError, match="'hopper'"):
        devices.capability_lacks("hopper")
