"""Launches recorded on CPU tensors go through NVVM and nvJitLink for GPUs that are not there; what should not be in a
kernel's PTX is found with its line.
"""

import json

import pytest

from tests.processes import output_of, run_touchstone
from touchstone.backends import numba

if numba.not_installed():
    pytest.skip(numba.not_installed(), allow_module_level=True)

PROGRAM = """
import json
import math
import numpy as np
import torch
from numba import cuda, float32, int64, uint32, uint64
from touchstone.backends.numba.runtime import compiling

@cuda.jit
def sums(x, y, n):
    part = cuda.shared.array(256, float32)
    part[cuda.threadIdx.x] = float32(x[cuda.threadIdx.x])
    cuda.syncthreads()
    y[cuda.threadIdx.x] = part[n]

@cuda.jit(lto=False)
def unlinked(x, y, n):
    part = cuda.shared.array(256, float32)
    part[cuda.threadIdx.x] = float32(x[cuda.threadIdx.x])
    cuda.syncthreads()
    y[cuda.threadIdx.x] = part[n]

@cuda.jit
def local(y, n):
    values = cuda.local.array(100, float32)
    for i in range(100):
        values[i] = y[i * n]
    for i in range(100):
        y[i] = values[uint64(i * n) % uint64(100)]

@cuda.jit(launch_bounds=256)
def bounded(y):
    y[cuda.grid(1)] = float32(0)

@cuda.jit
def refused(y):
    y[0] = [1, "two"]

@cuda.jit
def half(x):  # line 42
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = x[i] * 0.5

@cuda.jit
def half_of_a_float(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = float32(x[i]) * np.float32(0.5)

@cuda.jit
def scaled(x, scale):
    x[cuda.grid(1)] = float32(scale)

@cuda.jit
def mean(x, y):
    y[0] = x[0] / x.shape[0]

@cuda.jit
def signed(x, y):
    total = float32(0)
    for row in range(x.shape[0]):
        total += float32(x[row, cuda.threadIdx.x])
    y[cuda.threadIdx.x] = total

@cuda.jit
def unsigned(x, y):
    total, row, col = float32(0), uint64(0), uint32(cuda.threadIdx.x)
    while row < uint64(x.shape[0]):
        total += float32(x[row, col])
        row += uint64(1)
    y[col] = total

@cuda.jit
def behind(x, y, start):
    part = cuda.shared.array(64, float32)
    part[cuda.threadIdx.x] = x[cuda.threadIdx.x, 0]
    cuda.syncthreads()
    total, row = float32(0), start
    while row < x.shape[0]:
        total += part[row - 3]
        row += 1
    y[cuda.threadIdx.x] = total

@cuda.jit(device=True)
def inner(x, col):
    total = float32(0)
    for row in range(x.shape[0]):
        total += float32(x[row, col])
    return total

@cuda.jit
def outer(x, y):
    y[cuda.threadIdx.x] = inner(x, uint32(cuda.threadIdx.x))

@cuda.jit
def remainders(x, y, n):
    total, i = float32(0), 0
    while i < n:
        total += x[uint64((i * 7) % n), uint64((i * i - 5) % 11)] + x[uint64((i - 9) // 8), uint64(0)]
        i += 1
    y[uint64(0)] = total

def made(width):
    @cuda.jit
    def sized(y):
        y[cuda.grid(1)] = float32(width)
    return sized

line, plane = torch.zeros(256), torch.zeros(64, 64)
small, large = made(2), made(64)
calls = {}
def call(name, kernel, *arguments, block=64, shared=0):
    with compiling.recording() as found:
        kernel[1, block, 0, shared](*arguments)
    (calls[name],) = found

for dtype in (torch.float32, torch.float16, torch.bfloat16):
    end = str(dtype)[6:]
    call("sums " + end, sums, line.to(dtype), line, 3, shared=4096)
    call("half " + end, half, line.to(dtype))
    call("half_of_a_float " + end, half_of_a_float, line.to(dtype))
    x = plane.to(dtype)
    for layout, view in (("C", x), ("F", x.t()), ("A", x[::2, ::2]))[: 3 if dtype == torch.float32 else 1]:
        call("signed " + end + layout, signed, view, line)
        call("unsigned " + end + layout, unsigned, view, line)
call("unlinked", unlinked, line.bfloat16(), line, 3)
call("local", local, line, 3)
call("bounded", bounded, line, block=(16, 16))
call("too many", bounded, line, block=(16, 16, 2))
call("refused", refused, line)
call("64 bits", scaled, line, 0.5)
call("32 bits", scaled, line, np.float32(0.5))
call("mean", mean, line, line)
call("behind", behind, plane, line, 3)
call("outer", outer, plane, line)
call("remainders", remainders, plane, line, 5)
call("48 KB", sums, line, line, 3, shared=48 * 1024 - 1024)
call("more", sums, line, line, 3, shared=48 * 1024 - 1023)
call("sums in 201 KB", sums, line, line, 3, shared=200 * 1024)
call("small", small, line)
call("large", large, line)
call("many threads", large, line, block=1024)
call("same", small, torch.ones(9))
assert not line.any() and not plane.any()
found = {name: {"sm_90": compiling.compile_one(launch, "sm_90")} for name, launch in calls.items()}
for name, launch in calls.items():
    if name.startswith(("sums", "half float16", "half bfloat16", "signed float32C")):
        found[name]["sm_80"] = compiling.compile_one(launch, "sm_80")
for name, launch in calls.items():
    found[name] |= dict(text=str(launch), types=launch.types, key=launch.key, weight=launch.weight)
    found[name]["kernel"] = launch.kernel
found["refused"]["front end"] = compiling.compile_one(calls["refused"], "sm_80", to_machine_code=False)
found["large"]["front end"] = compiling.compile_one(calls["large"], "sm_80", to_machine_code=False)
print(json.dumps(found))
"""
ARCHITECTURES = ("sm_80", "sm_90")
DTYPES = ("float32", "float16", "bfloat16")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    file = tmp_path_factory.mktemp("compiling") / "kernels.py"
    file.write_text(PROGRAM)
    done = run_touchstone([str(file)])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def line_of(text):
    """Where PROGRAM has it, "kernels.py:42"."""
    return f"kernels.py:{PROGRAM[: PROGRAM.index(text)].count(chr(10)) + 1}"


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_resources_are_those_of_the_kernel(compiled, dtype, arch):
    found = compiled[f"sums {dtype}"][arch]
    assert "error" not in found
    assert found["shared"] == 4096 + 256 * 4
    assert 4 <= found["registers"] <= 32 and found["spills"] == 0


