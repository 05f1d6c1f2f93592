"""Philox in every language gives the words of the reference, whose known answers tests/reference/test_philox.py has:
seeds, offsets and indices beyond 2^32, seeds that Triton compiles anew for."""

import pytest

from tests.processes import interpret
from tests.programs import PROGRAMS
from tests.programs.philox_words import COUNT, STREAMS
from touchstone.conformance.discovery import registry
from touchstone.reference._philox import words


@pytest.mark.parametrize("language", ["cupy", "numba", "triton"])
def test_words_are_equal_to_the_bit(language):
    if reason := registry.backend(language).why_not("cpu"):
        pytest.skip(reason)
    done = interpret(str(PROGRAMS / "philox_words.py"), language)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [words(COUNT, *rest, start).tobytes().hex() for start, *rest in STREAMS]
