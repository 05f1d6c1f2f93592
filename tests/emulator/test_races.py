"""The race detector: each kernel with a race, and its right twin."""

import pytest
import torch

from tests.programs import PROGRAMS
from touchstone.backends import emulator

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

SOURCE = (PROGRAMS / "emulator_races.cu").read_text()
NAMES = sorted({line.split()[4].split("(")[0] for line in SOURCE.splitlines() if line.startswith('extern "C"')})
WRONG = [name for name in NAMES if name.endswith("_wrong")]
RIGHT = [name for name in NAMES if name.endswith("_right")]


@pytest.fixture(scope="module")
def program():
    return emulator.compile(SOURCE, "races.cu")


def launch(program, kernel):
    y = torch.zeros(256)
    arguments = (torch.arange(64.0), y, torch.zeros(1, dtype=torch.int32))
    blocks = 3 if kernel.startswith("third") else 2
    program.launch(kernel, blocks, 64, arguments, cooperative=kernel.startswith("grid"))
    return y


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("kernel", WRONG)
def test_race_is_found(program, kernel, order):
    name = kernel.removesuffix("_wrong")
    lines = {
        1 + number
        for number, line in enumerate(SOURCE.splitlines())
        if f"FIRST {name}" in line or f"SECOND {name}" in line
    }
    with pytest.raises(emulator.RaceCondition) as found, emulator.races(), emulator.schedule(order, seed=1):
        launch(program, kernel)
    message = str(found.value)
    assert kernel in message
    assert {line for line in lines if f"races.cu:{line}" in message}
    assert "thread (" in message and "nothing orders the two" in message


@pytest.mark.parametrize("kernel", WRONG)
def test_a_race_names_both_lines(program, kernel):
    name = kernel.removesuffix("_wrong")
    lines = {
        1 + number
        for number, line in enumerate(SOURCE.splitlines())
        if f"FIRST {name}" in line or f"SECOND {name}" in line
    }
    with pytest.raises(emulator.RaceCondition) as found, emulator.races():
        launch(program, kernel)
    assert all(f"races.cu:{line}" in str(found.value) for line in lines), (lines, str(found.value))


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("kernel", RIGHT)
def test_right_twin_is_silent(program, kernel, order):
    with emulator.races(), emulator.schedule(order, seed=1):
        launch(program, kernel)


def test_off_by_default(program):
    launch(program, "lost_update_wrong")


def test_the_element_is_named(program):
    with (
        pytest.raises(emulator.RaceCondition, match=r"y\[0\]: block \(0, 0, 0\), thread \(1, 0, 0\) reads it"),
        emulator.races(),
    ):
        launch(program, "lost_update_wrong")


def test_an_order_changes_the_answer_of_a_race(program):
    answers = []
    for order in ("forward", "reverse"):
        with emulator.schedule(order):
            answers.append(launch(program, "no_barrier_wrong"))
    assert not torch.equal(answers[0], answers[1])


def test_writers(program):
    y = torch.zeros(256)
    with emulator.writers() as written:
        program.launch("bytes_right", 2, 64, (torch.zeros(64), y, torch.zeros(1, dtype=torch.int32)))
        program.launch("plain_peek_right", 2, 64, (torch.zeros(64), y[128:], torch.zeros(1, dtype=torch.int32)))
    line = 1 + next(n for n, text in enumerate(SOURCE.splitlines()) if "bytes[threadIdx.x] =" in text)
    assert written.of(y.data_ptr() + 62) in {
        f"block (0, 0, 0), thread ({thread}, 0, 0), line {line} of races.cu" for thread in (62, 63)
    }
    assert written.of(y[129].data_ptr()).startswith("block (1, 0, 0), thread (0, 0, 0), line ")
    assert written.of(y[100].data_ptr()) is None


PASSED_ON = """
extern "C" __global__ void passed_on(int* y, unsigned* flag, unsigned* seen) {{
  unsigned found = 0, one = 1, old = 0;
  if (blockIdx.x == 0) {{
    y[0] = 5;
    asm volatile("{tells}" : "+r"(old) : "l"(flag), "r"(one) : "memory");
  }} else {{
    while (!found) asm volatile("{asks}" : "=r"(found) : "l"(flag) : "memory");
    seen[0] = y[0];
  }}
}}
"""
FIRST_TELL = "atom.release.gpu.global.or.b32 %0, [%1], %2;"
FIRST_ASK = "ld.acquire.gpu.global.u32 %0, [%1];"
TELLS = {  # whether what its thread did before comes before it
    FIRST_TELL: True,
    "atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;": True,
    "atom.acquire.gpu.global.add.u32 %0, [%1], %2;": False,
    "atom.relaxed.gpu.global.add.u32 %0, [%1], %2;": False,
    "atom.global.add.u32 %0, [%1], %2;": False,
    "atom.release.gpu.global.cas.b32 %0, [%1], 0, %2;": True,
    "red.release.gpu.global.add.u32 [%1], %2;": True,
    "red.relaxed.gpu.global.or.b32 [%1], %2;": False,
    "st.release.gpu.global.u32 [%1], %2;": True,
    "st.relaxed.gpu.global.u32 [%1], %2;": False,
    "fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%1], %2;": True,
    "membar.gl; st.volatile.global.u32 [%1], %2;": True,
}
ASKS = (  # all of which see what was told
    FIRST_ASK,
    "ld.relaxed.gpu.global.u32 %0, [%1]; fence.acq_rel.gpu;",
    "atom.acquire.gpu.global.or.b32 %0, [%1], 0;",
)


def passed_on(tells, asks):
    y, flag, seen = (torch.zeros(1, dtype=torch.int32) for _ in range(3))
    made = emulator.compile(PASSED_ON.format(tells=tells, asks=asks), "passed.cu")
    with emulator.races():
        made.launch("passed_on", 2, 1, (y, flag, seen))
    assert seen.item() == 5


@pytest.mark.parametrize(
    ("tells", "asks"), [*((each, FIRST_ASK) for each in TELLS), *((FIRST_TELL, each) for each in ASKS[1:])]
)
def test_what_instructions_order(tells, asks):
    if TELLS[tells]:
        passed_on(tells, asks)
    else:
        with pytest.raises(emulator.RaceCondition, match=r"y\[0\]"):
            passed_on(tells, asks)
