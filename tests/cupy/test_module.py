"""From a .cu file to a launch: arguments against the kernel as written, includes and their lines, definitions,
limits."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.processes import output_of
from touchstone.backends import Unsupported, emulator
from touchstone.backends.cupy.runtime import module
from touchstone.backends.cupy.runtime.module import Module, inlined, signatures
from touchstone.backends.devices import cuda_unavailable

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(bool(emulator.why_not()), reason=emulator.why_not() or "")),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(bool(cuda_unavailable()), reason=f"needs a GPU: {cuda_unavailable()}")
    ),
]
needs_emulator = DEVICES[0].marks[0]

SCALE = """
#include "parts/scale.cuh"
// not one: __global__ void commented(int x)
extern "C" __global__ void __launch_bounds__(64) scale(
    const ELEMENT* __restrict__ x, float* y, const float* bias, int n, long long stride, float factor, bool doubled
) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = scaled((float)x[i * stride], factor) * (doubled ? 2.0f : 1.0f) + (bias ? bias[i] : OFFSET);
}
extern "C" __launch_bounds__(64) __global__ void tile(float* y /* (n,) */, int n) {
    extern __shared__ float buffer[];
    buffer[threadIdx.x] = n;
    __syncthreads();
    y[threadIdx.x] = buffer[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void nothing() {}
"""
SCALED = """#pragma once
#include "../more.cuh"
__device__ float scaled(float x, float factor) { return x * factor; }
"""


@pytest.fixture
def scale(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "scale.cu").write_text(SCALE)
    (tmp_path / "parts/scale.cuh").write_text(SCALED)
    (tmp_path / "more.cuh").write_text("// more\n")
    return Module(str(tmp_path / "scale.py"), "scale.cu")


def launch_scale(scale, **changes):
    x = torch.arange(6.0)
    arguments = dict(x=x, y=torch.empty(3), bias=None, n=3, stride=2, factor=0.5, doubled=True) | changes
    scale.launch("scale", 1, 64, *arguments.values(), dtype=x.dtype, OFFSET=1.5)
    return arguments["y"]


@pytest.fixture
def recorded(monkeypatch):
    """The launches, instead of running them."""
    launches = []
    monkeypatch.setattr(module, "recorder", ("sm_80", launches.append))
    return launches


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32])
def test_arguments_of_every_kind_reach_the_kernel(scale, device, dtype):
    x, y = torch.arange(6, dtype=dtype, device=device), torch.full((4,), -1.0, device=device)
    scale.launch("scale", 1, 32, x, y, None, 3, 2, 0.5, True, dtype=dtype, OFFSET=1.5)
    assert y.tolist() == [1.5, 3.5, 5.5, -1.0]
    bias = torch.tensor([1.0, 2.0, 3.0], device=device)
    scale.launch("scale", (2, 1), (2, 1, 1), x, y, bias, np.int64(3), np.int32(2), 1, False, dtype=dtype, OFFSET=0)
    assert y.tolist() == [1.0, 4.0, 7.0, -1.0]


@pytest.mark.parametrize("device", DEVICES)
def test_more_than_48_kilobytes_of_shared_memory_and_no_more_than_there_is(scale, device):
    y = torch.empty(64, device=device)
    scale.launch("tile", 1, 64, y, 7, shared=100_000, dtype=y.dtype, OFFSET=0)
    assert y.tolist() == [7.0] * 64
    limit = module.shared_limit(y.device)
    assert limit == 232448 or device == "cuda"
    with pytest.raises(Unsupported, match=f"{limit + 1} bytes of shared memory a block; the device has {limit}"):
        scale.launch("tile", 1, 64, y, 7, shared=limit + 1, dtype=y.dtype, OFFSET=0)


@pytest.mark.skipif(bool(cuda_unavailable()), reason=f"needs a GPU: {cuda_unavailable()}")
def test_a_launch_is_on_torchs_current_stream(scale):
    x, y = torch.ones(1 << 24, device="cuda"), torch.zeros(1 << 24, device="cuda")
    stream = torch.cuda.Stream()
    scale.launch("scale", 1, 64, x, y, None, 1, 1, 1.0, False, dtype=x.dtype, OFFSET=0)
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):  # a launch on another stream would break the capture
            scale.launch("scale", 1 << 18, 64, x, y, None, 1 << 24, 1, 3.0, False, dtype=x.dtype, OFFSET=0)
        assert y[1].item() == 0.0
        graph.replay()
    torch.cuda.synchronize()
    assert (y == 3.0).all()


needs_gpu = DEVICES[1].marks[0]


@needs_gpu
def test_later_launches_are_as_the_first(scale):
    x, bias = torch.arange(6.0, device="cuda"), torch.tensor([1.0, 2.0, 3.0], device="cuda")

    def launched(doubled, bias=None, n=3, stride=2, factor=0.5, offset=1.5, x=x):
        y = torch.full((4,), -1.0, device="cuda")
        scale.launch("scale", 1, 32, x, y, bias, n, stride, factor, doubled, dtype=x.dtype, OFFSET=offset)
        return y.tolist()

    for _ in range(3):
        assert launched(True) == [1.5, 3.5, 5.5, -1.0]
        assert launched(False, bias, np.int64(3), np.int32(2), 1, 0) == [1.0, 4.0, 7.0, -1.0]
        assert launched(False, n=2) == [1.5, 2.5, -1.0, -1.0]
        assert launched(False, offset=1) == [1.0, 2.0, 3.0, -1.0]
        with torch.cuda.stream(torch.cuda.Stream()):
            assert launched(True) == [1.5, 3.5, 5.5, -1.0]
    assert len(scale._ready.made) >= 3


@needs_gpu
def test_later_launches_are_refused_as_the_first_is(scale):
    x, y = torch.arange(6.0, device="cuda"), torch.full((4,), -1.0, device="cuda")
    right = [x, y, None, 3, 2, 0.5, True]
    scale.launch("scale", 1, 32, *right, dtype=x.dtype, OFFSET=1.5)
    y.fill_(-1.0)
    for at, value, error in [
        (0, x.double(), TypeError),
        (0, x.cpu(), ValueError),
        (1, 3, TypeError),
        (3, 2**31, ValueError),
        (3, 3.0, TypeError),
        (3, None, TypeError),
        (4, 2**63, ValueError),
        (5, "1", TypeError),
        (5, x, TypeError),
        (6, 2, ValueError),
    ]:
        with pytest.raises(error, match=r"^scale: "):
            scale.launch("scale", 1, 32, *[*right[:at], value, *right[at + 1 :]], dtype=x.dtype, OFFSET=1.5)
    for grid, block, error in [
        (0, 32, ValueError),
        ((1, 1, 1, 1), 32, TypeError),
        (1, (32.0,), TypeError),
        (1, (1, 1, 65), ValueError),
        (1, (64, 17), ValueError),
    ]:
        with pytest.raises(error, match=r"^scale: "):
            scale.launch("scale", grid, block, *right, dtype=x.dtype, OFFSET=1.5)
    with pytest.raises(TypeError, match="takes 7 arguments"):
        scale.launch("scale", 1, 32, *right[:-1], dtype=x.dtype, OFFSET=1.5)
    with pytest.raises(ValueError, match="shared is a number of bytes"):
        scale.launch("scale", 1, 32, *right, dtype=x.dtype, OFFSET=1.5, shared=-1)
    assert y.tolist() == [-1.0] * 4


def test_numbers_take_the_bytes_of_their_type():
    for name, number in (module._INTEGERS | module._FLOATS).items():
        assert struct.calcsize("<" + module._FORMATS[name]) == np.dtype(number).itemsize, name
        least, most = module._RANGES.get(name, (-1.5, 2.0))
        packed = struct.pack("<2" + module._FORMATS[name], least, most)
        assert np.frombuffer(packed, number).tolist() == [least, most]


def test_numbers_arrive_in_the_type_that_the_kernel_declares(scale, recorded):
    launch_scale(scale)
    (launch,) = recorded
    assert [type(value) for value in launch.arguments[3:]] == [np.int32, np.int64, np.float32, np.bool_]
    assert launch.arguments[2] is None
    assert launch.grid == (1, 1, 1)
    assert launch.block == (64, 1, 1)
    assert launch.definitions == (("ELEMENT", "float"), ("OFFSET", "1.5"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(n=2**31), ValueError, r"scale: n is int, -2147483648 to 2147483647, got 2147483648"),
        (dict(stride=2**63), ValueError, r"scale: stride is long long, .* got 9223372036854775808"),
        (dict(n=3.0), TypeError, r"scale: n is int, got 3\.0"),
        (dict(n=None), TypeError, r"scale: n is int, got None"),
        (dict(doubled=2), ValueError, r"scale: doubled is bool, 0 to 1, got 2"),
        (dict(factor="1"), TypeError, r"scale: factor is float, got '1'"),
        (dict(factor=torch.ones(1)), TypeError, r"scale: factor is float, not a pointer, got a tensor"),
        (dict(y=3), TypeError, r"scale: y is a pointer: expected a tensor or None, got 3"),
        (dict(x=torch.ones(6, dtype=torch.float16)), TypeError, r"x points to torch.float32, got .*float16"),
        (dict(y=torch.ones(3, dtype=torch.float64)), TypeError, r"y points to torch.float32, got .*float64"),
        (dict(y=torch.ones(3, device="meta")), ValueError, r"y is on meta; kernels run on cpu and cuda"),
    ],
)
def test_a_wrong_argument_is_named(scale, recorded, changes, error, message):
    with pytest.raises(error, match=message):
        launch_scale(scale, **changes)
    assert not recorded


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (dict(kernel="scael"), ValueError, r"scale\.cu has no kernel 'scael'; it has scale, tile, nothing"),
        (dict(arguments=()), TypeError, r"tile takes 2 arguments \(y, n\), got 0"),
        (dict(kernel="nothing", arguments=()), TypeError, r"nothing: no argument is a tensor"),
        (dict(grid=0), ValueError, r"tile: grid\.x is 1 to 2147483647, got 0"),
        (dict(grid=(1, 65536)), ValueError, r"tile: grid\.y is 1 to 65535, got 65536"),
        (dict(grid=(1, 1, 1, 1)), TypeError, r"tile: grid is an int or a tuple of one to three"),
        (dict(block=(32.0,)), TypeError, r"tile: block is an int or a tuple of one to three"),
        (dict(block=(1, 1, 65)), ValueError, r"tile: block\.z is 1 to 64, got 65"),
        (dict(block=(64, 17)), ValueError, r"tile: a block has at most 1024 threads, got \(64, 17, 1\)"),
        (dict(shared=-1), ValueError, r"tile: shared is a number of bytes, got -1"),
        (dict(T=3), ValueError, r"tile: T is a macro of one letter"),
        (dict(OFFSET=None), TypeError, r"tile: OFFSET is defined as an int, a float or a str, got None"),
        (dict(dtype=torch.float64), TypeError, r"tile: dtype is one of torch\.float32, .*, got torch\.float64"),
    ],
)
def test_a_wrong_launch_is_refused_before_anything_runs(scale, recorded, call, error, message):
    call = dict(kernel="tile", grid=1, block=64, arguments=(torch.empty(64), 7)) | call
    arguments = call.pop("arguments")
    with pytest.raises(error, match=message):
        scale.launch(call.pop("kernel"), call.pop("grid"), call.pop("block"), *arguments, **call)
    assert not recorded


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*/absent\.cu"):
        Module(str(tmp_path / "op.py"), "absent.cu")


def test_while_recording_shared_memory_is_that_of_the_architecture(scale, recorded):
    assert module.shared_limit(torch.device("cpu")) == 166912
    with pytest.raises(Unsupported, match="166913 bytes of shared memory a block; the device has 166912"):
        scale.launch("tile", 1, 64, torch.empty(64), 7, shared=166913)


def test_signatures_are_read_off_the_text():
    found = signatures("""
        #define WIDTH 4  // __global__ void first(int x)
        template <int rows> __device__ void helper(float* x);
        extern "C" __global__ void __launch_bounds__(32 * (WIDTH + 1), 2)
        /* __global__ void second(int x) */
        second(const __half *const __restrict__ x, unsigned long long  n, const unsigned char flags[], float2 pair) {}
        __launch_bounds__(128) __global__ void third(void);
    """)
    assert list(found) == ["second", "third"]
    assert found["third"] == ()
    assert [tuple(parameter) for parameter in found["second"]] == [
        ("x", "__half", True),
        ("n", "unsigned long long", False),
        ("flags", "unsigned char", True),
        ("pair", "float2", False),
    ]


def located(text: str) -> dict[str, tuple[str, int]]:
    """Where a compiler places each line of a text with #line directives."""
    found, file, number = {}, "", 0
    for line in text.splitlines():
        if match := re.fullmatch(r'#line (\d+) "(.*)"', line):
            number, file = int(match[1]), Path(match[2]).name
        else:
            found.setdefault(line.strip(), (file, number))
            number += 1
    return found


def test_included_files_are_inlined_with_their_own_lines(tmp_path):
    (tmp_path / "b.cuh").write_text("#pragma once\nint b;\n")
    (tmp_path / "c.cuh").write_text('// c\n  #  include "b.cuh"\nint c;')
    (tmp_path / "a.cu").write_text('#include "c.cuh"\nint a;\n#include <mma.h>\n#include "b.cuh"  // again\nint z;\n')
    text = inlined(tmp_path / "a.cu")
    lines = located(text)
    assert lines["int b;"] == ("b.cuh", 2)
    assert lines["int c;"] == ("c.cuh", 3)
    assert lines["int a;"] == ("a.cu", 2)
    assert lines["#include <mma.h>"] == ("a.cu", 3)
    assert lines["int z;"] == ("a.cu", 5)
    assert text.count("int b;") == 1
    assert "pragma once" not in text


def test_includes_are_found_in_the_backends_folder_too(tmp_path):
    (tmp_path / "a.cu").write_text('#include "common.cuh"\n')
    assert (module.LIB / "common.cuh").read_text().splitlines()[0] in inlined(tmp_path / "a.cu")


def test_an_include_that_is_nowhere_or_in_itself(tmp_path):
    (tmp_path / "a.cu").write_text('\n\n#include "absent.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r'a\.cu:3: #include "absent\.cuh" is not in .* nor in .*cupy'):
        inlined(tmp_path / "a.cu")
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text('#include "a.cu"\n')
    with pytest.raises(ValueError, match=r"includes itself, through a\.cu -> b\.cuh -> a\.cu"):
        inlined(tmp_path / "a.cu")


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiler_names_the_file_and_line_of_an_include(tmp_path, device):
    (tmp_path / "wrong.cuh").write_text("// one\n// two\n__device__ int wrong = undeclared_name;\n")
    kernel = '#include "wrong.cuh"\nextern "C" __global__ void kernel(float* y) { *y = wrong; }\n'
    (tmp_path / "kernel.cu").write_text(kernel)
    with pytest.raises(Exception, match=r"wrong\.cuh[:(]3.*undeclared_name"):
        Module(str(tmp_path / "kernel.py"), "kernel.cu").launch("kernel", 1, 1, torch.empty(1, device=device))


@needs_emulator
def test_a_finding_names_the_file_and_line_of_an_include(tmp_path):
    (tmp_path / "store.cuh").write_text("// one\n__device__ void store(float* y, int i) {\n    y[i] = 1.0f;\n}\n")
    (tmp_path / "kernel.cu").write_text(
        '\n#include "store.cuh"\nextern "C" __global__ void kernel(float* y) {\n    store(y, threadIdx.x);\n}\n'
    )
    kernel = Module(str(tmp_path / "kernel.py"), "kernel.cu")
    kernel.launch("kernel", 1, 8, y := torch.zeros(8))
    assert y.tolist() == [1.0] * 8
    with pytest.raises(emulator.KernelError, match=r"store\.cuh(:|, line )3") as caught:
        kernel.launch("kernel", 1, 8, torch.zeros(8)[:7])
    assert "kernel" in str(caught.value)
    assert re.search(r"thread \(?7", str(caught.value))


@needs_emulator
def test_the_cpu_target_runs_where_cupy_and_nvrtc_are_not_installed():
    output_of("""
import importlib.util, sys
absent = ("cupy", "triton", "numba", "numba_cuda")
for name in (*absent, "cupyx", "cuda"):
    sys.modules[name] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in absent else find(name, *rest)
import touchstone.backends.cupy as backend
assert "pip install" in backend.why_not("cuda")
assert backend.why_not("cpu") is None
backend.prepare("cpu")
import torch
from touchstone.backends.cupy import softmax
x = torch.randn(3, 33)
assert torch.allclose(softmax.naive(x), x.softmax(1), atol=1e-6)
assert set(backend.instruments("cpu")) == {"threads in reverse", "threads shuffled", "races"}
for within in backend.instruments("cpu").values():
    with within():
        assert torch.allclose(softmax.naive(x), x.softmax(1), atol=1e-6)
with backend.writers("cpu") as writers:
    y = softmax.naive(x)
assert "scalar.cu" in writers.of(y.data_ptr() + 4), writers.of(y.data_ptr() + 4)
rows = backend.doctor()
assert all(len(row) == 3 and all(isinstance(cell, str) for cell in row) for row in rows), rows
assert ("cupy", "not installed") in [row[:2] for row in rows] or backend.metadata.version("cupy-cuda13x")
""")


def test_what_the_emulator_lacks():
    from touchstone.backends import cupy as backend

    for needs in ("sm_70", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"):
        assert backend.lacks(needs, "cpu") is None
    for needs in ("sm_100", "sm_100a"):
        assert backend.lacks(needs, "cpu") == f"needs {needs}; the emulator has the instructions of sm_70 to sm_90a"


def test_the_judge_counts_launches(scale):
    from touchstone import backends

    if emulator.why_not():
        pytest.skip(emulator.why_not())
    before = backends.launches().total()
    launch_scale(scale)
    assert backends.launches().total() == before + 1
