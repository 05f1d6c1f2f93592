"""The wide accesses and PTX instructions of backends/numba/lib/ptx.py on the emulator, against torch."""

import numpy as np
import pytest
import torch

from touchstone.backends import emulator
from touchstone.backends.emulator.numba import why_not

if reason := why_not():
    pytest.skip(reason, allow_module_level=True)

from numba import cuda, float32, uint16

from touchstone.backends.emulator.numba import launch
from touchstone.backends.numba.lib import ptx

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@cuda.jit
def quadruples(x, y, z):
    held = cuda.local.array(4, float32)
    at = cuda.threadIdx.x * 4
    ptx.load4(held, 0, x, at)
    ptx.store4(y, at, held[0], held[1], held[2], held[3])
    ptx.store2(z, at, ptx.load1(x, at), ptx.load1(x, at + 1))
    ptx.store1(z, at + 2, held[2] * float32(1.01))


@pytest.mark.parametrize("dtype", DTYPES)
def test_loads_widen_and_stores_round_to_nearest_even(dtype):
    x = torch.tensor([1.0, -2.5, 0.0, 3e-6, 300.0, torch.inf, -torch.inf, torch.nan] * 4).to(dtype)
    y, z = torch.zeros_like(x), torch.zeros_like(x)
    launch(quadruples, 1, 8, (x, y, z))
    rows = x.reshape(-1, 4)
    scaled = (rows[:, 2].float() * 1.01).to(dtype)
    want = torch.stack([rows[:, 0], rows[:, 1], scaled, torch.zeros_like(scaled)], 1)
    torch.testing.assert_close(y, x, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(z.reshape(-1, 4), want, rtol=0, atol=0, equal_nan=True)


def test_a_wide_access_is_checked_as_a_whole():
    x, y = torch.zeros(32), torch.zeros(32)
    with pytest.raises(emulator.OutOfBounds, match=r"test_ptx.py:\d+.*reads 16 bytes"):
        launch(quadruples, 1, 8, (x[:30], y, torch.zeros(32)))
    with pytest.raises(emulator.Misaligned):
        launch(quadruples, 1, 4, (x[1:17], y, torch.zeros(32)))


@cuda.jit
def copies(x, y, sizes):
    shared = cuda.shared.array(256, uint16, 16)
    i = cuda.threadIdx.x
    ptx.copy16(shared, i * 8, x, i * 8, sizes[i])
    ptx.copy_commit()
    ptx.copy_wait(0)
    cuda.syncthreads()
    for j in range(8):
        ptx.copy_bits(y, i * 8 + j, shared, i * 8 + j)


def test_asynchronous_copies_fill_up_with_zeros():
    x = torch.arange(1, 257).to(torch.bfloat16)
    sizes = torch.arange(32, dtype=torch.int32) % 9 * 2
    y = torch.full_like(x, torch.nan)
    launch(copies, 1, 32, (x, y, sizes))
    kept = torch.arange(8) < sizes[:, None] // 2
    assert torch.equal(y.reshape(32, 8), x.reshape(32, 8) * kept)
    sizes[31] = 0  # nothing is read where there is nothing to read
    launch(copies, 1, 32, (x[:248], y, sizes))
    sizes[31] = 2
    with pytest.raises(emulator.OutOfBounds, match="reads 2 bytes"):
        launch(copies, 1, 32, (x[:248], y, sizes))
    with pytest.raises(emulator.KernelError, match="cp.async of more than 16"):
        launch(copies, 1, 32, (x, y, sizes + 16))


@cuda.jit
def matrices(x, y, transposed):
    shared = cuda.shared.array(256, uint16, 16)
    lane = cuda.threadIdx.x
    for j in range(8):
        shared[lane * 8 + j] = x[lane * 8 + j]
    cuda.syncwarp()
    found = ptx.ldmatrix_x4(shared, lane * 8, transposed)
    for matrix in range(4):
        y[matrix, lane, 0] = found[matrix] & 0xFFFF
        y[matrix, lane, 1] = found[matrix] >> 16


@pytest.mark.parametrize("transposed", [0, 1])
def test_ldmatrix_deals_rows_or_columns_to_lanes(transposed):
    x = np.arange(256, dtype=np.uint16)
    y = np.zeros((4, 32, 2), np.uint16)
    launch(matrices, 1, 32, (x, y, transposed))
    four = x.reshape(4, 8, 8)
    assert np.array_equal(y.reshape(4, 8, 8), four.transpose(0, 2, 1) if transposed else four)
    with pytest.raises(emulator.KernelError, match="ldmatrix in a block whose last warp is not full"):
        launch(matrices, 1, 16, (x, y, transposed))


@cuda.jit
def product(a, b, c):
    # a (16, 16) and the transpose of b (8, 16), both row by row
    words = cuda.shared.array(384, uint16, 16)
    lane = cuda.threadIdx.x
    for j in range(8):
        ptx.copy_bits(words, lane * 8 + j, a, lane * 8 + j)
    for j in range(4):
        ptx.copy_bits(words, 256 + lane * 4 + j, b, lane * 4 + j)
    cuda.syncwarp()
    left = ptx.ldmatrix_x4(words, lane % 16 * 16 + lane // 16 * 8, 0)
    right = ptx.ldmatrix_x4(words, 256 + lane % 8 * 16 + lane // 8 % 2 * 8, 0)
    zero = float32(0)
    d = ptx.mma_m16n8k16(a, left[0], left[1], left[2], left[3], right[0], right[1], zero, zero, zero, zero)
    row, col = lane // 4, lane % 4 * 2
    ptx.store2(c, row * 8 + col, d[0], d[1])
    ptx.store2(c, row * 8 + 64 + col, d[2], d[3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mma_multiplies_what_ldmatrix_loads(dtype):
    a, b = (torch.randn(n, 16, generator=torch.Generator().manual_seed(n)).to(dtype) for n in (16, 8))
    c = torch.zeros(16, 8)
    launch(product, 1, 32, (a.reshape(-1), b.reshape(-1), c.reshape(-1)))
    torch.testing.assert_close(c, a.float() @ b.float().t(), rtol=1e-5, atol=1e-5)


@cuda.jit
def powers(x):
    i = cuda.threadIdx.x
    x[i] = ptx.exp2(x[i])


def test_exp2():
    x = torch.tensor([0.0, 1.0, -3.5, 10.25, -torch.inf])
    want = torch.exp2(x)
    launch(powers, 1, 5, (x,))
    torch.testing.assert_close(x, want, rtol=1e-6, atol=0)