def test_a_kernel_that_asks_for_no_link_time_optimisation(compiled):
    assert compiled["unlinked"]["sm_90"]["shared"] == 256 * 4


def test_local_memory_counts_as_spilt(compiled):
    assert compiled["local"]["sm_90"]["spills"] == 400


def test_what_a_launch_says_of_itself(compiled):
    assert compiled["sums bfloat16"]["kernel"] == "sums"
    assert compiled["sums bfloat16"]["types"] == ["__nv_bfloat16", "float32"]
    assert compiled["sums bfloat16"]["text"] == (
        "sums(x: __nv_bfloat16[:] C, y: float32[:] C, n: int64; at most 256 threads, 4096 bytes of dynamic "
        "shared memory)"
    )
    assert compiled["signed float32A"]["text"].startswith("signed(x: float32[:, :] A, ")
    assert compiled["many threads"]["text"] == "sized(y: float32[:] C, width=64; 1024 threads)"
    assert compiled["small"]["key"] == compiled["same"]["key"]
    assert len({compiled[name]["key"] for name in ("small", "large", "many threads")}) == 3
    assert compiled["small"]["weight"] < compiled["large"]["weight"] < compiled["many threads"]["weight"]


def test_what_a_device_would_refuse(compiled):
    assert "error" not in compiled["bounded"]["sm_90"] and "error" not in compiled["48 KB"]["sm_90"]
    assert compiled["too many"]["sm_90"]["error"] == "is launched with 512 threads; its launch_bounds allow 256"
    assert (
        compiled["more"]["sm_90"]["error"] == "needs 49153 bytes of shared memory; numba-cuda lets a block have 49152"
    )
    assert "error" not in compiled["sums in 201 KB"]["sm_90"]
    assert compiled["sums in 201 KB"]["sm_80"]["error"] == "needs 205824 bytes of shared memory; sm_80 has 166912"


