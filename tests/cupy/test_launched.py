"""Kernels of a user's file that launches them by CuPy, on the CPU: `cupy.RawKernel` and `cupy.RawModule`."""

import numpy as np
import pytest
import torch

from tests.processes import run_touchstone
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


@pytest.mark.slow
def test_one_that_is_not_isolated_is_emulated_too(tmp_path):
    """In a process that has not imported CuPy before it imports the kernel's file."""
    (tmp_path / "silu.py").write_text(SILU)
    options = [
        "--device",
        "cpu",
        "--level",
        "quick",
        "--isolate",
        "none",
        "--dtypes",
        "float32",
        "--where",
        "rows == 3",
    ]
    done = run_touchstone(["-m", "touchstone", "check", "glu", "--kernel", f"{tmp_path}/silu.py:glu", *options])
    assert (done.returncode, "PASSED" in done.stdout) == (0, True), done.stdout + done.stderr


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
    kernel = module(name_expressions=("scaled<float>", "scaled<double>")).get_function("scaled<float>")
    x = torch.ones(40, device="cuda")
    kernel((2,), (32,), (x.data_ptr(), np.float32(3), 40))
    assert x.tolist() == [6.0] * 40
    kernel((1,), (32,), (x.data_ptr() + 4 * 30, np.float32(0.5), np.int32(10)))  # into the middle
    assert x.tolist() == [6.0] * 40
    with pytest.raises(emulator.OutOfBounds):
        kernel((1,), (32,), (x.data_ptr() + 4 * 30, np.float32(0.5), np.int32(11)))
    with pytest.raises(TypeError, match=r"expected 4 bytes, got 2"):
        kernel((1,), (32,), (x.data_ptr(), np.float16(3), 40))
    with pytest.raises(TypeError, match="argument 2: Unsupported type <class 'str'>"):
        kernel((1,), (32,), (x.data_ptr(), "3", 40))
    with pytest.raises(ValueError, match="shared_mem: 65536 bytes, of which CUDA gives 49152"):
        kernel((1,), (32,), (x.data_ptr(), np.float32(3), 40), shared_mem=65536)
    kernel.max_dynamic_shared_size_bytes = 65536
    kernel((1,), (32,), (x.data_ptr(), np.float32(0), 40), shared_mem=65536)
    assert not x[:32].any() and x[32:].all()


def test_a_kernel_tells_its_source_and_options_without_a_gpu(gpu):
    options = ("-std=c++17", "-DFACTOR=2")
    one = cupy.RawKernel(SCALE, "filled", options)
    for each in (one, module(), module().get_function("filled")):
        assert (each.code, each.options, each.backend, each.file_path) == (SCALE, options, "nvrtc", None)
    x = torch.zeros(20, device="cuda")
    cupy.RawKernel(one.code, "filled", one.options)((1,), (32,), (x.data_ptr(), 20))
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


MARKED = """
extern "C" __global__ void mark(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 10 * gridDim.y + blockDim.y; }
extern "C" __global__ void put(double* x, double value) { *x = value; }
extern "C" __global__ void low(unsigned long long* x, unsigned long long value) { *x = value; }
"""


@pytest.fixture
def mark(gpu):
    return cupy.RawKernel(MARKED, "mark")


def marked(kernel, pass_it, grid=(1,), block=(4,), more=()):
    """What a launch makes of four zeros."""
    x = torch.zeros(4, device="cuda")
    kernel(grid, block, (pass_it(x), 4, *more))
    return x.tolist()


POINTERS = {  # to the beginning of a tensor
    "an address": lambda x: x.data_ptr(),
    "of a view": lambda x: x.detach().view(2, 2).data_ptr(),
    "uint64": lambda x: np.uint64(x.data_ptr()),
    "intp": lambda x: np.intp(x.data_ptr()),
    "an array of one": lambda x: np.array([x.data_ptr()]),
    "a CuPy array": lambda x: cupy.asarray(x),
    "by DLPack": lambda x: cupy.from_dlpack(x),
    "its memory": lambda x: cupy.asarray(x).data,
    "its address": lambda x: cupy.asarray(x).data.ptr,
}


