"""The emulator around the kernels: compiler, cache, processes, cores, the portable switch, the command line."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch

from tests.processes import run_python, run_touchstone, with_touchstone
from touchstone import backends
from touchstone.backends import NotRun, emulator
from touchstone.backends.emulator import __main__ as command
from touchstone.backends.emulator import compiler, instruments, source, unit
from touchstone.backends.storage import files
from touchstone.backends.storage.artefacts import store

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

ROOT = Path(__file__).parents[2]
SOURCE = r"""
extern "C" __global__ void reverse(const float* x, float* y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  float v = __shfl_xor_sync(0xffffffffu, tile[63 - threadIdx.x], 1);
  y[blockIdx.x * 64 + threadIdx.x] = __shfl_xor_sync(0xffffffffu, v, 1);
}
extern "C" __global__ void ends_early(float* y) {
  if (threadIdx.x < 5) return;
  __syncthreads();
}
extern "C" __global__ void deep(float* y, int depth) {
  volatile float room[6000];
  for (int i = 0; i < 6000; ++i) room[i] = i;
  __syncthreads();
  y[threadIdx.x] = room[depth];
}
"""
SCRIPT = """
import os, sys, torch
from touchstone.backends import emulator
program = emulator.compile(open(sys.argv[1]).read(), "machinery.cu", defines={"UNIQUE": sys.argv[2]})
x = torch.arange(512.0); y = torch.zeros(512)
program.launch("reverse", 8, 64, (x, y))
assert torch.equal(y, x.view(8, 64).flip(1).flatten())
"""
NAMES = """
import torch
from touchstone.backends.storage.artefacts import Store
from touchstone.conformance.discovery import registry
names = set()
def noting(function):
    return lambda self, name, *rest: (names.add(name), function(self, name, *rest))[1]
Store.file, Store.load = noting(Store.file), noting(Store.load)
for name in ("cupy", "numba"):
    registry.backend(name).prepare("cpu")
    fn = registry.variants(name, "transpose")["naive"]
    assert torch.equal(fn(torch.arange(6.0).view(2, 3)), torch.arange(6.0).view(2, 3).t())