def test_a_refusal_comes_through(compiled):
    for answer in ("sm_90", "front end"):
        assert "TypingError" in compiled["refused"][answer]["error"]
    assert set(compiled["large"]["front end"]) == {"seconds"}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_literal_of_64_bits_is_found_with_its_line(compiled, dtype, arch):
    error = compiled[f"half {dtype}"][arch]["error"]
    assert error.startswith(f"{line_of('x[i] = x[i] * 0.5')}: computes in float64 (") and "mul.f64" in error
    assert "\n" not in error
    assert "error" not in compiled[f"half_of_a_float {dtype}"]["sm_90"]


@pytest.mark.parametrize(
    ("name", "text", "operation"),
    [("64 bits", "float32(scale)", "cvt.rn.f32.f64"), ("mean", "x[0] / x.shape", "div.rn.f64")],
)
def test_other_ways_to_64_bits(compiled, name, text, operation):
    error = compiled[name]["sm_90"]["error"]
    assert error.startswith(line_of(text)) and operation in error
    assert "error" not in compiled["32 bits"]["sm_90"]


@pytest.mark.parametrize("types", ["float32C", "float32F", "float32A", "float16C", "bfloat16C"])
def test_an_index_that_may_be_negative_is_found_in_a_loop(compiled, types):
    for arch in set(ARCHITECTURES) & set(compiled[f"signed {types}"]):
        error = compiled[f"signed {types}"][arch]["error"]
        assert error.startswith(f"{line_of('total += float32(x[row, cuda')}: an index that may be negative")
        assert "\n" not in error  # the index of y is computed once
    assert "error" not in compiled[f"unsigned {types}"]["sm_90"]


def test_the_index_of_a_shared_array(compiled):
    assert compiled["behind"]["sm_90"]["error"].startswith(line_of("total += part[row - 3]"))


def test_an_index_in_a_device_function_is_found_where_that_is_called(compiled):
    assert compiled["outer"]["sm_90"]["error"].startswith(line_of("y[cuda.threadIdx.x] = inner"))


def test_a_remainder_is_no_index(compiled):
    assert "error" not in compiled["remainders"]["sm_90"]


def test_what_a_variant_claims():
    output_of("""
from touchstone.backends.numba.runtime import compiling
assert compiling.architectures(None) == compiling.architectures("shuffles") == ("sm_80", "sm_90")
assert compiling.architectures("sm_70") == ("sm_80", "sm_90")
assert compiling.architectures("sm_90") == ("sm_90",)
assert compiling.architectures("sm_90a") == ("sm_90a",)
assert compiling.architectures("sm_100") == ("sm_100",)
""")


@pytest.mark.level("default")
def test_variants_compile_without_the_other_libraries():
    output_of("""
import sys
sys.modules["cupy"] = sys.modules["triton"] = None
from touchstone.conformance.compiling import client as compiling
assert "numba" in compiling.backends()
with compiling.Compiler("numba") as compiler:
    answer = compiler.check("softmax", ["warp"], every=False)
assert answer["findings"] == [], answer
archs = {(row["kernel"], row["arch"]) for row in compiling.rows(answer["records"])}
assert archs == {("_warp", "sm_80"), ("_warp", "sm_90")}, archs
""")


@pytest.mark.level("default")
def test_variants_compile_without_a_compiler_for_the_cpu():
    """And a variant called by itself says that there is none."""
    output_of("""
import os
import torch
os.environ["CXX"] = "/nowhere/g++"
from touchstone.backends.numba.runtime import compiling
from touchstone.backends.numba.softmax import vectorised
with compiling.recording() as launches:
    vectorised(torch.ones(4, 64))
assert len(launches) == 1 and "error" not in compiling.compile_one(launches[0], "sm_90")
try:
    vectorised(torch.ones(4, 64))
except RuntimeError as error:
    assert "/nowhere/g++" in str(error), error
else:
    raise AssertionError
""")


def test_without_nvvm_the_reason_says_what_to_install():
    output_of("""
import sys
sys.modules["cuda.bindings.nvjitlink"] = None
try:
    import touchstone.backends.numba.runtime.compiling
except ImportError as error:
    assert "NVVM, NVRTC or nvJitLink does not load: pip install" in str(error), error
else:
    raise AssertionError
""")
