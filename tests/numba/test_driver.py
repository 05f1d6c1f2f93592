"""The CUDA driver on host memory, as numba-cuda's own functions and arrays ask it."""

import ctypes
import pickle
import threading

import numpy as np
import pytest
import torch

from touchstone import backends
from touchstone.backends import cuda_face, numba
from touchstone.backends.emulator import KernelError, OutOfBounds
from touchstone.backends.gpus import GPUS

if numba.why_not("cpu") or numba.simulated():
    pytest.skip(numba.why_not("cpu") or "NUMBA_ENABLE_CUDASIM is set", allow_module_level=True)

from numba import cuda
from numba.cuda import types
from numba.cuda.cudadrv import driver as stock

from touchstone.backends.emulator.numba import driver, host, install
from touchstone.backends.emulator.numba.packing import allocation_at

TOTAL = 80 << 30


@pytest.fixture(autouse=True, scope="module")
def _installed():
    install()
    if not driver.installed():
        pytest.skip("a GPU is there: numba-cuda's own driver stays")


def ask(name, *arguments):
    return getattr(stock.driver, name)(*arguments)


@pytest.mark.parametrize("allocate", ["cuMemAlloc", "cuMemAllocManaged", "cuMemHostAlloc"])
def test_memory_is_aligned_full_of_nan_and_counted(allocate, monkeypatch):
    flags = [0] * (allocate != "cuMemAlloc")
    before, total = ask("cuMemGetInfo")
    found = ask(allocate, 40, *flags)
    address = int(found)
    assert address % 512 == 0 and (total, ask("cuMemGetInfo")) == (TOTAL, (before - 40, TOTAL))
    assert np.isnan(np.ctypeslib.as_array((ctypes.c_double * 5).from_address(address))).all()
    for at in (address, address + 39):
        assert allocation_at(at).nbytes == 40 and int(ask("cuMemGetAddressRange", at)[0]) == address
        assert ask("cuMemGetAddressRange", at)[1] == 40
    with monkeypatch.context() as without:
        without.setattr(driver, "installed", lambda: False)
        assert allocation_at(address) is None
    for at in (address - 1, address + 40):
        assert allocation_at(at) is None
        with pytest.raises(stock.CudaAPIError, match="cuMemGetAddressRange results in CUDA_ERROR_NOT_FOUND"):
            ask("cuMemGetAddressRange", at)
    ask("cuMemFreeHost" if "Host" in allocate else "cuMemFree", found)
    assert allocation_at(address) is None and ask("cuMemGetInfo") == (before, TOTAL)
    monkeypatch.setattr(driver.np, "full", lambda *_: pytest.fail("of a machine that has more than the device"))
    with pytest.raises(stock.CudaAPIError, match=f"{allocate} results in CUDA_ERROR_OUT_OF_MEMORY"):
        ask(allocate, TOTAL + 1, *flags)
    with pytest.raises(stock.CudaAPIError, match=f"{allocate} results in CUDA_ERROR_INVALID_VALUE"):
        ask(allocate, 0, *flags)


def test_a_device_that_is_reset_has_all_its_memory(monkeypatch):
    monkeypatch.setattr(stock.driver, "memory", {})
    address = int(ask("cuMemAlloc", 40))
    ask("cuDevicePrimaryCtxRelease", 0)
    assert ask("cuMemGetInfo") == (TOTAL - 40, TOTAL)
    ask("cuDevicePrimaryCtxReset", 0)
    assert ask("cuMemGetInfo") == (TOTAL, TOTAL) and allocation_at(address) is None