print(*sorted(names), sep="\\n")
"""


@pytest.fixture(scope="module")
def program():
    return emulator.compile(SOURCE, "machinery.cu")


def check(program):
    x, y = torch.arange(6400.0), torch.zeros(6400)
    program.launch("reverse", 100, 64, (x, y))
    assert torch.equal(y, x.view(100, 64).flip(1).flatten())


@pytest.fixture
def kernel_file(tmp_path):
    file = tmp_path / "machinery.cu"
    file.write_text(SOURCE)
    return file


def fresh(*arguments, **variables):
    return run_touchstone(list(arguments), environment=variables)


def test_portable_switch(program):
    with instruments.using(portable=True, strict=True):
        check(program)
        with pytest.raises(emulator.DivergentBarrier):
            program.launch("ends_early", 1, 32, (torch.zeros(1),))
        check(program)
    assert len(program._built) == 2


def test_blocks_on_several_cores(program, monkeypatch):
    monkeypatch.setattr(instruments, "workers", lambda: 4)
    for _ in range(10):
        check(program)
        with pytest.raises(emulator.DivergentBarrier), emulator.strict():
            program.launch("ends_early", 50, 32, (torch.zeros(1),))


def test_number_of_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert instruments.workers() == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert instruments.workers() == len(os.sched_getaffinity(0))


def test_fork_after_a_launch(program, monkeypatch):
    monkeypatch.setattr(instruments, "workers", lambda: 3)
    check(program)
    before = len(os.listdir("/proc/self/task"))
    check(program)
    assert len(os.listdir("/proc/self/task")) == before  # no thread outlives a launch
    child = os.fork()
    if child == 0:
        try:
            check(program)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_launch_counts_as_a_kernel_running(program, monkeypatch):
    launches = backends.launches().total()
    check(program)
    assert backends.launches().total() == launches + 1 and not backends.kernel_running()


def test_a_launch_tells_what_memory_it_reaches(monkeypatch):
    """Arrays, those in lists, those that other arrays hold the addresses of, and variables."""
    found = []
    monkeypatch.setattr(backends, "before_launch", [found.extend])
    x, y, z = torch.zeros(4), torch.zeros(8), torch.zeros(16)
    made = emulator.compile(
        "__device__ int seen[3]; __constant__ int fixed[5];\n"
        "__global__ void k(float* x, float** y, int n) { x[0] = y[0][0] + n + fixed[0]; seen[0] = n; }",
        "reached.cu",
    )
    made.launch("k", 1, 1, (x, [y], 3), memory=[z])
    reached = {(each.start, each.bytes) for each in found}
    assert {(each.data_ptr(), 4 * each.numel()) for each in (x, y, z)} <= reached
    assert sorted(each.bytes for each in found) == sorted([16, 32, 64, 12, *(20,) * (len(found) - 4)])


def test_large_local_arrays(program):
    y = torch.zeros(64)
    program.launch("deep", 1, 64, (y, 5999))
    assert (y == 5999).all()


@pytest.mark.level("default")
def test_two_processes_compile_at_once(kernel_file, tmp_path):
    variables = with_touchstone(TOUCHSTONE_CACHE=str(tmp_path / "cache"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    running = [
        subprocess.Popen([sys.executable, str(script), str(kernel_file), "1"], env=variables, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    kept = sorted(file.suffix for file in (tmp_path / "cache").iterdir())
    precompiled = [".gch", ".h"] if ".gch" in kept else [".h"]
    narrow = [*precompiled, *precompiled]  # the preprocessor knows the macros of the 16-bit types too
    artefacts = sorted([*narrow, ".json", ".so", ".so"])
    assert [suffix for suffix in kept if suffix not in ("", ".lock", ".sha256")] == artefacts
    assert kept.count(".sha256") == len(artefacts)


def test_the_engine_holds_all_its_files_and_compiles_without_a_warning():
    folder = compiler.ENGINE
    included = re.findall(r'^#include "(\w+\.cpp)"$', (folder / "engine.cpp").read_text(), re.M)
    assert sorted([*included, "engine.cpp"]) == sorted(file.name for file in folder.glob("*.cpp"))
    asked = [*compiler.compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run([*asked, str(folder / "engine.cpp")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_key_of_the_engine_covers_all_its_files(monkeypatch, tmp_path):
    folder = tmp_path / "engine"
    shutil.copytree(compiler.ENGINE, folder)
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "ENGINE", folder)
    monkeypatch.setattr(compiler, "build", lambda command, output, what: output.touch())
    monkeypatch.setattr(compiler, "own_text", compiler.own_text.__wrapped__)  # read at every call
    before = compiler.engine()
    assert compiler.engine() == before
    for file in sorted(folder.iterdir()):
        text = file.read_text()
        file.write_text(text + "// changed\n")
        assert compiler.engine() != before, file.name
        file.write_text(text)


def test_compiled_once(program, monkeypatch):
    def refuse(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "build", refuse)
    emulator.compile(SOURCE, "machinery.cu")
    with pytest.raises(AssertionError, match="compiled again"):
        emulator.compile(SOURCE, "machinery.cu", defines={"tile": "other"})


@pytest.mark.parametrize(
    "kept", ["[]", '["", [], [["scale", false]], [], [], [], {}, []]', "{", "[1, 2, 3, 4, 5, 6, 7, 8]"]
)
def test_what_is_kept_in_another_form_is_made_anew(kept, monkeypatch, tmp_path):
    """A process whose files were changed while it ran keeps its own form under the name of theirs."""
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path))
    given = (SOURCE, "machinery.cu", {}, [], 90)
    right = unit.unit(*given)
    (name,) = [file.name for file in tmp_path.glob("machinery*.json")]
    assert store().keep(name, kept.encode()) and unit.unit(*given) == right
    assert unit._read(store().load(name)) == right


def test_another_clone_finds_what_this_one_compiled(tmp_path):
    """Kernels of ours in CUDA C and in Numba, though the folders of sources and headers are others."""
    for name in ("touchstone", "backends", "conformance", "reference"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(files.ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    kept = []
    for folder in (files.ROOT, tmp_path):
        done = run_python(["-c", NAMES], folder, environment={"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        kept.append([name for name in done.stdout.split() if name.startswith(("direct_", "numba_"))])  # and no header
    assert {"direct", "numba"} == {name.partition("_")[0] for name in kept[0]}
    assert kept[0] == kept[1]


def test_no_compiler_is_said(kernel_file, tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert emulator.why_not() == (
        "no C++ compiler is found: install g++ or clang++ (Debian, Ubuntu: apt install g++), or set CXX"
    )
    with pytest.raises(RuntimeError, match="install g"):
        emulator.compile(SOURCE, "never.cu")
    monkeypatch.setenv("CXX", "/nowhere/g++ -O1")
    assert emulator.why_not() == "the compiler that CXX names, '/nowhere/g++ -O1', is not found"


def test_a_machine_without_a_folder_for_temporary_files(monkeypatch, tmp_path):
    """Such as a container that is read-only but for the cache's folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path / "cache"))
    y = torch.zeros(64)
    emulator.compile(f"// {tmp_path}\n{SOURCE}", "elsewhere.cu").launch("deep", 1, 64, (y, 5999))
    assert (y == 5999).all()


