"""Which of the two ways to run Numba's kernels on the CPU was taken is said, and what is patched for it is
explained."""

import pytest

from tests.processes import output_of, run_touchstone
from touchstone.backends import numba

if numba.why_not("cpu"):
    pytest.skip(numba.why_not("cpu"), allow_module_level=True)


@pytest.mark.parametrize(("simulator", "target"), [("0", "numba@cpu"), ("1", "numba@simulator")])
def test_the_header_and_the_ids_name_what_runs_the_kernels(simulator, target):
    asked = ["--backend=numba", "--op=softmax", "--variant=naive", "--quick", "--device=cpu", "--collect-only"]
    command = ["-m", "pytest", "touchstone/conformance/suite/test_kernels.py", *asked, "-p", "no:cacheprovider"]
    done = run_touchstone(command, environment={"NUMBA_ENABLE_CUDASIM": simulator})
    assert f"touchstone: targets {target}; level quick; seed 0" in done.stdout, done.stdout + done.stderr
    ids = [line for line in done.stdout.splitlines() if "test_kernel[" in line]
    assert len(ids) > 10 and all(f"[softmax-{target}-naive-" in line for line in ids)


@pytest.mark.level("default")
def test_a_report_names_what_ran():
    code = """
from touchstone.backends import numba
numba.prepare("cpu")
from touchstone.conformance.discovery import registry, selection
from touchstone.conformance.reporting.session import judge_subject
from touchstone.conformance.spec.narrowing import Narrowing
subject = selection.variant_subject("softmax", "numba", "naive", registry.variants("numba", "softmax")["naive"], "cpu")
few = Narrowing(dtypes=("float32",), where=lambda case: case.size["rows"] < 4)
report = judge_subject(subject, "quick", narrowing=few, isolate="none")
assert report.passed, report
print(report)
"""
    assert "softmax: naive on numba@simulator, level quick" in output_of(code, NUMBA_ENABLE_CUDASIM="1")
    assert "softmax: naive on numba@cpu, level quick" in output_of(code)


def test_doctor_says_what_is_patched_and_why():
    done = output_of("""
import numpy
numpy.__dict__.pop("row_stack", None)
from touchstone.backends import numba
rows = {what: (value, note) for what, value, note in numba.doctor()}
value, note = rows["patch: np.row_stack"]
assert value == "np.vstack stands in" and "NumPy 2.5 has removed it" in note
print(sorted(what for what in rows if what.startswith("patch: ")))
""")
    assert "patch: indexing" in done and "patch: get_current_device" in done


@pytest.mark.parametrize("first", ["on_the_engine", "for_a_gpu"])
def test_a_process_compiles_for_the_engine_and_for_a_gpu(first):
    """Whichever comes first, neither finds the other's device functions, helpers, checks or shared memory."""
    code = """
import torch
from numba import cuda, float32
from touchstone.backends.emulator import errors
from touchstone.backends.emulator.numba import install, launch
from touchstone.backends.numba import restore_row_stack
from touchstone.backends.numba.runtime import compiling

restore_row_stack()

@cuda.jit(device=True)
def at(x, i):
    return float32(x[i:][0])  # a helper of Numba's slices, another converts bfloat16

@cuda.jit
def reverse(x, y):
    row = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    row[i] = at(x, i)
    cuda.syncthreads()
    y[i] = row[63 - i]

def on_the_engine():
    y = torch.zeros(64)
    launch(reverse, 1, 64, (torch.arange(64).bfloat16(), y))
    assert y[0] == 63, y
    try:
        launch(reverse, 1, 64, (torch.arange(60).bfloat16(), y))
    except errors.OutOfBounds as error:
        assert "uses index 0 in axis 0 of" in str(error), error
    else:
        raise AssertionError("what lies beyond 60 elements was not seen")

def for_a_gpu():
    with compiling.recording() as launches:
        reverse[1, 64](torch.zeros(64).bfloat16(), torch.zeros(64))
    ptx = compiling.ptx_with_lines(launches[0], "sm_90")
    assert ".shared" in ptx and "ts_" not in ptx, ptx

steps = [on_the_engine, for_a_gpu]
for step in (steps if FIRST == "on_the_engine" else steps[::-1]) * 2:
    step()
install()
for_a_gpu()
"""
    output_of(f"FIRST = {first!r}\n{code}", TOUCHSTONE_CACHE="")


def test_a_launch_on_arrays_of_a_gpu_goes_there():
    """Though the process also runs kernels on the CPU: stood for by an array that says where it lies, and a driver that
    is said to be there."""
    code = """
import numpy as np
from numba import cuda
from numba.cuda import dispatcher

went = []
dispatcher.CUDADispatcher.call = lambda self, args, configuration: went.append(args)

from touchstone.backends import numba
numba.restore_row_stack()
from touchstone.backends.emulator.numba import driver

driver.available = lambda: True
numba.prepare("cpu")
numba.prepare("cuda") if numba.why_not("cuda") is None else None

class There:
    __cuda_array_interface__ = {}

@cuda.jit
def double(x):
    x[cuda.grid(1)] *= 2

x = np.ones(32, np.float32)
double[1, 32](x)
assert x.sum() == 64 and not went
double[1, 32](There())
double[1, 32]((There(), 1))
assert len(went) == 2
"""
    output_of(code)


@pytest.mark.slow
def test_another_engine_in_the_process_keeps_its_own_functions():
    """Numba's code makes the engine's names visible to every library; CUDA C that switches stacks by ucontext has an
    engine of its own."""
    code = '''
import torch
from numba import cuda
from touchstone.backends import emulator
from touchstone.backends.emulator import instruments
from touchstone.backends.emulator.numba import launch

@cuda.jit
def double(x):
    x[cuda.threadIdx.x] *= 2

SOURCE = """
extern "C" __global__ void turn(float* x) {
  float mine = x[threadIdx.x];
  __syncthreads();
  x[63 - threadIdx.x] = mine;
}
"""
x = torch.arange(64.0)
launch(double, 1, 64, (x,))
with instruments.using(portable=True):
    emulator.compile(SOURCE, "turn.cu").launch("turn", 1, 64, (x,))
assert torch.equal(x, 2 * torch.arange(64.0).flip(0)), x
'''
    output_of(code)


@pytest.mark.level("default")
def test_kernels_run_on_the_cpu_of_a_machine_whose_driver_sees_no_gpu():
    code = """
import torch
from touchstone.backends import numba
numba.prepare("cpu")
from touchstone.backends.numba import softmax
x = torch.randn(3, 33)
assert torch.allclose(softmax.naive(x), x.softmax(1), atol=1e-6)
"""
    output_of(code, CUDA_VISIBLE_DEVICES="")