@pytest.mark.parametrize("kind", POINTERS)
def test_what_is_a_pointer(mark, kind):
    assert marked(mark, POINTERS[kind]) == [11] * 4


@pytest.mark.parametrize("into", [lambda x: cupy.asarray(x).data.ptr + 8, lambda x: cupy.asarray(x).data + 4 + 4])
def test_a_pointer_into_an_array_ends_where_the_array_does(mark, into):
    x = torch.zeros(4, device="cuda")
    mark((1,), (4,), (into(x), 2))
    assert x.tolist() == [0, 0, 11, 11]
    with pytest.raises(emulator.OutOfBounds, match="past the end"):
        mark((1,), (4,), (into(x), 3))


@pytest.mark.parametrize("make", [torch.nn.Parameter, torch.Tensor.cpu, torch.Tensor.detach])
def test_a_tensor_is_no_argument(mark, make):
    says = r"^argument 1: Unsupported type <class 'torch\..*'>: pass x.data_ptr\(\) or cupy.asarray\(x\)$"
    with pytest.raises(TypeError, match=says):
        marked(mark, make)


def test_an_array_of_numpy_is_a_number_of_one_and_nothing_else(gpu):
    x, put = torch.zeros(1, device="cuda", dtype=torch.float64), cupy.RawKernel(MARKED, "put")
    for value in (np.array(2.5), np.array([[2.5]]), np.float64(2.5), 2.5):
        put((1,), (1,), (x.zero_().data_ptr(), value))
        assert x.item() == 2.5
    with pytest.raises(TypeError, match=r"argument 2: Unsupported type <class 'numpy.ndarray'> of shape \(8,\)"):
        put((1,), (1,), (x.data_ptr(), np.zeros(8)))


def test_an_int_of_64_bits_is_unsigned_where_it_has_to_be(gpu):
    x = torch.zeros(1, device="cuda", dtype=torch.int64)
    cupy.RawKernel(MARKED, "low")((1,), (1,), (x.data_ptr(), 2**64 - 3))
    assert x.item() == -3


def test_a_tensor_that_requires_grad_is_no_array(mark):
    x = torch.zeros(4, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match=r"cupy.asarray of a tensor that requires grad: pass its detach\(\)"):
        cupy.asarray(x)
    with pytest.raises(BufferError, match=r"cupy.from_dlpack of a tensor that requires grad: pass its detach\(\)"):
        cupy.from_dlpack(x)
    mark((1,), (4,), (cupy.asarray(x.detach()).data.ptr, 4))
    assert x.tolist() == [11] * 4


SIZES = {  # a grid, a block: how often 10 and 1 are added to each of four numbers
    "none of x": ((0,), (0,), [11, 0, 0, 0]),
    "fewer": ((-3, -1), (4, 0), [11] * 4),
    "a half": ((0.5,), (4, 2.5), [22] * 4),
    "of NumPy": ((np.int64(1), np.float32(1)), (np.int32(4),), [11] * 4),
    "a fourth, that is not looked at": ((1, 1, 1, 9), (4, 1, 1, "x"), [11] * 4),
}


@pytest.mark.parametrize("name", SIZES)
def test_grid_and_block_have_at_least_one_along_each_axis(gpu, name):
    grid, block, result = SIZES[name]
    code = MARKED.replace("x[threadIdx.x] +=", "if (!threadIdx.y) x[threadIdx.x] += blockDim.y == 2 ? 22 :")
    assert marked(cupy.RawKernel(code, "mark"), torch.Tensor.data_ptr, grid, block) == result


