"""What the emulator finds: for every kind a kernel that is wrong and its right twin, which must stay silent."""

import contextlib

import numpy as np
import pytest
import torch

from tests.programs import PROGRAMS
from touchstone.backends import emulator
from touchstone.backends.emulator.arguments import Argument

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

SOURCE = (PROGRAMS / "emulator_findings.cu").read_text()

KINDS = {
    "past_end": emulator.OutOfBounds,
    "before_start": emulator.OutOfBounds,
    "null": emulator.OutOfBounds,
    "shared_past_end": emulator.OutOfBounds,
    "inner_index": emulator.OutOfBounds,
    "local_index": emulator.OutOfBounds,
    "dynamic_past_end": emulator.OutOfBounds,
    "constant_past_end": emulator.OutOfBounds,
    "float4": emulator.Misaligned,
    "uint4": emulator.Misaligned,
    "half2": emulator.Misaligned,
    "atomic_misaligned": emulator.Misaligned,
    "wmma_address": emulator.Misaligned,
    "uninitialised": emulator.UninitialisedShared,
    "exchanged_first": emulator.UninitialisedShared,
    "unwritten_tail": emulator.UninitialisedShared,
    "read_early": emulator.UninitialisedShared,
    "early_return": emulator.DivergentBarrier,
    "two_barriers": emulator.DivergentBarrier,
    "lanes_gone": emulator.InactiveLanes,
    "lanes_elsewhere": emulator.InactiveLanes,
    "not_in_mask": emulator.InactiveLanes,
    "reads_absent_lane": emulator.InactiveLanes,
    "spins": emulator.Deadlock,
    "volatile_spin": emulator.Deadlock,
}
STRICT = ("early_return", "two_barriers")  # sm_70 and later allow them
THREADS = {"shared_past_end": 32, "unwritten_tail": 64}
N = 40


@pytest.fixture(scope="module")
def program():
    return emulator.compile(SOURCE, "findings.cu")


def launch(program, kernel):
    threads = THREADS.get(kernel.rpartition("_")[0], 64)
    x = torch.arange(64, dtype=torch.float32)
    y = torch.zeros(64)
    with emulator.strict() if kernel.startswith(STRICT) else contextlib.nullcontext():
        program.launch(kernel, 2, threads, (x, y[:N], 20 if kernel.startswith("inner") else N), shared=4 * threads)


@pytest.mark.parametrize("name", KINDS)
def test_wrong_kernel_is_found(program, name):
    with pytest.raises(emulator.KernelError) as found:
        launch(program, f"{name}_wrong")
    assert type(found.value) is KINDS[name]
    line = 1 + SOURCE[: SOURCE.index(f"// LINE {name}\n")].count("\n")
    assert f"{name}_wrong (findings.cu:{line})" in str(found.value)
    assert "block (" in str(found.value) and "thread (" in str(found.value)


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("name", KINDS)
def test_right_twin_is_silent(program, name, order):
    with emulator.schedule(order, seed=3):
        launch(program, f"{name}_right")


def test_messages_name_the_element(program):
    past = r"writes 4 bytes just past the end of y \(160 bytes, shape \(40,\)\), at element offset 40"
    with pytest.raises(emulator.OutOfBounds, match=past):
        program.launch("past_end_wrong", 2, 64, (torch.zeros(128), torch.zeros(40), 40))
    with pytest.raises(emulator.OutOfBounds, match="4 bytes before the start of x"):
        launch(program, "before_start_wrong")
    with pytest.raises(emulator.UninitialisedShared, match=r"the shared array tile\[63\]"):
        launch(program, "unwritten_tail_wrong")
    line = 1 + SOURCE[: SOURCE.index("// STORE read_early\n")].count("\n")
    later = rf"tile\[63\], which thread \(63, 0, 0\) writes later, at findings.cu:{line}: no barrier lies between"
    with pytest.raises(emulator.UninitialisedShared, match=later):
        launch(program, "read_early_wrong")
    with pytest.raises(emulator.UninitialisedShared, match="which no thread of its block has written$"):
        launch(program, "unwritten_tail_wrong")
    with pytest.raises(emulator.DivergentBarrier, match=r"thread \(40, 0, 0\) has run to its end"):
        launch(program, "early_return_wrong")
    with pytest.raises(emulator.InactiveLanes, match=r"waits for lane 8, but thread \(40, 0, 0\) waits at a barrier"):
        launch(program, "lanes_elsewhere_wrong")
    with pytest.raises(
        emulator.InactiveLanes, match=r"thread \(1, 0, 0\): __shfl_sync with mask 0x00000001, which leaves out"
    ):
        launch(program, "not_in_mask_wrong")
    absent = r"thread \(0, 0, 0\): __shfl_xor_sync reads lane 2, which takes no part"  # and not the lane that came last
    with pytest.raises(emulator.InactiveLanes, match=absent):
        launch(program, "reads_absent_lane_wrong")


