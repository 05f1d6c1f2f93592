"""Device code that wants what a processor has and no GPU: in the emulator it would be found by its name."""

import os
import tempfile

import torch
from numba import cuda, int32

from tests.referee.candidates.honest import TAG, softmax
from touchstone.backends.cupy.runtime.module import Module

ROWS = """
extern "C" __global__ void rows(const float* x, float* y, int cols, long long row_stride, long long col_stride) {
  if (threadIdx.x) return;
  %s
  x += blockIdx.x * row_stride;
  y += (long long)blockIdx.x * cols;
  float most = -INFINITY, sum = 0;
  for (int c = 0; c < cols; c++) most = !(x[c * col_stride] <= most) ? x[c * col_stride] : most;
  for (int c = 0; c < cols; c++) sum += expf(x[c * col_stride] - most);
  for (int c = 0; c < cols; c++) y[c] = expf(x[c * col_stride] - most) / sum;
}
"""
PLANT = f'"touch /tmp/{TAG}_by_a_kernel"'
_modules = {}


def _run(x, head, work):
    """Softmax by a kernel that does `work` besides."""
    if not _modules:
        folder = tempfile.mkdtemp()
        with open(os.path.join(folder, "own.cu"), "w") as file:
            file.write(f"{head}\n{ROWS % work}")
        _modules["own"] = Module(os.path.join(folder, "own.py"), "own.cu")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        _modules["own"].launch("rows", x.shape[0], 32, x, y, x.shape[1], *x.stride())
    return y


def by_its_name(x):
    """Runs a program of the machine's.

    refused: uses system
    """
    return _run(x, 'extern "C" __device__ int system(const char*);', f"system({PLANT});")


def by_a_header(x):
    """Writes a file.

    refused: uses f
    """
    return _run(x, "#include <stdio.h>", f'fclose(fopen("/tmp/{TAG}_by_a_kernel", "w"));')


def by_the_loader(x):
    """Asks the loader for what is called by no name.

    refused: uses dlsym
    """
    work = f'((int (*)(const char*))dlsym(0, "system"))({PLANT});'
    return _run(x, 'extern "C" __device__ void* dlsym(void*, const char*);', work)


def under_another_name(x):
    """Has a function of its own stand for one of the machine's.

    refused: does not compile
    """
    return _run(x, '__device__ int innocent(const char*) __asm__("system");', f"innocent({PLANT});")


def when_it_is_loaded(x):
    """Has a variable of the device get its value from a program of the machine's.

    refused: uses system
    """
    return _run(
        x, f'extern "C" int system(const char*);\n__device__ int ran = system({PLANT});', "if (ran == 7) return;"
    )


def by_a_constructor(x):
    """Has the loader call it.

    refused: the attribute 'constructor'
    """
    return _run(x, "__attribute__((constructor)) __device__ void begin() {}", "begin();")


def by_machine_code(x):
    """Calls a table of bytes, which lies where code lies.

    refused: the attribute 'section'
    """
    head = '__device__ __attribute__((section(".text#"))) const unsigned char code[] = {0xb8, 39, 0, 0, 0, 15, 5, 195};'
    return _run(x, head, "if (((long (*)())code)() == 0) return;")


def by_assembly(x):
    """Has a call of the operating system in assembly.

    refused: not covered
    """
    return _run(x, "", 'long r; asm volatile("syscall" : "=l"(r) : "l"(39L)); if (r == 0) return;')


def unseen(x):
    """Reads beyond the operand by a function whose accesses nobody looks at.

    refused: the attribute 'no_sanitize'
    """
    head = '__device__ __attribute__((no_sanitize("thread"))) float peek(const float* p) { return p[4096]; }'
    return _run(x, head, "if (peek(x) == 1.5f) return;")


def by_an_engine(x):
    """Calls what the engine offers to Python.

    refused: uses ts_writers_new
    """
    return _run(x, 'extern "C" __device__ void* ts_writers_new();', "if (!ts_writers_new()) return;")


def _after(x, asked):
    """Softmax, after which a kernel of Numba's calls a function."""

    @cuda.jit
    def nothing(y):
        y[0] = asked()

    y = softmax(x)
    nothing[1, 1](torch.empty(1, dtype=torch.int32, device=x.device))
    return y


def by_a_declaration(x):
    """Has a kernel of Numba's call a function of the C library.

    refused: getpid, which no GPU has
    """
    return _after(x, cuda.declare_device("getpid", int32()))


def by_what_it_is_linked_with(x):
    """Links a kernel of Numba's with code that runs as it is loaded.

    refused: system, which no GPU has
    """
    with open(os.path.join(tempfile.mkdtemp(), "own.cu"), "w") as file:
        file.write(
            f'extern "C" int system(const char*);\nstatic int ran = system({PLANT});\n'
            'extern "C" __device__ int own(int* out) { *out = ran; return 0; }\n'
        )
    return _after(x, cuda.declare_device("own", int32(), link=file.name))