def test_memory_that_the_machine_has_not_is_no_error_of_pythons(monkeypatch):
    def full(*args):
        raise MemoryError

    monkeypatch.setattr(driver.np, "full", full)
    with pytest.raises(stock.CudaAPIError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        ask("cuMemAlloc", 1 << 20)


def test_bytes_are_set_and_copied_every_way():
    one, two = (int(ask("cuMemAlloc", 8)) for _ in range(2))
    given, taken = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    for to_device, between, back in (
        ("cuMemcpyHtoD", "cuMemcpyDtoD", "cuMemcpyDtoH"),
        ("cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync"),
    ):
        given += 1
        ask(to_device, one, given.ctypes.data, 8)
        ask(between, two, one, 7)
        ask(back, taken.ctypes.data, two, 7)
        assert taken[:7].tolist() == given[:7].tolist()
    for fill in ("cuMemsetD8", "cuMemsetD8Async"):
        ask(fill, two, 5, 3)
        ask("cuMemcpyDtoH", taken.ctypes.data, two, 8)
        assert taken[:3].tolist() == [5] * 3 and taken[3:7].tolist() == given[3:7].tolist()


def test_the_device_tells_what_an_h100_has_and_what_it_does_not_know():
    device = cuda.get_current_device()
    assert (device.MAX_THREADS_PER_BLOCK, device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) == (1024, 232448)
    assert (device.MAX_GRID_DIM_X, device.MAX_GRID_DIM_Y, device.MAX_GRID_DIM_Z) == (2**31 - 1, 65535, 65535)
    assert (device.MAX_BLOCK_DIM_X, device.MAX_BLOCK_DIM_Y, device.MAX_BLOCK_DIM_Z) == (1024, 1024, 64)
    assert (device.MAX_SHARED_MEMORY_PER_BLOCK, device.MAX_REGISTERS_PER_BLOCK) == (49152, 65536)
    assert (device.MAX_THREADS_PER_MULTIPROCESSOR, device.MAX_BLOCKS_PER_MULTIPROCESSOR) == (2048, 32)
    assert device.name == "Touchstone's emulator" and device.id == 0 and device.uuid.startswith("GPU-")
    assert ask("cuDeviceGetCount") == 1 and ask("cuDriverGetVersion") == 13000
    assert not ask("cuDeviceCanAccessPeer", 0, 0)
    with pytest.raises(stock.CudaSupportError, match="MAX_PITCH: an attribute that the emulator's device does not"):
        device.MAX_PITCH  # noqa: B018
    with pytest.raises(AttributeError, match="the driver has no attribute 'launch'"):
        stock.driver.launch  # noqa: B018
    with pytest.raises(stock.CudaSupportError, match="cuGraphCreate: the emulator has no such function"):
        stock.driver.cuGraphCreate  # noqa: B018


def test_a_thread_has_a_stack_of_contexts_of_its_own():
    found = []

    def elsewhere():
        found.append(int(ask("cuCtxGetCurrent")))
        ask("cuCtxPushCurrent", 9)
        found.append(int(ask("cuCtxGetCurrent")))

    current = int(ask("cuCtxGetCurrent"))
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [0, 9] and int(ask("cuCtxGetCurrent")) == current


def test_streams_and_their_callbacks():
    device, told = cuda.get_current_device(), []
    with pytest.raises(AttributeError, match="the device has no attribute 'colour'"):
        device.colour  # noqa: B018
    assert device.get_primary_context() is device.get_primary_context()
    one, two = ask("cuStreamCreate", 0), ask("cuStreamCreate", 0)
    assert one != two and one.value == int(one) != 0
    stream = cuda.stream()
    stream.add_callback(lambda of, status, argument: told.append((of is stream, status, argument)), "word")
    stream.synchronize()
    assert told == [(True, 0, "word")]
    for name, arguments in {
        "cuStreamSynchronize": (one,), "cuStreamWaitEvent": (one, ask("cuEventCreate", 0), 0), "cuCtxSynchronize": (),
        "cuStreamDestroy": (one,), "cuEventQuery": (0,), "cuEventSynchronize": (0,), "cuProfilerStart": (),
        "cuProfilerStop": (), "cuInit": (0,), "cuMemHostRegister": (0, 8, 0), "cuMemHostUnregister": (0,),
    }.items():  # fmt: skip
        assert ask(name, *arguments) is None  # all is done when it returns
    assert int(ask("cuMemHostGetDevicePointer", 4096, 0)) == 4096 and ask("cuCtxGetDevice") == 0


def test_contexts_are_a_stack():
    context = cuda.current_context()
    assert int(ask("cuCtxGetCurrent")) == int(context.handle)
    ask("cuCtxPushCurrent", 7)
    assert ask("cuCtxGetCurrent") == ask("cuCtxPopCurrent") == 7
    assert int(ask("cuCtxGetCurrent")) == int(context.handle)
    popped = ask("cuCtxPopCurrent")
    try:
        assert int(ask("cuCtxGetCurrent")) == 0
        with pytest.raises(stock.CudaAPIError, match="CUDA_ERROR_INVALID_CONTEXT"):
            ask("cuCtxPopCurrent")
    finally:
        ask("cuCtxPushCurrent", popped)


def test_events_have_the_time_at_which_they_were_recorded():
    begin, end = ask("cuEventCreate", 0), ask("cuEventCreate", 0)
    assert int(begin) != int(end)
    ask("cuEventRecord", begin, 0)
    with pytest.raises(stock.CudaAPIError, match="cuEventElapsedTime results in CUDA_ERROR_INVALID_HANDLE"):
        ask("cuEventElapsedTime", begin, end)
    ask("cuEventRecord", end, 0)
    stock.driver.events[int(end)] = stock.driver.events[int(begin)] + 0.25
    assert ask("cuEventElapsedTime", begin, end) == pytest.approx(250)  # milliseconds
    ask("cuEventDestroy", end)
    with pytest.raises(stock.CudaAPIError, match="CUDA_ERROR_INVALID_HANDLE"):
        ask("cuEventElapsedTime", begin, end)
    one, two = cuda.stream(), cuda.stream()
    assert int(one.handle) != int(two.handle)


@cuda.jit("void(float32[:], float32)")
def plus(x, value):
    if cuda.grid(1) < x.size:
        x[cuda.grid(1)] += value


@cuda.jit
def block_sizes(x):
    if cuda.grid(1) < x.size:
        x[cuda.grid(1)] = cuda.blockDim.x


def test_blocks_of_as_many_elements_as_asked_for_have_128_threads():
    x = np.zeros(130, np.int32)
    block_sizes.forall(len(x))(x)
    assert x.tolist() == [128] * 130
    block_sizes.forall(len(x), tpb=64)(x)
    assert x.tolist() == [64] * 130
    tensor = torch.zeros(130, dtype=torch.bfloat16)
    block_sizes.forall(len(tensor))(tensor)
    assert tensor.tolist() == [128] * 130


class AtMostFive:
    """An extension, as `cuda.jit(extensions=[...])` takes them: a kernel works on a copy of an array, of which numbers
    up to 5 come back."""

    def prepare_args(self, kind, value, stream, retr):
        if not isinstance(value, np.ndarray):
            return kind, value
        copy = value.copy()
        retr.append(lambda: np.minimum(copy, 5, out=value))
        return kind, copy


def test_what_an_extension_leaves_to_the_end_of_a_launch_is_done():
    x = np.zeros(5, np.float32)
    cuda.jit(extensions=[AtMostFive()])(plus.py_func)[1, 32](x, 3.0)
    assert x.tolist() == [3.0] * 5
    cuda.jit(extensions=[AtMostFive()])(plus.py_func)[1, 32](x, 3.0)
    assert x.tolist() == [5.0] * 5


def test_an_extension_that_gives_another_kind_of_argument_is_an_error():
    class Number:
        def prepare_args(self, kind, value, stream, retr):
            return types.float32, 1.0

    with pytest.raises(TypeError, match=r"^plus: 2 values for \d+ parameters$"):
        cuda.jit(extensions=[Number()])(plus.py_func)[1, 32](np.zeros(5, np.float32), 3.0)


def test_a_kernel_can_be_sent_to_another_process():
    x = np.zeros(5, np.float32)
    pickle.loads(pickle.dumps(plus))[1, 32](x, 2)
    assert x.tolist() == [2] * 5
    (compiled,) = plus.overloads.values()
    sent = pickle.loads(pickle.dumps(compiled))
    assert sent.argument_types == compiled.argument_types == plus.signatures[0] and sent.__name__ == "plus"
    sent.launch((x, 3.0), (1, 1, 1), (32, 1, 1))
    assert x.tolist() == [5] * 5


def test_who_is_told_of_launches_is_told_what_they_reach(monkeypatch):
    begun, ended = [], []
    monkeypatch.setattr(backends, "before_launch", [lambda reached: begun.extend(reached)])
    monkeypatch.setattr(backends, "after_launch", [lambda: ended.append(x.tolist())])
    x, before = np.zeros(5, np.float32), backends.launches()[backends.EMULATOR]
    plus[1, 32](x, 2)
    assert [(one.start, one.bytes) for one in begun] == [(x.ctypes.data, 20)] and ended == [[2] * 5]
    assert backends.launches()[backends.EMULATOR] == before + 1


def test_as_many_blocks_at_once_as_the_threads_of_an_h100_allow():
    (kernel,) = plus.overloads.values()
    assert kernel.max_cooperative_grid_blocks(1024) == 2 * 132
    assert kernel.max_cooperative_grid_blocks((16, 8, 2)) == 8 * 132
    assert kernel.max_cooperative_grid_blocks(32) == 32 * 132  # no more blocks than that
    assert kernel.max_threads_per_block == 1024


@cuda.jit(device=True)
def within(x):
    x[0] = 1


def test_a_device_function_is_no_kernel():
    with pytest.raises(RuntimeError, match="^Cannot compile a device function as a kernel$"):
        within[1, 1](np.zeros(1, np.float32))


@cuda.jit
def stopping(x):
    breakpoint()
    x[cuda.threadIdx.x] = cuda.threadIdx.x


def test_a_breakpoint_for_a_debugger_that_is_not_there_does_nothing():
    x = np.full(4, 9)
    stopping[1, 4](x)
    assert x.tolist() == [0, 1, 2, 3]


def test_a_stream_where_a_gpu_is_there_and_left_alone():
    stream = host.Stream()
    with stream.auto_synchronize() as within:
        assert within is stream
    assert not stream and stream == host.Stream() and len({stream, host.Stream()}) == 1 and stream != 0
    stream.synchronize()


def test_host_arrays_where_a_gpu_is_there_and_left_alone():
    x = host.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert isinstance(x, host.DeviceArray) and x.copy_to_host().tolist() == [[0, 1, 2], [3, 4, 5]]
    out = np.zeros((2, 3), np.float32)
    assert x.copy_to_host(out) is out and out.sum() == 15
    kept = x.copy_to_host()
    x.copy_to_device(out + 1)
    assert x.sum() == 21 and kept.sum() == 15 and type(kept) is np.ndarray
    assert host.to_device(out, to=x) is x and x.sum() == 15
    turned = np.asfortranarray(out)
    assert host.device_array_like(turned).flags.f_contiguous and not host.device_array_like(turned).flags.c_contiguous
    assert host.device_array_like(out).flags.c_contiguous and np.isnan(host.device_array_like(out)).all()
    assert host.device_array((2, 3), np.int16).tolist() == [[-1] * 3] * 2
    assert np.isnan(host.host_array(4, np.float16)).all() and host.device_array(0).shape == (0,)
    assert host.device_array((4, 6), order="F").flags.f_contiguous


def test_a_tensor_that_lies_on_the_gpu_is_no_copy(monkeypatch):
    x, brain = torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)
    for answers, on_host, copied in ((None, False, True), ("sm_90", True, True), ("sm_90", False, False)):
        monkeypatch.setattr(host.cuda_face, "answers", lambda answers=answers: answers)
        monkeypatch.setattr(host.cuda_face, "on_host", lambda tensor, on_host=on_host: on_host)
        found = host.to_device(x)
        assert isinstance(found, host.DeviceArray) and (found.ctypes.data != x.data_ptr()) == copied
    assert host.to_device(brain) is brain


def test_of_compiling_for_the_cpu_nvidias_headers_are_no_part(monkeypatch):
    from touchstone.backends.emulator import compiler, numba

    monkeypatch.setattr(compiler, "cuda_headers", lambda: None)
    assert numba.why_not() is None and "headers" in compiler.why_not()
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    assert "compiler" in numba.why_not()


@cuda.jit
def _seven(x):
    x[cuda.grid(1)] = 7


def test_a_tensor_beside_the_gpu_is_refused_where_one_is_asked_for():
    host, empty = torch.zeros(4), torch.zeros(0)
    _seven[1, 4](host)
    assert host.eq(7).all()
    with cuda_face.answering(GPUS["sm_90"]):
        _seven[1, 4](torch.zeros(4, device="cuda"))
        _seven[1, 1](torch.zeros(1, device="cuda")[:1])
        for made in (torch.zeros(4), host.cpu()):
            with pytest.raises(KernelError, match="_seven: x: a tensor on the CPU, whose memory no GPU reaches"):
                _seven[1, 4](made)
        with pytest.raises(OutOfBounds):
            _seven[1, 1](empty)
