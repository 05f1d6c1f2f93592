"""How fast the emulator is, held to its goals, and against Numba's simulator on the same algorithm.

`pytest --benchmark-only tests/emulator/test_speed.py`. Goals hold for one core; what is compared is processor time, so
that other work on the machine does not decide.
"""

import importlib.util
import os
import subprocess
import sys
import time

import pytest
import torch

from touchstone.backends import emulator
from touchstone.backends.cupy import matmul
from touchstone.backends.emulator import instruments

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

SOURCE = r"""
#define TILE 16
extern "C" __global__ void tiled(const float* a, const float* b, float* c, int n) {
  __shared__ float as[TILE][TILE], bs[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int t = 0; t < n; t += TILE) {
    as[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
    bs[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
    __syncthreads();
    for (int k = 0; k < TILE; ++k) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}
"""
NUMBA = """
import time
import numpy as np
from numba import cuda, float32

@cuda.jit
def tiled(a, b, c):
    left = cuda.shared.array((16, 16), float32)
    right = cuda.shared.array((16, 16), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + ty, cuda.blockIdx.x * 16 + tx
    total = np.float32(0)
    for t in range(a.shape[1] // 16):
        left[ty, tx] = a[row, t * 16 + tx]
        right[ty, tx] = b[t * 16 + ty, col]
        cuda.syncthreads()
        for k in range(16):
            total += left[ty, k] * right[k, tx]
        cuda.syncthreads()
    c[row, col] = total

a = np.random.default_rng(0).standard_normal((32, 32), dtype=np.float32)
c = np.zeros_like(a)
start = time.process_time()
tiled[(2, 2), (16, 16)](a, a, c)
spent = time.process_time() - start
assert np.allclose(c, a @ a, atol=1e-4)
print(spent)
"""


SIZE = 512  # of the product on warpgroups


@pytest.fixture(scope="module")
def program():
    return emulator.compile(SOURCE, "speed.cu")


@pytest.fixture
def one_core(monkeypatch):
    monkeypatch.setattr(instruments, "workers", lambda: 1)


def launcher(program, n):
    a, b, c = torch.randn(n, n), torch.randn(n, n), torch.zeros(n, n)

    def launch():
        program.launch("tiled", (n // 16, n // 16), (16, 16), (a, b, c, n))

    launch()
    torch.testing.assert_close(c, a @ b, atol=1e-3, rtol=1e-4)
    return launch


def fastest(call, rounds=5):
    """Seconds of processor time of the fastest of `rounds` calls."""
    spent = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return min(spent)


@pytest.mark.parametrize(("n", "limit"), [(64, 0.012), (256, 0.4)])
def test_tiled_matmul(benchmark, program, one_core, n, limit):
    launch = launcher(program, n)
    spent = fastest(launch)
    benchmark.extra_info["limit"] = limit
    benchmark.pedantic(launch, rounds=3)
    assert spent <= limit


def test_product_of_warpgroups(benchmark, one_core):
    a, b = torch.randn(SIZE, SIZE).half(), torch.randn(SIZE, SIZE).half()
    torch.testing.assert_close(matmul.wgmma(a, b).float(), a.float() @ b.float(), atol=0.1, rtol=1e-2)
    spent = fastest(lambda: matmul.wgmma(a, b))
    benchmark.extra_info["limit"] = 0.4
    benchmark.pedantic(matmul.wgmma, (a, b), rounds=3)
    assert spent <= 0.4


def test_race_detection_factor(benchmark, program, one_core):
    launch = launcher(program, 64)
    plain = fastest(launch)
    with emulator.races():
        watched = fastest(launch)
        benchmark.pedantic(launch, rounds=3)
    benchmark.extra_info["factor"] = round(watched / plain, 1)
    assert watched <= 40 * plain


def test_against_numbas_simulator(benchmark, program, one_core):
    if importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed")
    done = subprocess.run(
        [sys.executable, "-c", NUMBA],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    launch = launcher(program, 32)
    ratio = float(done.stdout) / fastest(launch)
    benchmark.extra_info["ratio"] = round(ratio)
    benchmark.pedantic(launch, rounds=3)
    assert ratio >= 500