def test_process_stays_healthy(program):
    for _ in range(20):
        for kernel in ("early_return_wrong", "lanes_gone_wrong", "past_end_wrong", "spins_wrong"):
            with pytest.raises(emulator.KernelError):
                launch(program, kernel)
        launch(program, "past_end_right")


def test_gaps_of_a_view_are_bounded_by_its_extent(program):
    storage = torch.zeros(100)
    view = storage[10:50]
    with pytest.raises(emulator.OutOfBounds):
        program.launch("past_end_wrong", 1, 41, (torch.zeros(41), view, 41))
    program.launch("past_end_wrong", 1, 40, (torch.zeros(41), view, 41))
    assert not storage[50:].any()


def test_a_write_outside_does_not_happen(program):
    storage = torch.zeros(100)
    with pytest.raises(emulator.OutOfBounds):
        program.launch("past_end_wrong", 1, 64, (torch.ones(64), storage[:40], 40))
    assert storage[:40].all() and not storage[40:].any()


def test_numpy_arrays_with_negative_strides(program):
    x = np.arange(8, dtype=np.float32)[::-1]
    with pytest.raises(emulator.OutOfBounds):
        program.launch("past_end_wrong", 1, 2, (x, np.zeros(8, np.float32), 2))


@pytest.mark.parametrize("threads", [8, 9])
def test_gaps_between_rows(program, threads):
    storage = torch.zeros(6, 16)
    y = storage[1:5, 4:12]
    # y[row][i] of rows that are 16 apart, by as many threads as a row has elements, and by one more
    rows = 'extern "C" __global__ void rows(float* y) {\n  y[blockIdx.x * 16 + threadIdx.x] = 1;\n}'
    written = emulator.compile(rows, "rows.cu")
    if threads == 8:
        written.launch("rows", 4, 8, (y,))
        assert storage.sum() == y.sum() == 32
        written.launch("rows", 4, 9, (y,), memory=[storage])  # who names the whole may use it
        return
    gap = r"thread \(8, 0, 0\) writes 4 bytes in a gap of y \(shape \(4, 8\)\), whose rows are 32 bytes"
    with pytest.raises(emulator.OutOfBounds, match=gap):
        written.launch("rows", 4, 9, (y,))


@pytest.mark.parametrize(
    ("shape", "strides", "rows"),
    [
        ((4, 8), (8, 1), (0, 0)),
        ((4, 8), (16, 1), (32, 64)),
        ((8, 4), (1, 16), (32, 64)),
        ((2, 4, 8), (64, 8, 1), (128, 256)),
        ((2, 4, 8), (128, 16, 1), (32, 64)),
        ((2, 4, 8), (100, 16, 1), (0, 0)),  # the second axis is no multiple: not looked at
        ((4, 8), (0, 1), (0, 0)),
        ((4,), (3,), (4, 12)),
        ((4, 8), (4, 1), (0, 0)),  # rows overlap
        ((4, 8), (-16, 1), (32, 64)),
    ],
)
def test_rows_of_a_view(shape, strides, rows):
    assert Argument("x", 0, 1 << 20, 4, shape, strides).rows == rows
