"""Launches recorded on CPU tensors go through NVRTC for GPUs that are not there, and its refusals come through."""

import pytest
import torch

try:
    from touchstone.backends import nvrtc
    from touchstone.backends.cupy.runtime import compiling, module
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)

from tests.processes import output_of
from touchstone.backends.cupy.runtime.module import Module

KERNELS = """
#include "common.cuh"
extern "C" __global__ void __launch_bounds__(256) sums(const ELEMENT* x, float* y, int n) {
    __shared__ float part[256];
    part[threadIdx.x] = to_float(x[threadIdx.x]);
    __syncthreads();
    y[threadIdx.x] = part[n];
}
extern "C" __global__ void local(float* y, int n) {
    float values[LENGTH];
    for (int i = 0; i < LENGTH; i++) values[i] = y[i * n];
    for (int i = 0; i < LENGTH; i++) y[i] = values[(i * n) % LENGTH];
}
extern "C" __global__ void copies(float* y) {
#if __CUDA_ARCH__ >= 900
    y[0] = 1.0f;
#else
    y[0] = THIS_IS_FOR_HOPPER;
#endif
}
"""


@pytest.fixture
def kernels(tmp_path):
    (tmp_path / "kernels.cu").write_text(KERNELS)
    return Module(str(tmp_path / "kernels.py"), "kernels.cu")


def launches(kernels, name="sums", block=256, dtype=torch.float32, arch="sm_90", shared=0, **definitions):
    x, y = torch.zeros(256, dtype=dtype), torch.zeros(256)
    arguments = {"sums": (x, y, 3), "local": (y, 3), "copies": (y,)}[name]
    definitions = dict(LENGTH=2, THIS_IS_FOR_HOPPER="0") | definitions
    with compiling.recording(arch) as found:
        kernels.launch(name, 1, block, *arguments, dtype=dtype, shared=shared, **definitions)
    assert not y.any()
    return found


def test_definitions_in_the_text_are_as_those_in_options_and_move_no_line(kernels):
    definitions = (("ELEMENT", "float"), ("LENGTH", "2"), ("THIS_IS_FOR_HOPPER", "missing"))
    text = module.defined(kernels.source, definitions)
    options = [*module.options(), "-arch=sm_80", *(f"-I{folder}" for folder in compiling._header_folders())]
    as_options = [*options, *(f"-D{name}={value}" for name, value in definitions)]
    found = [nvrtc.compiled(*each) for each in ((text, "k.cu", options), (kernels.source, "k.cu", as_options))]
    assert [made for made, _ in found] == [None, None] and found[0][1] == found[1][1]
    assert f"kernels.cu({KERNELS[: KERNELS.index('THIS_IS')].count(chr(10)) + 1})" in found[0][1]


def test_nothing_runs_and_what_was_launched_is_recorded(kernels):
    (launch,) = launches(kernels, dtype=torch.bfloat16, shared=1024)
    assert launch.kernel == "sums"
    assert launch.types == ("__nv_bfloat16",)
    assert str(launch) == (
        "sums(ELEMENT=__nv_bfloat16, LENGTH=2, THIS_IS_FOR_HOPPER=0; 256 threads, 1024 bytes of dynamic shared memory)"
    )


def test_launches_of_the_same_code_have_one_key_and_others_have_others(kernels):
    (same,), (again,) = launches(kernels), launches(kernels)
    assert same.key == again.key
    others = [dict(dtype=torch.float16), dict(block=128), dict(shared=16), dict(LENGTH=3), dict(name="copies")]
    assert len({same.key, *(launches(kernels, **other)[0].key for other in others)}) == 1 + len(others)


def test_the_largest_weighs_most(kernels):
    weights = [launches(kernels, **more)[0].weight for more in ({}, dict(LENGTH=64), dict(LENGTH=64, shared=64))]
    assert weights == sorted(set(weights))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_resources_are_those_of_the_kernel(kernels, arch, dtype):
    (launch,) = launches(kernels, dtype=dtype, shared=4096)
    found = compiling.compile_one(launch, arch)
    assert "error" not in found
    assert found["shared"] == 4096 + 256 * 4
    assert 4 <= found["registers"] <= 32
    assert found["spills"] == 0