REFUSED = {
    "a list": ([1], (4,), TypeError, r"Argument 'grid' has incorrect type \(expected tuple, got list\)"),
    "a number": ((1,), 4, TypeError, r"Argument 'block' has incorrect type \(expected tuple, got int\)"),
    "a shape": (torch.Size([1]), (4,), TypeError, r"'grid' has incorrect type \(expected tuple, got Size\)"),
    "nothing": ((), (4,), IndexError, "out of range"),
    "a fraction of x": ((1.5,), (4,), TypeError, "'float' object cannot be interpreted as an integer"),
    "too many": ((1,), (1025,), ValueError, "block: at most 1024 threads"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_grid_or_block(mark, name):
    grid, block, error, says = REFUSED[name]
    with pytest.raises(error, match=says):
        marked(mark, torch.Tensor.data_ptr, grid, block)


def test_arguments_that_a_kernel_does_not_have_are_left_out(mark):
    assert marked(mark, torch.Tensor.data_ptr, more=(5, None, 2.5)) == [11] * 4
    with pytest.raises(TypeError, match="argument 3: Unsupported type <class 'str'>"):
        marked(mark, torch.Tensor.data_ptr, more=("5",))
    with pytest.raises(TypeError, match="mark: expected 2 arguments, got 1"):
        mark((1,), (4,), (None,))
    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        mark((1,), (4,), 5)
    with pytest.raises(TypeError, match="has no len"):
        mark((1,), (4,), iter((None, 0)))


def test_a_stream_is_one_of_cupy(mark):
    for stream in (None, cupy.cuda.Stream.null, cupy.cuda.Stream(), cupy.cuda.ExternalStream(0),
                   cupy.cuda.Stream.from_external(torch.cuda.current_stream())):  # fmt: skip
        mark((1,), (4,), (None, 0), stream=stream)
    with pytest.raises(AttributeError, match="'ptr'"):
        mark((1,), (4,), (None, 0), stream=torch.cuda.current_stream())


def test_options_are_a_tuple_and_the_code_of_a_module_is_named(gpu):
    for make in (
        lambda options: cupy.RawKernel(MARKED, "mark", options),
        lambda o: cupy.RawModule(code=MARKED, options=o),
    ):
        with pytest.raises(TypeError, match=r"Argument 'options' has incorrect type \(expected tuple, got list\)"):
            make(["-std=c++17"])
    with pytest.raises(TypeError, match="positional"):
        cupy.RawModule(MARKED)


NAMED = """
__global__ void plain(float* x) { *x = 1; }
namespace a { extern "C" __global__ void within(float* x) { *x = 2; } __global__ void outer(float* x) { *x = 3; } }
extern "C" { __global__ void outer(float* x) { *x = 4; } }
extern "C" __global__ void after(float* x);
__global__ void after(float* x) { *x = 5; }
template <int N> __global__ void t(float* x) { *x = N; }
"""
NONE = r"no kernel '{}' of C linkage in cupy.cu: declare it extern \"C\", or name it in RawModule's name_expressions"


def asked_by_name(name, expressions=None):
    x = torch.zeros(1, device="cuda")
    cupy.RawModule(code=NAMED, name_expressions=expressions).get_function(name)((1,), (1,), (x.data_ptr(),))
    return x.item()


def test_a_kernel_of_c_linkage_is_found_by_its_name(gpu):
    assert [asked_by_name(name) for name in ("within", "outer", "after")] == [2, 4, 5]
    assert asked_by_name("outer", ["plain"]) == 4


def test_another_kernel_is_found_by_a_name_expression_alone(gpu):
    for name, value in {"plain": 1, "&plain": 1, "a::outer": 3, "t<7>": 7}.items():
        assert asked_by_name(name, iter([name])) == value
        with pytest.raises(RuntimeError, match=f"^{NONE.format(name)}; of C linkage: within, outer, after$"):
            asked_by_name(name, ["t<8>"])
    with pytest.raises(RuntimeError, match=NONE.format("absent")):
        asked_by_name("absent")
    with pytest.raises(RuntimeError, match=f"{NONE.format('f')}; of C linkage: none"):
        cupy.RawKernel("__global__ void f() {}", "f")((1,), (1,), ())
    assert cupy.RawModule(code=NAMED, name_expressions=["plain"]).name_expressions == ("plain",)


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