@pytest.mark.parametrize(
    ("ending", "said"), [("kill -9 $$", "signal 9"), ("echo 'cc1plus: out of memory' >&2; exit 1", "stopped")]
)
def test_a_preprocessor_that_is_stopped_says_nothing_of_the_source(monkeypatch, tmp_path, ending, said):
    emulator.compile(SOURCE, "machinery.cu")  # of which there is everything but what another text needs
    real = subprocess.run
    stopped = ["sh", "-c", ending]

    def run(command, **options):
        return real(stopped if "-E" in command else command, **options)

    monkeypatch.setattr(compiler.subprocess, "run", run)
    with pytest.raises(NotRun, match=said):
        emulator.compile(f"// {tmp_path}\n{SOURCE}", "machinery.cu")


def test_no_headers_are_said(monkeypatch):
    monkeypatch.setattr(compiler, "cuda_headers", lambda: None)
    assert "pip install nvidia-cuda-runtime" in str(emulator.why_not())


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_headers_of_a_toolkit_are_found(variable, tmp_path, monkeypatch):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    include = tmp_path / "include"
    (include / "crt").mkdir(parents=True)
    names = ("cuda_fp16.h", "cuda_bf16.h", "vector_types.h", "crt/host_defines.h")
    monkeypatch.setenv(variable, str(tmp_path))
    for name in names:
        assert compiler.cuda_headers() != include
        (include / name).touch()
    assert compiler.cuda_headers() == include


def test_headers_of_the_latest_wheel_that_has_all_come_before_a_toolkits(tmp_path, monkeypatch):
    names = ("cuda_fp16.h", "cuda_bf16.h", "vector_types.h", "crt/host_defines.h")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path / name))
    folders = [*(tmp_path / f"nvidia/{wheel}/include" for wheel in ("cu14", "cu13", "cu12")),
               tmp_path / "CUDA_HOME/include", tmp_path / "CUDA_PATH/include"]  # fmt: skip
    for folder in folders:
        (folder / "crt").mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(compiler.importlib.util, "find_spec", {"nvidia": spec}.get)
    for folder, lost in zip(folders, names + names[:1], strict=True):
        assert compiler.cuda_headers() == folder
        (folder / lost).unlink()
    assert compiler.cuda_headers() in (None, Path("/usr/local/cuda/include"))

    def fails(name):
        raise ValueError

    (folders[-1] / names[0]).touch()
    for found in (lambda name: types.SimpleNamespace(submodule_search_locations=None), fails):
        monkeypatch.setattr(compiler.importlib.util, "find_spec", found)
        assert compiler.cuda_headers() == folders[-1]


def test_a_source_that_does_not_compile():
    with pytest.raises(emulator.CompileError, match=r"broken.cu:3:\d+: error"):
        emulator.compile('\nextern "C" __global__ void k(float* x) {\n  x[0] = nonsense;\n}\n', "broken.cu")
    with pytest.raises(emulator.CompileError, match="broken.cu: cannot read the shared declaration"):
        emulator.compile("__global__ void k() { __shared__ ; }", "broken.cu")


def test_structures_match_the_engine(program):
    from touchstone.backends.emulator.library import Report

    assert program._load(()).engine.ts_report_bytes() == ctypes.sizeof(Report)


def test_lines_stay_where_they_are():
    text = SOURCE.replace("__shared__ float tile[64];", "__shared__ float\n  tile[64];")
    assert source.rewrite(text).count("\n") == text.count("\n")


