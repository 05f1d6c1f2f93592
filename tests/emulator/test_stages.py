"""Stages of shared memory that are filled again before they were read: nothing but the race detector's runs tell."""

import numpy as np
import pytest

from tests.programs import PROGRAMS
from touchstone.backends import emulator

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

FILE = PROGRAMS / "emulator_stages.cu"
TILES = 6
ORDERS = ("forward", "reverse", "shuffled")
X = np.random.default_rng(0).standard_normal((TILES, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def program():
    return emulator.compile(FILE.read_text(), FILE.name)


def launch(program, kernel, *how):
    y = np.zeros(64, np.float32)
    program.launch(kernel, 1, 64, (X, y, TILES, *how), shared=512)
    return y


@pytest.mark.parametrize("kernel", ["plain", "copied"])
@pytest.mark.parametrize(("swaps", "reads_other"), [(0, 1), (1, 0)])
def test_a_stage_that_does_not_change_is_found_by_nothing_else(program, kernel, swaps, reads_other):
    answers = []
    for order in ORDERS:
        with emulator.schedule(order):
            answers.append(launch(program, kernel, swaps, reads_other))
        with emulator.schedule(order), emulator.races(), pytest.raises(emulator.StaleShared) as found:
            launch(program, kernel, swaps, reads_other)
    assert (answers[0] == answers[1]).all() and (answers[0] == answers[2]).all()
    assert "shared" in str(found.value) and "before any thread has read what it stored there" in str(found.value)


def test_the_last_stage_that_nobody_reads(program):
    launch(program, "tail", 0, 1)
    with emulator.races(), pytest.raises(emulator.StaleShared, match="leaves 256 bytes"):
        launch(program, "tail", 0, 1)


@pytest.mark.parametrize("kernel", ["plain", "copied", "tail"])
def test_stages_in_turn(program, kernel):
    expected = np.zeros(64, np.float32)
    for tile in X:
        expected = expected * np.float32(0.5) + tile[::-1]
    for order in ORDERS:
        with emulator.races(), emulator.schedule(order, seed=1):
            assert (launch(program, kernel, 1, 1) == expected).all()


@pytest.mark.parametrize("needed", range(TILES + 1))
@pytest.mark.parametrize("kernel", ["stays", "ahead", "alone"])
def test_what_is_loaded_in_vain_is_no_finding(program, kernel, needed):
    with emulator.races():
        launch(program, kernel, needed)


@pytest.mark.parametrize("row", [0, 2, TILES])
def test_a_strip_that_is_stored_outside_of_the_array_is_no_finding(program, row):
    y = np.zeros((TILES, 64), np.float32)
    with emulator.races():
        program.launch("outside", 1, 64, (emulator.TensorMap(y, (1, 64)), X, TILES, row), shared=512)
    assert (y[:row] == 0).all() and (y[row:] == X[0][::-1] + X[: TILES - row]).all()
