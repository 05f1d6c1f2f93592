"""Numba kernels with one fault each, and their right twins, on the emulator: kind, place and words of every finding."""

import contextlib
import inspect
import re

import numpy as np
import pytest

from touchstone.backends import emulator, numba

if numba.why_not("cpu") or numba.simulated():
    pytest.skip(numba.why_not("cpu") or "NUMBA_ENABLE_CUDASIM is set", allow_module_level=True)

from numba import cuda, float32, int32

from touchstone.backends.emulator.numba import launch

FULL = 0xFFFFFFFF


@cuda.jit
def past_the_end_wrong(x, y):
    i = cuda.grid(1)
    y[i] = x[i]  # HERE


@cuda.jit
def past_the_end_right(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i]


@cuda.jit
def negative_wrong(x, y):
    i = cuda.threadIdx.x
    if i < 60:
        y[i] = x[i - 1] + x[i + 1]  # HERE


@cuda.jit
def negative_right(x, y):
    i = cuda.threadIdx.x
    if 0 < i < 59:
        y[i] = x[i - 1] + x[i + 1]


@cuda.jit
def second_axis_wrong(x, y):
    tile = cuda.shared.array((4, 8), float32)
    i = cuda.threadIdx.x
    if i < 32:
        tile[i // 8, i % 8 + 1] = x[i]  # HERE
    cuda.syncthreads()
    if i < 32:
        y[i] = tile[i // 8, i % 8]


@cuda.jit
def second_axis_right(x, y):
    tile = cuda.shared.array((4, 9), float32)
    i = cuda.threadIdx.x
    if i < 32:
        tile[i // 8, i % 8 + 1] = x[i]
    cuda.syncthreads()
    if i < 32:
        y[i] = tile[i // 8, i % 8 + 1]


@cuda.jit
def local_wrong(x, y):
    kept = cuda.local.array(4, float32)
    for k in range(5):
        kept[k] = x[k]  # HERE
    if cuda.grid(1) == 0:
        y[0] = kept[3]


@cuda.jit
def local_right(x, y):
    kept = cuda.local.array(5, float32)
    for k in range(5):
        kept[k] = x[k]
    if cuda.grid(1) == 0:
        y[0] = kept[3]


@cuda.jit
def atomic_index_wrong(x, y):
    cuda.atomic.add(y, cuda.grid(1), 1.0)  # HERE


@cuda.jit
def atomic_index_right(x, y):
    cuda.atomic.add(y, cuda.grid(1) % y.size, 1.0)


@cuda.jit
def unwritten_wrong(x, y):
    half = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 32:
        half[i] = x[i]
    cuda.syncthreads()
    y[i % 60] = half[63 - i]  # HERE


@cuda.jit
def unwritten_right(x, y):
    half = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    half[i] = x[i % 60]
    cuda.syncthreads()
    if i < 60:
        y[i] = half[63 - i]


@cuda.jit
def divergent_wrong(x, y):
    i = cuda.threadIdx.x
    if i >= 60:
        return
    y[i] = x[i]
    cuda.syncthreads()  # HERE


@cuda.jit
def divergent_right(x, y):
    i = cuda.threadIdx.x
    if i < 60:
        y[i] = x[i]
    cuda.syncthreads()


@cuda.jit
def two_barriers_wrong(x, y):
    if cuda.threadIdx.x % 2 == 0:
        cuda.syncthreads()  # HERE
    else:
        cuda.syncthreads()


@cuda.jit
def two_barriers_right(x, y):
    if cuda.blockIdx.x % 2 == 0:
        cuda.syncthreads()
    else:
        cuda.syncthreads()


@cuda.jit
def lanes_wrong(x, y):
    i = cuda.threadIdx.x
    if i < 20:
        y[i] = cuda.shfl_down_sync(FULL, x[i], 1)  # HERE


@cuda.jit
def lanes_right(x, y):
    i = cuda.threadIdx.x
    if i < 32:
        y[i] = cuda.shfl_down_sync(FULL, x[i], 1)


@cuda.jit
def own_lane_wrong(x, y):
    i = cuda.threadIdx.x
    if i < 32:
        cuda.syncwarp(0xFFFF)  # HERE


@cuda.jit
def own_lane_right(x, y):
    i = cuda.threadIdx.x
    if i < 16:
        cuda.syncwarp(0xFFFF)


@cuda.jit
def inactive_source_wrong(x, y):
    i = cuda.threadIdx.x
    if i < 16:
        y[i] = cuda.shfl_sync(0xFFFF, x[i], 20)  # HERE


@cuda.jit
def inactive_source_right(x, y):
    i = cuda.threadIdx.x
    if i < 16:
        y[i] = cuda.shfl_sync(0xFFFF, x[i], 12)


@cuda.jit
def spin_wrong(x, y):
    flag = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        flag[0] = 0
    cuda.syncthreads()
    while cuda.atomic.cas(flag, 0, 1, 1) != 1:  # HERE
        pass


@cuda.jit
def spin_right(x, y):
    flag = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        flag[0] = 0
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.exch(flag, 0, 1)
    while cuda.atomic.cas(flag, 0, 1, 1) != 1:
        pass


@cuda.jit
def grid_wrong(x, y):
    if cuda.blockIdx.x == 0:
        cuda.cg.this_grid().sync()  # HERE


@cuda.jit
def grid_right(x, y):
    cuda.cg.this_grid().sync()


@cuda.jit
def raising_wrong(x, y):
    if x[0] < 1:
        raise ValueError("x[0] is too small")  # HERE


@cuda.jit
def raising_right(x, y):
    if x[0] > 1:
        raise ValueError("x[0] is too large")


@cuda.jit(device=True)
def written_by(y, i):
    y[i] = 1  # HERE device


@cuda.jit
def device_wrong(x, y):
    written_by(y, cuda.grid(1) - 1)


@cuda.jit
def device_right(x, y):
    i = cuda.grid(1)
    if 0 < i < 60:
        written_by(y, i - 1)


EXPECTED = {
    "past_the_end": (emulator.OutOfBounds, r"thread \(60, 0, 0\) uses index 60 in axis 0 of x, which has 60$"),
    "negative": (emulator.OutOfBounds, r"thread \(0, 0, 0\) uses index -1 in axis 0 of x, .*counts? it from the end"),
    "second_axis": (emulator.OutOfBounds, r"index 8 in axis 1 of the shared array tile, which has 8"),
    "local": (emulator.OutOfBounds, r"index 4 in axis 0 of a local array, which has 4"),
    "atomic_index": (emulator.OutOfBounds, r"thread \(60, 0, 0\) uses index 60 in axis 0 of y"),
    "unwritten": (
        emulator.UninitialisedShared,
        r"the shared array half\[63\], which no thread of its block has written",
    ),
    "divergent": (emulator.DivergentBarrier, r"thread \(60, 0, 0\) has run to its end"),
    "two_barriers": (emulator.DivergentBarrier, r"waits at a barrier"),
    "lanes": (emulator.InactiveLanes, r"shfl_down_sync reads lane 20, which takes no part"),
    "own_lane": (emulator.InactiveLanes, r"syncwarp with mask 0x0000ffff, which leaves out its own lane 16"),
    "inactive_source": (emulator.InactiveLanes, r"shfl_sync reads lane 20, which takes no part"),
    "spin": (emulator.Deadlock, r"waits in a loop for memory that no thread changes"),
    "grid": (emulator.Deadlock, r"grid.s barrier, but thread \(0, 0, 0\) of block \(1, 0, 0\) has run to its end"),
    "raising": (emulator.KernelError, r"raises ValueError: x\[0\] is too small"),
    "device": (emulator.OutOfBounds, r"index -1 in axis 0 of y"),
}


def marked(kernel) -> int:
    lines, start = inspect.getsourcelines(kernel.py_func)
    return next(start + offset for offset, line in enumerate(lines) if "# HERE" in line)


def run(name):
    x, y = np.zeros(60, np.float32), np.zeros(60, np.float32)
    # sm_70 and later allow the two
    with emulator.strict() if name.startswith(("divergent", "two_barriers")) else contextlib.nullcontext():
        launch(globals()[name], 2 if name.startswith(("grid", "two")) else 1, 64, (x, y))
    return y


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_is_found_with_its_line(name):
    kernel = globals()[f"{name}_wrong"]
    kind, words = EXPECTED[name]
    with emulator.schedule("forward"), pytest.raises(kind, match=words) as caught:
        run(f"{name}_wrong")
    line = marked(written_by if name == "device" else kernel)
    assert f"({__file__.rpartition('/')[2]}:{line})" in str(caught.value)
    assert str(caught.value).startswith(f"{name}_wrong (")


@pytest.mark.parametrize("name", EXPECTED)
def test_the_right_twin_is_not_accused(name):
    for order in ("forward", "reverse", "shuffled"):
        with emulator.schedule(order, seed=3):
            run(f"{name}_right")
    with emulator.races():
        run(f"{name}_right")


@cuda.jit
def missing_barrier(x, y):
    row = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    row[i] = 0
    cuda.syncthreads()
    row[i] = x[i]  # WRITE
    y[i] = row[63 - i]  # READ


@cuda.jit
def with_barrier(x, y):
    row = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    row[i] = 0
    cuda.syncthreads()
    row[i] = x[i]
    cuda.syncthreads()
    y[i] = row[63 - i]


@cuda.jit
def one_cell(x, y):
    y[0] = x[cuda.threadIdx.x]  # WRITE


@cuda.jit
def one_cell_atomic(x, y):
    cuda.atomic.max(y, 0, x[cuda.threadIdx.x])


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_a_missing_barrier_is_a_race_with_both_lines_and_changes_the_answer(order):
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    lines, start = inspect.getsourcelines(missing_barrier.py_func)
    at = {word: start + i for i, line in enumerate(lines) for word in ("WRITE", "READ") if f"# {word}" in line}
    with emulator.schedule(order), emulator.races(), pytest.raises(emulator.RaceCondition) as caught:
        launch(missing_barrier, 1, 64, (x, y))
    assert {int(n) for n in re.findall(r"test_findings\.py:(\d+)", str(caught.value))} == set(at.values())
    assert "the shared array row[" in str(caught.value) or "row[" in str(caught.value)
    with emulator.schedule(order):
        launch(missing_barrier, 1, 64, (x, y))
    assert not np.array_equal(y, x[::-1])
    with emulator.schedule(order), emulator.races():
        launch(with_barrier, 1, 64, (x, y))
    assert np.array_equal(y, x[::-1])


def test_a_race_in_global_memory_and_its_atomic_twin():
    x, y = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    with emulator.races(), pytest.raises(emulator.RaceCondition, match=r"y\[0\]: block \(0, 0, 0\), thread"):
        launch(one_cell, 1, 64, (x, y))
    y[:] = 0
    with emulator.races():
        launch(one_cell_atomic, 1, 64, (x, y))
    assert y[0] == 63


def test_who_wrote_an_element():
    x, y = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    with emulator.schedule("forward"), emulator.writers() as writers:
        launch(one_cell, 1, 64, (x, y))
    line = inspect.getsourcelines(one_cell.py_func)[1] + 2
    assert writers.of(y.ctypes.data) == f"block (0, 0, 0), thread (63, 0, 0), line {line} of test_findings.py"


@pytest.mark.parametrize(
    ("grid", "block", "shared", "words"),
    [
        (0, 32, 0, "grid: expected one to three positive integers"),
        (1, 2048, 0, "block: at most 1024 threads"),
        (1, (1, 1, 65), 0, "block: at most 1024 threads, 64 along z"),
        ((1, 70000), 32, 0, "grid: at most"),
        (1, 32, 1 << 20, "shared: expected 0 to 232448 bytes"),
    ],
)
def test_a_launch_that_no_gpu_takes_is_refused(grid, block, shared, words):
    x = np.zeros(60, np.float32)
    with pytest.raises(ValueError, match=words):
        launch(divergent_right, grid, block, (x, x.copy()), shared=shared)


def test_what_is_no_kernel_is_refused():
    with pytest.raises(TypeError, match="kernel: expected a function decorated with @cuda.jit, got function"):
        launch(divergent_right.py_func, 1, 1, ())
    with pytest.raises(TypeError, match="divergent_right: expected 2 arguments, got 1"):
        launch(divergent_right, 1, 1, (np.zeros(60, np.float32),))
    with pytest.raises(TypeError, match="written_by: is a device function"):
        launch(written_by, 1, 1, (np.zeros(60, np.float32), 1))


NUMBERS = np.array([1, 2, 4, 8], np.float32)


@cuda.jit
def of_a_table(x, n):
    x[cuda.threadIdx.x] = cuda.const.array_like(NUMBERS)[n]


def test_a_table_of_constants_has_its_bounds():
    x = np.zeros(2, np.float32)
    launch(of_a_table, 1, 2, (x, 3))
    assert x.tolist() == [8, 8]
    for index, more in ((4, "$"), (-1, r" \(Numba would count it from the end\)$")):
        with pytest.raises(
            emulator.OutOfBounds, match=rf"uses index {index} in axis 0 of a constant array, which has 4{more}"
        ):
            launch(of_a_table, 1, 2, (x, index))


def _calling(function):
    @cuda.jit
    def kernel(x):
        x[0] = function(x[0])

    return kernel


def test_functions_of_other_files_are_linked_or_named(tmp_path):
    text = 'extern "C" __device__ int twice(int* out, int x) { *out = 2 * x + VALUE; return 0; }\n'
    for name, value in (("one.cu", 0), ("two.cu", 5)):
        (tmp_path / name).write_text(text.replace("twice", f"twice_{name[:3]}").replace("VALUE", str(value)))
        x = np.array([4], np.int32)
        declared = cuda.declare_device(f"twice_{name[:3]}", "int32(int32)", link=[str(tmp_path / name)])
        launch(_calling(declared), 1, 1, (x,))
        assert x[0] == 8 + value
    nowhere = cuda.declare_device("nowhere_at_all", "int32(int32)")
    with pytest.raises(emulator.KernelError, match="a function that the emulator does not know: nowhere_at_all"):
        launch(_calling(nowhere), 1, 1, (x,))
    (tmp_path / "of.ptx").write_text("// PTX")
    compiled = cuda.declare_device("of_ptx", "int32(int32)", link=[str(tmp_path / "of.ptx")])
    with pytest.raises(emulator.KernelError, match=r"linked with .*of.ptx: the emulator takes CUDA C\+\+ \(.cu\) only"):
        launch(_calling(compiled), 1, 1, (x,))
