"""What a Numba CUDA program does around its kernels: signatures, device memory, streams, exceptions, whole scripts."""

import os
import subprocess
import sys

import numpy as np
import pytest

from touchstone.backends import emulator, numba

if numba.why_not("cpu") or numba.simulated():
    pytest.skip(numba.why_not("cpu") or "NUMBA_ENABLE_CUDASIM is set", allow_module_level=True)

from numba import cuda, float32, guvectorize, int32, vectorize
from numba.cuda.kernels.transpose import transpose

from touchstone.backends.emulator.numba import driver, install, script
from touchstone.backends.emulator.numba.errors import UnsupportedCode


@pytest.fixture(autouse=True, scope="module")
def _installed():
    install()
    if not driver.installed():
        pytest.skip("a GPU is there: numba-cuda's own driver stays")


@cuda.jit
def add(x, value):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += value


@cuda.jit
def unguarded(x):
    x[cuda.threadIdx.x] = 0


def unguarded_scalar(x):
    x[()] *= 2


def test_the_device_is_told():
    assert cuda.is_available() and len(cuda.gpus) == 1
    device = cuda.get_current_device()
    assert device.compute_capability == (9, 0) and device.WARP_SIZE == 32 and device.MULTIPROCESSOR_COUNT == 132
    assert cuda.detect()
    with pytest.raises(AttributeError, match="no attribute 'SPEED'"):
        device.SPEED  # noqa: B018


def test_an_eager_signature_types_at_once_and_casts_arguments():
    kernel = cuda.jit("void(float32[:], float32)")(add.py_func)
    assert kernel.signatures == [(float32[:], float32)]
    x = np.arange(4, dtype=np.float32)
    kernel[1, 32](x, 3)  # an int
    assert x.tolist() == [3, 4, 5, 6]
    with pytest.raises(TypeError, match="x: expected an array of float32 with 1 axes, got one of complex128"):
        kernel[1, 32](x.astype(np.complex128), 3)
    with pytest.raises(Exception, match="nowhere"):
        cuda.jit("void(int32)")(lambda n: nowhere)  # noqa: F821


def test_device_arrays_are_numbas_own():
    x = cuda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    assert type(x).__name__ == "DeviceNDArray" and x.device_ctypes_pointer.value % 256 == 0
    add[1, 32](x[1], 10)
    assert x.copy_to_host().sum(1).tolist() == [6, 62, 38]
    alias = cuda.as_cuda_array(x)
    alias[0] = 7
    assert x.copy_to_host()[0].tolist() == [7] * 4
    single = cuda.to_device(np.float32(2).reshape(()))
    cuda.jit(unguarded_scalar)[1, 1](single)
    assert single.copy_to_host() == 4
    assert np.isnan(cuda.device_array(5).copy_to_host()).all()
    assert transpose(x).copy_to_host().tolist() == x.copy_to_host().T.tolist()
    with pytest.raises(emulator.OutOfBounds, match="index 4 in axis 0 of x, which has 4"):
        unguarded[1, 5](x[1])


@pytest.mark.parametrize("make", [cuda.managed_array, cuda.mapped_array, cuda.pinned_array])
def test_memory_of_host_and_device(make):
    x = make(5, np.float32)
    x[:] = 1
    add[1, 32](x, 2)
    assert x.tolist() == [3] * 5


def test_streams_events_and_callbacks():
    stream, begin, end, told = cuda.stream(), cuda.event(), cuda.event(), []
    x = cuda.to_device(np.zeros(4, np.float32), stream=stream)
    begin.record(stream)
    add[1, 32, stream](x, 1)
    end.record(stream)
    stream.add_callback(lambda *all: told.append(all[1:]), "done")
    stream.synchronize()
    assert begin.elapsed_time(end) > 0 and end.query() and told == [(0, "done")]
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_HANDLE"):
        begin.elapsed_time(cuda.event())


def test_arguments_that_are_only_read_stay():
    x = np.zeros(4, np.float32)
    add[1, 32](cuda.In(x), 1)
    assert not x.any()
    add[1, 32](cuda.InOut(x), 1)
    assert x.all()


def test_a_host_array_at_an_odd_address_is_copied():
    x = np.zeros(33, np.uint8)[1:].view(np.float32)
    assert not x.flags.aligned
    add[1, 32](x, 2)
    assert x.tolist() == [2] * 8


@cuda.jit
def reshaped(x, out):
    for i, row in enumerate(x.reshape((3, 2))):
        out[i] = row[0] + row[1]


def test_reshape_and_pointers():
    out = np.zeros(3, np.float32)
    reshaped[1, 1](np.arange(6, dtype=np.float32), out)
    assert out.tolist() == [1, 5, 9]


def test_a_debug_kernel_raises_the_class_with_its_place():
    class Refused(Exception):
        pass

    @cuda.jit("void(int32)", debug=True, opt=False)
    def kernel(n):
        if cuda.threadIdx.x == 2 and n == 1:
            raise Refused("one")

    kernel[1, 3](0)
    with pytest.raises(Refused, match=r"In function 'kernel', .*, tid=\[0, 0, 2\] ctaid=\[0, 0, 0\]: one") as caught:
        kernel[1, 3](1)
    assert isinstance(caught.value, emulator.KernelError)


def test_an_integer_beyond_its_type_wraps():
    kernel = cuda.jit("void(int32[:], int32)")(add.py_func)
    x = np.zeros(1, np.int32)
    kernel[1, 1](x, 0xFFFFFFFF)
    assert x.tolist() == [-1]