def test_quoted_headers_are_rewritten_too(tmp_path):
    (tmp_path / "part.cuh").write_text(
        "#pragma once\n__device__ inline float twice(float v) {\n  __shared__ float s[32];\n"
        "  s[threadIdx.x] = v;\n  return s[threadIdx.x + OFF] * 2;\n}\n"
    )
    text = (
        '#include "part.cuh"\n#include "part.cuh"\nextern "C" __global__ void k(float* x) {\n  x[0] = twice(x[0]);\n}\n'
    )
    x = torch.ones(1)
    emulator.compile(text, "whole.cu", {"OFF": 0}, [str(tmp_path)]).launch("k", 1, 1, (x,))
    assert x.item() == 2
    with pytest.raises(emulator.UninitialisedShared, match=r"k \(part.cuh:5\)"):
        emulator.compile(text, "whole.cu", {"OFF": 1}, [str(tmp_path)]).launch("k", 1, 1, (x,))


def test_command_line(tmp_path, capsys):
    file = tmp_path / "scale.cu"
    file.write_text(
        "__global__ void scale(float* x, float by, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n + OVER) x[i] *= by;\n}\n"
        "#ifndef TOUCHSTONE_EMULATOR\nint main() { scale<<<1, 1>>>(nullptr, 1.0f, 0); }\n#endif\n"
    )
    call = [str(file), "--grid", "4", "--block", "32", "--arg", "float[100]=2", "--arg", "1.5", "--arg", "100"]
    assert command.main([*call, "-D", "OVER=0"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[:5]] == ["forward", "reverse", "shuffled", "locals", "races"]
    assert "argument 1 after scale: 3, 3, 3" in out
    assert command.main([*call, "-D", "OVER=1"]) == 1
    assert "OutOfBounds: scale (scale.cu:3): block (3, 0, 0), thread (4, 0, 0)" in capsys.readouterr().out
    assert command.main([*call[:-1], "1.5.5", "-D", "OVER=0"]) == 2
    assert "--arg 1.5.5: expected an array" in capsys.readouterr().err


def test_command_line_in_a_fresh_process(tmp_path):
    file = tmp_path / "lost.cu"
    file.write_text("__global__ void lost(int* x) {\n  x[0] += 1;\n}\n")
    done = fresh("-m", "touchstone.backends.emulator", str(file), "--grid", "2", "--block", "8", "--arg", "int[1]=0")
    assert done.returncode == 1, done.stderr
    assert "races     RaceCondition: lost (lost.cu:2): x[0]" in done.stdout


def test_command_line_compares_the_orders(tmp_path, capsys):
    file = tmp_path / "order.cu"
    file.write_text("__global__ void order(int* x) {\n  x[0] = x[0] * 3 + threadIdx.x;\n}\n")
    assert command.main([str(file), "--block", "8", "--arg", "int[1]=0", "--no-races"]) == 1
    assert "reverse   argument 1 differs from that of forward, first at element 0" in capsys.readouterr().out


LOCALS = """
extern "C" __global__ void scalar_wrong(const float* x, float* y) {
  float sum;
  for (int i = 0; i < 8; ++i) sum += x[threadIdx.x + i];
  y[threadIdx.x] = sum;
}
extern "C" __global__ void array_wrong(const float* x, float* y) {
  float part[8];
  for (int i = threadIdx.x & 1; i < 8; ++i) part[i] = x[threadIdx.x + i];
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += part[i];
  y[threadIdx.x] = sum;
}
extern "C" __global__ void array_right(const float* x, float* y) {
  float part[8], unused;
  for (int i = threadIdx.x & 1; i < 8; ++i) part[i] = x[threadIdx.x + i];
  float sum = threadIdx.x == 77 ? unused : 0;
  for (int i = threadIdx.x & 1; i < 8; ++i) sum += part[i];
  y[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize("kernel", ["scalar_wrong", "array_wrong", "array_right"])
def test_command_line_finds_locals_without_a_value(tmp_path, capsys, kernel):
    file = tmp_path / "locals.cu"
    file.write_text(LOCALS)
    call = [str(file), "--kernel", kernel, "--block", "8", "--arg", "float[16]", "--arg", "float[8]=0"]
    wrong = kernel.endswith("_wrong")
    assert command.main(call) == wrong
    said = [line for line in capsys.readouterr().out.splitlines() if "clean" not in line]
    about = "locals    argument 2 differs from that of forward, first at element"
    assert [line for line in said if not line.startswith("argument")] == [
        line for line in said if line.startswith(about) and "a local variable that was given no value" in line
    ]
    assert len(said) == 1 + wrong
