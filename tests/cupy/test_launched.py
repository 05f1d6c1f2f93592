"""Kernels of a user's file that launches them by CuPy, on the CPU: `cupy.RawKernel` and `cupy.RawModule`."""

import pytest
import torch

from touchstone.backends import NotRun, cuda_face, emulator
from touchstone.backends.gpus import GPUS
from touchstone.conformance.cli import main

cupy = pytest.importorskip("cupy")
if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

from touchstone.backends.cupy.runtime import launched  # noqa: E402

SILU = '''
import numpy as np
import torch
import cupy as cp

kernel = cp.RawKernel(r"""
extern "C" __global__ void swiglu(const float* gate, const float* up, float* y, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}
""", "swiglu")


def glu(gate, up, *, activation="silu"):
    if activation != "silu" or gate.dtype != torch.float32:
        raise NotImplementedError("silu of float32")
    gate, up = gate.contiguous(), up.contiguous()
    y = torch.empty(gate.shape, device=gate.device)
    with cp.cuda.Device(0):
        stream = cp.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        if y.numel():
            grid = -(-y.numel() // 256)
            kernel((grid,), (256,), (gate.data_ptr(), up.data_ptr(), y.data_ptr(), np.int64(y.numel())), stream=stream)
    return y
'''
ALL = {
    "right": ("", "", True),
    "a thread too many": ("if (i < n)", "if (i <= n)", False),
    "another formula": ("expf(-gate[i])", "expf(-1.702f * gate[i])", False),
    "a float as a double": ("long long n) {", "float n) {", False),
}


@pytest.mark.parametrize("name", ALL)
def test_a_raw_kernel_is_judged(tmp_path, capsys, name):
    was, now, right = ALL[name]
    text = SILU.replace(was, now)
    if "float n" in now:
        text = text.replace("np.int64(y.numel())", "float(y.numel())")
    said = checked(tmp_path, capsys, text, status=0 if right else 1)
    assert "were answered" in said and "cupy.RawKernel" in said
    if name == "a thread too many":
        assert "swiglu (cupy.cu:4)" in said and "past the end of" in said


def checked(folder, capsys, text, status):
    (folder / "silu.py").write_text(text)
    assert main(["check", "glu", "--kernel", f"{folder}/silu.py:glu", "--device", "cpu", "--level", "quick"]) == status
    return capsys.readouterr().out


SCALE = """
template <typename T> __global__ void scaled(T* x, T by, int n) {
    extern __shared__ char room[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by * FACTOR;
}
extern "C" __global__ void filled(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 7.0f; }
"""


@pytest.fixture
def gpu():
    with cuda_face.answering(GPUS["sm_90"]), launched.emulated():
        yield


def module(**options):
    return cupy.RawModule(code=SCALE, options=("-std=c++17", "-DFACTOR=2"), **options)


def test_a_template_and_what_options_define(gpu):
    import numpy as np

    kernel = module(name_expressions=("scaled<float>", "scaled<double>")).get_function("scaled<float>")
    x = torch.ones(40, device="cuda")
    kernel((2,), (32,), (x, np.float32(3), 40))
    assert x.tolist() == [6.0] * 40
    kernel((1,), (32,), (x.data_ptr() + 4 * 30, np.float32(0.5), np.int32(10)))  # into the middle
    assert x.tolist() == [6.0] * 40
    with pytest.raises(emulator.OutOfBounds):
        kernel((1,), (32,), (x.data_ptr() + 4 * 30, np.float32(0.5), np.int32(11)))
    with pytest.raises(TypeError, match=r"expected 4 bytes, got 2"):
        kernel((1,), (32,), (x, np.float16(3), 40))
    with pytest.raises(TypeError, match="argument 2: Unsupported type <class 'str'>"):
        kernel((1,), (32,), (x, "3", 40))
    with pytest.raises(ValueError, match="shared_mem: 65536 bytes, of which CUDA gives 49152"):
        kernel((1,), (32,), (x, np.float32(3), 40), shared_mem=65536)
    kernel.max_dynamic_shared_size_bytes = 65536
    kernel((1,), (32,), (x, np.float32(0), 40), shared_mem=65536)
    assert not x[:32].any() and x[32:].all()


def test_a_kernel_tells_its_source_and_options_without_a_gpu(gpu):
    options = ("-std=c++17", "-DFACTOR=2")
    one = cupy.RawKernel(SCALE, "filled", options)
    for each in (one, module(), module().get_function("filled")):
        assert (each.code, each.options, each.backend, each.file_path) == (SCALE, options, "nvrtc", None)
    x = torch.zeros(20, device="cuda")
    cupy.RawKernel(one.code, "filled", one.options)((1,), (32,), (x, 20))
    assert x.eq(7).all()


def test_arrays_are_tensors_to_a_kernel_and_nothing_else_here(gpu):
    x = torch.zeros(20, device="cuda")
    for made in (cupy.asarray(x), cupy.from_dlpack(x)):
        module().get_function("filled")((1,), (32,), (made, 20))
        assert made.shape == (20,) and made.nbytes == 80 and made.data.ptr == x.data_ptr() and x.eq(7).all()
        assert torch.from_dlpack(made).data_ptr() == x.data_ptr()
        with pytest.raises(NotRun, match=r"cupy.ndarray.sum needs a GPU"):
            made.sum()
        x.zero_()
    with pytest.raises(NotRun, match=r"cupy.RawKernel.num_regs needs a GPU"):
        module().get_function("filled").num_regs  # noqa: B018
    with pytest.raises(NotRun, match=r"module.cubin: compiled for a GPU"):
        cupy.RawModule(path="module.cubin").get_function("filled")((1,), (1,), ())


def test_the_address_of_a_tensor_that_is_gone_is_not_that_of_another(gpu):
    x = torch.zeros(20, device="cuda")
    address = x.data_ptr()
    assert cuda_face.tensor_at(address) is x
    del x
    assert cuda_face.tensor_at(address) is None


def test_a_call_that_needs_more_of_cupy_says_nothing_about_its_kernel(tmp_path, capsys):
    text = "import cupy\n\ndef glu(gate, up, *, activation='silu'):\n    return cupy.zeros((3, 3))\n"
    assert "NOT RUN: CuPy needs a GPU, but for RawKernel and RawModule" in checked(tmp_path, capsys, text, status=3)


def test_everything_is_as_before_afterwards():
    before = cupy.RawKernel, cupy.RawModule, cupy.asarray, cupy.cuda.Device
    with cuda_face.answering(GPUS["sm_90"]), launched.emulated():
        kernel = cupy.RawKernel(SCALE, "filled", ("-DFACTOR=2",))
        assert cupy.RawKernel is not before[0]
    assert (cupy.RawKernel, cupy.RawModule, cupy.asarray, cupy.cuda.Device) == before
    assert type(kernel._module.real) is before[1]  # which launches where there is a GPU