def test_universal_functions():
    @vectorize(["float32(float32, float32)"], target="cuda")
    def twice(a, b):
        return a + 2 * b

    x = np.arange(5, dtype=np.float32)
    assert twice(x, x).tolist() == (3 * x).tolist()

    @guvectorize([(int32[:], int32[:])], "(n)->()", target="cuda")
    def total(row, out):
        out[0] = 0
        for value in row:
            out[0] += value

    assert total(np.arange(6, dtype=np.int32).reshape(2, 3)).tolist() == [3, 12]


def test_what_is_not_there_is_named():
    kernel = cuda.jit("void(float32[:], float32)")(add.py_func)
    with pytest.raises(UnsupportedCode, match="add: regs_per_thread"):
        kernel.get_regs_per_thread()
    with pytest.raises(Exception, match="cuIpcGetMemHandle: the emulator has no such function"):
        cuda.to_device(np.zeros(4)).get_ipc_handle()


def test_what_a_processor_has_and_no_gpu_is_no_device_code(tmp_path):
    linked = tmp_path / "linked.cu"
    linked.write_text(
        'extern "C" int getppid();\nstatic int at_load = getppid();\n'
        'extern "C" __device__ int linked(int* out) { *out = at_load; return 0; }\n'
    )
    for name, where in (("getpid", []), ("__nv_getpid", []), ("linked", [str(linked)])):
        kernel = _asking(cuda.declare_device(name, int32(), link=where))
        with pytest.raises(emulator.CompileError, match="getp+id, which no GPU has"):
            kernel[1, 1](np.zeros(1, np.int32))


def _asking(function):
    @cuda.jit
    def kernel(x):
        x[0] = function()

    return kernel


PROGRAM = """
import sys
import numpy as np
from numba import cuda
@cuda.jit
def fill(x):
    x[cuda.grid(1)] = 1
if __name__ == "__main__":
    x = cuda.to_device(np.zeros(50))
    try:
        fill[1, int(sys.argv[1])](x)
    except RuntimeError:
        pass
    print("sum", x.copy_to_host().sum())
    sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(PROGRAM)
    return path


def test_a_script_runs_as_it_is_and_what_it_swallows_is_a_finding(program):
    command = [sys.executable, "-m", "touchstone.backends.emulator", "--numba", str(program), "51", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "OutOfBounds: fill (user.py:7)" in done.stderr, done.stdout + done.stderr
    assert "sum 50" in done.stdout and "1 launches, 1 findings" in done.stderr


RACE = """
import numpy
from numba import cuda
@cuda.jit
def total(x, out):
    if cuda.grid(1) < x.size:
        out[0] += x[cuda.grid(1)]
out = numpy.zeros(1)
total[4, 32](numpy.ones(100), out)
print("total", out[0])
"""


def test_a_script_runs_under_the_race_detector_unless_it_is_told_not_to(tmp_path, capsys):
    from touchstone.backends.emulator.__main__ import main

    program = tmp_path / "race.py"
    program.write_text(RACE)
    assert main(["--numba", str(program)]) == 1
    said = capsys.readouterr()
    assert "RaceCondition: total (race.py:7)" in said.err and "1 launches, 1 findings" in said.err
    assert main(["--no-races", "--numba", str(program)]) == 0
    said = capsys.readouterr()
    assert "total 100.0" in said.out and "1 launches, 0 findings" in said.err


def test_without_a_finding_a_script_exits_as_it_says(program, capsys):
    before = list(sys.argv), list(sys.path)
    assert script.run(program, ["50", "5"]) == 5
    assert script.run(program, ["50", "0"]) == 0
    assert script.run(program, ["51"]) == 1  # a finding outweighs the IndexError that follows
    assert script.run(program, ["fifty"]) == 2
    assert "ValueError" in capsys.readouterr().err and before == (sys.argv, sys.path)


def test_a_script_that_is_none_is_refused(tmp_path, capsys):
    from touchstone.backends.emulator.__main__ import main

    assert main(["--numba", str(tmp_path / "none.py")]) == 2
    assert "none.py: expected a Python file, found none" in capsys.readouterr().err


KERNEL = """
import sys, numpy
from numba import cuda
@cuda.jit
def fill(x, n):
    if cuda.grid(1) < n:
        x[cuda.grid(1)] = 3
x = numpy.zeros(40)
fill[2, 32](x, int(sys.argv[1]))
assert (x == 3).all()
"""
NOTHING_YET = "import sys; assert sys.of_their_own and not {'numba', 'touchstone'} & set(sys.modules)"
IN_A_FOLDER = """
import os, sys
for name in sys.argv[1:]:
    assert any(os.path.isfile(os.path.join(folder, *name.split("/"))) for folder in sys.path), (name, sys.path)
"""
STARTS = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {!r}, *sys.argv[1:]]).returncode)"


def test_a_python_that_a_script_starts_is_emulated_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.of_their_own = True")
    program = tmp_path / "starts.py"
    program.write_text(STARTS.format(KERNEL))
    assert script.run(program, ["40"]) == 0
    assert script.run(program, ["41"]) == 1  # out of bounds
    program.write_text(STARTS.format(NOTHING_YET))
    assert script.run(program) == 0
    program.write_text(STARTS.format(IN_A_FOLDER))
    assert script.run(program, ["sitecustomize.py", "touchstone/__init__.py"]) == 0  # wherever the program runs
    assert os.environ["PYTHONPATH"] == str(tmp_path)