def test_local_memory_counts_as_spilt(kernels):
    (launch,) = launches(kernels, "local", LENGTH=100)
    assert compiling.compile_one(launch, "sm_80")["spills"] == 400


def test_a_refusal_names_the_file_and_the_line(kernels):
    (launch,) = launches(kernels, "copies", THIS_IS_FOR_HOPPER="undeclared")
    assert "error" not in compiling.compile_one(launch, "sm_90")
    for machine_code in (True, False):
        error = compiling.compile_one(launch, "sm_80", machine_code)["error"]
        assert 'kernels.cu(18): error: identifier "undeclared" is undefined' in error


def test_more_threads_than_the_launch_bounds_allow(kernels):
    (launch,) = launches(kernels, block=(16, 16, 2))
    for arch in ("sm_80", "sm_90"):
        found = compiling.compile_one(launch, arch)
        assert found["error"] == "is launched with 512 threads; its __launch_bounds__ allow 256"


def test_shared_memory_with_what_is_static(kernels):
    (launch,) = launches(kernels, arch="sm_80", shared=166912 - 1024)
    assert "error" not in compiling.compile_one(launch, "sm_80")
    (launch,) = launches(kernels, arch="sm_80", shared=166912 - 1023)
    assert compiling.compile_one(launch, "sm_80")["error"] == "needs 166913 bytes of shared memory; sm_80 has 166912"


def test_more_registers_than_a_block_has(tmp_path):
    body = "\n".join(f"float a{i} = y[{i} * n];" for i in range(128))
    uses = "\n".join(f"y[{i} * n + 1] = a{i} * y[n + {i}];" for i in range(128))
    (tmp_path / "many.cu").write_text(f'extern "C" __global__ void many(float* y, int n) {{\n{body}\n{uses}\n}}')
    with compiling.recording() as (found):
        Module(str(tmp_path / "many.py"), "many.cu").launch("many", 1, 1024, torch.zeros(1), 1)
    answer = compiling.compile_one(found[0], "sm_80")
    assert answer["registers"] > 64
    assert "a block has 65536: declare __launch_bounds__(1024)" in answer["error"]


def test_what_a_variant_claims():
    assert compiling.architectures(None) == ("sm_80", "sm_90")
    assert compiling.architectures("sm_70") == ("sm_80", "sm_90")
    assert compiling.architectures("sm_90") == ("sm_90",)
    assert compiling.architectures("sm_90a") == ("sm_90a",)
    assert compiling.architectures("sm_100") == ("sm_100",)


def test_one_generations_instructions_compile_for_that_one(tmp_path):
    text = 'extern "C" __global__ void fence(float* y) { asm volatile("wgmma.fence.sync.aligned;"); y[0] = 1.0f; }'
    (tmp_path / "fence.cu").write_text(text)
    with compiling.recording("sm_90a") as found:
        Module(str(tmp_path / "fence.py"), "fence.cu").launch("fence", 1, 128, torch.zeros(1))
    assert "error" not in compiling.compile_one(found[0], "sm_90a")
    assert "wgmma" in compiling.compile_one(found[0], "sm_90")["error"]


def test_variants_compile_without_cupy():
    output_of("""
import sys
sys.modules["cupy"] = sys.modules["triton"] = None
from touchstone.conformance.compiling import client as compiling
assert "cupy" in compiling.backends()
with compiling.Compiler("cupy") as compiler:
    answer = compiler.check("softmax", ["naive"], every=False)
assert answer["findings"] == [], answer
archs = {(row["kernel"], row["arch"]) for row in compiling.rows(answer["records"])}
assert archs == {("softmax_naive", "sm_80"), ("softmax_naive", "sm_90")}, archs
""")


def test_without_nvrtc_the_reason_says_what_to_install():
    output_of("""
import sys
sys.modules["cuda.bindings"] = None
try:
    import touchstone.backends.cupy.runtime.compiling
except ImportError as error:
    assert str(error).startswith('NVRTC does not load: pip install cuda-bindings "cupy-cuda13x[ctk]" ('), error
else:
    raise AssertionError
""")
