"""Hopper's instructions against NumPy, and mistakes with them that only the emulator shows."""

import itertools
import shutil

import numpy as np
import pytest
import torch

from tests.night import some
from tests.programs import PROGRAMS
from touchstone.backends import emulator
from touchstone.backends.cupy import layer_norm_backward, matmul
from touchstone.backends.cupy.lib import norms_backward
from touchstone.backends.cupy.runtime.module import LIB, Module
from touchstone.backends.emulator import instruments

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

ORDERS = [("forward", 0), ("reverse", 0), ("shuffled", 1)]


@pytest.fixture(scope="module")
def compiled():
    return emulator.compile((PROGRAMS / "emulator_hopper.cu").read_text(), "hopper.cu", arch="sm_90a")


@pytest.fixture
def program(compiled):
    compiled.set("fault", np.zeros(1, np.int32))
    return compiled


def wrong(program, number):
    program.set("fault", np.full(1, number, np.int32))


def place(byte, swizzle):
    """Where a byte of a tile comes to lie: lines of 128 bytes, in which 16 bytes change places by the line's number."""
    line, chunk = byte // 128, byte % 128 // 16
    return line * 128 + (chunk ^ line % 8 % (swizzle // 16 or 1)) * 16 + byte % 16


def box_of(x, at, box, steps, fill):
    """The elements of a box, from the first axis to the last, `fill` for those outside of `x`."""
    out = np.full([-(-n // s) for n, s in zip(box, steps, strict=True)], fill, x.dtype)
    for index in np.ndindex(*out.shape):
        where = [a + i * s for a, i, s in zip(at, index, steps, strict=True)]
        if all(0 <= w < n for w, n in zip(where, x.shape, strict=True)):
            out[index] = x[tuple(where)]
    return out


BOXES = {
    "a row": (np.float32, (40,), (16,), (20,), (1,), 0, "zeros"),
    "past the end of a row": (np.float32, (40,), (16,), (28,), (1,), 0, "nan"),
    "inside, 128": (np.float16, (64, 128), (16, 64), (8, 32), (1, 1), 128, "zeros"),
    "before the corner, 128": (np.float32, (20, 36), (16, 32), (-3, -4), (1, 1), 128, "zeros"),
    "past the corner, 64": (np.float16, (20, 40), (16, 32), (9, 24), (1, 1), 64, "zeros"),
    "outside, 32": (np.float16, (20, 40), (16, 16), (25, 8), (1, 1), 32, "nan"),
    "narrower than the swizzle": (np.float16, (20, 40), (16, 16), (2, 8), (1, 1), 128, "zeros"),
    "every other one": (np.float32, (20, 40), (8, 32), (2, 4), (3, 2), 0, "zeros"),
    "three axes": (np.float64, (3, 9, 10), (2, 8, 8), (2, 4, 6), (1, 1, 1), 0, "zeros"),
    "five axes": (np.float16, (2, 3, 2, 4, 32), (1, 2, 1, 4, 16), (1, 2, 1, -1, 8), (1,) * 5, 32, "zeros"),
}


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_box_comes_to_shared_memory(program, name, order, seed):
    dtype, shape, box, at, steps, swizzle, fill = BOXES[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    expected = box_of(x, at, box, steps, np.nan if fill == "nan" else 0)
    count = expected.nbytes
    out = np.zeros(count, np.uint8)
    encoded = emulator.TensorMap(x, box, swizzle, steps, fill)
    with emulator.schedule(order, seed):
        program.launch(
            f"loaded{len(shape)}", 1, 32, (encoded, np.int32(at[::-1]), out, count), shared=-(-count // 128) * 128
        )
    lying = out[[place(byte, swizzle) for byte in range(count)]]
    assert np.array_equal(lying.view(dtype).reshape(expected.shape), expected, equal_nan=True)


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_box_goes_back_without_what_lies_outside(program, order, seed):
    y = np.zeros((20, 40), np.float16)
    tiles = np.random.default_rng(1).standard_normal((2, 8, 32)).astype(np.float16)
    lying = np.zeros((2, 512), np.uint8)
    for turn in range(2):
        lying[turn, [place(byte, 64) for byte in range(512)]] = tiles[turn].view(np.uint8).ravel()
    with emulator.schedule(order, seed):
        program.launch("stored", 1, 64, (emulator.TensorMap(y, (8, 32), 64), lying, 24, 6, 512), shared=512)
    expected = np.zeros_like(y)
    expected[6:20, 24:] = tiles.reshape(16, 32)[:14, :16]
    assert np.array_equal(y, expected)


def test_boxes_that_the_copy_engine_refuses(program):
    x, y = np.zeros((20, 40), np.float16), np.zeros((20, 40), np.float16)
    for swizzle in (0, 64):
        encoded, lying = emulator.TensorMap(y, (8, 32), swizzle), np.ones((2, 512), np.uint8)
        for at, message in [
            ((20, 6), "a copy whose first coordinate, 20, is no multiple of 16 bytes"),
            ((-8, 6), "a copy from shared memory to the negative coordinate -8"),
            ((8, -6), "a copy from shared memory to the negative coordinate -6"),
        ]:
            with pytest.raises(emulator.KernelError, match=message):
                program.launch("stored", 1, 64, (encoded, lying, *at, 512), shared=512)
        arguments = (emulator.TensorMap(x, (8, 32), swizzle), np.int32((-4, 6)), np.zeros(512, np.uint8), 512)
        with pytest.raises(emulator.KernelError, match="first coordinate, -4, is no multiple of 16 bytes"):
            program.launch("loaded2", 1, 32, arguments, shared=512)


def test_bytes_in_a_row_come_go_and_are_added(program):
    x, y = np.arange(60, dtype=np.float32), np.ones(60, np.float32)
    program.launch("doubled", 1, 64, (x, y, 240, 1))
    assert np.array_equal(y, 1 + 2 * x)
    program.launch("doubled", 1, 64, (x, y, 240, 0))
    assert np.array_equal(y, 2 * x)
    with pytest.raises(emulator.KernelError, match="no multiple of 16"):
        program.launch("doubled", 1, 64, (x, y, 236, 0))
    with pytest.raises(emulator.OutOfBounds, match="reads 256 bytes across the end of x"):
        program.launch("doubled", 1, 64, (x, y, 256, 0))


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_cluster_shares_what_each_block_brings(program, order, seed, races):
    x, out = np.random.default_rng(2).standard_normal((4, 32)).astype(np.float32), np.zeros((2, 4, 128), np.float32)
    with emulator.schedule(order, seed), instruments.using(races=races):
        program.launch("shared_out", (4, 2), 128, (emulator.TensorMap(x, (1, 32)), out), shared=512)
    ranks = np.array([[0, 1, 0, 1], [2, 3, 2, 3]], np.float32)
    assert np.array_equal(out, x.ravel() + 1000 * ((ranks + 3) % 4)[:, :, None])


def test_arrivals_from_other_blocks_and_the_lane_that_is_chosen(program):
    out = np.zeros(1, np.int32)
    program.launch("arrivals", 6, 64, (out, 3 * 64), cluster=3)
    assert out[0] == 12
    with pytest.raises(emulator.Deadlock, match="waits at an mbarrier, .* barrier at .* 0, whose phase lacks 1 of 193"):
        program.launch("arrivals", 3, 64, (out, 193), cluster=3)
    with pytest.raises(ValueError, match=r"grid: expected whole clusters of \(3, 1, 1\) blocks, got \(4, 1, 1\)"):
        program.launch("arrivals", 4, 64, (out, 192), cluster=3)
    with pytest.raises(ValueError, match=r"the kernel has __cluster_dims__\(2, 2, 1\), got \(2, 1, 1\)"):
        program.launch("shared_out", 4, 64, (bytes(128), np.zeros(1, np.float32)), cluster=2)


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_stores_and_sums_whose_coming_another_blocks_barrier_counts(program, order, seed, races):
    def told():
        out = np.zeros((6, 32), np.int32)
        with emulator.schedule(order, seed), instruments.using(races=races):
            program.launch("told", 6, 32, (out, 3), cluster=3)
        return out

    sender = np.array([2, 0, 1, 5, 3, 4])[:, None]
    assert np.array_equal(told(), 100 * sender + np.arange(32)[::-1])
    wrong(program, 3)
    with pytest.raises(emulator.Deadlock, match="lacks 0 of 1 arrivals and has 128 bytes more than were expected"):
        told()
    for mistake in (1, 2):  # nobody waits; each block's own barrier counts
        wrong(program, mistake)
        try:
            found = not np.array_equal(told(), 100 * sender + np.arange(32)[::-1])
        except emulator.KernelError:
            found = True
        assert found or not races


def operand(values, item, swizzle, along_m):
    """The bytes of a (m, k) operand as wgmma reads them, and what the descriptor says of it; two rows of 16 bytes more
    than are needed lie between groups. By PTX's canonical layouts: T is the elements of 16 bytes."""
    m, k = values.shape
    wide, T = swizzle or 16, 16 // item
    group = wide * 8 + (256 if swizzle else 16)  # a multiple of the swizzle's period
    outer = 4 * group
    memory = np.zeros(32768, np.uint8)
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(m, k, item)
    for i, j in itertools.product(range(m), range(k)):
        if along_m and swizzle:
            leading, stride = outer, group
            byte = i // (wide // item) * leading + i % (wide // item) * item + j // 8 * stride + j % 8 * wide
        elif along_m:
            leading, stride = 64 * group, group
            byte = i // T * stride + i % T * item + j // 8 * leading + j % 8 * 16
        else:
            leading, stride = (16 if swizzle else 64 * group), group
            byte = i // 8 * stride + i % 8 * wide + j // T * leading + j % T * item
        byte = place(byte, swizzle) if swizzle else byte
        memory[byte : byte + item] = raw[i, j]
    code = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return memory, leading >> 4 << 16 | stride >> 4 << 32 | code << 62


def sums_of(d, pairs=False):
    """(64, 16) from the accumulators of 128 threads."""
    out = np.zeros((64, 16), d.dtype)
    for thread, word in np.ndindex(*d.shape):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (word // 2 % 2)
        out[row, word // 4 * 8 + thread % 4 * 2 + word % 2] = d[thread, word]
    return out


def bits(values, kind):
    """Small whole numbers, or halves of them, in a format; as an array of its items."""
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind in ("e4m3", "e5m2"):
        kinds = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
        return torch.from_numpy(values.astype(np.float32)).to(kinds[kind]).view(torch.uint8).numpy()
    return values.astype({"f16": np.float16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}[kind])


PRODUCTS = [
    *(("f16_kk", "f16", "f16", 16, False, False, 1, swizzle) for swizzle in (0, 32, 64, 128)),
    *(("f16_mn", "f16", "f16", 16, True, True, 1, swizzle) for swizzle in (0, 32, 64, 128)),
    ("f16_kn", "f16", "f16", 16, False, True, -1, 64),
    ("bf16_kk", "bf16", "bf16", 16, False, False, 1, 128),
    ("f16_half", "f16", "f16", 16, False, False, 1, 32),
    ("tf32_kk", "tf32", "tf32", 8, False, False, 1, 64),
    ("s8_kk", "s8", "s8", 32, False, False, 1, 0),
    ("u8s8_kk", "u8", "s8", 32, False, False, 1, 128),
    ("e4m3_kk", "e4m3", "e5m2", 32, False, False, 1, 32),
]


@pytest.mark.parametrize(
    ("kernel", "left", "right", "k", "a_along_m", "b_along_n", "sign", "swizzle"),
    PRODUCTS,
    ids=[f"{p[0]} {p[-1]}" for p in PRODUCTS],
)
def test_a_product_of_a_warpgroup(program, kernel, left, right, k, a_along_m, b_along_n, sign, swizzle):
    random = np.random.default_rng(3)
    a, b = (random.integers(low, 8, (m, k)).astype(float) for m, low in ((64, 0 if left == "u8" else -7), (16, -7)))
    if left not in ("s8", "u8"):
        a /= 2
    whole = kernel.startswith(("s8", "u8"))
    half = kernel == "f16_half"
    first = random.integers(-9, 9, (128, 8)).astype(np.int32 if whole else np.float16 if half else np.float32)
    (a_bytes, a_says), (b_bytes, b_says) = (
        operand(bits(x, kind), {"tf32": 4, "f16": 2, "bf16": 2}.get(kind, 1), swizzle, along)
        for x, kind, along in ((a, left, a_along_m), (b, right, b_along_n))
    )
    memory = np.concatenate([a_bytes, b_bytes])
    for adds in (0, 1):
        d = first.copy()
        words = d.view(np.uint32) if half else d
        program.launch(
            kernel, 1, 128, (memory, len(memory), a_says, len(a_bytes) >> 4 | b_says, words, adds), shared=len(memory)
        )
        expected = sign * a @ b.T + adds * sums_of(first)
        assert np.array_equal(sums_of(d).astype(float), expected)


def test_a_left_operand_from_registers(program):
    random = np.random.default_rng(4)
    a, b = random.integers(-8, 8, (64, 16)).astype(float), random.integers(-8, 8, (16, 16)).astype(float)
    memory, says = operand(b.astype(np.float16), 2, 32, along_m=True)
    held = np.zeros((128, 4, 2), np.float16)
    for thread, word, half in np.ndindex(*held.shape):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (word % 2)
        held[thread, word, half] = a[row, 2 * (thread % 4) + half + 8 * (word // 2)]
    d = np.zeros((128, 8), np.float32)
    program.launch("from_registers", 1, 128, (memory, len(memory), held.view(np.uint32), says, d), shared=len(memory))
    assert np.array_equal(sums_of(d), -a @ b.T)


def test_four_neighbours_are_added_to(program):
    x = np.zeros(8, np.float32)
    program.launch("added", 2, 32, (x[4:],))
    assert x.tolist() == [0, 0, 0, 0, 64, 128, 192, 256]
    with pytest.raises(emulator.Misaligned):
        program.launch("added", 2, 32, (x[1:],))


def test_whole_numbers_saturate_where_asked(program):
    a, says = operand(np.full((64, 32), 255, np.uint8), 1, 0, False)
    b, _ = operand(np.full((16, 32), 127, np.int8), 1, 0, False)
    memory = np.concatenate([a, b])
    d = np.full((128, 8), 2**31 - 5, np.int32)
    arguments = (memory, len(memory), says, len(a) >> 4 | says, d, 1)
    program.launch("u8s8_kk", 1, 128, arguments, shared=len(memory))
    assert (d == 2**31 - 1).all()


FAULTS = {
    ("counted", 1): (emulator.UninitialisedShared, "which an asynchronous copy has yet to fill"),
    ("met", 1): (emulator.KernelError, "arrives at the cluster's barrier twice without a wait"),
    ("met", 2): (emulator.KernelError, "waits at the cluster's barrier without having arrived"),
    ("met", 3): (emulator.Deadlock, "waits at barrier 1 for 64 threads, of which 32 have come"),
    ("met", 4): (emulator.Deadlock, "waits at the cluster's barrier, to which 16 threads have yet to come"),
    ("loaded2", 1): (emulator.Deadlock, "whose phase lacks 0 of 1 arrivals and has 16 bytes more than"),
    ("loaded2", 2): (emulator.Deadlock, "whose phase lacks 0 of 1 arrivals and 16 bytes"),
    ("loaded2", 3): (emulator.UninitialisedShared, "which an asynchronous copy has yet to fill"),
    ("shared_out", 1): (emulator.KernelError, r"block \(1, 0, 0\), thread \(0, 0, 0\) writes later|has not begun"),
    ("shared_out", 3): (emulator.KernelError, "shared memory of a block of the cluster that has come to its end"),
    ("chained", 1): (emulator.KernelError, "wgmma.mma_async without a wgmma.fence before"),
    ("chained", 2): (emulator.KernelError, "the thread ends while a wgmma.mma_async of its warp is under way"),
    ("chained", 4): (emulator.KernelError, "the thread ends while a wgmma.mma_async of its warp is under way"),
    ("chained", 5): (emulator.KernelError, "accumulators of wgmma.mma_async were written before"),
    ("chained", 7): (emulator.Deadlock, "waits for a wgmma.mma_async that warp 3 of its warpgroup has yet to begin"),
    ("chained", 6): (emulator.KernelError, "without a lane of the warp|has run to its end"),
}


def launch(program, kernel):
    if kernel == "counted":
        x, y = np.arange(256, dtype=np.int32).reshape(64, 4), np.zeros((64, 4), np.int32)
        program.launch(kernel, 1, 64, (x, y))
        assert np.array_equal(y, x[::-1])
        return y
    if kernel == "met":
        out = np.zeros(1, np.int32)
        program.launch(kernel, 2, 64, (out,), cluster=2)
        assert out[0] == 64
        return out
    if kernel == "loaded2":
        x, out = np.ones((16, 16), np.float32), np.zeros(256, np.uint8)
        at = np.zeros(2, np.int32)
        program.launch(kernel, 1, 32, (emulator.TensorMap(x, (4, 16)), at, out, 256), shared=256)
        return out
    if kernel == "shared_out":
        x, out = np.ones((4, 32), np.float32), np.zeros((2, 2, 128), np.float32)
        program.launch(kernel, (2, 2), 128, (emulator.TensorMap(x, (1, 32)), out), shared=512)
        return out
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((64, 16), (2, 16, 16)))
    d = np.zeros((128, 8), np.float32)
    says = 16 >> 4 << 16 | 256 >> 4 << 32 | 3 << 62

    def lying(x):
        return np.frombuffer(operand_rows(x), np.float16)

    program.launch(kernel, 1, 128, (lying(a), np.concatenate([lying(b[0]), lying(b[1])]), d, says), shared=4096)
    return sums_of(d) - a.astype(float) @ (b[0].astype(float) + b[1]).T


def operand_rows(x):
    """Rows of 32 bytes with the 32-byte swizzle."""
    raw, out = x.view(np.uint8).ravel(), np.zeros(x.nbytes, np.uint8)
    out[[place(byte, 32) for byte in range(x.nbytes)]] = raw
    return out.tobytes()


@pytest.mark.parametrize(("order", "seed"), ORDERS)
@pytest.mark.parametrize(("kernel", "number"), FAULTS)
def test_a_mistake_is_found(program, kernel, number, order, seed):
    kind, says = FAULTS[kernel, number]
    launch(program, kernel)
    wrong(program, number)
    with emulator.schedule(order, seed), pytest.raises(kind, match=says) as found:
        launch(program, kernel)
    assert "hopper.cu:" in str(found.value)


def test_a_product_takes_its_operands_when_it_is_waited_for(program):
    assert np.abs(launch(program, "chained")).max() < 1e-2
    wrong(program, 3)  # b of the first product is replaced while that is under way
    for races in (False, True):
        with instruments.using(races=races):
            assert np.abs(launch(program, "chained")).max() > 0.1


def test_a_store_takes_its_bytes_when_it_is_waited_for(program):
    def stored():
        y = np.zeros((16, 32), np.float16)
        tiles = np.arange(512, dtype=np.float16).reshape(16, 32)
        program.launch("stored", 1, 64, (emulator.TensorMap(y, (8, 32)), tiles.view(np.uint8), 0, 0, 512), shared=512)
        return np.array_equal(y, tiles)

    assert stored()
    for mistake in (1, 2):
        wrong(program, mistake)
        assert not stored()


def test_shared_memory_of_another_block_without_a_barrier_is_a_race(program):
    wrong(program, 2)
    with emulator.races(), pytest.raises((emulator.RaceCondition, emulator.UninitialisedShared)):
        launch(program, "shared_out")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: emulator.TensorMap(np.zeros((4, 12), np.float16), (4, 12)), "box: expected rows of a multiple of 16"),
        (lambda: emulator.TensorMap(np.zeros((4, 16), np.float32), (4, 16), 32), "at most the swizzle's 32, got 64"),
        (lambda: emulator.TensorMap(np.zeros((4, 10), np.float16), (4, 8)), r"strides of whole 16 bytes, got \(20, 2"),
        (lambda: emulator.TensorMap(np.zeros((4, 16), np.float16).T, (8, 8)), "expected its last axis contiguous"),
        (lambda: emulator.TensorMap(np.zeros((4, 16), np.float16), (4,)), "a number for each of 2 axes"),
        (lambda: emulator.TensorMap(np.zeros((4, 16), np.float16), (300, 8)), "expected 1 to 256 elements"),
        (lambda: emulator.TensorMap(np.zeros((4, 16), np.float16), (4, 8), 48), "expected 0, 32, 64 or 128 bytes"),
    ],
)
def test_what_the_driver_declines(made, says):
    with pytest.raises(ValueError, match=says):
        made()


def test_a_map_is_asked_for_and_bounds_what_it_moves(program):
    out, at = np.zeros(256, np.uint8), np.zeros(2, np.int32)
    with pytest.raises(emulator.KernelError, match="a tensor map that the host has not encoded"):
        program.launch("loaded2", 1, 32, (bytes(128), at, out, 256), shared=256)
    row, short = np.zeros(64, np.float32), np.zeros((4, 64), np.float32)
    encoded = emulator.TensorMap(row, (64,))
    with pytest.raises(emulator.KernelError, match="with 2 coordinates by a tensor map of 1 axes"):
        program.launch("loaded2", 1, 32, (encoded, at, out, 256), shared=256)
    encoded = emulator.TensorMap(short, (4, 64))
    with pytest.raises(emulator.OutOfBounds, match="just past the end of|across the end of"):
        program.launch("loaded2", 1, 32, (encoded, at, out, 256), shared=256)


LIBRARY = """
#include <cuda.h>
#include <cuda/barrier>

namespace cde = cuda::device::experimental;

__global__ void moved(const __grid_constant__ CUtensorMap from, const CUtensorMap* to, int waits) {
  __shared__ alignas(128) float tile[8][32];
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  const int row = 8 * blockIdx.x;
  if (threadIdx.x == 0) cde::cp_async_bulk_tensor_2d_global_to_shared(tile, &from, 0, row, bar);
  auto token = threadIdx.x ? bar.arrive() : cuda::device::barrier_arrive_tx(bar, 1, sizeof tile);
  if (waits) bar.wait(std::move(token));
  tile[threadIdx.x / 32][threadIdx.x % 32] += 1;
  cde::fence_proxy_async_shared_cta();
  __syncthreads();
  if (threadIdx.x) return;
  cde::cp_async_bulk_tensor_2d_shared_to_global(to, 0, row, tile);
  cde::cp_async_bulk_commit_group();
  cde::cp_async_bulk_wait_group_read<0>();
}
"""


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_the_functions_of_cuda_barrier(order, seed):
    program = emulator.compile(LIBRARY, "library.cu", arch="sm_90a")
    x, y = np.arange(512, dtype=np.float32).reshape(16, 32), np.zeros((16, 32), np.float32)
    maps = emulator.TensorMap(x, (8, 32)), emulator.TensorMap(y, (8, 32))
    with emulator.schedule(order, seed):
        program.launch("moved", 2, 256, (*maps, 1))
        assert np.array_equal(y, x + 1)
        with pytest.raises(emulator.UninitialisedShared, match="library.cu:16.*(yet to fill|writes later)"):
            program.launch("moved", 2, 256, (*maps, 0))


# Mistakes in our own product on warpgroups, wgmma.cuh.
MISTAKES = {
    "the sums are not waited for": ("wgmma_wait<0>();", ""),
    "a stage is not waited for": ("barrier_wait(&shared.full[slot.stage], slot.parity);", ""),
    "fewer bytes are expected": ("barrier_expect(full, STAGE * sizeof(ELEMENT))", "barrier_expect(full, STAGE)"),
    "more bytes are expected": ("barrier_expect(full, STAGE * sizeof(ELEMENT))", "barrier_expect(full, STAGE * 4)"),
    "a barrier for too few": ("WARPS * CLUSTER)", "WARPS * CLUSTER / 4)"),
    "a barrier for too many": ("WARPS * CLUSTER)", "WARPS * CLUSTER + 1)"),
    "a stage is given back too early": ("if (k) release(&shared.empty[previous]);",
                                        "release(&shared.empty[slot.stage]);"),
    "a stage is given back before the wait": ("wgmma_wait<1>();\n                if (k)",
                                              "if (k) release(&shared.empty[previous]);\nwgmma_wait<1>();\nif (0)"),
    "the other parity": ("barrier_wait(&shared.empty[slot.stage], slot.parity ^ 1);",
                         "barrier_wait(&shared.empty[slot.stage], slot.parity);"),
    "empty stages are not waited for": ("barrier_wait(&shared.empty[slot.stage], slot.parity ^ 1);", ""),
    "strips are not waited for": ("if (lane == 0) copy_out_wait<STRIPS - 1>();", ""),
    "strips are not committed": (", copy_out_commit();", ";"),
    "strips are not swizzled": ("((i * 2 + half) ^ row % 8) * 8", "(i * 2 + half) * 8"),
    "b goes to one block": ("if (CLUSTER > 1) copy_in(square, b, x, y, full, ALL);\n                else ", ""),
    "no barrier after the inits": ("cluster_arrive(), cluster_wait();  // the barriers are there, also", "//"),
    "no fence": ("    wgmma_fence();\n#pragma unroll\n    for (int i = 0; i < DEPTH", "    for (int i = 0; i < DEPTH"),
    "products are not closed": ("    wgmma_commit();\n", ""),
    "a step too long": ("DOWN = STEP * SIDE * sizeof(ELEMENT)", "DOWN = 2 * STEP * SIDE * sizeof(ELEMENT)"),
}  # fmt: skip


@pytest.mark.parametrize("name", some(list(MISTAKES), 9))
def test_mistakes_in_a_whole_product_are_found(name, tmp_path, monkeypatch):
    text = (LIB / "wgmma.cuh").read_text()
    before, after = MISTAKES[name]
    assert text.count(before) == 1
    shutil.copy(matmul._wgmma.path, tmp_path / "wgmma.cu")
    (tmp_path / "wgmma.cuh").write_text(text.replace(before, after))
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, generator=generator).half() for size in ((300, 584), (584, 136)))
    expected = a.double() @ b.double()
    assert torch.allclose(matmul.wgmma(a, b).double(), expected, atol=0.1)
    monkeypatch.setattr(matmul, "_wgmma", Module(str(tmp_path / "matmul.py"), "wgmma.cu"))
    answers = []
    for (order, seed), races in [*((order, False) for order in ORDERS), (("forward", 0), True)]:
        with emulator.schedule(order, seed), instruments.using(races=races):
            try:
                answers.append(torch.allclose(matmul.wgmma(a, b).double(), expected, atol=0.1))
            except emulator.KernelError as finding:
                answers.append(str(finding))
    assert not all(answer is True for answer in answers)


# Mistakes in what the blocks of a cluster tell one another of a row, staged_rows.cuh.
OF_ROWS = {
    "none": ("half = turn % 2, parity", "half = turn % 2, parity"),
    "numbers are not waited for": ("barrier_wait(&told()[half], parity);", ""),
    "fewer bytes are expected": ("CLUSTER * (across() / 32) * count * sizeof(float)", "count * sizeof(float)"),
    "more bytes are expected": ("CLUSTER * (across() / 32)", "(CLUSTER + 1) * (across() / 32)"),
    "one half of the numbers": ("half = turn % 2, parity = turn / 2 % 2", "half = 0, parity = turn % 2"),
    "one parity": ("parity = turn / 2 % 2", "parity = 0"),
    "blocks do not say that they began": ("    cluster_arrive_relaxed();\n", ""),
    "half of the blocks are told": ("if (lane < CLUSTER) {", "if (lane < CLUSTER / 2) {"),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_mistakes_in_what_blocks_tell_one_another_are_found(name, tmp_path, monkeypatch):
    text = (LIB / "staged_rows.cuh").read_text()
    before, after = OF_ROWS[name]
    assert text.count(before) == 1
    shutil.copy(LIB / "norms_backward_staged.cuh", tmp_path)
    shutil.copy(norms_backward._staged.path, tmp_path / "staged.cu")
    (tmp_path / "staged_rows.cuh").write_text(text.replace(before, after))
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn((40, 1500), generator=generator) for _ in range(2))  # several for each team
    weight = torch.randn(1500, generator=generator)
    expected = layer_norm_backward.block(x, weight, dy)[0]

    def right():
        return torch.allclose(layer_norm_backward.cluster(x, weight, dy)[0], expected, atol=1e-3)

    assert right()
    monkeypatch.setattr(norms_backward, "_staged", Module(str(tmp_path / "norms_backward.py"), "staged.cu"))
    answers = []
    for (order, seed), races in [*((order, False) for order in ORDERS), *((order, True) for order in ORDERS)]:
        with emulator.schedule(order, seed), instruments.using(races=races):
            try:
                answers.append(right())
            except emulator.KernelError as finding:
                answers.append(str(finding))
    assert all(answer is True for answer in answers) == (name == "none")


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_store_by_the_copy_engine_needs_a_proxy_fence(program, order, seed):
    def stored():
        y = np.zeros((16, 32), np.float16)
        program.launch(
            "stored", 1, 64, (emulator.TensorMap(y, (8, 32)), np.ones(1024, np.uint8), 0, 0, 512), shared=512
        )

    def doubled():
        program.launch("doubled", 1, 64, (np.ones(60, np.float32), np.zeros(60, np.float32), 240, 0))

    lacks = r"reads it, thread \(\d+, 0, 0\) writes it at hopper.cu:\d+, and no fence.proxy.async lies between"
    for kernel, missing in ((stored, 3), (doubled, 1)):
        wrong(program, missing)
        with emulator.schedule(order, seed):
            kernel()
        with emulator.schedule(order, seed), emulator.races(), pytest.raises(emulator.RaceCondition, match=lacks):
            kernel()
    for kernel, right in ((stored, 0), (doubled, 0), (doubled, 2), (doubled, 3)):
        wrong(program, right)
        with emulator.schedule(order, seed), emulator.races():
            kernel()
